"""Rows of facts as tables for a terminal, as JSON, and as Markdown."""

from __future__ import annotations

import datetime
import json
import re
import statistics
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine, short_name, versions

RESULTS = Path(__file__).parent / "results"


def save(suite: str, rows: list[dict], path: Path | None, started: dict) -> Path:
    path = path or RESULTS / f"{datetime.date.today().isoformat()}-{short_name(suite)}-{suite}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {"suite": suite, "machine": started, "versions": versions(), "rows": rows}
    path.write_text(json.dumps(facts, indent=1) + "\n")
    return path


def measured(suite: str) -> set[str]:
    """The names of the rows that the newest results of a suite have figures of."""
    files = sorted(RESULTS.glob(f"*-{suite}.json"))
    rows = json.loads(files[-1].read_text())["rows"] if files else []
    return {r["name"] for r in rows if "error" not in r and "skipped" not in r}


def merge(path: Path) -> Path:
    """Puts the rows of a file of results into the newest results of its suite on the same GPU, with today's date, or into a file
    of their own where there are none. Rows that are kept say of which run they are, and on which CPU if that is another. The
    path of what is written."""
    found = json.loads(path.read_text())
    today = datetime.date.today().isoformat()
    if not (earlier := sorted(RESULTS.glob(f"*-{found['suite']}.json"))):
        first = RESULTS / f"{today}-{short_name(found['suite'], found['machine'])}-{found['suite']}.json"
        first.write_text(path.read_text())
        return first
    before = earlier[-1]
    old = json.loads(before.read_text())
    if old["machine"]["gpu"] != found["machine"]["gpu"]:
        raise SystemExit(f"{before.name} is of {old['machine']['gpu']}, and {path.name} of {found['machine']['gpu']}")
    fresh, known = (
        {r["name"]: r for r in facts["rows"] if not any(map(_not_run, (r.get("error", ""), *r.get("errors", {}).values())))}
        for facts in (found, old)
    )
    run = f"{before.name[:10]}, commit {old['versions']['commit']}"
    processors = [facts["machine"].get("cpu") for facts in (found, old)]
    if not old["machine"]["gpu"] and processors[0] != processors[1]:
        run += f", on {processors[1]}, {old['machine']['cores']} cores"
    rows = [fresh.pop(name, {"run": run} | r) for name, r in known.items()]
    place = before.with_name(f"{today}{before.name[10:]}")
    place.write_text(json.dumps(found | {"rows": [*rows, *fresh.values()]}, indent=1) + "\n")
    return place


def last_measured(rows: list[dict]) -> list[dict]:
    """Without rows of what a later row measured, too: `matmul 4096 f32` is what `product 4096x4096x4096 f32` is."""
    latest: dict[str, tuple[str, int]] = {}
    for n, row in enumerate(rows):
        if times(row):
            key = thing(row["name"])
            latest[key] = max((row.get("measured", ""), n), latest.get(key, ("", -1)))
    return [r for n, r in enumerate(rows) if not times(r) or latest[thing(r["name"])][1] == n]


def thing(name: str) -> str:
    """What a row measures: products have one name, whatever the form of the row."""
    found = re.fullmatch(r"matmul( \+ bias \+ gelu)? (\d+)(x\d+x\d+)? (.*)", name)
    if found is None:
        return name
    what = "product, bias and gelu" if found[1] else "product"
    return f"{what} {found[2]}{found[3] or f'x{found[2]}x{found[2]}'} {found[4]}"


def _not_run(error: str) -> bool:
    return error.startswith("not run")


def table(headings: list[str], rows: Iterable[Iterable[str]], right: Iterable[int] = ()) -> str:
    """A table in Markdown. `right`: the columns whose cells stand at the right."""
    right = set(right)
    rule = ["---:" if n in right else "---" for n in range(len(headings))]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in (headings, rule, *rows)
    )


def time_text(us: float | None) -> str:
    if us is None:
        return ""
    if us >= 1e6:
        return f"{us / 1e6:.2f} s"
    return f"{us / 1e3:.2f} ms" if us >= 1000 else f"{us:.1f} us"


def ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over and under else None


def times(row: dict) -> dict[str, float]:
    return row.get("times_us", {})


def best_peer(row: dict, end: str = "") -> float | None:
    """The fastest of the others, in the same way of calling; on the GPU that is the only way."""
    peers = [
        t for k, t in times(row).items() if k.endswith(end) and ("out=" in k) == bool(end) and not k.startswith("tilec")
    ]
    return min(peers, default=None)


def speed(row: dict, us: float | None) -> str:
    if not us:
        return ""
    if row.get("flops"):
        rate = row["flops"] / us / 1e3  # GFLOP/s
        return f"{rate / 1e3:.1f} TFLOP/s" if rate > 1e4 else f"{rate:.0f} GFLOP/s"
    if row.get("bytes"):
        rate = row["bytes"] / us / 1e3  # GB/s
        return f"{rate / 1e3:.2f} TB/s" if rate > 1e3 else f"{rate:.1f} GB/s"
    return ""


