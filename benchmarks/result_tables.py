"""The generated parts of README.md and docs/ that say what was measured, from the files in `results/`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks import audit_report, kernelbench_report, matrix_forms, memory_report, models_report, report, size_report
from benchmarks.report import table

ROOT = Path(__file__).parents[1]


def newest(suite: str) -> tuple[Path, dict] | None:
    """The newest file of a suite's results, and its facts: of each thing one row, the last that was measured, with its date."""
    files = sorted(report.RESULTS.glob(f"*-{suite}.json"))
    if not files:
        return None
    path, facts = files[-1], json.loads(files[-1].read_text())
    for row in facts["rows"]:
        row["measured"] = row.get("run", path.name)[:10]
    return path, facts | {"rows": report.last_measured(facts["rows"])}


def _reached(rows: list[dict]) -> list[dict]:
    """Without those that a run had no time for."""
    return [r for r in rows if not r.get("error", "").startswith("not run")]


def earlier(rows: list[dict]) -> str:
    """How many rows are of which earlier runs, where results were merged."""
    found = Counter(r["run"] for r in rows if "run" in r)
    return "".join(f" {n} of {len(rows)} rows are of {run}." for run, n in found.items())


def forms() -> str:
    """The programs for matrix units of the newest results, by form."""
    found = newest("gpu")
    made = matrix_forms.tables(_reached(found[1]["rows"])) if found else ""
    return made or "No results yet: `python -m benchmarks gpu` writes them."


def forms_missed() -> str:
    """What the programs for matrix units of the newest results miss, and why."""
    if (found := newest("gpu")) is None:
        return "No results yet: `python -m benchmarks gpu` writes them."
    if not (lines := matrix_forms.missed(_reached(found[1]["rows"]))):
        return "No form misses what is wanted of it."
    return table(["form", "measure", "wanted", "reached", "rows below", "reason"], lines, ())


def calls() -> str:
    """What a call costs the host."""
    if (found := newest("calls")) is None:
        return "No results yet: `python -m benchmarks calls` writes them."
    path, facts = found
    machine, (headings, lines) = facts["machine"], report.call_grid(facts["rows"])
    where = f"{machine['cpu']}, {machine['cores']} cores" + (f"; {machine['gpu']}" if machine["gpu"] else "")
    about = f"{where}; torch {facts['versions']['torch']}; {path.name[:10]}, commit {facts['versions']['commit']}, from "
    return f"{about}[`{path.name}`](../{path.relative_to(ROOT)}):\n\n{table(headings, lines, range(1, len(headings)))}"


def sizes() -> str:
    """Programs and models whose sizes vary, a part for each kind of target."""
    parts = []
    for target in ("cpu", "cuda"):
        if (found := _of_run(f"{target}-sizes")) is not None:
            run, rows = found
            parts.append(run)
            for title, headings, cells in size_report.tables(rows):
                left = (4,) if headings == size_report.LOSS else ()
                right = [n for n in range(1, len(headings)) if n not in left]
                parts += [f"{title[0].upper()}{title[1:]}:", table(headings, cells, right)]
            parts += ["\n".join(f"- {note}" for note in size_report.notes(rows))]
    return "\n\n".join(filter(None, parts)) or "No results yet: `python -m benchmarks sizes` writes them."


def kernelbench() -> str:
    """KernelBench's problems of the newest results: as they stand and with other numbers, in f32 and in bf16."""
    parts = []
    for suite, title in kernelbench_report.SUITES.items():
        if (found := newest(suite)) is not None:
            path, facts = found
            with_ = ", ".join(f"{k} {v}" for k, v in facts["versions"].items() if k in ("torch", "triton"))
            about = f"{facts['machine']['gpu']}; {with_}; {path.name[:10]}, commit {facts['versions']['commit']}, from "
            about += f"[`{path.name}`](../{path.relative_to(ROOT)}).{earlier(facts['rows'])}"
            parts.append(f"**{title}**: {about}\n\n{kernelbench_report.page(facts['rows'])}")
    return "\n\n".join(parts) or "No results yet: `python -m benchmarks kernelbench FOLDER` writes them."


def models() -> str:
    """Whole models, of the newest results."""
    return _models("models", models_report.page)


def models_cold() -> str:
    """How long models take until their first step is done."""
    return _models("models-cold", models_report.cold_page)


def _models(suite: str, page: Callable[[str, dict], str]) -> str:
    if (found := newest(suite)) is None:
        return f"No results yet: `python -m benchmarks models{' --cold' * (suite == 'models-cold')}` writes them."
    path, facts = found
    with_ = ", ".join(f"{k} {v}" for k, v in facts["versions"].items() if k in ("torch", "triton", "transformers", "timm"))
    machine = facts["machine"]
    where = f"{machine['gpu']}; "
    if "cold" in suite:
        where += f"{machine['cpu']}, {machine['cores']} cores, {machine['at_once']} rows at a time; "
    about = f"{where}{with_}; {path.name[:10]}, commit {facts['versions']['commit']}, from "
    about += f"[`{path.name}`](../{path.relative_to(ROOT)}).{earlier(facts['rows'])}"
    return page(about, facts)


