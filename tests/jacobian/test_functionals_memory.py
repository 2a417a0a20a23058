"""The compiled memory of the functionals' gradients, and inputs that are shared among devices."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from jacreg_train import jacobian


def network(params, x):
    return jnp.tanh(x @ params["a"]) @ params["b"]


def arguments(n, num_inputs, width, num_outputs):
    shape = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    return {"a": shape(num_inputs, width), "b": shape(width, num_outputs)}, shape(n, num_inputs)


def temporary_bytes(loss, *shapes):
    """What value and gradient need beside their arguments and results."""
    both = jax.value_and_grad(loss, argnums=(0, 1))
    analysis = jax.jit(both).lower(*shapes).compile().memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


def contracted(num_inputs, **options):
    vector = jnp.ones(num_inputs)
    return lambda params, x: jnp.sum(jacobian.contract(jnp.square, network, params, x, vector, **options) ** 2)


@pytest.mark.parametrize("chunk", [None, 128])
def test_contract_and_its_gradient_stay_below_a_gigabyte_where_the_jacobian_has_more_than_two(chunk):
    held_whole = 64 * 3072 * 3072 * 4
    assert held_whole > 2.4e9
    used = temporary_bytes(contracted(3072, chunk=chunk), *arguments(64, 3072, 1024, 3072))
    assert used < 0.5e9


@pytest.mark.parametrize("sizes", [(40, 80), (80, 40)], ids=["columns", "rows"])
def test_the_memory_of_a_chunk_does_not_grow_with_inputs_outputs_or_examples(sizes):
    num_inputs, num_outputs = sizes
    base = temporary_bytes(
        contracted(num_inputs, chunk=8, example_chunk=10), *arguments(20, num_inputs, 64, num_outputs)
    )
    more = temporary_bytes(
        contracted(num_inputs, chunk=8, example_chunk=10), *arguments(200, num_inputs, 64, num_outputs)
    )
    per_example = 4 * (4 * num_inputs + 4 * num_outputs)  # rows of the inputs, of the result and of their cotangents
    assert more <= 1.2 * base + 180 * per_example
    double = [4 * size for size in sizes]
    passes = temporary_bytes(contracted(double[0], chunk=8, example_chunk=10), *arguments(20, double[0], 64, double[1]))
    assert passes <= 1.2 * 4 * base  # one pass is four times as large; the number of passes adds nothing


def test_row_norm_in_chunks_needs_a_chunks_memory():
    loss = lambda chunk: lambda params, x: jacobian.row_norm(network, params, x, chunk=chunk).value
    shapes = arguments(20, 300, 64, 200)
    assert temporary_bytes(loss(10), *shapes) < 0.25 * temporary_bytes(loss(None), *shapes)


SHARDED = """
import jax
jax.config.update("jax_num_cpu_devices", 2)
import jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jacreg_train import jacobian

network = lambda p, x: jnp.tanh(x @ p["a"]) @ p["b"]
p = {"a": jnp.arange(6.0).reshape(2, 3) / 5, "b": jnp.cos(jnp.arange(15.0)).reshape(3, 5)}
x = jnp.sin(jnp.arange(8.0)).reshape(4, 2)
mesh = jax.make_mesh((2,), ("batch",), axis_types=(AxisType.Auto,))

def loss(p, x):
    key, v = jax.random.key(0), jnp.ones(2)
    parts = (
        jacobian.contract(jnp.square, network, p, x, v, chunk=1),
        jacobian.row_norm(network, p, x, wrt="params", chunk=2).value,
        jacobian.row_norm(network, p, x, num_probes=2, key=key).value,
        jacobian.row_sum(network, p, x).value,
        jacobian.bilinear(network, p, x, jnp.ones(5), v),
    )
    return sum(jnp.sum(part**2) for part in parts), parts

both = jax.jit(jax.value_and_grad(loss, has_aux=True))
sharded = jax.device_put(x, NamedSharding(mesh, PartitionSpec("batch")))
assert len(sharded.sharding.device_set) == 2
alone = both(p, x)
shared = both(jax.device_put(p, NamedSharding(mesh, PartitionSpec())), sharded)
jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5), shared, alone)
"""


def test_inputs_may_be_shared_among_devices():
    subprocess.run([sys.executable, "-c", SHARDED], check=True)
