"""Several contractions of one left factor in one kernel: results that meet in an expression, and results apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conftest import assert_within
from tools import contractions as T
from tools import lowering
from tools.cuda_kernels import compiled

from tilec.core.diagnostics import Source
from tilec.core.targets import load
from tilec.kernels import Contraction, WarpgroupContraction
from tilec.kernels.base import Refused
from tilec.plan.cuda import contraction
from tilec.semantics.interpreted import interpret_stage

GATED = """op gated(x: {t}[M, K], g: {t}[K, N], u: {t}[K, N]) -> (h: {o}[M, N]) {{
 a[m, n] = sum[k](x[m, k] * g[k, n])
 b[m, n] = sum[k](x[m, k] * u[k, n])
 h[m, n] = silu(a[m, n]) * b[m, n]
}}
"""
TRANSPOSED = GATED.replace("[K, N]", "[N, K]").replace("g[k, n]", "g[n, k]").replace("u[k, n]", "u[n, k]")
PACKED = GATED.replace("g: {t}[K, N], u: {t}[K, N]", "w: {t}[2, N, K]")
PACKED = PACKED.replace("g[k, n]", "w[0, n, k]").replace("u[k, n]", "w[1, n, k]")
RESIDUAL = GATED.replace("u: {t}[K, N]", "u: {t}[K, N], c: {t}[N], r: {o}[M, N]")
RESIDUAL = RESIDUAL.replace("b[m, n]\n}}", "(b[m, n] + c[n]) + r[m, n]\n}}")
THREE = """op three(x: {t}[M, K], f: {t}[K, N], g: {t}[K, N], u: {t}[K, N]) -> (h: {o}[M, N]) {{
 a[m, n] = sum[k](x[m, k] * f[k, n])
 b[m, n] = sum[k](x[m, k] * g[k, n])
 c[m, n] = sum[k](x[m, k] * u[k, n])
 h[m, n] = a[m, n] * b[m, n] + c[m, n]
}}
"""
BOTH = GATED.replace("-> (h: {o}[M, N])", "-> (h: {o}[M, N], a: f32[M, N])")
QKV = """op qkv(x: {t}[M, K], wq: {t}[K, N], wk: {t}[K, P], wv: {t}[K, P]) -> (q: {o}[M, N], k: {o}[M, P], v: {o}[M, P]) {{
 q[m, n] = sum[j](x[m, j] * wq[j, n])
 k[m, p] = sum[j](x[m, j] * wk[j, p])
 v[m, p] = sum[j](x[m, j] * wv[j, p])
}}
"""
BIASED = QKV.replace("wv: {t}[K, P])", "wv: {t}[K, P], c: {t}[P])").replace(" v[m, p] =", " w[m, p] =").replace("v: {o}", "v: f32")
BIASED = BIASED.rstrip("}\n") + "\n v[m, p] = tanh(w[m, p] + c[p])\n}}\n"
HEADS = """op heads(x: {t}[B, S, E], wq: {t}[H, D, E], wk: {t}[G, D, E]) -> (q: {o}[B, H, S, D], k: {o}[B, G, S, D]) {{
 q[b, h, s, d] = sum[e](x[b, s, e] * wq[h, d, e])
 k[b, g, s, d] = sum[e](x[b, s, e] * wk[g, d, e])
}}
"""
PAIRS = """op pairs(x: {t}[M, K], g: {t}[K, N], u: {t}[K, N], e: {t}[K, P], f: {t}[K, P]) -> (h: {o}[M, N], i: {o}[M, P]) {{
 a[m, n] = sum[k](x[m, k] * g[k, n])
 b[m, n] = sum[k](x[m, k] * u[k, n])
 h[m, n] = a[m, n] * b[m, n]
 c[m, p] = sum[k](x[m, k] * e[k, p])
 d[m, p] = sum[k](x[m, k] * f[k, p])
 i[m, p] = c[m, p] - d[m, p]
}}
"""
EXPERTS = """op experts(x: {t}[B, M, K], g: {t}[B, K, N], u: {t}[B, K, N]) -> (h: {o}[B, M, N]) {{
 h[b, m, n] = silu(sum[k](x[b, m, k] * g[b, k, n])) * sum[k](x[b, m, k] * u[b, k, n])
}}
"""
BATCHES = """op batches(x: {t}[B, M, K], g: {t}[B, K, N], u: {t}[B, K, P]) -> (h: {o}[B, M, N], i: {o}[B, M, P]) {{
 h[b, m, n] = sum[k](x[b, m, k] * g[b, k, n])
 i[b, m, p] = sum[k](x[b, m, k] * u[b, k, p])
}}
"""
ONE_TENSOR = """op heads(x: {t}[M, E], w: {t}[3, H, D, E]) -> (q: {o}[H, M, D], k: {o}[H, M, D], v: {o}[H, M, D]) {{
 q[h, m, d] = sum[e](x[m, e] * w[0, h, d, e])
 k[h, m, d] = sum[e](x[m, e] * w[1, h, d, e])
 v[h, m, d] = sum[e](x[m, e] * w[2, h, d, e])
}}
"""
SMALL = {"M": 40, "K": 72, "N": 72}
SEPARATE = SMALL | {"P": 40}
BATCH = {"B": 2, "S": 24, "E": 72, "H": 3, "D": 32, "G": 2}
LARGE = {"M": 4096, "K": 2048, "N": 4096}
LARGE_SEPARATE = {"M": 512, "K": 2048, "N": 2048, "P": 512}


def lowered(text, kinds, sizes, columns=None, texts=None, **changes):
    """With these options, in one kernel by warpgroups, even where warps would be faster; in blocks of so many columns."""

    def by_warpgroups(built) -> bool:
        return built.instruction == "wgmma" and built.refuse_shape() is None and built.block[1] == (columns or built.block[1])

    def schedule(plan):
        (kernel,) = plan.kernels
        options = replace(kernel.options, **changes)
        assert options.refuse(replace(kernel, options=options), kernel, load("h200")) is None
        return replace(plan, kernels=(replace(kernel, options=options),))

    text = text.format(**dict(zip("to", kinds)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contraction, "_is_buildable", by_warpgroups)
        specialised, result = lowering.lowered(Source("t.tile", text), None, sizes, schedule, texts=texts, locations=True)
    (kernel,) = result.plan.kernels
    assert isinstance(kernel.options, WarpgroupContraction)
    return text, specialised, result, kernel.options


def check(text, kinds, sizes, **changes):
    text, specialised, result, options = lowered(text, kinds, sizes, **changes)
    inputs = T.arrays(specialised)
    assert_within(text, inputs, T.emulated(specialised, result, inputs), kind="cuda")
    return options


def test_results_that_meet():
    options = check(GATED, ("bf16", "bf16"), SMALL)
    assert (options.products, options.siblings) == (2, ())


def test_separate_results():
    options = check(QKV, ("bf16", "bf16"), SEPARATE)
    assert (options.products, options.siblings) == (1, (1, 1, 1))


@pytest.mark.slow
@pytest.mark.parametrize("text, products, kinds", [
    *((text, 2, kinds) for text in (GATED, TRANSPOSED, PACKED, RESIDUAL) for kinds in (("bf16", "bf16"), ("f16", "f32"))),
    (BOTH, 2, ("bf16", "bf16")), (EXPERTS, 2, ("bf16", "bf16")), (THREE, 3, ("bf16", "f32")),
])  # fmt: skip
def test_forms_of_results_that_meet(text, products, kinds):
    """A block goes through several tiles, with edges along every dimension."""
    sizes = {"M": 136, "K": 136, "N": 136} | ({"B": 2} if text == EXPERTS else {})
    options = check(text, kinds, sizes, persistent_blocks=2, stages=3)
    assert options.products == products


@pytest.mark.slow
@pytest.mark.parametrize("text, sizes, siblings", [
    (QKV, {"M": 136, "K": 200, "N": 136, "P": 72}, (1, 1, 1)), (BIASED, {"M": 72, "K": 136, "N": 136, "P": 72}, (1, 1, 1)),
    (HEADS, BATCH, (2, 2)), (BATCHES, SMALL | {"B": 2, "P": 40}, (1, 1)),
    (ONE_TENSOR, {"M": 72, "E": 72, "H": 2, "D": 32}, (2, 2, 2)), (PAIRS, {"M": 72, "K": 136, "N": 136, "P": 72}, (1, 1)),
])  # fmt: skip
def test_forms_of_separate_results(text, sizes, siblings):
    """Blocks go from the tiles of one result to those of the next; stages go on over the edge between them."""
    options = check(text, ("bf16", "bf16"), sizes, persistent_blocks=3, stages=3)
    assert options.siblings == siblings


KEYS = QKV.replace("K, N]", "N, K]").replace("K, P]", "P, K]").replace("wq[j, n]", "wq[n, j]")
KEYS = KEYS.replace("wk[j, p]", "wk[p, j]").replace("wv[j, p]", "wv[p, j]")


@pytest.mark.parametrize("text, sizes", [(HEADS, BATCH | {"G": 1}), (KEYS, {"M": 40, "K": 72, "N": 72, "P": 24}), (
    KEYS.replace("(q: {o}[M, N], k: {o}[M, P], ", "(k: {o}[M, P], q: {o}[M, N], "), {"M": 40, "K": 72, "N": 72, "P": 24}),
])  # fmt: skip
def test_results_of_fewer_columns_than_a_tile(text, sizes):
    """Their boxes have as many as those of the others, beyond the tensor."""
    text, specialised, result, _ = lowered(text, ("bf16", "bf16"), sizes, columns=64, persistent_blocks=2, stages=3)
    inputs = T.arrays(specialised)
    assert_within(text, inputs, T.emulated(specialised, result, inputs), kind="cuda")
    assert_within(text, inputs, interpret_stage(specialised, result.texts, "map", inputs), kind="cuda")


@pytest.mark.parametrize("text, products", [(GATED, 2), (TRANSPOSED, 2), (RESIDUAL, 2), (EXPERTS, 2)])
def test_results_that_meet_by_warps(text, products):
    """By `mma.sync`, with fragments of all products in a thread's registers."""
    text, sizes = text.format(t="bf16", o="bf16"), SMALL | ({"B": 2} if text == EXPERTS else {})
    specialised, result = lowering.lowered(Source("t.tile", text), None, sizes, target="a100", locations=True)
    (kernel,) = result.plan.kernels
    assert isinstance(kernel.options, Contraction) and kernel.options.products == products
    inputs = T.arrays(specialised)
    assert_within(text, inputs, T.emulated(specialised, result, inputs), kind="cuda")


