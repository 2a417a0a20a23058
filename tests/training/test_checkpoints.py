import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jacreg_train.training.checkpoints import Checkpoints
from jacreg_train.training.errors import ConfigError
from jacreg_train.training.state import TrainState


def state(step: int, width: int = 2) -> TrainState:
    params = {"kernel": jnp.full((width, 2), float(step)), "empty": {}}
    return TrainState(jnp.int32(step), params, {}, (params, {}), jax.random.key(step), jnp.int32(0))


def save(checkpoints, step, accuracy=None):
    checkpoints.save(
        state(step), step=step, position={"train": {"position": step}}, config={"a": None}, accuracy=accuracy
    )


def test_the_newest_comes_back_whole(tmp_path):
    with Checkpoints(tmp_path, keep_latest=2, keep_best=0) as checkpoints:
        assert checkpoints.restore_latest(state(0)) is None
        for step in (3, 7):
            save(checkpoints, step)
    with Checkpoints(tmp_path, keep_latest=2, keep_best=0) as checkpoints:
        latest = checkpoints.restore_latest(state(0))
    assert latest is not None
    restored, position = latest
    assert position == {"train": {"position": 7}}
    assert isinstance(restored, TrainState)
    jax.tree.map(lambda a, b: None, restored, state(7))  # one structure
    assert jnp.array_equal(jax.random.key_data(restored.key), jax.random.key_data(state(7).key))
    np.testing.assert_array_equal(restored.params["kernel"], state(7).params["kernel"])


def test_the_newest_and_the_best_are_kept(tmp_path):
    with Checkpoints(tmp_path, keep_latest=2, keep_best=1) as checkpoints:
        for step, accuracy in enumerate([0.1, 0.9, None, 0.3, None]):
            save(checkpoints, step, accuracy)
    kept = sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir() if path.name.isdigit())
    assert kept == [1, 3, 4]


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    with Checkpoints(tmp_path, keep_latest=1, keep_best=0) as checkpoints:
        save(checkpoints, 1)
    with Checkpoints(tmp_path, keep_latest=1, keep_best=0) as checkpoints:
        with pytest.raises(ConfigError, match=r"params\.kernel is float32\[2, 2\] there, float32\[3, 2\] here"):
            checkpoints.restore_latest(state(0, width=3))
