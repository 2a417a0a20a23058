"""Norms by Gram matrices are the same however few examples have their matrices made at a time; none is kept."""

import functools

import jax
import jax.numpy as jnp
import pytest

from jacreg_train.jacobian import norms
from tests.jacobian.oracle import assert_close

EXAMPLES, BLOCKS, POSITIONS, FEATURES, OUTPUTS = 5, 2, 6, 3, 4
AT_A_TIME = {"all": 2**21, "two": 2 * BLOCKS * POSITIONS**2, "one, larger than allowed": 1}


def operands():
    draw = lambda i, *shape: jax.random.normal(jax.random.key(i), shape, jnp.float64)
    return draw(0, EXAMPLES, BLOCKS, POSITIONS, FEATURES), draw(1, 3, EXAMPLES, BLOCKS, POSITIONS, OUTPUTS)


def directly(activations, cotangents):
    return jnp.sum(jnp.einsum("nbtc,knbto->knbco", activations, cotangents) ** 2, axis=(2, 3, 4))


@pytest.mark.parametrize("at_a_time", AT_A_TIME)
def test_values_and_derivatives(at_a_time, monkeypatch):
    monkeypatch.setattr(norms, "MATRICES", AT_A_TIME[at_a_time])

    def of(squares):
        total = lambda *operands: jnp.sum(jnp.sin(squares(*operands)))
        first = jax.grad(total, (0, 1))
        bend = lambda *operands: sum(jnp.sum(jnp.sin(bar)) for bar in first(*operands))
        return jax.jit(lambda *operands: (squares(*operands), first(*operands), jax.grad(bend, (0, 1))(*operands)))(
            *operands()
        )

    got, wanted = of(functools.partial(norms.gram_norms, norms.gram)), of(directly)
    for order, (mine, right) in enumerate(zip(got, wanted, strict=True)):
        assert_close(mine, right, f"derivative {order}", 1e-10)


@pytest.mark.parametrize("at_a_time", AT_A_TIME)
def test_matrices_of_integers(at_a_time, monkeypatch):
    monkeypatch.setattr(norms, "MATRICES", AT_A_TIME[at_a_time])
    ids, (_, cotangents) = jnp.arange(EXAMPLES * POSITIONS).reshape(EXAMPLES, POSITIONS) % 4, operands()
    equal = lambda ids: jnp.repeat((ids[:, None, :, None] == ids[:, None, None, :]).astype(jnp.float64), BLOCKS, 1)
    of_ids = lambda cotangents: jnp.sum(norms.gram_norms(equal, ids, cotangents))
    one_hot = jnp.repeat(jax.nn.one_hot(ids, 4, dtype=jnp.float64)[:, None], BLOCKS, 1)
    wanted = jax.value_and_grad(lambda cotangents: jnp.sum(directly(one_hot, cotangents)))(cotangents)
    assert_close(jax.jit(jax.value_and_grad(of_ids))(cotangents), wanted, "sum and gradient", 1e-10)


def test_no_more_matrices_at_a_time_than_allowed(monkeypatch):
    allowed = 2 * BLOCKS * POSITIONS**2
    monkeypatch.setattr(norms, "MATRICES", allowed)
    gradient = jax.grad(lambda *operands: jnp.sum(norms.gram_norms(norms.gram, *operands)), (0, 1))
    text = str(jax.make_jaxpr(gradient)(*operands()))
    assert f"f64[2,{BLOCKS},{POSITIONS},{POSITIONS}]" in text
    assert f"f64[{EXAMPLES},{BLOCKS},{POSITIONS},{POSITIONS}]" not in text
    assert f"f64[3,2,{BLOCKS},{POSITIONS},{POSITIONS}]" not in text  # nor stacked by the loop
