"""The short report of a plan: a line about the program, and a table of its kernels, longest first.

The table is as wide as what it is printed to. Colours are those of a terminal's own palette.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import StringIO

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tilec.core.quantities import amount, count, duration
from tilec.plan.report.explain import CLOSE_THRESHOLD, is_close, resource
from tilec.plan.report.records import Copy, Cost, Explanation, Kernel, Launch
from tilec.process.printable import printable

UNWRAPPED = 100_000
"""The width of what nobody reads on a screen: rows stay lines, so that tools find them."""
COLUMNS = 120
"""The width where nobody knows the reader's, as in a notebook."""
MOST_NAMES = 6  # operations of a kernel that the table names
NEAR, FAR = 0.8, 0.5  # shares of the limit: from the first on a kernel is good, below the second it is not


@dataclass(frozen=True)
class Ways:
    """How the reader gets more, in the words of the command line or of Python."""

    kernel: str
    full: str


def short(found: Explanation, ways: Ways, width: int = UNWRAPPED, colours: bool = False) -> str:
    """The report as text of at most `width` columns; `colours`: with a terminal's escapes for these."""
    return rendered(_parts(found, ways), width, colours)


def rendered(parts: Iterable[RenderableType], width: int, colours: bool) -> str:
    file = StringIO()
    console = Console(
        file=file, width=width, force_terminal=colours, color_system="standard" if colours else None, no_color=not colours,
        markup=False, emoji=False, highlight=False, legacy_windows=False,
    )  # fmt: skip
    for part in parts:
        console.print(part, soft_wrap=width == UNWRAPPED and isinstance(part, Text))
    return "\n".join(line.rstrip() for line in file.getvalue().split("\n"))


def _parts(found: Explanation, ways: Ways) -> Iterator[RenderableType]:
    yield from _summary(found)
    yield Text()
    yield _table(found)
    yield Text()
    yield from _misses(found)
    yield from _more(found, ways)


def _summary(found: Explanation) -> Iterator[RenderableType]:
    at = f", planned at {', '.join(f'{n} = {found.sizes[n]}' for n in found.varies)}" if found.varies else ""
    yield Text.assemble((printable(found.program), "bold"), printable(f"{at} on {found.device}"))
    if found.note:
        yield indented(printable(found.note), "dim")
    times = f"{duration(found.time_us)} predicted"
    if found.measured_us is not None:
        times += f", {duration(found.measured_us)} measured"
    least = f", {found.traffic_bytes / found.minimal_bytes:.2f} times the minimum" if found.minimal_bytes else ""
    named = f", called {prefix}…" if (prefix := prefix_of(found)) else ""
    yield indented(f"{found.counted}{named}: {times}; {amount(found.traffic_bytes)}B moved{least}")
    for expectation in found.expectations:
        yield indented(f"expect {expectation}", "" if expectation.holds else "yellow")


def indented(text: str, style: str = "") -> RenderableType:
    return Padding(Text(text, style), (0, 0, 0, 2))


# ---- the table -----------------------------------------------------------------------------------------------------------


def _table(found: Explanation) -> Table:
    measured = any(part.cost.measured_us is not None for part in found.ranked)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("kernel", overflow="fold")
    table.add_column("computes", overflow="fold")
    table.add_column("time", justify="right", no_wrap=True)
    if measured:
        table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("bound by", overflow="fold")
    table.add_column("of limit", justify="right", no_wrap=True)
    prefix = prefix_of(found)
    for part in found.ranked:
        cost = part.cost
        cells = [Text(printable(_name(part, prefix))), Text(printable(_computes(part))), Text(duration(cost.time_us))]
        if measured:
            cells.append(Text(duration(cost.measured_us) if cost.measured_us is not None else ""))
        share = "" if cost.share is None else _percent(cost.share)
        table.add_row(*cells, Text(share), Text(f"{cost.bound} ({resource(cost.limiter)})"), _of_limit(cost))
    return table


def prefix_of(found: Explanation) -> str:
    """The op's name, where the names of several kernels and launches begin with it: it would fill the table."""
    names = [*(k.name for k in found.kernels), *(launch.name for launch in found.launches)]
    prefix = f"{found.program.partition('(')[0]}_"
    return prefix if len(names) > 1 and all(name.startswith(prefix) for name in names) else ""


def _name(part: Kernel | Launch | Copy, prefix: str) -> str:
    name = part.name if isinstance(part, Copy) else part.name.removeprefix(prefix)
    return f"  {name}" if isinstance(part, Kernel) and part.launch is not None else name


def _computes(part: Kernel | Launch | Copy) -> str:
    if isinstance(part, Copy):
        return f"a copy of {part.source}"
    if isinstance(part, Launch):
        return f"{count(len(part.kernels), 'kernel')} at once:"
    return computed(part.computes)


def computed_names(operations: Iterable[str]) -> list[str]:
    """The tensors and functions that operations are of: `y.sum` is of `y`, `silu.x` of `silu`."""
    return list(dict.fromkeys(name.partition(".")[0] for name in operations))


def computed(operations: Iterable[str]) -> str:
    """Their names for a table, not too many."""
    names = computed_names(operations)
    if len(names) <= MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[: MOST_NAMES - 1])} and {len(names) - MOST_NAMES + 1} more"


def _percent(share: float) -> str:
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def _of_limit(cost: Cost) -> Text:
    share = cost.of_limit
    return Text(_percent(share), "green" if share >= NEAR else "yellow" if share >= FAR else "red")


def _misses(found: Explanation) -> Iterator[RenderableType]:
    """The kernels whose measured time is far from the predicted one, with what the model got wrong."""
    missed = [k for k in found.kernels if k.model is not None and not is_close(k.cost.time_us, k.cost.best_known_us)]
    if missed:
        yield Text(f"predictions that are off by more than {CLOSE_THRESHOLD:.0%}:", "bold")
        for kernel in missed:
            yield indented(printable(f"{kernel.name.removeprefix(prefix_of(found))}: {kernel.model}"), "yellow")
        yield Text()


# ---- what else there is ----------------------------------------------------------------------------------------------------


def _more(found: Explanation, ways: Ways) -> Iterator[RenderableType]:
    """What the numbers mean, and how to see the reasons."""
    speed = "measured" if any(part.cost.measured_us is not None for part in found.ranked) else "predicted"
    allowed = "what the device's roofline allows for a kernel's data and operations"
    yield Text(f"of limit: the {speed} speed as a share of {allowed}.", "dim")
    refused = sum(d.verb == "refused" for d in found.decisions)
    decided = count(len(found.decisions), "decision") + (f", {count(refused, 'refusal')} among them" if refused else "")
    rewritten = f", {count(len(found.rewrites), 'rewrite')}" if found.rewrites else ""
    yield Text(f"{ways.kernel} shows all of a kernel, {ways.full} everything: {decided}{rewritten}.", "dim")
