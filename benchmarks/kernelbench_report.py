"""Tables of `python -m benchmarks kernelbench`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from benchmarks import report

BELOW = (0.9, 0.7, 0.5)
SUITES = {
    "kernelbench": "As they stand, f32",
    "kernelbench-varied": "With other numbers, f32",
    "kernelbench-bf16": "As they stand, bf16",
    "kernelbench-bf16-varied": "With other numbers, bf16",
}
"""Files of results, and what they hold."""
Rows = list[dict]


def ratio(row: dict) -> float | None:
    """The faster of eager mode and torch.compile over tilec."""
    times = row.get("times_us", {})
    return report.ratio(min((t for w, t in times.items() if w != "tilec"), default=None), times.get("tilec"))


def line(row: dict) -> str:
    if "roofline_us" in row and "predicted_us" in row:
        message = f"{report.time_text(row['predicted_us'])} predicted, {report.time_text(row['roofline_us'])} at least"
    elif (found := ratio(row)) is not None:
        message = ", ".join(f"{w} {report.time_text(t)}" for w, t in row["times_us"].items()) + f", {found:.2f}"
        if not row.get("right"):
            message += f", WRONG by {row['error_share'].get('tilec', 0):.3g} ({row['worst'].get('tilec', '')})"
    else:
        message = ""
    return f"{row['name']:60} {message} {row.get('error', '')}".rstrip()


def predicted(rows: Rows) -> Iterable[str]:
    """The slowest plans last, by predicted over least time; after them those of which PyTorch runs operations."""
    rows = [r for r in rows if "predicted_us" in r and "roofline_us" in r]
    for row in sorted(rows, key=lambda r: (len(r["refused"]), r["predicted_us"] / r["roofline_us"])):
        kernels = "; ".join(f"{family} {report.time_text(us)}" for _, family, us in row["kernels"][:3])
        rest = f"; PyTorch runs {', '.join(row['refused'])}" if row["refused"] else ""
        share, time = row["predicted_us"] / row["roofline_us"], report.time_text(row["predicted_us"])
        yield f"{share:7.2f} {row['name']:60} {time:>9}: {kernels}{rest}"


HEADINGS = [
    "problems", "number", "geometric mean", "at least the best", "below 0.9", "below 0.7", "below 0.5", "wrong", "not compiled",
    "first call, torch.compile", "tilec",
]  # fmt: skip


def grid(rows: Rows) -> list[list[str]]:
    """By level, and of all: how many problems are how fast. Seconds of first calls are medians, of a process that compiles beside
    others, with empty caches."""
    found = []
    groups = sorted({r["group"] for r in rows if "group" in r})
    for name in (*groups, "all"):
        own = [r for r in rows if name == "all" or r.get("group") == name]
        ratios = [x for r in own if (x := ratio(r)) is not None]
        cells = [f"{statistics.geometric_mean(ratios):.3f}" if ratios else "", str(sum(x >= 1 for x in ratios))]
        cells += [str(sum(x < bound for x in ratios)) for bound in BELOW]
        cells += [str(sum(r.get("right") is False for r in own)), str(sum(bool(r.get("error")) for r in own))]
        for way in ("torch.compile", "tilec"):
            seconds = [s for r in own if (s := r.get("prepared_s", {}).get(way))]
            cells.append(f"{statistics.median(seconds):.1f} s" if seconds else "")
        found.append([name, str(len(own)), *cells])
    return found


def missed(rows: Rows) -> list[list[str]]:
    """Problems that are slower than 0.9 of the best, wrong, or fail; the slowest first."""
    found: list[tuple[float, list[str]]] = []
    for row in rows:
        reached = ratio(row)
        if (reached or 0) >= BELOW[0] and row.get("right"):
            continue
        times = row.get("times_us", {})
        reported = row.get("error", "")
        if row.get("right") is False and "tilec" in row.get("error_share", {}):
            reported = f"an error of {row['error_share']['tilec']:.3g} of what is allowed ({row['worst']['tilec']})"
        cells = [report.time_text(times.get(w)) for w in ("eager", "torch.compile", "tilec")]
        numbers = ", ".join(f"{k} {v}" for k, v in row.get("numbers", {}).items())
        found.append((reached or 0, [row["name"], *cells, f"{reached:.2f}" if reached else "", reported or numbers]))
    return [cells for _, cells in sorted(found, key=lambda f: f[0])]


MISSED = ["problem", "eager", "torch.compile", "tilec", "ratio", ""]


def summary(rows: Rows) -> Iterable[str]:
    for cells in (HEADINGS, *grid(rows), MISSED, *missed(rows)):
        yield " | ".join(cells)


def page(rows: Rows) -> str:
    """Of the newest results, for docs/performance.md."""
    rows = [r for r in rows if not r.get("error", "").startswith("not run")]
    levels = report.table(HEADINGS, grid(rows), range(1, len(HEADINGS)))
    below = report.table(MISSED, missed(rows), range(1, 5))
    return f"{levels}\n\nBelow {BELOW[0]}, wrong, or not compiled:\n\n{below}"
