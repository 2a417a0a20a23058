"""The local record: whole after any crash, each step once after a resume, valid JSON always."""

import json
import math
import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from jacreg_train.telemetry import JsonLinesWriter, WriterGroup, read_records, writers


def write_steps(path, steps, **arguments):
    writer = JsonLinesWriter(path, **arguments)
    for step in steps:
        writer.write(step, {"train/loss": float(step)})
    writer.close()


def steps_of(path):
    return [record["step"] for record in read_records(path)]


def test_a_record_comes_back(tmp_path):
    writer = JsonLinesWriter(tmp_path / "run" / "metrics.jsonl")
    writer.write(3, {"train/loss": 0.25, "train/accuracy": 1})
    (record,) = read_records(tmp_path / "run")  # before `close`: nothing is held back
    assert record.pop("wall_time_s") > 1e9
    assert record == {"step": 3, "train/loss": 0.25, "train/accuracy": 1.0}
    writer.close()


def test_not_a_number_is_valid_json(tmp_path):
    values = {"a": math.nan, "b": math.inf, "c": -math.inf}
    writer = JsonLinesWriter(tmp_path / "metrics.jsonl")
    writer.write(1, values)
    writer.close()

    def refuse(constant):
        raise AssertionError(constant)

    json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    (record,) = read_records(tmp_path)
    assert math.isnan(record["a"])
    assert (record["b"], record["c"]) == (math.inf, -math.inf)


def test_lines_of_one_step_are_merged(tmp_path):
    writer = JsonLinesWriter(tmp_path / "metrics.jsonl")
    writer.write(5, {"train/loss": 1.0})
    writer.write(5, {"test/accuracy": 0.5})
    writer.close()
    (record,) = read_records(tmp_path)
    assert (record["train/loss"], record["test/accuracy"]) == (1.0, 0.5)


@pytest.mark.parametrize(("restored_step", "expected"), [(50, list(range(10, 101, 10))), (None, [60, 70, 80, 90, 100])])
def test_each_step_once_after_a_resume(tmp_path, restored_step, expected):
    path = tmp_path / "metrics.jsonl"
    write_steps(path, range(10, 81, 10))
    write_steps(path, range(60, 101, 10), restored_step=restored_step)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == expected


@pytest.mark.parametrize("torn", [b'{"step": 3, "train/lo', b'{"step": 3', b"{}", b"\xff\xfe", b"3", b"\n"])
def test_a_torn_last_line_is_left_out_and_removed_by_a_resume(tmp_path, torn):
    path = tmp_path / "metrics.jsonl"
    write_steps(path, [1, 2])
    with path.open("ab") as file:
        file.write(torn)
    assert steps_of(tmp_path) == [1, 2]
    write_steps(path, [3], restored_step=2)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]


def test_a_damaged_line_elsewhere_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nrubbish\n{"step": 3}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2: .*rubbish"):
        read_records(tmp_path)


def test_no_record_yet(tmp_path):
    assert read_records(tmp_path) == []


def test_a_killed_process_loses_nothing(tmp_path):
    code = """
        import os, signal, sys
        from jacreg_train.telemetry import JsonLinesWriter
        writer = JsonLinesWriter(sys.argv[1])
        for step in range(50):
            writer.write(step, {"train/loss": 1.0})
        os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), tmp_path / "metrics.jsonl"])
    assert steps_of(tmp_path) == list(range(50))


def test_a_full_disk_is_raised_and_tears_no_line(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    writer = JsonLinesWriter(path)
    writer.write(1, {"train/loss": 1.0})

    class Full:  # writes half, then has no room
        def __init__(self, file):
            self._file = file
            self.seek, self.truncate, self.close = file.seek, file.truncate, file.close

        def write(self, line):
            return self._file.write(line[: len(line) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(writer, "_file", Full(writer._file))
        with pytest.raises(OSError, match="is the disk full"):
            writer.write(2, {"train/loss": 2.0})
    writer.write(3, {"train/loss": 3.0})
    writer.close()
    assert steps_of(tmp_path) == [1, 3]


def test_a_disk_that_does_not_answer_holds_up_no_write_and_not_everything_is_kept_waiting(tmp_path, monkeypatch):
    answers = threading.Event()
    writer = JsonLinesWriter(tmp_path / "metrics.jsonl", check=answers.wait)
    monkeypatch.setattr(writers, "MOST_PENDING", 5)
    for step in range(5):
        start = time.monotonic()
        writer.write(step, {"train/loss": 1.0})
        assert time.monotonic() - start < 1
    assert not writer.flush(0)
    with pytest.raises(OSError, match=r"5 records wait to be written to .*metrics\.jsonl; does the disk answer\?"):
        writer.write(5, {"train/loss": 1.0})
    answers.set()
    assert writer.flush()
    assert steps_of(tmp_path) == list(range(5))
    writer.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_device_without_room_is_an_error(tmp_path, monkeypatch):
    writer = JsonLinesWriter(tmp_path / "metrics.jsonl")
    monkeypatch.setattr(writer, "_file", open("/dev/full", "ab", buffering=0))  # noqa: SIM115
    with pytest.raises(OSError, match="No space left"):
        writer.write(1, {"train/loss": 1.0})
    writer.close()


class Recorder:
    def __init__(self, log, name, fails=False):
        self.log, self.name, self.fails = log, name, fails

    def write(self, step, metrics):
        self.log.append((self.name, step, dict(metrics)))

    def close(self):
        self.log.append((self.name, "closed"))
        if self.fails:
            raise OSError(f"{self.name} failed")


def test_a_group_writes_in_order_and_closes_all():
    log: list = []
    group = WriterGroup([Recorder(log, "a", fails=True), Recorder(log, "b")])
    group.write(1, {"x": 2.0})
    with pytest.raises(OSError, match="a failed"):
        group.close()
    assert log == [("a", 1, {"x": 2.0}), ("b", 1, {"x": 2.0}), ("a", "closed"), ("b", "closed")]
