"""`auto` chooses the fastest of what fits, says why, works inside traces, and equals the other exact estimators."""

import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jacreg_train import jacobian
from jacreg_train.jacobian.auto import Candidate
from jacreg_train.jacobian.memory import free_bytes, held_bytes

module: Any = sys.modules[jacobian.choose.__module__]  # the package's name `auto` is the function
pytestmark = pytest.mark.xdist_group("auto")  # in one worker, that its fixtures are made once
N, WIDTH, K = 32, 32, 5
TINY = module.TINY
PARAMS = [0.1 * np.random.default_rng(i).normal(size=(WIDTH, WIDTH if i < 2 else K)) for i in range(3)]
INPUTS = np.random.default_rng(9).normal(size=(N, WIDTH))


def network(params, x):
    *hidden, last = params
    for w in hidden:
        x = jnp.tanh(x @ w)
    return x @ last


@pytest.fixture(autouse=True, scope="module")
def small_problems_are_measured():
    module.TINY = 0
    yield
    module.TINY = TINY


def gradient_of(estimator, apply_fn=network):
    return jax.grad(lambda params, inputs: estimator(apply_fn, params, inputs).squared_norm)


@pytest.fixture(scope="module")
def roomy():
    return jacobian.choose(network, PARAMS, INPUTS, memory_budget_gib=1.0, allow_stochastic=True)


@pytest.fixture(scope="module")
def tight(roomy):
    """Between what the hungriest layerwise candidate needs and the most modest one."""
    needs = [each.gib for each in roomy.candidates if each.estimator == "layerwise"]
    assert needs[0] == max(needs)
    return jacobian.choose(network, PARAMS, INPUTS, memory_budget_gib=(max(needs) + min(needs)) / 2)


def test_every_candidate_has_figures_and_a_verdict(roomy):
    assert {each.estimator for each in roomy.candidates} == {"layerwise", "chunked", "stochastic"}
    for each in roomy.candidates:
        assert each.gib > 0
        assert each.milliseconds > 0
    chosen = [each for each in roomy.candidates if each.verdict.startswith("chosen")]
    assert [(each.estimator, each.options) for each in chosen] == [(roomy.estimator, roomy.options)]
    assert chosen[0].milliseconds == min(each.milliseconds for each in roomy.candidates)
    assert all("times slower" in each.verdict for each in roomy.candidates if each is not chosen[0])
    (random,) = (each for each in roomy.candidates if each.estimator == "stochastic")
    assert "standard error" in random.verdict
    assert 0 < random.relative_error < 1


def test_the_table_shows_all(roomy):
    title, heads, *lines = str(roomy).splitlines()
    assert title.startswith(f"auto: {roomy.estimator}")
    assert "memory budget 1 GiB" in title
    assert heads.split() == ["estimator", "GiB", "ms", "verdict"]
    assert len(lines) == len(roomy.candidates) == len(roomy.rows())


def test_what_does_not_fit_is_turned_down(tight):
    verdicts = [each.verdict for each in tight.candidates]
    assert verdicts[0] == "turned down: does not fit"
    (chosen,) = (each for each in tight.candidates if each.verdict == "chosen")
    assert chosen.gib <= tight.memory_budget_gib
    assert tight.options
    for each in tight.candidates:
        assert (each.gib > tight.memory_budget_gib) == (each.milliseconds is None)


def test_the_chosen_gradient_holds_what_the_table_says(tight):
    estimator = jacobian.make_estimator(tight.estimator, **tight.options)
    whole = lambda params, inputs: (lambda e: (e.squared_norm, e.outputs))(estimator(network, params, inputs))
    compiled = jax.jit(jax.value_and_grad(whole, has_aux=True)).lower(PARAMS, INPUTS).compile()
    (chosen,) = (each for each in tight.candidates if each.verdict == "chosen")
    assert (held_bytes(compiled) or 0) / 2**30 == pytest.approx(chosen.gib, rel=0.2)


def test_nothing_fits(monkeypatch):
    monkeypatch.setattr(module, "_families", lambda *_: iter([("layerwise", {"output_chunk": 1}, [None, 1])]))
    with pytest.raises(ValueError, match=r"memory_budget_gib=1e-06: no estimator fits; the smallest, .* needs .*e-05"):
        jacobian.choose(network, PARAMS, INPUTS, memory_budget_gib=1e-6)


