"""The ratios that are promised, each beside its target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from bench import flops, measure
from bench.cases import MODEL_CASES, NUM_CLASSES, Case, make_case
from bench.measure import Program
from bench.methods import Method, estimator, joint_gradient_norm
from bench.results import Results
from bench.steps import training_step
from bench.table import Settings

COTANGENT = Method(estimator("stochastic"))
TANGENT = Method(estimator("stochastic", probe="tangent"))
LAYERWISE = Method(estimator("layerwise"))
JOINT = Method(joint_gradient_norm)
JOINT_TITLE = "norm of the summed outputs' gradient, no example told apart"


def add_target(results: Results, name: str, ratio: float, target: float | None, **more: Any) -> None:
    """One entry of the second table; `target` None: nothing is promised, or `ratio` is a fact to compare with."""
    results.add("targets", {"name": name, "ratio": ratio, "target": target, **more})


def gradient(
    results: Results,
    settings: Settings,
    model: str,
    n: int,
    method: Method,
    title: str,
    floor: Callable[[int, int], int],
    *,
    most_time: float | None,
    most_flops: float | None,
) -> None:
    """Time and multiply-adds of a gradient of `S` over the plain gradient's.

    Args:
        floor: the multiply-adds that its gradient has to do besides what the norms take, from those of a forward pass
            and of a backward pass through the activations.
    """
    case = make_case(model, n)
    programs = compile_with_plain(case, {title: method})
    name = f"{title}, {MODEL_CASES[model].title}, n = {n}"
    forward = flops.multiply_adds(case.apply_fn, case.params, case.inputs)
    plain, mine = programs["plain"], programs[title]
    seconds = run_in_turns(case, programs, settings)
    fields = measure.time_fields(seconds[title], seconds["plain"])
    assert plain.multiply_adds is not None
    assert mine.multiply_adds is not None
    # A plain gradient is a forward pass, a weight gradient as dear for each layer, and a backward pass.
    least = floor(forward, plain.multiply_adds - 2 * forward) / plain.multiply_adds
    counted = mine.multiply_adds / plain.multiply_adds
    add_target(results, f"time: {name}", fields["time_ratio"], most_time, floor=least, **_spread(fields))
    add_target(results, f"multiply-adds: {name}", counted, most_flops, floor=least)


def cotangent(results: Results, settings: Settings, model: str, n: int) -> None:
    limits: dict[str, Any] = {"most_time": 3.0, "most_flops": 2.6}
    gradient(results, settings, model, n, COTANGENT, "one cotangent probe", _cotangents(1), **limits)


def all_outputs(results: Results, settings: Settings, model: str, n: int, example_chunk: int) -> None:
    limits: dict[str, Any] = {"most_time": 16.0, "most_flops": 12.5}
    method = Method(estimator("layerwise", example_chunk=example_chunk))
    title = f"all K = {NUM_CLASSES} outputs exactly, example_chunk = {example_chunk}"
    gradient(results, settings, model, n, method, title, _cotangents(NUM_CLASSES), **limits)


def tangent(results: Results, settings: Settings, model: str, n: int) -> None:
    # Forward x w, and for the tangent x' w + x u; reverse by w and x, by w and x', by x.
    floor = lambda forward, backward: 3 * forward + 5 * backward
    gradient(results, settings, model, n, TANGENT, "one tangent probe", floor, most_time=None, most_flops=None)


def _cotangents(count: int) -> Callable[[int, int], int]:
    """The forward pass and its derivative by weights and activations; each backward pass and its two derivatives."""
    return lambda forward, backward: 2 * forward + (1 + 3 * count) * backward


def step(results: Results, settings: Settings, model: str, n: int, *, wrt: str, most: float) -> None:
    """A whole training step with one cotangent probe over the plain step."""
    case = make_case(model, n)
    calls = {}
    for name, options in {"plain": {}, "penalised": {"estimator": "stochastic", "wrt": wrt}}.items():
        function, arguments = training_step(case, **options)
        compiled = function.lower(*arguments).compile()
        calls[name] = lambda turn, compiled=compiled, arguments=arguments: compiled(*arguments)
    seconds = measure.time_in_turns(calls, settings.rounds, settings.patience_s)
    fields = measure.time_fields(seconds["penalised"], seconds["plain"])
    penalty = {"params": "parameter", "inputs": "input"}[wrt]
    name = f"time: training step, {penalty} Jacobian, one cotangent probe, {MODEL_CASES[model].title}, n = {n}"
    add_target(results, name, fields["time_ratio"], most, **_spread(fields))


def chunk_loops(
    results: Results,
    settings: Settings,
    model: str,
    n: int,
    name: str,
    *chunks: Mapping[str, int],
) -> None:
    """The gradient in chunks over the same unchunked, for estimator `name`."""
    case = make_case(model, n)
    titles = {_options_title(options): options for options in chunks}
    methods = {title: Method(estimator(name, **options)) for title, options in titles.items()}
    programs = compile_with_plain(case, {"whole": Method(estimator(name)), **methods})
    del programs["plain"]
    over = [title for title, program in programs.items() if (program.bytes or 0) > settings.budget]
    if over:
        print(f"  does not fit, left out: {name} {', '.join(over)}")
        return
    seconds = run_in_turns(case, programs, settings)
    for title in methods:
        fields = measure.time_fields(seconds[title], seconds["whole"])
        label = f"time: {name}, {title} over unchunked, {MODEL_CASES[model].title}, n = {n}"
        add_target(results, label, fields["time_ratio"], 1.15, **_spread(fields))


def compile_times(results: Results, settings: Settings, model: str, sizes: tuple[int, int]) -> None:
    """Compile time over the plain gradient's, and of a large batch over a small one's."""
    small, large = sizes
    title = MODEL_CASES[model].title
    chunk = {"example_chunk": small // 2}
    methods = {
        "one cotangent probe": (COTANGENT, Method(estimator("stochastic", **chunk))),
        "all outputs": (LAYERWISE, Method(estimator("layerwise", **chunk))),
    }
    plain = _compile_seconds(make_case(model, small), None)
    joint = _compile_seconds(make_case(model, small), JOINT)
    add_target(results, f"compile time: {JOINT_TITLE}, {title}, over the plain gradient's", joint / plain, None)
    for name, (whole, chunked) in methods.items():
        seconds = {n: _compile_seconds(make_case(model, n), whole) for n in sizes}
        add_target(results, f"compile time: {name}, {title}, over the plain gradient's", seconds[small] / plain, 3.0)
        ratio = seconds[large] / seconds[small]
        add_target(results, f"compile time: {name}, {title}, n = {large} over n = {small}", ratio, 1.2)
        in_chunks = {n: _compile_seconds(make_case(model, n), chunked) for n in sizes}
        counts = [-(-n // chunk["example_chunk"]) for n in sizes]
        label = f"compile time: {name}, {title}, {counts[1]} chunks over {counts[0]}"
        add_target(results, label, in_chunks[large] / in_chunks[small], 1.2)


def _compile_seconds(case: Case, method: Method | None) -> float:
    function = case.loss_gradient() if method is None else method.gradient(case)
    return measure.compile_seconds(function, case.params, case.inputs, jax.random.key(0), rounds=2)


def memory(results: Results, settings: Settings, model: str, n: int) -> None:
    """Compiled memory of the unchunked gradient with one cotangent probe over the plain gradient's."""
    programs = compile_with_plain(make_case(model, n), {"mine": COTANGENT})
    ratio = _bytes(programs["mine"]) / _bytes(programs["plain"])
    name = f"memory: one cotangent probe over the plain gradient, {MODEL_CASES[model].title}, n = {n}"
    add_target(results, name, ratio, 3.0)


