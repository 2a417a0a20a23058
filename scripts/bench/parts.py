"""What the benchmark consists of: parts by name, each of which adds its rows to the results."""

from __future__ import annotations

import functools
from collections.abc import Callable

from bench import functionals, targets
from bench.cases import NUM_CLASSES
from bench.pareto import measure_pareto
from bench.results import Results
from bench.table import SIZES, Settings, measure_table

Part = Callable[[Results, Settings], None]

RESNETS = ("resnet18", "resnet18_batch")
MODELS = ("cnn3", "cnn8", "resnet18")


def all_parts() -> dict[str, Part]:
    """The targets, the main table, the functionals."""
    parts: dict[str, Part] = {}

    def add(name: str, measure: Callable[..., None], *arguments: object, **options: object) -> None:
        parts[name] = lambda results, settings: measure(results, settings, *arguments, **options)

    for model in RESNETS:
        add(f"targets/cotangent/{model}", targets.cotangent, model, 32)
        add(f"targets/step/{model}", targets.step, model, 32, wrt="params", most=3.2)
        for chunk in (4, 8):
            add(f"targets/all_outputs/{model}/{chunk}", targets.all_outputs, model, 32, chunk)
    add("targets/tangent/resnet18", targets.tangent, "resnet18", 32)
    for model in ("cnn3", *RESNETS):
        add(f"targets/input_step/{model}", targets.step, model, 32, wrt="inputs", most=2.1)
    by_examples, by_outputs = {"example_chunk": 8}, {"output_chunk": 5}
    chunks = targets.chunk_loops
    add("targets/chunks/stochastic", chunks, "resnet18", 32, "stochastic", by_examples)
    add("targets/chunks/layerwise", chunks, "resnet18", 32, "layerwise", by_examples, by_outputs)
    add("targets/chunks/chunked", chunks, "cnn3", 32, "chunked", by_examples, by_outputs)
    add("targets/compile/resnet18", targets.compile_times, "resnet18", (16, 128))
    for model in MODELS:
        add(f"targets/memory/{model}", targets.memory, model, 128)
        for name in ("stochastic", "layerwise"):
            add(f"targets/memory_in_chunks/{name}/{model}", targets.memory_in_chunks, model, name, (20, 200))
    add("targets/memory_in_chunks/chunked/cnn3", targets.memory_in_chunks, "cnn3", "chunked", (20, 200))
    add("functionals/memory", functionals.contract_memory, 64, 3072, 1024)
    add("functionals/chunks", functionals.contract_chunks, 16, 768, 256, (8, 32, 128, 768))
    for distribution in ("rademacher", "gaussian"):
        add(f"variance/cnn3/{distribution}", functionals.exact_part, "cnn3", 8, distribution, 64)
        add(f"variance/positions/{distribution}", functionals.exact_part_of_positions, 8, distribution, 64)
    for model in MODELS:
        for n in SIZES:
            add(f"table/{model}/{n}", measure_table, model, n)
    add("targets/large/resnet18", targets.large_batch, "resnet18", 200, 8)
    return parts


def quick_parts() -> dict[str, Part]:
    """The small network's table and the ResNet18's first targets: under three minutes on two cores."""
    parts = all_parts()
    names = ("targets/cotangent/resnet18", "table/cnn3/10", "table/cnn3/32")
    return {name: parts[name] for name in names}


def pareto_parts() -> dict[str, Part]:
    """One picture a model."""
    sizes = {"cnn3": 32, "cnn8": 32, "resnet18": 10}
    return {
        f"pareto/{model}": functools.partial(measure_pareto, model=model, n=n, num_outputs=NUM_CLASSES)
        for model, n in sizes.items()
    }
