"""Contraction chains in every form that programs write attention in: layouts, grouped heads, scores, weights, further results.

Each runs thread by thread in the interpreter, where races are faults, and is held to the program's error bounds."""

import numpy as np
import pytest
from conftest import assert_within, from_torch, to_gpu
from tools.chains import check, lowered, reasons, warps
from tools.contractions import arrays
from tools.cuda_kernels import compiled
from tools.lowering import specialised

from tilec.core.diagnostics import Source
from tilec.kernels import ContractionChain
from tilec.plan import chain_fusion

SIZES = {"B": 2, "H": 1, "S": 72, "D": 64}
SCORES = "t[b, h, i, j] = sum[d](q[b, h, i, d] * k[b, h, j, d]) / sqrt(f32(D))"
PRODUCT = "o[b, h, i, d] = sum[j](p[b, h, i, j] * v[b, h, j, d]) using bf16"


def attention(
    score="t[b, h, i, j]", weight="softmax[j](s[b, h, i, j])", more="", out="", rest="", product=PRODUCT, kind="bf16", last=""
):
    """Attention with its own scores `s` of the products `t`, other weights, further inputs, results and statements."""
    factors = ", ".join(f"{x}: {kind}[B, H, S, D]" for x in "qkv")
    return f"""op f({factors}{more}) -> (o: {kind}[B, H, S, D]{out}) {{
    {SCORES}
    s[b, h, i, j] = {score}
    {rest}
    p[b, h, i, j] = {weight}
    {product}
    {last}
}}"""


PACKED = """op f(x: bf16[B, S, 3, H, D]) -> (o: bf16[B, S, H, D]) {
    s[b, h, i, j] = sum[d](x[b, i, 0, h, d] * x[b, j, 1, h, d]) / 8 if j <= i else -inf
    p[b, h, i, j] = softmax[j](s[b, h, i, j])
    o[b, i, h, d] = sum[j](p[b, h, i, j] * x[b, j, 2, h, d]) using bf16
}"""
FLAT = """op f(q: bf16[B, S, 3 * D], k: bf16[B, S, 3 * D], v: bf16[B, S, 3 * D]) -> (o: bf16[B, S, 3, D]) {
    s[b, h, i, j] = sum[d in 0:D](q[b, i, h * D + d] * k[b, j, h * D + d]) / 8 where h in 0:3
    p[b, h, i, j] = softmax[j](s[b, h, i, j])
    o[b, i, h, e] = sum[j](p[b, h, i, j] * v[b, j, h * D + e]) using bf16
}"""
GROUPED = """op f(q: bf16[B, H, S, D], k: bf16[B, H // 4, S, D], v: bf16[B, H // 4, S, D]) -> (o: bf16[B, H, S, D]) {
    s[b, h, i, j] = sum[d](q[b, h, i, d] * k[b, h // 4, j, d]) / 8
    p[b, h, i, j] = softmax[j](s[b, h, i, j])
    o[b, h, i, d] = sum[j](p[b, h, i, j] * v[b, h // 4, j, d]) using bf16
}"""
SPLIT_HEADS = """op f(q: bf16[G, R, S, D], k: bf16[G, T, D], v: bf16[G, T, D]) -> (o: bf16[G, R, S, D]) {
    s[g, r, i, j] = sum[d](q[g, r, i, d] * k[g, j, d]) / 8 if j <= i + 40 else -inf
    p[g, r, i, j] = softmax[j](s[g, r, i, j])
    o[g, r, i, d] = sum[j](p[g, r, i, j] * v[g, j, d]) using bf16
}"""
TRANSPOSED = """op f(q: bf16[H, S, D], k: bf16[H, {k}], v: bf16[H, {v}]) -> (o: bf16[H, S, D]) {{
    s[h, i, j] = sum[d](q[h, i, d] * k[h, {kj}]) / 8
    p[h, i, j] = softmax[j](s[h, i, j])
    o[h, i, d] = sum[j](p[h, i, j] * v[h, {vj}]) using bf16
}}"""
BY_PLACE, BY_COLUMN = ("S, D", "j, d"), ("D, S", "d, j")

