import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from models.adapters import nnx_functions


class WithGenerator(nnx.Module):
    def __init__(self, rngs):
        self.output = nnx.Linear(4, 2, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x, *, train, keys, axis_name):
        return self.output(self.dropout(x.reshape(-1, 4)))


class Blocks(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.List([nnx.Linear(4, 4, rngs=rngs) for _ in range(11)])

    def __call__(self, x, *, train, keys, axis_name):
        x = x.reshape(-1, 4)
        for block in self.blocks:
            x = block(x)
        return x


def test_a_generator_inside_a_module_is_refused():
    init, _ = nnx_functions(lambda image_shape, rngs: WithGenerator(rngs))
    with pytest.raises(ValueError, match="WithGenerator keeps a random generator"):
        init(jax.random.key(0), (2, 2, 1))


def test_members_of_a_list_keep_their_order():
    init, forward = nnx_functions(lambda image_shape, rngs: Blocks(rngs))
    params, state = init(jax.random.key(0), (2, 2, 1))
    assert set(params["blocks"]) == {str(i) for i in range(11)}
    x = jnp.arange(8.0).reshape(2, 2, 2, 1)
    expected = x.reshape(2, 4)
    for i in range(11):
        expected = expected @ params["blocks"][str(i)]["kernel"] + params["blocks"][str(i)]["bias"]
    outputs, _ = forward(params, state, x, train=False, keys=None, axis_name=None)
    assert jnp.allclose(outputs, expected, atol=1e-5)
