"""The audit's figures: how good the model's choices are, and how near its times."""

from __future__ import annotations

from statistics import median

from rich.console import Console

from benchmarks.memory_report import geomean
from benchmarks.report import print_table, time_text

POINTS, MEAN, WORST, OFF = 200, 0.95, 0.8, 0.20  # what is wanted
MATRIX_POINTS, MATRIX_WORST = 120, 0.85  # the same of programs for matrix units


def measured(rows: list[dict]) -> list[dict]:
    return [r for r in rows if "share" in r]


def ratio(row: dict) -> float:
    """The predicted time over the measured one, of the model's choice."""
    return row["predicted_us"] / row["own_us"]


def off(rows: list[dict]) -> float:
    """By how much predicted times are off, in the median."""
    return median(abs(ratio(r) - 1) for r in rows)


def targets(rows: list[dict], matrix: bool = False) -> list[tuple[str, float, float, bool]]:
    """(what, reached, wanted, whether)."""
    points, least = (MATRIX_POINTS, MATRIX_WORST) if matrix else (POINTS, WORST)
    if not (found := measured(rows)):
        return []
    mean, worst, away = geomean([r["share"] for r in found]), min(r["share"] for r in found), off(found)
    return [
        ("points", len(found), points, len(found) >= points),
        ("best measured time over the choice's, geometric mean", mean, MEAN, mean >= MEAN),
        ("the same, at worst", worst, least, worst >= least),
        ("predicted time off, in the median, at most", away, OFF, away <= OFF),
    ]


def by_kind(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
    cells = []
    for kind in dict.fromkeys(r["kind"] for r in measured(rows)):
        mine = [r for r in measured(rows) if r["kind"] == kind]
        shares = [r["share"] for r in mine]
        counts = sum(len(r["candidates"]) for r in mine)
        cells.append([
            kind, str(len(mine)), str(counts), f"{geomean(shares):.3f}", f"{min(shares):.2f}",
            f"{100 * off(mine):.0f}%", f"{median(map(ratio, mine)):.2f}",
        ])  # fmt: skip
    return [
        "kind",
        "points",
        "plans measured",
        "choice, mean",
        "at worst",
        "time off",
        "predicted over measured",
    ], cells


def worst(rows: list[dict], most: int = 12) -> tuple[list[str], list[list[str]]]:
    """The points at which the choice was furthest from the best."""
    cells = [
        [r["name"], time_text(r["own_us"]), time_text(r["best_us"]), f"{r['share']:.2f}", r["best"]]
        for r in sorted(measured(rows), key=lambda r: r["share"])[:most]
        if r["share"] < MEAN
    ]
    return ["point", "choice", "best", "share", "what the best does otherwise"], cells


def show(rows: list[dict], console: Console, matrix: bool = False) -> None:
    console.width = max(console.width, 150)
    headings, cells = worst(rows, 40)
    print_table(console, "where the choice is not the best", headings, cells)
    print_table(console, "by kind", *by_kind(rows))
    for what, value, wanted, met in targets(rows, matrix):
        console.print(f"{what}: {value:.3f}, wanted {wanted:g}{'' if met else ': missed'}", highlight=False)
    for row in rows:
        for text in ([row["error"]] if row.get("error") else []) + row.get("wrong", []) + row.get("refused", []):
            console.print(f"{row['name']}: {text}", highlight=False, markup=False)
    skipped = sum("skipped" in r for r in rows)
    console.print(f"{len(rows)} points, {skipped} skipped, {sum('error' in r for r in rows)} failed")
