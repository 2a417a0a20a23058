"""Exact squared Jacobian norms from per-layer closed forms.

One forward pass keeps the activations at the contacts; one vector-Jacobian product per cotangent gives the cotangents
there; closed forms turn both into squared norms. No example's parameter gradient of the whole network is ever held.
The literature calls this ghost norms (Goodfellow 2015, Li et al. 2022) or structured derivatives (Novak et al. 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend import core
from jaxtyping import Float

from jacreg_train.jacobian.convolutions import close_convolutions, convolve
from jacreg_train.jacobian.cotangents import vjp_of_several
from jacreg_train.jacobian.estimate import Estimator
from jacreg_train.jacobian.jaxprs import evaluate_equation, is_inexact, read
from jacreg_train.jacobian.known_parts import known_squared_norm
from jacreg_train.jacobian.options import WRT, check_choice, check_chunks
from jacreg_train.jacobian.rows import Pullback, SplitPullback, SquaredNorms, row_estimator
from jacreg_train.jacobian.rules import Operand, weight_cotangent, weight_squared_norm
from jacreg_train.jacobian.structure import Contact, Structure, find_structure
from jacreg_train.jacobian.trees import (
    ApplyFn,
    PyTree,
    accumulation_dtype,
    differentiated_leaves,
    num_examples,
    one_example,
    outputs_by_example,
    squared_sum,
    vary,
    varying_axes,
)


def layerwise(*, wrt: str = "params", example_chunk: int | None = None, output_chunk: int | None = None) -> Estimator:
    """Closed forms per layer; exact for any function, in chunks of examples and outputs where asked.

    Raises:
        ValueError: an option is out of its choices.
    """
    check_choice("wrt", wrt, WRT)
    check_chunks(example_chunk=example_chunk, output_chunk=output_chunk)
    return row_estimator(PULLBACKS[wrt], example_chunk, output_chunk)


def params_pullback(apply_fn: ApplyFn, params: PyTree, inputs: PyTree) -> tuple[Float[Array, "n ..."], SquaredNorms]:
    """The outputs, and the function from output cotangents `v` to `|J_i^T v_ki|^2`, for parameter Jacobians `J_i`."""
    outputs, _, squared_norms = _params_pullback(apply_fn, params, inputs, split=False)
    return outputs, squared_norms


def split_params_pullback(
    apply_fn: ApplyFn, params: PyTree, inputs: PyTree
) -> tuple[Float[Array, "n ..."], Float[Array, " n"], SquaredNorms]:
    """The outputs, what of `|J_i|^2` is known without cotangents, and the function from cotangents to the rest."""
    return _params_pullback(apply_fn, params, inputs, split=True)


def example_structure(apply_fn: ApplyFn, params: PyTree, inputs: PyTree) -> Structure:
    """The structure of one example's function of the differentiated parameter leaves."""
    leaves, rest, join = differentiated_leaves(params, "params")
    apply_one = one_example(apply_fn)
    example = jax.tree.map(lambda leaf: jax.typeof(leaf).update(shape=leaf.shape[1:]), inputs)
    jaxpr = jax.make_jaxpr(lambda leaves, x: apply_one(join(leaves, rest), x))(leaves, example)
    return find_structure(jaxpr, len(leaves))


def _params_pullback(apply_fn, params, inputs, split):
    leaves, *_ = differentiated_leaves(params, "params")
    structure = example_structure(apply_fn, params, inputs)
    shared = _evaluate_shared_part(structure, leaves)

    rows, n = jax.tree.leaves(inputs), num_examples(inputs)
    forward = jax.vmap(lambda rows, shifts: _evaluate_example_part(structure, shared, rows, shifts))
    shifts = [
        [jnp.zeros((n, *aval.shape), aval.dtype) for aval in _shifted_avals(structure, contact)]
        for contact in structure.contacts
    ]
    shifts = vary(shifts, varying_axes(params, inputs))
    outputs, activations, pull = vjp_of_several(lambda shifts, rows: forward(rows, shifts), shifts, rows)

    known = _known_norms(structure, shared, activations) if split else {}

    def squared_norms(cotangents):
        (at_contacts,) = pull(cotangents)
        zero = jnp.zeros(cotangents.shape[:2], accumulation_dtype(cotangents.dtype))
        free = _free_norms(structure, shared, activations, at_contacts, known)
        return sum(free + _pulled_norms(structure, leaves, shared, activations, at_contacts), start=zero)

    return outputs, sum(known.values(), start=jnp.zeros(n, accumulation_dtype(outputs.dtype))), squared_norms


