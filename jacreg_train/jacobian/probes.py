"""Random probes with identity covariance, `E[v v^T] = I`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jacreg_train.jacobian.trees import accumulation_dtype

Draw = Callable[[Any, int, Any], Float[Array, " size"]]


def _sphere(key: Any, size: int, dtype: Any) -> Float[Array, " size"]:
    """Uniform on the sphere of radius `sqrt(size)`."""
    normal = jax.random.normal(key, (size,), accumulation_dtype(dtype))
    return (normal * jnp.sqrt(size / jnp.sum(jnp.square(normal)))).astype(dtype)


DISTRIBUTIONS: dict[str, Draw] = {
    "rademacher": lambda key, size, dtype: jax.random.rademacher(key, (size,), dtype),
    "gaussian": lambda key, size, dtype: jax.random.normal(key, (size,), dtype),
    "sphere": _sphere,
}


def draw_probes(distribution: str, key: Any, count: int, size: int, dtype: Any) -> Float[Array, "count size"]:
    """Independent probes."""
    return jax.vmap(lambda key: DISTRIBUTIONS[distribution](key, size, dtype))(jax.random.split(key, count))


def draw_orthogonal_probes(key: Any, count: int, size: int, dtype: Any) -> Float[Array, "count size"]:
    """The first `count` rows of a uniformly random orthogonal matrix, scaled to length `sqrt(size)`.

    Each probe is uniform on the sphere; `count = size` probes span the space, so that they give the exact value.
    Mezzadri, "How to generate random matrices from the classical compact groups", 2007.
    """
    q, r = jnp.linalg.qr(jax.random.normal(key, (size, count), accumulation_dtype(dtype)))
    return (jnp.sqrt(size) * q * jnp.sign(jnp.diagonal(r))).T.astype(dtype)


def example_keys(key: Any, n: int, first_example: Any) -> Any:
    """One key per example, by its index in the whole batch.

    Raises:
        ValueError: there is no key.
    """
    if key is None:
        raise ValueError("key=None: random probes need a random key")
    return jax.vmap(lambda index: jax.random.fold_in(key, index))(first_example + jnp.arange(n))


def draw_like(distribution: str, key: Any, leaves: list[Array]) -> list[Array]:
    """One probe for all leaves together, in their shapes and types."""
    if not leaves:
        return []
    sizes = [leaf.size for leaf in leaves]
    probe = DISTRIBUTIONS[distribution](key, sum(sizes), jnp.result_type(*leaves))
    offsets = [sum(sizes[:i]) for i in range(len(sizes))]
    return [
        probe[start : start + leaf.size].reshape(leaf.shape).astype(leaf.dtype)
        for start, leaf in zip(offsets, leaves, strict=True)
    ]
