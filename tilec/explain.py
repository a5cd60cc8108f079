"""The reasons behind a plan, as text: what each kernel costs and why, and every decision with what it was
weighed against.

The cost model's terms stand beside each other, because they overlap: the largest is the time, and says what
to change.
"""

# mypy: no-strict-optional
# mypy: disable-error-code="arg-type, operator"

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tilec.copies import Copy
from tilec.cost import MEMORY, Prediction
from tilec.dsl.specialise import Specialised
from tilec.expectations_check import describe_expectations, minimal_traffic, traffic
from tilec.grouping import Remark
from tilec.plan_model import KernelPlan, Plan
from tilec.provenance import Provenance, short_place
from tilec.quantities import amount, duration
from tilec.target import Target

BAR = 24  # characters of the longest bar
LABEL = 15


def explain(plan: Plan, specialised: Specialised, measured: Mapping[str, float] | None = None) -> str:
    """The whole report. `measured` are microseconds by kernel name, or under the op's name for the whole
    program.
    """
    where = Provenance(specialised)
    parts = [_summary(plan, specialised, measured or {})]
    parts += [_kernel(kernel, plan, where, (measured or {}).get(kernel.name)) for kernel in plan.kernels]
    parts += [_copy(copy, (measured or {}).get("copies") if len(plan.copies) == 1 else None) for copy in plan.copies]
    parts.append(_decisions(plan, where))
    return "\n\n".join("\n".join(part) for part in map(list, parts) if part) + "\n"


# ---- the program -----------------------------------------------------------------------------------------


def _summary(plan: Plan, specialised: Specialised, measured: Mapping[str, float]) -> Iterator[str]:
    yield f"{plan.signature} on {plan.target}"
    if plan.target.note:
        yield f"  {plan.target.note}"
    if told := str(plan.target.fitted):
        yield _row("fitted", told)
    if specialised.sizes:
        yield _row("sizes", ", ".join(f"{name} = {value}" for name, value in specialised.sizes.items()))
    kernels = plan.counted.removesuffix(" kernels").removesuffix(" kernel")
    yield _row("kernels", kernels + (f", {', '.join(plan.inlined)} inlined" if plan.inlined else ""))
    told = measured.get(specialised.name)
    yield _row("time", f"{duration(plan.time_us)} predicted" + (f", {duration(told)} measured" if told else ""))
    moved, least = traffic(plan), minimal_traffic(specialised)
    share = f", {moved / least:.2f} of the least (inputs read once, outputs written once)" if least else ""
    yield _row("traffic", f"{amount(moved)}B{share}")
    for line in describe_expectations(specialised, plan):
        yield _row("expect", line)


# ---- a kernel --------------------------------------------------------------------------------------------


def _kernel(kernel: KernelPlan, plan: Plan, where: Provenance, measured: float | None) -> Iterator[str]:
    p, work = kernel.prediction, kernel.work
    told = _beside(p.time_us, measured)
    yield f"kernel {kernel.name}: {duration(p.time_us)}{told}, bound by {_bound(p)}"
    yield _row("computes", ", ".join(kernel.nodes))
    yield _row("writes", ", ".join(kernel.outputs))
    yield _row("grid", _grid(kernel, where))
    if walks := _walks(kernel):
        yield _row("walks", walks)
    yield from _options(kernel, where)
    yield _row("bytes", f"{amount(work.dram_read)}B read, {amount(work.dram_write)}B written")
    yield _row("operations", _operations(kernel))
    yield _row("intensity", _intensity(kernel, plan.target))
    yield _row("roofline", f"{p.roofline_share:.0%} of what this intensity allows")
    if plan.target.kind == "cuda":
        yield _row("occupancy", _occupancy(kernel, plan.target))
    yield from _terms(p)
    if measured:
        yield _row("model", _verdict(kernel, measured))


def _copy(copy: Copy, measured: float | None) -> Iterator[str]:
    """No kernel: the driver, or the C library, copies."""
    p = copy.prediction
    yield f"copy of {copy.source} into {copy.name}: {duration(p.time_us)}{_beside(p.time_us, measured)}, bound by {_bound(p)}"
    yield _row("bytes", f"{amount(copy.work.dram_read)}B read, {amount(copy.work.dram_write)}B written")
    yield from _terms(p)


