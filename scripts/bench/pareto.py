"""Time against error of the gradient, for every estimator and number of probes: which to take."""

from __future__ import annotations

from bench.methods import METHODS, Method, estimator
from bench.results import Results
from bench.table import Settings, measure_table


def families(num_outputs: int) -> dict[str, list[tuple[str, Method]]]:
    """What is compared: a family is one line of the picture, from cheap to good."""
    counts = [m for m in (1, 2, 4, 8, 16) if m <= 2 * num_outputs]
    orthogonal = sorted({m for m in (1, 2, 5, num_outputs) if m <= num_outputs})

    def probes(prefix: str, counts: list[int], **options: object) -> list[tuple[str, Method]]:
        return [(f"{prefix}, {m}", Method(estimator("stochastic", num_probes=m, **options))) for m in counts]

    return {
        "cotangent": probes("cotangent", counts),
        "cotangent, gaussian": probes("cotangent, gaussian", counts, distribution="gaussian"),
        "cotangent, orthogonal": probes("cotangent, orthogonal", orthogonal, orthogonal=True),
        "tangent": probes("tangent", counts, probe="tangent"),
        "finite difference": [("finite difference", METHODS["finite difference"])],
        "layerwise": [("layerwise", METHODS["layerwise"])],
    }


def family(method: str) -> str:
    """The family that a row's method belongs to."""
    return method.rpartition(", ")[0] or method


def measure_pareto(results: Results, settings: Settings, model: str, n: int, num_outputs: int) -> None:
    methods = {name: method for members in families(num_outputs).values() for name, method in members}
    measure_table(results, settings, model, n, methods, entries="pareto")
