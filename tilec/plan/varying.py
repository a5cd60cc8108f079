"""The plan of a program whose sizes vary: that of the program at some sizes, carried out on the program with its `?`.

The planner weighs numbers: it is given an instance, a copy of the program at sizes that stand for all of a class
(`tilec/driver/classes.py`). Its decisions name operations, kernels and steps of rewrites, and hold for the program itself. Whether
they do for every size of the class is not the planner's to say: passes read extents from the program, prove what they need of them,
and raise `Varies` where that holds at some sizes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import isqrt, prod

from tilec.analysis.precision import approximate_operations
from tilec.core import extents, mlir
from tilec.core.diagnostics import CallError
from tilec.core.extents import Extent, instance
from tilec.core.mlir import ir
from tilec.core.target import Target
from tilec.core.varying import Varies
from tilec.index.facts import NONE
from tilec.kernels import ContractionChain, Family, KernelPlan, Panels
from tilec.kernels.threaded import Threaded
from tilec.passes.tensor.inline import inline_all
from tilec.plan import invariant
from tilec.plan.given_groups import Fixed
from tilec.plan.model import Plan
from tilec.plan.planner import make_plan, ranked, signature
from tilec.plan.rewrites import REWRITES, Rewrite
from tilec.plan.search import Demands, StepRefused
from tilec.plan.state import APPROXIMATE
from tilec.plan.steps import Step

WEIGHED = 12  # candidates of a kernel: one of the others is not the best at several sizes
STEADY = (ContractionChain, Panels)  # families whose tiles are weighed so
MOST = 4  # times a block of the instance
FIXED: Demands = {"parts": ()}  # kernels store parts of concatenations at offsets that are numbers
UNBOUNDED = 1 << 62  # of an extent whose greatest number is not known
UNIT = 16  # of which blocks that may not be so large have a multiple


def plan_at(function: ir.Operation, target: Target, sizes: Mapping[str, int], demands: Demands | None = None) -> Plan:
    """The plan of a program at some sizes; its `function` is the program, after the steps of rewrites, which are those of `demands`
    where it is given. Where sizes are invariant, its sums have the order that is theirs at all numbers (`plan/invariant.py`)."""
    if not (ranges := invariant.sizes_of(function)):
        try:
            plan = _class_plan(function, target, sizes, demands=demands)
        except _Coincidence:
            sizes = _others(function, sizes)
            plan = _class_plan(function, target, sizes, demands=demands)
        return replace(plan, replan=partial(_class_plan, function, target, sizes))
    by_row, modules = invariant.by_row(target), list[ir.Module]()

    def made(at: Mapping[str, int], for_target: Target = by_row) -> Plan:
        module, copy = _instance(function, at)
        modules.append(module)
        return make_plan(copy, for_target, demands={**FIXED, **(demands or {})})

    order = invariant.order_of(
        function, target, sizes, demands, made, lambda plan, at: plan.time_us if by_row == target else made(at, target).time_us
    )
    remark = invariant.remark(order, ranges)
    for at in (sizes, order.sizes):  # those of the order itself keep it
        try:
            plan = _class_plan(function, by_row, at, demands=demands, choose=order.kept)
        except _NotKept:
            continue
        return replace(plan, remarks=(remark, *plan.remarks), replan=partial(_class_plan, function, by_row, at))
    raise AssertionError("a plan keeps its own order")


class _Coincidence(Varies):
    """Dimensions of a kernel that have one loop, since they are of one number at the instance, are of several at other sizes."""


def _others(function: ir.Operation, sizes: Mapping[str, int]) -> dict[str, int]:
    """Numbers near some sizes."""
    ranges = extents.sizes_of(function)
    steps = {name: 2 * ranges[name].multiple for name in sizes}
    near = {name: (n - steps[name], n + steps[name]) for name, n in sizes.items()}
    return {name: next((m for m in near[name] if ranges[name].has(m)), n) for name, n in sizes.items()}


class _NotKept(Exception):
    """No kernels keep an order of sums at some sizes."""


def _class_plan(
    function: ir.Operation, target: Target, sizes: Mapping[str, int], fixed: Fixed | None = None, demands: Demands | None = None,
    choose: Callable[[Plan], Plan | None] | None = None,
) -> Plan:  # fmt: skip
    """What is planned at some sizes. Its `replan` is that of the program at these. `fixed`, `demands`: as of `make_plan`. `choose`
    makes the class's plan of what is planned. Raises CallError for a step that sizes which vary rule out."""
    for name in FIXED:
        if demands and demands.get(name):
            raise StepRefused(name, f"the rewrite `{name}` needs a number for each size", f"`{name} = []`, or numbers for sizes")
    module, copy = _instance(function, sizes)
    base = copy.clone()
    plan = make_plan(copy, target, fixed, {**FIXED, **(demands or {})})
    if choose is not None:
        if (chosen := choose(plan)) is None:
            raise _NotKept
        plan = chosen
    elif fixed is None and demands is None:
        plan = _steady(plan, function, target, sizes)
    own = _carried_out(plan, function, base, target)
    general = partial(_generalised, function=own, target=target)

    def candidates(names: Container[str] | None = None, most: int | None = None) -> dict[str, list[KernelPlan]]:
        assert plan.candidates is not None
        return {name: [*map(general, found)] for name, found in plan.candidates(names, most).items()}

    return replace(
        plan, function=own, kernels=tuple(map(general, plan.kernels)), approximations={}, signature=signature(function),
        varies=extents.sizes_of(function), sizes=dict(sizes), candidates=candidates, general=general, instance=module,
    )  # fmt: skip