def _evaluate_shared_part(structure: Structure, leaves: Sequence[Array]) -> dict[Any, Any]:
    """The values of all variables that do not depend on the example."""
    jaxpr = structure.jaxpr.jaxpr
    values = dict(zip(jaxpr.constvars, structure.jaxpr.consts, strict=True))
    values.update(zip(jaxpr.invars, leaves, strict=False))
    for index in structure.shared_eqns:
        eqn = jaxpr.eqns[index]
        outputs = evaluate_equation(eqn, [read(values, atom) for atom in eqn.invars])
        values.update(zip(eqn.outvars, outputs, strict=True))
    return values


def _shifted_avals(structure: Structure, contact: Contact) -> list[Any]:
    """Shapes and types of the contact's differentiable outputs."""
    jaxpr = structure.jaxpr.jaxpr
    variables = jaxpr.outvars if contact.index is None else jaxpr.eqns[contact.index].outvars
    return [var.aval for var in variables if is_inexact(var)]


def _evaluate_example_part(
    structure: Structure, shared: dict[Any, Any], rows: Sequence[Array], shifts: Sequence[Sequence[Array]]
) -> tuple[Array, list[list[Any]]]:
    """One example's output, with `shifts` added at the contacts, and what the contacts take from the example."""
    jaxpr = structure.jaxpr.jaxpr
    values = dict(shared)
    values.update(zip(jaxpr.invars[structure.num_params :], rows, strict=True))
    shift_of = {contact.index: shift for contact, shift in zip(structure.contacts, shifts, strict=True)}
    taken: dict[int | None, list[Any]] = {None: []}
    for index in structure.example_eqns:
        eqn = jaxpr.eqns[index]
        operands = [read(values, atom) for atom in eqn.invars]
        if eqn.primitive.name == "conv_general_dilated" and eqn.params["batch_group_count"] == 1:
            outputs = [convolve(*operands, **eqn.params)]
        else:
            outputs = evaluate_equation(eqn, operands)
        if index in shift_of:
            shift = iter(shift_of[index])
            outputs = [y + next(shift) if is_inexact(var) else y for y, var in zip(outputs, eqn.outvars, strict=True)]
            taken[index] = [x for x, atom in zip(operands, eqn.invars, strict=True) if _is_per_example(atom, shared)]
        values.update(zip(eqn.outvars, outputs, strict=True))
    output = read(values, jaxpr.outvars[0])
    if None in shift_of:
        output = output + shift_of[None][0]
    return output, [taken[contact.index] for contact in structure.contacts]


def _is_per_example(atom: Any, shared: dict[Any, Any]) -> bool:
    return not isinstance(atom, core.Literal) and atom not in shared


def _operands(structure: Structure, contact: Contact, shared: dict[Any, Any], taken: list[Any]) -> list[Operand]:
    values = iter(taken)
    return [
        Operand(next(values), True) if _is_per_example(atom, shared) else Operand(read(shared, atom), False)
        for atom in structure.jaxpr.jaxpr.eqns[contact.index].invars
    ]


