"""Programs whose sizes vary, run at several sizes: compiled once for each class of sizes, right at all of them."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from math import gcd
from pathlib import Path

import numpy as np
from tools.cuda_emulator import run as emulate
from tools.cuda_row_emulator import RowIntrinsics

import tilec
from fuzz.compare import Arrays, Expected, Verdict, Wrong, outputs_of
from fuzz.sized import Sized
from tilec.api import Op
from tilec.core.diagnostics import CallError
from tilec.core.dtypes import from_numpy
from tilec.core.source import read_source
from tilec.core.targets import load
from tilec.driver.by_class import ByClass
from tilec.driver.classes import LARGEST_UNIT
from tilec.driver.executable import Executable
from tilec.driver.executables import build_executable
from tilec.driver.frontend import parsed
from tilec.driver.recipe import Recipe, Signature
from tilec.dsl.specialise import Specialised, specialise
from tilec.passes import NAMES
from tilec.semantics.interpreted import interpret_stage

WAYS = ("sizes-cpu", "sizes-stages", "sizes-emulator", "sizes-gpu")
"""As the ways of `fuzz.compare`."""


class Classes:
    """What a program is compiled to for a target, class by class as calls ask for it. It has no machine code unless `loaded`."""

    def __init__(self, sized: Sized, target: str, loaded: bool = False):
        self.sized, self.target, self.loaded = sized, load(target), loaded
        self.program = parsed(read_source(sized.text))
        self.op = Op(self.program, "f", sized.sizes, target, None, varies=sized.varies)
        self.by_class = ByClass(self.program, "f", sized.sizes, sized.varies, self.op._recipe, self._build)
        self.built: list[Executable] = []

    def _build(self, recipe: Recipe) -> Executable:
        recipe.compiled = recipe.compiled_here
        self.built.append(build_executable(recipe) if self.loaded else Executable(recipe))
        return self.built[-1]

    def special(self, chosen: Mapping[str, int]) -> Specialised:
        """The program of exactly these sizes."""
        return specialise(self.program.tree, "f", None, {**self.sized.sizes, **chosen}, checked=True)

    def at(self, chosen: Mapping[str, int], inputs: Arrays) -> Executable:
        """For a call. Raises Wrong where a class is compiled again: multiples of a number may have a class of their own."""
        known = [e.recipe for e in self.built if self._serves(e.recipe, chosen)]
        before = len(self.built)
        found = self.by_class.executable(signature(inputs), self.target)
        for recipe in known if len(self.built) > before else ():
            if not _apart(found.recipe, recipe, chosen):
                raise Wrong(f"{chosen} is compiled again, though {recipe.of} was")
        return found

    def _serves(self, recipe: Recipe, chosen: Mapping[str, int]) -> bool:
        ranges = dict(recipe.of.ranges) if recipe.of else {}
        return all(ranges[name].has(n) if name in ranges else recipe.sizes[name] == n for name, n in chosen.items())

    def refuse(self) -> None:
        """Raises Wrong where sizes outside of their ranges are taken."""
        for chosen in self.sized.beyond:
            try:
                self.by_class.executable(signature(self.sized.inputs(chosen)), self.target)
            except CallError:
                continue
            raise Wrong(f"{chosen} is no call of {self.sized.varies}, and is taken")

    @property
    def refused(self) -> Counter:
        """Why sizes could not vary, each reason once for each class that was compiled; "" where all sizes of a class vary."""
        found: Counter = Counter()
        for served in self.by_class.served():
            found.update({reason(why) for _, why in served.refused} or {""})
        return found


def _apart(recipe: Recipe, other: Recipe, chosen: Mapping[str, int]) -> bool:
    """Whether a recipe that serves some sizes has only multiples, of which another one that does has the rest, too."""
    own = dict(recipe.of.ranges) if recipe.of else {}
    ranges = other.of.ranges if other.of else ()
    units = {name: own[name].multiple if name in own else gcd(chosen[name], LARGEST_UNIT) for name, _ in ranges}
    return any(units[name] > v.multiple for name, v in ranges)


def signature(inputs: Arrays) -> Signature:
    return tuple((from_numpy(a.dtype), a.shape) for a in inputs.values())


def reason(why: str) -> str:
    """Why sizes cannot vary, without the names and numbers of one program."""
    return re.sub(r"'[^']*' (?=asks|failed)|`[^`]*`|\b[xyn]\d+\w*|\b\d+\b", "", why).strip()[:100]


class Run:
    """A call of a program: what is compiled for it, and what it may return."""

    def __init__(self, classes: Classes, chosen: Mapping[str, int]):
        self.chosen, self.case = dict(chosen), classes.sized.at(dict(chosen))
        self.executable = classes.at(chosen, self.case.inputs)
        self.special = classes.special(chosen)
        self.kind = classes.target.kind

    @cached_property
    def expected(self) -> Expected:
        return Expected(self.case, self.special, self.kind)

    def verdict(self, results: Arrays, where: str = "") -> Verdict:
        return self.expected.verdict(results, f"at {self.chosen} {where}")


def runs_of(classes: Classes) -> list[Run]:
    """Every call of a program; sizes beyond the ranges are refused."""
    runs = [Run(classes, chosen) for chosen in classes.sized.calls]
    classes.refuse()
    return runs


def check_sized(sized: Sized, way: str) -> tuple[Verdict, Counter]:
    """Calls a program at all of its sizes. Returns the reasons of what could not vary, too. Raises Wrong, or what compiling and
    running raise."""
    match way:
        case "sizes-cpu":
            return called(sized)
        case "sizes-stages":
            verdicts, refused = zip(*(_interpreted(Classes(sized, target)) for target in ("cpu", "h200")))
            return added(verdicts), sum(refused, Counter())
        case "sizes-emulator":
            classes = Classes(sized, "h200")
            return added([_emulated(run) for run in runs_of(classes)]), classes.refused
        case "sizes-gpu":
            classes = Classes(sized, "cuda", loaded=True)
            return added([_on_gpu(run) for run in runs_of(classes)]), classes.refused
    raise ValueError(way)


def added(verdicts: Iterator[Verdict] | list[Verdict] | tuple[Verdict, ...]) -> Verdict:
    found = Verdict()
    for verdict in verdicts:
        found.compared += verdict.compared
        found.unbounded += verdict.unbounded
    return found


def called(sized: Sized) -> tuple[Verdict, Counter]:
    """By `tilec.compile`, as a user does, and all sizes once more in the opposite order."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "drawn.tile"
        path.write_text(sized.text)
        varies = set(sized.varies) if sized.declared else sized.varies
        op = tilec.compile(path, op="f", sizes=sized.sizes, target="cpu", varies=varies)
        exact, verdicts = Classes(sized, "cpu"), []
        for chosen in (*sized.calls, *reversed(sized.calls)):
            before, case, special = len(op.classes()), sized.at(chosen), exact.special(chosen)
            found = op(*case.inputs.values())
            found = found if isinstance(found, tuple) else (found,)
            results = {t.name: np.asarray(a) for t, a in zip(special.outputs, found)}
            verdicts.append(Expected(case, special, "cpu").verdict(results, f"at {chosen} "))
            if len(verdicts) > len(sized.calls) and len(op.classes()) > before:
                raise Wrong(f"{chosen} is compiled again")
        for chosen in sized.beyond:
            try:
                op(*sized.inputs(chosen).values())
            except CallError:
                continue
            raise Wrong(f"{chosen} is no call of {sized.varies}, and is taken")
        exact.by_class = op._by_class
        return added(verdicts), exact.refused