# ---- targets ---------------------------------------------------------------------------------------------------------

FUSED = ("softmax", "layernorm", "gelu")
MULTIPLIED = {"matmul": 0.95, "linear": 0.95, "attention": 1.0, "conv2d": 1.0}
"""What CPUs should reach of the best peer's speed."""
TENSORS = "tilec, of tensors"
ALLOCATED = ("copy", "transpose 4096", "softmax 4096", "layernorm 4096", "rmsnorm 4096")  # of large results, bound by memory
NARROW = EXAMPLE = 0.9  # in products of bf16, and of every example


def targets(suite: str, rows: list[dict]) -> list[tuple[str, float, float, bool]]:
    """What the project wants to reach: (what, reached, wanted, whether)."""
    return _cpu_targets(rows) if suite == "cpu" else _gpu_targets(rows)


def _cpu_targets(rows: list[dict]) -> list[tuple[str, float, float, bool]]:
    found = []
    by_start = {r["name"].split(" ")[0]: r for r in rows if times(r)}
    if "cos" in by_start and "cos(cos)" in by_start:
        value = ratio(times(by_start["cos(cos)"]).get("tilec, out="), times(by_start["cos"]).get("tilec, out="))
        found.append(("cos(cos(x)) over cos(x), at most", value, 1.05, bool(value and value <= 1.05)))
    for row in rows:
        t = times(row)
        for end in WAYS["cpu"]:
            name, ours = row["name"] + end, t.get("tilec" + end)
            numpy, best = ratio(t.get("numpy" + end), ours), ratio(best_peer(row, end), ours)
            if row["name"].startswith(FUSED) and numpy:
                found.append((f"{name}: NumPy's time over ours", numpy, 2.0, numpy >= 2))
            if row["name"].startswith(FUSED) and best:
                found.append((f"{name}: best peer's time over ours", best, 1.0, best >= 1))
            torch = min((t[k] for k in ("torch", "torch.compile") if k in t), default=None)
            if not end and row["name"].startswith(ALLOCATED) and (value := ratio(torch, t.get(TENSORS))):
                found.append((f"{name}, of tensors: PyTorch's best time over ours", value, 2.5, value >= 2.5))
            if row.get("group") == "example" and best:
                found.append((f"{name}: best peer's time over ours", best, EXAMPLE, best >= EXAMPLE))
            if row["name"].startswith("matmul") and numpy:
                found.append((f"{name}: NumPy's time over ours", numpy, 0.7, numpy >= 0.7))
            if best and (wanted := MULTIPLIED.get(row["name"].split(" ")[0])):
                wanted = NARROW if wanted < 1 and "bf16" in row["name"] else wanted
                found.append((f"{name}: best peer's time over ours", best, wanted, best >= wanted))
    for end, meaning in WAYS["cpu"].items():
        limited = [r for r in rows if r.get("group") == "memory"]
        shares = {r["name"]: s for r in limited if (s := ratio(best_peer(r, end), times(r).get("tilec" + end)))}
        if shares:
            mean = statistics.geometric_mean(shares.values())
            found.append((f"what memory limits, {meaning}: best peer's time over ours, mean", mean, 1.2, mean >= 1.2))
        found += [(f"{name}{end}: best peer's time over ours", s, 0.9, False) for name, s in shares.items()
                  if s < 0.9 and not name.startswith(FUSED)]  # fmt: skip
    return found


def _gpu_targets(rows: list[dict]) -> list[tuple[str, float, float, bool]]:
    found = []
    copy = next((r["bytes"] / times(r)["torch"] for r in rows if r.get("group") == "copy" and times(r)), None)
    for row in rows:
        t = times(row)
        if row.get("group") == "chain" and t and copy:
            value = row["bytes"] / t["tilec"] / copy
            found.append((f"{row['name']}: of copy", value, 0.95, value >= 0.95))
        if row.get("group") in ("example", "rows", "matrix") and (value := ratio(t.get("torch"), t.get("tilec"))):
            found.append((f"{row['name']}: eager's time over ours", value, 0.5, value >= 0.5))
    from benchmarks import matrix_forms

    found += matrix_forms.targets(rows)
    return found


# ---- tables ----------------------------------------------------------------------------------------------------------


WAYS = {  # how the calls of a table are made: the ending of their names, and what it means
    "cpu": {", out=": "into memory that is given (`out=`)", "": "with a result allocated by each call"},
    "gpu": {"": "by CUDA events, the L2 cache cold"},
}


