"""What is computed anew in place of being in memory, where the whole program then takes less time.

Reads of a contraction's result at computed subscripts are such, for example of the logit of a class, `s[i, t[i]]`
(`passes/tensor/gathered.py`); products that several contractions read (`passes/tensor/copies.py`); and what is computed of tensors
that join others (`passes/tensor/pieces.py`). The contraction's result may then stay on chip.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from tilec.analysis.diagonals import diagonals_of
from tilec.analysis.precision import approximate_operations
from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.core.quantities import duration
from tilec.core.target import Target
from tilec.passes.tensor.copies import copied_names, copy_for_readers
from tilec.passes.tensor.diagonals import diagonal_name, store_by_diagonal
from tilec.passes.tensor.gathered import compute_anew, gathered_reads, name_of_read
from tilec.passes.tensor.pieces import compute_in_pieces, names_of_pieces
from tilec.plan.chain import WIDEST
from tilec.plan.given_groups import Fixed
from tilec.plan.groups import Remark
from tilec.plan.model import Plan
from tilec.process import forks

LARGE = 200  # operations: to plan them takes half a second

Planner = Callable[[ir.Operation, Target, Fixed | None, bool], Plan]


@dataclass(frozen=True)
class Recomputation:
    """`rewrite` makes the operations `names` in a copy of the program, `noted` puts them into a plan of the copy. `computed` and
    `stored` say of a time which of the two forms it is of. Without `may_split`, no plan may split one of them. A remark names the
    `subject`, or else the operations."""

    names: tuple[str, ...]
    rewrite: Callable[[ir.Operation], None]
    noted: Callable[[Plan], Plan]
    computed: str
    stored: str
    may_split: bool = True
    subject: str = ""


Finder = Callable[[ir.Operation, Target], Recomputation | None]


def of_reads(function: ir.Operation, target: Target) -> Recomputation | None:
    """Of single elements of contractions; none where results of contractions are always in memory."""
    found = gathered_reads(function) if target.has("tma") else ()
    readers = {name_of_read(op): mlir.get_string(op, "tilec.name") or "" for op in found}
    if not readers:
        return None

    def rewrite(copy: ir.Operation) -> None:
        for op in [o for o in mlir.traverse(copy) if mlir.get_string(o, "tilec.name") in readers.values()]:
            compute_anew(op)

    def noted(plan: Plan) -> Plan:
        return replace(plan, recomputed=readers, approximations=approximate_operations(function, target.kind))

    times = "with its elements computed anew", "with all of them in memory"
    return Recomputation(
        tuple(readers), rewrite, noted, *times, may_split=False
    )  # `tilec.split` is on operations that are there


def of_products(function: ir.Operation, target: Target) -> Recomputation | None:
    """Of products, for each of the contractions that read them."""
    names = tuple(copied_names(function, WIDEST)) if target.kind == "cuda" and target.instructions("bf16") else ()
    if not names:
        return None
    rewrite, noted = partial(copy_for_readers, deepest=WIDEST), partial(replace, copied=names)
    return Recomputation(names, rewrite, noted, "with a copy for each of their readers", "in memory")


def of_joins(function: ir.Operation, target: Target) -> Recomputation | None:
    """Of tensors that join the results of products with others: what is computed of them, for each of the pieces."""
    found = names_of_pieces(function, WIDEST)
    if not found:
        return None
    names, joins = tuple(name for made in found.values() for name in made), tuple(found)
    rewrite, noted = partial(compute_in_pieces, deepest=WIDEST), partial(replace, pieces=joins)
    return Recomputation(names, rewrite, noted, "in pieces", "as a whole", subject=", ".join(joins))


def plan_with(
    find: Finder, function: ir.Operation, target: Target, fixed: Fixed | None, splitting: bool, planner: Planner
) -> Plan:
    """The faster plan, with what `find` finds computed anew or without. `fixed` says which where a schedule names the kernels."""
    anew = find(function, target)
    if anew is None:
        return planner(function, target, fixed, splitting)
    regroup = partial(plan_with, find, function, target, splitting=splitting, planner=planner)

    def stored() -> Plan:
        return replace(planner(function, target, fixed, splitting), regroup=regroup)

    def computed() -> Plan:
        copy = function.clone()
        anew.rewrite(copy)
        planned = planner(copy, target, fixed, splitting)
        if not anew.may_split and any(s.name in anew.names for s in planned.splits):
            planned = planner(copy, target, fixed, False)
        return replace(anew.noted(planned), regroup=regroup)

    if fixed is not None:
        given = (*fixed.inlined, *(n for kernel in fixed.kernels for n in kernel))
        return stored() if {*anew.names}.isdisjoint(given) else computed()
    number, plan, us = forks.choose(
        [stored, computed], lambda plan: plan.time_us, lambda us: int(pays(us[1], us[0])), is_large(function)
    )
    subject = anew.subject or ", ".join(anew.names)
    times = f"{duration(us[1])} {anew.computed}, {duration(us[0])} {anew.stored}"
    remark = Remark("recomputed", subject, times) if number else Remark("refused", f"to compute {subject}", times)
    return replace(plan, remarks=(*plan.remarks, remark))


def plan_diagonals(
    function: ir.Operation, target: Target, fixed: Fixed | None, splitting: bool, planner: Planner
) -> Plan:  # fmt: skip
    """The faster plan, with tensors in memory that are the same along diagonals stored as one element for each of these, or as they
    are (`passes/tensor/diagonals.py`). What is computed inside its readers is left there."""
    tensors = diagonals_of(function)
    regroup = partial(plan_diagonals, function, target, splitting=splitting, planner=planner)
    stored: Plan | None
    if fixed is None:
        stored = planner(function, target, None, splitting)
        inlined = {*stored.inlined}
        names = tuple(name for name, computed in tensors.items() if not inlined.issuperset(computed))
    else:
        given = {n for kernel in fixed.kernels for n in kernel}
        names = tuple(name for name in tensors if any(n.startswith(diagonal_name(name)) for n in given))
        stored = None if names else planner(function, target, fixed, splitting)
    if not names:
        assert stored is not None
        return replace(stored, regroup=regroup) if tensors else stored
    copy = function.clone()
    store_by_diagonal(copy, names)
    found = planner(copy, target, fixed, splitting)
    found = replace(found, regroup=regroup, diagonals=(*names, *found.diagonals))
    if stored is None:
        return found
    subject = ", ".join(names)
    times = f"{duration(found.time_us)} with one element for each diagonal, {duration(stored.time_us)} with all elements"
    if not pays(found.time_us, stored.time_us):
        refused = Remark("refused", f"to store {subject} by diagonals", times)
        return replace(stored, regroup=regroup, remarks=(*stored.remarks, refused))
    return replace(found, remarks=(*found.remarks, Remark("diagonals", subject, times)))


def is_large(function: ir.Operation) -> bool:
    """Whether plans of it take so long that they are made beside each other."""
    return len(mlir.entry(function).operations) >= LARGE


def pays(anew: float, stored: float) -> bool:
    return anew < stored
