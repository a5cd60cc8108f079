"""Tables of `python -m benchmarks sizes`."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks.report import ratio, time_text

Facts = dict[str, Any]
Table = tuple[str, list[str], list[list[str]]]
LOSS = ["program", "sizes", "time over exact, mean", "worst", "at", "noise", "classes", "compiling over exact"]
MODEL = [
    "model", "", "first calls", "over 0.2 s", "slowest", "stalls", "compiled", "a call later", "a token or image later",
]  # fmt: skip
CALL = ["call", "microseconds"]


def part(row: Facts) -> str:
    return row["name"].partition(":")[0]


def thing(row: Facts) -> str:
    """What a row measures, without its part."""
    return row["name"].partition(": ")[2]


def losses(row: Facts) -> list[tuple[float, dict[str, int]]]:
    """The time of the op for classes over that of the exact one, at each size."""
    return [(p["times_us"]["class"] / p["times_us"]["exact"], p["sizes"]) for p in row["points"]]


def loss_cells(row: Facts) -> list[str]:
    found = losses(row)
    worst, sizes = max(found, key=lambda f: f[0])
    again = [p["times_us"]["again"] / p["times_us"]["exact"] for p in row["points"]]
    noise = statistics.geometric_mean([max(a, 1 / a) for a in again]) - 1
    one = statistics.fmean(s for _, s in row["classes"]) if row["classes"] else None
    compiling = ratio(one, statistics.fmean(row["exact_s"]))
    return [
        thing(row), str(len(found)), f"{statistics.geometric_mean([f for f, _ in found]):.2f}", f"{worst:.2f}",
        ", ".join(f"{name} = {n}" for name, n in sizes.items()), f"{100 * noise:.0f} %",
        str(len(row["classes"])), "" if compiling is None else f"{compiling:.2f}",
    ]  # fmt: skip


def model_cells(row: Facts) -> list[str]:
    name, _, way = thing(row).rpartition(", ")
    cut = "" if row["calls"] == row["of"] else f" ({row['calls']} of {row['of']})"
    compiled = ", ".join(f"{n} {what}" for what, n in row["compilations"].items() if n)
    return [
        name, way, f"{row['first_s']:.1f} s{cut}", str(row["slow"]), f"{row['slowest_s']:.2f} s", str(row["stalls"]), compiled,
        time_text(row["later_us"]), time_text(row["token_us"]),
    ]  # fmt: skip


def tables(rows: list[Facts]) -> Iterator[Table]:
    """Title, headings and cells of each part that there are rows of."""
    good = [r for r in rows if "error" not in r]
    of = lambda *parts: [r for r in good if part(r) in parts]  # noqa: E731
    if found := of("loss"):
        yield "an op for classes of sizes beside ops for exact sizes", LOSS, [loss_cells(r) for r in found]
    if found := of("calls"):
        yield "calls", CALL, [[what, f"{us:.1f}"] for r in found for what, us in r["times_us"].items()]
    if found := of("models", "serving"):
        yield "models called with other sizes each time", MODEL, [model_cells(r) for r in found]


def notes(rows: list[Facts]) -> list[str]:
    """What a table does not tell: rows that failed, wrong results, and why sizes do not vary."""
    lines = [f"{r['name']}: {r['error']}" for r in rows if "error" in r]
    lines += [f"{r['name']}: results are wrong" for r in rows if r.get("right") is False]
    return lines + [f"{r['name']}: {why}" for r in rows for why in r.get("refused", ())]


def line(row: Facts) -> str:
    """One row, as it is found."""
    if "error" in row:
        return f"{row['name']:32} {row['error'][:200]}"
    wrong = "" if row.get("right", True) else "WRONG "
    match part(row):
        case "loss":
            found = loss_cells(row)
            told = f"mean {found[2]}, worst {found[3]} at {found[4]}, noise {found[5]}, {found[6]} classes, compiling {found[7]}"
        case "calls":
            told = ", ".join(f"{what} {us:.1f} us" for what, us in row["times_us"].items())
        case _:
            told = ", ".join(f"{h} {c}" for h, c in zip(MODEL[2:], model_cells(row)[2:]) if c)
    return f"{row['name']:32} {wrong}{told}"


__all__ = ["line", "notes", "tables"]
