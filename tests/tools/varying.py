"""Programs whose sizes vary, built once and run by the interpreter at each size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path

import numpy as np

from tilec.core import mlir
from tilec.core.diagnostics import CallError
from tilec.core.mlir import ir
from tilec.core.source import read_source
from tilec.core.varying import Varying
from tilec.dsl import ast
from tilec.dsl.build import build
from tilec.dsl.parse import parse
from tilec.dsl.specialise import Specialised, specialise
from tilec.kernels.verifier import Verifier
from tilec.semantics.comparison import compare
from tilec.semantics.inputs import random_inputs
from tilec.semantics.interpreter import prepare

Ranges = Mapping[str, Varying | tuple[int, ...]]
Arrays = dict[str, np.ndarray]
Run = Callable[[Arrays], Arrays]


def ranges(given: Ranges) -> dict[str, Varying]:
    return {name: v if isinstance(v, Varying) else Varying(*v) for name, v in given.items()}


def varying(text: str | Path, varies: Ranges, op: str | None = None, **sizes: int) -> Specialised:
    """The program with these sizes left open."""
    return specialise(parse(read_source(text)), op, None, sizes, varies=ranges(varies))


def built(special: Specialised, simplified: bool = False) -> str:
    """The IR after `build`, which is valid; `simplified`: also after MLIR's canonicalization and its elimination of equal parts."""
    with mlir.context(), ir.Location.unknown():
        module = build(special)
        assert module.operation.verify()
        Verifier().demand(module.operation, "build", "build", True)
        if simplified:
            mlir.PassManager.parse("builtin.module(canonicalize,cse)").run(module.operation)
            assert module.operation.verify()
        return mlir.text(module)


def numbers(v: Varying) -> list[int]:
    return list(range(v.low, v.high + 1, v.multiple))


def all_sizes(varies: Ranges) -> Iterator[dict[str, int]]:
    """Every choice of numbers."""
    known = ranges(varies)
    for chosen in product(*map(numbers, known.values())):
        yield dict(zip(known, chosen))


def wrong_sizes(text: str | Path, varies: Ranges, op: str | None = None, **sizes: int) -> list[str]:
    """What is wrong with the IR of a program at any of its sizes, each compared with the program of exactly that size."""
    special, found = varying(text, varies, op, **sizes), []
    runs = [prepare(built(special, simplified)) for simplified in (False, True)]
    program = parse(read_source(text))
    for chosen in all_sizes(varies):
        exact = specialise(program, op, None, {**sizes, **chosen})
        inputs = random_inputs(exact, 1, {})
        own = results(prepare(built(exact)), exact, inputs)
        for run in runs:
            made = results(run, exact, inputs)
            if made is None or own is None:
                found += [f"{chosen}: a check fails"] * (made is not own)
                continue
            found += [f"{chosen}: {n}: {c}" for n, c in compare(exact, inputs, made).items() if not c.within]
    return found


def results(run: Run, special: Specialised, inputs: Arrays) -> Arrays | None:
    """The results of the IR, of the declared types; None where a run-time check fails."""
    try:
        found = run(inputs)
    except CallError:
        return None
    return {t.name: found[t.name].view(ast.dtype_of(t).numpy) for t in special.outputs}
