"""Contraction chains whose factors are not of 16 bits, or are stored first. The interpreter runs them thread by thread,
where races are faults, and the emulator as they are printed; they are compiled. All within the program's error bounds, which
`using tf32` widens."""

import numpy as np
import pytest
from conftest import assert_within
from tools.attention_programs import PRODUCT, PROGRAMS, SCORES, SIZES
from tools.chains import WITHOUT_WGMMA, check, reasons, warps, without_wgmma
from tools.chains import lowered as chain
from tools.contractions import arrays, arrays_of, emulated
from tools.cuda_kernels import compiled
from tools.lowering import lowered, planned
from tools.reduced_contractions import KEPT, PING_PONG, STEPS, TALL_WARPS, WARPS
from tools.reduced_contractions import PROGRAMS as REDUCED
from tools.reduced_contractions import SCORES as OF_REDUCED
from tools.reduced_contractions import SIZES as REDUCED_SIZES

from tilec.core.diagnostics import Source
from tilec.cost.chain import ChainTile
from tilec.kernels import ContractionChain
from tilec.semantics.interpreter import interpret


def of_f32(text: str, using: str = " using tf32") -> str:
    """A program of bf16 factors with f32 ones, which `using` allows to be rounded in both products."""
    text = text.replace(SCORES, f"{SCORES.replace(' s[', ' z[')}{using}\n s[b, h, i, j] = z[b, h, i, j]")
    return text.replace(" using bf16", "").replace(PRODUCT, PRODUCT + using).replace("bf16", "f32")


def reduced_of_f32(text: str) -> str:
    return text.replace("bf16", "f32").replace("* y[j, d])", "* y[j, d]) using tf32")


TILES = {
    "a warp": warps(16, 32), "one stage": warps(64, 32, 1), "tall warps": warps(128, 32, 2, 32), "parts": warps(32, 32, parts=3)
}  # fmt: skip


@pytest.mark.crossed
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_attention_in_tf32(name, tile, monkeypatch):
    result = check(of_f32(PROGRAMS[name]), SIZES, TILES[tile], monkeypatch)
    assert result.plan.kernels[0].options.multiplicand == "tf32"


@pytest.mark.parametrize("d, e", [(64, 64), (72, 40), (33, 17)])
def test_printed_in_tf32(d, e, monkeypatch):
    """Widths that are multiples of 16, of 8, and of nothing."""
    check(of_f32(PROGRAMS["causal"]), SIZES | {"D": d, "E": e}, warps(32, 32), monkeypatch, printed=True)


LONGER = SIZES | {"S": 104, "T": 136, "D": 32}  # scores are more than their factors; columns of no whole step
GROUPS = {
    "two": (128, 64), "long steps": (64, 128), "three": (192, 64), "parts": ChainTile(64, 64, 2, 168, 0, ping_pong=False, parts=2),
    "persistent": ChainTile(128, 64, 2, 168, 0, persistent=True, row_stages=2),
}  # fmt: skip


def stored_along_k(text, sizes, tile, monkeypatch, printed=False):
    """A chain by `wgmma`, behind a kernel that stores its values."""
    specialised, result = chain(text, sizes, tile, monkeypatch, chain_factors=True)
    _, last = result.plan.kernels
    assert (last.options.unit, last.options.multiplicand) == ("wgmma", "tf32")
    inputs = arrays(specialised)
    found = emulated(specialised, result, inputs) if printed else interpret(result.texts["map"], inputs)
    assert_within(text, inputs, found, kind="cuda")


