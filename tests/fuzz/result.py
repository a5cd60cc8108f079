"""What a hunt tried and found: for people, and as JSON for docs/reliability.md."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from fuzz.hunt import Hunt

MOST = 12  # reasons that are told


def summary(hunt: Hunt) -> str:
    """A line for each way, the constructs of programs, and the kinds of failure."""
    minutes = max(hunt.seconds, 0.1) / 60
    lines = []
    for way, c in hunt.counts.items():
        rate, scheduled = f"{c.tried / minutes:,.0f} a minute", f", {c.scheduled:,} scheduled" if c.scheduled else ""
        statements = f" of {c.statements:,} statements" if c.statements else ""
        line = f"{way}: {c.tried:,} cases{statements}{scheduled}, {c.refused:,} refused, {c.failed:,} failed, {rate}"
        if c.branches:
            line += (
                f"; {c.mutated:,} of them mutations of programs that took {c.branches:,} branches of the passes first"
            )
        if c.compared:
            line += f"; {c.compared:,} results compared, {100 * c.unbounded / c.compared:.1f}% of them may be anything somewhere"
        lines.append(line)
        if classes := c.reasons.total():
            share = 100 * c.reasons[""] / classes
            lines.append(f"    {classes:,} classes of sizes; in {share:.1f}% all sizes vary, in the others not because")
            lines += [f"    {times:,} {why}" for why, times in c.reasons.most_common(MOST) if why]
    words: Counter = sum((c.constructs for c in hunt.counts.values()), Counter())
    if words:
        lines.append("contained: " + ", ".join(f"{word} {count:,}" for word, count in words.most_common()))
    lines += [f"{f.way}: {f.kind}: {f.times} times, first number {f.name}; {f.folder}" for f in hunt.found.values()]
    tried = sum(c.tried for c in hunt.counts.values())
    lines.append(f"{tried:,} cases in {hunt.seconds:,.0f} s, {len(hunt.found)} kinds of failure")
    return "\n".join(lines)


def facts(hunt: Hunt) -> dict[str, Any]:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from benchmarks.machine import machine, versions

    return {
        "suite": "fuzz", "date": time.strftime("%Y-%m-%d", time.gmtime()), "machine": machine(), "versions": versions(),
        "seed": hunt.seed, "first": hunt.begin, "jobs": hunt.jobs, "seconds": round(hunt.seconds, 1),
        "ways": {w: vars(c) | {"seconds": round(c.seconds, 1)} for w, c in hunt.counts.items()},
        "found": [
            {"way": f.way, "kind": f.kind, "number": f.name, "times": f.times} for f in hunt.found.values()
        ],
    }  # fmt: skip