def _instance(function: ir.Operation, sizes: Mapping[str, int]) -> tuple[ir.Module, ir.Operation]:
    """A program at some sizes, and the module that it lives as long as."""
    module, copy = ir.Module.create(), instance(function, sizes)
    ir.InsertionPoint(module.body).insert(copy)
    return module, copy


def steadied(plan: Plan) -> list[str]:
    """The names of kernels whose tiles are chosen over several sizes, which takes a plan for each."""
    return [k.name for k in plan.kernels if isinstance(k.options, STEADY)]


def _steady(plan: Plan, function: ir.Operation, target: Target, sizes: Mapping[str, int]) -> Plan:
    """The plan with those tiles of contraction chains and of products from panels that are the best over several sizes. At one
    size, what fills the last tile or the last wave of blocks is chance: the tile that is the best there may lose a fifth at most
    others. On a CPU, whose few cores have a block each, it may lose half."""
    if not (names := steadied(plan)):
        return plan
    assert plan.candidates is not None
    tables, groups = [plan.candidates(names, WEIGHED)], Fixed(tuple(k.nodes for k in plan.kernels), plan.inlined)
    for others in _around(function, sizes):
        module, copy = _instance(function, others)
        with suppress(CallError):  # the same kernels cannot be there
            there = ranked(copy, target, groups, {**FIXED, **invariant.steps_of(plan)}, names, WEIGHED)
            tables.append({name: found for name, found in there.items() if isinstance(found[0].options, STEADY)})
        assert module is not None
    kernels = [_best(k, [t[k.name] for t in tables if k.name in t]) if k.name in names else k for k in plan.kernels]
    return plan.with_kernels(kernels)


def _around(function: ir.Operation, sizes: Mapping[str, int]) -> list[dict[str, int]]:
    """Sizes halfway from the given ones to the least and to the greatest, as factors go."""
    ranges = extents.sizes_of(function)
    ends = ({name: end(ranges[name]) for name in sizes} for end in (lambda v: v.low, lambda v: v.high))
    found = [{name: (isqrt(n * at[name]) // (m := ranges[name].multiple) | 1) * m for name, n in sizes.items()} for at in ends]
    return [at for at in found if at != dict(sizes) and all(ranges[name].has(n) for name, n in at.items())]


def _best(own: KernelPlan, tables: list[list[KernelPlan]]) -> KernelPlan:
    """Of a kernel's candidates at several sizes, in the first table, the one whose time is the least, as factors go."""
    times = [{_weighed(k): k.prediction.time_us for k in table} for table in tables]
    able = [k for k in tables[0] if all(_weighed(k) in t for t in times)]
    best = min(able, key=lambda k: prod(t[_weighed(k)] for t in times), default=own)
    return own if _weighed(best) == _weighed(own) else best


def _weighed(kernel: KernelPlan) -> tuple[object, ...]:
    """The options that a prediction depends on; of panels also the tile, which is no option of theirs, None where it is all of a
    dimension."""
    assert kernel.options is not None
    found = tuple((f.name, value) for f, value in kernel.options.fields() if f.metadata["modelled"])
    if not isinstance(kernel.options, Panels):
        return found
    return *found, *(t if t < kernel.extents[d] else None for d, t in zip(kernel.grid, kernel.tile))


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


def _in_fitting_vectors(options: Family, grid: Collection[int], varying: Mapping[int, Extent]) -> Family:
    """Options whose vectors divide dimensions at all sizes, each thread having as many elements as before. At the instance longer
    ones may divide an extent by chance: 8 divides M + 1 where M is 7."""
    if not isinstance(options, Threaded):
        return options
    vectors, steps, longest = [*options.vectors], [*options.steps], max(options.vectors, default=1)
    if not all(extents.divides(longest, varying[d]) for d in options.transposed_dims if d in varying):
        raise Varies(f"whether vectors of {longest} elements divide a dimension that is transposed")
    for d, n in enumerate(vectors):
        if d in varying and not (options.is_unaligned and d not in grid):
            vectors[d] = next(m for m in range(n, 0, -1) if n % m == 0 and extents.divides(m, varying[d]))
            steps[d] *= n // vectors[d]
    return replace(options, vectors=tuple(vectors), steps=tuple(steps))


def _generalised(kernel: KernelPlan, function: ir.Operation, target: Target) -> KernelPlan:
    """A kernel whose blocks had all of a dimension of the instance: where that varies, they have as much as it may be, or some
    times what it was, or as much as its family has code for. Its options are those that do not depend on the number of blocks."""
    found: dict[int, Extent] = {}
    ops = _by_name(function)
    for name in kernel.nodes:
        for d, extent in zip(kernel.dims[name], extents.loops_of(ops[name])):
            if found.setdefault(d, extent) != extent:  # equal at the instance by chance
                raise _Coincidence(f"one number for the extents {found[d]} and {extent}")
    varying = {d: e for d, e in found.items() if not isinstance(e, int)}
    if kernel.options is None:
        return kernel
    options = kernel.options.at_any_size(varying.keys())
    options = options.by_row() if invariant.sizes_of(function) else options
    options = _in_fitting_vectors(options, kernel.grid, varying)
    longest = {d: int(min(NONE.bounds(e)[1], UNBOUNDED)) for d, e in varying.items()}
    general = replace(kernel, options=options, longest=longest)
    for n, (d, t) in enumerate(zip(kernel.grid, kernel.tile)):
        if d in varying and t >= kernel.extents[d]:
            most, room = min(longest[d], MOST * t), options.room(kernel, d)
            for size in (room,) if room else (most, *range((most - 1) // UNIT * UNIT, t, -UNIT), t):
                larger = replace(general, tile=(*general.tile[:n], size, *general.tile[n + 1 :]))
                if room or options.refuse(larger, kernel, target) is None:
                    general = larger
                    break
    return replace(general, options=options.in_whole_steps(varying.keys()))