def results(suite: str, found: tuple[Path, dict] | None = None) -> str:
    found = found or newest(suite)
    if found is None:
        return f"No results yet: `python -m benchmarks {suite}` writes them."
    path, facts = found
    machine, versions = facts["machine"], facts["versions"]
    where = machine["gpu"] if suite == "gpu" else f"{machine['cpu']}, {machine['cores']} cores"
    with_ = ", ".join(f"{k} {v}" for k, v in versions.items() if k in ("numpy", "torch", "jax", "triton", "numba"))
    parts = [
        f"{where}; {with_}; {path.name[:10]}, commit {versions['commit']}, from "
        f"[`{path.name}`](../{path.relative_to(ROOT)})."
    ]
    rows = _reached(facts["rows"])
    parts[0] += earlier(rows)
    for end, meaning in report.WAYS[suite].items():
        headings, cells = report.grid(suite, report.in_tables(rows), end)
        parts.append(f"Medians, {meaning}:")
        parts.append(table(headings, cells, range(1, len(headings))))
    headings, cells = report.compile_grid(rows)
    if cells:
        parts.append("Compiling, in a new process (small sizes; *next shape* is the same program for other sizes):")
        parts.append(table(headings, cells, range(3, len(headings))))
    if lines := report.others(rows):
        parts.append("\n".join(f"- {line}" for line in lines))
    reached = report.targets(suite, rows)
    if missed := [f"{what} ({value:.2f}, wanted {wanted:.2f})" for what, value, wanted, met in reached if not met]:
        parts.append(f"{len(missed)} of {len(reached)} targets are missed: " + "; ".join(missed) + ".")
    elif reached:
        parts.append(f"All {len(reached)} targets are met.")
    return "\n\n".join(parts)


HEADLINES = {  # of the many rows, those that the README shows, by how their names begin
    "gpu": ("example gelu", "example softmax", "example layernorm", "example cross_entropy",
            "example transpose", "example causal_attention", "example transformer_block", "product 8192x8192x8192 bf16"),
    "cpu": ("softmax 4096", "layernorm 4096", "gelu (tanh) 4096", "sum of rows 4096", "transpose 4096", "matmul 2048",
            "softmax 32x32"),
}  # fmt: skip


def headlines() -> str:
    """A few rows of each suite, with where they were measured."""
    parts = []
    runs = [(s, run, names) for s, names in HEADLINES.items() if (run := newest(s)) is not None]
    for suite, (path, facts), names in runs:
        where = facts["machine"]["gpu"] or f"{facts['machine']['cpu']}, {facts['machine']['cores']} cores"
        (end, meaning), *_ = report.WAYS[suite].items()
        rows = [r for r in _reached(facts["rows"]) if r["name"].startswith(names) and r.get("group") != "compile"]
        if not rows:
            continue
        headings, cells = report.grid(suite, rows, end)
        of = {r.get("run", f"{path.name[:10]}, commit {facts['versions']['commit']}"): None for r in rows}
        here = "" if all(", on " in run for run in of) else f"{where}, "  # rows of another machine name it
        parts.append(f"{here}{'; '.join(of)}, {meaning}:")
        parts.append(table(headings, cells, range(1, len(headings))))
    if (found := newest("models")) is not None:
        parts.append(models_report.headline(found[1]))
    return "\n\n".join(parts)


def compile_results() -> str:
    """How long programs take to become ready to launch."""
    from benchmarks.compiling import HEADINGS, cells, summary

    found = newest("compile")
    if found is None:
        return "No results yet: `python -m benchmarks compile` writes them."
    path, facts = found
    machine = facts["machine"]
    others = f", {n} programs at a time" if (n := machine.get("at_once", 1)) > 1 else ""
    parts = [
        f"{machine['cpu']}, {machine['cores']} cores{others}, from [`{path.name}`](../{path.relative_to(ROOT)}):",
        table(HEADINGS, cells(facts["rows"]), range(2, len(HEADINGS))),
        *summary(facts["rows"]),
    ]
    return "\n\n".join(parts)


def _of_run(suite: str) -> tuple[str, list[dict]] | None:
    """Where and when the newest results were measured, and their rows."""
    if (found := newest(suite)) is None:
        return None
    path, facts = found
    machine, versions = facts["machine"], facts["versions"]
    where = machine["cpu"] + f", {machine['cores']} cores" if "cpu" in suite else machine["gpu"]
    with_ = ", ".join(f"{k} {v}" for k, v in versions.items() if k in ("numba-cuda-mlir", "torch", "triton"))
    link = f"[`{path.name}`](../{path.relative_to(ROOT)})"
    rows = facts["rows"]
    return f"{where}; {with_}; {path.name[:10]}, commit {versions['commit']}, from {link}.{earlier(rows)}", rows


