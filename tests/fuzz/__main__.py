"""`make fuzz`: draws programs, schedules and texts for as long as asked, and writes what fails.

    python -m fuzz [--minutes 60] [--seed 0] [--target cpu|stages|emulator|gpu|text|all] [--out fuzz-found]

Each failure becomes a folder with the reduced program, its inputs, its schedule file if it had one, and the command that
fails again.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from pathlib import Path

import numpy as np

from fuzz.compare import WAYS
from fuzz.files import hunt_texts
from fuzz.hunt import Found, hunt
from tilec.run_data import saved

SMALL = [2, 3, 1, 4, 5, 0, 8]
"""Sizes for what runs in Python alone."""
TURN = 5.0
"""Minutes that each way has before the next has its turn."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", choices=[*WAYS, "text", "all"], default="all")
    parser.add_argument("--out", type=Path, default=Path("fuzz-found"))
    args = parser.parse_args()
    ways = [*(w for w in WAYS if w != "gpu"), "text"] if args.target == "all" else [args.target]
    end, seed, ran, found = time.monotonic() + 60 * args.minutes, args.seed, 0, set()
    while (left := (end - time.monotonic()) / 60) > 0:
        for way in ways:
            minutes = min(TURN, left / len(ways)) if len(ways) > 1 else left

            def tell(failure: Found | tuple[str, Exception], way: str = way, seed: int = seed) -> None:
                kind = failure.kind if isinstance(failure, Found) else f"{failure[1]!r:.80}"
                if (way, kind) not in found:
                    found.add((way, kind))
                    print(f"{way}: {kind}\n  {write(args.out, way, seed, len(found), failure)}", flush=True)

            if way == "text":
                ran += hunt_texts(seed, minutes, tell)
            else:
                ran += hunt(
                    way,
                    seed,
                    minutes,
                    tell,
                    statements=6,
                    fuel=4,
                    **({} if way in ("cpu", "gpu") else {"sizes": SMALL}),
                )
        seed += 1_000_000
    print(f"{ran} cases, {len(found)} kinds of failure")
    return 1 if found else 0


def write(out: Path, way: str, seed: int, number: int, failure: Found | tuple[str, Exception]) -> str:
    """Writes one failure to a folder; returns the command that fails again."""
    folder = out / f"{way}-{seed}-{number}"
    folder.mkdir(parents=True, exist_ok=True)
    error = failure.error if isinstance(failure, Found) else failure[1]
    (folder / "error.txt").write_text("".join(traceback.format_exception(error)))
    path = folder / "program.tile"
    if not isinstance(failure, Found):
        path.write_text(failure[0], errors="surrogatepass")
        return f"tilec check {path}"
    case = failure.case
    path.write_text(case.text)
    if case.inputs:
        np.savez(folder / "inputs.npz", **saved(case.inputs))
    if failure.schedule:
        (folder / "program.sched.toml").write_text(failure.schedule)
    given = f" --input {folder / 'inputs.npz'}" if case.inputs else ""
    sizes = "".join(f" -D {name}={value}" for name, value in case.sizes.items())
    target = {"gpu": " --target cuda", "emulator": " --target cuda"}.get(way, "")
    op = f" --op {case.op}" if case.op else ""
    return f"tilec run {path}{op}{sizes}{given} --check{target}"


if __name__ == "__main__":
    sys.exit(main())
