"""The way from a specialised op to kernels: one MLIR pass manager runs all stages.

The text after every stage is kept for `dump` and `op.stages`, and can be an input again. A failure carries the stage that
failed and its input IR.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tilec.core import mlir
from tilec.core.diagnostics import CallError, InternalError, TileError
from tilec.core.mlir import PassManager, ir
from tilec.core.open_extents import strict
from tilec.core.target import Target
from tilec.core.varying import Varies
from tilec.kernels.verifier import Verifier
from tilec.passes import NAMES, Stage, stages
from tilec.plan.edited import check_edited
from tilec.plan.invariant import refuse_dependent
from tilec.plan.logged import log_decisions
from tilec.plan.model import Plan
from tilec.plan.planner import annotate, make_plan
from tilec.plan.varying import plan_at
from tilec.process import progress
from tilec.process.recursion import deep_recursion
from tilec.runtime.program import Emitted, KernelSource

OnKernel = Callable[[Mapping[str, int], str, KernelSource], None]
"""Is given the plan's register limits by kernel, the text of a module with one kernel, and this kernel."""


@dataclass
class Lowered:
    """The IR after every stage that ran, by name, and the seconds that the stages took."""

    texts: dict[str, str]
    plan: Plan | None
    seconds: dict[str, float] = field(default_factory=dict)
    emitted: Emitted | None = None


def lower(
    module: ir.Module, target: Target, *, schedule: Callable[[Plan], Plan] | None = None, begin: str = "simplify",
    end: str = "map", locations: bool = True, tree: Path | None = None, emit: bool = True, texts: bool = True,
    clock: Callable[[], float] = time.perf_counter, on_kernel: OnKernel | None = None, at: Mapping[str, int] | None = None,
) -> Lowered:  # fmt: skip
    """Runs the stages `begin` to `end` on a module, in the current MLIR context.

    `schedule` may change the plan before it is written into the IR; `tree` is a folder for MLIR's own per-pass files.
    `begin="emit"` runs no stage and prints the kernels of a module that `map` made. Without `texts` those of the stages, which
    take a fifth of the time, are not kept; an InternalError then has none. `clock` measures the stages. `on_kernel` is given each
    of a GPU's kernels as soon as it is printed. `at`: of a program whose sizes vary, the sizes that it is planned at.
    Raises CallError where a plan that was edited in the module cannot be carried out.
    """
    lowered = Lowered({}, None)

    def plan(op: ir.Operation) -> None:
        (function,) = [f for f in mlir.functions(op) if "tilec.kernel" not in f.attributes]
        decided = make_plan(function, target) if at is None else plan_at(function, target, at)
        decided = schedule(decided) if schedule else decided
        annotate(op, function, decided)
        log_decisions(decided)
        lowered.plan = replace(decided, function=None, replan=None, candidates=None, instance=None, general=None)

    order = (*NAMES, "emit")
    if order.index(begin) > order.index("plan"):
        check_edited(module.operation if isinstance(module, ir.Module) else module, target, begin, at)
    chosen = [s for s in stages(plan, target) if order.index(begin) <= order.index(s.name) <= order.index(end)]
    state = _State(begin, mlir.text(module, locations) if texts else "", clock)
    if begin == "simplify" and texts:
        lowered.texts["build"] = state.text
    manager, verifier = PassManager("builtin.module"), Verifier()
    manager.enable_verifier(texts)
    if tree is not None:
        manager.enable_ir_printing(tree_printing_dir_path=str(tree), enable_debug_info=locations)
    for stage in chosen:
        _add_stage(manager, stage, lowered, state, verifier, locations, texts)
    try:
        with deep_recursion(), strict(at is not None):
            if begin == "simplify":
                verifier.demand(module.operation, "build", "build", ended=True)
                for function in mlir.functions(module.operation) if at is not None else ():
                    refuse_dependent(function)
            manager.run(module.operation)
    except TileError:
        raise
    except Exception as error:
        if at is not None:
            raise _refused(state.name, error, lowered.plan) from error
        if not isinstance(error, InternalError):
            raise InternalError(f"stage '{state.name}' failed: {error}", state.name, state.text) from error
        error.stage, error.ir = error.stage or state.name, state.text or error.ir
        raise
    if emit and end == "map":
        try:
            with deep_recursion(), strict(at is not None):
                lowered.emitted = _emit(module, lowered, clock, on_kernel)
        except InternalError as error:
            if at is not None:
                raise _refused("emit", error, lowered.plan) from error
            raise
        if at is not None and (large := _too_large(lowered.emitted, target)):
            raise _refused("emit", Varies(large), lowered.plan)
    return lowered