LAYOUTS = {
    "packed": (PACKED, SIZES),
    "heads in one dimension with columns": (FLAT, {"B": 1, "S": 72, "D": 64}),
    "grouped heads": (GROUPED, {"B": 1, "H": 8, "S": 40, "D": 64}),
    "grouped heads, several in a block": (GROUPED, {"B": 1, "H": 8, "S": 16, "D": 64}),
    "heads of a group as a dimension": (SPLIT_HEADS, {"G": 2, "R": 3, "S": 20, "T": 72, "D": 64}),
    "one row of many heads": (SPLIT_HEADS, {"G": 2, "R": 8, "S": 1, "T": 72, "D": 64}),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name, monkeypatch):
    check(*LAYOUTS[name], (64, 32), monkeypatch)


@pytest.mark.crossed
@pytest.mark.parametrize("k", [BY_PLACE, BY_COLUMN])
@pytest.mark.parametrize("v", [BY_PLACE, BY_COLUMN])
@pytest.mark.parametrize("depth", [64, 80])
def test_transposed_keys_and_values(k, v, depth, monkeypatch):
    text = TRANSPOSED.format(k=k[0], kj=k[1], v=v[0], vj=v[1])
    check(text, {"H": 2, "S": 72, "D": depth}, (64, 64), monkeypatch)


def test_heads_that_share_keys_are_rows_of_a_block(monkeypatch):
    """As many as fit, where rows are few; and no more than divide their number."""
    sizes = {"B": 1, "H": 8, "S": 16, "D": 64}
    for text, tile in ((GROUPED, (1, 4, 16)), (GROUPED.replace("// 4", "// 2"), (1, 2, 16))):
        _, result = lowered(text, sizes, (64, 32), monkeypatch)
        assert result.plan.kernels[0].tile == tile


@pytest.mark.parametrize("shared", ["(h + 1) // 4", "(2 * h + 2) // 4", "(h + 1) // 4 * 2 // 2"])
def test_heads_share_keys_from_another_number_on(shared, monkeypatch):
    """A block had four heads that begin with the first, of which the last has other keys."""
    text = GROUPED.replace("h // 4", shared).replace("H // 4", "H")
    check(text, {"B": 1, "H": 8, "S": 16, "D": 64}, (64, 32), monkeypatch)


@pytest.mark.crossed
@pytest.mark.parametrize("factor", ["k[b, h, j, d]", "v[b, h, j, e]"])
@pytest.mark.parametrize("first, unit", [(3, "mma.sync"), (8, "wgmma")])
def test_parts_of_rows(factor, first, unit, monkeypatch):
    """TMA takes tiles that begin at a multiple of 16 bytes in a row, and the others were illegal instructions."""
    text = """op f(q: bf16[B, H, S, D], k: bf16[B, H, S, D + 8], v: bf16[B, H, S, D + 8]) -> (o: bf16[B, H, S, D]) {
        s[b, h, i, j] = sum[d](q[b, h, i, d] * k[b, h, j, d]) / 8 where d in 0:D
        p[b, h, i, j] = softmax[j](s[b, h, i, j])
        o[b, h, i, e] = sum[j](p[b, h, i, j] * v[b, h, j, e]) using bf16 where e in 0:D
    }""".replace(factor, f"{factor[:-1]} + {first}]")
    result = check(text, SIZES, None, monkeypatch)
    assert result.plan.kernels[0].options.unit == unit


