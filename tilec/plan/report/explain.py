"""The whole report of a plan: the predicted time of each kernel with its causes, and each decision with its alternatives.

`tilec explain --full` prints it; `tilec/plan/report/short.py` makes the table that `tilec explain` prints. The terms of the cost
model (DRAM, L2, arithmetic, ...) overlap in time: the largest is the kernel's time, and says what to change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial

from tilec.analysis.copied_results import Copy
from tilec.core.diagnostics import CallError
from tilec.core.quantities import amount, count, duration
from tilec.core.target import Target
from tilec.cost.blame import ARITHMETIC, Cause, causes
from tilec.cost.model import MEMORY, Prediction, Roofline, home_level, occupancy, roofline, round_up
from tilec.dsl.specialise import Specialised
from tilec.kernels import KernelPlan
from tilec.plan.groups import Remark
from tilec.plan.model import Plan
from tilec.plan.report.expectations import expectations, minimal_traffic, traffic
from tilec.plan.report.provenance import Provenance, short_location
from tilec.plan.rewrites import REWRITES
from tilec.process.printable import printable

BAR = 24  # characters of the longest bar
LABEL = 18  # characters of a line's label
VERB = 12  # characters of a decision's verb
RESOURCES = {
    "dram": "DRAM", "l3": "L3 cache", "l2": "L2 cache", "l1": "L1 cache", "shared": "shared memory", "fma": "float arithmetic",
    "tensor": "matrix units", "special": "special functions", "int": "integer arithmetic", "loops": "innermost loops",
    "launch": "launch", "blocks": "block starts", "waits": "pipeline waits",
}  # fmt: skip
"""The names of the cost model's terms in the report."""


@dataclass(frozen=True)
class Observed:
    """What is known of compiled kernels, by their names. `measured`: microseconds, and those of the whole program under the op's
    name. `counted`: operations by unit, where the code tells. `registers`: those of a thread."""

    measured: Mapping[str, float] = field(default_factory=dict)
    counted: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    registers: Mapping[str, int] = field(default_factory=dict)


UNOBSERVED = Observed()
"""Of kernels that were planned alone."""


def explain(plan: Plan, specialised: Specialised, observed: Observed = UNOBSERVED) -> str:
    """The whole report."""
    where = Provenance(specialised, plan)
    parts = [part for _, part in _parts_of(plan, where, observed)]
    return _text([_summary(plan, specialised, observed.measured), *parts, _rewrites(plan, where), _decisions(plan.remarks, where)])


def explain_kernel(name: str, plan: Plan, specialised: Specialised, observed: Observed = UNOBSERVED) -> str:
    """All of one kernel, launch or copy: its part of the whole report, and the decisions about it. `name`: its own, with or without
    the op's before it, or that of a tensor that it writes. Raises CallError where nothing has the name."""
    where = Provenance(specialised, plan)
    parts = dict(_parts_of(plan, where, observed))
    writers = [k.name for k in plan.kernels if name in k.outputs]
    chosen = next((n for n in (name, f"{specialised.name}_{name}", *writers) if n in parts), None)
    if chosen is None:
        close = get_close_matches(name, parts, 1)
        hint = f"did you mean '{close[0]}'?" if close else f"the kernels are {', '.join(parts)}"
        raise CallError(f"{plan.named} has no kernel '{name}'", hint=hint)
    kernels = [k for k in plan.kernels if k.name == chosen or k.name in plan.launches.get(chosen, ())]
    remarks = [r for r in plan.remarks if any(is_about(r, k) for k in kernels)]
    return _text([parts[chosen], _decisions(remarks, where)])


def is_about(remark: Remark, kernel: KernelPlan) -> bool:
    """Whether a decision is about a kernel, or about an operation of it."""
    return not {kernel.name, *kernel.nodes}.isdisjoint(word.strip(",") for word in remark.subject.split())


def _parts_of(plan: Plan, where: Provenance, observed: Observed) -> Iterator[tuple[str, Iterator[str]]]:
    """The lines of each kernel, launch and copy, by its name."""
    measured, counted = observed.measured, observed.counted
    for k in plan.kernels:
        yield k.name, _kernel(k, plan, where, measured.get(k.name), counted.get(k.name, {}), observed.registers.get(k.name))
    for name in plan.launches:
        yield name, _launch(name, plan, measured.get(name))
    for copy in plan.copies:
        yield copy.name, _copy(copy, measured.get("copies") if len(plan.copies) == 1 else None)


