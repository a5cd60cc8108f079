"""Contraction chains whose weights are made of the results of several contractions, as in the gradients of attention.

Each runs thread by thread in the interpreter, where races are faults, and is held to the program's error bounds."""

import numpy as np
import pytest
from tools.chains import WITHOUT_WGMMA, check, warps, without_wgmma
from tools.contractions import arrays
from tools.cuda_kernels import compiled
from tools.lowering import lowered, planned, specialised
from tools.matrix_programs import GRADIENTS
from tools.plans import operations

from tilec.core.diagnostics import Source
from tilec.cost.chain import ChainTile
from tilec.kernels import ContractionChain, Points
from tilec.plan.schedule.read import read_schedule
from tilec.plan.schedule.write import write_schedule

SIZES = {"S": 72, "T": 80, "D": 64, "H": 1}


def program(score="s[h, i, j]", weight="p[h, i, j] * (g[h, i, j] - delta[h, i])", products="", last=None):
    """The gradients of the rows (`dq`), or with `last` of the columns (`dk`), of what weights other rows."""
    by_row = "dq[h, i, d] = sum[j](ds[h, i, j] * k[h, j, d]) using bf16"
    factors = "q: bf16[H, S, D], k: bf16[H, T, D], v: bf16[H, T, D], x: bf16[H, S, D], lse: f32[H, S], delta: f32[H, S]"
    result = last or by_row
    out = f"{result[:2]}: bf16[H, {'S' if result.startswith('dq') else 'T'}, D]"
    return f"""op f({factors}) -> ({out}) {{
    s[h, i, j] = sum[d](q[h, i, d] * k[h, j, d]) / 8
    p[h, i, j] = exp({score} - lse[h, i])
    g[h, i, j] = sum[d](x[h, i, d] * v[h, j, d])
    {products}
    ds[h, i, j] = {weight}
    {result}
}}"""


BY_COLUMN = "dk[h, j, d] = sum[i](ds[h, i, j] * q[h, i, d]) using bf16"
CAUSAL = "(s[h, i, j] if j <= i else -inf)"
TWICE = "p[h, i, j] * g[h, i, j] - p[h, i, j] * delta[h, i]"
DROPPED = "p[h, i, j] * (g[h, i, j] * f32(rand(7, (h * S + i) * T + j) >= 0.3) / 0.7 - delta[h, i])"
FORMS = {
    "rows": program(),
    "columns": program(last=BY_COLUMN),
    "rows, causal": program(CAUSAL),
    "columns, causal": program(CAUSAL, last=BY_COLUMN),
    "a window": program("(s[h, i, j] if j <= i and j > i - 40 else -inf)"),
    "as two products": program(CAUSAL, TWICE),
    "columns, as two products": program(CAUSAL, TWICE, last=BY_COLUMN),
    "rounded": program(CAUSAL, "bf16(p[h, i, j] * g[h, i, j])"),
    "no exponential": program(weight="s[h, i, j] * g[h, i, j]"),
    "a mask without a score that excludes": program(weight="s[h, i, j] + g[h, i, j] if j <= i else 0"),
    "dropped": program(CAUSAL, DROPPED),
    "columns, dropped": program(CAUSAL, DROPPED, last=BY_COLUMN),
    "a third": program(
        weight="p[h, i, j] * g[h, i, j] + c[h, i, j]", products="c[h, i, j] = sum[d](q[h, i, d] * v[h, j, d])"
    ),
}


def inputs_of(text, sizes):
    """Log-sum-exps as large as the scores, so that weights are at most 1 or so."""
    found = arrays(specialised(Source("t.tile", text), None, sizes))
    return [abs(x) + 4 if np.asarray(x).shape == (sizes["H"], sizes["S"]) else x for x in found]


@pytest.mark.parametrize("name", FORMS)
def test_forms(name, monkeypatch):
    result = check(FORMS[name], SIZES, (64, 32), monkeypatch, inputs=inputs_of(FORMS[name], SIZES))
    assert result.plan.kernels[0].options.unit == "wgmma"


@pytest.mark.parametrize("name", ["rows, causal", "columns, as two products", "a third"])
def test_by_warps(name, monkeypatch):
    check(FORMS[name], SIZES, warps(32, 32), monkeypatch, inputs=inputs_of(FORMS[name], SIZES), target="a100")


@pytest.mark.parametrize("tile", [(128, 32), warps(32, 32)])
def test_printed(tile, monkeypatch):
    """The emulator runs the Python text."""
    name, target = "columns, causal", "h200" if isinstance(tile, tuple) else "a100"
    check(FORMS[name], SIZES, tile, monkeypatch, inputs=inputs_of(FORMS[name], SIZES), printed=True, target=target)


