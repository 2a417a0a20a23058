import signal
import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

from jacreg_train import data

LOAD = """
from jacreg_train import data
print(data.load_dataset("digits", split="test", data_dir={!r}).num_examples)
"""
# Stops for good when the first record is to be written.
KILLED = """
import os, signal
from jacreg_train.data import digits
generate = digits.Digits._generate_examples
def killed(self, test):
    yield next(iter(generate(self, test)))
    os.kill(os.getpid(), signal.SIGKILL)
digits.Digits._generate_examples = killed
digits.digits(split="test", data_dir={!r})
"""


def start(program: str, data_dir) -> subprocess.Popen:
    command = [sys.executable, "-c", program.format(str(data_dir))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_split_is_whole_and_stratified(digits_dir):
    splits = [data.load_dataset("digits", split=split, data_dir=digits_dir) for split in ("train", "test")]
    batches = [split.read(np.arange(split.num_examples)) for split in splits]
    assert [split.num_examples for split in splits] == [1442, 355]
    reference = load_digits()
    images = np.concatenate([batch["image"] for batch in batches])
    levels = np.rint(images[..., 0] * (16 / 255)).astype(np.uint8)
    assert sorted(map(bytes, levels)) == sorted(map(bytes, reference.images.astype(np.uint8)))
    counts = np.bincount(reference.target)
    np.testing.assert_array_equal(np.bincount(batches[1]["label"]), counts // 5)


def test_killed_and_concurrent_first_uses(tmp_path):
    killed = start(KILLED, tmp_path)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "digits").exists()
    together = [start(LOAD, tmp_path) for _ in range(2)]
    for process in together:
        assert process.communicate() == ("355\n", "")
    assert [path.name for path in (tmp_path / "digits").iterdir()] == ["1.0.0"]


def test_what_is_in_the_way_is_named(tmp_path):
    (tmp_path / "digits" / "1.0.0" / "stray").mkdir(parents=True)
    with pytest.raises(data.DataError, match=str(tmp_path)):
        data.load_dataset("digits", split="test", data_dir=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(data.DataError, match="file"):
        data.load_dataset("digits", split="test", data_dir=tmp_path / "file")
