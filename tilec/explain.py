"""The reasons behind a plan, as text: what each kernel costs and why, and every decision with what it was
weighed against.

The cost model's terms stand beside each other, because they overlap: the largest is the time, and says what
to change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tilec.dsl.specialise import Specialised
from tilec.expectations_check import describe_expectations, minimal_traffic, traffic
from tilec.grouping import Remark
from tilec.plan import KernelPlan, Plan
from tilec.provenance import Provenance, short_place
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
    parts.append(_decisions(plan, where))
    return "\n\n".join("\n".join(part) for part in map(list, parts) if part) + "\n"


# ---- the program -----------------------------------------------------------------------------------------


def _summary(plan: Plan, specialised: Specialised, measured: Mapping[str, float]) -> Iterator[str]:
    yield f"{plan.signature} on {plan.target}"
    if plan.target.note:
        yield f"  {plan.target.note}"
    if specialised.sizes:
        yield _row("sizes", ", ".join(f"{name} = {value}" for name, value in specialised.sizes.items()))
    count = len(plan.kernels)
    yield _row("kernels", f"{count}" + (f", {', '.join(plan.inlined)} inlined" if plan.inlined else ""))
    told = measured.get(specialised.name)
    yield _row("time", f"{_time(plan.time_us)} predicted" + (f", {_time(told)} measured" if told else ""))
    moved, least = traffic(plan), minimal_traffic(specialised)
    share = f", {moved / least:.2f} of the least (inputs read once, outputs written once)" if least else ""
    yield _row("traffic", f"{amount(moved)}B{share}")
    for line in describe_expectations(specialised, plan):
        yield _row("expect", line)


# ---- a kernel --------------------------------------------------------------------------------------------


def _kernel(kernel: KernelPlan, plan: Plan, where: Provenance, measured: float | None) -> Iterator[str]:
    p, work = kernel.prediction, kernel.work
    told = f", {_time(measured)} measured ({p.time_us / measured:.0%} of it predicted)" if measured else ""
    yield f"kernel {kernel.name}: {_time(p.time_us)}{told}, bound by {_bound(kernel)}"
    yield _row("computes", ", ".join(kernel.nodes))
    yield _row("writes", ", ".join(kernel.outputs))
    yield _row("grid", _grid(kernel, where))
    if walks := _walks(kernel):
        yield _row("walks", walks)
    for key, value in kernel.options.items():
        yield _row(key.replace("_", " "), str(value))
    yield _row("bytes", f"{amount(work.dram_read)}B read, {amount(work.dram_write)}B written")
    yield _row("operations", _operations(kernel))
    yield _row("intensity", _intensity(kernel, plan.target))
    yield _row("roofline", f"{p.roofline_share:.0%} of what this intensity allows")
    if plan.target.kind == "cuda":
        yield _row("occupancy", _occupancy(kernel, plan.target))
    yield from _terms(kernel)
    if measured:
        yield _row("model", _verdict(kernel, measured))


NEAR = 0.2  # of the measured time, that a prediction may be off


def _verdict(kernel: KernelPlan, measured: float) -> str:
    """What of the prediction was wrong: the rate of its largest term, beside the rate that was reached."""
    p, work = kernel.prediction, kernel.work
    if abs(p.time_us / measured - 1) <= NEAR:
        return f"within {NEAR:.0%} of the measured time"
    if p.bound == "launch":
        return f"launching: {_time(p.time_us)} assumed, {_time(measured)} measured"
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


def _bound(kernel: KernelPlan) -> str:
    p = kernel.prediction
    return {"memory": f"memory ({p.limiter})", "launch": "launch overhead"}.get(p.bound, f"{p.bound} ({p.limiter})")


def _grid(kernel: KernelPlan, where: Provenance) -> str:
    names = where.dimensions(kernel)
    cut = [f"{names[d]} = {kernel.extents[d]} in tiles of {t}" for d, t in zip(kernel.grid, kernel.tile)]
    rest = [f"{names[d]} = {e}" for d, e in kernel.extents.items() if d not in kernel.grid]
    inside = f"; inside a block {', '.join(rest)}" if rest else ""
    return f"{kernel.blocks} block{'s' * (kernel.blocks != 1)}" + (f": {', '.join(cut)}" if cut else "") + inside


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
    side = "below it memory limits" if found < ridge else "above it arithmetic limits"
    return f"{found:.2f} {unit} operations a byte, the ridge is at {ridge:.1f}: {side}"


def _occupancy(kernel: KernelPlan, target: Target) -> str:
    p = kernel.prediction
    blocks = f"{p.occupancy.blocks} block{'s' * (p.occupancy.blocks != 1)} of {kernel.work.threads} threads an SM"
    blocks += f", limited by {p.occupancy.limiter}"
    waves = f"{p.waves:.2f} waves on {target.units} SMs, {p.wave_efficiency:.0%} of their time used"
    return f"{p.occupancy.fraction:.0%}: {blocks}; {waves}"


def _terms(kernel: KernelPlan) -> Iterator[str]:
    terms = {name: t for name, t in kernel.prediction.terms.items() if t > 0}
    longest = max(terms.values(), default=1.0)
    label = "time"
    for name, t in sorted(terms.items(), key=lambda item: -item[1]):
        bar = "#" * max(1, round(BAR * t / longest))
        yield _row(label, f"{name:<8}{_time(t):>10}  {bar}")
        label = ""


# ---- decisions -------------------------------------------------------------------------------------------


def _decisions(plan: Plan, where: Provenance) -> Iterator[str]:
    """Every remark under its source line, in the program's order of first mention."""
    if not plan.remarks:
        return
    yield "decisions"
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
        for name, time_us in sorted(remark.alternatives, key=lambda a: a[1]):
            yield f"             {name}: {_time(time_us)}"


# ---- numbers ---------------------------------------------------------------------------------------------


def _row(label: str, text: str) -> str:
    return f"  {label:<{LABEL}}{text}".rstrip()


def _time(us: float) -> str:
    return f"{us / 1e3:.2f} ms" if us >= 1e4 else f"{us:.1f} us" if us >= 0.1 else f"{us:.3f} us"


def amount(n: float) -> str:
    """1.05 M: decimal prefixes."""
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if n >= scale:
            return f"{n / scale:.2f} {prefix}"
    return f"{n:.0f} "
