"""Tables of `python -m benchmarks models`, and what is wanted of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable

from rich.console import Console

from benchmarks import report

TRANSFORMERS = ("decoder", "encoder", "encoder-decoder", "vision")
Rows = list[dict]


def best(row: dict, whose: str, of: str = "times_us") -> float | None:
    """The least time of `whose` ways: "tilec", or "torch.compile"."""
    return min((t for k, t in row.get(of, {}).items() if k.startswith(whose) and t), default=None)


def best_other(row: dict, of: str = "times_us") -> float | None:
    """The least of eager mode and torch.compile's modes: torch.compile is slower than eager mode for some models."""
    return min((t for k, t in row.get(of, {}).items() if not k.startswith("tilec") and t), default=None)


def gain(row: dict) -> float | None:
    """The time of the best of eager mode and torch.compile over tilec's best."""
    return report.ratio(best_other(row), best(row, "tilec"))


def over(row: dict, of: str) -> float | None:
    """What torch.compile takes over what tilec takes, in their default modes."""
    values = row.get(of) or {}
    return report.ratio(values.get("torch.compile"), values.get("tilec"))


def spared(row: dict) -> float | None:
    """The least peak memory of the others over tilec's. None of a step of decoding: its few temporaries are nothing beside the
    model and its cache."""
    if row.get("group") == "decoding":
        return None
    return report.ratio(best_other(row, "peak_bytes"), best(row, "tilec", "peak_bytes"))


def _mean(values: Iterable[float | None]) -> float | None:
    found = [v for v in values if v]
    return statistics.geometric_mean(found) if found else None


def targets(rows: Rows) -> list[tuple[str, float, float, bool]]:
    """(what, reached, wanted, whether)."""
    of: Callable[[str], Rows] = lambda task: [r for r in rows if r.get("group") == task]  # noqa: E731
    inference = of("inference")
    transformers = [r for r in inference if r["kind"].removeprefix("timm, ") in TRANSFORMERS]
    means = [
        (f"inference, transformers: {BEST}", _mean(map(gain, transformers)), 1.10),
        (f"inference, all: {BEST}", _mean(map(gain, inference)), 1.0),
        ("inference: the least of these", min((g for g in map(gain, inference) if g), default=None), 0.9),
        (f"decoding: {BEST}", _mean(map(gain, of("decoding"))), 1.2),
        (f"training: {BEST}", _mean(map(gain, of("training"))), 0.95),
        ("host time of a call: torch.compile's over ours", _mean(over(r, "host_us") for r in rows), 1.0),
        ("memory of inference and training: the least of the others' peaks over ours", _mean(map(spared, rows)), 1.0),
    ]
    return [(what, value, wanted, value >= wanted) for what, value, wanted in means if value is not None]


BEST = "the best of eager and torch.compile over ours"
HEADINGS = [
    "model", "eager", "torch.compile", "graphs", "tilec", "graphs", "over the best", "host", "memory, others", "tilec",
    "of operations", "error", "measured",
]  # fmt: skip


def bytes_text(n: float | None) -> str:
    return "" if n is None else f"{n / 1e9:.2f} GB" if n >= 1e9 else f"{n / 1e6:.1f} MB"


def cells(row: dict) -> list[str]:
    t, graphs = row.get("times_us", {}), row.get("graphs", {}).get("tilec", {})
    ways = ("eager", "torch.compile", "torch.compile, graphs", "tilec", "tilec, graphs")
    ratio = lambda value: "" if value is None else f"{value:.2f}"  # noqa: E731
    share = f"{100 * graphs['taken'] / graphs['operations']:.0f} %" if graphs.get("operations") else ""
    error = f"{row['error_share']['tilec']:.2f}" if "tilec" in row.get("error_share", {}) else "failed"
    return [
        row["name"], *(report.time_text(t.get(w)) for w in ways), ratio(gain(row)),
        ratio(over(row, "host_us")), bytes_text(best_other(row, "peak_bytes")), bytes_text(best(row, "tilec", "peak_bytes")), share,
        error, row.get("measured", ""),
    ]  # fmt: skip


