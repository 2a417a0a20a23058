"""Every metric that a run can record: its name, what it is, and its unit. One name everywhere."""

from typing import NamedTuple


class Metric(NamedTuple):
    label: str
    unit: str = ""


METRICS = {
    "train/loss": Metric("loss (task and penalty)"),
    "train/task_loss": Metric("task loss", "nats"),
    "train/penalty": Metric("penalty (mean per point, unweighted)"),
    "train/penalty_standard_error": Metric("standard error of the penalty"),
    "train/accuracy": Metric("training accuracy"),
    "train/task_grad_norm": Metric("gradient norm of the task loss"),
    "train/penalty_grad_norm": Metric("gradient norm of the weighted penalty"),
    "train/skipped_steps": Metric("steps skipped, not finite"),
    "train/learning_rate": Metric("learning rate"),
    "train/epoch": Metric("epoch"),
    "time/step_ms": Metric("step time", "ms"),
    "time/data_ms": Metric("data time", "ms"),
    "time/examples_per_s": Metric("examples per second", "1/s"),
    "time/penalty_share": Metric("share of the penalty in the step time"),
    "time/compile_s": Metric("compile time", "s"),
    "memory/compiled_gib": Metric("memory of the compiled step", "GiB"),
    "memory/device_peak_gib": Metric("peak memory of a device", "GiB"),
    "memory/resident_gib": Metric("resident memory of the process", "GiB"),
    "test/accuracy": Metric("test accuracy"),
    "test/nll": Metric("test negative log-likelihood", "nats"),
    "test/ece": Metric("test expected calibration error"),
    "test/squared_jacobian_norm": Metric("mean squared Jacobian norm on the test set"),
}
