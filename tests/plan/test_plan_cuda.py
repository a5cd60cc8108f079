"""What the planner decides for a GPU, by shape: columns, transposes, parts. Figures are in docs/performance.md."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
from conftest import assert_within
from fuzz.matrix import machine
from tools import TESTS
from tools.contractions import arrays
from tools.emulation import run_printed
from tools.lowering import lowered
from tools.plans import rewritten

from tilec.core.targets import load
from tilec.kernels.contraction import WarpgroupContraction
from tilec.plan.cuda import block_order, chain, contraction

H200 = load("h200")
CORPUS = TESTS / "fuzz" / "corpus"


def planned(text: str, target=H200, **sizes: int):
    return lowered(text, None, sizes, target=target, end="plan", emit=False)[1].plan


COLUMNS = "op f(x: f32[M, N]) -> (y: f32[N]) { y[j] = sum[i](x[i, j]) }"
MATMUL = "op f(a: bf16[M, K], b: bf16[K, N]) -> (c: bf16[M, N]) { c[m, n] = sum[k](a[m, k] * b[k, n]) }"
MIDDLE = "op f(x: f32[B, M, N]) -> (y: f32[B, N]) { y[b, j] = sum[i](x[b, i, j]) }"


def test_a_second_block_of_columns_fits():
    """It loads while the first waits at its barriers; a block that has an SM for itself may take what it likes."""
    (many,) = planned(MIDDLE, B=64, M=1024, N=1024).kernels
    assert many.blocks > H200.units
    assert 2 * many.options.block_threads * many.options.registers <= H200.sm.registers
    (few,) = planned(COLUMNS, M=8192, N=8192).kernels
    assert few.blocks < H200.units and few.options.registers is None


@pytest.mark.parametrize(("columns", "lanes"), [(8192, 16), (4096, 8), (1024, 8)])
def test_lines_are_as_long_as_blocks_last(columns, lanes):
    (kernel,) = planned(COLUMNS, M=columns, N=columns).kernels
    assert kernel.options.thread_counts[0] == lanes


def test_a_transposed_tile_has_many_threads():
    (kernel,) = planned("op f(x: f32[M, N]) -> (y: f32[N, M]) { y[j, i] = x[i, j] }", M=4096, N=4096).kernels
    assert kernel.tile == (64, 64) and kernel.options.block_threads == 512


def test_many_short_dimensions_are_not_all_unrolled():
    """One thread once held the 2^13 elements that follow from one reduction: its kernel took minutes to compile."""
    (kernel,) = planned((CORPUS / "broadcast_of_reduction.tile").read_text(), M=2).kernels
    assert prod(kernel.options.steps) <= 64


def test_dimensions_leave_room_for_the_vectors_of_a_lane():
    """One thread once held 8 vectors of 8 elements along each of two dimensions: its kernel took minutes to compile."""
    kernels = planned((CORPUS / "scalar_beside_scan.tile").read_text(), M=16).kernels
    (both,) = [k for k in kernels if len(k.grid) == 0 and k.extents.get(3) == 16]
    assert max(both.options.vectors) == 8 and prod(both.options.vectors) * prod(both.options.steps) <= 64


HUBER = """op f(x: f32[N, M], y: f32[N, M]) -> (mean: f32) {
    d[i, j] = abs(x[i, j] - y[i, j])
    mean = mean[i, j](d[i, j] * d[i, j] * 0.5 if d[i, j] < 1.0 else d[i, j] - 0.5)
}"""


@pytest.mark.parametrize("rows", [32768, 4099])
def test_steps_with_guards_load_no_more_than_a_thread_holds(rows):
    """All loads of guarded steps come before the first use. A thread once loaded 192 elements in 3 of 32 rows, and spilled."""
    partial, _ = planned(HUBER, N=rows, M=32768).kernels
    steps, vectors = prod(partial.options.steps), prod(partial.options.vectors)
    even = all(e % s == 0 for e, s in zip(list(partial.extents.values())[1:-1], partial.options.steps[1:-1]))
    assert even or 2 * steps * vectors <= 64


TRANSPOSED = """op f(q: bf16[B, H, S, D], k: bf16[C, G, S, D]) -> (y: bf16[B, H, S, D], z: bf16[C, G, S, D]) {
    a[s, d] = s * 10000 ** (d / D) where s in 0:S, d in 0:D
    y[b, h, s, d] = q[b, h, s, d] * cos(a[s, d])
    z[c, g, s, d] = k[c, g, s, d] * cos(a[s, d])
}"""


def test_dimensions_that_nothing_connects_are_one():
    """Heads of queries and of keys that are turned by one table of angles: a thread once held all heads of the keys."""
    (kernel,) = planned(TRANSPOSED, B=4, C=4, H=16, G=16, S=512, D=128).kernels
    assert len(kernel.extents) == 4


def test_dimensions_of_operations_that_need_one_another_stay_separate():
    """Each row of z needs a whole row of y: one dimension for both would mean elements of other blocks."""
    text = "op f(x: f32[M, N], p: i32[M, N]) -> (y: f32[M, N], z: f32[M, N]) { y[i, j] = exp(x[i, j]) z[i, k] = y[i, p[i, k]] }"
    assert all(len(k.extents) == (3 if {"y", "z"} <= {*k.nodes} else 2) for k in planned(text, M=512, N=512).kernels)


def test_a_thread_holds_few_results_of_long_dimensions():
    (kernel,) = planned(TRANSPOSED, B=4, C=4, H=16, G=8, S=512, D=128).kernels
    assert len(kernel.extents) == 6
    for dims in kernel.dims.values():
        assert prod(kernel.options.steps[d] for d in dims) * max(kernel.options.vectors) <= 64


@pytest.mark.parametrize("length, parts", [(2**22 - 3, []), (2 * (2**21 - 9), [2]), (2**22, [256])])
def test_a_sum_has_as_many_parts_as_divide_its_length(length, parts):
    """The first is a prime, the second twice a prime."""
    plan = planned("op f(x: f32[N]) -> (y: f32) { y = sum[i](x[i]) }", N=length)
    assert [step.parts for step in plan.steps("split")] == parts


def test_a_scanned_row_that_has_no_room_is_in_memory():
    """A tile that no block has room for was priced, which failed, before the group was refused."""
    text = "op f(x: i32[N, 1]) -> (y: i32[N, 1, 1]) { y[i, j, l] = cumsum[i](cumsum[i](x[i, l])) where j in 0:1 }"
    few, many = planned(text, N=50000), planned(text, N=200000)
    assert len(few.kernels) < len(many.kernels) == 3
    assert any("800,000 bytes of shared memory" in r.reason for r in many.remarks if r.verb == "refused")


def test_parts_pay_where_a_second_kernel_begins_early():
    text = "op f(x: f32[M, N]) -> (y: f32[M]) { y[i] = sum[j](x[i, j]) }"
    assert len(planned(text, M=16, N=131072).kernels) == 2
    late = replace(H200, launch=replace(H200.launch, overlap_us=0.0))
    assert len(planned(text, late, M=16, N=131072).kernels) == 1


BATCH_NORM_GRADIENT = """op f(g: bf16[N, H, W, C], x: bf16[N, H, W, C]) -> (dx: bf16[N, H, W, C], d: f32[C]) {
    s[c] = sum[n, h, w](f32(g[n, h, w, c]))
    d[c] = sum[n, h, w](g[n, h, w, c] * f32(x[n, h, w, c]))
    dx[n, h, w, c] = g[n, h, w, c] - s[c] - x[n, h, w, c] * d[c]
}"""
BATCH_NORM = """op f(x: bf16[N, H, W, C]) -> (y: bf16[N, H, W, C]) {
    m[c] = mean[n, h, w](f32(x[n, h, w, c]))
    v[c] = mean[n, h, w]((x[n, h, w, c] - m[c]) * (x[n, h, w, c] - m[c]))
    y[n, h, w, c] = (x[n, h, w, c] - m[c]) * rsqrt(v[c] + 1e-5)
}"""
POOLED = """op f(x: bf16[N, H, W, C]) -> (s: f32[C], t: f32[C]) {
    p[n, h, w, c] = max[a in 0:2, b in 0:2](x[n, 2 * h + a, 2 * w + b, c]) where h in 0:H // 2, w in 0:W // 2
    s[c] = sum[n, h, w](f32(p[n, h, w, c]))
    t[c] = sum[n, h, w](p[n, h, w, c] * f32(p[n, h, w, c]))
}"""


@pytest.mark.parametrize("text, sums", [(BATCH_NORM_GRADIENT, 2), (BATCH_NORM, 2), (POOLED, 2)])
def test_several_long_reductions_down_few_columns_are_split(text, sums):
    """As one kernel they would have a block for all of the 64 columns. A window of each point is no long reduction."""
    plan = planned(text, N=64, H=56, W=56, C=64)
    assert len(plan.steps("split")) == sums and all(s.parts > 16 for s in plan.steps("split"))
    bytes_moved = 64 * 56 * 56 * 64 * 2
    assert plan.time_us < 20 * bytes_moved / 4.3e6


def test_long_sums_of_products_are_short_sums_where_that_takes_as_long():
    """Four parts of 131,072 products were off by three times what cuBLAS is."""
    text = "op f(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N]) { c[i, j] = sum[k](a[i, k] * b[k, j]) }"
    plan = planned(text, M=256, N=256, K=1 << 19)
    (split,) = plan.steps("split")
    assert (1 << 19) // split.parts <= 1 << 14


VARIANCES = """op f(x: f32[N, C, H, W]) -> (m: f32[C], v: f32[C]) {
    m[c] = mean[n, h, w](x[n, c, h, w])
    v[c] = mean[n, h, w]((x[n, c, h, w] - m[c]) * (x[n, c, h, w] - m[c]))
}"""


def test_blocks_that_are_alone_compute_between_their_loads():
    """Few blocks had all of a batch at a predicted 139 us, and took 1,271 on an H200: parts are compared with that they take."""
    plan = planned(VARIANCES, N=512, C=128, H=34, W=34)
    assert len(plan.steps("split")) == 3


def test_parts_of_a_mean_and_a_variance_are_one_reading():
    """Each part of the variance is about the mean of the part, so that none waits for the mean of all."""
    plan = planned(VARIANCES, N=128, C=64, H=112, W=112)
    assert len(plan.steps("split")) == 3 and len(plan.kernels) == 2
    assert plan.time_us < 2.2 * 128 * 64 * 112 * 112 * 4 / 4.3e6


def test_sums_of_several_kernels_are_one_reading_in_parts():
    """Down columns, a mean and a variance are kernels of their own until they are split."""
    text = VARIANCES.replace("N, C, H, W", "N, H, W, C").replace("n, c, h, w", "n, h, w, c").replace(
        "-> (", "-> (y: f32[N, H, W, C], "
    ).replace("}", "y[n, h, w, c] = (x[n, h, w, c] - m[c]) * rsqrt(v[c] + 1e-5)\n}")
    plan = planned(text, N=10, C=672, H=224, W=224)
    assert len(plan.kernels) == 3 and sorted(s.about for s in plan.steps("split")) == ["", "m.sum", "m.sum"]


def test_a_computed_tensor_in_parts_is_read_once():
    """What is stored in one shape and read in another is one tensor."""
    head, body = VARIANCES.split("{")
    head = head.replace("x:", "y:").replace("-> (", "-> (x: f32[N, C, H, W], ")
    plan = planned(f"{head}{{ x[n, c, h, w] = y[n, c, h, w] + 1\n {body}", N=128, C=64, H=112, W=112)
    assert sum(k.work.dram_read for k in plan.kernels) < 2.1 * 128 * 64 * 112 * 112 * 4


def test_a_tensor_that_a_split_shows_in_another_shape_is_read_once():
    """A result that another kernel had stored was counted twice for one sum, and three times for two."""
    product = "{\n    y[n, c, h, w] = sum[k](x[n, k, h, w] * t[c, k])\n"
    given = "(x: f32[N, 8, H, W], t: f32[C, 8])"
    text = VARIANCES.replace("x[", "y[").replace("{\n", product, 1).replace("(x: f32[N, C, H, W])", given)
    plan = planned(text, N=32, C=64, H=112, W=112)
    size = 32 * 64 * 112 * 112 * 4
    assert len(plan.steps("split")) == 3
    assert {round(k.work.dram_read / size, 1) for k in plan.kernels if k.work.dram_read > size / 2} == {1}


def test_rows_of_a_batch_that_are_read_again_are_split():
    """Few blocks had all of a batch in one kernel, as if they kept what they had read: 5.2 ms for the 0.4 of its bytes."""
    plan = planned(VARIANCES, N=10, C=192, H=112, W=112)
    assert len(plan.steps("split")) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "text, sums", [(BATCH_NORM_GRADIENT, 2), (BATCH_NORM, 2), (POOLED, 2), (BATCH_NORM.replace("bf16", "f32"), 3)]
)
def test_parts_of_several_reductions_are_added(text, sums):
    """Those that read one tensor are one kernel. Of dependent ones, each waits for the sums before it. Equal kernels that add parts
    share a launch, in which each has operands of its own."""
    special, result = lowered(text, None, {"N": 8, "H": 32, "W": 32, "C": 64}, rewritten(split=True), target=H200)
    assert len(result.plan.steps("split")) == sums
    inputs = arrays(special)
    assert_within(text, inputs, run_printed(special, result, inputs)[0], kind="cuda")


def test_a_product_without_rows_and_columns_is_no_outer_product():
    """Both factors have all indices of the result: planning ended in an IndexError where all of them have one value."""
    text = """op f(x: f8e4m3[M, M, M], y: f16[M, 2 * M + 1, M]) -> (z: f32[M, M]) {
        z[i, j] = sum[k](x[i, j, k] * y[i, 2 * j + 1, k])
    }"""
    for size in (1, 2):
        special, result = lowered(text, None, {"M": size}, target=H200)
        inputs = arrays(special)
        assert_within(text, inputs, run_printed(special, result, inputs)[0], kind="cuda")


def test_several_reductions_along_rows_stay_one_kernel():
    """Blocks enough, or the blocks of a cluster, share what each row has."""
    text = "op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = softmax[j](x[i, j]) }"
    for rows, length in ((4096, 4096), (96, 262144)):
        assert len(planned(text, M=rows, N=length).kernels) == 1


def test_a_product_of_few_tiles_is_split():
    (split,) = planned(MATMUL, M=128, N=128, K=1 << 18).steps("split")
    assert split.parts > 1


@pytest.mark.parametrize("k, split", [(8192, True), (8192 + 32, False), (8192 + 64, False)])
def test_parts_of_a_product_have_whole_steps(k, split):
    """Of 64: a half of 8256 is 64.5 of them."""
    assert bool(planned(MATMUL, M=64, N=64, K=k).steps("split")) is split


CONVOLUTION = """op f(x: f32[N, S, S, C], w: f32[O, C, R, R]) -> (y: f32[N, S, S, O]) {
    y[n, h, k, o] = sum[c, r in 0:R, s in 0:R](pad(x[n, h + r - R // 2, k + s - R // 2, c], 0) * w[o, c, r, s]) using tf32
        where n in 0:N, h in 0:S, k in 0:S
}"""


def test_a_product_whose_factors_are_packed_has_no_parts():
    """Parts of sums that read unpacked factors took 255 us, where warpgroups multiply packed ones in 58."""
    plan = planned(CONVOLUTION, N=10, S=14, C=512, O=512, R=3)
    assert not plan.steps("split") and plan.steps("pack")
    assert plan.time_us < 80


def test_zeros_behind_lines_are_stored_too():
    """Lines of 3 channels were packed as 32 at the price of 3."""
    pointwise = CONVOLUTION.replace("x[n, h + r - R // 2, k + s - R // 2, c]", "x[n, h, k, c]")
    assert not planned(pointwise, N=8, S=64, C=3, O=6, R=1).steps("pack")


def test_a_product_over_pixels_is_split_by_images():
    """No side of an image has parts of 64 elements, but all pixels together have: the gradient of a convolution's weight."""
    text = """op f(g: bf16[N, 14, 14, 64], x: bf16[N, 14, 14, 64]) -> (w: bf16[64, 3, 3, 64]) {
        w[o, r, s, c] = sum[n, y in 0:14, z in 0:14](g[n, y, z, o] * pad(x[n, y + r - 1, z + s - 1, c], 0)) where r in 0:3, s in 0:3
    }"""
    (split,) = planned(text, N=64).steps("split")
    assert split.dim == 4 and split.parts > 1
    assert not planned(text, N=1).steps("split")


@pytest.mark.parametrize("size", [256, 1024, 2048])
def test_slow_instructions_are_left_out_only_where_they_cannot_win(size, monkeypatch):
    """Ranking the tiles of `mma.sync` once took most of the time of planning large products by `wgmma`."""
    tried, families = [], contraction.contraction.families

    def counted(target, problem, instruction):
        tried.append(instruction)
        return families(target, problem, instruction)

    monkeypatch.setattr(contraction.contraction, "families", counted)
    (found,) = planned(MATMUL, M=size, K=size, N=size).kernels
    assert ("mma.sync" in tried) == (size < 2048)
    monkeypatch.setattr(contraction.contraction, "least_us", lambda *_: 0.0)
    (whole,) = planned(MATMUL, M=size, K=size, N=size).kernels
    assert found.options == whole.options


@pytest.mark.parametrize("sizes", [{"M": 70, "N": 1, "K": 64}, {"M": 1, "N": 70, "K": 64}])
def test_warpgroups_multiply_no_single_column(sizes):
    """On a machine whose other units are slow, a plan by them had a tile that no pass could build."""
    text = "op f(x: f8e4m3[M, K], w: f16[N, K]) -> (y: f32[M, N]) { y[i, j] = sum[k](x[i, k] * w[j, k]) }"
    (kernel,) = planned(text, machine("wgmma"), **sizes).kernels
    assert not isinstance(kernel.options, WarpgroupContraction)


@pytest.mark.parametrize(("batch", "length", "group"), [(64, 4096, 1), (2048, 1 << 20, 2)])
def test_orders_of_many_heads_are_not_all_weighed(monkeypatch, batch, length, group):
    """Planning causal attention of 8,192 heads took 7 seconds; of long ones, minutes."""
    text = (TESTS.parent / "examples/attention.tile").read_text()
    asked, longest_share = [], chain.longest_share

    def counted(*arguments, **more):
        asked.append(arguments[0] * arguments[1])
        return longest_share(*arguments, **more)

    monkeypatch.setattr(chain, "longest_share", counted)
    sizes = {"B": batch, "H": 32, "S": length, "D": 128}
    _, result = lowered(text, "causal_attention", sizes, target=H200, end="plan", emit=False)
    (kernel,) = result.plan.kernels
    assert kernel.options.group_batch == group and len(asked) < 16 and max(asked) <= 16 * chain.MOST_TILES


def test_what_does_not_vary_along_scores_is_no_work_of_each():
    """The slope of a bias by distance is one of a head: chains with it were predicted to take 1.6 times as long as they do."""
    text = """op f(q: bf16[H, S, D], k: bf16[H, S, D], v: bf16[H, S, D]) -> (o: bf16[H, S, D]) {{
        s[h, i, j] = sum[d](q[h, i, d] * k[h, j, d]) / sqrt(f32(D)) + {slope} * f32(j - i) if j <= i else -inf
        p[h, i, j]: bf16 = softmax[j](s[h, i, j])
        o[h, i, d] = sum[j](p[h, i, j] * v[h, j, d])
    }}"""
    sizes = {"H": 64, "S": 4096, "D": 128}
    of_head, constant = (
        planned(text.format(slope=slope), **sizes).kernels for slope in ("exp2(f32(-1 - h) / 4)", "0.25")
    )
    assert len(of_head) == len(constant) == 1
    assert of_head[0].prediction.time_us == pytest.approx(constant[0].prediction.time_us, rel=0.05)


def test_each_shape_of_a_contraction_is_built_once(monkeypatch):
    """A kernel was once built three times for each of its hundreds of tiles, most of which differ only in their stages."""
    made, shapes = [], []
    tiles_by, built = contraction.tiles_by, contraction._built

    def counted(tile, **facts):
        warps = tile.warp_m, tile.warp_n, tile.inner_warps
        made.append((tile.instruction, tile.bm, tile.bn, tile.bk, warps, tile.cluster, tile.kept))
        return built(tile, **facts)

    def listed(*arguments):
        made.clear()
        found = tiles_by(*arguments)
        assert len(set(made)) == len(made), "while the tiles of one contraction are ranked"
        shapes.append((len(made), len(found.choices)))
        return found

    monkeypatch.setattr(contraction, "_built", counted)
    monkeypatch.setattr(contraction, "tiles_by", listed)
    planned(MATMUL, M=512, K=512, N=512)
    assert shapes and all(count < tiles for count, tiles in shapes)


CONVOLVED = """op f(x: bf16[64, 28, 28, 128], v: bf16[{v}], g: bf16[128], w: bf16[512, 128, 1, 1]) -> (y: bf16[64, 28, 28, 512]) {{
    s[b, i, j, o] = sum[c, r in 0:3, t in 0:3](pad(x[b, i + r - 1, j + t - 1, c], 0) * v[{o}]) where i in 0:28, j in 0:28
    n[b, i, j, o]: bf16 = s[b, i, j, o] * g[o] + g[o]
    h[b, i, j, o]: bf16 = max(n[b, i, j, o], 0)
    y[b, i, j, o] = sum[c](h[b, i, j, c] * w[o, c, 0, 0])
}}"""


@pytest.mark.parametrize(("v", "o", "kernels"), [("128, 3, 3, 128", "o, r, t, c", 2), ("128, 128, 3, 3", "o, c, r, t", 3)])
def test_convolutions_after_another_load_all_factors_by_tma(v, o, kernels):
    """The last elementwise operation before the second convolution is the epilogue of the first; dimensions of one element are in
    nobody's way, and weights of another layout are stored anew."""
    plan = planned(CONVOLVED.format(v=v, o=o))
    *_, first, second = plan.kernels
    assert len(plan.kernels) == kernels
    assert [first.options.left_copy, first.options.right_copy, second.options.right_copy] == ["tma"] * 3
    assert [r.subject for r in plan.remarks if r.verb == "not inlined"] == ["n", "h"]


def test_a_bias_that_several_attentions_read_is_no_part_of_the_first():
    """It is computed once, and each chain reads it from memory."""
    text = """op f(q: bf16[B, H, T, D], k: bf16[B, H, T, D], v: bf16[B, H, T, D], w: f32[T], u: f32[T]) -> (y: bf16[B, H, T, D]) {
      bias[i, j] = tanh(w[i] * u[j]) * sin(w[i] - u[j])
      s[b, h, i, j] = sum[d](q[b, h, i, d] * k[b, h, j, d]) + bias[i, j]
      p[b, h, i, j] = softmax[j](s[b, h, i, j])
      x[b, h, i, d]: bf16 = (sum[j](p[b, h, i, j] * v[b, h, j, d]) using bf16)
      t[b, h, i, j] = sum[d](x[b, h, i, d] * k[b, h, j, d]) + bias[i, j]
      r[b, h, i, j] = softmax[j](t[b, h, i, j])
      y[b, h, i, d] = (sum[j](r[b, h, i, j] * v[b, h, j, d]) using bf16)
    }"""
    kernels = planned(text, B=4, H=12, T=1024, D=64).kernels
    assert [type(k.options).__name__ for k in kernels][1:] == ["ContractionChain", "ContractionChain"]


SCORES = """op f(q: f16[B, H * D], k: bf16[B, H, T, D]) -> (p: f32[B, H, T]) {
    s[b, h, j] = sum[d in 0:D](q[b, h * D + d] * k[b, h, j, d])
    p[b, h, j] = softmax[j](s[b, h, j])
}"""


def test_few_threads_wait_for_each_line(monkeypatch):
    """A block of 8 threads that loops over 1024 keys was predicted at the memory's speed: it took 1.28 ms in place of 30 us
    (H200)."""
    sizes = {"B": 4, "H": 32, "T": 1024, "D": 64}
    apart = planned(SCORES, **sizes)
    assert len(apart.kernels) == 2
    refusals = [str(r) for r in apart.remarks if r.verb == "refused" and r.subject.startswith("s with softmax")]
    assert refusals, list(map(str, apart.remarks))
    monkeypatch.setattr("tilec.plan.fusion.traverses_several", lambda g: False)
    monkeypatch.setattr("tilec.plan.groups.Group.time_us", lambda g, graph, target: 1 / len(g.nodes))
    together = planned(SCORES, **sizes)
    assert len(together.kernels) == 1 and together.time_us > 4 * apart.time_us


def test_a_gathered_table_is_not_read_as_a_whole():
    """The kernels of an embedding and of what follows it were kept apart, as if a larger kernel read the table more slowly."""
    text = """op f(ids: i64[M], table: bf16[V, N], place: bf16[N]) -> (e: bf16[M, N], y: f32[M]) {
    e[i, j] = table[ids[i], j] + place[j]
    y[i] = sum[j](e[i, j] * e[i, j])
}"""
    (kernel,) = planned(text, M=4, V=50257, N=2048).kernels
    assert kernel.work.dram_read < 2**20


def test_scalars_share_a_kernel():
    """Each cache of a decoder has a length: they were a launch each. A scalar does not join what has more to do."""
    text = """op f(x: bf16[M, N], a: i64, b: i64, c: i64) -> (y: bf16[M, N], d: i64, e: i64, g: i64) {
    d = a + 1
    y[i, j] = x[i, j] * 2
    e = b + 1
    g = c + d
}"""
    plan = planned(text, M=64, N=64)
    assert sorted(k.nodes for k in plan.kernels) == [("d", "e", "g"), ("y",)]


DOWN = "op f(x: f32[B, C, N]) -> (y: f32[B, C, N]) {{ y[b, c, n] = {} }}"
KEPT = {
    "a norm over channels": "x[b, c, n] / sqrt(mean[d](x[b, d, n] ** 2) + 1)",
    "a softmax down columns": "softmax[c](x[b, c, n])",
    "less their means": "x[b, c, n] - mean[d](x[b, d, n])",
}


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize(("channels", "length"), [(64, 4096), (3, 4095), (40, 998), (512, 1024)])
def test_columns_stay_in_registers(name, channels, length):
    """Several passes read them: a block holds them whole, and memory is read once."""
    (kernel,) = planned(DOWN.format(KEPT[name]), B=64, C=channels, N=length).kernels
    assert kernel.work.dram_read < 1.1 * 4 * 64 * channels * length


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("shape", [(2, 12, 40), (1, 33, 19), (2, 3, 64)])
def test_columns_in_registers_are_right(name, shape, rng):
    inputs = {"x": rng.standard_normal(shape).astype("float32")}
    text = DOWN.format(KEPT[name])
    special, result = lowered(text, None, inputs, target=replace(H200, units=1))
    assert_within(text, inputs, run_printed(special, result, inputs)[0], kind="cuda")


POOLED = """op f(x: f32[B, H, W]) -> (y: f32[B, {h}, {w}]) {{
    y[b, i, j] = {kind}[r in 0:{n}, s in 0:{n}](x[b, i * {n} + r, j * {n} + s])
}}"""


@pytest.mark.parametrize("kind", ["sum", "max"])
def test_neighbouring_windows_are_short_rows(kind, rng):
    """Their elements lie side by side: neighbouring threads take them, and not the first elements of windows that lie apart."""
    (kernel,) = planned(POOLED.format(h=186, w=186, n=11, kind=kind), B=64, H=2048, W=2048).kernels
    assert kernel.options.name == "rows" and kernel.prediction.time_us < 1.2 * kernel.prediction.terms["dram"]
    text = POOLED.format(h=3, w=4, n=11, kind=kind)
    inputs = {"x": rng.standard_normal((2, 35, 46)).astype("float32")}
    special, result = lowered(text, None, inputs, target=replace(H200, units=1))
    assert_within(text, inputs, run_printed(special, result, inputs)[0], kind="cuda")


def test_threads_that_all_sum_the_same_wait_for_each_line():
    """Threads that lie along the dimensions of the result, and along none of the sums', would load the sums' elements one after
    another: the sums have kernels of their own."""
    text = """op f(x: f32[B, 72, N, N]) -> (y: f32[B, 8, 8, N, N]) {
        m[b, g] = mean[c in 0:8, h, w](x[b, g * 8 + c, h, w]) where g in 0:8
        v[b, g] = mean[c in 0:8, h, w]((x[b, g * 8 + c, h, w] - m[b, g]) ** 2) where g in 0:8
        y[b, g, c, h, w] = (x[b, g * 8 + c, h, w] - m[b, g]) * rsqrt(v[b, g]) where g in 0:8, c in 0:8
    }"""
    assert ("y",) in [k.nodes for k in planned(text, B=112, N=512).kernels]


def test_threads_share_columns_where_the_last_blocks_would_read_alone():
    """3.1 waves of blocks that each read 4096 rows: the last of them would read alone. Shorter blocks end together."""
    (few,) = planned(MIDDLE, B=128, M=4096, N=4095).kernels
    assert few.blocks > 8 * H200.units * few.prediction.occupancy.blocks
    (even,) = planned(MIDDLE, B=640, M=4096, N=4095).kernels
    assert max(even.options.thread_counts) == even.options.block_threads == 256


def test_a_loop_that_is_written_out_stays_in_the_instruction_cache():
    """One loop once had 256 logarithms, which took three times as long as their instructions."""
    text = "op f(x: f32[M, N], w: f32[M, N]) -> (y: f32) { y = sum[i, j](w[i, j] * (log(w[i, j]) - log(x[i, j]))) }"
    kernel = planned(text, M=16384, N=16384).kernels[0]
    assert prod(kernel.options.steps) * prod(kernel.options.vectors) <= 16


def test_elements_that_numbers_of_rows_scale_are_computed_again():
    """For a second kernel, too, which would read them from memory as f32."""
    source = """op f(x: bf16[M, N], g: bf16[M, N], m: f32[M], r: f32[M]) -> (y: bf16[M, N], w: f32[N]) {
        h[i, j] = (x[i, j] - m[i]) * r[i]
        a[i]    = sum[j](g[i, j] * h[i, j])
        y[i, j] = g[i, j] - h[i, j] * a[i]
        w[j]    = sum[i](g[i, j] * h[i, j])
    }"""
    plan = planned(source, M=16384, N=4096)
    assert sorted(name for k in plan.kernels for name in k.outputs) == ["w", "y"]


@pytest.mark.parametrize("width, tile", [(513, 513), (1025, 640), (512, 512), (800, 512)])
def test_no_block_is_left_with_few_elements(width, tile):
    """It takes as long as one with all of them."""
    source = "op f(x: f32[M, N + 1]) -> (y: f32[M, N]) { y[i, j] = x[i, j + 1] * 2 where j in 0:N }"
    (kernel,) = lowered(source, None, {"M": 65536, "N": width})[1].plan.kernels
    assert kernel.tile[-1] == tile


SHARED = "op f(x: f32[B, C, N], w: f32[C, N]) -> (y: f32[B, C, N]) { y[b, c, n] = x[b, c, n] * w[c, n] }"


@pytest.mark.parametrize("b, c, grid", [(16, 256, (1, 2, 0)), (16, 16, (0, 1, 2)), (1, 256, (0, 1, 2))])
def test_blocks_that_share_elements_are_neighbours(b, c, grid):
    """Where what they share would leave the L2 cache in between: a layer norm's weights came from memory for each sample."""
    (kernel,) = planned(SHARED, B=b, C=c, N=1 << 16).kernels
    assert kernel.grid == grid and kernel.work.dram_read == 4 * (b + 1) * c << 16


def test_blocks_in_another_order_compute_the_same(monkeypatch):
    monkeypatch.setattr(block_order, "STAYS", 1e-6)
    special, result = lowered(SHARED, None, {"B": 3, "C": 2, "N": 2052}, target=H200)
    assert result.plan.kernels[0].grid == (1, 2, 0)
    inputs = arrays(special)
    assert_within(SHARED, inputs, run_printed(special, result, inputs)[0], kind="cuda")


def test_neighbours_with_gaps_are_read_with_what_is_between_them():
    """One place of a window of weights, of one, of 2 x 2 and of 3 x 3: sectors of memory are read, whatever of them is needed."""
    text = """op f(x: f32[16, 64, 128, 128], w: f32[64, 128, S, S]) -> (y: f32[16, 128, 128, 128]) {
        y[i, o, p, q] = sum[c](x[i, c, p, q] * w[c, o, S // 2, S // 2]) using tf32
    }"""
    kernels = [lowered(text, None, {"S": size}, end="plan", emit=False)[1].plan.kernels[-1] for size in (1, 2, 3)]
    one, two, three = (k.work.l2_bytes for k in kernels)
    assert one < two < three