@pytest.mark.parametrize("order", ["j, d", "d, j"])
def test_a_right_factor_along_the_columns(order, monkeypatch):
    """Tiles of it lie in lines of the index between the contractions."""
    shape = "H, D, T" if order == "d, j" else "H, T, D"
    text = FORMS["rows"].replace("v: bf16[H, T, D]", f"v: bf16[{shape}]").replace("v[h, j, d]", f"v[h, {order}]")
    check(text, SIZES, (64, 64), monkeypatch, inputs=inputs_of(text, SIZES))


def test_different_depths(monkeypatch):
    text = FORMS["rows"].replace("v: bf16[H, T, D], x: bf16[H, S, D]", "v: bf16[H, T, E], x: bf16[H, S, E]")
    text = text.replace("g[h, i, j] = sum[d](x[h, i, d] * v[h, j, d])", "g[h, i, j] = sum[e](x[h, i, e] * v[h, j, e])")
    sizes = SIZES | {"E": 24}
    check(text, sizes, (64, 32), monkeypatch, inputs=inputs_of(text, sizes))


def test_grouped_heads(monkeypatch):
    text = program(CAUSAL).replace("k: bf16[H, T, D], v: bf16[H, T, D]", "k: bf16[H // 4, T, D], v: bf16[H // 4, T, D]")
    text = text.replace("k[h,", "k[h // 4,").replace("v[h,", "v[h // 4,")
    sizes = {"S": 16, "T": 72, "D": 64, "H": 8}
    result = check(text, sizes, (64, 32), monkeypatch, inputs=inputs_of(text, sizes))
    assert result.plan.kernels[0].tile == (4, 16)


def test_keys_are_values(monkeypatch):
    """One tensor is summed over along a dimension that is the result's in the other contraction."""
    text = """op f(q: bf16[S, D], k: bf16[T, D]) -> (o: bf16[S, D]) {
    s[i, j] = sum[d](q[i, d] * k[j, d]) / 8
    p[i, j] = softmax[j](s[i, j])
    o[i, d] = sum[j](p[i, j] * k[j, d]) using bf16
}"""
    check(text, {"S": 72, "T": 80, "D": 64}, (64, 32), monkeypatch)


# ---- several results -------------------------------------------------------------------------------------------------


def columns(dk="ds[h, i, j] * q[h, i, d]", dv="p[h, i, j] * x[h, i, d]", score="(s[h, i, j] if j <= i else -inf)"):
    """Two gradients that sum over the same rows."""
    factors = "q: bf16[H, S, D], k: bf16[H, T, D], v: bf16[H, T, D], x: bf16[H, S, D], lse: f32[H, S], delta: f32[H, S]"
    return f"""op f({factors}) -> (dk: bf16[H, T, D], dv: bf16[H, T, D]) {{
    s[h, i, j] = sum[d](q[h, i, d] * k[h, j, d]) / 9
    p[h, i, j] = exp({score} - lse[h, i])
    g[h, i, j] = sum[d](x[h, i, d] * v[h, j, d])
    ds[h, i, j] = p[h, i, j] * (g[h, i, j] - delta[h, i]) / 9
    dk[h, j, d] = sum[i]({dk}) using bf16
    dv[h, j, d] = sum[i]({dv}) using bf16
}}"""


PACKED = """op f(y: bf16[H, S, 128], z: bf16[H, T, 128], lse: f32[H, S], delta: f32[H, S]) -> (
    dk: bf16[H, T, 64], dv: bf16[H, T, 64]
) {
    s[h, i, j] = sum[d in 0:64](y[h, i, d] * z[h, j, d]) / 9
    p[h, i, j] = exp((s[h, i, j] if j <= i else -inf) - lse[h, i])
    g[h, i, j] = sum[d in 0:64](y[h, i, d + 64] * z[h, j, d + 64])
    ds[h, i, j] = p[h, i, j] * (g[h, i, j] - delta[h, i]) / 9
    dk[h, j, d] = (sum[i](ds[h, i, j] * y[h, i, d]) using bf16) where d in 0:64
    dv[h, j, d] = (sum[i](p[h, i, j] * y[h, i, d + 64]) using bf16) where d in 0:64
}"""
"""Factors are parts of dimensions, so that no dimension of a tensor says which indices of two contractions are one."""


def attended(results, sums):
    """Attention with two tensors of values."""
    return f"""op f(q: bf16[H, S, D], k: bf16[H, T, D], v: bf16[H, T, D], u: bf16[H, T, E]) -> ({results}) {{
    s[h, i, j] = sum[d](q[h, i, d] * k[h, j, d]) / 8
    p[h, i, j] = softmax[j](s[h, i, j])
    {sums}
}}"""


