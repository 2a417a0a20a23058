"""A map over rows: the values and derivatives of `lax.map`, and buffers that wait for the operands."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Literal

from jacreg_train.jacobian.loops import map_rows


def function(x, y):
    return {"product": x @ y, "sum": jnp.sum(x), "counts": jnp.argmax(x).astype(jnp.int32)}


@pytest.mark.parametrize("n", [0, 1, 5])
def test_equals_lax_map(n):
    x, y = (jax.random.normal(jax.random.key(seed), (n, *shape)) for seed, shape in enumerate([(3,), (3, 2)]))
    found, wanted = map_rows(function, (x, y)), lax.map(lambda rows: function(*rows), (x, y))
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_rows_that_are_not_finite_stay_where_they_are():
    rows = jnp.asarray([jnp.nan, 1.0, jnp.inf])
    np.testing.assert_array_equal(map_rows(lambda row: 2 * row, [rows]), 2 * rows)


def test_rows_may_be_empty():
    assert map_rows(lambda x, y: jnp.sum(x) + y, (jnp.ones((2, 0)), jnp.arange(2.0))).tolist() == [0.0, 1.0]


def test_is_differentiable():
    rows = jnp.arange(1.0, 4.0)
    gradient = jax.grad(lambda rows: jnp.sum(map_rows(lambda row: row**3, [rows])))(rows)
    np.testing.assert_allclose(gradient, 3 * rows**2)


def test_buffers_depend_on_every_operand():
    operands = (jnp.ones((4, 3)), jnp.ones((4, 3, 2)))
    jaxpr = jax.make_jaxpr(lambda *operands: map_rows(function, operands))(*operands).jaxpr
    behind = {var: {var} for var in jaxpr.invars}
    for eqn in jaxpr.eqns:
        reached = [set() if isinstance(atom, Literal) else behind.get(atom, set()) for atom in eqn.invars]
        if eqn.primitive.name == "scan":
            first, carried = eqn.params["num_consts"], eqn.params["num_carry"]
            buffers = [found for found in reached[first : first + carried] if found]
            assert len(buffers) == 3
            assert all(found == set(jaxpr.invars) for found in buffers)
            break
        behind |= {var: set().union(*reached) for var in eqn.outvars}
    else:
        pytest.fail("no loop")