SCORED = {
    "linear by distance": attention("t[b, h, i, j] + slope[h] * f32(j - i)", more=", slope: f32[H]"),
    "a soft cap": attention("20 * tanh(t[b, h, i, j] / 20)"),
    "a soft cap and a window": attention("20 * tanh(t[b, h, i, j] / 20) if j <= i and j > i - 40 else -inf"),
    "a window at both ends": attention("t[b, h, i, j] if j <= i + 20 and j > i - 30 else -inf"),
    "a window by distance": attention("t[b, h, i, j] if abs(i - j) < 30 else -inf"),
    "excluded, not kept": attention("-inf if j > i else t[b, h, i, j]"),
    "excluded for two reasons": attention("-inf if j > i or j < i - 30 else t[b, h, i, j]"),
    "segments": attention("t[b, h, i, j] if seg[b, i] == seg[b, j] and j <= i else -inf", more=", seg: i32[B, S]"),
    "lengths": attention("t[b, h, i, j] if j < n[b] else -inf", more=", n: i32[B]"),
    "long lengths": attention("t[b, h, i, j] if j < n[b] else -inf", more=", n: i64[B]"),
    "lengths and a bias": attention("t[b, h, i, j] + a[h, i, j] if j < n[b] else -inf", more=", n: i32[B], a: bf16[H, S, S]"),
    "where each row begins": attention("t[b, h, i, j] if j >= n[b] + i - 40 and j <= i else -inf", more=", n: i32[B]"),
    "a bias by distance": attention("t[b, h, i, j] + a[h, j - i + S - 1]", more=", a: f32[H, 2 * S - 1]"),
    "a guarded bias": attention("t[b, h, i, j] + (a[h, i - j] if j <= i else -inf)", more=", a: f32[H, S]"),
    "a mask in memory": attention("t[b, h, i, j] if keep[b, j] else -inf", more=", keep: bool[B, S]"),
    "a prefix": attention("t[b, h, i, j] if j <= i or j < 10 else -inf"),
    "rounded scores": attention().replace("t[b, h, i, j] = sum", "t[b, h, i, j]: bf16 = sum"),
}
WEIGHTED = {
    "dropout": attention(
        more=", seed: i64", product="o[b, h, i, d] = sum[j]((p[b, h, i, j] / 0.9 if rand(seed, ((b * H + h) * S + i) * S + j) "
        "< 0.9 else 0) * v[b, h, j, d]) using bf16",
    ),
    "a sink": attention(
        weight="exp(s[b, h, i, j] - m[b, h, i]) / (sum[t](exp(s[b, h, i, t] - m[b, h, i])) + exp(z[h] - m[b, h, i]))",
        rest="m[b, h, i] = max(max[j](s[b, h, i, j]), z[h])", more=", z: f32[H]",
    ),
    "guarded": attention(
        "t[b, h, i, j] if j < n[b] else -inf", "softmax[j](s[b, h, i, j]) if m[b, h, i] > -inf else 0",
        ", n: i32[B]", rest="m[b, h, i] = max[j](s[b, h, i, j])",
    ),
    "a guarded maximum": attention(
        "t[b, h, i, j] if j < n[b] else -inf",
        "exp(s[b, h, i, j] - g[b, h, i]) / max(sum[t](exp(s[b, h, i, t] - g[b, h, i])), 1e-20)",
        ", n: i32[B]",
        rest="m[b, h, i] = max[j](s[b, h, i, j])\n    g[b, h, i] = m[b, h, i] if m[b, h, i] > -inf else 0",
    ),
    "by the logarithm of the sum": attention(
        weight="exp(s[b, h, i, j] - l[b, h, i])", rest="l[b, h, i] = logsumexp[j](s[b, h, i, j])", out=", l: f32[B, H, S]"
    ),
    "the logarithm of the sum beside it": attention(
        out=", l: f32[B, H, S]", last="l[b, h, i] = logsumexp[j](s[b, h, i, j])"
    ),
    "an entropy beside it": attention(
        out=", y: f32[B, H, S]", last="y[b, h, i] = sum[j](p[b, h, i, j] * s[b, h, i, j])"
    ),
    "sigmoid": attention(weight="sigmoid(s[b, h, i, j] - 2)"),
}  # fmt: skip


def inputs_of(text, sizes=SIZES):
    """Numbers from a normal distribution; lengths, segments and masks as programs have them."""
    program = specialised(Source("t.tile", text), None, sizes)
    random, found = np.random.default_rng(1), arrays(program)
    for n, t in enumerate(program.inputs):
        shape = found[n].shape
        match t.name:
            case "seg":
                found[n] = np.sort(random.integers(0, 3, shape), axis=-1).astype(found[n].dtype)
            case "n":
                found[n] = np.array([33, sizes["S"] - 7]).astype(found[n].dtype)
            case "keep":
                found[n] = random.random(shape) < 0.7
            case "seed":
                found[n] = np.array(7)
    return found


@pytest.mark.parametrize("name", SCORED | WEIGHTED)
def test_scores_and_weights(name, monkeypatch):
    text = (SCORED | WEIGHTED)[name]
    check(text, SIZES, (64, 32), monkeypatch, inputs_of(text))


@pytest.mark.parametrize("condition", [f"j {way} {n}" for way in ("<= i +", ">= i -") for n in (29, 30, 31)])
def test_a_tile_is_whole_where_its_last_element_is_there(condition, monkeypatch):
    """Tiles have 32 columns, and blocks 64 rows. Of a tile the first row, or the last one, sees all, or all but one or two."""
    text = attention(f"t[b, h, i, j] if {condition} else -inf")
    sizes = SIZES | {"B": 1, "D": 16}
    check(text, sizes, (64, 32), monkeypatch, inputs_of(text, sizes))


