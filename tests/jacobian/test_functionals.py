"""The functionals against the dense Jacobian and against closed forms, value and gradient, in float64."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from jacreg_train import jacobian

OPTIONS = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}  # compile, not run, fast
N = 5


def mlp(params, x):
    return jnp.tanh(x @ params["a"] + params["b"]) @ params["c"]


def convolution(params, x):
    hidden = jnp.sin(
        jax.lax.conv_general_dilated(x, params["k"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    )
    return jnp.sum(hidden**2, axis=(1, 2)) @ params["w"]


def tree(params, x):
    features = jnp.concatenate([x["u"] * params["scale"], jnp.sin(x["more"][0])], axis=1)
    hidden = features[:, :, None] * params["table"][x["id"]][:, None, :]
    return jnp.exp(hidden * jnp.where(params["on"], 0.5, 0.0))  # outputs [n, 5, 2]


def scalar(params, x):
    return jnp.tanh(x @ params["w"])


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


NETWORKS = {
    "mlp": lambda: (mlp, {"a": draw(0, 2, 3), "b": draw(1, 3), "c": draw(2, 3, 4)}, draw(3, N, 2)),
    "convolution": lambda: (convolution, {"k": draw(0, 3, 3, 1, 2), "w": draw(1, 2, 3)}, draw(2, N, 3, 3, 1)),
    "tree": lambda: (
        tree,
        {"scale": draw(0, 3), "table": draw(1, 4, 2), "on": True},
        {"u": draw(2, N, 3), "more": (draw(3, N, 2),), "id": jnp.arange(N) % 4},
    ),
    "scalar": lambda: (scalar, {"w": draw(0, 3)}, draw(1, N, 3)),
}


def is_float(leaf):
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def floats(tree):
    """The floating-point leaves, and the function that puts such leaves in their places."""
    leaves: list[Any] = jax.tree.leaves(tree)
    structure: Any = jax.tree.structure(tree)
    places = [i for i, leaf in enumerate(leaves) if is_float(leaf)]

    def join(chosen):
        filled = dict(zip(places, chosen, strict=True))
        return structure.unflatten([filled.get(i, leaf) for i, leaf in enumerate(leaves)])

    return [leaves[i] for i in places], join


def dense_jacobian(apply_fn, params, inputs, wrt):
    """`J [n, K, A]`, one example at a time, the differentiated leaves laid end to end."""

    def of_one(x):
        batch = jax.tree.map(lambda leaf: leaf[None], x)
        leaves, join = floats(params if wrt == "params" else batch)
        joined = lambda leaves: (join(leaves), batch) if wrt == "params" else (params, join(leaves))
        parts = jax.jacrev(lambda leaves: jnp.ravel(apply_fn(*joined(leaves))))(leaves)
        return jnp.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)

    return jax.vmap(of_one)(inputs)


def vector_like(side, wrt, lead=()):
    """A vector for the differentiated side, shared by the examples or with the leading axis `(N,)`."""
    shape_of = lambda leaf: jnp.shape(leaf) if wrt == "params" else jnp.shape(leaf)[1:]
    return jax.tree.map(lambda leaf: draw(jnp.size(leaf) + 7, *lead, *shape_of(leaf)), side)


def as_matrix(vector, side, lead):
    """The same as `[n, A]`."""
    pairs = zip(jax.tree.leaves(vector), jax.tree.leaves(side), strict=True)
    flat = jnp.concatenate([v.reshape(*(lead or (1,)), -1) for v, leaf in pairs if is_float(leaf)], axis=1)
    return jnp.broadcast_to(flat, (N, flat.shape[1]))


def check_close(found, wanted, name):
    for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9, err_msg=name)


def value_and_gradients(function, *arguments):
    """A function's value, and the gradient of a weighted sum of it in all floating-point leaves of its arguments."""
    leaves, join = floats(arguments)

    def weighted(leaves):
        value = function(*join(leaves))
        weigh = lambda part: jnp.sum(part * jnp.cos(1 + jnp.arange(part.size).reshape(part.shape)))
        return sum(map(weigh, jax.tree.leaves(value))), value

    return jax.grad(weighted, has_aux=True)(leaves)


def compare(functions, reference, *arguments):
    """Each named function returns what the reference does, with the same gradients."""
    leaves, join = floats(arguments)

    def run(leaves):
        arguments = join(leaves)
        named = {name: value_and_gradients(function, *arguments) for name, function in functions.items()}
        return named, value_and_gradients(reference, *arguments)

    found, wanted = jax.jit(run, compiler_options=OPTIONS)(leaves)
    for name in found:
        check_close(found[name], wanted, name)


def with_options(function, *options):
    """The function under each of the options, by a name that says which."""
    return {str(chosen): functools.partial(function, **chosen) for chosen in options}