DRAWN = "f32(rand(7, (h * S + i) * T + j) >= 0.3) / 0.7"
BOTH = "a[h, i, d] = sum[j](p[h, i, j] * v[h, j, d]) using bf16 b[h, i, e] = sum[j](p[h, i, j] * u[h, j, e]) using bf16"
PAIRS = {
    "gradients": columns(),
    "gradients, full": columns(score="s[h, i, j]"),
    "gradients, packed": PACKED,
    "values of the other factor": columns("ds[h, i, j] * x[h, i, d]", "p[h, i, j] * q[h, i, d]"),
    "values of their own": columns(dv="p[h, i, j] * y[h, i, d]").replace("x: ", "y: bf16[H, S, D], x: ", 1),
    "equal weights": attended("a: bf16[H, S, D], b: f32[H, S, E]", BOTH),
    "a result of both": attended("y: f32[H, S, D]", BOTH.replace("e]", "d]") + " y[h, i, d] = a[h, i, d] - b[h, i, d]").replace(
        "T, E", "T, D"
    ),
    "a weight that is a part of the other": attended(
        "a: bf16[H, S, D], b: f32[H, S, E]", BOTH.replace("(p[h, i, j] * u", "(2 * s[h, i, j] * p[h, i, j] * u")
    ),
}


def pair_of_results(name, tile, monkeypatch, **more):
    text = PAIRS[name]
    sizes = SIZES | ({"E": 24} if "[H, T, E]" in text else {})
    sizes = {n: size for n, size in sizes.items() if f"{n}]" in text or f"{n}," in text}
    inputs = inputs_of(text, sizes) if "lse" in text else None
    return check(text, sizes, tile, monkeypatch, inputs=inputs, **more)


AT_ONCE = ChainTile(128, 32, 2, 168, 0, at_once=True, persistent=True, row_stages=2)


@pytest.mark.parametrize("name", PAIRS)
def test_pairs(name, monkeypatch):
    pair_of_results(name, (64, 32), monkeypatch)


ONCE = ["gradients", "gradients, packed", "values of the other factor", "values of their own", "equal weights"]


@pytest.mark.parametrize("name", ONCE)
def test_at_once(name, monkeypatch):
    pair_of_results(name, AT_ONCE, monkeypatch)


@pytest.mark.parametrize("name", ["gradients, full", "equal weights"])
def test_pairs_by_warps(name, monkeypatch):
    pair_of_results(name, warps(32, 32), monkeypatch, target="a100")


@pytest.mark.parametrize("name", ["gradients", "equal weights"])
def test_pairs_in_parts(name, monkeypatch):
    """Products of different columns, each of whose sums of parts are added up."""
    pair_of_results(name, warps(32, 32, parts=2), monkeypatch, target="a100")


@pytest.mark.parametrize("tile", [(64, 32), AT_ONCE, warps(32, 32)])
def test_pairs_printed(tile, monkeypatch):
    target = "a100" if isinstance(tile, ChainTile) and tile.unit == "mma.sync" else "h200"
    pair_of_results("gradients", tile, monkeypatch, printed=True, target=target)


def test_random_numbers_leave_no_room_for_several_results():
    text = columns(dv=f"p[h, i, j] * {DRAWN} * x[h, i, d]", dk=f"ds[h, i, j] * {DRAWN} * q[h, i, d]")
    plan = planned(Source("t.tile", text), None, LARGE, "h200")
    assert len(plan.kernels) == 2 and "registers do not hold several results" in "\n".join(map(str, plan.remarks))


def test_values_that_are_factors_are_loaded_once(monkeypatch):
    once = pair_of_results("gradients", AT_ONCE, monkeypatch)
    each = pair_of_results("values of the other factor", AT_ONCE, monkeypatch)
    both = [r.texts["map"].count("nvgpu.tma.create.descriptor") for r in (once, each)]
    assert both == [4, 4]  # in each of them, `q` and `x` are factors and values
    later = pair_of_results("gradients", (128, 32), monkeypatch)
    assert later.texts["map"].count("nvgpu.tma.create.descriptor") == 6


def test_reasons():
    text = """op f(q: bf16[S, D], k: bf16[T, D], x: bf16[S, D], v: bf16[T, D]) -> (z: f32[S]) {
    s[i, j] = sum[d](q[i, d] * k[j, d])
    g[i, j] = sum[d](x[i, d] * v[j, d])
    z[i] = max[j](s[i, j] + g[i, j])
}"""
    sizes = {"S": 4096, "T": 4096, "D": 64}
    for kernel in planned(Source("t.tile", text), None, sizes, "h200").kernels:  # one result is in memory
        assert not isinstance(kernel.options, ContractionChain) or len(kernel.options.inner) == 1
    wide = FORMS["rows"].replace("v: bf16[H, T, D], x: bf16[H, S, D]", "v: bf16[H, T, 512], x: bf16[H, S, 512]")
    wide = wide.replace("g[h, i, j] = sum[d](x[h, i, d] * v[h, j, d])", "g[h, i, j] = sum[e](x[h, i, e] * v[h, j, e])")
    found = planned(Source("t.tile", wide), None, sizes | {"H": 1}, "h200").remarks
    assert "a block has room for 256 reduced elements of the first contraction, not 512" in "\n".join(map(str, found))


