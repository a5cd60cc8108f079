"""Contractions whose factors lie in memory in another order than C does, or have several reduced dimensions."""


import numpy as np
import pytest
from conftest import assert_within
from tools import contractions as T
from tools.contractions import PROJECTION, TO_HEADS, check, fma, mma, projected
from tools.lowering import planned

WGMMA = ("wgmma", 64, 128, 64, (4, 1))


@pytest.mark.parametrize("tile", [mma(), WGMMA])
def test_two_reduced_dimensions(tile, monkeypatch):
    sizes = {"B": 2, "H": 2, "S": 40, "D": 64, "E": 72}
    result = check(PROJECTION, ("bf16", "bf16"), sizes, tile, projected, monkeypatch)
    assert ("tma_load" if tile is WGMMA else "cp_async_16") in result.emitted.module


def test_two_reduced_dimensions_that_pieces_cross(monkeypatch):
    """With D = 12, a piece of 16 bytes would hold elements of two heads: threads load that factor."""
    sizes = {"B": 2, "H": 3, "S": 20, "D": 12, "E": 40}
    check(PROJECTION, ("bf16", "bf16"), sizes, mma(), projected, monkeypatch)
    check(PROJECTION, ("f32", "f32"), sizes, fma(), projected, monkeypatch)


COMPUTED = {
    "left": (
        "op f(a: f32[M, H, D], w: bf16[N, H * D]) -> (y: f32[M, N])"
        " {{ y[i, n] = sum[h, d](a[i, h, d] * w[n, h * 32 + d]) using bf16 }}",
        lambda a, w: np.einsum("mhd,nhd->mn", a, w.reshape(len(w), *a.shape[1:])),
    ),
    "right": (
        "op f(a: bf16[M, H * D], w: f32[N, H, D]) -> (y: f32[M, N])"
        " {{ y[i, n] = sum[h, d](a[i, h * 32 + d] * w[n, h, d]) using bf16 }}",
        lambda a, w: np.einsum("mhd,nhd->mn", a.reshape(len(a), *w.shape[1:]), w),
    ),
    "of two tensors": (
        "op f(a: f32[M, H, D], g: bf16[M, H, D], w: bf16[N, H * D]) -> (y: f32[M, N])"
        " {{ y[i, n] = sum[h, d](relu(a[i, h, d] + g[i, h, d]) * w[n, h * 32 + d]) using bf16 }}",
        lambda a, g, w: np.einsum("mhd,nhd->mn", np.maximum(a + g, 0), w.reshape(len(w), *a.shape[1:])),
    ),
}  # fmt: skip


@pytest.mark.crossed
@pytest.mark.parametrize("tile", [("mma.sync", 16, 16, 64, (1, 1)), mma(), WGMMA])
@pytest.mark.parametrize("name", COMPUTED)
def test_two_reduced_dimensions_of_a_computed_factor(name, tile, monkeypatch):
    """Threads load vectors of the f32 factor, which lies flat, along both of them."""
    text, expected = COMPUTED[name]
    check(text, ("", ""), {"M": 20, "N": 48, "H": 3, "D": 32}, tile, expected, monkeypatch)


@pytest.mark.parametrize("tile", [mma(32, 64, 32, (1, 2)), WGMMA])
def test_two_dimensions_of_columns(tile, monkeypatch):
    sizes = {"B": 2, "S": 24, "E": 72, "H": 3, "D": 64}
    result = check(TO_HEADS, ("bf16", "bf16"), sizes, tile, lambda n, w: np.einsum("bse,ehd->bhsd", n, w), monkeypatch)
    assert ("tma_load" if tile is WGMMA else "cp_async_16") in result.emitted.module


TRANSPOSED = {  # dimensions of the left factor, of the right one, and of the result
    "contiguous along the batch": ("mkb", "knb", "bmn", {"B": 8, "M": 20, "N": 24, "K": 40}),
    "contiguous along an outer dimension of rows": ("kqp", "kn", "pqn", {"P": 8, "Q": 5, "N": 24, "K": 40}),
    "pieces lie inside a row of the box": ("kpq", "kn", "pqn", {"P": 5, "Q": 24, "N": 24, "K": 40}),
}


