"""`tilec explain`: the kernels of a plan, what limits them, and the reasons of its decisions."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from tilec.cli import common
from tilec.cli.common import Loaded, coloured, prepare, show
from tilec.cli.json_output import show_json
from tilec.core.diagnostics import CallError
from tilec.core.targets import load
from tilec.plan.report.explain import Observed, explain_kernel
from tilec.plan.report.explain import explain as whole
from tilec.plan.report.records import ClassOfSizes, explanation
from tilec.plan.report.short import UNWRAPPED, Ways, short
from tilec.process.printable import is_terminal

if TYPE_CHECKING:
    from tilec.driver.class_report import Row
    from tilec.driver.classes import Class
    from tilec.driver.executable import Executable
    from tilec.dsl.specialise import Specialised
    from tilec.plan.model import Plan

WAYS = Ways("--kernel NAME", "--full")
STYLES = [
    (r"^kernel \S+|^rewrites|^decisions|^\S.* on .*$", "bold"),
    (r"^    (?:fused|inlined)\b", "green"),
    (r"^    (?:refused|not inlined)\b|\bFAILS\b", "yellow"),
    (r"^    (?:tiled|obeyed|\w+)\b", "cyan"),
    (r"#{2,}$|#$", "green"),
    (r"^  \S+\.tile:\d+", "bold"),
]


def explain(args: argparse.Namespace) -> int:
    """The table of kernels; or all of one kernel, the whole report, or a record."""
    if args.what_if:
        return _what_if(args)
    loaded = prepare(args, ranges=True)
    classes: list[Row] = []
    if loaded.of is not None:
        loaded, classes = _plan_classes(args, loaded, loaded.of)
    measured, executable = measure_kernels(loaded) if args.measure else ({}, None)
    lowered = common.lower(loaded, emit=args.html is not None, end="plan" if args.html is None else "map", expect=False)
    assert lowered.plan is not None, "the stage that was asked for"
    observed = Observed()
    if executable is not None:
        observed = Observed(measured, _counted(lowered.plan, executable), executable.registers)
    _report(args, lowered.plan, loaded.specialised.at(lowered.plan.sizes), observed, classes)
    if args.html:
        from tilec.cli.page import write_page

        write_page(args.html, loaded, lowered, measured)
    return 0


def _what_if(args: argparse.Namespace) -> int:
    """The plan as it is beside that with the changes of all statements."""
    from tilec.driver.what_if import Problem, ask
    from tilec.plan.report.what_if import what_if
    from tilec.plan.report.what_if_table import report

    for option in ("kernel", "full", "measure", "html"):
        if getattr(args, option):
            raise CallError(f"--what-if goes without --{option}", hint="leave out one of them")
    sizes, target = common.defined(args), load(args.target)
    program = common.parse_checked(args.file, args.path)
    common.specialise_given(program, args.op, sizes)
    problem = Problem(program, args.op, sizes, target, schedule=common.find_schedule(args))
    with common.working("planning"):
        before, after, changes, notes = ask(problem, args.what_if)
        explained = explanation(before.plan, before.special), explanation(after.plan, after.special)
        found = what_if(changes, notes, explained, (before.plan, after.plan))
    if args.json:
        show_json(found)
    else:
        sys.stdout.write(report(found, *_terminal()))
    return 0


def _terminal() -> tuple[int, bool]:
    """The width of the standard output, and whether it takes colours."""
    return get_terminal_size().columns if is_terminal(sys.stdout) else UNWRAPPED, coloured(sys.stdout)


def _report(args: argparse.Namespace, plan: Plan, special: Specialised, observed: Observed, classes: Sequence[Row]) -> None:
    if args.kernel is not None:
        show(explain_kernel(args.kernel, plan, special, observed), STYLES)
    elif args.full:
        show(whole(plan, special, observed), STYLES)
    elif args.json:
        show_json(explanation(plan, special, observed, [_class(row) for row in classes]))
    else:
        sys.stdout.write(short(explanation(plan, special, observed), WAYS, *_terminal()))


def _class(row: Row) -> ClassOfSizes:
    plan = row.plan
    counted, time_us = (len(plan.kernels), plan.time_us) if plan is not None else (None, None)
    return ClassOfSizes(str(row.of), counted, time_us, row.refused or None)


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


def _plan_classes(args: argparse.Namespace, loaded: Loaded, of: Class) -> tuple[Loaded, list[Row]]:
    """The program for the class `of`, or at its typical sizes where these cannot vary; and the classes of the command line's
    ranges. They are shown unless a record is asked for."""
    from tilec.driver.class_report import rows, table

    if args.measure:
        raise CallError("--measure takes a number for each size, not a range")
    program = common.parse_checked(args.file, args.path)
    varies = common.varying(args)
    with common.working("planning classes of sizes"):
        found = list(rows(program, args.op, None, common.fixed(args), varies, loaded.target, loaded.schedule))
    sizes = {**common.fixed(args), **dict(of.fixed), **of.typical}
    named = ", ".join(f"{name} = {sizes[name]}" for name in varies)
    alone = not of.ranges or any(row.of == of and row.plan is None for row in found)
    if not args.json:
        show(table(found, loaded.target), [(r"^classes.*$", "bold"), (r"compiled for each size", "yellow")])
        show(f"\nthe plan {'at' if alone else f'of {of}, at'} {named}:", [(r"^.*$", "bold")])
    if alone:
        loaded = replace(loaded, specialised=common.specialise_given(program, args.op, sizes), of=None)
    return loaded, found
