"""The plan of a program whose sizes vary: that of the program at some sizes, carried out on the program with its `?`.

The planner weighs numbers: it is given an instance, a copy of the program at sizes that stand for all of a class
(`tilec/driver/classes.py`). Its decisions name operations, kernels and steps of rewrites, and hold for the program itself. Whether
they do for every size of the class is not the planner's to say: passes read extents from the program, prove what they need of them,
and raise `Varies` where that holds at some sizes alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilec.analysis.precision import approximate_operations
from tilec.core import extents, mlir
from tilec.core.extents import Extent, instance
from tilec.core.mlir import ir
from tilec.core.target import Target
from tilec.core.varying import Varies
from tilec.index.facts import NONE
from tilec.kernels import KernelPlan
from tilec.passes.tensor.inline import inline_all
from tilec.plan.model import Plan
from tilec.plan.planner import make_plan
from tilec.plan.rewrites import REWRITES, Rewrite
from tilec.plan.state import APPROXIMATE
from tilec.plan.steps import Step

MOST = 4  # times a block of the instance
UNIT = 16  # of which blocks that may not be so large have a multiple


def plan_at(function: ir.Operation, target: Target, sizes: Mapping[str, int]) -> Plan:
    """The plan of a program at some sizes; its `function` is the program, after the steps of rewrites."""
    module = ir.Module.create()  # an operation lives as long as what it stands in
    copy = instance(function, sizes)
    ir.InsertionPoint(module.body).insert(copy)
    base = copy.clone()
    plan = make_plan(copy, target)
    own = _carried_out(plan, function, base, target)
    kernels = tuple(_generalised(k, own, target) for k in plan.kernels)
    # no launch is shared: the blocks of each kernel are a text over sizes, of which `passes/cuda/launches.py` makes no sum
    return replace(
        plan, function=own, kernels=kernels, launches={}, approximations={}, replan=None, candidates=None, instance=module
    )


def _carried_out(plan: Plan, function: ir.Operation, base: ir.Operation, target: Target) -> ir.Operation:
    """The program with the approximations and the steps of a plan of its instance `base`."""
    own = function.clone()
    steps = {r.name: [a.step for a in plan.rewrites if a.rewrite == r.name] for r in REWRITES}
    for rewrite in REWRITES:
        if not rewrite.of_kernels and steps[rewrite.name]:
            _apply(rewrite, own, base, steps[rewrite.name])
    forms = approximate_operations(base, target.kind)
    by_name, made = _by_name(own), _by_name(base)
    if made.keys() != by_name.keys():  # a pass has decided by a size what a step is
        raise Varies(f"the size of {', '.join(sorted(made.keys() ^ by_name.keys()))}")
    for name, op in made.items():
        for there, here in zip(mlir.traverse(op), mlir.traverse(by_name[name]), strict=True):
            if there in forms:
                here.attributes[APPROXIMATE] = mlir.string(forms[there])
    if any(steps[r.name] for r in REWRITES if r.of_kernels):
        for program in (own, base):
            named = _by_name(program)
            for name in plan.inlined_before:
                named[name].attributes["tilec.inline"] = ir.UnitAttr.get()
            inline_all(program)
        for rewrite in REWRITES:
            if rewrite.of_kernels and steps[rewrite.name]:
                _apply(rewrite, own, base, steps[rewrite.name])
    return own


def _apply(rewrite: Rewrite, own: ir.Operation, base: ir.Operation, steps: Sequence[Step]) -> None:
    """Carries steps for the instance `base` out on both programs."""
    before, instances = _by_name(own), _by_name(base)
    loops = {n: (extents.loops_of(before[n]), mlir.extents_of(instances[n])) for n in {s.operation for s in steps} & before.keys()}
    rewrite.apply(own, [s.opened(*loops[s.operation]) if s.operation in loops else s for s in steps])
    rewrite.apply(base, steps)


def _by_name(function: ir.Operation) -> dict[str, ir.Operation]:
    return {mlir.name_of(op): op for op in mlir.traverse(function) if mlir.is_generic(op)}


def _generalised(kernel: KernelPlan, function: ir.Operation, target: Target) -> KernelPlan:
    """A kernel whose blocks had all of a dimension of the instance: where that varies, they have as much as it may be, or some
    times what it was, or as much as its family has code for. Its options are those that do not depend on the number of blocks."""
    found: dict[int, Extent] = {}
    ops = _by_name(function)
    for name in kernel.nodes:
        found.update(zip(kernel.dims[name], extents.loops_of(ops[name])))
    varying = {d: e for d, e in found.items() if not isinstance(e, int)}
    if kernel.options is None:
        return kernel
    options = kernel.options.at_any_size(varying.keys())
    general = replace(kernel, options=options)
    for n, (d, t) in enumerate(zip(kernel.grid, kernel.tile)):
        if d in varying and t >= kernel.extents[d]:
            most, room = int(min(NONE.bounds(varying[d])[1], MOST * t)), options.room(kernel, d)
            for size in (room,) if room else (most, *range((most - 1) // UNIT * UNIT, t, -UNIT), t):
                larger = replace(general, tile=(*general.tile[:n], size, *general.tile[n + 1 :]))
                if room or options.refuse(larger, kernel, target) is None:
                    general = larger
                    break
    return replace(general, options=options.in_whole_steps(varying.keys()))
