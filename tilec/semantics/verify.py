"""Verification of every stage: the IR after each stage is interpreted and compared with the reference.

The first stage whose IR is invalid, or computes results outside the error bounds, is examined: its passes run one at a
time until one of them breaks the IR.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from tilec.core import mlir
from tilec.core.diagnostics import CallError, InternalError
from tilec.core.mlir import PassManager, ir
from tilec.core.open_extents import strict
from tilec.core.target import Target
from tilec.driver.lowering import lower
from tilec.dsl import ast
from tilec.dsl.build import build
from tilec.dsl.specialise import Specialised
from tilec.passes import NAMES, stages
from tilec.plan.model import Plan
from tilec.semantics.comparison import compare_array
from tilec.semantics.error_bounds import enclose
from tilec.semantics.interpreter import Fault, Unsupported, prepare
from tilec.semantics.intervals import Enclosure
from tilec.semantics.reference import OutOfRangeError

Arrays = dict[str, np.ndarray]


Run: TypeAlias = "Callable[[Arrays], Arrays]"
Bounds: TypeAlias = "Mapping[str, Enclosure]"
Step: TypeAlias = "str | Callable[[ir.Operation], object]"
"""Of a pipeline: the name of a pass of MLIR, or a pass."""


@dataclass(frozen=True)
class Failure:
    """A stage whose IR is wrong on these inputs. `before` is the IR that went in; `step` the pass that broke it, where one
    could be named."""

    stage: str
    what: str
    specialised: Specialised
    inputs: Arrays
    before: str
    step: str | None = None


@dataclass
class Verifier:
    """The common part of all checks. `edited` is IR that a person changed, with the stage that it was dumped after: earlier
    stages are not run. `shared` is the IR after every stage of a class of sizes, which is run at whichever of them."""

    target: Target
    schedule: Callable[[Plan], Plan] | None = None
    edited: tuple[str, str] | None = None
    shared: dict[str, str] | None = None
    unsupported: dict[str, str] = field(default_factory=dict)  # stages that could not be interpreted, and why
    plan: Plan | None = None  # of the last lowering
    _last: tuple[Specialised, dict[str, str]] | None = None

    def texts(self, specialised: Specialised) -> dict[str, str]:
        """The IR after every stage. Raises InternalError where a stage fails."""
        if self.shared is not None:
            return self.shared
        if self._last is None or self._last[0] is not specialised:
            self._last = specialised, self._lower(specialised)
        return self._last[1]

    def _lower(self, specialised: Specialised) -> dict[str, str]:
        with mlir.context(), ir.Location.unknown():
            if self.edited is None:
                lowered = lower(build(specialised), self.target, schedule=self.schedule, emit=False)
                self.plan = lowered.plan
                return lowered.texts
            stage, text = self.edited
            found = {stage: text}
            if stage != NAMES[-1]:
                begin = NAMES[NAMES.index(stage) + 1]
                lowered = lower(mlir.parse(text), self.target, schedule=self.schedule, begin=begin, emit=False)
                self.plan = lowered.plan or self.plan
                found |= {s: t for s, t in lowered.texts.items() if NAMES.index(s) > NAMES.index(stage)}
            return found

    def check(
        self, specialised: Specialised, several: Mapping[str, Arrays], report: Callable[[str], None] = lambda text: None
    ) -> tuple[str, Failure] | None:
        """The first stage that is wrong on one of several inputs, by their names; None where all are right. `report` is given
        how far it is.
        """
        try:
            texts = self.texts(specialised)
        except InternalError as error:
            kind, inputs = next(iter(several.items()))
            return kind, Failure(error.stage or "build", str(error), specialised, inputs, error.ir or "", None)
        expected = {kind: self._expected(specialised, inputs) for kind, inputs in several.items()}
        before = ""
        for number, (stage, text) in enumerate(texts.items(), 1):
            run = _prepared(text)
            for kind, inputs in several.items():
                report(f"stage {stage} ({number} of {len(texts)}), {kind} inputs")
                bounds = expected[kind]
                if bounds is not None and (wrong := self.wrong(specialised, run, inputs, bounds, stage)):
                    return kind, Failure(stage, wrong, specialised, inputs, before)
            before = text
        return None

    def _expected(self, specialised: Specialised, inputs: Arrays) -> Bounds | None:
        """The error bounds of the outputs; None if the program refuses the inputs itself."""
        try:
            return enclose(specialised, inputs, self.target.backend)
        except OutOfRangeError:
            return None

    def wrong(self, specialised: Specialised, run: Run, inputs: Arrays, expected: Bounds, stage: str) -> str | None:
        """The reason why the results of prepared IR are wrong, or the IR is invalid; None otherwise."""
        try:
            found = run(inputs)
        except Fault as fault:
            return str(fault)
        except Unsupported as error:
            self.unsupported.setdefault(stage, str(error).split("\n")[0])
            return None
        except CallError as error:
            return f"a run-time check of the program fails on valid inputs: {error}"
        for tensor, array in zip(specialised.outputs, found.values(), strict=True):
            result = compare_array(array.view(ast.dtype_of(tensor).numpy), expected[tensor.name])
            if not result.within:
                return f"{tensor.name}: {result}"
        return None

    # ---- which pass --------------------------------------------------------------------------------------------------

    def blame(self, failure: Failure) -> Failure:
        """The failure with the pass of its stage that broke the IR, and the IR before that pass."""
        if failure.stage in ("build", "plan") or not failure.before:
            return failure
        expected = self._expected(failure.specialised, failure.inputs)
        assert expected is not None, "these inputs have shown a failure"
        (stage,) = [s for s in stages(lambda op: None, self.target) if s.name == failure.stage]
        suspects: list[str] = []
        with mlir.context(), ir.Location.unknown(), strict(self.shared is not None):
            module = mlir.parse(failure.before)
            for step in stage.steps:
                suspects.append(_name(step))
                try:
                    _run_pass(module, step)
                except Exception as error:  # any failure of a pass is the finding
                    return replace(failure, step=suspects[-1], what=str(error))
                known = len(self.unsupported)
                run = _prepared(mlir.text(module, locations=True))
                wrong = self.wrong(
                    failure.specialised, run, failure.inputs, expected, f"{failure.stage}: {suspects[-1]}"
                )
                if wrong:
                    return replace(failure, step=" or ".join(suspects), what=wrong)
                if len(self.unsupported) == known:
                    suspects = []
        return failure


def _prepared(text: str) -> Run:
    """IR ready to run; what cannot be interpreted says so when it runs."""
    try:
        return prepare(text)
    except Unsupported as error:
        found = error

    def run(arrays: Arrays) -> Arrays:
        raise found

    return run


def _name(step: Step) -> str:
    return step if isinstance(step, str) else step.__name__


def _run_pass(module: ir.Module, step: Step) -> None:
    manager = PassManager("builtin.module")
    if isinstance(step, str):
        manager.add(step)
    else:
        manager.add(lambda op, _pass: step(op), f"tilec-{step.__name__}")
    manager.run(module.operation)
