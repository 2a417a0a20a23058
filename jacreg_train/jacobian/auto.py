"""Choosing an estimator and its chunks for a function, a batch and a memory budget, by measurement.

Candidates compute the gradient of `S` with respect to the parameters. Each is compiled for the real shapes; what its
compiled memory figures do not fit into the budget is turned down; the rest runs briefly on made-up numbers, and the
fastest is chosen. Nothing of the caller's is run.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from jacreg_train.jacobian.estimate import Estimator
from jacreg_train.jacobian.exact import chunked
from jacreg_train.jacobian.jaxprs import hoist
from jacreg_train.jacobian.layerwise import layerwise
from jacreg_train.jacobian.memory import free_bytes, held_bytes
from jacreg_train.jacobian.options import WRT, check_choice
from jacreg_train.jacobian.stochastic import stochastic
from jacreg_train.jacobian.trees import ApplyFn, PyTree, differentiated_leaves, num_examples, one_example

CHOICES: dict[str, Callable[..., Estimator]] = {"layerwise": layerwise, "chunked": chunked, "stochastic": stochastic}
TINY = 2**20  # numbers in all activations, cotangents and rows together: below, any way takes milliseconds
SHRINK = 4  # an example_chunk that does not fit is followed by one this many times smaller
ROUNDS = 3  # timed runs of a candidate
HOPELESS = 3  # a candidate this many times slower than the best so far is not run again


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One way to compute the gradient of `S`, and what became of it.

    Attributes:
        estimator, options: for `make_estimator`.
        gib: what the compiled gradient holds on one device, in GiB; None where it was not compiled or not told.
        milliseconds: of one gradient, the fastest of a few; None where it did not run.
        relative_error: standard error of `S` over `S`, on made-up numbers; None for exact estimators.
        verdict: why it was chosen or turned down.
    """

    estimator: str
    options: Mapping[str, Any]
    gib: float | None = None
    milliseconds: float | None = None
    relative_error: float | None = None
    verdict: str = ""


@dataclasses.dataclass(frozen=True)
class Choice:
    """An estimator with its options, and all candidates in the order in which they were tried; prints as a table."""

    estimator: str
    options: Mapping[str, Any]
    memory_budget_gib: float | None
    candidates: tuple[Candidate, ...]

    def rows(self) -> list[dict[str, Any]]:
        """The candidates as plain dicts, for JSON."""
        return [dataclasses.asdict(candidate) | {"options": dict(candidate.options)} for candidate in self.candidates]

    def __str__(self) -> str:
        budget = "unknown" if self.memory_budget_gib is None else f"{self.memory_budget_gib:.4g} GiB"
        cells = [("estimator", "GiB", "ms", "verdict")]
        for each in self.candidates:
            size = "-" if each.gib is None else f"{each.gib:.4g}"
            duration = "-" if each.milliseconds is None else f"{each.milliseconds:.4g}"
            cells.append((label(each.estimator, each.options), size, duration, each.verdict))
        widths = [max(len(row[column]) for row in cells) for column in range(3)]
        lines = [
            f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}".rstrip() for row in cells
        ]
        return "\n".join([f"auto: {label(self.estimator, self.options)} (memory budget {budget})", *lines])


def label(estimator: str, options: Mapping[str, Any]) -> str:
    """An estimator with its options, in words."""
    return " ".join([estimator, *(f"{name}={value}" for name, value in options.items())])


def auto(*, wrt: str = "params", memory_budget_gib: float | None = None, allow_stochastic: bool = False) -> Estimator:
    """The estimator that `choose` chooses, at the first call with a function and shapes; later calls reuse it.

    Args:
        wrt, memory_budget_gib, allow_stochastic: as for `choose`.

    Raises:
        ValueError: an option is out of its choices; when called, no candidate fits or none works.
    """
    check_choice("wrt", wrt, WRT)
    _check_options(memory_budget_gib, allow_stochastic)
    chosen: dict[Any, Choice] = {}

    def estimate(apply_fn, params, inputs, key=None, *, first_example=0):
        problem = _Problem.of(apply_fn, params, inputs, wrt)
        if problem.identity not in chosen:
            chosen[problem.identity] = _choose(problem, memory_budget_gib, allow_stochastic)
        choice = chosen[problem.identity]
        estimator = CHOICES[choice.estimator](wrt=wrt, **choice.options)
        return estimator(apply_fn, params, inputs, key, first_example=first_example)

    return estimate


