"""Compiles models of transformers and timm, or PyTorch's samples of operators and modules, judges each against f64, and writes the
counts into docs/outside.md. Compiles models that run on several processes."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from tests.outside.report import replace_section
from tests.pytorch import distributed, runs
from tests.pytorch.agreement import CRASHED, SKIPPED, VERDICTS, WRONG, Outcome
from tests.pytorch.judge import Step, Verdict, judge
from tests.pytorch.runs import KINDS
from tests.pytorch.samples import Choice
from tests.pytorch.zoo import Model, models

LIMIT_S = 1800  # of one model
REASONS = 60  # that docs/outside.md lists
PACKAGES = ("torch", "transformers", "timm")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pytorch", description="Programs of others")
    about = "models of transformers and timm; PyTorch's samples of operators or modules; aot_autograd_check of operators' samples"
    about += "; models on several processes, beside eager mode"
    parser.add_argument("what", nargs="?", default="models", choices=["models", *KINDS, "distributed"], help=about)
    parser.add_argument("--only", nargs="*", default=[], help="models of these names; operators, modules with these in their names")
    parser.add_argument("--inference", action="store_true", help="models: no training step")
    parser.add_argument("--every", type=int, default=1, help="every nth sample of each operator or module")
    parser.add_argument("--seed", type=int, default=0, help="which of them, and their numbers")
    parser.add_argument("--dtype", default="float32", help="the samples' type")
    parser.add_argument("--strided", action="store_true", help="samples whose tensors have gaps")
    parser.add_argument("--inplace", action="store_true", help="the operators' variants that change their first tensor")
    parser.add_argument("--dynamo", action="store_true", help="samples: by torch.compile, not by AOTAutograd alone")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time; a model has one of its own")
    parser.add_argument("--write", action="store_true", help="the counts into docs/outside.md")
    parser.add_argument("--log", type=Path, help="a file of outcomes, lines of JSON; what it has is not run again")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="distributed: gloo, or NCCL")
    parser.add_argument("--ranks", type=int, default=2, help="distributed: processes, each with a GPU of its own")
    parser.add_argument("--limit", type=float, default=distributed.LIMIT_S, help="distributed: seconds until what hangs is ended")
    parser.add_argument("--time", action="store_true", help="distributed: ms of a step beside eager mode and torch.compile")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.what == "distributed":
        return distributed.work(options.worker) if options.worker else distributed.main(options)
    if options.worker:
        return runs.work(options.worker) if options.worker.startswith("{") else _work(options.worker, not options.inference)
    return _models(options) if options.what == "models" else _samples(options)


def _models(options: argparse.Namespace) -> int:
    chosen = [m for m in models() if not options.only or m.name in options.only]
    logged = options.log.read_text().splitlines() if options.log and options.log.exists() else []
    known = {v.model: v for v in map(_verdict, logged)}
    with ThreadPoolExecutor(options.jobs) as pool, options.log.open("a") if options.log else nullcontext() as log:

        def judged(model: Model) -> Verdict:
            if model.name in known:
                return known[model.name]
            verdict = _judged(model, options.inference)
            if log is not None:
                print(json.dumps(asdict(verdict)), file=log, flush=True)
            return verdict

        verdicts = list(pool.map(judged, chosen))
    if options.write:
        versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in PACKAGES)
        replace_section("models", section(chosen, verdicts, versions))
    return int(not all(v.right for v in verdicts))


def _samples(options: argparse.Namespace) -> int:
    choice = Choice(options.every, options.seed, options.dtype, options.strided, options.inplace)
    chosen = [n for n in runs.names(options.what) if not options.only or any(o in n for o in options.only)]
    start = time.perf_counter()
    with options.log.open("a") if options.log else nullcontext() as log:

        def report(outcome: Outcome) -> None:
            if outcome.verdict in (WRONG, CRASHED):
                print(f"{outcome.verdict.upper()} {outcome.case}\n  {outcome.message}", flush=True)
            if log is not None:
                print(json.dumps(asdict(outcome)), file=log, flush=True)

        found = runs.run_all(options.what, chosen, choice, options.jobs, report, options.dynamo, options.log)
    counts = Counter(o.verdict for o in found)
    print(f"{len(found)} samples in {time.perf_counter() - start:.0f} s: {', '.join(f'{counts[v]} {v}' for v in VERDICTS)}")
    for reason, count in reasons(found).most_common(40):
        print(f"  {count:5} {reason}")
    if options.write:
        replace_section(options.what, samples_section(options.what, choice, found))
    return int(bool(counts[WRONG] or counts[CRASHED]))


def _work(name: str, training: bool) -> int:
    import torch

    from tilec.torch.backend import register

    register()  # where the package is not installed with its entry points
    torch.set_num_threads(1)
    (model,) = (m for m in models() if m.name == name)
    print(json.dumps(asdict(judge(model, lambda module: torch.compile(module, backend="tilec"), training))))
    return 0


def _judged(model: Model, inference: bool) -> Verdict:
    """In a process of its own: a model that fails or hangs does not stop the others."""
    command = [sys.executable, "-m", "tests.pytorch", "--worker", model.name, *(["--inference"] if inference else [])]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        if ran.returncode:
            verdict = Verdict(model.name, failed=(ran.stderr.strip().splitlines() or ["no message"])[-1])
        else:
            verdict = _verdict(ran.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        verdict = Verdict(model.name, failed=f"not done after {LIMIT_S} s")
    counts = ", ".join(f"{s.name} {s.taken} of {s.operations} in {s.partitions}" for s in verdict.steps)
    print(f"{model.name}: {'right' if verdict.right else 'WRONG' if verdict.wrong else 'FAILED'}; {counts}", flush=True)
    for line in [verdict.failed] * bool(verdict.failed) + verdict.wrong[:8] + [f"rounding: {r}" for r in verdict.rounding[:4]]:
        print(f"  {line}", flush=True)
    return verdict


def _verdict(line: str) -> Verdict:
    """From a line of JSON."""
    fields = json.loads(line)
    return Verdict(**fields | {"steps": [Step(**s) for s in fields["steps"]]})


def section(chosen: list[Model], verdicts: list[Verdict], versions: str) -> str:
    kinds: dict[tuple[str, str], list[Verdict]] = {}
    for model, verdict in zip(chosen, verdicts):
        kinds.setdefault((model.library, model.kind), []).append(verdict)
    lines = [
        f"With {versions}:", "",
        "| models | of | right | by rounding | wrong | failed | operations by tilec, inference | training "
        "| partitions, inference | training |",
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for (library, kind), found in [*kinds.items(), (("", "all"), verdicts)]:
        steps = {name: [s for v in found for s in v.steps if s.name == name] for name in ("inference", "training")}
        share = [_share(s) for s in steps.values()]
        parts = [f"{sum(s.partitions for s in each) / len(each):.1f}" if each else "" for each in steps.values()]
        by_rounding = sum(bool(v.right and v.rounding) for v in found)
        counts = [sum(v.right for v in found), by_rounding, sum(bool(v.wrong) for v in found), sum(bool(v.failed) for v in found)]
        of = f"{library}, {kind}" if library else kind
        lines.append(f"| {len(found)} | {of} | {' | '.join(map(str, counts))} | {' | '.join(share)} | {' | '.join(parts)} |")
    results = [f"{v.model} ({len(v.rounding)})" for v in verdicts if v.rounding]
    if results:
        lines += ["", f"Results beyond eager mode's error that are right by rounding: {', '.join(results)}."]
    reasons = sum((Counter(s.reasons) for v in verdicts for s in v.steps), Counter())
    lines += ["", "| operations | that PyTorch computes, because |", "| ---: | --- |"]
    lines += [f"| {count} | {reason.replace('|', chr(92) + '|')} |" for reason, count in reasons.most_common()]
    return "\n".join(lines) + "\n"


def reasons(outcomes: list[Outcome]) -> Counter[str]:
    """In how many samples PyTorch runs something for each reason."""
    return Counter(reason for o in outcomes for reason in o.reasons)


def samples_section(kind: str, choice: Choice, outcomes: list[Outcome]) -> str:
    of = f", one sample of {choice.every}, one of each at least" if choice.every > 1 else ""
    shown = [v for v in VERDICTS if v != SKIPPED]
    lines = [
        f"With torch {importlib.metadata.version('torch')}{of}:", "", f"| samples | of | {' | '.join(shown)} |",
        "| ---: | --- |" + " ---: |" * len(shown),
    ]  # fmt: skip
    run = [o for o in outcomes if o.verdict != SKIPPED]
    groups = {
        "forward": [o for o in run if not o.backward and not o.refused],
        "forward and backward": [o for o in run if o.backward],
        "errors": [o for o in run if o.refused],
    }
    for name, group in groups.items():
        if group:
            counts = Counter(o.verdict for o in group)
            lines.append(f"| {len(group)} | {name} | {' | '.join(str(counts[v]) for v in shown)} |")
    drawn, skipped = sum(o.random for o in run), len(outcomes) - len(run)
    without = "eager mode defines no result for them, or raises an error"
    lines += ["", f"{drawn} of these draw random numbers. {skipped} more are not run: {without}.", ""]
    found = reasons(outcomes)
    most = found.most_common(REASONS)
    lines += ["| samples | in which PyTorch computes something, because |", "| ---: | --- |"]
    lines += [f"| {count} | {reason.replace('|', chr(92) + '|')} |" for reason, count in most]
    if len(found) > len(most):
        lines.append(f"| {found.total() - sum(c for _, c in most)} | {len(found) - len(most)} other reasons |")
    return "\n".join(lines) + "\n"


def _share(steps: list[Step]) -> str:
    operations = sum(s.operations for s in steps)
    return f"{100 * sum(s.taken for s in steps) / operations:.1f} %" if operations else ""


if __name__ == "__main__":
    sys.exit(main())
