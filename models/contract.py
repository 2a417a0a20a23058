"""What training and the Jacobian estimators know of a model: two pure functions and two facts about them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp

Tree = Any


class Init(Protocol):
    """``(key, image_shape) -> (params, state)`` in float32; ``image_shape`` is ``(H, W, C)``."""

    def __call__(self, key: jax.Array, image_shape: tuple[int, ...], /) -> tuple[Tree, Tree]: ...


class Forward(Protocol):
    """A library's forward pass; ``keys`` holds one key per example, or is None."""

    def __call__(
        self,
        params: Tree,
        state: Tree,
        inputs: jax.Array,
        /,
        *,
        train: bool,
        keys: jax.Array | None,
        axis_name: str | None,
    ) -> tuple[jax.Array, Tree]: ...


@dataclass(frozen=True)
class Model:
    """A classifier as pure functions, fit for ``jit``, ``grad``, ``vmap`` and ``pmap``.

    Attributes:
        name: its key in ``MODELS``.
        init: ``init(key, inputs) -> (params, state)``. ``params`` are nested dicts of trainable float arrays,
            ``state`` nested dicts of batch statistics (empty where there are none). Of ``inputs``
            ``[n, H, W, C]`` only the shape and the dtype matter: float64 inputs give float64 leaves, any
            other dtype float32.
        apply: ``apply(params, state, inputs, *, train=False, key=None, first_example=0, axis_name=None) ->
            (logits [n, num_classes], new_state)``.
            ``train=False`` uses running statistics and no dropout, treats every example by itself and
            returns ``state`` unchanged. ``train=True`` uses the statistics of the batch and dropout.
            ``key``: the batch's key for dropout. Example ``i`` uses ``fold_in(key, first_example + i)``, so a
            device that holds a part of the batch passes the index of its first example and draws the masks
            that the whole batch would.
            ``axis_name``: with ``train=True`` under ``pmap``, ``shard_map`` or ``vmap``, the axis over which
            the batch is split; batch statistics are then those of the whole batch.
            Logits are float32, or float64 where the computation is.
            Raises ValueError for inputs that are not float ``[n, H, W, C]``, and where dropout has no key or
            one of kind "rbg", whose draws under ``vmap`` depend on the batch.
        joint_in_training: whether ``train=True`` couples the examples of a batch (batch statistics).
        stochastic_in_training: whether ``train=True`` draws random numbers, and so needs ``key`` (dropout).
    """

    name: str
    init: Callable[[jax.Array, jax.Array], tuple[Tree, Tree]]
    apply: Callable[..., tuple[jax.Array, Tree]]
    joint_in_training: bool
    stochastic_in_training: bool


def example_keys(key: jax.Array, num_examples: int, first_example: int | jax.Array = 0) -> jax.Array:
    """Keys ``[num_examples]``, each from ``key`` and the example's index in the whole batch alone."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, first_example + jnp.arange(num_examples))


def build_model(
    name: str,
    init: Init,
    forward: Forward,
    *,
    dtype: str | None,
    joint_in_training: bool,
    stochastic_in_training: bool,
) -> Model:
    """A ``Model`` from a library's two functions, with checks, dropout keys and dtypes taken care of.

    Args:
        dtype: what the network computes in; parameters and batch statistics keep their own dtype.
            None: the wider of parameters and inputs.
    """

    def init_model(key: jax.Array, inputs: jax.Array) -> tuple[Tree, Tree]:
        _check_images(name, inputs)
        dtype = jnp.promote_types(inputs.dtype, jnp.float32)
        return _cast(init(key, tuple(inputs.shape[1:])), dtype)

    def apply(
        params: Tree,
        state: Tree,
        inputs: jax.Array,
        *,
        train: bool = False,
        key: jax.Array | None = None,
        first_example: int | jax.Array = 0,
        axis_name: str | None = None,
    ) -> tuple[jax.Array, Tree]:
        _check_images(name, inputs)
        keys = None
        if train and stochastic_in_training:
            keys = example_keys(_usable_key(name, key), inputs.shape[0], first_example)
        compute = jnp.dtype(dtype) if dtype else jnp.result_type(inputs, *jax.tree.leaves(params))
        logits, new_state = forward(
            _cast(params, compute),
            state,
            jnp.asarray(inputs, compute),
            train=train,
            keys=keys,
            axis_name=axis_name,
        )
        logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
        if not train:
            return logits, state
        return logits, jax.tree.map(lambda new, old: new.astype(old.dtype), new_state, state)

    return Model(name, init_model, apply, joint_in_training, stochastic_in_training)


def _cast(tree: Tree, dtype: Any) -> Tree:
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree)


def _usable_key(name: str, key: jax.Array | None) -> jax.Array:
    if key is None:
        raise ValueError(f"{name}: train=True needs a key for dropout")
    kind = str(jax.random.key_impl(key))
    if "rbg" in kind:  # under vmap these draw from the first key alone, so masks would depend on the batch
        raise ValueError(f"{name}: dropout draws a mask for each example and needs threefry keys, not {kind}")
    return key


def _check_images(name: str, inputs: jax.Array) -> None:
    if inputs.ndim != 4 or not jnp.issubdtype(inputs.dtype, jnp.floating):
        raise ValueError(f"{name}: inputs must be float [n, H, W, C], not {inputs.dtype}{list(inputs.shape)}")
