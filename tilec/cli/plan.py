"""`tilec plan`: the decisions as a schedule file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tilec.cli import common
from tilec.cli.common import note, prepare, write
from tilec.cli.json_output import show_json
from tilec.cli.records import Planned, PlannedProgram
from tilec.core.diagnostics import CallError
from tilec.core.quantities import count, duration
from tilec.process.reading import read_bytes

if TYPE_CHECKING:
    from tilec.dsl.specialise import Specialised
    from tilec.plan.model import Plan


def plan(args: argparse.Namespace) -> int:
    """Writes the compiler's decisions into the schedule file: those of each class, where sizes vary. An edited plan is kept unless
    `--force` is given."""
    if args.json and str(args.output) == "-":
        raise CallError("--json prints a record, and -o - the schedule file", hint="leave out one of them")
    args.schedule, args.no_schedule = None, True
    if common.varying(args):
        return _plans(args)
    loaded = prepare(args)
    lowered = common.lower(loaded, end="plan", emit=False, expect=False)
    assert lowered.plan is not None, "the stage that was asked for"
    if args.json:
        return _show_plans(args, [(lowered.plan, loaded.specialised)])
    path, text = schedule_text(args, [(lowered.plan, loaded.specialised)])
    put(path, text, lowered.plan, f"{duration(lowered.plan.time_us)} predicted")
    return 0


def _show_plans(args: argparse.Namespace, plans: Sequence[tuple[Plan, Specialised]]) -> int:
    """As a record; and writes the schedule file where `-o` names one."""
    import tomllib

    from tilec.plan.schedule.write import write_schedule

    if args.output is not None:
        path, text = schedule_text(args, plans)
        write(path, text)
    found = []
    for plan, specialised in plans:
        (decisions,) = tomllib.loads(write_schedule(plan, specialised))["plan"]
        found.append(PlannedProgram(plan.time_us, len(plan.kernels), len(plan.copies), decisions))
    show_json(Planned(None if args.output is None else str(args.output), found))
    return 0


def _plans(args: argparse.Namespace) -> int:
    """The plan of each class of the command line's ranges."""
    from tilec.cli.classes import classes

    with common.working("planning classes of sizes"):
        several = list(classes(args))
    for each in several:
        if each.plan is None:
            note(f"{each.of} has no plan of its own, and is compiled for each size: {each.refused}")
    found = [(each.plan, each.special) for each in several if each.plan is not None]
    if not found:
        raise CallError("no plan serves a class of these sizes", hint="give numbers with -D: the compiler plans them")
    if args.json:
        return _show_plans(args, found)
    path, text = schedule_text(args, found)
    write(path, text)
    if str(path) != "-":
        note(f"wrote {path}: plans of {count(len(found), 'class', 'classes')}", kind="")
    return 0


def schedule_text(
    args: argparse.Namespace, plans: Sequence[tuple[Plan, Specialised]], measured: tuple[float, float] | None = None
) -> tuple[Path, str]:
    """The schedule file, and its text with these plans in it; `measured`: microseconds of one, and of the compiler's own.
    Raises CallError where the file has another plan for the program, and `--force` is not given."""
    from tilec.plan.schedule.write import merge_schedule, write_schedule

    default = Path("-") if str(args.file) == "-" else args.file.with_suffix(".sched.toml")
    path: Path = args.output or default
    text = "" if str(path) == "-" or not path.is_file() else _existing(path)
    for plan, specialised in plans:
        if not text:
            text = write_schedule(plan, specialised, measured)
            continue
        text, replaced = merge_schedule(text, plan, specialised, measured)
        if replaced and not args.force and not measured:
            what = f"{path} has another plan for {plan.named} on {plan.target.name}"
            raise CallError(what, hint="--force replaces it; -o - only prints the new one")
    return path, text


def put(path: Path, text: str, plan: Plan, reported: str) -> None:
    write(path, text)
    if str(path) != "-":
        note(f"wrote {path}: {plan.counted}, {reported}", kind="")


def _existing(path: Path) -> str:
    """The text of an existing schedule file. Raises CallError if it is no schedule."""
    from tilec.plan.schedule.read import read_schedule

    read_schedule(path)
    return read_bytes(path).decode("utf-8")
