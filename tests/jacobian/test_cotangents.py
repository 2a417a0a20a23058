"""Several cotangents at once: what is repeated for each, and the sum over them."""

import jax
import jax.numpy as jnp
import pytest

from jacreg_train.jacobian.cotangents import repeat, total, vjp_of_several
from tests.jacobian.oracle import assert_close

X = jax.random.normal(jax.random.key(0), (3, 2))


@pytest.mark.parametrize("count", [*range(1, 8), 33])
def test_total_is_the_sum(count):
    values = jax.random.normal(jax.random.key(1), (count, 2, 3), jnp.float64)
    assert_close(total(values), jnp.sum(values, axis=0), "total", 1e-13)


def test_repeat_composes():
    repeated = lambda x: repeat(x, 3)
    by_numpy = lambda x: jnp.broadcast_to(x, (3, *x.shape))
    weights = jnp.arange(18.0).reshape(3, 3, 2)
    for transform in (
        lambda f: f,
        lambda f: jax.vmap(f, 1, 2),
        lambda f: jax.jit(jax.grad(lambda x: jnp.sum(weights * f(x) ** 3))),
        lambda f: jax.hessian(lambda x: jnp.sum(weights * f(x) ** 3)),
        lambda f: lambda x: jax.jvp(f, (x,), (jnp.cos(x),))[1],
    ):
        assert_close(transform(repeated)(X), transform(by_numpy)(X), "repeat", 1e-12)


@pytest.mark.parametrize("count", [1, 4])
def test_the_pullback_of_several(count):
    """Value and gradient are those of `jax.vmap` of the pullback; weights are not repeated."""
    w = jax.random.normal(jax.random.key(2), (2, 2), jnp.float64)
    cotangents = jax.random.normal(jax.random.key(3), (count, 3, 2), jnp.float64)

    def bars(several, w, x):
        function = lambda shift, x: (jnp.tanh((x + shift) @ w) * x, {"x": x})
        if several:
            outputs, auxiliary, pull = vjp_of_several(function, jnp.zeros((3, 2)), x)
        else:
            outputs, pull, auxiliary = jax.vjp(lambda shift: function(shift, x), jnp.zeros((3, 2)), has_aux=True)
            pull = jax.vmap(pull)
        return jnp.sum(outputs**2) + jnp.sum(auxiliary["x"]) + jnp.sum(pull(cotangents)[0] ** 2)

    got, wanted = (jax.value_and_grad(bars, argnums=(1, 2))(several, w, X) for several in (True, False))
    assert_close(got, wanted, "pullback", 1e-12)
    shapes = str(jax.make_jaxpr(lambda x: bars(True, w, x))(X))
    assert f"[{count},2,2]" not in shapes
