"""Two hundred wrong configs: each is refused in seconds, on one line that names field and value."""

import dataclasses
import functools
import math
import subprocess
import sys
import time

import pytest
from ml_collections import ConfigDict

from configs import default
from jacreg_train.data import DataError
from jacreg_train.main import main
from jacreg_train.training import setup
from jacreg_train.training.errors import ConfigError
from jacreg_train.training.loop import train_and_evaluate
from jacreg_train.training.validation import CHOICES, RANGES, leaves
from tests.data import test_prepared as prepared
from tests.reliability.command import arguments


@dataclasses.dataclass(frozen=True)
class Bad:
    """A change of the config, and what the refusal has to contain."""

    change: dict
    words: tuple[str, ...]

    def __str__(self):
        return ",".join(f"{field}={value!r}"[:40] for field, value in self.change.items())


OPTIONAL_TEXT = {
    *("dataset.data_dir", "jacobian.context.name", "jacobian.context.data_dir", "jacobian.context.split"),
    *("jacobian.estimator.probe", "jacobian.estimator.distribution", "wandb.group", "wandb.name"),
}


def wrong_types():
    """Every field, with a value of no type that it takes."""
    for field, value in leaves(good()):
        if not field.startswith("dataset.synthetic"):  # their types are the data set's to check, see below
            takes_text = isinstance(value, str | tuple) or field in OPTIONAL_TEXT
            for wrong in ({1, 2}, b"bytes") if takes_text else ("three", (1, 2)):
                yield Bad({field: wrong}, (f"config.{field} = {wrong!r}", "type"))


def unknown_names():
    for field, choices in CHOICES.items():
        for wrong in ("", "nonsense", next(iter(choices)) + "x"):
            yield Bad({field: wrong}, (f"config.{field} = {wrong!r}", *choices))


def out_of_range():
    default_values = dict(leaves(good()))
    for field, interval in RANGES.items():
        low = float(interval[1:-1].split(",")[0])
        kind = default.get_config().get_type(field) if "." not in field else type(default_values[field])
        wrong = (math.nan, math.inf, low - 1) if kind is float else (int(low) - 1, -(10**12))
        for value in wrong:
            yield Bad({field: value}, (f"config.{field} = {value!r}",))


