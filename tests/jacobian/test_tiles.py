"""Kernel gradients over tiles equal the direct ones, with fewer products; so do their derivatives."""

import functools

import jax
import jax.numpy as jnp
import pytest

from jacreg_train.jacobian import tiles
from jacreg_train.jacobian.example_convolutions import convolve_each, input_gradient_each, kernel_gradient_each
from jacreg_train.jacobian.geometry import Geometry
from tests.jacobian.oracle import assert_close

FEATURES = 8


def geometry_of(inputs, padding, **changes):
    rank = len(inputs)
    outputs = tuple(size + low + high - 2 for size, (low, high) in zip(inputs, padding, strict=True))
    ones = (1,) * rank
    fields = {"strides": ones, "input_dilation": ones, "kernel_dilation": ones, "groups": 1, "precision": None}
    sizes = {"kernel": (3,) * rank, "inputs": inputs, "outputs": outputs, "padding": padding}
    return Geometry(**sizes, **{**fields, **changes}, is_tiled=True)


SPACES = {
    "one axis": geometry_of((9,), ((1, 1),)),
    "padding unlike": geometry_of((8, 13), ((1, 1), (0, 2))),
    "cut away": geometry_of((16, 16), ((-1, 1), (0, 0))),
    "three axes": geometry_of((6, 5, 7), ((1, 1), (2, 1), (1, 1))),
}


def direct(geometry, x, kernels):
    """Each example's convolution, by the library."""
    axes = "DHW"[-len(geometry.inputs) :]
    numbers = (f"N{axes}C", f"{axes}IO", f"N{axes}C")
    of_one = lambda x, kernel: jax.lax.conv_general_dilated(
        x, kernel, geometry.strides, geometry.padding, dimension_numbers=numbers
    )
    return jax.vmap(of_one)(x, kernels)


def operands(geometry, dtype):
    draw = lambda i, *shape: jax.random.normal(jax.random.key(i), shape, dtype)
    x, d = draw(0, 2, 2, *geometry.inputs, FEATURES), draw(1, 2, 2, *geometry.outputs, 4)
    return x, d, draw(2, 2, *geometry.kernel, FEATURES, 4)


@pytest.mark.parametrize("name", SPACES)
def test_the_three_functions_are_those_of_the_direct_convolution(name):
    geometry = SPACES[name]
    assert tiles.serve(geometry, FEATURES, cotangents=2)
    x, d, kernels = operands(geometry, jnp.float64)

    @jax.jit
    def both(x, d, kernels):
        convolved, pull = jax.vjp(functools.partial(direct, geometry), x, kernels)
        mine = (
            convolve_each(geometry, x, kernels),
            input_gradient_each(geometry, d, kernels),
            kernel_gradient_each(geometry, x, d),
        )
        return mine, (convolved, *pull(d))

    for name, got, wanted in zip(
        ("convolution", "input gradient", "kernel gradient"), *both(x, d, kernels), strict=True
    ):
        assert_close(got, wanted, name, 1e-12)


def test_first_and_second_derivatives():
    geometry = SPACES["padding unlike"]
    x, d, kernels = operands(geometry, jnp.float64)

    def of(kernel_gradient):
        square = lambda x, d: jnp.sum(jnp.square(kernel_gradient(x, d)))
        bend = lambda x, d: sum(jnp.sum(jnp.sin(bar)) for bar in jax.grad(square, (0, 1))(x, d))
        return jax.jit(lambda x, d: (jax.grad(square, (0, 1))(x, d), jax.grad(bend, (0, 1))(x, d)))(x, d)

    by_library = lambda x, d: jax.vjp(lambda kernels: direct(geometry, x, kernels), kernels)[1](d)[0]
    for order, (got, wanted) in enumerate(
        zip(of(functools.partial(kernel_gradient_each, geometry)), of(by_library), strict=True), 1
    ):
        assert_close(got, wanted, f"derivative {order}", 1e-11)


def test_float32_keeps_five_digits():
    geometry = geometry_of((32, 32), ((1, 1), (1, 1)))
    x, d, kernels = operands(geometry, jnp.float64)
    wanted = jax.jit(lambda x, d: jax.vjp(functools.partial(direct, geometry, x), kernels)[1](d)[0])(x, d)
    got = jax.jit(functools.partial(kernel_gradient_each, geometry))(x.astype(jnp.float32), d.astype(jnp.float32))
    error = jnp.linalg.norm(got - wanted) / jnp.linalg.norm(wanted)
    assert error < 1e-5  # 1.3e-6 when measured


def test_who_is_served():
    around = ((1, 1), (1, 1))
    geometry = geometry_of((32, 32), around)
    assert tiles.serve(geometry, FEATURES, cotangents=2)
    assert tiles.products(geometry) * 4 == geometry.kernel_size * geometry.num_outputs
    two_positions = geometry_of((4, 4), ((0, 0), (0, 0)))  # tiles of four save nothing
    assert not tiles.serve(two_positions, FEATURES, cotangents=2)
    for changes in ({"strides": (2, 2)}, {"input_dilation": (2, 1)}, {"kernel_dilation": (2, 2)}, {"groups": 2}):
        assert not tiles.serve(geometry_of((32, 32), around, **changes), FEATURES, cotangents=2)
    assert not tiles.serve(geometry, 3, cotangents=2)
    assert not tiles.serve(geometry, FEATURES, cotangents=1)
