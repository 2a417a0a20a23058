"""The table of cases, and what they are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Case = tuple[Callable[[Any, Any], jax.Array], Any, Any]
CASES: dict[str, Callable[[], Case]] = {}
IDS = np.array([[2, 2, 0], [1, 1, 1], [3, 0, 2]])


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    """Enters a function that makes a case into the table, so that arrays are made in the precision of the test."""
    CASES[make.__name__] = make
    return make


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def weights(**shapes: tuple[int, ...]) -> dict[str, Any]:
    return {name: normal(100 + i, *shape) for i, (name, shape) in enumerate(shapes.items())}


def X(*shape: int) -> jax.Array:
    """Three examples."""
    return normal(0, 3, *shape)


def convolve(x, kernel, strides, padding, numbers, **options):
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=numbers, **options)


def standardize(x, axes, eps=1e-3):
    return (x - x.mean(axes, keepdims=True)) * lax.rsqrt(x.var(axes, keepdims=True) + eps)