def _known_norms(structure, shared, activations) -> dict[core.Var, Float[Array, " n"] | int]:
    """For the free weights of direct contacts, where there is a closed form: the sum over all outputs' cotangents."""
    found = {}
    for contact, taken in zip(structure.contacts, activations, strict=True):
        for position in contact.positions:
            weight = structure.weight(contact, position)
            if contact.index not in structure.direct or weight not in structure.free:
                continue
            eqn = structure.jaxpr.jaxpr.eqns[contact.index]
            norm = known_squared_norm(eqn, position, _operands(structure, contact, shared, taken))
            if norm is not None:
                found[weight] = norm
    return found


def _free_norms(structure, shared, activations, at_contacts, known) -> list[Float[Array, "K n"]]:
    found = []
    for contact, taken, cotangents in zip(structure.contacts, activations, at_contacts, strict=True):
        for position in contact.positions:
            weight = structure.weight(contact, position)
            if weight not in structure.free or weight in known:
                continue
            if contact.index is None:
                found.append(squared_sum(cotangents[0], 2))
            else:
                eqn = structure.jaxpr.jaxpr.eqns[contact.index]
                operands = _operands(structure, contact, shared, taken)
                found.append(weight_squared_norm(eqn, position, operands, cotangents))
    return found


def _pulled_norms(structure, leaves, shared, activations, at_contacts) -> list[Float[Array, "K n"]]:
    """The squared norms for the leaves that are pulled back: weight cotangents add up, then pass the shared part."""
    if not structure.pulled:
        return []
    bars: dict[Any, Array] = {}
    for contact, taken, cotangents in zip(structure.contacts, activations, at_contacts, strict=True):
        for position in contact.positions:
            weight = structure.weight(contact, position)
            if weight in structure.free:
                continue
            if contact.index is None:
                bar = cotangents[0]
            else:
                eqn = structure.jaxpr.jaxpr.eqns[contact.index]
                operands = _operands(structure, contact, shared, taken)
                bar = weight_cotangent(eqn, position, operands, cotangents)
            bars[weight] = bars[weight] + bar if weight in bars else bar

    def weights_of(pulled):
        replaced = list(leaves)
        for position, leaf in zip(structure.pulled, pulled, strict=True):
            replaced[position] = leaf
        values = _evaluate_shared_part(structure, replaced)
        return [values[weight] for weight in bars]

    _, pull = jax.vjp(weights_of, [leaves[position] for position in structure.pulled])
    (leaf_bars,) = jax.vmap(jax.vmap(pull))(list(bars.values()))
    return [squared_sum(bar, 2) for bar in leaf_bars]


def inputs_pullback(apply_fn: ApplyFn, params: PyTree, inputs: PyTree) -> tuple[Float[Array, "n ..."], SquaredNorms]:
    """The same for input Jacobians: examples do not meet, so the batch's own pullback serves them all."""
    floats, rest, join = differentiated_leaves(inputs, "inputs")
    outputs_by_example(apply_fn, params, inputs)  # raises where it is unusable
    apply_batch = close_convolutions(apply_fn)
    apply_floats = lambda floats, rest: (apply_batch(params, join(floats, rest)), None)
    outputs, _, pull = vjp_of_several(apply_floats, floats, rest)

    def squared_norms(cotangents):
        (bars,) = pull(cotangents)
        zero = jnp.zeros(cotangents.shape[:2], accumulation_dtype(cotangents.dtype))
        return sum((squared_sum(bar, 2) for bar in bars), start=zero)

    return outputs, squared_norms


def split_inputs_pullback(
    apply_fn: ApplyFn, params: PyTree, inputs: PyTree
) -> tuple[Float[Array, "n ..."], Float[Array, " n"], SquaredNorms]:
    """The same for input Jacobians, of which nothing is known without cotangents."""
    outputs, squared_norms = inputs_pullback(apply_fn, params, inputs)
    return outputs, jnp.zeros(len(outputs), accumulation_dtype(outputs.dtype)), squared_norms


PULLBACKS: dict[str, Pullback] = {"params": params_pullback, "inputs": inputs_pullback}
SPLIT_PULLBACKS: dict[str, SplitPullback] = {"params": split_params_pullback, "inputs": split_inputs_pullback}