@pytest.mark.some(3)
@pytest.mark.parametrize("name", ["a soft cap and a window", "lengths and a bias", "a sink"])
def test_printed(name, monkeypatch):
    text = (SCORED | WEIGHTED)[name]
    check(text, SIZES, (64, 32), monkeypatch, inputs_of(text), printed=True)


def test_four_numbers_of_one_run_of_rand(monkeypatch):
    """Two threads draw four neighbours each, and exchange halves. Rows that do not begin at multiples of four draw each alone."""
    text = WEIGHTED["dropout"]
    for length in (72, 70):
        sizes = SIZES | {"B": 1, "S": length, "D": 32}
        result = check(text, sizes, (64, 32), monkeypatch, inputs_of(text, sizes))
        module, together = result.emitted.module, length % 4 == 0
        runs = module.count("multiply_wide_u32(") // 13  # in the loops over four columns, or over each
        assert runs > 0 and ("shuffle_xor_i32" in module) == together
        assert module.count("for two in") == runs or not together
    check(text, SIZES, (64, 32), monkeypatch, inputs_of(text), printed=True)


@pytest.mark.parametrize("sizes", [{"B": 8, "H": 12, "S": 512, "D": 64}, {"B": 4, "H": 8, "S": 1024, "D": 96}])
def test_one_run_of_rand_where_numbers_of_elements_may_wrap_around(sizes, monkeypatch):
    """By what is known of the dimensions alone, a number of an element may exceed 64 bits: its quotient by 4 is still shared."""
    _, result = lowered(WEIGHTED["dropout"], sizes, (128, 64), monkeypatch)
    assert "shuffle_xor_i32" in result.emitted.module


def test_two_functions_of_one_tensor_share_reductions(monkeypatch):
    """`softmax` and `logsumexp` have a maximum each, under different names."""
    _, result = lowered(WEIGHTED["the logarithm of the sum beside it"], SIZES, (64, 32), monkeypatch, texts=True)
    assert result.texts["build"].count('tilec.reduce = "max"') == 2
    assert result.texts["simplify"].count('tilec.reduce = "max"') == 1


@pytest.mark.parametrize("length", [0, -5, 1, 2**62])
def test_lengths_beyond_the_tensor(length, monkeypatch):
    """A length is a number like any other: rows of nothing are NaN, or 0 under a guard."""
    for text in (SCORED["long lengths"], WEIGHTED["guarded"].replace("n: i32", "n: i64")):
        inputs = inputs_of(text)
        inputs[3][:] = [length, 40]
        check(text, SIZES, (64, 32), monkeypatch, inputs)


def test_a_length_bounds_the_loop(monkeypatch):
    """Tiles beyond the length are not even loaded: nothing is known of their memory."""
    text = SCORED["lengths"]
    _, result = lowered(text, SIZES, (64, 32), monkeypatch)
    assert "skipped" in [r.verb for r in result.plan.remarks]


MATCHED = {
    "segments": ("seg[b, i] == seg[b, j]", ", seg: i32[B, S]"),
    "segments before": ("seg[b, i] >= seg[b, j] and j <= i", ", seg: i64[B, S]"),
    "from where a column may be seen": ("seg[b, j] <= i", ", seg: i32[B, S]"),
    "until where a row sees": ("j < seg[b, i] and j >= i", ", seg: i32[B, S]"),
}


@pytest.mark.crossed
@pytest.mark.parametrize("name", MATCHED)
@pytest.mark.parametrize("tile", [(64, 32), (128, 32), warps(16, 32)], ids=["wgmma", "two", "a warp"])
def test_tiles_that_data_exclude(name, tile, monkeypatch):
    """Numbers in any order, of any size: no tile is left out that has a pair. Rows of nothing are NaN."""
    condition, more = MATCHED[name]
    text = attention(f"t[b, h, i, j] if {condition} else -inf", more=more)
    sizes = {"B": 3, "H": 1, "S": 130, "D": 16}
    inputs = inputs_of(text, sizes)
    random = np.random.default_rng(3)
    inputs[3][0] = np.arange(130) // 40 if "==" in condition or ">=" in condition else np.arange(130) // 40 * 40 + 20
    inputs[3][1] = random.permutation(130)
    inputs[3][2] = np.where(np.arange(130) < 70, -(2**31), 2**31 - 1)
    assert "needed_tiles" in check(text, sizes, tile, monkeypatch, inputs).emitted.module