def choose(
    apply_fn: ApplyFn,
    params: PyTree,
    inputs: PyTree,
    *,
    wrt: str = "params",
    memory_budget_gib: float | None = None,
    allow_stochastic: bool = False,
) -> Choice:
    """The fastest estimator of `S` and its gradient that fits into the budget.

    Tiny problems get `layerwise` without a measurement.

    Args:
        apply_fn: as for an estimator.
        params, inputs: arrays, or `jax.ShapeDtypeStruct`s: only shapes and types are used.
        wrt: "params" or "inputs".
        memory_budget_gib: what the gradient may hold on one device, parameters and inputs included, in GiB. None:
            what the device or the machine has free, less a tenth.
        allow_stochastic: whether two orthogonal probes may win; the table then states their standard error.

    Returns:
        The choice; `make_estimator(choice.estimator, wrt=wrt, **choice.options)` makes it.

    Raises:
        ValueError: an option is out of its choices, no candidate fits, or none works.
    """
    check_choice("wrt", wrt, WRT)
    _check_options(memory_budget_gib, allow_stochastic)
    return _choose(_Problem.of(apply_fn, params, inputs, wrt), memory_budget_gib, allow_stochastic)


def _check_options(memory_budget_gib: Any, allow_stochastic: Any) -> None:
    check_choice("allow_stochastic", allow_stochastic, (True, False))
    number = isinstance(memory_budget_gib, int | float) and not isinstance(memory_budget_gib, bool)
    if memory_budget_gib is not None and not (number and 0 < memory_budget_gib < math.inf):
        raise ValueError(f"memory_budget_gib={memory_budget_gib!r} must be a positive number of GiB, or None")


@dataclasses.dataclass(frozen=True)
class _Problem:
    """A function and a batch without their numbers.

    Attributes:
        apply_batch: `(closed_over, params, inputs) -> outputs`; what `apply_fn` closed over is an argument, since it
            may be part of an enclosing trace.
        closed_over, params, inputs: shapes and types.
        num_examples, num_outputs: n and K.
        volume: a bound on the numbers in activations, cotangents and rows.
        identity: the same for the same function, shapes and types.
    """

    apply_batch: Callable[[Any, PyTree, PyTree], Any]
    closed_over: Any
    params: PyTree
    inputs: PyTree
    wrt: str
    num_examples: int
    num_outputs: int
    volume: int
    identity: Any

    @classmethod
    def of(cls, apply_fn: ApplyFn, params: PyTree, inputs: PyTree, wrt: str) -> _Problem:
        n = num_examples(inputs)
        params, inputs = jax.tree.map(_shape_of, (params, inputs))
        example = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), inputs)
        jaxpr = jax.make_jaxpr(one_example(apply_fn))(params, example)
        apply_one, closed_over = hoist(one_example(apply_fn), params, example)
        batch = jax.vmap(apply_one, (None, None, 0))
        num_outputs = math.prod(jaxpr.out_avals[0].shape)
        differentiated = sum(leaf.size for leaf in jax.tree.leaves(params if wrt == "params" else example))
        return cls(
            apply_batch=batch,
            closed_over=[_shape_of(value) for value in closed_over],
            params=params,
            inputs=inputs,
            wrt=wrt,
            num_examples=n,
            num_outputs=num_outputs,
            volume=n * ((1 + num_outputs) * _num_values(jaxpr.jaxpr) + num_outputs * differentiated),
            identity=(str(jaxpr), n, str(jax.tree.map(lambda leaf: leaf.dtype, (params, inputs)))),
        )


