"""Chains whose softmax has more entries than scores: sinks, null keys, an implicit 0, a part of another attention.

Each runs thread by thread in the interpreter, where races are faults, and is held to the program's error bounds."""

from functools import partial

import numpy as np
import pytest
from conftest import assert_within
from tools import chains
from tools.chains import lowered, warps, without_wgmma
from tools.contractions import arrays
from tools.lowering import specialised
from tools.plans import operations
from tools.sinks import FORMS, SIZES

from tilec.core.diagnostics import Source
from tilec.kernels import ContractionChain
from tilec.semantics.interpreter import interpret

check = partial(chains.check, concatenation=True)


def inputs_of(text, far=None, rows=SIZES["S"]):
    """Sinks of the size of the largest scores, or all `far`."""
    special = specialised(Source("t.tile", text), None, SIZES | {"S": rows})
    sinks = lambda z: (z * 4 if far is None else np.full_like(z, far)).astype(z.dtype)  # noqa: E731
    return [sinks(a) if t.name == "z" else a for t, a in zip(special.inputs, arrays(special))]


@pytest.mark.some(2)
@pytest.mark.parametrize("name", FORMS)
def test_forms(name, monkeypatch):
    check(FORMS[name], SIZES, (64, 32), monkeypatch, inputs_of(FORMS[name]))


@pytest.mark.crossed
@pytest.mark.parametrize("far", [-200.0, 200.0, -np.inf])
@pytest.mark.parametrize("name", [n for n in FORMS if n.startswith("rows without")])
def test_sinks_far_from_the_scores(name, far, monkeypatch):
    """A row without scores has weights 0, and NaN if its sink is -inf, too."""
    for tile in ((64, 32), warps(16, 32)):  # a block of few rows has no tile
        check(FORMS[name], SIZES, tile, monkeypatch, inputs_of(FORMS[name], far))


@pytest.mark.parametrize("name", ["causal", "taken from the maximum twice", "several columns with values", "a logarithm"])
def test_tiles(name, monkeypatch):
    for tile in ((128, 64), (192, 32)):
        check(FORMS[name], SIZES, tile, monkeypatch, inputs_of(FORMS[name]))
    check(FORMS[name], SIZES, warps(64, 32), monkeypatch, inputs_of(FORMS[name]), target=without_wgmma("h200"))


@pytest.mark.crossed
@pytest.mark.parametrize("far", [None, -200.0])
@pytest.mark.parametrize(
    "name, rows",
    [("causal", 1), ("rows without scores", 20), ("taken from the maximum twice", 1), ("a logarithm that is a result", 1)],
)
def test_blocks_that_share_rows(name, rows, far, monkeypatch):
    """Parts of the scores, some of which a mask leaves nothing of, and a column that no part has."""
    text = FORMS[name].replace("j <= i - 20", "j <= i + T - 80")
    check(text, SIZES | {"S": rows}, warps(16, 16, parts=3), monkeypatch, inputs_of(text, far, rows))


@pytest.mark.parametrize("name", ["causal", "taken from the maximum twice", "several columns with values"])
def test_printed_kernels(name, monkeypatch):
    check(FORMS[name], SIZES, (64, 32), monkeypatch, inputs_of(FORMS[name]), printed=True)


GRADIENTS = """op f(
    q: bf16[H, S, D], k: bf16[H, T, D], v: bf16[H, T, D], x: bf16[H, S, D], z: bf16[H], lse: f32[H, S], delta: f32[H, S]
) -> (dq: bf16[H, S, D], dk: bf16[H, T, D], dz: f32[H]) {
    s[h, i, j] = sum[d](q[h, i, d] * k[h, j, d]) / 8 if j <= i + T - S else -inf
    c[h, i, j] = s[h, i, j] if j < T else z[h] where j in 0:T + 1
    p[h, i, j] = exp(c[h, i, j] - lse[h, i])
    g[h, i, j] = sum[d](x[h, i, d] * v[h, j, d])
    a[h, i, j] = g[h, i, j] if j < T else 0 where j in 0:T + 1
    ds[h, i, j] = p[h, i, j] * (a[h, i, j] - delta[h, i])
    dq[h, i, d] = sum[j in 0:T](ds[h, i, j] * k[h, j, d]) using bf16
    dk[h, j, d] = sum[i](ds[h, i, j] * q[h, i, d]) using bf16 where j in 0:T
    dz[h] = sum[i](ds[h, i, T])
}"""


def test_gradients(monkeypatch):
    """Of rows, columns and the sink: the scores of each are computed anew from the factors, and none is in memory."""
    special, result = lowered(GRADIENTS, SIZES | {"D": 16}, None, monkeypatch, concatenation=["c"], copies=True)
    chains = [k for k in result.plan.kernels if isinstance(k.options, ContractionChain)]
    assert operations(result.plan, "concatenation") == ["c"] and len(chains) == 2
    assert result.emitted.workspace < 2 * SIZES["S"] * SIZES["T"]
    inputs = arrays(special)
    inputs[-2] = np.log(np.abs(inputs[-2]) + 60).astype(np.float32)
    assert_within(GRADIENTS, inputs, interpret(result.texts["map"], inputs), kind="cuda")