@pytest.mark.parametrize("kind, tile", [("bf16", mma()), ("f32", fma())])
@pytest.mark.parametrize("name", TRANSPOSED)
def test_other_orders(name, kind, tile, monkeypatch):
    left, right, result, sizes = TRANSPOSED[name]
    text = f"""op mm(a: {{t}}[{", ".join(left.upper())}], w: {{t}}[{", ".join(right.upper())}]) -> (
    c: {{o}}[{", ".join(result.upper())}]
) {{{{ c[{", ".join(result)}] = sum[k](a[{", ".join(left)}] * w[{", ".join(right)}]) }}}}"""
    expected = lambda a, w: np.einsum(f"{left},{right}->{result}", a, w)  # noqa: E731
    check(text, (kind, kind), sizes, tile, expected, monkeypatch)


def test_the_last_step_is_stored_by_the_contraction(monkeypatch):
    """Rounding and a residual belong to the contraction that they finish, not to each of their readers."""
    text = """op two(x: bf16[M, K], w: {t}[K, N], v: {t}[N, P]) -> (y: {o}[M, P]) {{
     h[m, n]: bf16 = sum[k](x[m, k] * w[k, n])
     y[m, p] = sum[n](h[m, n] * v[n, p])
    }}
    """
    sizes = {"M": 40, "K": 24, "N": 32, "P": 264}  # too many columns for one chain
    result = check(text, ("bf16", "bf16"), sizes, mma(), lambda x, w, v: x @ w @ v, monkeypatch)
    first, second = result.plan.kernels
    assert first.outputs == ("h",) and second.options.left_copy == "async"


PACKED = {  # text, types, what is stored before
    "tf32": (T.USING, ("tf32", "f32"), ("c.right",)),  # the left one is cut as it is
    "bf16": (T.USING, ("bf16", "f32"), ("c.left", "c.right")),
    "prologue": (T.PROLOGUE, ("bf16", "bf16"), ("c.sum.left",)),
}