@pytest.mark.slow
def test_sums_that_leave_the_matrix_units():
    """8-bit floats, whose sums are added in registers every 128 k."""
    text = TRANSPOSED.replace("x[m, k] * ", "f32(x[m, k]) * ").replace("g[n, k]", "f32(g[n, k])").replace("u[n, k]", "f32(u[n, k])")
    assert check(text, ("f8e4m3", "f32"), {"M": 40, "K": 400, "N": 72}, persistent_blocks=1).two_level == 128


@pytest.mark.slow
@pytest.mark.parametrize("text, sizes", [(GATED, SMALL), (QKV, SEPARATE)])
def test_interpreted(text, sizes):
    """Every stage, by the interpreter."""
    text, specialised, result, _ = lowered(text, ("bf16", "bf16"), sizes, texts=True, persistent_blocks=2, stages=2)
    inputs = T.arrays(specialised)
    for stage in ("fuse", "tile", "bufferize", "stage", "map"):
        assert_within(text, inputs, interpret_stage(specialised, result.texts, stage, inputs), kind="cuda")


@pytest.mark.slow
@pytest.mark.parametrize("text, sizes", [
    (GATED, LARGE), (TRANSPOSED, LARGE), (RESIDUAL, LARGE), (THREE, LARGE), (QKV, LARGE_SEPARATE), (BIASED, LARGE_SEPARATE),
    (PAIRS, LARGE | {"P": 1024}),
])  # fmt: skip
def test_registers(text, sizes):
    """No spills, no stack, no warning of the assembler, at the sizes that matter."""
    _, _, result, _ = lowered(text, ("bf16", "bf16"), sizes)
    ((kernel, _),) = compiled(result.emitted, "sm_90a")
    assert kernel.shared <= load("h200").sm.shared_per_block


