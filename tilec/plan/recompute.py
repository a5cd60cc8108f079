"""What is computed anew in place of being in memory, where the whole program then takes less time.

Reads of a contraction's result at computed subscripts are such, for example of the logit of a class, `s[i, t[i]]`
(`passes/tensor/gathered.py`); and products that several contractions read (`passes/tensor/copies.py`). The contraction's result may
then stay on chip.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tilec.analysis.precision import approximate_operations
from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.core.quantities import duration
from tilec.core.target import Target
from tilec.passes.tensor.copies import copied_names, copy_for_readers
from tilec.passes.tensor.gathered import compute_anew, gathered_reads, name_of_read
from tilec.plan.chain import WIDEST
from tilec.plan.given_groups import Fixed
from tilec.plan.groups import Remark
from tilec.plan.model import Plan

Planner = Callable[[ir.Operation, Target, Fixed | None, bool], Plan]


def recomputable_reads(function: ir.Operation, target: Target) -> dict[str, str]:
    """The names of the operations that would compute such reads, each with that of its reader; none where results of contractions
    are always in memory."""
    if not target.has("tma"):
        return {}
    return {name_of_read(op): mlir.get_string(op, "tilec.name") or "" for op in gathered_reads(function)}


def plan_with_reads(
    function: ir.Operation, reads: dict[str, str], target: Target, fixed: Fixed | None, splitting: bool, planner: Planner
) -> Plan:
    """The faster plan, with reads computed anew or without. `fixed` says which where a schedule names the kernels."""
    named = None if fixed is None else any(name in kernel for kernel in fixed.kernels for name in reads)
    regroup = partial(plan_with_reads, function, reads, target, splitting=splitting, planner=planner)
    stored = None
    if not named:
        stored = replace(planner(function, target, fixed, splitting), regroup=regroup)
        if fixed is not None:
            return stored
    copy = function.clone()
    for op in [o for o in mlir.traverse(copy) if mlir.get_string(o, "tilec.name") in reads.values()]:
        compute_anew(op)
    found = planner(copy, target, fixed, splitting)
    approximations = approximate_operations(function, target.kind)  # of the program's own operations
    anew = replace(found, recomputed=reads, approximations=approximations, regroup=regroup)
    if stored is None:
        return anew
    subject = ", ".join(reads)
    times = f"{duration(anew.time_us)} with its elements computed anew, {duration(stored.time_us)} with all of them in memory"
    if not pays(anew.time_us, stored.time_us) or any(s.name in reads for s in anew.splits):
        return replace(stored, remarks=(*stored.remarks, Remark("refused", f"to compute {subject}", times)))
    return replace(anew, remarks=(*anew.remarks, Remark("recomputed", subject, times)))


def plan_with_copies(function: ir.Operation, target: Target, fixed: Fixed | None, splitting: bool, planner: Planner) -> Plan:
    """The faster plan, with products for each of their readers or without."""
    names = copied_names(function, WIDEST) if target.kind == "cuda" and target.instructions("bf16") else []
    if not names:
        return planner(function, target, fixed, splitting)
    named = None if fixed is None else not {*names}.isdisjoint((*fixed.inlined, *(n for kernel in fixed.kernels for n in kernel)))
    regroup = partial(plan_with_copies, function, target, splitting=splitting, planner=planner)
    stored = None
    if not named:
        stored = replace(planner(function, target, fixed, splitting), regroup=regroup)
        if fixed is not None:
            return stored
    copy = function.clone()
    copy_for_readers(copy, WIDEST)
    anew = replace(planner(copy, target, fixed, splitting), copied=tuple(names), regroup=regroup)
    if stored is None:
        return anew
    subject = ", ".join(names)
    times = f"{duration(anew.time_us)} with a copy for each of their readers, {duration(stored.time_us)} in memory"
    if not pays(anew.time_us, stored.time_us):
        return replace(stored, remarks=(*stored.remarks, Remark("refused", f"to compute {subject}", times)))
    return replace(anew, remarks=(*anew.remarks, Remark("recomputed", subject, times)))


def pays(anew: float, stored: float) -> bool:
    return anew < stored
