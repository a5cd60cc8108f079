"""`tilec plan` and `tilec explain`: the decisions as a schedule file, and as a report."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tilec.cli import common
from tilec.cli.common import Loaded, note, prepare, show, write
from tilec.core.diagnostics import CallError
from tilec.core.quantities import count, duration
from tilec.process.reading import read_bytes

if TYPE_CHECKING:
    from tilec.driver.classes import Class
    from tilec.driver.executable import Executable
    from tilec.dsl.specialise import Specialised
    from tilec.plan.model import Plan


def plan(args: argparse.Namespace) -> int:
    """Writes the compiler's decisions into the schedule file: those of each class, where sizes vary. An edited plan is kept unless
    `--force` is given."""
    args.schedule, args.no_schedule = None, True
    if common.varying(args):
        return _plans(args)
    loaded = prepare(args)
    lowered = common.lower(loaded, end="plan", emit=False, expect=False)
    assert lowered.plan is not None, "the stage that was asked for"
    path, text = schedule_text(args, [(lowered.plan, loaded.specialised)])
    put(path, text, lowered.plan, f"{duration(lowered.plan.time_us)} predicted")
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


def measure_kernels(loaded: Loaded) -> tuple[dict[str, float], Executable]:
    """Microseconds of every kernel on this machine, and of the op as a whole, on random inputs; and its executable."""
    from tilec.cli.run import build, need_gpu
    from tilec.driver.devices import open_device
    from tilec.driver.measure import kernel_times
    from tilec.semantics.inputs import random_inputs

    if loaded.target.kind == "cuda":
        need_gpu()
    executable = build(loaded)
    inputs = random_inputs(loaded.specialised, 0, {})
    with open_device(loaded.target.kind, inputs, executable.outputs) as device, common.working("timing"):
        found = kernel_times(device, executable)
    return found | {loaded.specialised.name: sum(found.values())}, executable


def _counted(plan: Plan, executable: Executable) -> dict[str, dict[str, float]]:
    """By kernel name, the operations of kernels as they were compiled, where their code tells."""
    from tilec.plan.report.compiled import arithmetic

    if plan.target.kind != "cuda":
        return {}
    from tilec.driver.cuda_executable import CudaExecutable

    if not isinstance(executable, CudaExecutable):
        return {}
    launched = executable.emitted.launched
    found = {k.name: arithmetic(k, executable.cubins[launched[k.name].name].ptx) for k in plan.kernels if k.name in launched}
    return {name: operations for name, operations in found.items() if operations}


def _show_classes(args: argparse.Namespace, loaded: Loaded, of: Class) -> Loaded:
    """Shows the classes of the command line's ranges; returns the program for the class `of`, or at its typical sizes where these
    cannot vary."""
    from tilec.driver.class_report import rows, table

    if args.measure:
        raise CallError("--measure takes a number for each size, not a range")
    program = common.parse_checked(args.file, args.path)
    varies = common.varying(args)
    with common.working("planning classes of sizes"):
        found = list(rows(program, args.op, None, common.fixed(args), varies, loaded.target, loaded.schedule))
    show(table(found, loaded.target), [(r"^classes.*$", "bold"), (r"compiled for each size", "yellow")])
    sizes = {**common.fixed(args), **dict(of.fixed), **of.typical}
    named = ", ".join(f"{name} = {sizes[name]}" for name in varies)
    alone = not of.ranges or any(row.of == of and row.plan is None for row in found)
    show(f"\nthe plan {'at' if alone else f'of {of}, at'} {named}:", [(r"^.*$", "bold")])
    return replace(loaded, specialised=common.specialise_given(program, args.op, sizes), of=None) if alone else loaded


def explain(args: argparse.Namespace) -> int:
    from tilec.plan.report.explain import explain as report

    loaded = prepare(args, ranges=True)
    if loaded.of is not None:
        loaded = _show_classes(args, loaded, loaded.of)
    measured, executable = measure_kernels(loaded) if args.measure else (None, None)
    lowered = common.lower(loaded, emit=args.html is not None, end="plan" if args.html is None else "map", expect=False)
    rules = [
        (r"^kernel \S+|^rewrites|^decisions|^\S.* on .*$", "bold"),
        (r"^    (?:fused|inlined)\b", "green"),
        (r"^    (?:refused|not inlined)\b|\bFAILS\b", "yellow"),
        (r"^    (?:tiled|obeyed|\w+)\b", "cyan"),
        (r"#{2,}$|#$", "green"),
        (r"^  \S+\.tile:\d+", "bold"),
    ]
    assert lowered.plan is not None, "the stage that was asked for"
    counted = _counted(lowered.plan, executable) if executable else None
    registers = executable.registers if executable else {}
    show(report(lowered.plan, loaded.specialised.at(lowered.plan.sizes), measured, counted, registers), rules)
    if args.html:
        from tilec.cli.page import write_page

        write_page(args.html, loaded, lowered, measured)
    return 0
