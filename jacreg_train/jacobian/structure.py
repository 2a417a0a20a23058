"""Where parameters meet examples: the structure of one example's function that the layerwise estimator uses.

The jaxpr of `f(params, x)` for one example is split in two. The *shared part* holds the equations that do not depend on
the example. The others make up the *example part*; where one of them takes a value of the shared part that depends on
parameters, a *weight*, there is a *contact*. A parameter leaf is *free* when its entries reach one
contact, each once and unchanged, so that the squared norm of the weight's cotangent is that of the leaf's. All other
leaves (tied, standardised, broadcast ...) are *pulled back*: the cotangents of their weights are added up and taken
through the shared part before squaring. An equation of the example part is *direct* when its output reaches the
function's output, each entry once, through rearrangements, additions and changes of sign.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from typing import Any

import jax.numpy as jnp
from jax.extend import core

from jacreg_train.jacobian.jaxprs import inline_calls, is_inexact, needed_equations

# Each entry of the result is an entry of an operand, and each entry of an operand appears once.
REARRANGEMENTS = frozenset(
    {
        "reshape",
        "transpose",
        "squeeze",
        "expand_dims",
        "rev",
        "copy",
        "copy_p",
        "concatenate",
        "convert_element_type",
    }
    | {"broadcast_in_dim", "optimization_barrier", "sharding_constraint"}
)

# Each entry of the result is the sum of one entry of each operand, with a sign.
ADDITIONS = frozenset({"add", "add_any", "sub", "neg"})

# The positions of operands whose change the derivative ignores: a solver's own, such as a factorization.
IGNORED = {
    "custom_linear_solve": lambda eqn: range(
        eqn.params["const_lengths"].matvec, sum(map(int, eqn.params["const_lengths"]))
    ),
}


@dataclasses.dataclass(frozen=True)
class Contact:
    """An equation that takes weights and a value that depends on the example.

    Attributes:
        index: of the equation in `Structure.jaxpr.eqns`; None for a weight that is itself the function's output.
        positions: of the weights among the equation's operands.
    """

    index: int | None
    positions: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Structure:
    """The parts of `f(params, x)`.

    Attributes:
        jaxpr: of one example's function, nested calls inlined; its arguments are the parameter leaves, then the rest.
        num_params: how many of the arguments are parameter leaves.
        shared_eqns: indices of the equations that do not depend on the example.
        example_eqns: indices of those that do.
        contacts: where weights meet the example.
        weights: the variables of the shared part that contacts take.
        free: the weights whose cotangent's squared norm is that of their leaves.
        pulled: positions of the leaves that are pulled back.
        direct: indices of the direct equations.
    """

    jaxpr: core.ClosedJaxpr
    num_params: int
    shared_eqns: tuple[int, ...]
    example_eqns: tuple[int, ...]
    contacts: tuple[Contact, ...]
    weights: tuple[core.Var, ...]
    free: frozenset[core.Var]
    pulled: tuple[int, ...]
    direct: frozenset[int]

    def weight(self, contact: Contact, position: int) -> core.Var:
        """The weight that `contact` takes at `position`."""
        return _weight(self.jaxpr.jaxpr, contact, position)


def find_structure(jaxpr: core.ClosedJaxpr, num_params: int) -> Structure:
    """Reads the structure off the jaxpr of one example's function whose first arguments are parameter leaves."""
    jaxpr = inline_calls(jaxpr)
    eqns, leaves = jaxpr.jaxpr.eqns, jaxpr.jaxpr.invars[:num_params]
    needed = needed_equations(jaxpr.jaxpr)

    of_params, of_example = set(leaves), set(jaxpr.jaxpr.invars[num_params:])
    shared_eqns, example_eqns, contacts = [], [], []
    for index in needed:
        eqn = eqns[index]
        takes = lambda variables, eqn=eqn: [
            i for i, atom in enumerate(eqn.invars) if not isinstance(atom, core.Literal) and atom in variables
        ]
        if takes(of_example):
            of_example.update(eqn.outvars)
            example_eqns.append(index)
            ignored = IGNORED[eqn.primitive.name](eqn) if eqn.primitive.name in IGNORED else ()
            positions = tuple(i for i in takes(of_params) if is_inexact(eqn.invars[i]) and i not in ignored)
            if positions and any(map(is_inexact, eqn.outvars)):
                contacts.append(Contact(index, positions))
        else:
            shared_eqns.append(index)
            if takes(of_params):
                of_params.update(eqn.outvars)
    (output,) = jaxpr.jaxpr.outvars
    if not isinstance(output, core.Literal) and output in of_params:
        contacts.append(Contact(None, (0,)))

    weights = dict.fromkeys(
        _weight(jaxpr.jaxpr, contact, position) for contact in contacts for position in contact.positions
    )
    free, pulled = _free_weights(jaxpr.jaxpr, leaves, shared_eqns, contacts, list(weights))
    return Structure(
        jaxpr,
        num_params,
        tuple(shared_eqns),
        tuple(example_eqns),
        tuple(contacts),
        tuple(weights),
        free,
        pulled,
        _direct_equations(jaxpr.jaxpr, needed, example_eqns),
    )


