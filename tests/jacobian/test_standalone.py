"""The core is usable on its own: it imports jax, numpy and jaxtyping, and nothing else of the project or beside it."""

import subprocess
import sys

PROGRAM = """
import sys

REFUSED = ("flax haiku ml_collections optax orbax wandb equinox absl sklearn tensorflow_datasets models configs "
           "jacreg_train.training jacreg_train.data jacreg_train.telemetry jacreg_train.experiments").split()

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if any((name + ".").startswith(refused + ".") for refused in REFUSED):
            raise ImportError(f"the core must not import {name}")

sys.meta_path.insert(0, Refuse())
import jax.numpy as jnp
from jacreg_train import jacobian

for name in jacobian.ESTIMATORS:
    if name != "stochastic":
        estimate = jacobian.make_estimator(name)(lambda w, x: x @ w, jnp.ones((2, 3)), jnp.ones((4, 2)))
        assert float(estimate.squared_norm) == 24, (name, estimate)
print("right")
"""


def test_imports_without_the_rest():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.stdout.strip() == "right", done.stderr