@pytest.mark.parametrize("name", PACKED)
def test_factors_are_stored_before(name, monkeypatch):
    """Even though it does not pay at this size."""
    text, kinds, stored = PACKED[name]
    expected = {"prologue": lambda a, s, b: (a * s[:, None]) @ b}.get(name, lambda a, b: a @ b)
    sizes = {"M": 72, "N": 136, "K": 72}
    tile = ("wgmma", 64, 64, 128 // (4 if name == "tf32" else 2), (4, 1))
    result = check(text, kinds, sizes, tile, expected, monkeypatch, pack=True)
    assert tuple(p.stored for p in result.plan.steps("pack")) == stored
    assert result.emitted.module.count("= wgmma(") == 1


UNALIGNED = {  # text, sizes, what is stored: its extents
    "lines of k and of columns": (T.MATMUL, {}, ((35, 128), (128, 64))),
    "lines of k": (T.NT, {}, ((35, 128), (37, 128))),
    "lines of rows and columns": (T.TN, {}, ((69, 64), (69, 64))),
    "a factor that is aligned": (T.MATMUL, {"N": 40}, ((35, 128), (128, 40))),
    "one factor": (T.MATMUL, {"K": 72}, ((72, 64),)),
    "an expression": (T.PROLOGUE, {}, ((35, 128), (128, 64))),
    "batches": (T.BATCHED, {"B": 2}, ((2, 35, 128), (2, 37, 128))),
}


@pytest.mark.parametrize("name", UNALIGNED)
def test_factors_in_lines_that_tma_cannot_copy_are_stored_in_longer_ones(name, monkeypatch):
    """With zeros at the end of lines; what is no number elsewhere stays there."""
    text, sizes, extents = UNALIGNED[name]
    text = text.format(t="bf16", o="bf16")
    specialised, result = T.lowered(text, {"M": 35, "N": 37, "K": 69} | sizes, "h200", WGMMA, monkeypatch, pack=True)
    assert tuple(p.extents for p in result.plan.steps("pack")) == extents
    assert result.emitted.module.count("= wgmma(") == 1
    inputs = T.arrays(specialised)
    inputs[0].reshape(-1)[-1] = np.inf
    assert_within(text, inputs, T.emulated(specialised, result, inputs), kind="cuda")


HANGING = {  # the order of the computed factor, sizes, what is stored of bf16, and of f32 in parts: the extents
    "lines of rows": ("[b, t, m]", {}, ((),), ((), ())),
    "lines of rows that end within pieces": ("[b, t, m]", {"M": 35}, ((63, 64),), ((63, 40), ())),
    "lines of k": ("[m, b, t]", {}, ((40, 64), (64, 48)), ((40, 64), ())),
    "longer lines of k": ("[m, b, t]", {"T": 72}, ((),), ((), ())),
}


@pytest.mark.parametrize("kind", ["bf16", "f32"])
@pytest.mark.parametrize("name", HANGING)
def test_factors_are_stored_where_boxes_hang_over_lines_of_k(name, kind, monkeypatch):
    """The weights' gradient of a layer whose results are scaled, over images and their tokens; of f32 numbers, both factors are
    stored in parts."""
    order, own, narrow, parts = HANGING[name]
    text = f"""op f(g: {kind}{order.upper()}, s: {kind}[M], x: {kind}[B, T, N]) -> (w: f32[M, N]) {{
     h{order}: {kind} = g{order} * s[m]
     w[m, n] = sum[b, t](h{order} * x[b, t, n])
    }}"""
    tile = WGMMA if kind == "bf16" else ("wgmma", 64, 64, 64, (4, 1))
    specialised, result = T.lowered(text, {"B": 3, "T": 21, "M": 40, "N": 48} | own, "h200", tile, monkeypatch, pack=True)
    assert tuple(p.extents for p in result.plan.steps("pack")) == (narrow if kind == "bf16" else parts)
    assert result.emitted.module.count("= wgmma(") == 1
    inputs = T.arrays(specialised)
    inputs[0].reshape(-1)[-1] = np.inf
    assert_within(text, inputs, T.emulated(specialised, result, inputs), kind="cuda")


@pytest.mark.parametrize("rows, packed", [(21, True), (23, False), (24, False)])
def test_rows_that_go_on_behind_k_are_not_aligned(rows, packed, monkeypatch):
    """A box would bring what follows in them: there are zeros only where rows end with k."""
    text = f"""op f(g: bf16[M, 3, {rows}], x: bf16[N, 3, {rows}]) -> (w: f32[M, N]) {{
     w[m, n] = sum[b in 0:3, t in 0:21](g[m, b, t] * x[n, b, t])
    }}"""
    specialised, result = T.lowered(text, {"M": 40, "N": 48}, "h200", ("wgmma", 64, 64, 64, (4, 1)), monkeypatch, pack=True)
    assert any(not p.order for p in result.plan.steps("pack")) == packed  # else t comes before b
    inputs = T.arrays(specialised)
    assert_within(text, inputs, T.emulated(specialised, result, inputs), kind="cuda")


def test_factors_of_k_in_two_dimensions_are_stored_at_large_sizes():
    """Steps of 64 tokens hang over images of 257; the factor that is computed has no rows that begin anywhere."""
    text = """op f(g: bf16[B, T, M], s: bf16[M], x: bf16[B, T, N]) -> (w: bf16[M, N]) {
     h[b, t, m]: bf16 = g[b, t, m] * s[m]
     w[m, n] = sum[b, t](h[b, t, m] * x[b, t, n])
    }"""
    plan = planned(text, None, {"B": 64, "T": 257, "M": 768, "N": 3072})
    assert [getattr(k.options, "instruction", None) for k in plan.kernels] == [None, "wgmma"]
    plan = planned(text, None, {"B": 4, "T": 17, "M": 768, "N": 128})
    assert not plan.steps("pack")


def test_lines_that_tma_cannot_copy_are_stored_at_large_sizes():
    plan = planned(T.MATMUL.format(t="bf16", o="bf16"), None, {"M": 2047, "N": 1999, "K": 2001})
    assert [getattr(k.options, "instruction", None) for k in plan.kernels] == [None, None, "wgmma"]


@pytest.mark.parametrize("kind, stored", [("tf32", 1), ("bf16", 2)])
def test_storing_pays_at_large_sizes(kind, stored):
    plan = planned(T.USING.format(t=kind, o="f32"), None, T.LARGE)
    assert [getattr(k.options, "instruction", None) for k in plan.kernels] == [None] * stored + ["wgmma"]
    plan = planned(T.USING.format(t=kind, o="f32"), None, {"M": 128, "N": 128, "K": 128})
    assert [k.options.instruction for k in plan.kernels] == ["mma.sync"]
