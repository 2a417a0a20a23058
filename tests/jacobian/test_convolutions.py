"""Convolutions of all kinds against the dense Jacobian. `make test` takes a sample of the sweep."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.jacobian.cases import X, normal, weights
from tests.jacobian.configurations import estimator
from tests.jacobian.convolution_cases import CONVOLUTIONS, SAMPLE
from tests.jacobian.oracle import compare

NHWC = ("NHWC", "HWIO", "NHWC")


def check(apply_fn, params, inputs):
    estimators = {
        "layerwise": estimator("layerwise"),
        "layerwise in chunks": estimator("layerwise", example_chunk=1, output_chunk=1),
    }
    compare(estimators, apply_fn, params, inputs, "params")


@pytest.mark.parametrize("name", SAMPLE)
def test_sampled_convolutions(name):
    check(*CONVOLUTIONS[name].case())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(CONVOLUTIONS) - set(SAMPLE)))
def test_all_convolutions(name):
    check(*CONVOLUTIONS[name].case())


def _of_images(convolve, *kernel):
    return lambda: (lambda p, x: jnp.sin(convolve(x, p["w"])).sum((1, 2)), weights(w=kernel), X(4, 3, 2))


def _local(x, kernel):
    return lax.conv_general_dilated_local(x, kernel, (1, 1), "VALID", (2, 2), dimension_numbers=NHWC)


def _patches(x, kernel):
    return lax.conv_general_dilated_patches(x, (2, 2), (1, 1), "SAME", dimension_numbers=NHWC) @ kernel


def _batch_groups(x, kernel):  # the kernel's gradient of a convolution, used forward
    convolve = lambda x: lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=NHWC, batch_group_count=2
    )
    return jax.vmap(lambda x: convolve(jnp.stack([x, jnp.flip(x)]))[0])(x)


def _pixels_as_batch(x, kernel):  # one example gives a batch of several images
    n, height, width, features = x.shape
    rows = x.reshape(n * height, 1, width, features)
    return lax.conv_general_dilated(rows, kernel, (1, 1), "SAME", dimension_numbers=NHWC).reshape(n, height, width, -1)


def _kernel_as_signal(x, kernel):  # the parameter is convolved with the example
    convolve = lambda x: lax.conv_general_dilated(kernel, x[..., None], (1, 1), "SAME", dimension_numbers=NHWC)
    return jnp.moveaxis(jax.vmap(convolve)(x), 1, 3)[..., 0]


def _twice(x, kernel):
    once = lambda x: lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=NHWC)
    return once(jnp.tanh(once(x)))


def _depthwise_separable(x, kernel):
    depthwise = lax.conv_general_dilated(
        x, kernel[..., :1, :], (1, 1), "SAME", dimension_numbers=NHWC, feature_group_count=2
    )
    return lax.conv_general_dilated(depthwise, kernel[:1, :1], (1, 1), "SAME", dimension_numbers=NHWC)


OTHERS = {
    "transposed": _of_images(lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), 3, 3, 2, 2),
    "transposed, valid, dilated": _of_images(
        lambda x, w: lax.conv_transpose(x, w, (2, 1), "VALID", rhs_dilation=(1, 2)), 2, 3, 2, 1
    ),
    "transposed, kernel of the forward pass": _of_images(
        lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME", transpose_kernel=True), 3, 2, 3, 2
    ),
    "local": _of_images(_local, 3, 2, 8, 2),
    "patches": _of_images(_patches, 8, 3),
    "batch groups": _of_images(_batch_groups, 2, 2, 2, 2),
    "pixels as batch": _of_images(_pixels_as_batch, 1, 2, 2, 2),
    "kernel as signal": _of_images(_kernel_as_signal, 2, 3, 3, 2),
    "used twice": _of_images(_twice, 2, 2, 2, 2),
    "depthwise separable": _of_images(_depthwise_separable, 2, 2, 2, 2),
    "as wide as the input": _of_images(
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=NHWC), 4, 3, 2, 3
    ),
    "of several channels at few positions": lambda: (
        lambda p, x: lax.conv(x, p["w"], (2, 2), "SAME").sum((2, 3)),
        weights(w=(4, 8, 3, 3)),
        normal(0, 2, 8, 2, 2),
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_convolutions(name):
    check(*OTHERS[name]())
