import io
from pathlib import Path

from rich.console import Console

from jacreg_train.training.summary import print_summary, summarize

RECORDS = [
    {"step": 1, "wall_time_s": 5.0, "time/step_ms": 9.0, "time/penalty_share": 0.75},
    {"step": 2, "wall_time_s": 6.0, "time/step_ms": 1.0, "test/accuracy": 0.5},
    {"step": 3, "wall_time_s": 7.0, "time/step_ms": 2.0, "test/accuracy": 0.75},
]


def test_last_values_and_the_median_step_time():
    assert summarize(RECORDS) == {
        "step": 3,
        "time/step_ms": 2.0,
        "time/penalty_share": 0.75,
        "test/accuracy": 0.75,
    }
    assert summarize([]) == {}


def test_the_table_and_the_commands():
    out = io.StringIO()
    print_summary(summarize(RECORDS), Path("runs/a"), wandb=True, console=Console(file=out, width=200))
    text = out.getvalue()
    for expected in (
        "0.7500",
        "75%",
        "2 ms",
        "runs/a/metrics.jsonl",
        "wandb leet runs/a/wandb",
        "--workdir=runs/a_again",
    ):
        assert expected in text
    assert "NLL" not in text
