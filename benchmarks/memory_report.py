"""The memory suite's table and targets."""

from __future__ import annotations

from math import exp, log

from rich.console import Console

from benchmarks.report import print_table, time_text

OF_COPY = {"chain": 0.95, "reduction": 0.95, "transpose": 0.95, "rows": 0.93}  # least share of a copy's speed
LEVEL = 0.98  # times of one kernel differ by so much from run to run
GEOMEAN = 1.4  # over torch.compile
OVER_HOST = {"torch.compile": 3.0, "triton": 1.0}  # least of a peer's host time of a call over ours
PAIRS = (("gelu (tanh)", "relu", 1.02), ("cos(cos)", "cos", 1.02))


def timed(rows: list[dict]) -> list[dict]:
    return [r for r in rows if "tilec_us" in r]


def of_copy(row: dict) -> float:
    """Speed over that of a copy of the same run."""
    return row["bytes"] / row["tilec_us"] / (row["copy_bytes"] / row["copy_us"])


def over_best(row: dict) -> float | None:
    """The best peer's time over ours."""
    return min(row["peers_us"].values()) / row["tilec_us"] if row["peers_us"] else None


def over(row: dict, peer: str) -> float | None:
    return row["peers_us"][peer] / row["tilec_us"] if peer in row["peers_us"] else None


def geomean(values: list[float]) -> float | None:
    return exp(sum(map(log, values)) / len(values)) if values else None


def targets(rows: list[dict]) -> list[tuple[str, float, float, bool]]:
    """What the project wants: (what, reached, wanted, whether)."""
    found = []
    for row in timed(rows):
        if (wanted := OF_COPY.get(row["kind"])) is not None:
            found.append((f"{row['name']}: of copy", of_copy(row), wanted, of_copy(row) >= wanted))
        if (value := over_best(row)) is not None:
            found.append((f"{row['name']}: best peer's time over ours", value, 1.0, value >= LEVEL))
    if value := geomean([v for r in timed(rows) if (v := over(r, "torch.compile"))]):
        found.append(("geometric mean of torch.compile's time over ours", value, GEOMEAN, value >= GEOMEAN))
    for row in rows:
        hosts = row.get("host_us", {})
        for peer, wanted in OVER_HOST.items():
            if peer in hosts:
                value = hosts[peer] / hosts["tilec"]
                found.append((f"{row['name']}: {peer}'s over ours", value, wanted, value >= wanted))
    by_name = {r["name"]: r for r in timed(rows)}
    for one, other, wanted in PAIRS:
        for name, row in by_name.items():
            base = by_name.get(name.replace(one, other, 1))
            if name.startswith(f"{one} ") and base and row["kind"] == "chain":
                value = row["tilec_us"] / base["tilec_us"]
                found.append((f"{name} over {other}, at most", value, wanted, value <= wanted))
    return found


def large(rows: list[dict]) -> tuple[float, float] | None:
    """torch.compile's time over ours, the geometric mean of the programs that are not small; and over a copy's of as many bytes,
    which is the most that there is to gain from it."""
    found = [r for r in timed(rows) if r["kind"] != "small" and over(r, "torch.compile")]
    ours = geomean([over(r, "torch.compile") for r in found])
    return ours and (ours, geomean([over(r, "torch.compile") / of_copy(r) for r in found]))


def missed(rows: list[dict]) -> list[tuple[str, float, float, bool]]:
    return [t for t in targets(rows) if not t[3]]


SMALL = "the kernel takes a few microseconds, and an empty one 3.5; exponentials and divisions are more exact than those of peers"
TRANSPOSED = "elements of 2 bytes are transposed one at a time, which takes twice the instructions of f32"
REDUCED = "the start and the end of the kernel take 4 of some 65 us"
POINTS = "one load and one store a thread are a few percent slower than PyTorch's; the cause is unknown"
ARITHMETIC = "arithmetic takes about as long as memory, since bf16 has twice as many elements in the same bytes"
NEXT_TO = "rows are unaligned: accesses are narrower, or cross cache lines"
REASONS = (  # programs by the beginning of their names, types and kinds likewise, and why they miss targets
    (
        "geometric",
        "",
        "torch.compile is near a copy's speed, too, or the kernel takes a few microseconds: little is left to gain",
    ),
    ("host time", "", "the host waits for the kernel, to read the result of its check; `deferred_checks=True` avoids that"),
    ("cos(cos)", "", ARITHMETIC),
    ("gelu (erf)", "bf16", ARITHMETIC),
    ("cos", "bf16", ARITHMETIC),
    ("column + row", "", "the kernel only writes"),
    ("x + z transposed", "bf16", TRANSPOSED),
    ("", "bf16 transpose", TRANSPOSED),
    ("", "f32 transpose", "blocks write short pieces"),
    ("", "bf16 chain", POINTS),
    ("", "f32 chain", POINTS),
    ("gather", "", "each block of a row reads the indices again, and checks them"),
    ("", "bf16 reduction", REDUCED),
    ("", "f32 reduction", REDUCED),
    ("cross_entropy", "", "the loads of a row wait for its exponentials"),
    ("residual + layernorm", "", "arithmetic takes longest, of random numbers"),
    ("", "bf16 small", SMALL),
    ("", "f32 small", SMALL),
    ("", "", "a row is loaded, reduced and stored one after another, and other rows hide only a part of the waiting"),
)