@pytest.mark.slow
@pytest.mark.parametrize("text", [GATED, TRANSPOSED, RESIDUAL])
def test_registers_of_warps(text):
    _, result = lowering.lowered(Source("t.tile", text.format(t="bf16", o="bf16")), None, LARGE, target="a100")
    (planned,), ((kernel, _),) = result.plan.kernels, compiled(result.emitted, "sm_80")
    assert kernel.shared <= planned.options.shared_bytes


OTHER_FACTOR = GATED.replace("x: {t}[M, K]", "x: {t}[M, K], y: {t}[M, K]").replace("x[m, k] * u", "y[m, k] * u")
OTHER_ROWS = GATED.replace("x: {t}[M, K]", "x: {t}[M, K], p: i32[M], q: i32[M]")
OTHER_ROWS = OTHER_ROWS.replace("x[m, k] * g", "x[abs(p[m]) % M, k] * g").replace("x[m, k] * u", "x[abs(q[m]) % M, k] * u")
OTHER_MASK = GATED.replace("x[m, k] * u", "(x[m, k] if k <= m else 0) * u")
TO_COLUMNS = GATED.replace("-> (h: {o}[M, N])", "-> (h: {o}[N, M])").replace("h[m, n]", "h[n, m]")
ONE_TRANSPOSED = GATED.replace("u: {t}[K, N]", "u: {t}[N, K]").replace("u[k, n]", "u[n, k]")
ONE_MORE = PAIRS.replace("f: {t}[K, P]", "f: {t}[P]").replace(" d[m, p] = sum[k](x[m, k] * f[k, p])\n", "")
ONE_MORE = ONE_MORE.replace("d[m, p]", "f[p]")