COMBINATIONS = [
    Bad({"num_epochs": 1.0}, ("num_steps", "num_epochs", "give one")),
    Bad({"batch_size": 10**9}, ("config.batch_size = 1000000000", "16 examples")),
    Bad({"jacobian.batch_size": 3}, ("config.jacobian.batch_size = 3", "divisor")),
    Bad({"jacobian.points": "context"}, ("config.jacobian.context.name = None", "data set")),
    Bad({"jacobian.context.split": "train"}, ("config.jacobian.context.split = 'train'", "points")),
    Bad({"jacobian.target": 2.0}, ("config.jacobian.target = 2.0", "row_norm")),
    Bad({"jacobian.penalty": "row_norm", "jacobian.target": math.nan}, ("config.jacobian.target = nan", "finite")),
    Bad(
        {
            "jacobian.penalty": "row_norm",
            "jacobian.estimator.name": "stochastic",
            "jacobian.estimator.probe": "cotangent",
        },
        ("jacobian", "probe='cotangent'", "tangent"),
    ),
    Bad({"jacobian.estimator.num_probes": 2}, ("config.jacobian.estimator", "num_probes=2", "example_chunk")),
    Bad({"jacobian.estimator.orthogonal": True}, ("config.jacobian.estimator", "orthogonal=True", "example_chunk")),
    Bad({"jacobian.estimator.name": "exact", "jacobian.estimator.output_chunk": 1}, ("output_chunk=1", "options")),
    Bad(
        {"jacobian.estimator.name": "stochastic", "jacobian.estimator.distribution": "cauchy"},
        ("config.jacobian.estimator", "cauchy", "gaussian"),
    ),
    Bad(
        {"jacobian.estimator.name": "stochastic", "jacobian.estimator.probe": "sideways"},
        ("config.jacobian.estimator", "sideways", "tangent"),
    ),
    Bad({"optimizer.momentum": 0.5}, ("config.optimizer.momentum = 0.5", "beta1")),
    Bad({"optimizer.name": "sgd", "optimizer.beta1": 0.5}, ("config.optimizer.beta1 = 0.5", "momentum")),
    Bad({"optimizer.schedule": "constant", "optimizer.decay_steps": 5}, ("config.optimizer.decay_steps = 5", "none")),
    Bad({"model.cnn.strides": (1, 1)}, ("config.model.cnn", "strides")),
    Bad({"model.cnn.widths": (0,)}, ("config.model.cnn", "widths")),
    Bad({"model.cnn.widths": ("a",)}, ("config.model.cnn", "widths")),
    Bad({"model.cnn.strides": (-1,)}, ("config.model.cnn", "strides")),
    Bad({"model.cnn.kernel_size": 0}, ("config.model.cnn", "kernel_size")),
    Bad({"model.cnn.pooling": "min"}, ("config.model.cnn", "'min'", "max")),
    Bad({"model.cnn.readout": "first"}, ("config.model.cnn", "'first'", "flatten")),
    Bad({"model.cnn.dense_width": -3}, ("config.model.cnn", "dense_width", "-3")),
    Bad({"model.cnn.norm": "layer"}, ("config.model.cnn", "'layer'", "batch")),
    Bad({"model.cnn.dropout_rate": 1.0}, ("config.model.cnn", "dropout_rate", "1.0")),
    Bad({"model.cnn.dropout_rate": -0.1}, ("config.model.cnn", "dropout_rate", "-0.1")),
    Bad({"model.name": "resnet18", "model.resnet18.width": 0}, ("config.model.resnet18", "width", "0")),
    Bad({"model.name": "resnet18", "model.resnet18.stem": "5x5"}, ("config.model.resnet18", "'5x5'", "imagenet")),
    Bad({"model.name": "resnet18", "model.resnet18.norm": "none"}, ("config.model.resnet18", "'none'", "group")),
    *(
        Bad({f"dataset.synthetic.{field}": value}, (f"config.dataset.synthetic.{field} = {value!r}",))
        for field, values in {
            "image_shape": ((4, 4), (4, 4, 1, 1), (0, 4, 1), (-4, 4, 1), "444", ("a", 4, 1), (4.5, 4, 1)),
            "num_classes": (0, -1, 2.5, "3", None),
            "num_examples": (0, -5, 1.5, "16", None),
            "seed": (-1, 1.5, "0"),
        }.items()
        for value in values
    ),
    Bad({"dataset.name": "no_such_set"}, ("config.dataset.name = 'no_such_set'", "digits, synthetic")),
    Bad({"dataset.name": ""}, ("config.dataset.name = ''", "name/config")),
    Bad({"dataset.name": "../../etc"}, ("config.dataset.name = '../../etc'", "name/config")),
    Bad({"dataset.data_dir": "a\0b", "dataset.name": "mnist"}, ("config.dataset.data_dir = 'a\\x00b'",)),
    Bad(
        {"dataset.name": "digits", "dataset.train_split": "nonsense"},
        ("config.dataset.train_split = 'nonsense'", "choices: train, test"),
    ),
    Bad({"dataset.name": "digits", "dataset.test_split": "test["}, ("config.dataset.test_split = 'test['", "choices")),
    Bad({"dataset.name": "digits", "dataset.train_split": "train[:0]"}, ("config.dataset.train_split", "'train[:0]'")),
    Bad({"dataset.train_split": "validation"}, ("config.dataset.train_split = 'validation'", "train, test")),
    Bad(
        {"jacobian.points": "context", "jacobian.context.name": "no_such_set"},
        ("config.jacobian.context.name = 'no_such_set'", "digits, synthetic"),
    ),
    Bad(
        {"jacobian.points": "context", "jacobian.context.name": "digits", "jacobian.context.split": "x"},
        ("config.jacobian.context.split = 'x'", "choices"),
    ),
    Bad(
        {"jacobian.points": "context", "jacobian.context.name": "digits"},
        ("config.jacobian.context.name = 'digits'", "(8, 8, 1)", "one shape"),
    ),
]


def good() -> ConfigDict:
    config = default.get_config()
    config.num_steps = 1
    config.batch_size = 4
    config.dataset.name = "synthetic"
    config.dataset.synthetic.image_shape = (4, 4, 1)
    config.dataset.synthetic.num_examples = 16
    config.model.cnn.widths = (2,)
    config.model.cnn.strides = (2,)
    config.wandb.mode = "disabled"
    return config


CASES = [*wrong_types(), *unknown_names(), *out_of_range(), *COMBINATIONS]