def _beside(predicted: float, measured: float | None) -> str:
    return f", {duration(measured)} measured (predicted: {predicted / measured:.0%} of that)" if measured else ""


NEAR = 0.2  # of the measured time, that a prediction may be off


def _verdict(kernel: KernelPlan, measured: float) -> str:
    """What of the prediction was wrong: the rate of its largest term, beside the rate that was reached."""
    p, work = kernel.prediction, kernel.work
    if abs(p.time_us / measured - 1) <= NEAR:
        return f"within {NEAR:.0%} of the measured time"
    if p.bound == "launch":
        return f"launching: {duration(p.time_us)} assumed, {duration(measured)} measured"
    name, term = p.limiter, p.terms[p.limiter]
    taken = max(1e-3, measured - (p.time_us - term))  # the rest of the prediction taken as right
    amounts = {
        "shared": work.shared_bytes,
        "l1": work.shared_bytes,
        "l2": max(work.l2_bytes, work.dram_read + work.dram_write),
    }
    if name in ("dram", "l2", "l3", "l1", "shared"):
        moved = amounts.get(name, work.dram_read + work.dram_write)
        return f"{name}: {amount(1e6 * moved / term)}B/s assumed, {amount(1e6 * moved / taken)}B/s reached"
    done = sum(n for unit, n in work.flops.items() if unit.partition(".")[0] == name)
    return f"{name}: {amount(1e6 * done / term)}op/s assumed, {amount(1e6 * done / taken)}op/s reached"


def _bound(p: Prediction) -> str:
    return {"memory": f"memory ({p.limiter})", "launch": "launch overhead"}.get(p.bound, f"{p.bound} ({p.limiter})")


def _grid(kernel: KernelPlan, where: Provenance) -> str:
    names = where.dimensions(kernel)
    cut = [f"{names[d]} = {kernel.extents[d]} in tiles of {t}" for d, t in zip(kernel.grid, kernel.tile)]
    rest = [f"{names[d]} = {e}" for d, e in kernel.extents.items() if d not in kernel.grid]
    inside = f"; inside a block {', '.join(rest)}" if rest else ""
    return f"{kernel.blocks} block{'s' * (kernel.blocks != 1)}" + (f": {', '.join(cut)}" if cut else "") + inside


def _options(kernel: KernelPlan, where: Provenance) -> Iterator[str]:
    """How the kernel is built (docs/schedules.md has the meaning of every option), but for options that are off."""
    names = where.dimensions(kernel)
    yield _row("built by", kernel.options.name.replace("_", " "))
    if kernel.options.block_threads:
        yield _row("threads", str(kernel.options.block_threads))
    for field, value in kernel.options.fields():
        if field.metadata["by_dim"]:
            shown = ", ".join(f"{names.get(d, str(d))} {n}" for d, n in enumerate(value) if n > 1)
        elif field.metadata["dims"]:
            shown = ", ".join(names.get(d, str(d)) for d in (value if isinstance(value, tuple) else (value,)))
        elif isinstance(value, tuple):
            shown = " x ".join(map(str, value))
        else:
            shown = "yes" if value is True else str(value or "")
        if shown:
            yield _row(field.name.replace("_", " "), shown)


def _walks(kernel: KernelPlan) -> str:
    """Operations that share a loop nest, where there are several nests."""
    numbers = sorted(set(kernel.sweeps.values()))
    groups = [", ".join(n for n in kernel.nodes if kernel.sweeps[n] == number) for number in numbers]
    return " | ".join(groups) if len(groups) > 1 else ""


def _operations(kernel: KernelPlan) -> str:
    parts = [f"{amount(n)}op {unit}" for unit, n in kernel.work.flops.items() if n]
    return ", ".join(parts) or "none"


