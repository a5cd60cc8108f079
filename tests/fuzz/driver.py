"""`make fuzz`: draws programs, schedules and texts for as long, or as many, as asked, and writes what fails.

    python -m fuzz [--minutes 60 | --cases N] [--seed 0] [--target cpu|stages|emulator|gpu|edits|matrix|sizes|text|all] [--jobs 1]
                   [--out FOLDER]

`all` are all ways that the machine has: `gpu` where there is one; `--cases` are of each way. `sizes` are the ways of programs whose
sizes vary: `sizes-cpu`, `sizes-stages`, `sizes-emulator`, `sizes-gpu`. A case is named by its way, the seed and its number:
`--first N --cases 1` draws it again, and `--choices FILE` the case of a file `choices.json`. Each kind of failure becomes a folder
with the program, its inputs, its schedule file if it had one, and the command that fails again: at once, and again when it is
reduced, which takes up to a minute.
`--result` is a JSON file of what was tried and found, with versions of all that had a part.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fuzz import attempt, by_class
from fuzz.choices import Choices
from fuzz.counts import Counts
from fuzz.hunt import Found, Hunt
from fuzz.result import facts, summary

TEXTS = ("programs", "schedules", "ir")
WAYS = ("cpu", "stages", "emulator", "gpu", "edits", "matrix", *by_class.WAYS)
GROUPS = {"text": TEXTS, "sizes": by_class.WAYS, "all": (*WAYS, *TEXTS)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__.partition("\n")[0])
    much = parser.add_mutually_exclusive_group()
    much.add_argument("--minutes", type=float)
    much.add_argument("--cases", type=int, help="of each way")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--target", choices=[*WAYS, *TEXTS, *GROUPS], default="all")
    parser.add_argument("--choices", type=Path, help="a failure's file: its case of the target, by this process")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--out", type=Path, default=Path("fuzz-found"))
    parser.add_argument("--result", type=Path, help="a JSON file of what was tried and found")
    args = parser.parse_args(arguments)
    if args.choices is not None:
        attempt.run(attempt.draw(args.target, Choices(given=json.loads(args.choices.read_text())), counts := Counts()), counts)
        print(f"{counts.compared} results compared, none is wrong")
        return 0
    minutes = 60.0 if args.minutes is None and args.cases is None else args.minutes
    hunt = Hunt(
        ways_of(args.target),
        args.seed,
        args.jobs,
        args.out.absolute(),
        minutes,
        args.cases,
        report=report,
        begin=args.first,
    )
    try:
        hunt.run()
    except KeyboardInterrupt:
        print("stopped")
    print(summary(hunt))
    if args.result is not None:
        args.result.parent.mkdir(parents=True, exist_ok=True)
        args.result.write_text(json.dumps(facts(hunt), indent=1) + "\n")
    return 1 if hunt.found else 0


def ways_of(target: str) -> list[str]:
    if target not in GROUPS:
        return [target]
    from tilec.runtime.cuda.driver import device_info

    return [way for way in GROUPS[target] if not way.endswith("gpu") or device_info().devices]


def report(found: Found, reduced: bool) -> None:
    how = "  reduced:" if reduced else f"{found.way}: {found.kind}\n "
    print(f"{how} {found.command or found.folder}", flush=True)