@pytest.mark.crossed
@pytest.mark.parametrize("tile", GROUPS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_stored_along_k(name, tile, monkeypatch):
    stored_along_k(of_f32(PROGRAMS[name]), LONGER, GROUPS[tile], monkeypatch)


@pytest.mark.parametrize("heads", ["h", "h // 2"])
def test_values_of_grouped_heads_stored_along_k(heads, monkeypatch):
    sizes = {"B": 2, "H": 2, "S": 136, "D": 32}
    stored_along_k(attention("f32", " using tf32", " using tf32", heads=heads), sizes, (64, 64), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("tile", ["two", "long steps"])
def test_values_stored_along_k_printed(tile, monkeypatch):
    sizes = LONGER | {"S": 72, "T": 72, "E": 24}
    stored_along_k(of_f32(PROGRAMS["causal"]), sizes, GROUPS[tile], monkeypatch, printed=True)


@pytest.mark.parametrize("kind", ["bf16", "f32"])
def test_values_of_16_bits_are_read_as_they_lie(kind):
    """The program's own text may have values with evens first: wgmma takes words so. Others are stored in order first."""
    text = of_f32(PROGRAMS["softmax"]) if kind == "f32" else PROGRAMS["softmax"]
    text = text.replace(f"v: {kind}[B, H, T, E]", f"v: {kind}[2, B, H, E, T // 2]")
    text = text.replace("v[b, h, j, e]", "v[j % 2, b, h, e, j // 2]")
    plan = planned(Source("t.tile", text), None, SIZES | {"S": 4096, "T": 4096})
    assert plan.kernels[-1].options.unit == "wgmma" and len(plan.kernels) == {"bf16": 2, "f32": 1}[kind]


@pytest.mark.crossed
@pytest.mark.parametrize("tile", [KEPT, STEPS, PING_PONG, WARPS, TALL_WARPS], ids=["kept", "steps", "ping-pong", "warps", "tall"])
@pytest.mark.parametrize("name", REDUCED)
def test_reduced_in_tf32(name, tile, monkeypatch):
    tile = tile if tile is not PING_PONG else PING_PONG
    check(reduced_of_f32(REDUCED[name]), REDUCED_SIZES | {"D": 72}, tile, monkeypatch)


@pytest.mark.parametrize("tile", [KEPT, TALL_WARPS], ids=["wgmma", "warps"])
def test_printed_reduced_in_tf32(tile, monkeypatch):
    check(reduced_of_f32(REDUCED["log of sums"]), REDUCED_SIZES | {"D": 72}, tile, monkeypatch, printed=True)


def test_every_product_allows_rounding():
    """Else a chain would lose digits in a product of full f32."""
    whole = of_f32(PROGRAMS["softmax"])
    first, last = whole.replace(" using tf32", "", 1), " using tf32".join(whole.split(" using tf32")[:2]) + "\n}"
    for text in (first, last, of_f32(PROGRAMS["softmax"], "")):
        assert "f32 that `using` allows to be rounded" in reasons(text, SIZES)


def test_planned_before_kernels_that_store_scores():
    """The plan's own choice: where `wgmma` can take the values, they are stored along k first."""
    sizes = {"B": 1, "H": 16, "S": 4096, "T": 4096, "D": 64, "E": 64}
    stored, last = planned(Source("t.tile", of_f32(PROGRAMS["causal"])), None, sizes).kernels
    assert isinstance(last.options, ContractionChain) and last.options.unit == "wgmma" and stored.options.name == "transpose"
    (kernel,) = planned(Source("t.tile", of_f32(PROGRAMS["causal"])), None, sizes, without_wgmma("h200")).kernels
    assert isinstance(kernel.options, ContractionChain) and kernel.options.unit == "mma.sync"
    assert kernel.options.group_batch == 16  # half of L2 holds the factors of 12: turns of 12 would leave 4 that begin late


@pytest.mark.slow
@pytest.mark.parametrize("target, chip", WITHOUT_WGMMA)
@pytest.mark.parametrize("depth", [64, 128])
def test_compiled_in_tf32(depth, target, chip):
    """No spills, no stack."""
    sizes = {"B": 4, "H": 16, "S": 4096, "T": 4096, "D": depth, "E": depth}
    _, result = lowered(Source("t.tile", of_f32(PROGRAMS["causal"])), None, sizes, target=target)
    *_, (_, cubin) = compiled(result.emitted, chip)
    assert "f32.tf32.tf32" in cubin.ptx


# ---- scores of integers ----------------------------------------------------------------------------------------------

INTEGERS = """op f(q: {kind}[B, H, S, D], k: {kind}[B, {of_heads}, S, D], v: {v}[B, {of_heads}, S, E]) -> (o: f32[B, H, S, E]) {{
    z[b, h, i, j] = sum[d](i32(q[b, h, i, d]) * i32(k[b, {heads}, j, d]))
    s[b, h, i, j] = {scores}
    p[b, h, i, j] = softmax[j](s[b, h, i, j])
    o[b, h, i, e] = sum[j](p[b, h, i, j] * v[b, {heads}, j, e]){last}
}}"""
SCALED, CAUSAL = "f32(z[b, h, i, j]) * 0.001", " if j <= i else -inf"


def integers(kind="i8", v="bf16", last=" using bf16", scores=SCALED + CAUSAL, heads="h") -> str:
    """Attention whose scores are sums of products of integers."""
    return INTEGERS.format(kind=kind, v=v, last=last, scores=scores, heads=heads, of_heads=heads.replace("h", "H"))


OF_I8 = {"B": 1, "H": 2, "S": 72, "D": 64, "E": 64}
VALUES = {
    "rounded weights": ("bf16", " using bf16"), "exact weights": ("bf16", ""), "f16": ("f16", " using bf16"),
    "tf32": ("f32", " using tf32"),
}  # fmt: skip
BY_UNITS = TILES | {"two": (128, 64), "three": (192, 64), "shared": GROUPS["parts"], "persistent": GROUPS["persistent"]}


@pytest.mark.crossed
@pytest.mark.parametrize("tile", BY_UNITS)
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("kind", ["i8", "u8"])
def test_scores_of_integers(kind, values, tile, monkeypatch):
    warped = tile in TILES
    if (kind == "u8" and warped) or (values == "tf32" and not warped):
        pytest.skip("warps multiply i8 alone; wgmma takes words of 32 bits in another order")
    (kernel,) = check(integers(kind, *VALUES[values]), OF_I8, BY_UNITS[tile], monkeypatch).plan.kernels
    assert kernel.options.multiplicand == kind and kernel.options.of_values == (VALUES[values][0] if values != "tf32" else "tf32")


@pytest.mark.parametrize("tile", ["a warp", "two"])
@pytest.mark.parametrize("name, text, sizes", [
    ("full", integers(scores=SCALED), {"S": 65}), ("in groups", integers(heads="h // 2"), {"H": 4}),
    ("narrow", integers(), {"D": 48, "E": 24}),
    ("scaled by row and column", integers(scores="f32(z[b, h, i, j]) * (0.0001 * f32(i)) + f32(j) * 0.01"), {}),
    ("scaled by 1", integers(scores="f32(z[b, h, i, j])"), {"D": 16}),
])  # fmt: skip
def test_printed_scores_of_integers(name, text, sizes, tile, monkeypatch):
    """By the emulator, with the ends of i8 among the factors."""
    sizes, tile = OF_I8 | {"S": 41, "D": 32, "E": 16} | sizes, BY_UNITS[tile]
    inputs = arrays_of(text, sizes)
    inputs[0][..., :3, :], inputs[0][..., 3, :], inputs[1][..., :2, :], inputs[1][..., 7, :] = -128, 127, -128, 127
    check(text, sizes, tile, monkeypatch, inputs, printed=True)


@pytest.mark.parametrize("last, terms", [(" using bf16", 1), ("", 3)])
def test_values_stored_for_scores_of_integers(last, terms, monkeypatch):
    """Values of i8 as bf16, which holds them."""
    text = integers("i8", "i8", last).replace("* v[b, h, j, e]", "* f32(v[b, h, j, e])")
    specialised, result = chain(text, OF_I8 | {"S": 136}, (64, 64), monkeypatch, chain_factors=True)
    _, last = result.plan.kernels
    assert last.options.of_values == "bf16" and last.options.weight_terms == terms
    inputs = arrays(specialised)
    assert_within(text, inputs, interpret(result.texts["map"], inputs), kind="cuda")


def test_odd_rows_of_integers(monkeypatch):
    """33 bytes: no lines for TMA, and zeros after them."""
    check(integers(), OF_I8 | {"S": 41, "D": 33, "E": 17}, TILES["a warp"], monkeypatch, printed=True)


@pytest.mark.parametrize("tile", [KEPT, STEPS, PING_PONG, WARPS, TALL_WARPS], ids=["kept", "steps", "ping-pong", "warps", "tall"])
@pytest.mark.parametrize("name", REDUCED)
def test_reduced_integers(name, tile, monkeypatch):
    text = REDUCED[name].replace("bf16[", "i8[")
    integer = " n[i, j] = sum[d](i32(x[i, d]) * i32(y[j, d]))\n s[i, j] = f32(n[i, j]) * 0.001\n"
    check(text.replace(OF_REDUCED, integer), REDUCED_SIZES | {"D": 160}, tile, monkeypatch)


def test_integers_that_are_no_scores():
    for text in (integers("i16"), integers().replace("k: i8", "k: u8")):
        assert "neither i8 by i8 nor u8 by u8" in reasons(text, OF_I8)
    assert "are read in several ways" in reasons(integers(scores=f"{SCALED} + f32(z[b, h, i, j] % 7)"), OF_I8)


def test_weights_that_read_integers(monkeypatch):
    """Their one conversion is the score."""
    text = integers("i8", "bf16", "", SCALED).replace("sum[j](p[", "sum[j](f32(z[b, h, i, j]) * p[")
    check(text, OF_I8, TILES["a warp"], monkeypatch)


@pytest.mark.parametrize("depth, mask", [(64, ""), (64, CAUSAL), (128, ""), (128, CAUSAL)])
def test_planned_as_chains_of_integers(depth, mask):
    sizes = {"B": 1, "H": 16, "S": 4096, "D": depth, "E": depth}
    for target, unit in (("h200", "wgmma"), ("a100", "mma.sync")):
        (kernel,) = planned(Source("t.tile", integers(scores=SCALED + mask)), None, sizes, target).kernels
        assert isinstance(kernel.options, ContractionChain) and kernel.options.unit == unit


@pytest.mark.slow
@pytest.mark.parametrize("target, chip", [*WITHOUT_WGMMA, ("h200", "sm_90a")])
@pytest.mark.parametrize("depth", [64, 128])
def test_compiled_integers(depth, target, chip):
    """No spills, no stack."""
    sizes = {"B": 4, "H": 16, "S": 4096, "D": depth, "E": depth}
    _, result = lowered(Source("t.tile", integers()), None, sizes, target=target)
    *_, (_, cubin) = compiled(result.emitted, chip)
    assert "s32.s8.s8" in cubin.ptx


# ---- f32 in bf16 parts -----------------------------------------------------------------------------------------------

OF_PARTS = {
    "two": (128, 64), "three": (192, 32), "shared": ChainTile(64, 64, 2, 168, 0, ping_pong=False, parts=2),
    "persistent": ChainTile(128, 64, 2, 168, 0, persistent=True, row_stages=2),
}  # fmt: skip


def in_parts(text, sizes, tile, monkeypatch, spoil=lambda inputs: None, printed=False):
    """A chain of f32 factors that may not be rounded, behind kernels that store their parts."""
    specialised, result = chain(text, sizes, tile, monkeypatch, chain_factors=True)
    *_, last = result.plan.kernels
    assert (last.options.unit, last.options.multiplicand, last.options.weight_terms) == ("wgmma", "bf16x3", 3)
    spoil(inputs := arrays(specialised))
    found = emulated(specialised, result, inputs) if printed else interpret(result.texts["map"], inputs)
    assert_within(text, inputs, found, kind="cuda")


@pytest.mark.crossed
@pytest.mark.parametrize("tile", OF_PARTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_attention_in_parts(name, tile, monkeypatch):
    in_parts(of_f32(PROGRAMS[name], ""), LONGER, OF_PARTS[tile], monkeypatch)


def tiny(inputs):
    """Numbers whose last parts are no bf16, in products that are none so small."""
    inputs[0][:] *= np.float32(1e-34)
    inputs[1][:] *= np.float32(1e34)
    inputs[2][:] *= np.float32(1e-36)


def infinite(inputs):
    inputs[0][0, 1, 70, 3], inputs[1][0, 0, 40, 7], inputs[2][0, 0, 3, 5], inputs[2][0, 0, 5, 7] = np.inf, np.inf, -np.inf, np.nan


@pytest.mark.parametrize("tile", ["two", "shared"])
@pytest.mark.parametrize("heads", ["h", "h // 2"])
@pytest.mark.parametrize("spoil", [tiny, infinite])
def test_numbers_without_parts(spoil, heads, tile, monkeypatch):
    """Rows with such numbers are computed of the numbers themselves."""
    text, sizes = attention("f32", last="", heads=heads), LONG | {"S": 101}
    in_parts(text, sizes, OF_PARTS[tile], monkeypatch, spoil)


@pytest.mark.slow
@pytest.mark.parametrize("heads", ["h", "h // 2"])
def test_parts_printed(heads, monkeypatch):
    in_parts(attention("f32", last="", heads=heads), LONG | {"S": 75}, (64, 32), monkeypatch, tiny, printed=True)


def test_noticed_numbers_without_parts(monkeypatch):
    """A weight that a NaN does not reach would hide them."""
    text = of_f32(PROGRAMS["no reduction"], "").replace("max(s[b, h, i, j], 0)", "s[b, h, i, j] if s[b, h, i, j] > 1 else 0")
    plan = chain(text, LONGER, None, monkeypatch, chain_factors=True, pack=[])[1].plan
    assert not any(isinstance(k.options, ContractionChain) for k in plan.kernels)
    assert "by which numbers without parts are noticed" in "\n".join(map(str, plan.remarks))


def test_planned_in_parts():
    for depth in (64, 128):
        sizes = {"B": 1, "H": 16, "S": 4096, "T": 4096, "D": depth, "E": depth}
        *stored, last = planned(Source("t.tile", of_f32(PROGRAMS["causal"], "")), None, sizes).kernels
        assert len(stored) == 3 and last.options.multiplicand == "bf16x3"


@pytest.mark.slow
@pytest.mark.parametrize("depth", [64, 128])
@pytest.mark.parametrize("name", ["softmax", "causal"])
def test_compiled_in_parts(name, depth):
    """No spills, no stack."""
    sizes = {"B": 1, "H": 16, "S": 4096, "T": 4096, "D": depth, "E": depth}
    _, result = lowered(Source("t.tile", of_f32(PROGRAMS[name], "")), None, sizes)
    *_, (_, cubin) = compiled(result.emitted, "sm_90a")
    assert "f32.bf16.bf16" in cubin.ptx


# ---- stored in 16 bits first -----------------------------------------------------------------------------------------


ATTENTION = """op f({factors}) -> (o: f32[B, H, S, D]) {{
    z[b, h, i, j] = sum[d](q[b, h, i, d] * k[b, {h}, j, d]){first}
    p[b, h, i, j] = {p}(softmax[j](z[b, h, i, j] / 4 if j <= i else -inf))
    o[b, h, i, d] = sum[j](p[b, h, i, j] * v[b, {h}, j, d]){last}
}}"""
IN_ONE = """op f(x: f8e4m3[B, S, 3, H, D]) -> (o: f32[B, S, H, D]) {
    s[b, h, i, j] = sum[d](x[b, i, 0, h, d] * x[b, j, 1, h, d]) / 8
    p[b, h, i, j] = softmax[j](s[b, h, i, j])
    o[b, i, h, d] = sum[j](p[b, h, i, j] * x[b, j, 2, h, d]) using bf16
}"""


def attention(kinds: str = "f8e4m3", first: str = "", last: str = " using bf16", weights: str = "", heads: str = "h") -> str:
    """Attention of factors of one type, or of three."""
    of_heads = heads.replace("h", "H")
    q, k, v = kinds.split() if " " in kinds else (kinds,) * 3
    factors = f"q: {q}[B, H, S, D], k: {k}[B, {of_heads}, S, D], v: {v}[B, {of_heads}, S, D]"
    return ATTENTION.format(factors=factors, first=first, last=last, p=weights, h=heads)


STORED = {
    "f8e4m3": attention(),
    "f8e5m2, exact weights": attention("f8e5m2", last=""),
    "bf16 queries": attention("bf16 f8e4m3 f8e4m3"),
    "f16 values": attention("f8e4m3 f8e4m3 f16"),
    "two types of 8 bits": attention("f8e4m3 f8e5m2 f8e4m3", last=" using tf32"),
    "f32 that may be bf16": attention("f32", " using bf16"),
    "grouped heads": attention(heads="h // 2"),
    "all in one tensor": IN_ONE,
}
LONG = {"B": 1, "H": 2, "S": 104, "D": 32}


@pytest.mark.crossed
@pytest.mark.parametrize("printed", [False, True])
@pytest.mark.parametrize("name", STORED)
def test_stored_first(name, printed, monkeypatch):
    specialised, result = chain(STORED[name], LONG, None, monkeypatch, chain_factors=True)
    *storing, last = result.plan.kernels
    assert isinstance(last.options, ContractionChain)
    assert len(storing) == {"bf16 queries": 2, "f16 values": 2, "all in one tensor": 1}.get(name, 3)
    inputs = arrays(specialised)
    found = emulated(specialised, result, inputs) if printed else interpret(result.texts["map"], inputs)
    assert_within(STORED[name], inputs, found, kind="cuda")


@pytest.mark.parametrize("kinds", ["f8e4m3", "bf16"])
@pytest.mark.parametrize("weights", ["f8e4m3", "f8e5m2"])
def test_weights_of_8_bits_are_rounded_where_the_program_does(kinds, weights):
    """A row's factor after that rounding would leave other numbers: a weight of 1/1000 may be no f8."""
    assert f"is rounded to {'f8E4M3FN' if weights == 'f8e4m3' else 'f8E5M2'} before it is scaled" in reasons(
        attention(kinds, last="", weights=weights), LONG
    )


def test_nothing_is_stored_for_products_that_are_no_chain():
    """Factors that have 16 bits; f32 that may not be rounded; a result no larger than its factors."""
    sizes = {"B": 1, "H": 16, "S": 4096, "D": 64}
    for text, at in ((attention("bf16"), sizes), (attention("f32"), sizes), (attention(), sizes | {"S": 64})):
        assert not planned(Source("t.tile", text), None, at).steps("chain_factors")
    assert len(planned(Source("t.tile", attention()), None, sizes).steps("chain_factors")) == 3
