"""The report of a what-if: a table of the kernels of both plans, and what else differs."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tilec.core.quantities import duration
from tilec.plan.report.explain import resource
from tilec.plan.report.records import Decision, Explanation, Kernel
from tilec.plan.report.short import UNWRAPPED, computed, indented, prefix_of, rendered
from tilec.plan.report.what_if import MOST, ChangedKernel, WhatIf
from tilec.process.printable import printable

MOST_DECISIONS = 6  # of either plan, that are listed
GROUPING = ("fused", "refused", "inlined")
"""Decisions about what kernels there are; others follow from the kernels' facts, which are listed."""
SAME = 0.002  # a change of the time by a smaller share is none


def report(found: WhatIf, width: int = UNWRAPPED, colours: bool = False) -> str:
    """As text of at most `width` columns; `colours`: with a terminal's escapes for these."""
    return rendered(_parts(found), width, colours)


def _parts(found: WhatIf) -> Iterator[RenderableType]:
    yield from _summary(found)
    yield Text()
    yield _table(found)
    yield from _facts(found)
    yield from _decisions(found)


def _summary(found: WhatIf) -> Iterator[RenderableType]:
    before, after = found.before, found.after
    yield Text.assemble((printable(before.program), "bold"), printable(f" on {before.device}"))
    for change in found.changes:
        yield indented(printable(f"what if  {change}"), "cyan")
    for note in found.notes:
        yield indented(printable(f"note     {note}"), "yellow")
    if after.program != before.program:
        yield indented(printable(f"is then  {after.program}"))
    if after.device != before.device:
        yield indented(printable(f"on       {after.device}"))
    for expectation in after.expectations:
        if not expectation.holds:
            yield indented(printable(f"expect {expectation}"), "yellow")
    times = f"{duration(before.time_us)} -> {duration(after.time_us)} predicted"
    if abs(found.speedup - 1) < SAME:
        yield indented(f"{times}: the same time")
    elif found.speedup > 1:
        yield indented(f"{times}: {found.speedup:.2f} times as fast", "green")
    else:
        yield indented(f"{times}: {1 / found.speedup:.2f} times as long", "red")
    if found.pays:
        yield indented(f"by the cost model, it would pay if {found.pays}")
    elif found.speedup < 1 - SAME and after.device == before.device and after.program == before.program:
        yield indented(f"it would pay under no change of one amount of the cost model up to {MOST:.0f} times")


# ---- the table -----------------------------------------------------------------------------------------------------------


def _table(found: WhatIf) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("kernel", overflow="fold")
    table.add_column("computes", overflow="fold")
    for name in ("before", "after", "change"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("bound by", overflow="fold")
    prefix = prefix_of(found.after)
    for kernel in found.kernels:
        name = (kernel.after or kernel.before or "").removeprefix(prefix)
        cells = [printable(name), printable(computed(kernel.computes)), _time(kernel.before_us), _time(kernel.after_us)]
        table.add_row(*map(Text, cells), _change(kernel), Text(_bound(kernel, found)))
    return table


def _time(us: float | None) -> str:
    return "" if us is None else duration(us)


def _change(kernel: ChangedKernel) -> Text:
    if kernel.before_us is None:
        return Text("new", "cyan")
    if kernel.after_us is None:
        return Text("gone", "cyan")
    share = kernel.after_us / kernel.before_us - 1 if kernel.before_us else 0.0
    if abs(share) < SAME:
        return Text("=", "dim")
    return Text(f"{share:+.0%}" if abs(share) >= 0.005 else "<1%", "green" if share < 0 else "red")


def _bound(kernel: ChangedKernel, found: WhatIf) -> str:
    bounds = [_limit(e, name) for e, name in ((found.before, kernel.before), (found.after, kernel.after)) if name]
    return " -> ".join(dict.fromkeys(bounds))


def _limit(of: Explanation, name: str) -> str:
    kernel: Kernel = next(k for k in of.kernels if k.name == name)
    return f"{kernel.cost.bound} ({resource(kernel.cost.limiter)})"


# ---- what else differs -----------------------------------------------------------------------------------------------------


def _facts(found: WhatIf) -> Iterator[RenderableType]:
    """What differs of kernels that both plans have. Of one that is built in another way, all would."""
    for kernel in found.kernels:
        family = [fact for fact in kernel.facts if fact.name in ("computes", "kernel family")]
        other = any(fact.name == "kernel family" for fact in family)
        if kernel.facts:
            yield Text()
            yield Text(printable(kernel.after or ""), "bold")
            for fact in family if other else kernel.facts:
                yield indented(printable(f"{fact.name:<18}{fact.before or '-'} -> {fact.after or '-'}"))


def _decisions(found: WhatIf) -> Iterator[RenderableType]:
    """Those of one plan alone. A plan whose kernels were given has no decisions, so those of the other one are left out."""
    if not any(d.verb in GROUPING for d in found.after.decisions):
        return
    listed = [(sign, style, [d for d in decisions if d.verb in GROUPING])
              for sign, style, decisions in (("-", "red", found.gone), ("+", "green", found.new))]  # fmt: skip
    if any(decisions for _, _, decisions in listed):
        yield Text()
        yield Text("decisions", "bold")
    for sign, style, decisions in listed:
        for decision in decisions[:MOST_DECISIONS]:
            yield indented(printable(f"{sign} {_text(decision)}"), style)
        if len(decisions) > MOST_DECISIONS:
            yield indented(f"{sign} {len(decisions) - MOST_DECISIONS} more", style)


def _text(decision: Decision) -> str:
    return f"{decision.verb} {decision.subject}: {decision.reason}"
