"""`tilec plan` and `tilec explain`: the decisions as a file, and as a report."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilec import cli_common as common
from tilec.cli_common import note, prepare, say, write
from tilec.diagnostics import CallError


def plan(args: argparse.Namespace) -> int:
    """Writes what the compiler decides into the schedule file; a plan that was edited is kept without
    `--force`.
    """
    from tilec.schedule import merge_schedule, write_schedule

    args.schedule, args.no_schedule = None, True
    loaded = prepare(args)
    lowered = common.lower(loaded, end="plan", emit=False, expect=False)
    beside = Path("-") if str(args.file) == "-" else args.file.with_suffix(".sched.toml")
    path: Path = args.output or beside
    if str(path) == "-" or not path.is_file():
        text, replaced = write_schedule(lowered.plan, loaded.specialised), False
    else:
        text, replaced = merge_schedule(_existing(path), lowered.plan, loaded.specialised)
    if replaced and not args.force:
        what = f"{path} has another plan for {lowered.plan.signature} on {loaded.target.name}"
        raise CallError(what, hint="--force puts the compiler's in its place; -o - prints it")
    write(path, text)
    if str(path) != "-":
        count = len(lowered.plan.kernels)
        note(
            f"wrote {path}: {count} kernel{'s' * (count != 1)}, {lowered.plan.time_us:.1f} us predicted",
            kind="",
        )
    return 0


def _existing(path: Path) -> str:
    """The text of a schedule that is there, and is one."""
    from tilec.schedule_read import read_schedule

    read_schedule(path)
    return path.read_text(encoding="utf-8")


def explain(args: argparse.Namespace) -> int:
    from tilec.explain import explain as report

    loaded = prepare(args)
    lowered = common.lower(loaded, emit=False, end="plan", expect=False)
    rules = [
        (r"^kernel \S+|^decisions|^\S.* on .*$", "bold"),
        (r"^    (?:fused|inlined)\b", "green"),
        (r"^    (?:refused|kept)\b|\bFAILS\b", "yellow"),
        (r"^    (?:tiled|obeyed|\w+)\b", "cyan"),
        (r"#{2,}$|#$", "green"),
        (r"^  \S+\.tile:\d+", "bold"),
    ]
    say(report(lowered.plan, loaded.specialised), rules)
    return 0