def memory_run() -> str:
    found = _of_run("memory")
    return found[0] if found else "No results yet: `python -m benchmarks memory` writes them."


def memory_kinds() -> str:
    if (found := _of_run("memory")) is None:
        return ""
    headings, *lines = memory_report.summary(found[1])
    asides = [
        f"{name[0].upper()}{name[1:]}: {', '.join(f'{k} {report.time_text(t)}' for k, t in reported)}."
        for name, reported in memory_report.asides(found[1])
    ]
    return "\n\n".join([table(headings, lines, range(1, len(headings))), *asides])


def memory_missed() -> str:
    if (found := _of_run("memory")) is None:
        return ""
    reached, lines = memory_report.targets(found[1]), memory_report.missed_groups(found[1])
    count = sum(not met for *_, met in reached)
    message = f"{count} of {len(reached)} targets are missed. The targets: a speed of "
    message += " and ".join(f"{share} of a copy's for {kind}" for kind, share in _wanted()) + "; no faster peer; "
    message += f"a geometric mean of {memory_report.GEOMEAN} over torch.compile; gelu as fast as relu, cos(cos) as cos, within 2%; "
    message += "a third of torch.compile's host time for a call, and no more than Triton's. "
    if means := memory_report.large(found[1]):
        message += f"Without the small programs the mean is {means[0]:.2f}; "
        message += f"if all programs ran at a copy's speed, it would be {means[1]:.2f}. "
    message += "A row has the programs that miss targets for one reason, the values that they reach, and the number of shapes."
    headings = ["programs", "of copy", "best peer's time over ours", "ratio", "reason"]
    return message + "\n\n" + table(headings, lines, (1, 2, 3))


def _wanted() -> list[tuple[str, float]]:
    """Kinds of programs by the share of a copy's speed that they should reach."""
    by_share: dict[float, list[str]] = {}
    for kind, share in memory_report.OF_COPY.items():
        by_share.setdefault(share, []).append(kind if kind == "rows" else f"{kind}s")
    return [(", ".join(kinds), share) for share, kinds in by_share.items()]


def audits() -> str:
    """What the audits of programs that memory limits found, a part for each kind of target."""
    parts = [part for target in ("cuda", "cpu") for part in _audit(target)]
    return "\n\n".join(parts) or "No results yet: `python -m benchmarks audit` writes them."


def matrix_audit() -> str:
    """What the audit of programs for matrix units found."""
    return "\n\n".join(_audit("matrix")) or "No results yet: `python -m benchmarks audit --matrix` writes them."


def _audit(kind: str) -> list[str]:
    if (found := _of_run(f"{kind}-audit")) is None:
        return []
    run, rows = found
    reached = [
        f"{what} {value:.3g} (wanted {wanted:g}{'' if met else ', missed'})"
        for what, value, wanted, met in audit_report.targets(rows, kind == "matrix")
    ]
    parts = [run, "; ".join(reached).capitalize() + ".", _wide_table(audit_report.by_kind(rows))]
    parts.append(f"![Predicted and measured times, and choices](images/audit-{kind}.png)")
    if (worst := audit_report.worst(rows))[1]:
        parts += ["The points where the choice was furthest from the best plan:", _wide_table(worst)]
    return parts


def edits() -> str:
    """How the predicted and the measured times of edited schedules are ordered, a part for each kind of target."""
    from benchmarks import edits as suite

    parts = []
    for target in ("cpu", "cuda"):
        if (found := _of_run(f"{target}-edits")) is not None:
            run, rows = found
            parts += [run, table(*suite.by_family(rows), range(1, 4))]
    return "\n\n".join(parts) or "No results yet: `python -m benchmarks edits` writes them."


def _wide_table(made: tuple[list[str], list[list[str]]]) -> str:
    return table(*made, range(1, 4))


def numerics() -> str:
    """The largest errors measured, a table for each kind of target that results exist of."""
    from benchmarks.numerics import TYPES, described

    parts = []
    for kind in ("cpu", "cuda"):
        if (found := newest(f"{kind}-numerics")) is None:
            parts.append(f"Not measured on {kind.upper()} yet: `python -m benchmarks numerics` does.")
            continue
        path, facts = found
        machine = facts["machine"]["gpu"] if kind == "cuda" else facts["machine"]["cpu"]
        counts = {r["type"]: r["samples"] for r in facts["rows"] if "samples" in r and r["name"] == "exp"}
        values = ", ".join(f"{counts[t.name]:,} of {t}" for t in TYPES if t.name in counts)
        parts.append(f"{kind.upper()}: {machine}, {values} ([{path.name}](../benchmarks/results/{path.name})).")
        parts.append(table(["function", *(f"`{t}`" for t in TYPES)], described(facts), range(1, 5)))
    return "\n\n".join(parts)


def ulp_text(value: float) -> str:
    return "exact" if value == 0 else f"{value:g}"
