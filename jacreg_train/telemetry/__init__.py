"""Timing, memory, metric writers and the record of a run. Knows nothing else of this project."""

from jacreg_train.telemetry.background import Background
from jacreg_train.telemetry.memory import compiled_bytes, device_peak_bytes, resident_bytes
from jacreg_train.telemetry.metric_names import METRICS, Metric
from jacreg_train.telemetry.progress import ForgivingConsole, ProgressWriter
from jacreg_train.telemetry.run_record import (
    describe_device,
    describe_run,
    read_config,
    read_run_record,
    redact,
    write_run_record,
)
from jacreg_train.telemetry.timing import StepClock, compare_times, time_share
from jacreg_train.telemetry.wandb_writer import WandbWriter, read_wandb_history
from jacreg_train.telemetry.writers import JsonLinesWriter, MetricWriter, WriterGroup, read_records

__all__ = [
    "METRICS",
    "Background",
    "ForgivingConsole",
    "JsonLinesWriter",
    "Metric",
    "MetricWriter",
    "ProgressWriter",
    "StepClock",
    "WandbWriter",
    "WriterGroup",
    "compare_times",
    "compiled_bytes",
    "describe_device",
    "describe_run",
    "device_peak_bytes",
    "read_config",
    "read_records",
    "read_run_record",
    "read_wandb_history",
    "redact",
    "resident_bytes",
    "time_share",
    "write_run_record",
]
