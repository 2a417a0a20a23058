"""Every estimator: the same parameters after 20 steps on 1, 2, 4 and 8 devices, and one all-reduce of the gradient.

Devices are virtual, and their number is fixed in a process: this file is the test, and as a script that process.
"""

import json
import math
import os
import re
import subprocess
import sys

import numpy as np
import pytest

STEPS, BATCH_SIZE = 20, 8
WAYS = [
    pytest.param("jit", 4),
    *(pytest.param(way, n, marks=pytest.mark.slow) for way, n in [("jit", 2), ("jit", 8), ("pmap", 4)]),
]
pytestmark = pytest.mark.xdist_group("device counts")  # in one worker, that each process runs once
ESTIMATORS: dict[str, dict] = {
    "exact": {},
    "chunked": {"example_chunk": 1},
    "layerwise": {},
    "stochastic": {"num_probes": 1},
    "auto": {},
}
REDUCED = re.compile(r"= (.*?) all-reduce(?:-start)?\(")
ARRAY = re.compile(r"\b(f32|s32|u32|f64|pred|s8|u8)\[([\d,]*)\]")
BYTES = {"f32": 4, "s32": 4, "u32": 4, "f64": 8, "pred": 1, "s8": 1, "u8": 1}


def test_the_table_is_covered():
    from jacreg_train import jacobian

    assert set(ESTIMATORS) == set(jacobian.ESTIMATORS)


def reduced_bytes(program) -> int:
    """What the compiled program all-reduces."""
    arrays = [array for types in REDUCED.findall(program.as_text()) for array in ARRAY.findall(types)]
    return sum(BYTES[kind] * math.prod(int(size) for size in shape.split(",") if size) for kind, shape in arrays)


def config_of(estimator: str, parallel: str):
    from configs import default

    config = default.get_config()
    config.num_steps, config.batch_size, config.parallel = STEPS, BATCH_SIZE, parallel
    config.dataset.name = "synthetic"
    config.dataset.synthetic.image_shape = (4, 4, 1)
    config.dataset.synthetic.num_classes = 3
    config.dataset.synthetic.num_examples = 16
    config.model.cnn.widths, config.model.cnn.strides, config.model.cnn.dense_width = (2,), (2,), None
    config.jacobian.weight = 0.01
    config.jacobian.estimator.name = estimator
    for name, value in ESTIMATORS[estimator].items():
        config.jacobian.estimator[name] = value
    config.evaluation.jacobian_examples = 0
    config.optimizer.name = "sgd"  # adam's division would blow rounding up where a gradient is near 0
    config.optimizer.learning_rate = 0.05
    return config


def main(parallel: str) -> None:
    import jax

    from jacreg_train.training import setup
    from jacreg_train.training.programs import compile_programs

    results = {}
    for estimator in ESTIMATORS:
        run = setup.build(config_of(estimator, parallel))
        batches, state = run.make_batches(), run.init()
        share = (parallel, estimator) == ("jit", "layerwise")
        programs = compile_programs(run, state, batches.example(), share=share, norms=False)
        assert programs.penalised is not None
        result: dict = {"parameters": sum(leaf.nbytes for leaf in jax.tree.leaves(state.params))}
        result["leaves"] = len(jax.tree.leaves(state))
        if parallel == "jit":
            result["penalised"] = reduced_bytes(programs.penalised)
        if share:
            result["plain"] = reduced_bytes(programs.plain)
        for _ in range(STEPS):
            state, _ = jax.block_until_ready(programs.penalised(state, *batches.next()))
        result["params"] = [np.asarray(leaf).ravel().tolist() for leaf in jax.tree.leaves(state.params)]
        results[estimator] = result
    print(json.dumps(results))


@pytest.fixture(scope="module")
def results():
    made = {}

    def of(parallel: str, count: int) -> dict:
        if (parallel, count) not in made:
            settings = {"JAX_NUM_CPU_DEVICES": str(count), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
            done = subprocess.run(
                [sys.executable, __file__, parallel], capture_output=True, text=True, env=os.environ | settings
            )
            assert done.returncode == 0, done.stderr
            made[parallel, count] = json.loads(done.stdout.splitlines()[-1])
        return made[parallel, count]

    return of


@pytest.mark.parametrize(("parallel", "count"), WAYS)
def test_the_same_parameters_after_20_steps(results, parallel, count):
    one, many = results("jit", 1), results(parallel, count)
    for estimator in ESTIMATORS:
        for got, want in zip(many[estimator]["params"], one[estimator]["params"], strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=estimator)


def test_the_gradient_is_reduced_once_and_little_else(results):
    """Beside it a few scalars, and flags for each leaf; the penalty adds its value and its variance."""
    results = results("jit", 4)
    for estimator, result in results.items():
        extra = result["penalised"] - result["parameters"]
        assert 0 < extra <= 4 * (result["leaves"] + 8), (estimator, result["penalised"], result["parameters"])
    assert abs(results["layerwise"]["penalised"] - results["layerwise"]["plain"]) <= 4 * 4


def test_a_batch_that_does_not_divide_is_refused():
    from jacreg_train.training.errors import ConfigError
    from jacreg_train.training.validation import validate

    config = config_of("layerwise", "jit")
    config.batch_size = 10
    with pytest.raises(ConfigError, match=r"config\.batch_size = 10: choose a multiple of the 4 devices"):
        validate(config, num_devices=4)
    config.batch_size, config.jacobian.batch_size = 8, 2
    with pytest.raises(ConfigError, match=r"config\.jacobian\.batch_size = 2: choose a multiple of the 4 devices"):
        validate(config, num_devices=4)


if __name__ == "__main__":
    main(sys.argv[1])
