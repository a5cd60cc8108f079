"""`tilec plan` and `tilec explain`: the decisions as a schedule file, and as a report."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tilec.cli import common
from tilec.cli.common import Loaded, note, prepare, show, write
from tilec.core.diagnostics import CallError
from tilec.core.quantities import duration
from tilec.process.reading import read_bytes

if TYPE_CHECKING:
    from tilec.driver.classes import Class
    from tilec.driver.executable import Executable
    from tilec.plan.model import Plan


def plan(args: argparse.Namespace) -> int:
    """Writes the compiler's decisions into the schedule file. An edited plan is kept unless `--force` is given."""
    args.schedule, args.no_schedule = None, True
    loaded = prepare(args)
    lowered = common.lower(loaded, end="plan", emit=False, expect=False)
    assert lowered.plan is not None, "the stage that was asked for"
    path, text = schedule_text(args, loaded, lowered.plan)
    put(path, text, lowered.plan, f"{duration(lowered.plan.time_us)} predicted")
    return 0


def schedule_text(
    args: argparse.Namespace, loaded: Loaded, plan: Plan, measured: tuple[float, float] | None = None
) -> tuple[Path, str]:
    """The schedule file, and its text with the plan in it; `measured`: microseconds of it, and of the compiler's own.
    Raises CallError where the file has another plan for the program, and `--force` is not given."""
    from tilec.plan.schedule.write import merge_schedule, write_schedule

    default = Path("-") if str(args.file) == "-" else args.file.with_suffix(".sched.toml")
    path: Path = args.output or default
    if str(path) == "-" or not path.is_file():
        return path, write_schedule(plan, loaded.specialised, measured)
    text, replaced = merge_schedule(_existing(path), plan, loaded.specialised, measured)
    if replaced and not args.force and not measured:
        what = f"{path} has another plan for {plan.signature} on {loaded.target.name}"
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


def _measured(loaded: Loaded) -> tuple[dict[str, float], Executable]:
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


def _at_typical(args: argparse.Namespace, loaded: Loaded, of: Class) -> Loaded:
    """Shows the classes of the command line's ranges; returns the program at the typical sizes of one."""
    from tilec.driver.class_report import rows, table

    if args.measure:
        raise CallError("--measure takes a number for each size, not a range")
    program = common.parse_checked(args.file, args.path)
    with common.working("planning classes of sizes"):
        found = list(rows(program, args.op, None, common.fixed(args), common.varying(args), loaded.target))
    show(table(found, loaded.target), [(r"^classes.*$", "bold"), (r"compiled for each size", "yellow")])
    sizes = {**common.fixed(args), **dict(of.fixed), **of.typical}
    named = ", ".join(f"{name} = {sizes[name]}" for name in common.varying(args))
    show(f"\nthe plan at {named}:", [(r"^.*$", "bold")])
    return replace(loaded, specialised=common.specialise_given(program, args.op, sizes), of=None)


def explain(args: argparse.Namespace) -> int:
    from tilec.plan.report.explain import explain as report

    loaded = prepare(args, ranges=True)
    if loaded.of is not None:
        loaded = _at_typical(args, loaded, loaded.of)
    measured, executable = _measured(loaded) if args.measure else (None, None)
    lowered = common.lower(loaded, emit=False, end="plan", expect=False)
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
    show(report(lowered.plan, loaded.specialised, measured, counted, registers), rules)
    return 0