def columns(rows: list[dict], end: str) -> list[str]:
    """Names of candidates, ours first; the second timing of ours is only noise."""
    names = dict.fromkeys(
        k.removesuffix(end) for r in rows for k in times(r) if k.endswith(end) and ("out=" in k) == bool(end)
    )
    return sorted((n for n in names if "again" not in n), key=lambda n: n != "tilec")


def grid(suite: str, rows: list[dict], end: str) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of one table: times, speed, ratios (more is better), noise, and whether it is right."""
    names = columns(rows, end)
    cells = []
    for row in rows:
        t = times(row)
        ours = t.get("tilec" + end)
        if not t:
            cells.append([row["name"], "failed", *[""] * (len(names) + 4)])
            continue
        base = t.get(("numpy" if suite == "cpu" else "torch") + end)
        right = {True: "yes", False: "NO"}.get(row.get("right"), "")
        line = [row["name"], *(time_text(t.get(n + end)) for n in names), speed(row, ours or t.get("torch"))]
        cells.append(
            [
                *line,
                _times(ratio(base, ours)),
                _times(ratio(best_peer(row, end), ours)),
                _percent(row.get("noise")),
                right,
            ]
        )
    base = "NumPy" if suite == "cpu" else "eager"
    return dated(["", *names, "speed", f"over {base}", "over best", "noise", "right"], cells, rows)


def dated(headings: list[str], cells: list[list[str]], rows: list[dict]) -> tuple[list[str], list[list[str]]]:
    """With the day on which each row was measured, where the rows of the table are of several."""
    days = [r.get("measured", "") for r in rows]
    return ([*headings, "measured"], [[*c, day] for c, day in zip(cells, days)]) if len(set(days)) > 1 else (headings, cells)


def compile_grid(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of the table of compile times: `times_us` has keys "who, state, what"."""
    whats: dict[str, None] = {}
    lines: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in rows:
        for key, t in times(row).items() if row.get("group") == "compile" else ():
            who, state, what = key.split(", ")
            whats[what] = None
            lines.setdefault((row["name"].removeprefix("compile "), who, state), {})[what] = t
    return ["program", "", "cache on disk", *whats], [
        [name, who, {"fresh": "empty", "cached": "filled"}[state], *(time_text(t.get(w)) for w in whats)]
        for (name, who, state), t in lines.items()
    ]


def call_grid(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of the table of what calls cost the host."""
    ways = list(dict.fromkeys(way for r in rows for way in times(r)))
    return ["call", *ways], [[r["name"], *(time_text(times(r).get(way)) for way in ways)] for r in rows]


def others(rows: list[dict]) -> list[str]:
    """Lines for the rows that have no place in a table."""
    lines = []
    for row in rows:
        if row.get("group") == "host" and times(row):
            lines.append(f"{row['name']}: " + "; ".join(f"{k} {time_text(t)}" for k, t in times(row).items()))
        if row.get("error"):
            lines.append(f"{row['name']}: {row['error']}")
        lines += [f"{row['name']}: {who}: {note}" for who, note in row.get("notes", {}).items()]
    return lines


def in_tables(rows: list[dict]) -> list[dict]:
    """Those of the table of all candidates; programs for matrix units have their own (`matrix_forms.tables`)."""
    return [r for r in rows if r.get("group") not in ("compile", "host", "form")]


def print_table(console: Console, title: str, headings: list[str], cells: list[list[str]], left: int = 1) -> None:
    table = Table(title=title, title_justify="left")
    for n, heading in enumerate(headings):
        table.add_column(heading, justify="left" if n < left else "right", no_wrap=not n)
    for line in cells:
        table.add_row(*line)
    console.print(table)


def show(suite: str, rows: list[dict], console: Console) -> None:
    console.width = max(console.width, 150)
    for end, meaning in WAYS[suite].items():
        print_table(console, f"{suite}, {meaning}", *grid(suite, in_tables(rows), end))
    headings, cells = compile_grid(rows)
    if cells:
        print_table(console, "compiling, in a new process", headings, cells, 3)
    for line in others(rows):
        console.print(line, highlight=False, markup=False)
    reached = targets(suite, rows)
    if reached:
        cells = [
            [what, f"{value:.2f}", f"{wanted:.2f}", "" if met else "missed"] for what, value, wanted, met in reached
        ]
        print_table(console, "targets", ["", "reached", "wanted", ""], cells)
    wrong = [r["name"] for r in rows if r.get("right") is False]
    failed = [r["name"] for r in rows if r.get("error")]
    console.print(f"{len(rows)} rows, {len(failed)} failed{': ' + ', '.join(failed) if failed else ''}; "
                  f"{len(wrong)} wrong{': ' + ', '.join(wrong) if wrong else ''}; "
                  f"{sum(not t[3] for t in reached)} of {len(reached)} targets missed")  # fmt: skip


def _times(value: float | None) -> str:
    return f"{value:.2f}" if value else ""


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}%"


def started() -> dict:
    return machine()