def _text(parts: Iterable[Iterable[str]]) -> str:
    return printable("\n\n".join("\n".join(part) for part in map(list, parts) if part) + "\n")


# ---- the program -----------------------------------------------------------------------------------------


def _summary(plan: Plan, specialised: Specialised, measured: Mapping[str, float]) -> Iterator[str]:
    yield f"{plan.signature} on {plan.target}"
    if plan.target.note:
        yield f"  {plan.target.note}"
    if fitted := str(plan.target.fitted):
        yield _row("fitted", fitted)
    if specialised.sizes:
        yield _row("sizes", ", ".join(f"{name} = {value}" for name, value in specialised.sizes.items()))
    kernels = plan.counted if plan.copies else plan.counted.replace(" kernels", "", 1).removesuffix(" kernel")
    yield _row("kernels", kernels + (f"; inlined: {', '.join(plan.inlined)}" if plan.inlined else ""))
    reported = measured.get(specialised.name)
    yield _row("time", f"{duration(plan.time_us)} predicted" + (f", {duration(reported)} measured" if reported else ""))
    moved, least = traffic(plan), minimal_traffic(specialised)
    share = f", {moved / least:.2f} times the minimum (inputs read once, outputs written once)" if least else ""
    yield _row("traffic", f"{amount(moved)}B{share}")
    for expectation in expectations(specialised, plan):
        yield _row("expect", str(expectation))


# ---- a kernel --------------------------------------------------------------------------------------------


def _kernel(
    kernel: KernelPlan, plan: Plan, where: Provenance, measured: float | None, counted: Mapping[str, float], registers: int | None
) -> Iterator[str]:
    p = kernel.prediction
    reported = _compared(p.time_us, measured)
    yield f"kernel {kernel.name}: {duration(p.time_us)}{reported}, bound by {bound_by(p)}"
    yield from (_row(*fact) for fact in facts(kernel, plan, where, registers))
    yield from _terms(p)
    if measured:
        yield _row("model", verdict(kernel, plan.target, measured, counted))


def facts(kernel: KernelPlan, plan: Plan, where: Provenance, registers: int | None = None) -> Iterator[tuple[str, str]]:
    """What is known of a kernel beside its times: labels and texts. `registers`: those of a thread of the compiled kernel."""
    p, work = kernel.prediction, kernel.work
    yield "computes", ", ".join(kernel.nodes)
    yield "writes", ", ".join(name if n == 1 else f"{name} ({n} tensors)" for name, n in Counter(kernel.outputs).items())
    yield "grid", _grid(kernel, where)
    yield from _parts(kernel)
    yield "kernel family", kernel.family.name
    for option, text in kernel.family.described(where.dimensions(kernel)):
        if option != "residency" or len(_nests(kernel)) > 1:  # of a single pass, nothing is read again
            yield option, text
    if not_modelled := ", ".join(kernel.family.not_modelled(bool(kernel.loops))):
        yield "not modelled", f"{not_modelled}: the predicted time does not depend on what a schedule says of it"
    yield "traffic", f"{amount(work.dram_read)}B read, {amount(work.dram_write)}B written"
    yield "operations", _operations(kernel)
    yield "intensity", _intensity(kernel, plan.target)
    yield "roofline", share_of_roofline(roofline(work, plan.target).time_us / p.time_us)
    if plan.target.kind == "cuda":
        yield "occupancy", _occupancy(kernel, plan.target)
        if registers and registers > (most := plan.registers.get(kernel.name, registers)):
            yield "registers", _given_up(kernel, plan.target, most, registers)


