"""Batch invariance: the plan of a program whose elements of results keep their bits at any number of a size.

One plan serves the whole range of such a size, so that every sum has one order. It is made at one number, chosen by the cost model:
of plans made at numbers from one end of the range to the other, the one that loses the least at all of them is taken. What lets
the bits of a row depend on other rows is left out of it: instructions and fast paths whose results are computed again for a whole
tile where one number of it asks for that.
"""

from __future__ import annotations

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
class Chosen:
    """A plan for all numbers of some sizes, and the remark on its cost."""

    plan: Plan
    remark: Remark


def choose(
    ranges: Mapping[str, Varying], sizes: Mapping[str, int], plan_of: Callable[[Mapping[str, int]], Plan],
    exact_us: Callable[[Plan, Mapping[str, int]], float],
) -> Chosen:  # fmt: skip
    """The plan of a program, made at one of its `sizes` along `ranges`, that loses the least at all of these. `plan_of` makes plans
    at some sizes; `exact_us` tells the microseconds of one for exactly these. Raises Varies where no plan can be made."""
    plans, refused = list[tuple[Mapping[str, int], Plan]](), list[Varies]()
    for at in _points(ranges, sizes):
        try:
            plans.append((at, plan_of(at)))
        except Varies as error:
            refused.append(error)
    if not plans:
        raise refused[0]
    exact = [exact_us(plan, at) for at, plan in plans]
    losses = [[time / us for time, us in zip(_times(plan, [there for _, there in plans]), exact)] for _, plan in plans]
    number = min(range(len(plans)), key=lambda n: (sum(losses[n]), n))
    at, plan = plans[number]
    worst = max(range(len(plans)), key=lambda n: losses[number][n])
    named = [", ".join(f"{name} = {here[name]}" for name in ranges) for here in (at, plans[worst][0])]
    mean = sum(losses[number]) / len(plans)
    text = f"planned at {named[0]} for {', '.join(f'{v.low} to {v.high}' for v in ranges.values())}: {_loss(mean)} in the mean"
    reason = f"{text}, {_loss(losses[number][worst])} at {named[1]}, beside plans for one number each"
    return Chosen(plan, Remark("invariant", ", ".join(ranges), reason))


def _loss(factor: float) -> str:
    return f"{factor - 1:.0%} slower" if factor >= 1.005 else "no slower"


def _points(ranges: Mapping[str, Varying], sizes: Mapping[str, int]) -> Iterator[Mapping[str, int]]:
    """Sizes from one end of the ranges to the other, of several at once."""
    each = {name: numbers(v) for name, v in ranges.items()}
    most = max(map(len, each.values()))
    for n in range(most):
        yield {**sizes, **{name: found[n * len(found) // most] for name, found in each.items()}}


def _times(plan: Plan, plans: Sequence[Plan]) -> list[float]:
    """Microseconds of a plan's decisions at the sizes of `plans`, the least ones first. Where the planner cannot weigh them, since
    it takes a kernel of another family there, they take at most as long as at the next larger sizes."""
    found = [inf]
    for there in reversed(plans):
        found.append(found[-1] if (time := _time(plan, there)) is None else time)
    return found[:0:-1]


def _time(plan: Plan, there: Plan) -> float | None:
    """Microseconds of a plan's decisions where another plan of the program was made; None where they cannot be weighed there."""
    if not _same_kernels(plan, there):
        assert there.replan is not None
        try:
            there = there.replan(Fixed(tuple(k.nodes for k in plan.kernels), plan.inlined), _steps(plan))
        except CallError:
            return None
    own = {k.nodes: k for k in there.kernels}
    try:
        kernels = [_moved(k, own[k.nodes], there.target) for k in plan.kernels]
    except (KeyError, ValueError):
        return None
    return there.with_kernels(kernels).time_us


def _moved(kernel: KernelPlan, there: KernelPlan, target: Target) -> KernelPlan:
    """A kernel with the tile and the options that it has elsewhere. Raises ValueError where these cannot be."""
    if kernel.grid != there.grid or kernel.dims != there.dims or kernel.family.name != there.family.name:
        raise ValueError("another kind of kernel")
    tile = tuple(min(t, max(1, there.extents[d])) for t, d in zip(kernel.tile, kernel.grid))
    found = replace(there, tile=tile, loops=kernel.loops, options=kernel.family)
    if (why := refuse(found, there, target)) is not None:
        raise ValueError(why.why)
    return found.weighed(target)


def _same_kernels(a: Plan, b: Plan) -> bool:
    return [k.nodes for k in a.kernels] == [k.nodes for k in b.kernels] and a.inlined == b.inlined and _steps(a) == _steps(b)


def _steps(plan: Plan) -> Demands:
    """The steps of its rewrites, as a schedule would name them at other sizes, which zeros behind rows depend on."""
    return {
        r.name: [{k: v for k, v in records.items(step) if k != "extents"} for step in plan.steps(r.name)] for r in REWRITES
    }
