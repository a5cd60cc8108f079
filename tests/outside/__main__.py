"""Runs the suites and writes the counts."""

from __future__ import annotations

import argparse
import importlib
import sys

from tests.outside.common import Report, run_all
from tests.outside.report import write

SUITES = {"einsum": "einsums", "onnx": "onnx_nodes", "torch": "opinfo"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.outside", description="Programs of others")
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], help="all of them if none is named")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--every", type=int, default=1, help="every nth case")
    parser.add_argument("--write", action="store_true", help="the counts into docs/outside.md")
    options = parser.parse_args()
    reports: list[Report] = []
    for suite in options.suites or SUITES:
        module = importlib.import_module(f"tests.outside.{SUITES[suite]}")
        chosen = [c for c in module.cases() if options.only in c[0]][:: options.every]
        reports.append(run_all(suite, chosen, say))
        reports[-1].every = options.every
        print(reports[-1], flush=True)
        for reason, count in reports[-1].reasons("refused").most_common(30):
            print(f"  {count:5} refused: {reason}")
    if options.write:
        write(reports)
    return int(any(r.count("failed") for r in reports))


def say(outcome) -> None:
    if outcome.verdict == "failed":
        print(f"FAILED {outcome.case}\n  {outcome.reason}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