def _launch(name: str, plan: Plan, measured: float | None) -> Iterator[str]:
    """Of several kernels: what it takes, and what they would take one after another."""
    p, own = plan.predictions[name], [k for k in plan.kernels if k.name in plan.launches[name]]
    yield f"launch {name}: {duration(p.time_us)}{_compared(p.time_us, measured)}, bound by {bound_by(p)}"
    yield _row("kernels", ", ".join(k.name for k in own))
    blocks, threads = sum(k.blocks for k in own), max(round_up(k.work.threads, plan.target.multiprocessor.warp) for k in own)
    yield _row("grid", f"{' + '.join(str(k.blocks) for k in own)} = {blocks} blocks of {threads} threads")
    separate = sum(k.prediction.time_us for k in own)
    yield _row("gain", f"{duration(separate - p.time_us)}: the kernels would take {duration(separate)} in {len(own)} launches")
    yield from _terms(p)


def _given_up(kernel: KernelPlan, target: Target, planned: int, taken: int) -> str:
    """Of a kernel that spills within the registers that it was planned with, and was compiled with more."""
    work = kernel.work
    blocks = [occupancy(target, work.threads, n, work.shared_per_block).blocks for n in (planned, taken)]
    fit = f"{count(blocks[1], 'block')} on an SM" + (f" instead of {blocks[0]}" if blocks[1] < blocks[0] else ", as planned")
    return f"compiled with {taken} of a thread, as {planned} would spill: {fit}"


def _copy(copy: Copy, measured: float | None) -> Iterator[str]:
    """A copy takes no kernel: the driver, or the C library, copies."""
    p = copy.prediction
    yield f"copy of {copy.source} into {copy.name}: {duration(p.time_us)}{_compared(p.time_us, measured)}, bound by {bound_by(p)}"
    yield _row("traffic", f"{amount(copy.work.dram_read)}B read, {amount(copy.work.dram_write)}B written")
    yield from _terms(p)


def _compared(predicted: float, measured: float | None) -> str:
    share = f"the prediction is {predicted / measured:.0%} of it" if measured else ""
    return f" predicted, {duration(measured)} measured ({share})" if measured else " predicted"


CLOSE_THRESHOLD = 0.2  # a prediction may differ by this share of the measured time


def is_close(predicted: float, measured: float) -> bool:
    return abs(predicted / measured - 1) <= CLOSE_THRESHOLD


def verdict(kernel: KernelPlan, target: Target, measured: float, counted: Mapping[str, float]) -> str:
    """The amount of the cost model that explains a wrong prediction the best (`tilec.cost.blame`), and the next one if it does so
    nearly as well: the rate or the time that was assumed, and that which was reached."""
    p = kernel.prediction
    if is_close(p.time_us, measured):
        return f"within {CLOSE_THRESHOLD:.0%} of the measured time"
    found = causes(kernel.work, target, measured, counted)
    if not found:
        return f"no amount alone explains it; {resource(p.limiter)} takes longest"
    reported = [_cause(c, kernel, target) for c in found if c.doubt <= LIKELY * found[0].doubt]
    return ", or ".join(reported[:2])


LIKELY = 1.25  # of the doubt of the likeliest cause: another one is reported, too


def _cause(cause: Cause, kernel: KernelPlan, target: Target) -> str:
    p, work, name = kernel.prediction, kernel.work, cause.name
    if name == "launch":
        assumed = max(target.launch.ramp_us, target.launch.overhead_us) * work.launches
        return f"launch: {duration(assumed)} assumed, {duration(cause.factor * assumed)} taken"
    if name == "waits":
        return f"waits for loads and between steps: {cause.factor:.2g} times as long as assumed"
    if name == "arithmetic":  # its part that takes longest
        name = max(ARITHMETIC, key=lambda u: p.terms.get(u, 0.0))
        if not p.terms.get(name):  # loops that move data and compute nothing
            assumed = p.terms.get("loops", 0.0)
            return f"{resource('loops')}: {duration(assumed)} assumed, {duration(cause.factor * assumed)} taken"
    elif name == "dram":
        name = home_level(target, work.working_set)
    elif name == "shared" and target.sm is None:
        name = "l1"
    bytes_ = work.dram_read + work.dram_write
    moved = work.shared_bytes if cause.name == "shared" else max(work.l2_bytes, bytes_) if cause.name == "l2" else bytes_
    done = moved if name in MEMORY else sum(n for unit, n in work.flops.items() if unit.partition(".")[0] == name)
    rates = [f"{amount(1e6 * done / p.terms[name] / f)}{'B' if name in MEMORY else 'op'}/s" for f in (1, cause.factor)]
    times = f"; the compiled kernel has {cause.counted:.2g} times as many" if cause.counted else ""
    return f"{resource(name)}: {rates[0]} assumed, {rates[1]} reached{times}"