ROUNDED = {
    "cast": attention(kind="{t}", product="o[b, h, i, d] = sum[j]({w}(p[b, h, i, j]) * v[b, h, j, d])"),
    "declared": attention(kind="{t}", product=PRODUCT.replace(" using bf16", "")).replace(
        "p[b, h, i, j] =", "p[b, h, i, j]: {w} ="
    ),
    "before the division": attention(
        kind="{t}", weight="exp(s[b, h, i, j] - m[b, h, i])", rest="m[b, h, i] = max[j](s[b, h, i, j])",
        product="o[b, h, i, d] = sum[j](p[b, h, i, j] * v[b, h, j, d]) / sum[j](f32(p[b, h, i, j]))",
    ).replace("p[b, h, i, j] =", "p[b, h, i, j]: {w} ="),
}  # fmt: skip


@pytest.mark.crossed
@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize("kind, weights", [("f16", "f16"), ("bf16", "bf16"), ("bf16", "f16"), ("f16", "bf16")])
def test_rounded_weights(name, kind, weights, monkeypatch):
    """In any 16-bit type, before or after a row's factor; the plan says that it is before."""
    text = ROUNDED[name].replace("{t}", kind).replace("{w}", weights)
    result = check(text, SIZES, (64, 32), monkeypatch)
    assert [r.verb for r in result.plan.remarks].count("rounded") == 1


def test_weights_of_f32_and_values_of_f16(monkeypatch):
    """Two f16 numbers make up a weight of at most 1, with an f32 result as exact as f32 sums."""
    text = attention(kind="f16", product=PRODUCT.replace(" using bf16", "")).replace("(o: f16", "(o: f32")
    result = check(text, SIZES, (64, 32), monkeypatch)
    assert result.plan.kernels[0].options.weight_terms == 2


@pytest.mark.parametrize(
    ("declared", "excluded"), [("", ""), (": f16", ""), ("", " if j >= 2 * i - 20 else -inf")]
)
def test_small_weights_whose_largest_meet_zeros(declared, excluded, monkeypatch):
    """An f16 holds no weight below 2^-25 of the row's largest; where the values of large weights are 0, only small ones count. The
    program may round one to 0 that the kernel does not, since its row's factor is applied later. Other rows may have no weights."""
    exact = PRODUCT.replace(" using bf16", "")
    text = attention(f"t[b, h, i, j]{excluded}", kind="f16", product=exact).replace("(o: f16", "(o: f32")
    text = text.replace("p[b, h, i, j] =", f"p[b, h, i, j]{declared} =")
    q, k, v = (np.zeros((2, 1, 72, 64), np.float16) for _ in range(3))
    q[..., 0], k[:, :, 40:, 0] = 8, -np.linspace(16.6, 17.2, 32)
    v[:, :, 40:] = 1
    check(text, SIZES, (64, 32), monkeypatch, [q, k, v])


def test_computed_factors_are_stored_first(monkeypatch):
    """A scaled query is a tensor of its own, of which blocks load tiles."""
    text = attention().replace(SCORES, "z[b, h, i, d]: bf16 = q[b, h, i, d] * 0.125\n    " + SCORES.replace("q[", "z["))
    _, result = lowered(text, SIZES, (64, 32), monkeypatch)
    stored, chain = result.plan.kernels
    assert isinstance(chain.options, ContractionChain) and stored.outputs == ("z",)


def test_long_rows_of_several_heads_start_first(monkeypatch):
    """Every block has a place of its own, whatever the number of heads that take turns."""
    text = attention("t[b, h, i, j] if j <= i else -inf")
    for sizes in ({"B": 1, "H": 5, "S": 130, "D": 16}, {"B": 3, "H": 1, "S": 65, "D": 16}):
        monkeypatch.setattr("tilec.plan.cuda.chain._group", lambda problem, tile, target: 2)
        result = check(text, sizes, (64, 32), monkeypatch)
        options = result.plan.kernels[0].options
        assert options.longest_first and options.group_batch == 2 and options.growing == (2,)


@pytest.mark.parametrize("group", [1, 2])
def test_first_rows_start_first_where_they_are_the_longest(group, monkeypatch):
    monkeypatch.setattr("tilec.plan.cuda.chain._group", lambda problem, tile, target: group)
    text = attention("t[b, h, i, j] if j >= i else -inf")
    options = check(text, {"B": 1, "H": 3, "S": 130, "D": 16}, (64, 32), monkeypatch).plan.kernels[0].options
    assert options.longest_first and options.group_batch == group and options.shrinking == (2,)


