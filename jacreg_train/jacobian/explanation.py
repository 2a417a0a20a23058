"""What the layerwise estimator does for each parameter: where it is met, which rule serves it, what that costs."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax.extend import core

from jacreg_train.jacobian.layerwise import example_structure
from jacreg_train.jacobian.rules import FORMS
from jacreg_train.jacobian.structure import leaves_reaching
from jacreg_train.jacobian.trees import ApplyFn, PyTree, is_float


@dataclasses.dataclass(frozen=True)
class Row:
    """One parameter.

    Attributes:
        parameter: its path in the tree.
        shape: of the parameter.
        met_by: the operations that take it, or what is made of it, together with a value of the example.
        rule: "closed form: ..." with the form's name, "own derivative" (the operation's own, squared), "pulled back"
            (cotangents add up and pass what is made of the parameter first), or "none" where it is not used.
        cost: multiply-adds of the rule for one example, all outputs, value and gradient; 0 for elementwise work.
        memory: bytes that the rule holds for one example and all outputs.
    """

    parameter: str
    shape: tuple[int, ...]
    met_by: tuple[str, ...]
    rule: str
    cost: int
    memory: int


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The rows, by parameter; `str` makes a table of them, the dearest first."""

    rows: tuple[Row, ...]

    def __str__(self) -> str:
        head = ("parameter", "shape", "met by", "rule", "Mmul-adds", "MiB")
        cells = [
            (
                r.parameter,
                "x".join(map(str, r.shape)) or "-",
                ", ".join(r.met_by) or "-",
                r.rule,
                f"{r.cost / 1e6:.3g}",
                f"{r.memory / 2**20:.3g}",
            )
            for r in sorted(self.rows, key=lambda row: (-row.cost, -row.memory))
        ]
        widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
        line = lambda row: "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        return "\n".join([line(head), line(["-" * width for width in widths]), *map(line, cells)])


def explain(apply_fn: ApplyFn, params: PyTree, inputs: PyTree) -> Explanation:
    """Which rule of `layerwise` serves each parameter, for one example with all its outputs. Nothing is computed.

    Args:
        apply_fn, params, inputs: as for an estimator.

    Raises:
        TypeError, ValueError: as the estimator.
    """
    structure = example_structure(apply_fn, params, inputs)
    jaxpr = structure.jaxpr.jaxpr
    outputs = math.prod(jaxpr.outvars[0].aval.shape)
    leaves = jaxpr.invars[: structure.num_params]
    reaching = leaves_reaching(jaxpr, leaves, structure.shared_eqns)
    paths = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]
        if is_float(leaf)
    ]
    rows = []
    for index, (path, leaf) in enumerate(zip(paths, leaves, strict=True)):
        met = [
            (contact, position)
            for contact in structure.contacts
            for position in contact.positions
            if leaf in reaching.get(structure.weight(contact, position), ())
        ]
        names = tuple("output" if c.index is None else jaxpr.eqns[c.index].primitive.name for c, _ in met)
        itemsize = jnp.dtype(leaf.aval.dtype).itemsize
        gradient = outputs * leaf.aval.size * itemsize
        rule, cost, memory = "none", 0, 0
        if index in structure.pulled:
            weights = sum(structure.weight(c, p).aval.size for c, p in met)
            rule, memory = "pulled back", gradient + outputs * weights * itemsize
        elif met:
            rule, cost, memory = _free_rule(jaxpr, met[0], outputs, gradient)
        rows.append(Row(path, leaf.aval.shape, names, rule, cost, memory))
    return Explanation(tuple(rows))


def _free_rule(jaxpr: core.Jaxpr, met, outputs: int, gradient: int) -> tuple[str, int, int]:
    contact, position = met
    if contact.index is None:
        return "own derivative", 0, gradient
    eqn = jaxpr.eqns[contact.index]
    form = FORMS[eqn.primitive.name](eqn, position, outputs) if eqn.primitive.name in FORMS else None
    if form is None:
        return "own derivative", 0, gradient
    held = {"kernel gradient": gradient}.get(form.name, outputs * eqn.outvars[0].aval.size * 4)
    return f"closed form: {form.name}", form.cost, held
