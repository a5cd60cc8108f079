"""Attention whose keys and values lie in pages, at places that a table tells: by wgmma, where TMA copies a box of each page, and by
mma.sync, where threads copy lines from anywhere."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import assert_within
from tools.chains import lowered, reasons, warps
from tools.contractions import arrays, emulated
from tools.cuda_kernels import compiled
from tools.lowering import lowered as lower_text

from tilec.core.diagnostics import CallError, Source
from tilec.kernels import ContractionChain
from tilec.semantics.interpreter import interpret

PREFILL = """op a(q: bf16[B, S, H, D], k: bf16[G, P, H, D], v: bf16[G, P, H, D], table: i32[B, U]) -> (o: bf16[B, S, H, D]) {
 s[b, h, i, j] = sum[d](q[b, i, h, d] * k[table[b, j // P], j % P, h, d]) where j in 0:U * P
 t[b, h, i, j] = s[b, h, i, j] if j <= i else -inf
 p[b, h, i, j]: bf16 = softmax[j](t[b, h, i, j])
 o[b, i, h, d] = sum[j](p[b, h, i, j] * v[table[b, j // P], j % P, h, d])
}"""
DECODE = """
op a(q: bf16[B, H, D], k: bf16[G, P, H // 4, D], v: bf16[G, P, H // 4, D], table: i32[B, U], n: i32[B]) -> (o: bf16[B, H, D]) {
 s[b, h, j] = sum[d](q[b, h, d] * k[table[b, j // P], j % P, h // 4, d]) * 0.125 where j in 0:U * P
 t[b, h, j] = s[b, h, j] if j < n[b] else -inf
 p[b, h, j]: bf16 = softmax[j](t[b, h, j])
 o[b, h, d] = sum[j](p[b, h, j] * v[table[b, j // P], j % P, h // 4, d])
}"""
ANYWHERE = """op a(q: bf16[S, D], k: bf16[G, D], v: bf16[G, D], at: i64[T]) -> (o: bf16[S, D]) {
 s[i, j] = sum[d](q[i, d] * k[at[j], d])
 p[i, j]: bf16 = softmax[j](s[i, j])
 o[i, d] = sum[j](p[i, j] * v[at[j], d])
}"""


def drawn(specialised, below: dict[str, int]) -> list[np.ndarray]:
    """Inputs, with numbers below a bound for each one of integers."""
    return [a if t.name not in below else np.abs(a) % below[t.name] for t, a in zip(specialised.inputs, arrays(specialised))]


def check(text, sizes, tile, below, monkeypatch, printed=False):
    specialised, result = lowered(text, sizes, tile, monkeypatch)
    (options,) = (k.options for k in result.plan.kernels)
    assert isinstance(options, ContractionChain)
    inputs = drawn(specialised, below)
    outputs = emulated(specialised, result, inputs) if printed else interpret(result.texts["map"], inputs)
    assert_within(text, inputs, outputs, kind="cuda")
    return options, result, inputs


@pytest.mark.crossed
@pytest.mark.parametrize("printed", [False, True])
@pytest.mark.parametrize(
    ("page", "tile"),
    [(16, (64, 48)), (32, (64, 32)), (64, (128, 32)), (8, warps(64, 32)), (4, warps(32, 32)), (24, warps(32, 32))],
)
def test_pages(page, tile, printed, monkeypatch):
    """Several pages in a step, and several steps in a page; rows and steps at their ends."""
    sizes = {"B": 1, "S": 70, "H": 2, "D": 16, "G": 40, "P": page, "U": -(-72 // page)}
    options, result, _ = check(PREFILL, sizes, tile, {"table": 40}, monkeypatch, printed)
    assert options.pages == (page,) and len(result.emitted.kernels[0].sites) == 2  # of k's pages, and of v's


@pytest.mark.parametrize("tile", [(64, 32), warps(16, 32)])
def test_few_rows_of_many_pages(tile, monkeypatch):
    sizes = {"B": 2, "H": 8, "D": 16, "G": 9, "P": 16, "U": 5}
    check(DECODE, sizes, tile, {"table": 9, "n": 81}, monkeypatch)


@pytest.mark.parametrize("printed", [False, True])
def test_elements_that_lie_anywhere(printed, monkeypatch):
    """Pages of one element, which only mma.sync takes."""
    sizes = {"S": 40, "D": 24, "G": 50, "T": 45}
    options, *_ = check(ANYWHERE, sizes, warps(32, 32), {"at": 50}, monkeypatch, printed)
    assert options.pages == (1,)


@pytest.mark.parametrize("tile", [(64, 48), warps(64, 32)])
@pytest.mark.parametrize("wrong", [-1, 40])
def test_pages_that_do_not_exist_are_refused(wrong, tile, monkeypatch):
    """The table's last entry is checked as all others are."""
    sizes = {"B": 2, "S": 70, "H": 1, "D": 16, "G": 40, "P": 16, "U": 5}
    specialised, result = lowered(PREFILL, sizes, tile, monkeypatch)
    inputs = drawn(specialised, {"table": 40})
    inputs[-1][-1, -1] = wrong
    with pytest.raises(CallError, match="reads outside"):
        interpret(result.texts["map"], inputs)


@pytest.mark.slow
@pytest.mark.parametrize("page", [16, 64])
@pytest.mark.parametrize(
    "text, sizes", [(PREFILL, {"B": 4, "S": 4096, "H": 16, "D": 128}), (DECODE, {"B": 8, "H": 32, "D": 128})]
)
def test_pages_fit_registers(text, sizes, page):
    """Without spills, and products do not wait for one another."""
    given = sizes | {"P": page, "U": 8192 // page, "G": 4096}
    _, result = lower_text(Source("t.tile", text), None, given)
    assert isinstance(result.plan.kernels[0].options, ContractionChain) and result.plan.kernels[0].options.unit == "wgmma"
    assert "cp.async.bulk.tensor.4d" in compiled(result.emitted, "sm_90a")[0][1].ptx


def test_what_pages_are_refused():
    sizes = {"B": 1, "S": 70, "H": 2, "D": 16, "G": 40, "P": 12, "U": 6}
    along = PREFILL.replace("G, P, H, D", "G, H, D, P").replace("j % P, h, d", "h, d, j % P")
    assert "contiguous along an index whose elements lie at places that data tell" in reasons(along, sizes)


def test_pages_of_which_no_step_is_a_part():
    """Warps copy line by line; a step of warpgroups has whole boxes, of which 72 elements allow none up to 128."""
    sizes = {"B": 1, "S": 4096, "H": 2, "D": 64, "G": 40, "P": 72, "U": 60}
    _, result = lower_text(PREFILL, None, sizes, target="h200", end="plan", emit=False)
    (kernel,) = result.plan.kernels
    assert isinstance(kernel.options, ContractionChain) and kernel.options.unit == "mma.sync"


def test_few_elements_that_are_contiguous_along_them():
    """Steps are whole lines of 64 then, which is more than the 24 elements that there are."""
    text = """op f(q: bf16[H, S, D], k: bf16[H, S, D], v: bf16[H, D, S]) -> (o: bf16[H, S, D]) {
 s[h, i, j] = sum[d](q[h, i, d] * k[h, j, d]) / 8
 p[h, i, j]: bf16 = softmax[j](s[h, i, j])
 o[h, i, d] = sum[j](p[h, i, j] * v[h, d, j])
}"""
    _, result = lower_text(text, None, {"H": 64, "S": 24, "D": 64}, target="h200", end="plan", emit=False)
    (kernel,) = result.plan.kernels
    assert isinstance(kernel.options, ContractionChain) and kernel.options.block[1] == 64
