"""From a library's modules to pure functions. This is all that a model of one's own has to pass through.

Both adapters give what ``contract.build_model`` takes: ``init(key, image_shape)`` and
``forward(params, state, inputs, *, train, keys, axis_name)``.
"""

import functools
from collections.abc import Callable
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
from flax import nnx

from models.contract import Forward, Init


def nnx_functions(make_module: Callable[[tuple[int, ...], nnx.Rngs], Any]) -> tuple[Init, Forward]:
    """Adapt a Flax NNX module.

    Args:
        make_module: ``make_module(image_shape, rngs) -> module``; the module is called as
            ``module(inputs, train=..., keys=..., axis_name=...) -> logits`` and keeps no generator: what is
            random in it draws from ``keys``, one per example.

    Returns:
        ``init`` and ``forward``. Parameters are the module's ``nnx.Param``, state all its other variables.
    """

    @functools.lru_cache
    def graphdef(image_shape: tuple[int, ...]) -> Any:
        return nnx.split(nnx.eval_shape(lambda: make_module(image_shape, nnx.Rngs(0))))[0]

    def init(key, image_shape):
        module = make_module(image_shape, nnx.Rngs(key))
        if jax.tree.leaves(nnx.state(module, nnx.RngState)):
            raise ValueError(f"{type(module).__name__} keeps a random generator; let it draw from `keys`")
        return _pure(module)

    def forward(params, state, inputs, *, train, keys, axis_name):
        trees = map(nnx.restore_int_paths, (params, state))
        module = nnx.merge(graphdef(tuple(inputs.shape[1:])), *trees)
        logits = module(inputs, train=train, keys=keys, axis_name=axis_name)
        return logits, _pure(module)[1]

    return init, forward


def haiku_functions(network: Callable[..., jax.Array]) -> tuple[Init, Forward]:
    """Adapt a Haiku network.

    Args:
        network: a function that uses Haiku modules, called as ``network(inputs, train=..., keys=...,
            axis_name=...) -> logits``. What is random in it draws from ``keys``, one per example.
    """
    transformed = hk.transform_with_state(network)

    def init(key, image_shape):
        # Haiku runs the network to find its parameters; under jit the run itself is thrown away.
        run = jax.jit(lambda key, inputs: transformed.init(key, inputs, train=False, keys=None, axis_name=None))
        return run(key, jnp.zeros((1, *image_shape), jnp.float32))

    def forward(params, state, inputs, *, train, keys, axis_name):
        return transformed.apply(params, state, None, inputs, train=train, keys=keys, axis_name=axis_name)

    return init, forward


def _pure(module: Any) -> tuple[Any, Any]:
    params = nnx.state(module, nnx.Param)
    state = nnx.state(module, nnx.Not(nnx.Param))
    return _string_keys(nnx.to_pure_dict(params)), _string_keys(nnx.to_pure_dict(state))


def _string_keys(tree: Any) -> Any:
    """NNX numbers the members of a list; checkpoints and sorted trees want one type of key."""
    if not isinstance(tree, dict):
        return tree
    return {str(name): _string_keys(branch) for name, branch in tree.items()}