def memory_in_chunks(results: Results, settings: Settings, model: str, name: str, sizes: tuple[int, int]) -> None:
    """Compiled memory of the gradient at a large `n` over a small one's, with the same chunk, a divisor of both."""
    small, large = sizes
    chunk = small // 2
    method = Method(estimator(name, example_chunk=chunk))
    used = [_bytes(compile_with_plain(make_case(model, n), {"mine": method})["mine"]) for n in (small, large)]
    label = f"memory: {name}, n = {large} over n = {small}, example_chunk = {chunk}, {MODEL_CASES[model].title}"
    add_target(results, label, used[1] / used[0], 1.2)


def large_batch(results: Results, settings: Settings, model: str, n: int, example_chunk: int) -> None:
    """All outputs of a large batch exactly: compiled memory, and what a run really takes; in GB (10^9 bytes)."""
    case = make_case(model, n)
    method = Method(estimator("layerwise", example_chunk=example_chunk))
    program = compile_with_plain(case, {"mine": method})["mine"]
    name = f"GB: all K = {NUM_CLASSES} outputs, {MODEL_CASES[model].title}, n = {n}, example_chunk = {example_chunk}"
    add_target(results, f"{name}, compiled", _bytes(program) / 1e9, 4.0)
    with measure.peak_memory() as peak:
        jax.block_until_ready(program.call(case.params, case.inputs, jax.random.key(0)))
        used = peak()
    add_target(results, f"{name}, measured in a run", used / 1e9, 4.0)


def compile_with_plain(case: Case, methods: Mapping[str, Method]) -> dict[str, Program]:
    """The plain gradient as "plain" and each method's gradient."""
    functions: dict[str, Callable[..., Any]] = {"plain": case.loss_gradient()}
    functions |= {name: method.gradient(case) for name, method in methods.items()}
    arguments = (case.params, case.inputs, jax.random.key(0))
    return {name: measure.compile_program(function, *arguments) for name, function in functions.items()}


def run_in_turns(case: Case, programs: Mapping[str, Program], settings: Settings) -> dict[str, list[float]]:
    arguments = (case.params, case.inputs, jax.random.key(0))
    calls = {name: lambda turn, call=program.call: call(*arguments) for name, program in programs.items()}
    return measure.time_in_turns(calls, settings.rounds, settings.patience_s)


def _bytes(program: Program) -> int:
    if program.bytes is None:
        raise RuntimeError(f"the backend {jax.default_backend()!r} gives no memory analysis")
    return program.bytes


def _spread(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: fields[name] for name in ("time_low", "time_high", "seconds", "rounds")}


def _options_title(options: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in options.items())