def _intensity(kernel: KernelPlan, target: Target) -> str:
    """Operations of the busiest unit a byte, against where that unit and memory take the same time."""
    moved, flops = kernel.work.dram_read + kernel.work.dram_write, kernel.work.flops
    if not moved:
        return "no memory traffic"
    unit = max(flops, key=lambda u: flops[u] / target.peak(u), default=None)
    if unit is None or not flops[unit]:
        return "no operations"
    found, ridge = flops[unit] / moved, kernel.prediction.ridge
    return f"{found:.2f} {unit} operations a byte, the ridge is at {ridge:.1f}: {_side(kernel, found < ridge)}"


def _side(kernel: KernelPlan, below: bool) -> str:
    """What the ridge says, which knows the main memory and one unit, beside what limits the kernel by all its terms."""
    p = kernel.prediction
    if p.bound == "launch":
        return f"{'below' if below else 'above'} it, but launching takes longer than either"
    if p.bound == "memory" and (below or p.limiter == "dram"):
        return "below it memory limits" if below else "above it, but dram is not used at its full rate"
    if p.bound == "compute" and not below:
        return "above it arithmetic limits"
    if below:
        faster = "" if "dram" in p.terms else f", as the data stay in {_nearest(p)}"
        return f"below it, but not memory: {p.limiter} takes longer{faster}"
    return f"above it, but not arithmetic: {p.limiter} takes longer"


def _nearest(p: Prediction) -> str:
    return next((name for name in reversed(MEMORY) if name in p.terms), "a cache")


def _occupancy(kernel: KernelPlan, target: Target) -> str:
    p = kernel.prediction
    blocks = f"{p.occupancy.blocks} block{'s' * (p.occupancy.blocks != 1)} of {kernel.work.threads} threads an SM"
    blocks += f", limited by {p.occupancy.limiter}"
    waves = f"{p.waves:.2f} waves on {target.units} SMs, {p.wave_efficiency:.0%} of their time used"
    return f"{p.occupancy.fraction:.0%}: {blocks}; {waves}"


def _terms(p: Prediction) -> Iterator[str]:
    terms = {name: t for name, t in p.terms.items() if t > 0}
    longest = max(terms.values(), default=1.0)
    label = "time"
    for name, t in sorted(terms.items(), key=lambda item: -item[1]):
        bar = "#" * max(1, round(BAR * t / longest))
        yield _row(label, f"{name:<8}{duration(t):>10}  {bar}")
        label = ""


# ---- decisions -------------------------------------------------------------------------------------------


def _decisions(plan: Plan, where: Provenance) -> Iterator[str]:
    """Every remark under its source line, in the program's order of first mention."""
    if not plan.remarks:
        return
    yield "decisions"
    if any(r.verb in ("fused", "refused") and r.alternatives and not r.weighed for r in plan.remarks):
        yield "  (fused, refused: times are estimates from before tiles are chosen; a kernel's own time above is from after)"
    places: dict[tuple[str, int] | None, list[Remark]] = {}
    for remark in plan.remarks:
        places.setdefault(remark.line, []).append(remark)
    for place, remarks in sorted(places.items(), key=lambda item: _order(item[0], plan)):
        yield f"  {short_place(place)}  {where.line(place)}" if place else "  the whole program"
        for remark in remarks:
            yield f"    {remark.verb:<8} {remark.subject}: {remark.reason}"
            yield from _alternatives(remark)


def _order(place: tuple[str, int] | None, plan: Plan) -> tuple:
    files = list(dict.fromkeys(r.line[0] for r in plan.remarks if r.line))
    return (1, 0, 0) if place is None else (0, files.index(place[0]), place[1])


def _alternatives(remark: Remark) -> Iterable[str]:
    """What was weighed, unless the reason says it: two alternatives always stand in it."""
    if len(remark.alternatives) > 2:
        if remark.weighed:
            yield f"             ({remark.weighed})"
        for name, time_us in sorted(remark.alternatives, key=lambda a: a[1]):
            yield f"             {name}: {duration(time_us)}"


def _row(label: str, text: str) -> str:
    return f"  {label:<{LABEL}}{text}".rstrip()