def bound_by(p: Prediction) -> str:
    """`memory (DRAM)`."""
    return f"{p.bound} ({resource(p.limiter)})"


def share_of_roofline(share: float, of: str = "the roofline") -> str:
    """The speed as a share of the largest that a roofline allows. A measured speed may be larger: the rates of a target file are
    those that simple kernels reached."""
    if share < 1.005:
        return f"{share:.0%} of the speed that {of} allows"
    return f"{share:.2f} times the speed that {of} allows: the machine reaches more than its target file says"


def resource(term: str) -> str:
    return RESOURCES.get(term, term)


def unit_name(unit: str) -> str:
    """`bf16 wgmma`, `f32`, `special functions`: the operations of "tensor.bf16@wgmma", "fma.f32", "special"."""
    name, _, rest = unit.partition(".")
    dtype, _, instruction = rest.partition("@")
    return " ".join(word for word in (dtype, instruction) if word) or resource(name)


def _grid(kernel: KernelPlan, where: Provenance) -> str:
    names = where.dimensions(kernel)
    cut = [f"{names[d]} = {kernel.extents[d]} in tiles of {t}" for d, t in zip(kernel.grid, kernel.tile)]
    rest = [f"{names[d]} = {e}" for d, e in kernel.extents.items() if d not in kernel.grid]
    inside = f"; {'each block' if kernel.blocks > 1 else 'it'} has all of {', '.join(rest)}" if rest else ""
    return f"{kernel.blocks} block{'s' * (kernel.blocks != 1)}" + (f": {', '.join(cut)}" if cut else "") + inside


def _parts(kernel: KernelPlan) -> Iterator[tuple[str, str]]:
    """How the operations share loops: a contraction and its epilogue, or passes over the data."""
    nests, options = _nests(kernel), kernel.family
    chain = options.name == "contraction_chain"
    if not chain and (inner := set(getattr(options, "inner", ()))):
        epilogue = [n for n in kernel.nodes if not inner <= set(kernel.dims[n])]
        if epilogue:
            yield "epilogue", ", ".join(epilogue)
    elif len(nests) > 1 and not chain and not getattr(options, "online", False):
        yield "passes", f"{len(nests)}: " + " | ".join(map(", ".join, nests))


def _nests(kernel: KernelPlan) -> list[list[str]]:
    """The operations of each loop nest."""
    numbers = sorted(set(kernel.loop_groups.values()))
    return [[n for n in kernel.nodes if kernel.loop_groups[n] == number] for number in numbers]


def _operations(kernel: KernelPlan) -> str:
    parts = [f"{amount(n).rstrip()} {unit_name(unit)}" for unit, n in kernel.work.flops.items() if n]
    return ", ".join(parts) or "none"


def _intensity(kernel: KernelPlan, target: Target) -> str:
    """Operations of the busiest unit per byte of traffic, and the ridge: the intensity at which that unit and the memory take the
    same time."""
    found = roofline(kernel.work, target)
    if not kernel.work.dram_read + kernel.work.dram_write:
        return "no memory traffic"
    if not kernel.work.flops.get(found.unit):
        return "no operations"
    intensity, ridge = _distinguishable(found.intensity, found.ridge)
    home = "" if found.level == "dram" else f" in the {resource(found.level)}, where the data stay,"
    return f"{intensity} operations ({unit_name(found.unit)}) a byte, the ridge{home} is at {ridge}: {_side(kernel, found)}"


def _distinguishable(a: float, b: float) -> tuple[str, str]:
    """Two numbers with as many digits as tell which is larger."""
    digits = next((n for n in range(2, 7) if f"{a:.{n}f}" != f"{b:.{n}f}"), 7)
    return f"{a:.{digits}f}", f"{b:.{digits}f}"


