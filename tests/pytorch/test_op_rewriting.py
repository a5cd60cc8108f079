"""Programs made from programs, judged by the reference: one more dimension of some inputs, and statements in another program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from fuzz.choices import Choices
from fuzz.corpus import NAMES, kept
from fuzz.programs import Case, drawn_case

from tilec.core.diagnostics import Source
from tilec.core.dtypes import from_numpy
from tilec.dsl.batched_op import Words, batched
from tilec.dsl.check_sizes import size_names
from tilec.dsl.mistakes import read
from tilec.dsl.specialise import specialise
from tilec.semantics.reference import evaluate
from tilec.torch.program import Graph, Tensor, Unsupported
from tilec.torch.splice import Splice

DRAWN = 30


def program(text: str) -> Any:
    return read(Source("<program>", text))


def results(text: str, op: str, given: list[np.ndarray], sizes: dict[str, int]) -> list[np.ndarray]:
    special = specialise(program(text), op, [(from_numpy(a.dtype), a.shape) for a in given], sizes)
    found = evaluate(special, {t.name: a for t, a in zip(special.inputs, given)})
    return [found[t.name] for t in special.outputs]


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return np.allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=1e-9, equal_nan=True)


def cases(case: Case) -> tuple[Any, list[np.ndarray], dict[str, int]]:
    op = program(case.text).ops[-1]
    known = {name: n for name, n in case.sizes.items() if name in size_names(op)}
    return op, [np.asarray(a) for a in case.inputs.values()], known


def judge_one_more_dimension(case: Case, rng: np.random.Generator) -> None:
    op, given, sizes = cases(case)
    which = tuple(bool(b) for b in rng.integers(0, 2, len(given)))
    if any(which) and max(len(t.shape or ()) for t in (*op.inputs, *op.outputs)) < 16:
        made = batched(program(case.text), op, which)
        many = [np.stack([a, np.roll(a, 1, -1) if a.ndim else a]) if more else a for a, more in zip(given, which)]
        found = results(made.text, made.op, many, sizes)
        for k in range(2):
            one = results(case.text, op.name, [a[k] if more else a for a, more in zip(many, which)], sizes)
            assert all(same(f[k] if more else f, o) for f, o, more in zip(found, one, made.results)), (which, made.text)


def judge_statements_elsewhere(case: Case) -> None:
    op, given, sizes = cases(case)
    special = specialise(program(case.text), op.name, [(from_numpy(a.dtype), a.shape) for a in given], sizes)
    graph, words = Graph(), Words(program(case.text))
    arguments = [graph.argument("y", a.shape, from_numpy(a.dtype).name) for a in given]
    meant = [(tuple(n.value for n in t.shape), t.dtype.name) for t in special.outputs]
    try:
        made: list[Tensor] = Splice(graph, words, "").op(op, arguments, special.sizes, meant)
    except Unsupported:
        return
    text = graph.program(made)
    found, wanted = results(text, "f", given, {}), results(case.text, op.name, given, sizes)
    assert all(same(f, w) for f, w in zip(found, wanted, strict=True)), text


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", NAMES)
def test_program_that_once_failed(name, rng):
    judge_one_more_dimension(kept(name), rng)
    judge_statements_elsewhere(kept(name))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("part", range(4))
def test_drawn_programs(part, rng):
    for number in range(part, DRAWN, 4):
        case = drawn_case(Choices(f"rewritten {number}"), sizes=(1, 2, 3, 5))
        if case.inputs:
            judge_one_more_dimension(case, rng)
            judge_statements_elsewhere(case)
