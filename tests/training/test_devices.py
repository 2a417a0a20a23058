"""The same parameters and metrics on 1, 2 and 4 devices, by jit and by pmap.

The devices are virtual and need a process of their own: this file is the test, and run as a script it is that process.
"""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest

WAYS = (("jit", 1), ("jit", 4), ("pmap", 2))  # with the number of devices; the first is the reference
pytestmark = pytest.mark.xdist_group("devices")  # in one worker, that the process runs once
CASES = {
    # What is random per example (augmentation, dropout, noise, probes) or joint (batch norm) depends on no device.
    "random": {
        "model": {"norm": "batch", "dropout_rate": 0.5},
        "estimator": ("stochastic", {"num_probes": 2}),
        "points": "noise",
        "augment": "crop_flip",
    },
    "subset": {"model": {}, "estimator": ("chunked", {"example_chunk": 1}), "points": "batch", "num_points": 4},
    "context": {"model": {}, "estimator": ("layerwise", {}), "points": "context", "num_points": 12},
    # One probe of the parameters for all devices: its error is not independent between them.
    "shared forward": {
        "model": {},
        "estimator": ("stochastic", {"probe": "tangent", "num_probes": 3}),
        "points": "batch",
    },
}
STEPS, BATCH_SIZE, SHAPE = 3, 8, (4, 4, 1)


def train(devices, case) -> dict:
    """The parameters and metrics after a few steps."""
    import optax

    from jacreg_train.data import AUGMENTATIONS, normalize
    from jacreg_train.training.penalty import PENALTIES
    from jacreg_train.training.points import POINTS
    from jacreg_train.training.state import create_train_state
    from jacreg_train.training.step import Objective, PenaltyTerm, can_share_forward, make_train_step
    from models import make_model

    model = make_model("cnn", num_classes=3, widths=(2,), strides=(2,), dense_width=None, **case["model"])
    name, options = case["estimator"]
    num_points = case.get("num_points", BATCH_SIZE)
    objective = Objective(
        model=model,
        normalize=normalize,
        augment=AUGMENTATIONS[case.get("augment", "none")],
        batch_size=BATCH_SIZE,
        term=PenaltyTerm(
            penalty=PENALTIES["frobenius"](name, wrt="params", **options),
            points=POINTS[case["points"]](num_points=num_points, batch_size=BATCH_SIZE, image_shape=SHAPE),
            num_points=num_points,
            weight=0.01,
            shares_forward=can_share_forward(model, case["points"], num_points, BATCH_SIZE),
        ),
    )
    optimizer = optax.adam(0.05)
    state = devices.make(lambda: create_train_state(model, optimizer, image_shape=SHAPE, seed=0))
    step = devices.map(make_train_step(objective, optimizer), num_batches=2, donate=True)
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        images = rng.integers(0, 256, (BATCH_SIZE, *SHAPE), np.uint8)
        batch = {"image": images, "label": rng.integers(0, 3, BATCH_SIZE, np.int32)}
        context = rng.integers(0, 256, (num_points, *SHAPE), np.uint8) if case["points"] == "context" else None
        state, metrics = jax.block_until_ready(step(state, *devices.put_batch((batch, context))))
    results = {"params": state.params, "model_state": state.model_state, "metrics": metrics}
    leaves, _ = jax.tree_util.tree_flatten_with_path(results)
    return {jax.tree_util.keystr(path): np.asarray(leaf).tolist() for path, leaf in leaves}


def count_examples(devices) -> float:
    """How many of 10 examples an evaluation in batches of 4 counts."""
    import jax.numpy as jnp

    from jacreg_train.data import evaluation_batches, load_dataset, normalize
    from jacreg_train.training.evaluation import make_task_evaluation
    from models import make_model

    data = load_dataset("synthetic", split="test", image_shape=SHAPE, num_classes=3, num_examples=10)
    model = make_model("cnn", num_classes=3, widths=(2,), strides=(2,), dense_width=None)
    weights = devices.make(lambda: model.init(jax.random.key(0), jnp.zeros((1, *SHAPE))))
    batches = evaluation_batches(data, batch_size=4, multiple_of=devices.count)
    return make_task_evaluation(model, normalize, devices)(weights, batches)["count"]


def main() -> None:
    from jacreg_train.training.devices import PARALLEL, make_mesh

    jax.config.update("jax_num_cpu_devices", max(count for _, count in WAYS))
    jax.config.update("jax_disable_most_optimizations", True)
    results: dict = {"counts": {}}
    for parallel, count in WAYS:
        devices = PARALLEL[parallel](make_mesh(jax.devices()[:count]))
        for name, case in CASES.items():
            results[f"{name}/{parallel}/{count}"] = train(devices, case)
        results["counts"][f"{parallel}/{count}"] = count_examples(devices)
    print(json.dumps(results))


@pytest.fixture(scope="module")
def results():
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("parallel", "count"), WAYS[1:])
@pytest.mark.parametrize("case", CASES)
def test_the_number_of_devices_changes_nothing_beyond_rounding(results, case, parallel, count):
    one, many = results[f"{case}/jit/1"], results[f"{case}/{parallel}/{count}"]
    assert one.keys() == many.keys()
    for name in one:
        np.testing.assert_allclose(many[name], one[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_padding_is_never_counted(results):
    assert set(results["counts"].values()) == {10.0}
    assert len(results["counts"]) == len(WAYS)


if __name__ == "__main__":
    main()