@pytest.mark.parametrize("wrt", ["inputs", "params"])
@pytest.mark.parametrize(
    ("network", "lead"), [("mlp", ()), ("mlp", (N,)), ("convolution", ()), ("tree", (N,)), ("scalar", ())]
)
def test_contract_and_bilinear_are_those_of_the_dense_jacobian(network, lead, wrt):
    apply_fn, params, inputs = NETWORKS[network]()
    phi = lambda entries: jnp.sin(entries) + entries**2
    side_of = lambda params, inputs: params if wrt == "params" else inputs
    left = draw(11, *lead, *apply_fn(params, inputs).shape[1:])

    def ours(params, inputs, left, vector, chunk, example_chunk):
        return (
            jacobian.contract(phi, apply_fn, params, inputs, vector, wrt=wrt, chunk=chunk, example_chunk=example_chunk),
            jacobian.bilinear(apply_fn, params, inputs, left, vector, wrt=wrt, example_chunk=example_chunk),
        )

    def dense(params, inputs, left, vector):
        entries = dense_jacobian(apply_fn, params, inputs, wrt)
        vector = as_matrix(vector, side_of(params, inputs), lead)
        left = jnp.broadcast_to(left.reshape(*(lead or (1,)), -1), entries.shape[:2])
        return jnp.sum(phi(entries) * vector[:, None], axis=2), jnp.einsum("nk,nka,na->n", left, entries, vector)

    if lead:
        options = [{"chunk": 3, "example_chunk": None}, {"chunk": 100, "example_chunk": 2}]
    else:
        options = [{"chunk": None, "example_chunk": None}, {"chunk": 1, "example_chunk": 3}]
    if network != "mlp":
        options = options[1:]
    vector = vector_like(side_of(params, inputs), wrt, lead)
    compare(with_options(ours, *options), dense, params, inputs, left, vector)


@pytest.mark.parametrize("wrt", ["inputs", "params"])
@pytest.mark.parametrize("network", NETWORKS)
def test_row_losses_are_those_of_the_dense_jacobian(network, wrt):
    apply_fn, params, inputs = NETWORKS[network]()

    def ours(params, inputs, chunk, example_chunk):
        norm = jacobian.row_norm(
            apply_fn, params, inputs, wrt=wrt, target=0.7, chunk=chunk, example_chunk=example_chunk
        )
        total = jacobian.row_sum(apply_fn, params, inputs, wrt=wrt, target=0.3, example_chunk=example_chunk)
        return dataclasses.astuple(norm), dataclasses.astuple(total)

    def dense(params, inputs):
        entries, outputs = dense_jacobian(apply_fn, params, inputs, wrt), apply_fn(params, inputs)
        result = lambda terms: (jnp.sum(terms), jnp.sum(terms, axis=1), outputs, jnp.zeros(()))
        norms, sums = jnp.sum(entries**2, axis=2), jnp.sum(entries, axis=2)
        return result((norms - 0.7) ** 2), result((sums - 0.3) ** 2)

    options = [{"chunk": 1, "example_chunk": 2}, {"chunk": None, "example_chunk": None}]
    compare(with_options(ours, *options[: 1 + (network == "mlp")]), dense, params, inputs)


linear = lambda W, x: x @ W.T
squared = lambda W, x: jnp.square(x @ W.T)
LOSSES = {
    "row_sum": lambda f, W, x: jacobian.row_sum(f, W, x).value,
    "row_sum by contract": lambda f, W, x: jnp.sum(
        (jacobian.contract(lambda entry: entry, f, W, x, jnp.ones(x.shape[1])) - 1) ** 2
    ),
    "row_norm": lambda f, W, x: jacobian.row_norm(f, W, x).value,
    "row_norm by contract": lambda f, W, x: jnp.sum(
        (jacobian.contract(jnp.square, f, W, x, jnp.ones(x.shape[1])) - 1) ** 2
    ),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_the_two_losses_on_the_smallest_models(loss):
    W, one, two = jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([[5.0, 6.0]]), jnp.array([[1.0, -2.0]])
    wanted = {
        ("row_sum", linear): (40, [[4, 4], [12, 12]]),
        ("row_norm", linear): (592, [[16, 32], [288, 384]]),
        ("row_sum", squared): (5402, [[0, 684], [-568, 5396]]),
        ("row_norm", squared): (6277042, [[-17184, 137472], [-1999200, 13994400]]),
    }
    for model, x in ((linear, one), (squared, two)):
        found = jax.value_and_grad(functools.partial(LOSSES[loss], model))(W, x)
        np.testing.assert_allclose(found[0], wanted[loss.split()[0], model][0], rtol=1e-12)
        np.testing.assert_allclose(found[1], wanted[loss.split()[0], model][1], rtol=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_two_losses_at_the_size_that_ran_out_of_memory(loss):
    batch, columns, outputs = 200, 100, 300
    W, x = draw(0, outputs, columns) / 10, draw(1, batch, columns) / 10
    sums, norms, y = jnp.sum(W, axis=1), jnp.sum(W**2, axis=1), x @ W.T
    if loss.startswith("row_sum"):
        gap, gaps = sums - 1, 2 * y * sums - 1
        wanted = batch * jnp.sum(gap**2), jnp.broadcast_to(2 * batch * gap[:, None], W.shape)
        gradient = 4 * (jnp.einsum("nk,na->ka", gaps * sums, x) + jnp.sum(gaps * y, axis=0)[:, None])
    else:
        gap, gaps = norms - 1, 4 * y**2 * norms - 1
        wanted = batch * jnp.sum(gap**2), 4 * batch * gap[:, None] * W
        gradient = 16 * (jnp.einsum("nk,na->ka", gaps * y * norms, x) + jnp.sum(gaps * y**2, axis=0)[:, None] * W)
    for model, expected in ((linear, wanted), (squared, (jnp.sum(gaps**2), gradient))):
        found = jax.jit(jax.value_and_grad(functools.partial(LOSSES[loss], model)))(W, x)
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-10)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-9, atol=1e-9 * float(jnp.max(jnp.abs(expected[1]))))