def _too_large(emitted: Emitted, target: Target) -> str | None:
    """What a kernel takes of shared memory at the greatest sizes, where that is more than a block has."""
    most = target.sm.shared_per_block if target.sm is not None else math.inf
    return next((f"{k.shared:,} bytes of shared memory for {k.name}" for k in emitted.kernels if k.shared > most), None)


def _refused(stage: str, error: Exception, plan: Plan | None) -> Varies | CallError:
    """Of a program whose sizes vary, which some pass cannot lower: `Varies`, or what came of what the pass did not expect. If a
    schedule file gives the plan, a mistake of the file."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    first = str(cause).strip().splitlines() or [type(cause).__name__]
    why = f"stage '{stage}' asks for {first[0]}" if isinstance(cause, Varies) else f"stage '{stage}' failed: {first[0]}"
    if plan is None or plan.obeys is None:
        return Varies(why)
    hint = "change it, or leave it out: the compiler then decides; `sizes` of numbers need no range"
    return CallError(f"this plan cannot be carried out where sizes vary: {why}", plan.obeys, hint=hint)


@dataclass
class _State:
    """The stage that runs, the IR that went into it, and the last of its own passes."""

    name: str
    text: str
    clock: Callable[[], float]
    step: str = ""
    start: float = 0.0


def _add_stage(
    manager: PassManager, stage: Stage, lowered: Lowered, state: _State, verifier: Verifier, locations: bool, texts: bool
) -> None:  # fmt: skip
    """A stage's steps. Each of ours has its attributes verified, after upstream's that tidy up behind it, which write none. Without
    texts they are verified at the stage's end: that takes half the time, and a fault is found again with texts, for its report. The
    IR itself is then verified after each of our steps, and not after upstream's, of which there are more."""

    def begin(op: ir.Operation, _pass: object) -> None:
        state.name, state.step, state.start = stage.name, "", state.clock()
        progress.at(f"in stage '{stage.name}'")

    def after_pass(op: ir.Operation, _pass: object) -> None:
        verify(op, ended=True)
        lowered.seconds[stage.name] = state.clock() - state.start
        if texts:
            state.text = lowered.texts[stage.name] = op.get_asm(enable_debug_info=locations, assume_verified=True)

    def run(step: Callable[[ir.Operation], object], op: ir.Operation, _pass: object) -> None:
        if texts:
            verify(op)
        state.step = step.__name__
        step(op)
        if not texts:
            op.verify()

    def verify(op: ir.Operation, ended: bool = False) -> None:
        if state.step:
            verifier.demand(op, state.step, stage.name, ended)

    manager.add(begin, f"tilec-before-{stage.name}")
    for step in stage.steps:
        if isinstance(step, str):
            manager.add(step)
        else:
            manager.add(partial(run, step), f"tilec-{step.__name__}")
    manager.add(after_pass, f"tilec-after-{stage.name}")


def _emit(module: ir.Module, lowered: Lowered, clock: Callable[[], float], on_kernel: OnKernel | None) -> Emitted:
    start = clock()
    progress.at("in stage 'emit'")
    backend = ir.StringAttr(module.operation.attributes["tilec.backend"]).value
    try:
        if backend == "cuda":
            from tilec.runtime.emit.cuda import emit_cuda

            plan = lowered.plan
            return emit_cuda(module, None if on_kernel is None or plan is None else partial(on_kernel, plan.registers))
        from tilec.runtime.emit.cpu import emit_cpu

        return emit_cpu(module)
    except InternalError as error:
        error.stage, error.ir = "emit", lowered.texts.get("map") or str(module)
        raise
    except Exception as error:
        raise InternalError(f"stage 'emit' failed: {error}", "emit", lowered.texts.get("map") or str(module)) from error
    finally:
        lowered.seconds["emit"] = clock() - start