def _interpreted(classes: Classes) -> tuple[Verdict, Counter]:
    """The IR of every class after the last stage at all sizes, and after each other stage at one of them."""
    verdicts, target = [], classes.target.name
    for number, run in enumerate(runs_of(classes)):
        texts = run.executable.recipe.lowered[1].texts
        stages = [s for s in NAMES if s in texts]
        for place, stage in enumerate(stages):
            if stage == stages[-1] or place % len(classes.sized.calls) == number:
                with np.errstate(all="ignore"):
                    results = interpret_stage(run.special, texts, stage, run.case.inputs)
                verdicts.append(run.verdict(results, f"after {stage} for {target}: "))
    return added(verdicts), classes.refused


def _emulated(run: Run) -> Verdict:
    made = {name: np.empty(shape, dtype) for name, (dtype, shape) in outputs_of(run.special).items()}
    failed = emulate(run.executable.emitted, list(run.case.inputs.values()), list(made.values()), RowIntrinsics)
    if any(failed):
        raise Wrong(f"at {run.chosen} a check failed: {failed}")
    return run.verdict(made)


def _on_gpu(run: Run) -> Verdict:
    from fuzz.guards_cuda import GuardedGpu

    device = GuardedGpu(run.case.inputs, run.executable.outputs)
    try:
        device.run(run.executable)
        return run.verdict(device.results())
    finally:
        device.close()
