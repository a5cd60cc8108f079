"""Compiles models of transformers and timm, judges each against f64, and writes the counts into docs/outside.md."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from tests.outside.report import replace_section
from tests.pytorch.judge import Step, Verdict, judge
from tests.pytorch.zoo import Model, models

LIMIT_S = 1800  # of one model
PACKAGES = ("torch", "transformers", "timm")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pytorch", description="Models of others")
    parser.add_argument("--only", nargs="*", default=[], help="models of these names")
    parser.add_argument("--inference", action="store_true", help="no training step")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time, each in a process of its own")
    parser.add_argument("--write", action="store_true", help="the counts into docs/outside.md")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return _work(options.worker, not options.inference)
    chosen = [m for m in models() if not options.only or m.name in options.only]
    with ThreadPoolExecutor(options.jobs) as pool:
        verdicts = list(pool.map(lambda m: _judged(m, options.inference), chosen))
    if options.write:
        versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in PACKAGES)
        replace_section("models", section(chosen, verdicts, versions))
    return int(not all(v.right for v in verdicts))


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
            fields = json.loads(ran.stdout.splitlines()[-1])
            verdict = Verdict(**fields | {"steps": [Step(**s) for s in fields["steps"]]})
    except subprocess.TimeoutExpired:
        verdict = Verdict(model.name, failed=f"not done after {LIMIT_S} s")
    counts = ", ".join(f"{s.name} {s.taken} of {s.operations} in {s.partitions}" for s in verdict.steps)
    print(f"{model.name}: {'right' if verdict.right else 'WRONG' if verdict.wrong else 'FAILED'}; {counts}", flush=True)
    for line in [verdict.failed] * bool(verdict.failed) + verdict.wrong[:8]:
        print(f"  {line}", flush=True)
    return verdict


def section(chosen: list[Model], verdicts: list[Verdict], versions: str) -> str:
    kinds: dict[tuple[str, str], list[Verdict]] = {}
    for model, verdict in zip(chosen, verdicts):
        kinds.setdefault((model.library, model.kind), []).append(verdict)
    lines = [
        f"With {versions}:", "",
        "| models | of | right | wrong | failed | operations by tilec, inference | training | partitions, inference | training |",
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for (library, kind), found in [*kinds.items(), (("", "all"), verdicts)]:
        steps = {name: [s for v in found for s in v.steps if s.name == name] for name in ("inference", "training")}
        share = [_share(s) for s in steps.values()]
        parts = [f"{sum(s.partitions for s in each) / len(each):.1f}" if each else "" for each in steps.values()]
        counts = [sum(v.right for v in found), sum(bool(v.wrong) for v in found), sum(bool(v.failed) for v in found)]
        of = f"{library}, {kind}" if library else kind
        lines.append(f"| {len(found)} | {of} | {' | '.join(map(str, counts))} | {' | '.join(share)} | {' | '.join(parts)} |")
    reasons = sum((Counter(s.reasons) for v in verdicts for s in v.steps), Counter())
    lines += ["", "| operations | that PyTorch computes, because |", "| ---: | --- |"]
    lines += [f"| {count} | {reason.replace('|', chr(92) + '|')} |" for reason, count in reasons.most_common()]
    return "\n".join(lines) + "\n"


def _share(steps: list[Step]) -> str:
    operations = sum(s.operations for s in steps)
    return f"{100 * sum(s.taken for s in steps) / operations:.1f} %" if operations else ""


if __name__ == "__main__":
    sys.exit(main())
