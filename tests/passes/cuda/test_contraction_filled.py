"""Products of warpgroups of factors that TMA cannot copy: threads fill the tiles, by cp.async in pieces or through registers. Rows
that begin anywhere, rows found through an index, weights of experts, windows of few channels; run by the emulator and the
interpreter, and compiled at sizes that matter."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from conftest import assert_within
from tools import contractions as T
from tools.contractions import arrays, arrays_of, emulated
from tools.lowering import lowered as lower_text
from tools.plans import rewritten

from tilec.core.diagnostics import CallError, Source
from tilec.kernels import matrix
from tilec.semantics.interpreted import interpret_stage

WGMMA = {
    64: ("wgmma", 64, 64, 64, (4, 1)),
    128: ("wgmma", 128, 96, 64, (8, 1)),
}  # two slabs of 64 columns, one of them half full
PRODUCTS = {
    "nn": (T.MATMUL, lambda a, b: a @ b), "nt": (T.NT, lambda a, b: a @ b.T), "tn": (T.TN, lambda a, b: a.T @ b),
    "tt": (T.TRANSPOSED, lambda a, b: a.T @ b.T), "computed": (T.PROLOGUE, lambda a, s, b: (a * s[:, None]) @ b),
}  # fmt: skip
ROWS = """op g(x: {t}[S, K], p: i32[T], w: {t}[K, N]) -> (y: {o}[T, N]) {{
 y[t, n] = sum[k](x[p[t], k] * w[k, n])
}}
"""
EXPERTS = """op g(x: {t}[S, K], p: i32[B, I], e: i32[B], w: {t}[E, K, N]) -> (y: {o}[B, I, N]) {{
 y[b, i, n] = sum[k](x[p[b, i], k] * w[e[b], k, n])
}}
"""
BY_COLUMNS = """op g(x: {t}[M, S], p: i32[K], w: {t}[K, N]) -> (y: {o}[M, N]) {{
 y[m, n] = sum[k](x[m, p[k]] * w[k, n])
}}
"""
GATHERED = """op g(x: {t}[M, K], p: i32[K], w: {t}[S, N]) -> (y: {o}[M, N]) {{
 y[m, n] = sum[k](x[m, k] * w[p[k], n])
}}
"""
PAIRS = """op g(x: {t}[M, A, B], p: i32[A, B], w: {t}[S, N]) -> (y: {o}[M, N]) {{
 y[m, n] = sum[a, b](x[m, a, b] * w[p[a, b], n])
}}
"""
PAGES = """op g(q: {t}[M, D], k: {t}[G, P, D], table: i32[U]) -> (s: {o}[M, U * P]) {{
 s[m, j] = sum[d](q[m, d] * k[table[j // P], j % P, d])
}}
"""
CHANNELS = """op conv(x: {t}[N, H, W, C], f: {t}[R, S, C, K]) -> (y: {o}[N, H, W, K]) {{
 y[n, h, w, k] = sum[r, s, c](pad(x[n, h + r - 1, w + s - 1, c], 0) * f[r, s, c, k])
}}
"""


@pytest.fixture(autouse=True)
def few_stages(monkeypatch):
    monkeypatch.setitem(matrix.DEEPEST, "wgmma", 3)


lowered = partial(T.lowered, pack=[])  # no factor is stored in longer rows, which would pay at these sizes


def both(text, inputs, sizes, tile, expected, monkeypatch):
    """By the printed kernel, where data comes late, and by the interpreter, where races are faults."""
    specialised, result = lowered(text, sizes, "h200", tile, monkeypatch)
    (kernel,) = result.plan.kernels
    assert kernel.options.instruction == "wgmma" and kernel.options.filled
    names = [t.name for t in specialised.inputs]
    assert_within(text, inputs, emulated(specialised, result, inputs), kind="cuda", expected=expected)
    found = interpret_stage(specialised, result.texts, "map", dict(zip(names, inputs)))
    assert_within(text, inputs, list(found.values()), kind="cuda", expected=expected)
    return kernel.options


@pytest.mark.crossed
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("m, n, k", [(67, 51, 131), (68, 60, 68), (70, 62, 66)])
def test_rows_that_begin_anywhere(name, m, n, k, monkeypatch):
    """Rows of multiples of 2, 4 and 8 bytes, and edges along every dimension."""
    text, expected = PRODUCTS[name]
    text = text.format(t="bf16", o="bf16")
    inputs = arrays_of(text, {"M": m, "N": n, "K": k})
    exact = expected(*(a.astype(np.float64) for a in inputs))
    built = both(text, inputs, {"M": m, "N": n, "K": k}, WGMMA[64], exact, monkeypatch)
    if name != "computed":
        assert built.left_copy == {67: "registers", 68: "async8", 70: "async4"}[m]


def test_products_see_what_threads_have_copied(monkeypatch):
    """Copies by threads and products of warpgroups access memory by different proxies, with a fence between."""
    sizes = {"M": 68, "N": 60, "K": 132}
    _, result = lowered(T.NT.format(t="bf16", o="f32"), sizes, "h200", WGMMA[64], monkeypatch)
    lines = [line.strip() for line in result.emitted.kernels[0].text.splitlines()]
    waits = [n for n, line in enumerate(lines) if line.startswith("mbarrier_wait(shared + full")]
    assert waits and all(lines[n + 1] == "fence_async_shared()" for n in waits)


def paged(k, table):
    return k[table].reshape(-1, k.shape[-1])


FOUND = {
    "rows": (ROWS, {"S": 90, "T": 70, "K": 72, "N": 64}, lambda x, p, w: x[p] @ w, ("async", "tma")),
    "rows, odd": (ROWS, {"S": 20, "T": 129, "K": 13, "N": 33}, lambda x, p, w: x[p] @ w, ("registers", "registers")),
    "experts": (
        EXPERTS, {"S": 50, "B": 3, "I": 40, "E": 4, "K": 72, "N": 64}, lambda x, p, e, w: x[p] @ w[e], ("async", "tma"),
    ),
    "columns": (BY_COLUMNS, {"M": 66, "S": 90, "K": 70, "N": 64}, lambda x, p, w: x[:, p] @ w, ("registers", "tma")),
    "rows of k": (GATHERED, {"M": 66, "S": 90, "K": 72, "N": 64}, lambda x, p, w: x @ w[p], ("tma", "async")),
    "pages": (PAGES, {"M": 66, "G": 9, "P": 4, "U": 18, "D": 72}, lambda q, k, t: q @ paged(k, t).T, ("tma", "async")),
}  # fmt: skip


@pytest.mark.crossed
@pytest.mark.parametrize("rows", WGMMA)
@pytest.mark.parametrize("name", FOUND)
def test_positions_in_memory(name, rows, monkeypatch):
    text, sizes, expected, copies = FOUND[name]
    text = text.format(t="bf16", o="f32")
    inputs = [a if a.dtype.kind != "i" else indices(a, sizes) for a in arrays_of(text, sizes)]
    exact = expected(*(a.astype(np.float64) if a.dtype.kind != "i" else a for a in inputs))
    assert both(text, inputs, sizes, WGMMA[rows], exact, monkeypatch).copies == copies


def pairs(x, p, w):
    return x.reshape(len(x), -1) @ w[p.reshape(-1)]


@pytest.mark.parametrize("tile", [WGMMA[64], ("mma.sync", 64, 64, 64, (2, 2))])
@pytest.mark.parametrize("a, b", [(5, 13), (6, 16)])
def test_positions_of_two_reduced_indices(a, b, tile, monkeypatch):
    """By mma.sync they are one index, k, which ends within a step, and where memory ends; by wgmma a box has both."""
    text, sizes = PAIRS.format(t="bf16", o="f32"), {"M": 34, "A": a, "B": b, "S": 20, "N": 24}
    x, p, w = arrays(lower_text(Source("t.tile", text), None, sizes)[0])
    inputs = [x, indices(p, sizes), w]
    exact = pairs(*(i if i.dtype.kind == "i" else i.astype(np.float64) for i in inputs))
    if tile[0] == "wgmma":
        both(text, inputs, sizes, tile, exact, monkeypatch)
        return
    specialised, result = lowered(text, sizes, "h200", tile, monkeypatch)
    assert_within(text, inputs, emulated(specialised, result, inputs), kind="cuda", expected=exact)
    found = interpret_stage(specialised, result.texts, "map", dict(zip("xpw", inputs)))
    assert_within(text, inputs, list(found.values()), kind="cuda", expected=exact)


def indices(a, sizes):
    """Numbers that are less than all tables are long."""
    return np.abs(a) % min(sizes[s] for s in ("S", "E", "G") if s in sizes)


@pytest.mark.parametrize("tile", [WGMMA[64], ("mma.sync", 64, 64, 64, (2, 2))])
@pytest.mark.parametrize("wrong", [-1, 90])
def test_places_outside_are_refused(wrong, tile, monkeypatch):
    """The last row's index is checked as all others are."""
    text, sizes, *_ = FOUND["rows"]
    text = text.format(t="bf16", o="f32")
    specialised, result = lowered(text, sizes, "h200", tile, monkeypatch)
    x, p, w = arrays(specialised)
    p = indices(p, sizes)
    p[-1] = wrong
    assert len(result.emitted.kernels[0].sites) == 1
    with pytest.raises(CallError, match="reads outside"):
        interpret_stage(specialised, result.texts, "map", {"x": x, "p": p, "w": w})


def test_a_factor_with_a_check_is_not_stored_before():
    """The check belongs to the product's kernel."""
    text, sizes, *_ = FOUND["columns"]
    _, result = lower_text(Source("t.tile", text.format(t="bf16", o="f32")), None, sizes, rewritten(pack=True))
    assert not result.plan.steps("pack") and sum(len(k.sites) for k in result.emitted.kernels) == 1


@pytest.mark.parametrize("channels", [20, 21, 22])
def test_windows_of_few_channels(channels, monkeypatch):
    sizes = {"N": 2, "H": 5, "W": 7, "C": channels, "K": channels, "R": 3, "S": 3}
    text = CHANNELS.format(t="bf16", o="bf16")
    x, f = inputs = arrays_of(text, sizes)
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    exact = sum(padded[:, r : r + 5, s : s + 7] @ f[r, s].astype(np.float64) for r in range(3) for s in range(3))
    both(text, inputs, sizes, WGMMA[64], exact, monkeypatch)


@pytest.mark.parametrize(
    "text, channels, stored", [(CHANNELS, 21, 2), (CHANNELS.replace("[R, S, C, K]", "[K, R, S, C]"), 70, 2)]
)
def test_tensors_are_stored_in_aligned_rows(text, channels, stored, monkeypatch):
    """Windows of a tensor with longer rows are boxes: NaNs beyond a row's end are those of nobody."""
    text = text.format(t="bf16", o="bf16")
    text = text.replace("f[r, s, c, k]", "f[k, r, s, c]") if "[K, R, S, C]" in text else text
    sizes = {"N": 2, "H": 4, "W": 5, "C": channels, "K": channels, "R": 3, "S": 3}
    specialised, result = T.lowered(text, sizes, "h200", WGMMA[64], monkeypatch, texts=True, pack=True)
    assert [p.dims for p in result.plan.steps("pack")] == [()] * stored and result.plan.kernels[-1].options.copies == (
        "tma",
        "tma",
    )
    x, f = inputs = arrays(specialised)
    taps = f.astype(np.float64) if "[r, s, c, k]" in text else f.astype(np.float64).transpose(1, 2, 3, 0)
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    exact = sum(padded[:, r : r + 4, s : s + 5] @ taps[r, s] for r in range(3) for s in range(3))
    assert_within(text, inputs, emulated(specialised, result, inputs), kind="cuda", expected=exact)
    for stage in ("fuse", "map"):
        found = interpret_stage(specialised, result.texts, stage, dict(zip("xf", inputs)))
        assert_within(text, inputs, list(found.values()), kind="cuda", expected=exact)


@pytest.mark.parametrize(("inner", "group"), [(40, 3), (130, 4), (130, 16)])
def test_fused_rows_of_several_batches(inner, group, monkeypatch):
    """In bands of rows that begin and end within batches; the last band has fewer. Each tile is computed, and once."""
    sizes = {"S": 50, "B": 5, "I": inner, "E": 4, "K": 72, "N": 200}
    text = EXPERTS.format(t="bf16", o="f32")
    inputs = [a if a.dtype.kind != "i" else indices(a, sizes) for a in arrays_of(text, sizes)]
    specialised, result = T.by_warpgroups(text, sizes, (64, 64), monkeypatch, across_batches=True, group_rows=group)
    (kernel,) = result.plan.kernels
    assert kernel.options.across_batches and "remui" in result.texts["map"]
    x, p, e, w = (a.astype(np.float64) if a.dtype.kind != "i" else a for a in inputs)
    assert_within(text, inputs, emulated(specialised, result, inputs), kind="cuda", expected=x[p] @ w[e])
    names = [t.name for t in specialised.inputs]
    found = interpret_stage(specialised, result.texts, "map", dict(zip(names, inputs)))
    assert_within(text, inputs, list(found.values()), kind="cuda", expected=x[p] @ w[e])


def test_batches_that_may_read_one_large_factor_are_fused():
    """Experts of a mixture: their matrices are larger than L2, and a batch has the rows of one tile. Those of few columns stay."""
    for columns, across in ((28672, True), (2048, False)):
        sizes = {"S": 4096, "B": 71, "I": 128, "E": 8, "K": 4096, "N": columns}
        (kernel,) = lower_text(
            Source("t.tile", EXPERTS.format(t="bf16", o="bf16")), None, sizes, end="plan", emit=False
        )[1].plan.kernels
        assert kernel.options.across_batches == across, columns
    for text, sizes in (
        (T.BATCHED, {"B": 64, "M": 128, "N": 28672, "K": 4096}),
        (T.NT, {"M": 4096, "N": 28672, "K": 4096}),
    ):
        (kernel,) = lower_text(Source("t.tile", text.format(t="bf16", o="bf16")), None, sizes, end="plan", emit=False)[
            1
        ].plan.kernels
        assert not kernel.options.across_batches