def _side(kernel: KernelPlan, found: Roofline) -> str:
    """The roofline's verdict, and the kernel's limit where that is another. The roofline knows one memory and one unit; the cost
    model has more terms."""
    p, below = kernel.prediction, found.intensity < found.ridge
    side = "below the ridge" if below else "above the ridge"
    if p.limiter == found.level:
        return f"{side}, so bound by memory" if below else f"{side}, but {resource(p.limiter)} does not reach its full rate"
    if p.limiter == found.unit.partition(".")[0]:
        return f"{side}, so bound by compute" if not below else f"{side}, but {resource(p.limiter)} does not reach its full rate"
    longest = "the launch" if p.limiter == "launch" else resource(p.limiter)
    return f"{side}, but {longest} take{'s' * (not longest.endswith('s'))} longest"


def _occupancy(kernel: KernelPlan, target: Target) -> str:
    p = kernel.prediction
    threads = round_up(kernel.work.threads, target.multiprocessor.warp)  # a part of a warp takes its place
    blocks = f"{count(p.occupancy.blocks, 'block')} of {count(threads, 'thread')} on an SM"
    limits = {"shared": "shared memory", "blocks": "the number of blocks"}
    blocks += f", limited by {limits.get(p.occupancy.limiter, p.occupancy.limiter)}"
    waves = f"{p.waves:.2f} waves on {target.units} SMs, which are busy {p.wave_efficiency:.0%} of the time"
    return f"{p.occupancy.fraction:.0%}: {blocks}; {waves}"


def _terms(p: Prediction) -> Iterator[str]:
    terms = {name: t for name, t in p.terms.items() if t > 0}
    longest = max(terms.values(), default=1.0)
    label = "time"
    for name, t in sorted(terms.items(), key=lambda item: -item[1]):
        bar = "#" * max(1, round(BAR * t / longest))
        yield _row(label, f"{resource(name):<18}{duration(t):>10}  {bar}")
        label = ""


# ---- steps that change the program ---------------------------------------------------------------------------------------


def _rewrites(plan: Plan, where: Provenance) -> Iterator[str]:
    """The steps in their order, each with its source line and the times that were weighed."""
    if not plan.rewrites:
        return
    yield "rewrites"
    kinds = {rewrite.name: rewrite for rewrite in REWRITES}
    for number, applied in enumerate(plan.rewrites, 1):
        what = kinds[applied.rewrite].describe(applied.step, partial(where.index, applied.step.operation))
        yield f"  {number}. {applied.rewrite} {applied.step.operation}: {what}"
        if applied.line:
            yield f"     {short_location(applied.line)}  {where.line(applied.line)}"
        if applied.reason:
            yield f"     {applied.reason}"


# ---- decisions -------------------------------------------------------------------------------------------


def _decisions(found: Sequence[Remark], where: Provenance) -> Iterator[str]:
    """Every remark under its source line, in the program's order of first mention."""
    if not found:
        return
    yield "decisions"
    if any(r.verb in ("fused", "refused") and r.alternatives and not r.weighed for r in found):
        yield "  (times of `fused` and `refused` are estimates without tiles; the kernels' own times above are with tiles)"
    locations: dict[tuple[str, int] | None, list[Remark]] = {}
    for remark in found:
        locations.setdefault(remark.line, []).append(remark)
    files = list(dict.fromkeys(r.line[0] for r in found if r.line))
    for location, remarks in sorted(locations.items(), key=lambda item: _order(item[0], files)):
        yield f"  {short_location(location)}  {where.line(location)}" if location else "  the whole program"
        for remark in remarks:
            yield f"    {remark.verb:<{VERB}} {remark.subject}: {remark.reason}"
            yield from _alternatives(remark)


def _order(location: tuple[str, int] | None, files: Sequence[str]) -> tuple[int, int, int]:
    return (1, 0, 0) if location is None else (0, files.index(location[0]), location[1])


def _alternatives(remark: Remark) -> Iterable[str]:
    """The alternatives, where there are more than two: a reason names two itself."""
    if len(remark.alternatives) > 2:
        indent = " " * (VERB + 7)
        if remark.weighed:
            yield f"{indent}({remark.weighed})"
        for name, time_us in sorted(remark.alternatives, key=lambda a: a[1]):
            yield f"{indent}{duration(time_us):>9}  {name}"


def _row(label: str, text: str) -> str:
    return f"  {label:<{LABEL}}{text}".rstrip()
