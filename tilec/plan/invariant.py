"""Batch invariance: the plan of a program whose elements of results keep their bits at any number of a size.

The range of such a size has several classes, each with tiles of its own, and one order of all sums: the same kernels, steps of
rewrites, and options that sums depend on (`Family.order`). Of the orders of plans from one end of the range to the other, the one
that loses the least at all of these is taken. So each class finds the same order, and then its own best tiles. What lets a row
depend on other rows is left out: instructions and fast paths whose results are computed again for a whole tile where one number of
it asks for that.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf

from tilec.core import extents, mlir, records
from tilec.core.diagnostics import CallError, InternalError
from tilec.core.mlir import ir
from tilec.core.target import Target
from tilec.core.varying import Varies, Varying, names_in
from tilec.kernels import KernelPlan
from tilec.plan.check import refuse
from tilec.plan.given_groups import Fixed
from tilec.plan.groups import Remark
from tilec.plan.model import Plan
from tilec.plan.rewrites import REWRITES
from tilec.plan.search import Demands

WEIGHED = 24  # candidates of a kernel
KNOWN: OrderedDict[tuple[object, ...], Order] = OrderedDict()
"""The latest orders: each class of a program looks for the same one."""
MOST_KNOWN = 16
STEP = 4  # factor from one number at which a plan is made to the next


def sizes_of(function: ir.Operation) -> dict[str, Varying]:
    """The sizes of a program, or of a kernel, at whose numbers elements keep their bits."""
    return {name: v for name, v in extents.sizes_of(function).items() if v.invariant}


def refuse_dependent(function: ir.Operation) -> None:
    """Raises CallError for a program, as it was built, that has elements depend on an invariant size: it reduces or scans along a
    dimension of that size, or computes with its number."""
    sizes = extents.sizes_of(function)
    wanted = {name for name, v in sizes.items() if v.invariant}

    def named(extent: extents.Extent) -> set[str]:
        return wanted & {*names_in(extents.text_of(extent, sizes))}

    for op in (o for o in mlir.traverse(function) if wanted and mlir.is_generic(o)):
        scan = mlir.get_integer(op, "tilec.scan")
        for d, (kind, extent) in enumerate(zip(mlir.iterators_of(op), extents.loops_of(op))):
            if (kind == "reduction" or d == scan) and (names := named(extent)):
                does = "scans" if d == scan else "reduces"
                raise _refused(op, names, f"{does} along a dimension of it", "a sum over `{0}` has other terms at each number")
        for number in map(_extent, mlir.captured(op)):
            if number is not None and (names := named(number)):
                raise _refused(op, names, "computes with its number", "elements then depend on how large `{0}` is")


def _extent(value: ir.Value) -> extents.Extent | None:
    with suppress(Varies, InternalError):
        return extents.value_of(value)
    return None


def _refused(op: ir.Operation, names: set[str], what: str, why: str) -> CallError:
    name, line = min(names), mlir.source_line(op)
    where = f" (line {line[1]})" if line else ""
    hint = f"{why.format(name)}: leave `{name}` out of `invariant`"
    return CallError(f"`{name}` cannot be invariant: `{mlir.name_of(op)}`{where} {what}", hint=hint)


def by_row(target: Target) -> Target:
    """The target without instructions that a CPU's kernels replace for a whole tile where one of its numbers is subnormal, or has
    infinite parts (`passes/cpu/matrix.py`): sums of other rows of the tile would be in another order then."""
    return replace(target, tensor={}) if target.kind == "cpu" else target


def numbers(v: Varying) -> list[int]:
    """Numbers of a range from its least to its greatest one: each some times the one before."""
    found, n = [v.low], max(v.low, v.multiple)
    while n < v.high:
        found.append(n)
        n = (STEP * (n + 1) - 1) // v.multiple * v.multiple
    return sorted({*found, v.high} - ({0} if v.high else set()))


@dataclass(frozen=True)
class Order:
    """What the order of all sums of a program follows from: its kernels, as they are at some `sizes`, and the steps of rewrites.
    `cost`: in words, what it takes to have it at all numbers."""

    kernels: tuple[KernelPlan, ...]
    inlined: tuple[str, ...]
    steps: Demands
    sizes: Mapping[str, int]
    cost: str = ""

    def same_as(self, other: Order) -> bool:
        """Whether both are one order, wherever they were found."""
        nodes = ([k.nodes for k in o.kernels] for o in (self, other))
        same = next(nodes) == next(nodes) and all(map(_same_sums, self.kernels, other.kernels))
        return same and (self.inlined, self.steps) == (other.inlined, other.steps)

    def kept(self, plan: Plan) -> Plan | None:
        """A plan for some sizes with the fastest kernels that keep this order; None where it has none."""
        if (found := self._grouped(plan)) is None:
            return None
        assert found.candidates is not None
        others = [k.name for k, wanted in zip(found.kernels, self.kernels) if not _same_sums(k, wanted)]
        ranked, kernels = found.candidates(others, WEIGHED) if others else {}, list[KernelPlan]()
        for kernel, wanted in zip(found.kernels, self.kernels):
            able = list(_in_order([kernel, *ranked[kernel.name]], wanted, plan.target)) if kernel.name in ranked else [kernel]
            if not able:
                return None
            kernels.append(min(able, key=lambda k: k.prediction.time_us))
        return found.with_kernels(kernels)

    def _grouped(self, plan: Plan) -> Plan | None:
        """The plan of the same program with these kernels and steps; None where it cannot have them."""
        groups = tuple(k.nodes for k in self.kernels)
        if groups != tuple(k.nodes for k in plan.kernels) or plan.inlined != self.inlined or steps_of(plan) != self.steps:
            assert plan.replan is not None
            try:
                plan = plan.replan(Fixed(groups, self.inlined), self.steps)
            except CallError:
                return None
        same = [(k.nodes, k.dims) for k in plan.kernels] == [(k.nodes, k.dims) for k in self.kernels]
        return plan if same else None


def _same_sums(a: KernelPlan, b: KernelPlan) -> bool:
    """Whether two kernels of the same operations, at other sizes, have one order of sums."""
    loops = not a.family.orders_by_loops or a.loops == b.loops
    return loops and (a.grid, a.dims, a.family.order()) == (b.grid, b.dims, b.family.order())


def _in_order(candidates: Sequence[KernelPlan], wanted: KernelPlan, target: Target) -> Iterator[KernelPlan]:
    """Those of some kernels that keep the order of sums of one that is `wanted` elsewhere, as it says what orders them."""
    own, *_ = candidates
    for kernel in candidates:
        if kernel.family.name != wanted.family.name or kernel.grid != wanted.grid:
            continue
        options = kernel.family.ordered_as(wanted.family)
        if options.order() != wanted.family.order():
            continue
        loops = wanted.loops if options.orders_by_loops else kernel.loops
        there = tuple(min(t, max(1, kernel.extents[d])) for t, d in zip(wanted.tile, wanted.grid))
        for tile in dict.fromkeys((kernel.tile, there)):
            found = replace(kernel, tile=tile, loops=loops, options=options)
            if found == kernel:
                yield kernel
            elif refuse(found, own, target) is None:
                with suppress(ValueError):  # does not fit
                    yield found.weighed(target)


def order_of(
    function: ir.Operation, target: Target, sizes: Mapping[str, int], demands: Demands | None,
    plan_of: Callable[[Mapping[str, int]], Plan], exact_us: Callable[[Plan, Mapping[str, int]], float],
) -> Order:  # fmt: skip
    """`_order_of` of the invariant sizes of a program, or what is known of an equal one."""
    ranges = sizes_of(function)
    others = tuple((name, n) for name, n in sizes.items() if name not in ranges)
    key = function.get_asm(), repr(target), repr(demands), others
    if (found := KNOWN.get(key)) is None:
        found = KNOWN[key] = _order_of(ranges, sizes, plan_of, exact_us)
    while len(KNOWN) > MOST_KNOWN:
        KNOWN.popitem(last=False)
    return found


def _order_of(
    ranges: Mapping[str, Varying], sizes: Mapping[str, int], plan_of: Callable[[Mapping[str, int]], Plan],
    exact_us: Callable[[Plan, Mapping[str, int]], float],
) -> Order:  # fmt: skip
    """The order of sums that loses the least at all numbers of `ranges`, of those that plans at some of them have. `plan_of` makes
    the plan of a program at some sizes; `exact_us` tells how long one takes that keeps no order, of a plan that `plan_of` made."""
    points = list(_points(ranges, sizes))
    plans = [plan_of(at) for at in points]
    exact = [exact_us(plan, at) for at, plan in zip(points, plans)]
    orders = list[Order]()
    for plan, at in zip(plans, points):
        order = Order(plan.kernels, plan.inlined, steps_of(plan), at)
        if not any(order.same_as(other) for other in orders):
            orders.append(order)
    losses = [[time / us for time, us in zip(_times(order, plans), exact)] for order in orders]
    best = min(range(len(orders)), key=lambda n: sum(losses[n]))
    worst = max(range(len(points)), key=lambda n: losses[best][n])
    where = ", ".join(f"{name} = {points[worst][name]}" for name in ranges)
    numbers = ", ".join(f"{name} = {v}" for name, v in ranges.items())
    mean = sum(losses[best]) / len(points)
    cost = f"sums in one order for {numbers}: {_loss(mean)} in the mean than without, {_loss(losses[best][worst])} at {where}"
    return replace(orders[best], kernels=tuple(map(_freed, orders[best].kernels)), cost=cost)


def _freed(kernel: KernelPlan) -> KernelPlan:
    """A kernel without the functions that hold the IR that it was planned of."""
    found = replace(kernel)
    for name in ("weigh", "sram"):
        object.__setattr__(found, name, None)
    return found


def remark(order: Order, ranges: Mapping[str, Varying]) -> Remark:
    return Remark("invariant", ", ".join(ranges), order.cost)


def _times(order: Order, plans: Sequence[Plan]) -> list[float]:
    """Microseconds with an order of sums at the sizes of `plans`, the least ones first. Where no kernels have it, being of another
    family, those of the next larger sizes take at most as long as there."""
    found = [inf]
    for plan in reversed(plans):
        found.append(found[-1] if (kept := order.kept(plan)) is None else kept.time_us)
    return found[:0:-1]


def _loss(factor: float) -> str:
    return f"{factor - 1:.0%} slower" if factor >= 1.005 else "no slower"


def _points(ranges: Mapping[str, Varying], sizes: Mapping[str, int]) -> Iterator[Mapping[str, int]]:
    """Sizes from one end of the ranges to the other, of several at once."""
    each = {name: numbers(v) for name, v in ranges.items()}
    most = max(map(len, each.values()))
    for n in range(most):
        yield {**sizes, **{name: found[n * len(found) // most] for name, found in each.items()}}


def steps_of(plan: Plan) -> Demands:
    """The steps of its rewrites, as a schedule would name them at other sizes, which zeros behind rows depend on."""
    return {
        r.name: [{k: v for k, v in records.items(step) if k != "extents"} for step in plan.steps(r.name)] for r in REWRITES
    }