@pytest.mark.parametrize("text, target, kernels, reason", [
    (OTHER_FACTOR, "h200", 2, "the tile that one writes is not the tile that the other reads"),
    (OTHER_ROWS, "h200", 2, "the tile that one writes is not the tile that the other reads"),
    (OTHER_MASK, "h200", 2, "the tile that one writes is not the tile that the other reads"),
    (OTHER_MASK, "a100", 2, "the tile that one writes is not the tile that the other reads"),
    (TO_COLUMNS, "h200", 2, "it has the indices along which the results are contiguous"),
    (ONE_TRANSPOSED, "h200", 2, "not in the same types, steps and orders of dimensions"),
    (ONE_MORE, "h200", 2, "not as many of them meet in each result"),
    (QKV, "a100", 3, "no tile of warpgroups fits them together"),
    (GATED, "a100", 1, "as one kernel of 2 products of one factor"),
    (GATED, "h200", 1, "as one kernel of 2 products of one factor"),
])  # fmt: skip
def test_reasons(text, target, kernels, reason):
    sizes = {"M": 512, "K": 1024, "N": 1024} | ({"P": 1024} if "P" in text else {})
    plan = lowering.planned(Source("t.tile", text.format(t="bf16", o="bf16")), None, sizes, target)
    assert len(plan.kernels) == kernels
    assert any(reason in remark.reason for remark in plan.remarks)


def test_clusters_are_refused():
    _, _, result, options = lowered(GATED, ("bf16", "bf16"), SMALL)
    (kernel,) = result.plan.kernels
    with pytest.raises(Refused):
        options.edited({"products": 1})
    clustered = replace(options, cluster=(2, 1))
    assert clustered.refuse(replace(kernel, options=clustered), kernel, load("h200")).option == "cluster"


def test_results_may_stand_in_another_order_than_their_products():
    """The loops over tiles follow the op's results, columns the statements."""
    text = """op f(x: bf16[B, T, N], w: bf16[3, N, N]) -> (v: bf16[B, T, N], a: bf16[B, T, N], c: bf16[B, N, T], s: bf16[B, T, T]) {
      q[b, i, j]: f32 = sum[k](x[b, i, k] * w[0, j, k])
      h[b, i, j]: f32 = sum[k](x[b, i, k] * w[1, j, k])
      v[b, i, j]: bf16 = sum[k](x[b, i, k] * w[2, j, k])
      a[b, i, j]: bf16 = q[b, i, j] * 0.35
      c[b, j, i]: bf16 = h[b, i, j] * 0.35
      s[b, i, t]: bf16 = (sum[k](q[b, i, k] * h[b, t, k]) using bf16)
    }"""
    _, made = lowering.lowered(text, None, {"B": 32, "T": 128, "N": 768})
    (siblings,) = (k for k in made.plan.kernels if getattr(k.options, "siblings", ()))
    assert siblings.options.siblings == (1, 1, 1)


def test_results_of_one_form_share_an_epilogue():
    text, specialised, result, _ = lowered(QKV, ("bf16", "bf16"), SMALL | {"P": SMALL["N"]}, persistent_blocks=2)
    assert result.emitted.module.count("tma_store_2d(") == 2, "its definition, and one call for three results"
    inputs = T.arrays(specialised)
    assert_within(text, inputs, T.emulated(specialised, result, inputs), kind="cuda")