def test_there_are_enough():
    assert len(CASES) >= 200


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return str(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_refused_in_seconds_on_one_line(case, tmp_path, data_dir):
    config = good()
    config.dataset.data_dir = config.jacobian.context.data_dir = data_dir if "digits" in case.change.values() else None
    if case.change.get("jacobian.points") != "context":
        config.jacobian.context.data_dir = None
    with config.ignore_type():
        config.update_from_flattened_dict(case.change)
    start = time.process_time()
    with pytest.raises((ConfigError, DataError)) as caught:
        train_and_evaluate(config, tmp_path / "run")
    assert time.process_time() - start < 5
    message = str(caught.value)
    assert "\n" not in message
    for word in case.words:
        assert word in message
    assert not (tmp_path / "run").exists()


FROM_THE_SHELL = {
    "--config.batch_size=-1": ["config.batch_size = -1", "[1, inf)"],
    "--config.model.name=cnm": ["config.model.name = 'cnm'", "did you mean cnn?"],
    "--config.jacobian.estimator.num_probes=2": ["num_probes=2", "example_chunk"],
}


@pytest.mark.parametrize("flag", FROM_THE_SHELL)
def test_refused_from_the_shell_without_a_traceback(flag, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "jacreg_train.main", flag, f"--workdir={tmp_path / 'run'}"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    for word in FROM_THE_SHELL[flag]:
        assert word in done.stderr


@pytest.mark.parametrize("name", ["a.py", "b.py", "c.py", "d.json", "e.json"])
def test_config_files_that_are_none(name, tmp_path, capsys):
    content = {
        "a.py": "def get_config(:",
        "b.py": "x = 1",
        "c.py": "raise ValueError('two\\nlines')",
        "d.json": "{",
        "e.json": '{"seed": "x"}',
    }[name]
    (tmp_path / name).write_text(content)
    assert main(["jacreg-train", f"--config={tmp_path / name}", f"--workdir={tmp_path / 'run'}"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert name in err


TENSOR = "tensor_feature.Tensor", {"tensor": {"shape": {"dimensions": ["4", "4", "3"]}, "dtype": "uint16"}}
BAD_SETS = {
    "label out of range": (
        {"records": prepared.BAD_RECORDS["label too large"][0]},
        ["record 3", "label is 3", "0 to 2"],
    ),
    "image of another size": (
        {"records": prepared.BAD_RECORDS["image of another size"][0]},
        ["record 3", "declared 4"],
    ),
    "corrupt record": (
        {"records": prepared.BAD_RECORDS["record that is no example"][0]},
        ["record 3", "not as declared"],
    ),
    "wrong shape": ({"features": {"image": prepared.image_feature(-1, -1, 3)}}, ["(None, None, 3)", "one size"]),
    "wrong type": ({"features": {"image": TENSOR}}, ["uint16", "uint8"]),
    "tfrecord": ({"file_format": "tfrecord"}, ["array_record", "converts it in place"]),
    "not prepared": (None, ["is not prepared in", "run: python -m jacreg_train.data.prepare --name=toy"]),
}


@pytest.mark.parametrize("case", BAD_SETS)
def test_data_that_are_not_as_declared(case, tmp_path, capsys):
    options, words = BAD_SETS[case]
    if options is not None:
        records = [*prepared.good_records(3), options.pop("records", prepared.good_records(1)[0])]
        if "features" in options:
            options = {"features": prepared.FEATURES | options["features"]}
        prepared.write_set(tmp_path, records, **options)
    flags = ["--config.dataset.name=toy", f"--config.dataset.data_dir={tmp_path}", "--config.dataset.test_split=train"]
    assert main(["jacreg-train", *flags, "--config.compilation_cache=off", f"--workdir={tmp_path / 'run'}"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    for word in ("config.dataset.name = 'toy'", *words):
        assert word in err
    assert not (tmp_path / "run").exists()


def test_a_corrupt_record_that_is_met_in_a_step_is_one_line_too(tmp_path, capsys, monkeypatch):
    """A set too large for memory is read batch by batch."""
    prepared.write_set(tmp_path, [*prepared.good_records(30), prepared.BAD_RECORDS["image that is text"][0]])
    monkeypatch.setattr(setup, "load_dataset", functools.partial(setup.load_dataset, in_memory_bytes=0))
    flags = ["--config.dataset.name=toy", f"--config.dataset.data_dir={tmp_path}", "--config.dataset.test_split=train"]
    command = [flag for flag in arguments(tmp_path / "run", *flags) if ".synthetic." not in flag]
    assert main([*command, "--config.compilation_cache=off"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    for word in ("config.dataset.name = 'toy'", "split 'train'", "record 30 is not as declared", "prepare it again"):
        assert word in err