def test_distances_are_converted_once(monkeypatch):
    """An integer that is linear in indices is a float that all of a thread's elements share, and a constant."""
    _, result = lowered(SCORED["linear by distance"], SIZES, (64, 32), monkeypatch)
    assert "float32(int32(pair + fragment * 8))" in result.emitted.module


@pytest.mark.parametrize("kind", ["bf16", "f32"])
def test_biases_of_two_columns_are_one_load(kind, monkeypatch):
    text = attention("t[b, h, i, j] + a[h, i, j] if j <= i else -inf", more=f", a: {kind}[H, S, S]")
    result = check(text, SIZES | {"B": 1, "S": 96, "D": 16}, (64, 32), monkeypatch, printed=True)
    assert ("load_u32x1" if kind == "bf16" else "load_f32x2") in result.emitted.module  # a word has two of 16 bits


def test_equal_states_are_carried_once(monkeypatch):
    """A softmax and the log-sum-exp of the same scores have one maximum and one sum."""
    _, result = lowered(WEIGHTED["by the logarithm of the sum"], SIZES, (64, 32), monkeypatch)
    assert result.emitted.module.count("running_maximum") and "running_maximum_2" not in result.emitted.module


@pytest.mark.parametrize(
    "text, reason",
    [
        (GROUPED.replace("q[b, h, i, d]", "q[b, h, i, D - 1 - d]"), "places that are no box of its tensor"),

    ],
)
def test_refused(text, reason):
    sizes = {"B": 1, "H": 8, "S": 256, "D": 64}
    assert reason in reasons(text, sizes), reasons(text, sizes)


# ---- compiled ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a soft cap and a window", "lengths and a bias", "linear by distance", "segments"])
def test_compiled(name):
    """No spills, no stack, no products that the assembler serialises."""
    from tools.lowering import lowered as lower_text

    from tilec.core.diagnostics import Source

    sizes = {"B": 4, "H": 16, "S": 4096, "D": 128}
    _, result = lower_text(Source("t.tile", SCORED[name].replace("i - 40", "i - 1024")), None, sizes, target="h200")
    assert isinstance(result.plan.kernels[0].options, ContractionChain)
    assert len(compiled(result.emitted, "sm_90a")) == 1


# ---- on a GPU ----------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", LAYOUTS | SCORED | WEIGHTED | MATCHED)
def test_on_a_gpu(name, monkeypatch):
    import tilec

    text, sizes = LAYOUTS.get(name) or ((SCORED | WEIGHTED).get(name), SIZES | {"S": 650, "H": 2})
    if name in MATCHED:
        condition, more = MATCHED[name]
        text = attention(f"t[b, h, i, j] if {condition} else -inf", more=more)
    inputs = inputs_of(text, sizes)
    monkeypatch.undo()
    monkeypatch.setattr(chain_fusion, "profitable", lambda together, separate: True)
    op = tilec.compile(text)
    got = op(*map(to_gpu, inputs))
    got = got if isinstance(got, tuple) else (got,)
    assert any(isinstance(k.options, ContractionChain) for k in op.plan.kernels)
    assert_within(text, inputs, [from_torch(g) for g in got], kind="cuda")


@pytest.mark.parametrize("target, tile", [("h200", (64, 32)), ("h200", (128, 64)), ("sm_80", (64, 32)), ("sm_80", (128, 32))])
def test_infinite_values_of_weights_that_are_sums(target, tile, monkeypatch):
    """A weight's lower part may be 0, which an infinite value makes NaN: such rows are computed of whole weights."""
    text = attention(product=PRODUCT.replace(" using bf16", "")).replace("(o: bf16", "(o: f32")
    special, _ = lowered(text, SIZES, tile if target == "h200" else None, monkeypatch, target)
    inputs = arrays(special)
    inputs[2][0, 0, 3, 5], inputs[2][0, 0, 5, 5], inputs[2][1, 0, 71, 7] = np.inf, np.inf, -np.inf  # the last of 72, too
    tile = tile if target == "h200" else None
    result = check(text, SIZES, tile, monkeypatch, inputs=inputs, target=target)
    assert result.plan.kernels[0].options.weight_terms > 1