def _shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))


def _num_values(jaxpr: core.Jaxpr) -> int:
    """Numbers in the results of all equations; loops count once for each turn that is known."""
    total = 0
    for eqn in jaxpr.eqns:
        total += sum(math.prod(getattr(var.aval, "shape", ())) for var in eqn.outvars)
        turns = eqn.params.get("length", 1)
        for inner in jax.tree.leaves(list(eqn.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(inner):
                total += turns * _num_values(inner.jaxpr if isinstance(inner, core.ClosedJaxpr) else inner)
    return total


def _is_jaxpr(value: Any) -> bool:
    return isinstance(value, core.Jaxpr | core.ClosedJaxpr)


def _choose(problem: _Problem, memory_budget_gib: float | None, allow_stochastic: bool) -> Choice:
    free = free_bytes() if memory_budget_gib is None else None
    budget = memory_budget_gib if free is None else free / 2**30
    if problem.volume <= TINY and (budget is None or 16 * problem.volume <= budget * 2**30):
        only = Candidate("layerwise", {}, verdict="chosen: too small for the way to matter")
        return Choice("layerwise", {}, budget, (only,))
    # A thread of its own knows nothing of the traces and meshes that the caller may be inside of.
    with ThreadPoolExecutor(1) as thread:
        measured = thread.submit(
            _measure, problem, budget, allow_stochastic, bool(jax.config.read("jax_enable_x64"))
        ).result()
    return _decide(measured, budget)


def _measure(
    problem: _Problem, budget: float | None, allow_stochastic: bool, enable_x64: bool
) -> list[tuple[Candidate, Exception | None]]:
    """The candidates, compiled and, where they fit, timed; each with its error if it failed."""
    with jax.enable_x64(enable_x64):
        arguments = [_made_up(tree) for tree in (problem.closed_over, problem.params, problem.inputs)]
        best = math.inf
        results: list[tuple[Candidate, Exception | None]] = []
        for estimator, options, chunks in _families(problem, allow_stochastic):
            wanted = 2 if estimator == "layerwise" else 1  # a smaller chunk than needed can be faster, by caches
            least = 0.0  # what the next smaller chunk needs at least, given the last one
            for chunk in chunks:
                least /= SHRINK
                if budget is not None and least > budget and chunk != chunks[-1]:
                    continue
                candidate = Candidate(estimator, options | ({} if chunk is None else {"example_chunk": chunk}))
                try:
                    candidate = _try(problem, candidate, arguments, budget, best)
                except (ValueError, TypeError, NotImplementedError) as error:  # of the function: no chunk helps
                    results.append((candidate, error))
                    break
                except jax.errors.JaxRuntimeError as error:
                    results.append((candidate, error))
                    continue
                results.append((candidate, None))
                least = candidate.gib or 0.0
                if candidate.milliseconds is not None:
                    best, wanted = min(best, candidate.milliseconds), wanted - 1
                    if wanted == 0:
                        break
        return results


def _families(problem: _Problem, allow_stochastic: bool) -> Iterator[tuple[str, dict[str, Any], list[int | None]]]:
    """(estimator, options, example chunks from large to small); the rows of an input Jacobian have one way only."""
    n, k = problem.num_examples, problem.num_outputs
    chunks: list[int | None] = [None]
    size = n
    while size > 1:
        size = -(-size // SHRINK)
        chunks.append(size)
    by_output: list[dict[str, Any]] = [{}, {"output_chunk": 1}] if k > 1 else [{}]
    for estimator in ("layerwise", "chunked") if problem.wrt == "params" else ("layerwise",):
        for options in by_output:
            yield estimator, options, chunks
    if allow_stochastic and k > 2:  # two orthogonal probes are exact for two outputs, and no cheaper
        yield "stochastic", {"num_probes": 2, "orthogonal": True}, chunks


def _try(problem: _Problem, candidate: Candidate, arguments: list[Any], budget: float | None, best: float) -> Candidate:
    """The candidate with its figures; `milliseconds` stays None where it does not fit."""
    closed_over, params, inputs = arguments
    leaves, rest, join = differentiated_leaves(params, "params")
    estimator = CHOICES[candidate.estimator](wrt=problem.wrt, **candidate.options)
    is_random = candidate.estimator == "stochastic"

    def value(leaves, rest, inputs, closed_over, key):
        apply_fn = lambda params, inputs: problem.apply_batch(closed_over, params, inputs)
        estimate = estimator(apply_fn, join(leaves, rest), inputs, key)
        return estimate.squared_norm, (estimate.outputs, estimate.standard_error)

    key = jax.random.key(0) if is_random else None
    gradient = jax.jit(jax.value_and_grad(value, has_aux=True)).lower(leaves, rest, inputs, closed_over, key).compile()
    size = held_bytes(gradient)
    candidate = dataclasses.replace(candidate, gib=None if size is None else size / 2**30)
    if size is not None and budget is not None and size > budget * 2**30:
        return candidate
    times: list[float] = []
    for _ in range(1 + ROUNDS):  # the first one warms up
        start = time.perf_counter()
        (squared_norm, (_, standard_error)), _ = jax.block_until_ready(gradient(leaves, rest, inputs, closed_over, key))
        times.append(1e3 * (time.perf_counter() - start))
        if len(times) > 1 and min(times) > HOPELESS * best:
            break
    error = float(standard_error / squared_norm) if is_random else None
    return dataclasses.replace(candidate, milliseconds=min(times), relative_error=error)


def _decide(measured: list[tuple[Candidate, Exception | None]], budget: float | None) -> Choice:
    """The fastest of those that ran, and a verdict for each."""
    ran = [candidate for candidate, _ in measured if candidate.milliseconds is not None]
    if not ran:
        raise _nothing_left(measured, budget)
    fastest = min(ran, key=lambda candidate: candidate.milliseconds or 0.0)
    judged = []
    for candidate, error in measured:
        if error is not None:
            verdict = f"turned down: {type(error).__name__}: {' '.join(str(error).split())[:120]}"
        elif candidate.milliseconds is None:
            verdict = "turned down: does not fit"
        elif candidate is fastest:
            verdict = "chosen"
        else:
            verdict = f"turned down: {candidate.milliseconds / fastest.milliseconds:.3g} times slower"  # type: ignore[operator]
        if candidate.relative_error is not None:
            verdict += f"; standard error {100 * candidate.relative_error:.2g} % of S on made-up numbers"
        judged.append(dataclasses.replace(candidate, verdict=verdict))
    return Choice(fastest.estimator, fastest.options, budget, tuple(judged))


def _nothing_left(measured: list[tuple[Candidate, Exception | None]], budget: float | None) -> Exception:
    sized = [candidate for candidate, error in measured if error is None and candidate.gib is not None]
    if not sized:  # all failed, and the first is the one that takes the most functions
        return next(error for _, error in measured if error is not None)
    smallest = min(sized, key=lambda candidate: candidate.gib or 0.0)
    needs = f"{label(smallest.estimator, smallest.options)}, needs {smallest.gib:.4g} GiB"
    return ValueError(f"memory_budget_gib={budget:.4g}: no estimator fits; the smallest, {needs}")


def _made_up(tree: PyTree) -> PyTree:
    """Arrays of these shapes and types: small normal numbers, zeros for whole numbers, one key for all keys."""
    rng = np.random.default_rng(0)

    def make(leaf):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jnp.broadcast_to(jax.random.key(0), leaf.shape)
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            return jnp.asarray(0.1 * rng.standard_normal(leaf.shape, np.float32), leaf.dtype)
        return jnp.zeros(leaf.shape, leaf.dtype)

    return jax.tree.map(make, tree)
