"""What an epilogue reads along columns alone, such as a batch norm's weights: a thread whose elements are of the same columns
loads it once for all of its rows. Results that go on along rows where columns end: a thread's lanes lie along rows."""

import re

import numpy as np
import pytest
from tools.contractions import check, mma

NORM = """op f(x: {t}[M, K], w: {t}[N, K], b: {t}[N], v: {t}[N], r: {o}[M, N]) -> (y: {o}[M, N]) {{
    c[m, n]: f32 = sum[k](x[m, k] * w[n, k])
    y[m, n]: {o} = relu((c[m, n] - b[n]) * rsqrt(v[n] * v[n] + 1e-3)) + r[m, n]
}}"""


def expected(x, w, b, v, r):
    return np.maximum((x @ w.T - b) / np.sqrt(v * v + 1e-3), 0) + r


@pytest.mark.crossed
@pytest.mark.parametrize("tile", [mma(), mma(64, 64, 32, (2, 1)), mma(32, 64, 32, (1, 2))])
@pytest.mark.parametrize("columns", [64, 72, 60])
@pytest.mark.parametrize("rows", [64, 70])
def test_columns_are_loaded_once_for_all_rows(tile, columns, rows, monkeypatch):
    """Of 72 columns the last block has 8, of 60 some threads have none; 70 rows leave a part of the last block's beside them."""
    result = check(NORM, ("bf16", "f32"), {"M": rows, "N": columns, "K": 32}, tile, expected, monkeypatch)
    printed = result.emitted.module
    loads = re.findall(r"^( *)load_bf16x\d_nc\w*\([bv]_1", printed, re.MULTILINE)
    inside = re.findall(r"^( *)for piece in range\(\d+\):\n(?:\1 .*\n)*?\1 .*load_f32x\d_nc\w*\(r_1", printed, re.MULTILINE)
    assert len(loads) == 2 and inside and all(len(line) <= len(inside[-1]) for line in loads)


PAIRS = """op f(x: f32[B, H, K], w: f32[N, K, 2], b: f32[N]) -> (y: f32[B, N, H, 2]) {{
    y[b, n, h, p] = (sum[k](x[b, h, k] * w[n, k, p]) using {t}) + b[n]
}}"""


@pytest.mark.parametrize("tile", [mma(), mma(64, 64, 32, (2, 1))])
@pytest.mark.parametrize("rows", [9, 16, 33])
def test_lanes_lie_along_rows_where_a_result_goes_on_along_them(tile, rows, monkeypatch):
    """The two elements of a thread are the last dimension, and those of the next lanes lie behind them."""

    def pairs(x, w, b):
        return np.einsum("bhk,nkp->bnhp", x, w) + b[:, None, None]

    sizes = {"B": 5, "H": rows, "K": 32, "N": 24}
    result = check(PAIRS, ("bf16", "f32"), sizes, tile, pairs, monkeypatch)
    printed = result.emitted.module
    assert re.search(r"\brow_\d = .*\btmp_\d+\)? & 15\n *column_\d = .* >> 4\) \* 2\n", printed)
    assert re.search(r"store_f32x2\(y_1, 0, y \+", printed)


MISH = """op f(x: {t}[M, K], w: {t}[N, K], b: f32[M], r: {o}[M, N]) -> (y: {o}[M, N]) {{
    c[m, n]: f32 = sum[k](x[m, k] * w[n, k])
    t[m, n] = (c[m, n] + b[m]) * tanh(log1p(exp(c[m, n] + b[m])))
    y[m, n]: {o} = t[m, n] * tanh(log1p(exp(t[m, n]))) + r[m, n]
}}"""


@pytest.mark.parametrize("tile", [mma(), mma(64, 64, 32, (2, 1))])
@pytest.mark.parametrize("columns", [72, 60])
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_long_operations_of_several_pieces_are_computed_side_by_side(tile, columns, kind, monkeypatch):
    """Pieces beyond the edge are computed, and not stored."""

    def mish(x, w, b, r):
        t = x @ w.T + b[:, None]
        for _ in range(2):
            t = t * np.tanh(np.log1p(np.exp(t)))
        return t + r

    result = check(MISH, ("bf16", kind), {"M": 70, "N": columns, "K": 16}, tile, mish, monkeypatch)
    stores = re.findall(rf"store_{kind}x\d\(y_\d", result.emitted.module)
    assert len(stores) == (1 if kind == "bf16" and columns == 72 else 2)  # 8 elements at once
