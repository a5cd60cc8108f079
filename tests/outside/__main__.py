"""Runs the suites and writes the counts."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain, zip_longest

from tests.outside.common import SUITES, Report, outcomes
from tests.outside.report import write


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.outside", description="Programs of others")
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], help="all of them if none is named")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--every", type=int, default=1, help="every nth case")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--write", action="store_true", help="the counts into docs/outside.md")
    options = parser.parse_args()
    reports: list[Report] = []
    for suite in options.suites or SUITES:
        share, start = partial(outcomes, suite, options.only, options.every, options.jobs), time.perf_counter()
        if options.jobs == 1:
            parts = [share(0)]
        else:
            with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
                parts = list(pool.map(share, range(options.jobs)))
        found = [o for o in chain.from_iterable(zip_longest(*parts)) if o is not None]
        reports.append(Report(suite, found, time.perf_counter() - start, options.every))
        print(reports[-1], flush=True)
        for reason, count in reports[-1].reasons("refused").most_common(30):
            print(f"  {count:5} refused: {reason}")
    if options.write:
        write(reports)
    return int(any(r.count("failed") for r in reports))


if __name__ == "__main__":
    sys.exit(main())