# ---- copies for readers ----------------------------------------------------------------------------------------------


LARGE = {"S": 4096, "T": 4096, "D": 64, "H": 16}


def gradients(sizes=LARGE, text=GRADIENTS, **more):
    return lowered(Source("t.tile", text), None, sizes, target="h200", **more)


def test_gradients_have_their_own_products():
    _, result = gradients()
    assert [k.name for k in result.plan.kernels] == ["f_dq", "f_dk_dv"]
    assert all(isinstance(k.options, ContractionChain) for k in result.plan.kernels)
    assert "dv.sum" in operations(result.plan, "copies") and "recomputed" in str(result.plan.remarks)
    wide = [t for t in result.texts["map"].splitlines() if "memref.alloc" in t and "4096x4096" in t]
    assert not wide


def test_a_product_behind_a_row_is_no_part():
    """The gradient of a single row's result comes from a product of its own, as it does behind a linear layer; so does `delta`.
    Fusion by pairs does not join products of a vector: the chain depends on what its first products are taken to be."""
    factors = "q: bf16[H, D], k: bf16[H, T, D], v: bf16[H, T, D], lse: f32[H], y: bf16[H, E], u: bf16[E, D]"
    text = f"""op f({factors}) -> (dq: bf16[H, D]) {{
    x[h, d]: bf16 = sum[e](y[h, e] * u[e, d])
    delta[h] = sum[d](abs(x[h, d]))
    s[h, j] = sum[d](q[h, d] * k[h, j, d]) / 8
    g[h, j] = sum[d](x[h, d] * v[h, j, d])
    ds[h, j] = exp(s[h, j] - lse[h]) * (g[h, j] - delta[h])
    dq[h, d] = sum[j](ds[h, j] * k[h, j, d]) using bf16
}}"""
    kernels = planned(Source("t.tile", text), None, {"H": 64, "T": 4096, "D": 64, "E": 1024}, "h200").kernels
    (chain,) = (k.nodes for k in kernels if isinstance(k.options, ContractionChain))
    assert {"s.sum", "g", "dq.sum"} <= {*chain} and {"x.sum", "delta"}.isdisjoint(chain)


def test_a_result_is_no_copy():
    """What the program returns is in memory all the same."""
    text = GRADIENTS.replace("-> (\n", "-> (ds: bf16[H, S, T],\n")
    _, result = gradients(text=text)
    assert not any(name.startswith("ds.") for k in result.plan.kernels for name in k.nodes)


def test_a_schedule_names_copies(tmp_path):
    """A schedule file holds the copies' names, and is obeyed."""
    made, result = gradients()
    first = result.plan
    (tmp_path / "s.toml").write_text(write_schedule(first, made))
    _, again = gradients(schedule=read_schedule(tmp_path / "s.toml"))
    assert [k.nodes for k in again.plan.kernels] == [k.nodes for k in first.kernels]


# ---- compiled --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("depth", [64, 128])
@pytest.mark.parametrize("name", ["rows, causal", "columns", "columns, as two products", "a third"])
def test_compiled(name, depth):
    """No spills, no stack, no products that the assembler serialises."""
    sizes = {"S": 4096, "T": 4096, "D": depth, "H": 32}
    _, result = lowered(Source("t.tile", FORMS[name]), None, sizes, target="h200")
    chain, *rest = result.plan.kernels
    assert chain.options.unit == "wgmma"
    assert all(isinstance(k.options, Points) for k in rest) and len(rest) <= 1  # what rounds the result, if as fast apart
    assert len(compiled(result.emitted, "sm_90a")) == 1 + len(rest)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [64, 128])
@pytest.mark.parametrize("name", ["gradients", "gradients, full"])
def test_compiled_pairs(name, depth):
    sizes = {"S": 4096, "T": 4096, "D": depth, "H": 32}
    _, result = lowered(Source("t.tile", PAIRS[name]), None, sizes, target="h200")
    assert any(len(k.nodes) > 7 for k in result.plan.kernels)
    compiled(result.emitted, "sm_90a")


@pytest.mark.slow
def test_compiled_by_warps():
    sizes = {"S": 4096, "T": 4096, "D": 64, "H": 32}
    name, chip = WITHOUT_WGMMA[0]
    _, result = lowered(Source("t.tile", FORMS["rows, causal"]), None, sizes, target=without_wgmma(name))
    assert len(compiled(result.emitted, chip)) == 1