def test_inside_traces_and_once_for_the_same_shapes(monkeypatch):
    """Under jit, grad and shard_map, with an `apply_fn` that closes over a traced value and is new at each call."""
    calls: list[Any] = []
    fixed = [(Candidate("layerwise", {"example_chunk": 2}, 0.1, 1.0), None)]
    real = module._measure

    def counted(*args, measure=real):
        calls.append(args)
        return measure(*args)

    monkeypatch.setattr(module, "_families", lambda *_: iter([("layerwise", {"output_chunk": 1}, [2])]))
    monkeypatch.setattr(module, "_measure", counted)
    estimator = jacobian.make_estimator("auto", memory_budget_gib=1.0)
    scale = jnp.linspace(0.5, 2, K)
    scaled = lambda scale: lambda params, x: network(params, x) * scale
    wanted = jax.jit(gradient_of(jacobian.make_estimator("layerwise"), scaled(scale)))(PARAMS, INPUTS)

    def by_device(params, inputs, scale):
        gradients = gradient_of(estimator, scaled(scale))(params, inputs)
        return jax.tree.map(lambda leaf: jax.lax.psum(leaf, "data"), gradients)

    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    shard = jax.shard_map(by_device, mesh=mesh, in_specs=(P(), P("data"), P()), out_specs=P(), check_vma=False)
    jitted = jax.jit(lambda *args: gradient_of(estimator, scaled(args[2]))(*args[:2]))
    for found in (jitted(PARAMS, INPUTS, scale), jax.jit(shard)(PARAMS, INPUTS, scale)):
        for got, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
    assert len(calls) == 1
    monkeypatch.setattr(module, "_measure", functools.partial(counted, measure=lambda *_: fixed))
    estimator(network, PARAMS, INPUTS[:3])
    assert len(calls) == 2


def test_tiny_problems_are_not_measured(monkeypatch):
    monkeypatch.setattr(module, "_measure", None)
    monkeypatch.setattr(module, "TINY", TINY)
    choice = jacobian.choose(lambda w, x: x @ w, np.ones((3, 2)), np.ones((4, 3)))
    assert (choice.estimator, choice.options) == ("layerwise", {})
    assert "too small" in str(choice)


def test_shapes_are_enough(monkeypatch):
    monkeypatch.setattr(module, "_measure", lambda *_: [(Candidate("chunked", {}, 0.1, 1.0), None)])
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (PARAMS, INPUTS))
    assert jacobian.choose(network, *shapes).estimator == "chunked"


def test_a_candidate_that_runs_out_of_memory_is_turned_down(monkeypatch):
    def fails(problem, candidate, *_):
        if not candidate.options:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes.")
        return Candidate(candidate.estimator, candidate.options, 0.1, 1.0)

    monkeypatch.setattr(module, "_try", fails)
    choice = jacobian.choose(network, PARAMS, INPUTS, memory_budget_gib=1.0)
    assert choice.options
    assert "RESOURCE_EXHAUSTED" in choice.candidates[0].verdict


def test_never_stochastic_unless_allowed(roomy, tight):
    assert "stochastic" not in {each.estimator for each in tight.candidates}
    problem = module._Problem.of(network, jax.tree.map(jnp.asarray, PARAMS), INPUTS, "params")
    families = functools.partial(module._families, problem)
    assert "stochastic" not in [name for name, *_ in families(False)]
    assert "stochastic" in [name for name, *_ in families(True)]


@pytest.mark.parametrize("budget", [0, -1.0, "1", True, float("inf"), float("nan")])
def test_refused_budgets(budget):
    with pytest.raises(ValueError, match=r"memory_budget_gib=.* must be a positive number of GiB"):
        jacobian.make_estimator("auto", memory_budget_gib=budget)


def test_free_memory_is_a_part_of_the_machines():
    with open("/proc/meminfo") as file:
        total = int(file.readline().split()[1]) * 1024
    free = free_bytes()
    assert free is not None
    assert 0 < free < total
