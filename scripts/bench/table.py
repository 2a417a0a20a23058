"""The main table: every method on a model and a batch, against the plain gradient of the loss."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bench import measure
from bench.cases import Case, make_case
from bench.measure import MIB, Program
from bench.methods import METHODS, PLAIN, REFERENCES, Method
from bench.results import Results

SIZES = (10, 32, 128, 200)


@dataclasses.dataclass(frozen=True)
class Settings:
    """How long and how large a measurement may get.

    Attributes:
        rounds: timed calls of each.
        patience_s: what takes longer in one call is timed once.
        limit_s: what is expected to take longer in one call is not run.
        budget: bytes; what needs more does not run and "does not fit".
    """

    rounds: int
    patience_s: float
    limit_s: float
    budget: int


def measure_table(
    results: Results,
    settings: Settings,
    model: str,
    n: int,
    methods: Mapping[str, Method] = METHODS,
    entries: str = "rows",
) -> None:
    """One model and batch size: a row for each method, written when it is compiled and again when it is timed."""
    case = make_case(model, n)
    key = jax.random.key(0)
    arguments = (case.params, case.inputs, key)
    plain = measure.compile_program(case.loss_gradient(), *arguments)
    rows = {PLAIN: _new_row(case, PLAIN) | compiled_fields(plain, plain)}
    results.add(entries, rows[PLAIN])
    programs = {PLAIN: plain}
    for name, method in methods.items():
        row = rows[name] = _new_row(case, name)
        if method.jacobian_bytes(case) > settings.budget:
            row |= {"fits": False, "jacobian_mib": method.jacobian_bytes(case) / MIB}
        else:
            program = measure.compile_program(method.gradient(case), *arguments)
            row |= compiled_fields(program, plain, settings.budget)
            expected_s = _expected_seconds(results, case, name, method) if row["fits"] else 0.0
            if expected_s > settings.limit_s:
                row["expected_s"] = expected_s
            elif row["fits"]:
                programs[name] = program
        results.add(entries, row)

    reference = next((name for name in REFERENCES if name in programs), None)
    seconds, errors = _run(case, programs, reference, settings)
    for name in programs:
        rows[name] |= measure.time_fields(seconds[name], seconds[PLAIN])
        rows[name]["relative_error"] = _root_mean_square(errors[name]) if errors[name] else None
        rows[name]["is_reference"] = name == reference
        results.add(entries, rows[name])


def compiled_fields(program: Program, plain: Program, budget: float = float("inf")) -> dict[str, Any]:
    """A row's fields that need no run: memory, compile time and multiply-adds, with their ratios to the plain's."""
    fields: dict[str, Any] = {"compile_s": program.compile_s, "compile_ratio": program.compile_s / plain.compile_s}
    fields["fits"] = program.bytes is None or program.bytes <= budget
    if program.bytes is not None and plain.bytes is not None:
        fields |= {"memory_mib": program.bytes / MIB, "memory_ratio": program.bytes / plain.bytes}
    if program.multiply_adds is not None and plain.multiply_adds:
        fields["flop_ratio"] = program.multiply_adds / plain.multiply_adds
    return fields


def _new_row(case: Case, method: str) -> dict[str, Any]:
    missing = dict.fromkeys(("time_ratio", "memory_mib", "compile_s", "flop_ratio", "relative_error"))
    return {"model": case.model, "n": case.n, "method": method, **missing, "fits": True}


def _run(
    case: Case, programs: Mapping[str, Program], reference: str | None, settings: Settings
) -> tuple[dict[str, list[float]], dict[str, list[jax.Array]]]:
    """Seconds of the timed calls, relative errors of all; each call has another key."""
    keys = [jax.random.fold_in(jax.random.key(2), turn) for turn in range(settings.rounds + 1)]
    order = [reference] if reference else []
    order += [name for name in programs if name != reference]
    gradient: list[Any] = []
    errors: dict[str, list[jax.Array]] = {name: [] for name in programs}

    def look(name: str, result: Any) -> None:
        if name == reference and not gradient:
            gradient.append(result)
        elif gradient and name not in (reference, PLAIN):
            errors[name].append(measure.relative_error(result, gradient[0]))

    def call(name: str) -> Callable[[int], Any]:
        return lambda turn: programs[name].call(case.params, case.inputs, keys[turn])

    seconds = measure.time_in_turns({name: call(name) for name in order}, settings.rounds, settings.patience_s, look)
    return seconds, errors


def _expected_seconds(results: Results, case: Case, name: str, method: Method) -> float:
    """Of one call: in proportion to `n` from the largest batch known, or from two examples for slow methods."""
    known = [
        (row["n"], seconds)
        for row in results.rows(case.model, name)
        if row["n"] <= case.n and (seconds := row.get("seconds") or row.get("expected_s"))
    ]
    if known:
        n, seconds = max(known)
        return seconds * case.n / n
    if not method.jacobian_examples(case.n):
        return 0.0
    two = make_case(case.model, 2)  # one alone is quick: its convolutions are ordinary ones
    arguments = (two.params, two.inputs, jax.random.key(0))
    program = measure.compile_program(method.gradient(two), *arguments)
    start = time.perf_counter()
    jax.block_until_ready(program.call(*arguments))
    return case.n * (time.perf_counter() - start) / two.n


def _root_mean_square(errors: list[jax.Array]) -> float:
    return float(jnp.sqrt(jnp.mean(jnp.square(jnp.stack(errors)))))