def reason(row: dict) -> str:
    """Why a row misses its targets, as far as it is known."""
    if row.get("kind") == "rows" and row["length"] % 64:
        return NEXT_TO
    kind = f"{row.get('dtype', '')} {row.get('kind', '')}"
    return next(why for start, of, why in REASONS if row["name"].startswith(start) and kind.startswith(of))


KINDS = ("copy", "peer", "ratio")


def missed_groups(rows: list[dict]) -> list[list[str]]:
    """Missed targets by their reason: the programs, the worst and the best share of a copy's speed where that is missed, the
    same over the best peer, and of the ratios between programs."""
    by_name = {r["name"]: r for r in timed(rows)}
    programs: dict[str, dict[str, set[str]]] = {}
    values: dict[tuple[str, str], list[float]] = {}
    for what, value, _, _ in missed(rows):
        name, _, target = what.partition(": ")
        row = by_name.get(name, {"name": name, "program": name})
        kind = "copy" if target == "of copy" else "peer" if target else "ratio"
        programs.setdefault(reason(row), {}).setdefault(row["program"], set()).add(row.get("dtype", ""))
        values.setdefault((reason(row), kind), []).append(value)
    return [
        [", ".join(_with_type(*p) for p in mine.items()), *(_span(values.get((why, k), [])) for k in KINDS), why]
        for why, mine in programs.items()
    ]


def _with_type(program: str, types: set[str]) -> str:
    """The program, with its type where only one of both is meant."""
    return program if len(types) != 1 else f"{program} {next(iter(types))}".strip()


def _span(values: list[float]) -> str:
    """`0.81 to 0.92 (4)`: from which to which value, of how many."""
    if len(values) < 2:
        return f"{values[0]:.2f}" if values else ""
    return f"{min(values):.2f} to {max(values):.2f} ({len(values)})"


def summary(rows: list[dict]) -> list[list[str]]:
    """Headings, then a line for each kind: how many rows, share of copy (median, least), peers."""
    lines = [["kind", "rows", "of copy, median", "least", "over torch.compile", "over eager", "over best, least"]]
    for kind in dict.fromkeys(r["kind"] for r in timed(rows)):
        mine = [r for r in timed(rows) if r["kind"] == kind]
        shares = sorted(map(of_copy, mine))
        means = [geomean([v for r in mine if (v := over(r, p))]) for p in ("torch.compile", "torch")]
        best = [v for r in mine if (v := over_best(r))]
        shown = [
            _ratio(shares[len(shares) // 2]),
            _ratio(shares[0]),
            *map(_ratio, means),
            _ratio(min(best, default=None)),
        ]
        lines.append([kind, str(len(mine)), *shown])
    return lines


def grid(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of the table of all rows."""
    peers = list(dict.fromkeys(p for r in timed(rows) for p in r["peers_us"]))
    cells = []
    for row in rows:
        if row.get("kind") in ("host", "cache"):
            continue
        if "tilec_us" not in row:
            cells.append([row["name"], "failed", *[""] * (len(peers) + 6)])
            continue
        times = [time_text(row["peers_us"].get(p)) for p in peers]
        cells.append([
            row["name"], time_text(row["tilec_us"]), time_text(row["copy_us"]), *times,
            f"{row['bytes'] / row['tilec_us'] / 1e6:.2f} TB/s", _ratio(of_copy(row)), _ratio(over_best(row)),
            _ratio(row["predicted_us"] / row["tilec_us"]), {True: "yes", False: "NO"}[row["right"]],
        ])  # fmt: skip
    return ["", "tilec", "copy", *peers, "speed", "of copy", "over best", "predicted", "right"], cells


def asides(rows: list[dict]) -> list[tuple[str, list[tuple[str, float]]]]:
    """Rows that are of no program: names, and what took how many microseconds."""
    return [(r["name"], list(r[key].items())) for r in rows for key in ("host_us", "device_us") if key in r]


def show(rows: list[dict], console: Console) -> None:
    console.width = max(console.width, 150)
    print_table(console, "memory, by CUDA events, the L2 cache cold", *grid(rows))
    headings, *lines = summary(rows)
    print_table(console, "by kind", headings, lines)
    for name, reported in asides(rows):
        message = "; ".join(f"{k} {time_text(t)}" for k, t in reported)
        console.print(f"{name}: {message}", highlight=False, markup=False)
    for row in rows:
        for who, text in ({"": row["error"]} if row.get("error") else row.get("notes", {})).items():
            console.print(f"{row['name']}: {who} {text}", highlight=False, markup=False)
    reached = targets(rows)
    cells = [[what, f"{value:.3f}", f"{wanted:.2f}", "" if met else "missed"] for what, value, wanted, met in reached]
    print_table(console, "targets", ["", "reached", "wanted", ""], cells)
    wrong = [r["name"] for r in rows if r.get("right") is False]
    failed = [r["name"] for r in rows if r.get("error")]
    console.print(f"{len(rows)} rows, {len(failed)} failed: {failed}; {len(wrong)} wrong: {wrong}; "
                  f"{sum(not t[3] for t in reached)} of {len(reached)} targets missed", markup=False)  # fmt: skip


def _ratio(value: float | None) -> str:
    return f"{value:.2f}" if value else ""
