from pathlib import Path

import pytest

from jacreg_train import data


@pytest.fixture(scope="session")
def digits_dir(tmp_path_factory) -> Path:
    """A data_dir in which digits are prepared."""
    folder = tmp_path_factory.mktemp("data")
    data.load_dataset("digits", split="test", data_dir=folder)
    return folder