def everything(params, x, options):
    v = jnp.ones(x.shape[1])
    return (
        jacobian.contract(jnp.square, mlp, params, x, v, **options),
        jacobian.row_norm(mlp, params, x, **options).per_example,
        jacobian.row_norm(mlp, params, x, num_probes=1, key=jax.random.key(0), **options).per_example,
        jacobian.row_sum(mlp, params, x).per_example,
        jacobian.bilinear(mlp, params, x, jnp.ones(4), v),
    )


def test_vmap_over_parameters_is_a_loop():
    _, params, x = NETWORKS["mlp"]()
    ensemble = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf, -leaf]), params)
    loss = lambda params, x: sum(jnp.sum(part**2) for part in everything(params, x, {"chunk": 1, "example_chunk": 2}))
    gradient = jax.jit(jax.grad(loss), compiler_options=OPTIONS)
    together = jax.jit(jax.vmap(jax.grad(loss), (0, None)), compiler_options=OPTIONS)(ensemble, x)
    apart = [gradient(jax.tree.map(lambda leaf, i=i: leaf[i], ensemble), x) for i in range(3)]
    check_close(together, jax.tree.map(lambda *leaves: jnp.stack(leaves), *apart), "vmap")


@pytest.mark.parametrize("wrt", ["inputs", "params"])
def test_inside_shard_map_with_checked_axes(wrt):
    mesh = jax.make_mesh((1,), ("batch",), axis_types=(AxisType.Auto,))
    _, params, x = NETWORKS["mlp"]()
    vector, options = vector_like(params if wrt == "params" else x, wrt), {"wrt": wrt, "example_chunk": 2}

    def loss(apply_map):
        def of_batch(params, x):
            return (
                jacobian.contract(jnp.sin, mlp, params, x, vector, chunk=1, **options),
                jacobian.row_norm(mlp, params, x, chunk=1, **options).per_example,
                jacobian.row_norm(mlp, params, x, num_probes=1, key=jax.random.key(0), chunk=1, **options).per_example,
                jacobian.row_sum(mlp, params, x, **options).per_example,
                jacobian.bilinear(mlp, params, x, jnp.ones(4), vector, **options),
            )

        return lambda params: sum(jnp.sum(part**2) for part in apply_map(of_batch)(params, x))

    specs: dict[str, Any] = {"in_specs": (PartitionSpec(), PartitionSpec("batch")), "out_specs": PartitionSpec("batch")}
    mapped = jax.jit(jax.grad(loss(lambda f: jax.shard_map(f, mesh=mesh, **specs))), compiler_options=OPTIONS)
    check_close(mapped(params), jax.jit(jax.grad(loss(lambda f: f)), compiler_options=OPTIONS)(params), "shard_map")


def test_a_second_derivative():
    W, x = draw(0, 3, 2), draw(1, N, 2)
    loss = lambda W: jnp.sum(jacobian.contract(jnp.square, squared, W, x, jnp.ones(2), chunk=1))
    dense = lambda W: jnp.sum(dense_jacobian(squared, W, x, "inputs") ** 2)
    squared_gradient = lambda loss: lambda W: jnp.sum(jax.grad(loss)(W) ** 2)
    second = lambda loss: jax.jit(jax.grad(squared_gradient(loss)), compiler_options=OPTIONS)(W)
    check_close(second(loss), second(dense), "second derivative")


