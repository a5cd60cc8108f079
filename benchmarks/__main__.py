"""python -m benchmarks cpu|gpu|memory [--matrix] [--json FILE] [--only TEXT ...] [--missing] [--limit SECONDS] [--no-compile]
python -m benchmarks audit [--target cpu|cuda] [--matrix] [--trials PLANS] [--json FILE] [--only TEXT ...] [--missing]
python -m benchmarks edits [--target cpu|cuda] [--trials EDITS] [--keep FOLDER] [--json FILE] [--only TEXT ...]
python -m benchmarks convolutions|nests [--trials ROWS] [--seed N] [--json FILE] [--only TEXT ...]
python -m benchmarks numerics [--json FILE] [--only FUNCTION ...] [--target cpu|cuda ...]
python -m benchmarks compile [--json FILE] [--only TEXT ...] [--target cpu|cuda ...]
python -m benchmarks sensitivity [--target cpu|cuda ...] [--only NUMBER ...] [--workers N] [--json FILE]
python -m benchmarks kernels --out FOLDER [--only TEXT ...] [--target cpu|cuda ...]
python -m benchmarks lines
python -m benchmarks large [--json FILE] [--only TEXT ...] [--target cpu|cuda ...]
python -m benchmarks calls [--json FILE] [--only TEXT ...] [--target cpu|cuda ...] [--no-compile]
python -m benchmarks models [--task inference|decoding|training] [--only TEXT ...] [--missing] [--layers N] [--target cpu|cuda]
                            [--workers N] [--limit SECONDS] [--no-compile] [--autotune] [--cold] [--json FILE]
python -m benchmarks kernelbench FOLDER [--vary SEED] [--level N] [--dtype f32|bf16] [--only TEXT ...] [--share K/N]
                                 [--predict TARGET] [--workers N] [--limit SECONDS] [--no-compile] [--json FILE]
python -m benchmarks threads [--json FILE] [--only TEXT ...]
python -m benchmarks sizes [--parts loss|calls|models|serving ...] [--only TEXT ...] [--target cpu|cuda] [--drawn N]
                           [--requests N] [--limit SECONDS] [--row-limit SECONDS] [--keep FOLDER] [--only-prepare]
                           [--workers N] [--no-compile] [--json FILE]
python -m benchmarks merge --json FILE
python -m benchmarks docs

Each row is timed and checked in a worker process: a row that fails or hangs does not stop the others. The results go to
benchmarks/results/<date>-<machine>-<suite>.json, or to FILE; those of a part of a suite (`--only`, `--missing`) to FILE alone.
`--only` runs the rows whose names contain one of the texts (models: as whole words, so that `t5` is not in `resnet50`). `--missing`
runs the rows that the newest results have no figures of, and `merge` puts the rows of FILE into these results. After `--limit` no
further row begins; one that has begun ends within its own limit. `sensitivity` moves each fitted number of the cost model, and
plans all programs again. `kernels` writes the plan and the kernels of each program into FOLDER, and `lines` counts the lines of
the product by folder. `docs` writes the figures of the newest results, and the tables that the code determines, into README.md
and docs/.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from benchmarks import audit_report, memory_report, report, runner

SUITES = (
    "cpu", "gpu", "memory", "audit", "edits", "convolutions", "nests", "compile", "large", "models", "kernelbench", "calls",
    "threads", "sizes", "numerics", "sensitivity", "kernels", "lines", "merge", "docs",
)  # fmt: skip


def rows_of(options: argparse.Namespace) -> list[runner.Row]:
    suite, compiled = options.suite, not options.no_compile
    if suite == "cpu":
        from benchmarks.cpu import suite as rows

        return rows()
    if suite == "memory":
        from benchmarks.memory import suite as memory_rows

        return memory_rows(compiled)
    if suite == "audit":
        from benchmarks.audit import suite as points

        return points(*(options.target or ["cuda"])[:1], most=options.trials, matrix=options.matrix)
    if suite == "convolutions":
        from benchmarks.convolutions import suite as convolutions

        return convolutions(options.trials, options.seed)
    if suite == "nests":
        from benchmarks.nests import suite as nests

        return nests(options.trials, options.seed)
    if suite == "edits":
        from benchmarks.edits import suite as edits

        return edits(*(options.target or ["cpu"])[:1], most=options.trials)
    from benchmarks.gpu import suite as gpu_rows

    return gpu_rows(compiled, options.matrix)


def missing(options: argparse.Namespace) -> str:
    """What the suite needs and this machine lacks, if anything: a file of failed rows would pass for the newest figures."""
    peers = options.suite in ("gpu", "memory", "models", "calls", "kernelbench", "sizes")
    if peers and find_spec("torch") is None:
        return "needs PyTorch, which is not installed"
    targets = options.target or (["cuda"] if options.suite == "audit" else ["cpu"] if options.suite == "edits" else [])
    peers = peers and not (options.suite == "models" and targets == ["cpu"])
    peers = peers and not (options.suite in ("calls", "sizes") and "cuda" not in targets)
    peers = peers and not (options.suite == "kernelbench" and options.predict)
    if not options.only_prepare and (peers or (options.suite in ("audit", "edits", "numerics") and "cuda" in targets)):
        from tilec.runtime.cuda.driver import device_info

        info = device_info()
        return "" if info.devices else f"needs a GPU, and there is none: {info.problem}"
    return ""


def numerics(options: argparse.Namespace) -> int:
    """Errors of functions, a file for each target."""
    from benchmarks.numerics import right, suite

    facts: dict[str, list[dict]] = {}
    machine, wrong = report.started(), 0
    for row in suite(options.only, options.target):
        mine = facts.setdefault(row["target"], [])
        mine.append(row)
        path = options.json and options.json.with_stem(f"{options.json.stem}-{row['target']}")
        report.save(f"{row['target']}-numerics", mine, path, machine)
        wrong += not right(row)
        message = row.get("error") or f"{row['ulp']:g} of {row['bound']:g} ulp, at {row['at']!r}, of {row['samples']}"
        print(f"{row['target']:5}{row['name']:9}{row['type']:5}{'' if right(row) else 'WRONG '}{message}", flush=True)
    return int(wrong > 0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", usage=__doc__)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("folder", nargs="?", help="a checkout of KernelBench (kernelbench)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="rows whose names contain one of these; whole words (models)")
    parser.add_argument("--missing", action="store_true", help="rows that the newest results of the suite have no figures of")
    parser.add_argument(
        "--target", nargs="*", choices=("cpu", "cuda"), default=[], help="what to measure on (all but cpu, gpu, memory)"
    )
    parser.add_argument("--limit", type=float, default=3600, help="seconds after which no further row begins")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out (gpu, memory, calls)")
    parser.add_argument("--trials", type=int, default=24, help="candidates of a kernel (audit); edits; rows")
    parser.add_argument("--seed", type=int, default=1, help="of the rows that are drawn (convolutions, nests)")
    parser.add_argument("--matrix", action="store_true", help="only programs for matrix units (gpu, audit)")
    parser.add_argument("--keep", metavar="FOLDER", help="where to leave what is prepared, or take it from")
    parser.add_argument("--only-prepare", action="store_true", help="compile all into --keep and the cache, and end")
    parser.add_argument(
        "--beside", action="store_true", help="time a row as soon as it is compiled, beside others (audit)"
    )
    parser.add_argument(
        "--workers",
        type=int,
        help="processes that prepare, 0: none (default: one a core); programs at a time (compile; default: 1)",
    )
    parser.add_argument("--out", metavar="FOLDER", help="where the texts go (kernels)")
    parser.add_argument("--task", choices=("inference", "decoding", "training"), help="rows of this task (models)")
    parser.add_argument("--layers", type=int, help="layers of each model, or all if it has fewer (models)")
    parser.add_argument("--autotune", action="store_true", help="torch.compile's max-autotune, too, which is slow (models)")
    parser.add_argument("--cold", action="store_true", help="seconds until a first step, in new processes (models)")
    parser.add_argument("--level", type=int, choices=(1, 2, 3), help="problems of this level (kernelbench)")
    parser.add_argument("--vary", type=int, metavar="SEED", help="other numbers than the problems' own (kernelbench)")
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32", help="of the problems' floats (kernelbench)")
    parser.add_argument("--share", metavar="K/N", help="the K-th of N random parts of the problems (kernelbench)")
    parser.add_argument("--parts", nargs="*", default=[], help="what is measured: loss, calls, models, serving (sizes)")
    parser.add_argument("--drawn", type=int, help="sizes of a program (sizes; default: 40 on a CPU, 200 on a GPU)")
    parser.add_argument("--requests", type=int, default=2000, help="that are served (sizes)")
    parser.add_argument("--row-limit", type=float, default=300, help="seconds of a row (sizes)")
    parser.add_argument("--predict", metavar="TARGET", help="plan for a target, without a GPU (kernelbench)")
    parser.add_argument("--worker", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--ahead", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if lacking := missing(options):
        parser.exit(1, f"{parser.prog} {options.suite}: {lacking}\n")
    if options.suite == "compile":
        from benchmarks.compiling import run

        return run(options)
    if options.suite == "large":
        from benchmarks.large import run as run_large

        return run_large(options)
    if options.suite == "models":
        from benchmarks.models import run as run_models

        return run_models(options)
    if options.suite == "kernelbench":
        from benchmarks.kernelbench import run as run_problems

        if options.folder is None:
            parser.error("kernelbench needs a FOLDER: a checkout of KernelBench")
        return run_problems(options)
    if options.suite == "calls":
        from benchmarks.calls import run as run_calls

        return run_calls(options)
    if options.suite == "sensitivity":
        from benchmarks.sensitivity import run as run_sensitivity

        return run_sensitivity(options)
    if options.suite == "kernels":
        from benchmarks.kernels import run as run_kernels

        if not options.out:
            parser.error("kernels needs --out FOLDER")
        return run_kernels(options)
    if options.suite == "lines":
        from benchmarks.lines import show as show_lines

        return show_lines()
    if options.suite == "threads":
        from benchmarks import threads

        if options.worker is not None:
            threads.worker(*options.worker)
            return 0
        return threads.run(options)
    if options.suite == "sizes":
        from benchmarks.sizes import run as run_sizes

        return run_sizes(options)
    if options.suite == "merge":
        print(f"written to {report.merge(options.json)}")
        return 0
    if options.suite == "docs":
        from benchmarks.docs import write

        return write()
    if options.suite == "numerics":
        return numerics(options)
    rows = [r for r in rows_of(options) if not options.only or any(o in r.name for o in options.only)]
    if not rows:
        parser.error(f"no row's name contains any of {options.only}")
    if options.missing:
        known = report.measured(suite_of(options))
        rows = [r for r in rows if r.name not in known]
        print(f"{len(rows)} rows have no figures yet", flush=True)
    if runner.works(rows, options.worker, options.ahead):
        return 0
    return timed(options, rows)


def suite_of(options: argparse.Namespace) -> str:
    """As the files of results name it."""
    kind = "matrix" if options.matrix else (options.target or ["cuda"])[0]
    if options.suite == "edits":
        return f"{(options.target or ['cpu'])[0]}-edits"
    return f"{kind}-audit" if options.suite == "audit" else options.suite


def timed(options: argparse.Namespace, rows: list[runner.Row]) -> int:
    """Prepares the rows beside each other, runs one after another, and shows and saves what they found."""
    console, facts, machine = Console(), [], report.started()
    suite, path = suite_of(options), options.json
    kept = path or not (options.only or options.missing)
    end = time.monotonic() + options.limit
    command = [sys.executable, "-m", "benchmarks", options.suite]
    command += ["--target", *options.target, "--trials", str(options.trials), "--seed", str(options.seed)]
    command += ["--no-compile"] * options.no_compile + ["--matrix"] * options.matrix
    with nullcontext(options.keep) if options.keep else tempfile.TemporaryDirectory() as folder:
        os.environ |= {"BENCHMARKS_FOLDER": folder, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torchinductor"}
        share = 1 if options.only_prepare else 0.5
        workers = machine["cores"] if options.workers is None else options.workers
        ahead = [*command, *["--only-prepare"] * options.only_prepare, "--ahead"]
        if options.beside:
            os.environ["BENCHMARKS_WAIT"] = str(time.time() + options.limit)
            known, beside = {}, threading.Thread(target=runner.prepare, args=(ahead, rows, max(1, workers - 1), end))
            beside.start()
        else:
            known, beside = runner.prepare(ahead, rows, workers, time.monotonic() + share * options.limit), None
        if options.only_prepare:
            return 0
        for choice in Path(folder).rglob("*.best_config"):  # made while others ran beside it: it will choose once more
            choice.unlink()
        for found in runner.run([*command, "--worker"], rows, end):
            facts.append(known.get(found["name"], {}) | found)
            path = report.save(suite, facts, options.json, machine) if kept else None
            reported = report.time_text(ours(found)) or found.get("error", "")
            console.print(f"{found['name']:44} {reported}", highlight=False, markup=False)
        if beside:
            beside.join()
    match options.suite:
        case "memory":
            memory_report.show(facts, console)
        case "audit":
            audit_report.show(facts, console, options.matrix)
        case "convolutions" | "nests":
            from benchmarks.nests import show as show_drawn

            show_drawn(options.suite, facts, console)
        case "edits":
            from benchmarks.edits import show

            show(facts, console)
        case _:
            report.show(options.suite, facts, console)
    console.print(f"written to {path}" if kept else "not written: a part of a suite needs --json FILE")
    return int(any(f.get("error") or f.get("right") is False for f in facts))


def ours(found: dict) -> float | None:
    """tilec's time in a row."""
    return (
        found.get("tilec_us")
        or found.get("own_us")
        or next((t for k, t in report.times(found).items() if k.startswith("tilec")), None)
    )


if __name__ == "__main__":
    sys.exit(main())