def _weight(jaxpr: core.Jaxpr, contact: Contact, position: int) -> Any:
    return jaxpr.outvars[0] if contact.index is None else jaxpr.eqns[contact.index].invars[position]


def _free_weights(
    jaxpr: core.Jaxpr,
    leaves: list[core.Var],
    shared_eqns: list[int],
    contacts: list[Contact],
    weights: list[Any],
) -> tuple[frozenset[core.Var], tuple[int, ...]]:
    producer: dict[Any, core.JaxprEqn] = {}
    uses: dict[Any, int] = defaultdict(int)
    for index in shared_eqns:
        eqn = jaxpr.eqns[index]
        producer.update(dict.fromkeys(eqn.outvars, eqn))
        for atom in eqn.invars:
            if not isinstance(atom, core.Literal):
                uses[atom] += any(map(is_inexact, eqn.outvars))
    for contact in contacts:
        for position in contact.positions:
            uses[_weight(jaxpr, contact, position)] += 1

    def rearranged_leaves(var: Any) -> set[core.Var] | None:
        """The leaves whose entries `var` consists of, or None where it is anything else."""
        if uses[var] != 1 or not _is_floating(var):
            return None
        if var not in producer:
            return {var}
        eqn = producer[var]
        operands = [atom for atom in eqn.invars if not isinstance(atom, core.Literal)]
        sizes = sum(atom.aval.size for atom in eqn.invars)
        if eqn.primitive.name not in REARRANGEMENTS or len(eqn.outvars) != 1 or sizes != var.aval.size:
            return None
        found: set[core.Var] = set()
        for operand in operands:
            part = rearranged_leaves(operand) if operand in producer or operand in leaf_set else None
            if part is None:
                return None
            found |= part
        return found or None

    leaf_set = set(leaves)
    free = {weight: rearranged_leaves(weight) for weight in weights}
    served = set().union(*(found for found in free.values() if found))
    reaching = leaves_reaching(jaxpr, leaf_set, shared_eqns)
    pulled = {leaf for weight in weights if free[weight] is None for leaf in reaching[weight] if is_inexact(leaf)}
    assert not pulled & served
    return (
        frozenset(weight for weight, found in free.items() if found),
        tuple(i for i, leaf in enumerate(leaves) if leaf in pulled),
    )


def _direct_equations(jaxpr: Any, needed: list[int], example_eqns: list[int]) -> frozenset[int]:
    uses = Counter(atom for index in needed for atom in jaxpr.eqns[index].invars if not isinstance(atom, core.Literal))
    uses.update(atom for atom in jaxpr.outvars if not isinstance(atom, core.Literal))
    producer = {var: index for index in example_eqns for var in jaxpr.eqns[index].outvars}
    direct, reached = set(), list(jaxpr.outvars)
    while reached:
        var = reached.pop()
        if isinstance(var, core.Literal) or var not in producer or uses[var] != 1 or not _is_floating(var):
            continue
        direct.add(producer[var])
        eqn = jaxpr.eqns[producer[var]]
        if len(eqn.outvars) > 1:
            continue
        rearranged = eqn.primitive.name in REARRANGEMENTS and sum(x.aval.size for x in eqn.invars) == var.aval.size
        if rearranged:
            reached.extend(eqn.invars)
        elif eqn.primitive.name in ADDITIONS:  # an operand that is broadcast reaches the output several times
            reached.extend(x for x in eqn.invars if x.aval.size == var.aval.size)
    return frozenset(direct)


def _is_floating(var: Any) -> bool:
    return jnp.issubdtype(var.aval.dtype, jnp.floating)


def leaves_reaching(
    jaxpr: core.Jaxpr, leaves: Iterable[core.Var], shared_eqns: Sequence[int]
) -> dict[core.Var, set[core.Var]]:
    """For each variable of the shared part the parameter leaves that it depends on differentiably."""
    reaching = {leaf: {leaf} for leaf in leaves}
    for index in shared_eqns:
        eqn = jaxpr.eqns[index]
        found = set().union(*(reaching.get(atom, set()) for atom in eqn.invars if not isinstance(atom, core.Literal)))
        reaching.update({var: found if is_inexact(var) else set() for var in eqn.outvars})
    return reaching