def test_phi_may_close_over_what_is_differentiated():
    _, params, x = NETWORKS["mlp"]()
    v = jnp.ones(2)
    loss = lambda b, **options: jnp.sum(jacobian.contract(lambda j: jnp.tanh(b * j), mlp, params, x, v, **options) ** 2)
    dense = lambda b: jnp.sum(jnp.sum(jnp.tanh(b * dense_jacobian(mlp, params, x, "inputs")), axis=2) ** 2)
    check_close(jax.grad(functools.partial(loss, chunk=1))(0.3), jax.grad(dense)(0.3), "phi")


def test_no_examples():
    _, params, x = NETWORKS["mlp"]()
    for options in ({}, {"chunk": 1, "example_chunk": 2}):
        parts = jax.eval_shape(lambda params, x, options=options: everything(params, x, options), params, x[:0])
        assert [part.shape for part in parts] == [(0, 4), (0,), (0,), (0,), (0,)]
    loss = lambda params: sum(map(jnp.sum, everything(params, x[:0], {})))
    gradient = jax.jit(jax.grad(loss), compiler_options=OPTIONS)(params)
    assert all(jnp.all(leaf == 0) for leaf in jax.tree.leaves(gradient))


def test_a_half_precision_network_does_not_overflow():
    w, x = jnp.full(4096, 300, jnp.float16), jnp.ones((1, 4096), jnp.float16)
    product = lambda w, x: x * w  # each output has one entry of 300 in its row; float16 ends at 65504
    total = lambda w, x: jnp.sum(x * w, axis=1)  # one row of 4096 such entries
    norm = jacobian.row_norm(product, w[:2], x[:, :2], target=0.0)
    assert norm.value.dtype == jnp.float32
    np.testing.assert_allclose(norm.value, 2 * 300.0**4, rtol=1e-6)
    np.testing.assert_allclose(jacobian.row_sum(total, w, x, target=0.0).value, (300.0 * 4096) ** 2, rtol=1e-3)
    square = jacobian.contract(jnp.square, total, w, x, jnp.ones(4096))
    np.testing.assert_allclose(square, [[300.0**2 * 4096]], rtol=1e-6)
    np.testing.assert_allclose(
        jacobian.bilinear(total, w, x, jnp.full((), 1e6), w / 8192), [1e6 * 300.0**2 / 2], rtol=1e-3
    )


def test_examples_that_meet_are_refused():
    joint = lambda params, x: mlp(params, x - jnp.mean(x, axis=0))
    _, params, x = NETWORKS["mlp"]()
    for call in (
        lambda: jacobian.contract(jnp.square, joint, params, x, jnp.ones(2)),
        lambda: jacobian.row_norm(joint, params, x),
        lambda: jacobian.row_sum(joint, params, x),
        lambda: jacobian.bilinear(joint, params, x, jnp.ones(4), jnp.ones(2)),
    ):
        with pytest.raises(ValueError, match="joint"):
            call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f, p, x: jacobian.row_norm(f, p, x, wrt="x"), r"wrt='x' .*params, inputs"),
        (lambda f, p, x: jacobian.row_sum(f, p, x, wrt="x"), r"wrt='x' .*params, inputs"),
        (lambda f, p, x: jacobian.row_norm(f, p, x, num_probes=0), r"num_probes=0 must be a whole number of 1 or more"),
        (lambda f, p, x: jacobian.row_norm(f, p, x, num_probes=1), r"key=None"),
        (lambda f, p, x: jacobian.row_norm(f, p, x, distribution="sphere"), r"distribution='sphere' .*num_probes=None"),
        (
            lambda f, p, x: jacobian.row_norm(f, p, x, num_probes=1, distribution="cube"),
            r"'cube'.*rademacher, gaussian",
        ),
        (lambda f, p, x: jacobian.contract(jnp.sum, f, p, x, jnp.ones(2)), r"phi must be elementwise"),
        (lambda f, p, x: jacobian.contract(jnp.sin, f, p, x, jnp.ones(2), chunk=0), r"chunk=0"),
        (
            lambda f, p, x: jacobian.contract(jnp.sin, f, p, x, jnp.ones(3)),
            r"vector has shape \(3,\).*\(2,\).*\(5, 2\)",
        ),
        (lambda f, p, x: jacobian.contract(jnp.sin, f, p, x, p, wrt="inputs"), r"vector must be a tree like inputs"),
        (
            lambda f, p, x: jacobian.bilinear(f, p, x, jnp.ones(2), jnp.ones(2)),
            r"left has shape \(2,\).*\(4,\).*\(5, 4\)",
        ),
        (lambda f, p, x: jacobian.bilinear(f, p, x, jnp.ones(4), p, wrt="x"), r"wrt='x'"),
    ],
)
def test_refusals_name_the_field_and_the_choices(call, message):
    with pytest.raises(ValueError, match=message):
        call(*NETWORKS["mlp"]())
