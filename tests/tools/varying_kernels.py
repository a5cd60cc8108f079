"""Kernels of programs whose sizes vary, made once for a class of sizes and run at several: printed CUDA kernels by the emulator,
and the IR after `map` by the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tilec.core import mlir, targets
from tilec.core.diagnostics import Source
from tilec.core.mlir import ir
from tilec.core.source import read_source
from tilec.driver.classes import typical
from tilec.driver.lowering import Lowered, lower
from tilec.dsl.build import build
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise
from tilec.plan.model import Plan
from tilec.runtime.sized import at
from tilec.semantics.comparison import compare
from tilec.semantics.inputs import random_inputs
from tilec.semantics.interpreter import prepare
from tools.cuda_row_emulator import RowIntrinsics
from tools.emulation import run_printed
from tools.varying import Ranges, ranges, results


def lowered_for(
    text: str | Path, varies: Ranges, target: str = "h200", schedule: Callable[[Plan], Plan] | None = None, **sizes: int
) -> Lowered:  # fmt: skip
    """A program's kernels for a class of sizes, where others are these numbers."""
    known = ranges(varies)
    special = specialise(parse(_source(text)), None, None, sizes, varies=known)
    with mlir.context(), ir.Location.unknown():
        at = {n: typical(v) for n, v in known.items()}
        return lower(build(special), targets.load(target), schedule=schedule, locations=False, at=at)


def wrong_kernels(
    text: str | Path, made: Lowered, several: Sequence[Mapping[str, int]], interpreted: bool = True, **sizes: int
) -> list[str]:
    """What is wrong with the results of a program's kernels at any of several sizes. `interpreted`: also with those of its IR."""
    found, program = list[str](), parse(_source(text))
    run = prepare(made.texts["map"]) if interpreted else None
    for chosen in several:
        exact = specialise(program, None, None, {**sizes, **chosen})
        inputs = random_inputs(exact, 1, {})
        printed = Lowered(made.texts, made.plan, emitted=at(made.emitted, chosen))
        outputs, failed = run_printed(exact, printed, inputs, RowIntrinsics)
        ways = {"printed": {t.name: a for t, a in zip(exact.outputs, outputs)}}
        if run is not None:
            ways["mapped"] = results(run, exact, inputs) or {}
        found += [f"{chosen}: a check fails"] * any(failed)
        for way, arrays in ways.items():
            wrong = compare(exact, inputs, arrays).items()
            found += [f"{chosen}: {way} {name}: {c}" for name, c in wrong if not c.within]
    return found


def _source(text: str | Path) -> Source:
    return Source("t.tile", text) if isinstance(text, str) else read_source(text)
