"""Arrays split over the model axis: the same parameters after some steps, less memory a device, one kind of checkpoint.

Devices are virtual and need a process of their own: this file is the test, and run as a script it is that process.
"""

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from jacreg_train.training.devices import is_split
from jacreg_train.training.errors import ConfigError
from jacreg_train.training.validation import validate

NUM_DEVICES, STEPS, BATCH_SIZE = 8, 5, 8
MODEL = (1, 2, 4, 8)  # devices that share an array; the first is the reference, the last leaves one batch to all
CASES = {
    "layerwise": {"norm": "group"},
    "chunked": {"norm": "none"},
    "stochastic": {"norm": "batch", "dropout_rate": 0.5},
}
SHORT = "layerwise"  # in the short run; a process for each case
EACH_CASE = [pytest.param(case, marks=[pytest.mark.slow] * (case != SHORT)) for case in CASES]
pytestmark = pytest.mark.xdist_group("large models")  # in one worker, that each process runs once


def config_of(estimator: str, model: int):
    from configs import default

    config = default.get_config()
    config.num_steps, config.batch_size, config.mesh.model = STEPS, BATCH_SIZE, model
    config.dataset.name = "synthetic"
    config.dataset.synthetic.image_shape = (4, 4, 1)
    config.dataset.synthetic.num_classes = 3
    config.dataset.synthetic.num_examples = 16
    config.model.cnn.widths, config.model.cnn.strides, config.model.cnn.dense_width = (8,), (2,), 16
    config.model.cnn.update(CASES.get(estimator, {}))
    config.jacobian.weight = 0.01
    config.jacobian.estimator.name = estimator
    config.evaluation.batch_size = 8
    config.optimizer.name = "sgd"  # adam's division would blow rounding up where a gradient is near 0
    config.optimizer.momentum = 0.9
    config.optimizer.learning_rate = 0.05
    return config


def bytes_of_one_device(tree) -> int:
    import jax

    return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree))


def train(estimator: str, model: int, folder: Path) -> dict:
    """Trains, evaluates, saves, and restores what was saved with another model axis."""
    import jax

    from jacreg_train.training import setup
    from jacreg_train.training.checkpoints import Checkpoints
    from jacreg_train.training.programs import compile_programs

    run = setup.build(config_of(estimator, model))
    batches, state = run.make_batches(), run.init()
    program = compile_programs(run, state, batches.example(), share=False, norms=False).penalised
    assert program is not None
    before = jax.tree.map(lambda leaf: leaf.sharding, state)
    for _ in range(STEPS):
        state, metrics = jax.block_until_ready(program(state, *batches.next()))
    to_lists = lambda tree: [np.asarray(leaf).ravel().tolist() for leaf in jax.tree.leaves(tree)]
    result = {
        "params": to_lists(state.params),
        "model_state": to_lists(state.model_state),
        "loss": float(metrics["train/loss"]),
        "evaluation": run.evaluate(state),
        "bytes": bytes_of_one_device(state.params),
        "optimizer_bytes": bytes_of_one_device(state.opt_state),
        "lies_as_before": jax.tree.all(
            jax.tree.map(lambda leaf, sharding: leaf.sharding.is_equivalent_to(sharding, leaf.ndim), state, before)
        ),
    }
    with Checkpoints(folder / estimator, keep_latest=1, keep_best=0) as checkpoints:
        restored = checkpoints.restore_latest(state)  # saved by the run before, with another number
        if restored is not None:
            result["restored"] = to_lists(restored[0].params)
            result["restored_bytes"] = bytes_of_one_device(restored[0].params)
        # A number for each, so that this one is the newest.
        checkpoints.save(state, step=model, position={}, config={}, accuracy=None)
    return result


def main(case: str) -> None:
    import jax

    jax.config.update("jax_num_cpu_devices", NUM_DEVICES)
    jax.config.update("jax_disable_most_optimizations", True)
    with tempfile.TemporaryDirectory() as folder:
        results = {f"{case}/{model}": train(case, model, Path(folder)) for model in MODEL}
    print(json.dumps(results))


@pytest.fixture(scope="module")
def results(request):
    done = subprocess.run([sys.executable, __file__, request.param], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    return request.param, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("model", MODEL[1:])
@pytest.mark.parametrize("results", EACH_CASE, indirect=True)
def test_splitting_changes_nothing_beyond_rounding(results, model):
    case, results = results
    one, many = results[f"{case}/1"], results[f"{case}/{model}"]
    for name in ("params", "model_state"):
        for got, want in zip(many[name], one[name], strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert many["loss"] == pytest.approx(one["loss"], rel=1e-5)
    assert many["evaluation"] == pytest.approx(one["evaluation"], rel=1e-4)


@pytest.mark.parametrize("model", MODEL)
@pytest.mark.parametrize("results", EACH_CASE, indirect=True)
def test_a_device_holds_its_part_of_every_large_array_and_keeps_to_it(results, model):
    """Of this network the kernels [3, 3, 1, 8] and [32, 16] are split, not the last layer's [16, 3] nor vectors."""
    case, results = results
    one, many = results[f"{case}/1"], results[f"{case}/{model}"]
    split = 4 * (3 * 3 * 1 * 8 + 32 * 16)
    assert many["bytes"] == one["bytes"] - split + split / model
    assert many["optimizer_bytes"] - many["bytes"] == one["optimizer_bytes"] - one["bytes"]  # the momentum, and a count
    assert many["lies_as_before"]


@pytest.mark.parametrize("results", EACH_CASE, indirect=True)
def test_a_checkpoint_goes_on_with_another_number(results):
    case, results = results
    for before, after in itertools.pairwise(MODEL):
        saved, restored = results[f"{case}/{before}"], results[f"{case}/{after}"]
        assert restored["restored"] == saved["params"]
        assert restored["restored_bytes"] == restored["bytes"]


def test_the_last_axis_is_split_where_it_divides():
    assert is_split((3, 3, 64, 128), 4)
    assert is_split((5, 8), 8)
    assert not is_split((512, 10), 4)
    assert not is_split((8, 8), 1)
    assert not is_split((3, 0), 2)
    assert not is_split((64,), 2)
    assert not is_split((), 2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mesh.model": 3}, "config.mesh.model = 3: choose a divisor of the 8 devices"),
        ({"mesh.model": 2, "parallel": "pmap"}, "config.mesh.model = 2 has no meaning with config.parallel = 'pmap'"),
        ({"mesh.model": 2, "jacobian.estimator.name": "auto"}, "has no meaning with config.jacobian.estimator.name"),
        ({"mesh.model": 2, "batch_size": 6}, "batch_size = 6: choose a multiple of the 4 devices that share a batch"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_split_is_refused(fields, message):
    config = config_of("layerwise", 1)
    config.update_from_flattened_dict(fields)
    with pytest.raises(ConfigError, match=re.escape(message)):
        validate(config, num_devices=NUM_DEVICES)
    validate(config_of("layerwise", 8), num_devices=NUM_DEVICES)


if __name__ == "__main__":
    main(sys.argv[1])