def line(row: dict) -> str:
    """One row, as it is found."""
    if row.get("error"):
        return f"{row['name']:26} {row['error'][:200]}"
    t = {k: v for k, v in row.get("times_us", {}).items()}
    reported = " ".join(f"{k.replace('torch.compile', 'tc')}={report.time_text(v).replace(' ', '')}" for k, v in t.items())
    wrong = "" if row.get("right") else "WRONG "
    failed = "".join(f"; {w}: {e[:120]}" for w, e in row.get("errors", {}).items())
    return (
        f"{row['name']:26} {wrong}{cells(row)[6] or '-':>5} {reported} error {cells(row)[-2]}, row "
        f"{row.get('row_s', 0)} s{failed}"
    )


def show(rows: Rows, console: Console) -> None:
    console.width = max(console.width, 170)
    report.print_table(console, "models", HEADINGS, [cells(r) for r in rows if "times_us" in r])
    if reached := targets(rows):
        listed = [[what, f"{v:.2f}", f"{wanted:.2f}", "" if met else "missed"] for what, v, wanted, met in reached]
        report.print_table(console, "targets", ["", "reached", "wanted", ""], listed)


# ---- cold: seconds until a first step --------------------------------------------------------------------------------

COLD = ["model", "tilec", "torch.compile", "torch.compile over ours"]
WANTED = 2.0


def cold_cells(row: dict) -> list[str]:
    seconds = row["compile_s"]
    reported = [f"{seconds[w]:.1f} s" if w in seconds else "failed" for w in ("tilec", "torch.compile")]
    share = over(row, "compile_s")
    return [row["name"], *reported, "" if share is None else f"{share:.2f}"]


def cold_line(row: dict) -> str:
    return "  ".join(cold_cells(row)) + "".join(f"; {way}: {error[:160]}" for way, error in row.get("errors", {}).items())


def cold_means(rows: Rows) -> list[list[str]]:
    """The geometric mean of each task, and of all."""
    found = []
    for task in (*dict.fromkeys(r["group"] for r in rows), None):
        share = _mean(over(r, "compile_s") for r in rows if task in (None, r["group"]))
        if share is not None:
            reported = "reached" if share >= WANTED else "missed"
            found.append([task or "all", f"{share:.2f}", *([f"{WANTED:.2f}", reported] if task is None else ["", ""])])
    return found


def show_cold(rows: Rows, console: Console) -> None:
    report.print_table(console, "until a first step, in a new process", COLD, list(map(cold_cells, rows)))
    report.print_table(console, "torch.compile's seconds over ours", ["", "reached", "wanted", ""], cold_means(rows))


def cold_page(path_text: str, facts: dict) -> str:
    """The section of docs/pytorch.md."""
    rows = facts["rows"]
    parts = [path_text, report.table(["torch.compile's seconds over ours", "reached", "wanted", ""], cold_means(rows), (1, 2))]
    return "\n\n".join([*parts, report.table(COLD, list(map(cold_cells, rows)), range(1, len(COLD)))])


def headline(facts: dict) -> str:
    """The means of README.md."""
    rows = facts["rows"]
    lines = [[what, f"{v:.2f}"] for what, v, _, _ in targets(rows) if BEST in what]
    tasks = [r["group"] for r in rows if gain(r) is not None]
    reported = ", ".join(f"{tasks.count(task)} of {task}" for task in ("inference", "decoding", "training"))
    about = f"Whole models in PyTorch ({reported}; [all rows](docs/pytorch.md#speed)), geometric means:"
    return f"{about}\n\n{report.table(['', 'ratio'], lines, (1,))}"


def page(path_text: str, facts: dict) -> str:
    """The section of docs/performance.md."""
    rows = [r for r in facts["rows"] if not r.get("error", "").startswith("not run")]
    parts = [path_text]
    for task in dict.fromkeys(r.get("group", "") for r in rows if "times_us" in r):
        found = [r for r in rows if r.get("group") == task]
        parts.append(f"**{task}**: " + "; ".join(f"{r['name'].rpartition(', ')[0]}: {r['sizes']}" for r in found) + ".")
        lines = [[c[0].rpartition(", ")[0], *c[1:]] for c in map(cells, found)]
        parts.append(report.table(HEADINGS, lines, range(1, len(HEADINGS))))
    failed = [f"{r['name']}: {r['error']}" for r in rows if r.get("error")]
    parts += ["Failed: " + "; ".join(failed) + "."] if failed else []
    listed = [
        [what, f"{v:.2f}", f"{wanted:.2f}", "reached" if met else "missed"] for what, v, wanted, met in targets(rows)
    ]
    return "\n\n".join([*parts, report.table(["", "reached", "wanted", ""], listed, (1, 2))])
