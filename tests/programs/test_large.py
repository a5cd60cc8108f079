"""Programs as large as models: the work before machine code grows with them, no faster."""

from __future__ import annotations

import sys

import pytest
from tools import lowering

import tilec
from benchmarks.large import least
from benchmarks.large_programs import LARGE
from tilec.core.diagnostics import Source
from tilec.dsl.mistakes import read
from tilec.dsl.modules import load_file
from tilec.plan.cuda.contraction import Tiles
from tilec.runtime.program import Emitted, Slot, Step
from tilec.runtime.temporaries import ALIGN, allocate

FEW = {"chain": 150, "small": 60, "updates": 20, "transformer": 2, "backward": 3}


def work(name: str, count: int, target: str) -> tuple[int, int]:
    """Statements of a program, and the functions that are called until its kernels are printed."""
    text, calls = LARGE[name].text(count), [0]

    def counted(_frame, event, _argument):
        calls[0] += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        emitted = lowering.emitted(Source(f"<{name}>", text), name, target=target)
    finally:
        sys.setprofile(None)
    assert emitted.kernels
    return text.count(" = "), calls[0]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "h200"])
@pytest.mark.parametrize("name", FEW)
def test_calls_grow_with_the_statements(name, target):
    """Of twice the statements, at most two and a half times the calls."""
    work(name, FEW[name], target)  # what is made once a process
    statements, calls = work(name, FEW[name], target)
    more_statements, more_calls = work(name, 2 * FEW[name], target)
    assert more_calls / calls <= 1.25 * more_statements / statements


def test_lines_of_long_texts_are_found_at_once():
    source = Source("long", "first\n" * 3 + "\nlast")
    assert [source.position(n) for n in (0, 5, 6, 18, 19, 23)] == [(1, 1), (1, 6), (2, 1), (4, 1), (5, 1), (5, 5)]
    assert [source.line(n) for n in range(7)] == ["", "first", "first", "first", "", "last", ""]
    before = source.text[:0]
    assert source.position(0) == (before.count("\n") + 1, 1)


def test_memory_of_a_long_program_is_the_least():
    """Each intermediate is read by the next step; those of one size take turns in two places."""
    steps = [Step("k", (Slot("temporary", n), Slot("temporary", n + 1))) for n in range(400)]
    placed = allocate([1000] * 401, steps)
    emitted = Emitted("f", "", (), tuple(steps), placed)
    assert least(emitted) == 2000 and emitted.workspace <= 2 * ALIGN * 4


@pytest.mark.slow
def test_a_backward_graph_of_5500_statements_is_read():
    text = LARGE["backward"].text(31)
    assert text.count(" = ") > 5500
    assert [op.name for op in read(Source("<backward>", text), load_file).ops] == ["backward"]


def test_a_program_is_checked_once(monkeypatch, tmp_path):
    """With its sizes left open when it is read, and then for the sizes of a call."""
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path))
    from tilec.dsl import check

    seen = []
    original = check.Elaborator.run
    monkeypatch.setattr(check.Elaborator, "run", lambda self: seen.append(self.decided) or original(self))
    op = tilec.compile("op once(x: f32[M, N]) -> (y: f32[M]) { y[i] = sum[j](x[i, j] * 7.25) }", target="cpu")
    op.build(M=3, N=5)
    assert seen == [False, True]


@pytest.mark.parametrize("shape", [(64, 64, 8192), (128, 256, 1024), (512, 512, 4096), (4096, 4096, 512), (16, 16, 65536)])
def test_splits_that_cannot_pay_are_those_that_do_not(shape, monkeypatch):
    """The least time that a part may take rules parts out, and no others."""
    m, n, k = shape
    text = "op f(x: bf16[M, K], w: bf16[K, N]) -> (y: f32[M, N]) { y[i, n] = sum[k](x[i, k] * w[k, n]) }"
    sizes = {"M": m, "N": n, "K": k}
    quick = lowering.planned(text, None, sizes)
    monkeypatch.setattr(Tiles, "least_us", lambda self, target, **changes: 0.0)
    assert lowering.planned(text, None, sizes) == quick
