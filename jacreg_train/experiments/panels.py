"""Which metrics belong together: the sections and charts of every dashboard, offline and online."""

from typing import NamedTuple


class Chart(NamedTuple):
    """Curves on one pair of axes.

    Attributes:
        title: of the chart.
        metrics: recorded names, the main one first.
        band: name of a standard error, drawn around the first metric.
    """

    title: str
    metrics: tuple[str, ...]
    band: str | None = None


PANELS: dict[str, tuple[Chart, ...]] = {
    "Task": (
        Chart("Accuracy", ("test/accuracy", "train/accuracy")),
        Chart("Loss", ("train/loss", "train/task_loss", "test/nll")),
        Chart("Calibration error", ("test/ece",)),
        Chart("Learning rate", ("train/learning_rate",)),
    ),
    "Jacobian": (
        Chart("Penalty and its standard error", ("train/penalty",), band="train/penalty_standard_error"),
        Chart("Squared Jacobian norm on the test set", ("test/squared_jacobian_norm",)),
        Chart("Gradient norms", ("train/task_grad_norm", "train/penalty_grad_norm")),
    ),
    "Time": (
        Chart("Step time", ("time/step_ms", "time/data_ms")),
        Chart("Share of the penalty", ("time/penalty_share",)),
        Chart("Examples per second", ("time/examples_per_s",)),
    ),
    "Memory": (Chart("Memory over time", ("memory/resident_gib", "memory/device_peak_gib")),),
}
