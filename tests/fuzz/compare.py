"""Running a case in several ways, each held to the reference."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tools.cuda_emulator import run as emulate
from tools.cuda_row_emulator import RowIntrinsics
from tools.lowering import lowered

import tilec
from fuzz.programs import Case
from tilec.core import mlir
from tilec.core.dtypes import from_numpy
from tilec.core.mlir import ir
from tilec.core.source import read_source
from tilec.core.targets import load
from tilec.driver.lowering import lower
from tilec.dsl.build import build
from tilec.dsl.parse import parse
from tilec.dsl.specialise import Specialised, specialise
from tilec.passes import NAMES
from tilec.plan.schedule.read import read_schedule
from tilec.runtime.program import Emitted
from tilec.semantics.comparison import compare_array
from tilec.semantics.error_bounds import enclose
from tilec.semantics.interpreted import interpret_stage
from tilec.semantics.reference import evaluate

Arrays = dict[str, np.ndarray]


class Wrong(AssertionError):
    """A result that is not what the reference says."""


def specialised(case: Case) -> Specialised:
    types = None if case.op else [(from_numpy(a.dtype), a.shape) for a in case.inputs.values()]
    return specialise(parse(read_source(case.text)), case.op, types, case.sizes)


WAYS = ("cpu", "stages", "emulator", "gpu")
"""`stages`: the IR after every stage, for CPU and GPU, by the interpreter; `emulator`: printed CUDA kernels, on the CPU."""


@dataclass
class Verdict:
    """Of how many results that were compared some elements may be anything."""

    compared: int = 0
    unbounded: int = 0


def check(case: Case, way: str, schedule: str | None = None) -> Verdict:
    """Runs a case one way, as the text of a schedule file says. Raises Wrong, or what compiling and running raise."""
    program = specialised(case)
    match way:
        case "cpu":
            return expect(case, program, on_cpu(case, program, schedule), "cpu")
        case "emulator":
            return expect(case, program, on_emulator(case, program, schedule), "cuda")
        case "gpu":
            return expect(case, program, on_gpu(case, program, schedule), "cuda")
        case "stages":
            verdict, expected = Verdict(), Expected(case, program, None)
            for target in ("cpu", "h200"):
                for stage, results in interpreted(case, program, target, schedule):
                    verdict = expected.verdict(results, f"after {stage} for {target}: ")
            return verdict
    raise ValueError(way)


def expect(case: Case, program: Specialised, results: Arrays, kind: str | None, where: str = "") -> Verdict:
    """Results within what the documented errors allow, and equal where no rounding reaches."""
    return Expected(case, program, kind).verdict(results, where)


class Expected:
    """What the results of a case may be, for several ways to compute them."""

    def __init__(self, case: Case, program: Specialised, kind: str | None):
        self.case, self.program = case, program
        self.allowed = enclose(program, case.inputs, kind)
        self.exact = evaluate(program, case.inputs, rounded=True)

    def verdict(self, results: Arrays, where: str) -> Verdict:
        verdict = Verdict()
        for tensor in self.program.outputs:
            comparison = compare_array(results[tensor.name], self.allowed[tensor.name])
            if not comparison.within:
                raise Wrong(f"{where}{tensor.name} is out of bounds: {comparison}")
            verdict.compared += 1
            verdict.unbounded += comparison.unbounded > 0
        for tensor in self.program.outputs:
            name, found = tensor.name, results[tensor.name]
            with np.errstate(all="ignore"):
                expected = self.exact[name].astype(tensor.dtype.numpy)
            if found.shape != expected.shape or found.dtype != expected.dtype:
                raise Wrong(
                    f"{where}{name} is {found.dtype}{list(found.shape)}, not {expected.dtype}{list(expected.shape)}"
                )
            differ = ~_same(found, expected)
            if name in self.case.exact and differ.any():
                at = tuple(map(int, np.argwhere(differ)[0]))
                count = f"{np.count_nonzero(differ)} of {found.size} elements of {name}"
                raise Wrong(f"{where}{count} differ, at {list(at)} {found[at]}, not {expected[at]}")
        return verdict


def _same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind in "iub":
        return np.asarray(a == b)
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a == b) | (np.isnan(a) & np.isnan(b))


def as_schedule(text: str | None):
    """A schedule file's text as what `lower` takes."""
    if text is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "drawn.sched.toml"
        path.write_text(text)
        return read_schedule(path)


def outputs_of(program: Specialised) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    return {t.name: (t.dtype.numpy, tuple(s.value for s in t.shape)) for t in program.outputs}


def lowered_for_cpu(program: Specialised, schedule: str | None) -> Emitted:
    """The kernels, in the current MLIR context."""
    return lower(build(program), load("cpu"), schedule=as_schedule(schedule), texts=False).emitted


def on_cpu(case: Case, program: Specialised, schedule: str | None = None) -> Arrays:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "drawn.sched.toml"
        path.write_text(schedule or "")
        op = tilec.compile(case.text, op=case.op, sizes=case.sizes, target="cpu", schedule=path if schedule else None)
        found = op(*case.inputs.values())
    found = found if isinstance(found, tuple) else (found,)
    return {t.name: np.asarray(a) for t, a in zip(program.outputs, found)}


def interpreted(
    case: Case, program: Specialised, target: str, schedule: str | None = None
) -> Iterator[tuple[str, Arrays]]:
    """The results of the IR after every stage."""
    texts = lowered(program, schedule=as_schedule(schedule), target=target, locations=True, emit=False, texts=True)[1].texts
    for stage in [s for s in NAMES if s in texts]:
        with np.errstate(all="ignore"):
            yield stage, interpret_stage(program, texts, stage, case.inputs)
    between = NAMES[zlib.crc32(case.text.encode()) % NAMES.index("tile")]
    yield (
        f"{between}, canonicalize, cse and the rest",
        interpret_stage(program, simplified_after(texts, between, target), NAMES[-1], case.inputs),
    )


def simplified_after(texts: dict[str, str], stage: str, target: str) -> dict[str, str]:
    """The IR where upstream's simplifications ran once more after a stage (before `tile`: `cse` would merge tiles)."""
    with mlir.context(), ir.Location.unknown():
        module = mlir.parse(texts[stage])
        mlir.PassManager.parse("builtin.module(canonicalize,cse)").run(module.operation)
        following = NAMES[NAMES.index(stage) + 1]
        return {**texts, **lower(module, load(target), begin=following, emit=False).texts}


def on_gpu(case: Case, program: Specialised, schedule: str | None = None) -> Arrays:
    from fuzz.guards_cuda import GuardedGpu
    from tilec.driver.executables import build_executable
    from tilec.driver.recipe import Prepared

    target = load("cuda")
    _, found = lowered(program, schedule=as_schedule(schedule), target=target, texts=False)
    executable = build_executable(Prepared(program, found, target))
    device = GuardedGpu(case.inputs, executable.outputs)
    try:
        device.run(executable)
        return device.results()
    finally:
        device.close()


def on_emulator(case: Case, program: Specialised, schedule: str | None = None) -> Arrays:
    emitted = lowered(program, schedule=as_schedule(schedule), texts=False)[1].emitted
    outputs = {t.name: np.empty([s.value for s in t.shape], t.dtype.numpy) for t in program.outputs}
    failed = emulate(emitted, list(case.inputs.values()), list(outputs.values()), RowIntrinsics)
    if any(failed):
        raise Wrong(f"a check failed: {failed}")
    return outputs
