"""Running one outside case: a program, its inputs and what others expect of it; and counting how cases end."""

from __future__ import annotations

import importlib
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

import tilec
from tilec.core.diagnostics import InternalError, TileError
from tilec.core.dtypes import from_numpy
from tilec.core.source import read_source
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise
from tilec.semantics.comparison import compare_array
from tilec.semantics.error_bounds import enclose
from tilec.semantics.intervals import Enclosure
from tilec.torch.program import Unsupported

SUITES = {"einsum": "einsums", "onnx": "onnx_nodes", "torch": "opinfo"}


@dataclass
class Program:
    """A `.tile` program of one op, its inputs in order, and what is expected of its outputs, with their tolerance."""

    text: str
    inputs: list[np.ndarray]
    expected: list[np.ndarray]
    rtol: float
    atol: float


@dataclass
class Outcome:
    case: str
    verdict: str  # passed, refused or failed
    reason: str = ""


@dataclass
class Report:
    suite: str
    outcomes: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0
    every: int = 1  # of the suite's cases, every so many-th was run

    def count(self, verdict: str) -> int:
        return sum(o.verdict == verdict for o in self.outcomes)

    def reasons(self, verdict: str) -> Counter:
        return Counter(o.reason for o in self.outcomes if o.verdict == verdict)

    def __str__(self) -> str:
        counts = ", ".join(f"{self.count(v)} {v}" for v in ("passed", "refused", "failed"))
        return f"{self.suite}: {len(self.outcomes)} cases, {counts}, {self.seconds:.0f} s"


def run_all(suite: str, cases: Iterable[tuple[str, Callable[[], Program]]], note=lambda outcome: None) -> Report:
    report, start = Report(suite), time.perf_counter()
    for name, make in cases:
        report.outcomes.append(outcome := attempt(name, make))
        note(outcome)
    report.seconds = time.perf_counter() - start
    return report


def outcomes(suite: str, only: str, every: int, jobs: int, part: int) -> list[Outcome]:
    """Of every case that is chosen, or of a part of them."""
    module = importlib.import_module(f"tests.outside.{SUITES[suite]}")
    chosen = [c for c in module.cases() if only in c[0]][::every]
    return run_all(suite, chosen[part::jobs], report).outcomes


def report(outcome) -> None:
    if outcome.verdict == "failed":
        print(f"FAILED {outcome.case}\n  {outcome.reason}", flush=True)


def attempt(name: str, make: Callable[[], Program]) -> Outcome:
    try:
        program = make()
    except Unsupported as why:
        return Outcome(name, "refused", str(why))
    try:
        problem = check(program)
    except InternalError as error:
        return Outcome(name, "failed", f"internal error: {error}\n{program.text}")
    except TileError as error:
        first = str(error).splitlines()[0].partition(": ")[2] or str(error)
        return Outcome(name, "failed", f"refused by the compiler: {first}\n{error}\n{program.text}")
    except Exception as error:
        return Outcome(name, "failed", f"{type(error).__name__}: {error}\n{program.text}")
    return Outcome(name, "failed", f"{problem}\n{program.text}") if problem else Outcome(name, "passed")


def check(program: Program) -> str:
    """What is wrong with the compiled program's results; nothing where they are right."""
    results = tilec.compile(program.text, target="cpu")(*program.inputs)
    results = list(results) if isinstance(results, tuple) else [results]
    types = [(from_numpy(a.dtype), a.shape) for a in program.inputs]
    special = specialise(parse(read_source(program.text)), None, types, None)
    named = {t.name: np.asarray(r) for t, r in zip(special.outputs, results)}
    inputs = {t.name: a for t, a in zip(special.inputs, program.inputs)}
    allowed = enclose(special, inputs, "cpu")
    for (output, found), expected in zip(named.items(), program.expected, strict=True):
        if not (compared := compare_array(found, allowed[output])).within:
            return f"{output} is out of its error bound: {compared}"
        if found.shape != expected.shape:
            return f"{output} has shape {found.shape}, and theirs {expected.shape}"
        if different := _separate(found, expected, allowed[output], program):
            return f"{output}{different}"
    return ""


def _separate(found: np.ndarray, expected: np.ndarray, allowed: Enclosure, program: Program) -> str:
    """Where results differ by more than their tolerance, and more than our bound: digits may cancel in their samples."""
    mine, theirs = (a if a.dtype.kind in "iub" else a.astype(np.float64) for a in (found, expected))
    with np.errstate(all="ignore"):
        close = np.isclose(mine, theirs, program.rtol, program.atol, equal_nan=True)
        if mine.dtype.kind == "f":
            close |= np.abs(mine - theirs) <= allowed.high - allowed.low
    if close.all():
        return ""
    at = tuple(int(n) for n in np.argwhere(~close)[0])
    return f"{list(at)} is {mine[at]!r}, and theirs {theirs[at]!r}; {(~close).sum()} differ"
