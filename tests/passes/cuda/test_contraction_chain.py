"""Walks of two contractions for CUDA: planned, mapped and printed, run by an emulator; on request compiled, or run on a
GPU. All within the program's error bounds."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import assert_within, from_torch
from tools.chains import check, lowered, reasons, warps
from tools.contractions import arrays
from tools.lowering import lowered as lower_text

from tilec.core import mlir
from tilec.core.diagnostics import CallError, Source
from tilec.core.mlir import ir
from tilec.core.targets import load
from tilec.cost.chain import ChainTile
from tilec.driver.lowering import lower
from tilec.dsl.build import build
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise
from tilec.kernels import ContractionChain
from tilec.plan import chain_fusion
from tilec.semantics.interpreter import Fault, interpret

HEAD = "op f(q: bf16[B, H, S, D], k: bf16[B, H, T, D], v: bf16[B, H, T, E]) -> (o: bf16[B, H, S, E]) {\n"
SCORES = " s[b, h, i, j] = sum[d](q[b, h, i, d] * k[b, h, j, d])"
PRODUCT = " o[b, h, i, e] = sum[j](p[b, h, i, j] * v[b, h, j, e])"


def program(scores: str = "", weights: str = "softmax[j](s[b, h, i, j])", using: str = " using bf16") -> str:
    """Attention with something behind the scores, and other weights."""
    lines = [HEAD, SCORES, scores, "\n p[b, h, i, j] = ", weights, "\n", PRODUCT, using, "\n}"]
    return "".join(lines)


def two_results(scores: str, inputs: str = "") -> str:
    """Attention with something of its own for each row, and the logarithm of a row's sum as a second result."""
    return f"""op f(q: bf16[H, S, D], k: bf16[H, T, D], v: bf16[H, T, D], {inputs}z: f32[H, S, D]) -> (
    o: f32[H, S, D], l: f32[H, S]
) {{
    s[h, i, j] = sum[d](q[h, i, d] * k[h, j, d]) {scores}
    m[h, i] = max[j](s[h, i, j])
    e[h, i, j] = exp(s[h, i, j] - m[h, i])
    n[h, i] = sum[j](e[h, i, j])
    r[h, i, d] = sum[j](e[h, i, j] * v[h, j, d]) using bf16
    o[h, i, d] = r[h, i, d] / n[h, i] + z[h, i, d]
    l[h, i] = m[h, i] + log(n[h, i])
}}"""


PROGRAMS = {
    "softmax": program(" / sqrt(f32(D))"),
    "in three parts": program(" / sqrt(f32(D))", using=""),
    "causal": program(" / 8 if j <= i else -inf"),
    "a window": program(" / 8 if j <= i and j > i - 40 else -inf"),
    "later ones only": program(" / 8 if j >= i + 3 else -inf"),
    "a mask without form": program(" / 8 if (i * j) % 3 < 2 else -inf"),
    "no maximum": program(" / 8", "exp(s[b, h, i, j])", using=""),
    "exp2": program(" / 8", "exp2(s[b, h, i, j] - max[t](s[b, h, i, t]))"),
    "no reduction": program(" / 8", "max(s[b, h, i, j], 0)"),
}
SIZES = {"B": 1, "H": 1, "S": 40, "T": 72, "D": 64, "E": 64}


@pytest.mark.parametrize("tile", [(64, 32), warps(16, 32), warps(64, 32, 1)], ids=["wgmma", "a warp", "warps"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, tile, monkeypatch):
    check(PROGRAMS[name], SIZES, tile, monkeypatch)


@pytest.mark.parametrize("tile", [(64, 32), warps(32, 32)], ids=["wgmma", "warps"])
@pytest.mark.parametrize("name", ["causal", "in three parts"])
def test_printed(name, tile, monkeypatch):
    check(PROGRAMS[name], SIZES | {"D": 72}, tile, monkeypatch, printed=True)


PARTS = [
    warps(16, 16, parts=3), warps(16, 32, parts=4), ChainTile(64, 32, 2, 168, 0, ping_pong=False, parts=5),
    warps(128, 16, 1, 32, parts=2), ChainTile(64, 16, 2, 168, 0, ping_pong=False, parts=3), ChainTile(128, 32, 2, 168, 0, parts=2),
]  # fmt: skip


@pytest.mark.parametrize("tile", PARTS, ids=["a warp", "empty", "empty, wgmma", "tall warps", "wgmma", "ping-pong"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_blocks_that_share_rows(name, tile, monkeypatch):
    """Each has a part of the elements; a kernel combines their states, of which some have seen nothing."""
    check(PROGRAMS[name], SIZES, tile, monkeypatch)


def test_printed_parts(monkeypatch):
    check(PROGRAMS["causal"], SIZES | {"B": 2, "S": 18, "E": 72}, warps(16, 16, parts=3), monkeypatch, printed=True)


def test_parts_of_grouped_heads(monkeypatch):
    """Two dimensions of rows, of which a block has a box."""
    text = """op f(q: bf16[H, S, G, D], k: bf16[H, T, D], v: bf16[H, T, D]) -> (o: bf16[H, S, G, D]) {
    s[h, i, g, j] = sum[d](q[h, i, g, d] * k[h, j, d]) / 8
    p[h, i, g, j] = softmax[j](s[h, i, g, j])
    o[h, i, g, d] = sum[j](p[h, i, g, j] * v[h, j, d]) using bf16
}"""
    for tile in (warps(16, 16, parts=2), warps(32, 16, parts=3)):
        check(text, {"H": 2, "S": 5, "G": 3, "T": 50, "D": 20}, tile, monkeypatch)


VECTORS = {
    "heads": ("q: bf16[B, H, D], k: bf16[B, H, T, D], v: bf16[B, H, T, D]", "b, h", "b, h"),
    "heads that share keys": ("q: bf16[B, H, D], k: bf16[B, G, T, D], v: bf16[B, G, T, D]", "b, h", "b, h // (H // G)"),
    "a dimension of one": ("q: bf16[B, H, 1, D], k: bf16[B, H, T, D], v: bf16[B, H, T, D]", "b, h, i", "b, h"),
}


def of_one_query(name: str) -> str:
    """Attention of a single query: products of vectors."""
    inputs, row, key = VECTORS[name]
    return f"""op f({inputs}) -> (o: bf16[B, H{", 1" if "i" in row else ""}, D]) {{
    s[{row}, j] = sum[d](q[{row}, d] * k[{key}, j, d]) / 4
    p[{row}, j] = softmax[j](s[{row}, j])
    o[{row}, d] = sum[j](p[{row}, j] * v[{key}, j, d]) using bf16
}}"""


@pytest.mark.parametrize("tile", [warps(16, 16, parts=3), ChainTile(64, 32, 2, 168, 0, ping_pong=False, parts=2)])
@pytest.mark.parametrize("name", VECTORS)
def test_one_query(name, tile, monkeypatch):
    """Products of a vector are contractions in a chain, for which they are rarely enough on their own."""
    inputs, text = VECTORS[name][0], of_one_query(name)
    check(text, {"B": 2, "H": 6, "T": 50, "D": 24} | ({"G": 2} if "G" in inputs else {}), tile, monkeypatch)


def test_decoding_is_one_chain():
    """Of few rows over many keys: blocks share them, by whatever is written of the query; the schedule says so and is read."""
    for name, (inputs, *_) in VECTORS.items():
        text = of_one_query(name)
        sizes = {"B": 4, "H": 8, "T": 8192, "D": 128} | ({"G": 2} if "G" in inputs else {})
        _, result = lower_text(Source("t.tile", text), None, sizes, target="h200")
        (kernel,) = result.plan.kernels
        assert isinstance(kernel.options, ContractionChain) and kernel.options.blocks_per_row > 1, name


def test_parts_of_lengths_that_are_data(monkeypatch):
    """Sequences of other lengths have other numbers of tiles, of which each part has its share, or none."""
    text = """op f(q: bf16[B, H, D], k: bf16[B, H, T, D], v: bf16[B, H, T, D], n: i32[B]) -> (o: bf16[B, H, D]) {
    s[b, h, j] = sum[d](q[b, h, d] * k[b, h, j, d]) / 4 if j < n[b] else -inf
    p[b, h, j] = softmax[j](s[b, h, j])
    o[b, h, d] = sum[j](p[b, h, j] * v[b, h, j, d]) using bf16
}"""
    sizes = {"B": 3, "H": 2, "T": 80, "D": 24}
    tile = warps(16, 16, parts=3)
    specialised, _ = lowered(text, sizes, tile, monkeypatch)
    *factors, _ = arrays(specialised)
    check(text, sizes, tile, monkeypatch, [*factors, np.array([80, 7, 33], np.int32)])


def test_parts_of_other_results(monkeypatch):
    """Results for each row, of rows without anything, and infinities."""
    text = two_results("/ 8 if j < i - 3 else -inf")
    sizes = {"H": 2, "S": 40, "T": 50, "D": 20}
    specialised, _ = lowered(text, sizes, warps(16, 16, parts=3), monkeypatch)
    inputs = arrays(specialised)
    check(text, sizes, warps(16, 16, parts=3), monkeypatch, inputs)
    inputs[0][0, 20, 5], inputs[1][0, 30], inputs[2][1, 3, 3] = np.inf, np.nan, np.inf
    check(text, sizes, warps(16, 16, parts=3), monkeypatch, inputs)


@pytest.mark.parametrize("tile", [warps(16, 16), warps(16, 16, parts=3)])
def test_positions_beside_a_product(tile, monkeypatch):
    """The key that each query weighs most."""
    text = """op f(q: bf16[S, D], k: bf16[T, D], v: bf16[T, D]) -> (o: f32[S, D], n: i32[S]) {
    s[i, j] = sum[d](q[i, d] * k[j, d]) / 8
    p[i, j] = softmax[j](s[i, j])
    o[i, d] = sum[j](p[i, j] * v[j, d]) using bf16
    n[i] = i32(argmax[j](s[i, j]))
}"""
    check(text, {"S": 20, "T": 70, "D": 20}, tile, monkeypatch)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_two_fragments_of_rows(stages, monkeypatch):
    """A warp of 32 rows, with as many tiles under way as there is memory for."""
    sizes = {"B": 1, "H": 1, "S": 130, "T": 100, "D": 64, "E": 64}
    result = check(PROGRAMS["a window"], sizes, warps(128, 32, stages, 32), monkeypatch)
    assert result.emitted.kernels[0].threads == 128 and f"cp_async_wait_{2 * stages - 2}" in result.emitted.module


@pytest.mark.parametrize("d, e, copy", [(20, 36, "cp_async_8"), (34, 66, "cp_async_4"), (65, 33, None)])
def test_widths_that_are_multiples_of_nothing(d, e, copy, monkeypatch):
    """TMA cannot load them. The planner chooses warps by itself."""
    result = check(PROGRAMS["causal"], SIZES | {"D": d, "E": e}, None, monkeypatch)
    assert result.plan.kernels[0].options.unit == "mma.sync" and (copy or "bf16") in result.emitted.module


@pytest.mark.parametrize("name", PROGRAMS)
def test_two_warpgroups_take_turns(name, monkeypatch):
    sizes = {"B": 1, "H": 1, "S": 130, "T": 100, "D": 64, "E": 64}
    result = check(PROGRAMS[name], sizes, (128, 32), monkeypatch)
    assert "named_barrier" in result.emitted.module and result.emitted.kernels[0].threads == 384


@pytest.mark.parametrize("name", ["softmax", "causal"])
def test_three_warpgroups_take_turns(name, monkeypatch):
    sizes = {"B": 1, "H": 1, "S": 200, "T": 100, "D": 32, "E": 32}
    result = check(PROGRAMS[name], sizes, (192, 32), monkeypatch)
    assert "named_barrier" in result.emitted.module and result.emitted.kernels[0].threads == 512


def test_batches_and_edges_of_every_dimension(monkeypatch):
    sizes = {"B": 2, "H": 1, "S": 65, "T": 33, "D": 72, "E": 136}
    check(PROGRAMS["softmax"], sizes, (64, 32), monkeypatch)


def test_heads_beside_columns(monkeypatch):
    """The layout in which a model has its activations: heads lie between places and columns."""
    text = PROGRAMS["softmax"].replace("[B, H, S, ", "[B, S, H, ").replace("[B, H, T, ", "[B, T, H, ")
    for old, new in (("b, h, i, d", "b, i, h, d"), ("b, h, j, ", "b, j, h, "), ("b, h, i, e", "b, i, h, e")):
        text = text.replace(f"[{old}", f"[{new}")
    check(text, SIZES | {"H": 2}, (64, 32), monkeypatch)


def test_other_results_and_operands(monkeypatch):
    """A bias for each score, something of its own for each row, and the logarithm of a row's sum as a second result."""
    text = two_results("/ 8 + bias[i, j]", "bias: f32[S, T], ")
    sizes = {"H": 2, "S": 40, "T": 50, "D": 64}
    check(text, sizes, (64, 32), monkeypatch)


def test_rows_without_anything(monkeypatch):
    """A mask that leaves nothing of a row: NaN, as softmax of nothing but -inf is; also where whole tiles are masked."""
    check(program(" if j < i - 3 else -inf"), SIZES | {"S": 90, "T": 40}, (64, 32), monkeypatch)


def test_infinities_and_nans(monkeypatch):
    specialised, _ = lowered(PROGRAMS["softmax"], SIZES, (64, 32), monkeypatch)
    q, k, v = arrays(specialised)
    q[0, 0, 3, 5], q[0, 0, 7] = np.inf, np.nan
    v[0, 0, 11, 2], v[0, 0, 12, 3] = np.nan, np.inf
    check(PROGRAMS["softmax"], SIZES, (64, 32), monkeypatch, [q, k, v])
    late = np.ones_like(q)
    k[0, 0, :40] = -300  # a late maximum, far above those before
    check(PROGRAMS["in three parts"], SIZES, (64, 32), monkeypatch, [late, k, v])


def test_three_parts_are_f32(monkeypatch):
    """With an f32 result, the error is that of f32 arithmetic: one bf16 for a weight would be off by 2^-9."""
    text = PROGRAMS["in three parts"].replace("(o: bf16", "(o: f32")
    check(text, SIZES, (64, 32), monkeypatch)
    two = text.replace("* v[b, h, j, e])", "* v[b, h, j, e]) using tf32")
    check(two, SIZES, (64, 32), monkeypatch)


def test_infinite_weights(monkeypatch):
    """An infinity is not taken apart into a NaN."""
    text = PROGRAMS["no maximum"]
    specialised, _ = lowered(text, SIZES, (64, 32), monkeypatch)
    q, k, v = arrays(specialised)
    q[0, 0, 5], k[0, 0, 9] = 12, 12
    check(text, SIZES, (64, 32), monkeypatch, [q, k, np.abs(v)])


@pytest.mark.parametrize(
    "left_out", ["running = 1", "running = 0", "nvgpu.mbarrier.try_wait.parity", "nvgpu.mbarrier.arrive %"]
)
def test_what_is_waited_for_is_needed(left_out, monkeypatch):
    """Every wait of the walk orders something: without one of them, there is a race, or someone waits for ever."""
    _, result = lowered(PROGRAMS["softmax"], SIZES | {"T": 100}, (64, 32), monkeypatch)
    lines = result.texts["map"].splitlines(keepends=True)
    (*_, last) = [n for n, line in enumerate(lines) if left_out in line and "func.func" not in line]
    inputs = arrays(specialise(parse(Source("t.tile", PROGRAMS["softmax"])), None, None, SIZES | {"T": 100}))
    interpret("".join(lines), inputs)
    with pytest.raises(Fault, match=r"race|stuck|unwritten|may still run|wait"):
        interpret("".join(lines[:last] + lines[last + 1 :]), inputs)


# ---- refusals ----------------------------------------------------------------------------------------------


LARGE = {"B": 2, "H": 8, "S": 1024, "T": 1024, "D": 128, "E": 128}


@pytest.mark.parametrize(
    "text, sizes, target, reason",
    [
        (PROGRAMS["softmax"], LARGE | {"E": 512}, "h200", "room for 256 columns of the last contraction, not 512"),
        (PROGRAMS["softmax"].replace("bf16[", "f32["), LARGE, "h200", "the factors are f32"),
        (PROGRAMS["no maximum"].replace("bf16", "f16"), LARGE, "h200", "and not f16"),
        (PROGRAMS["softmax"].replace("(o:", "(p: f32[B, H, S, T], o:"), LARGE, "h200", "is stored, element by element"),
        (program("", "tanh(s[b, h, i, j] - max[t](s[b, h, i, t]))"), LARGE, "h200", "goes through 'tanh'"),
        (program("", "s[b, h, i, j] * mean[t](s[b, h, i, t]) + 1"), LARGE, "h200", "by different factors"),
    ],
)
def test_refused(text, sizes, target, reason):
    assert reason in reasons(text, sizes, target), reasons(text, sizes, target)


@pytest.mark.parametrize("target", ["a100", "rtx3090", "rtx4090", "rtx5090", "h200", "b200"])
def test_every_gpu_has_a_unit(target):
    """Warps where there are no warpgroups, and where TMA cannot load the rows."""
    for depth in (64, 65, 128, 256):
        specialised = specialise(
            parse(Source("t.tile", PROGRAMS["causal"])), None, None, LARGE | {"B": 32, "D": depth, "E": depth}
        )
        with mlir.context(), ir.Location.unknown():
            (kernel,) = lower(build(specialised), load(target)).plan.kernels
        assert isinstance(kernel.options, ContractionChain), depth
        assert (kernel.options.unit == "wgmma") == (target == "h200" and depth != 65)


def test_a_schedule_is_obeyed_or_refused(tmp_path):
    from tilec.plan.schedule.write import read_schedule, write_schedule

    specialised = specialise(parse(Source("t.tile", PROGRAMS["causal"])), None, None, LARGE)
    path = tmp_path / "t.sched.toml"

    def planned(schedule=None):
        with mlir.context(), ir.Location.unknown():
            return lower(build(specialised), load("h200"), schedule=schedule)

    first = planned()
    text = write_schedule(first.plan, specialised)
    path.write_text(text)
    assert planned(read_schedule(path)).plan.kernels == first.plan.kernels
    path.write_text(text.replace("block = [128, 128]", "block = [128, 64]"))
    edited = planned(read_schedule(path))
    assert edited.plan.kernels[0].options.block == (128, 64) and "wgmma_bf16_64_mk_nk_128" in edited.emitted.module
    warp = text.replace('unit = "wgmma"', 'unit = "mma.sync"').replace("ping_pong = true", "ping_pong = false")
    path.write_text(warp.replace("block = [128, 128]", "block = [128, 64]"))
    edited = planned(read_schedule(path))
    assert edited.plan.kernels[0].options.unit == "mma.sync" and edited.emitted.kernels[0].threads == 256
    for old, new, why in (
        ("block = [128, 128]", "block = [100, 128]", "`block` must be 64, 128 or 192 rows"),
        ("block = [128, 128]\nwarps = 8", "block = [64, 128]\nwarps = 4", "`ping_pong` needs two warpgroups"),
        ("warps = 8", "warps = 4", "`warps` must be 8 for 128 rows by wgmma, not 4"),
        ('unit = "wgmma"', 'unit = "fma"', "`unit` must be one of wgmma, mma.sync"),
        ("stages = 2", "weight_terms = 2", "`weight_terms` follows from the program, and must be 1"),
    ):
        path.write_text(text.replace(old, new))
        with pytest.raises(CallError, match=why):
            planned(read_schedule(path))


# ---- compiled ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["causal", "in three parts"])
@pytest.mark.parametrize("depth", [64, 128])
def test_compiled(name, depth):
    """No spills, no stack, no products that the assembler serialises."""
    pytest.importorskip("cuda.core")
    from tilec.runtime.cuda.compile import compile_kernel
    from tilec.runtime.cuda.cubins import parameters

    sizes = {"B": 4, "H": 16, "S": 4096, "T": 4096, "D": depth, "E": depth}
    specialised = specialise(parse(Source("t.tile", PROGRAMS[name])), None, None, sizes)
    with mlir.context(), ir.Location.unknown():
        result = lower(build(specialised), load("h200"))
    (kernel,) = result.emitted.kernels
    cubin = compile_kernel(result.emitted.module, kernel.name, "sm_90a", kernel.threads, parameters=parameters(kernel))
    assert "wgmma.mma_async" in cubin.ptx and kernel.shared <= load("h200").sm.shared_per_block


@pytest.mark.slow
@pytest.mark.parametrize("target, chip", [("a100", "sm_80"), ("rtx4090", "sm_89"), ("rtx5090", "sm_120"), ("h200", "sm_90a")])
@pytest.mark.parametrize("name, depth", [("causal", 64), ("softmax", 128), ("in three parts", 128), ("softmax", 256)])
def test_warps_are_compiled(name, depth, target, chip, monkeypatch):
    """The tile that the planner chooses where there are no warpgroups, and parts of rows: no spills, no stack."""
    pytest.importorskip("cuda.core")
    from tilec.runtime.cuda.compile import compile_kernel
    from tilec.runtime.cuda.cubins import parameters

    machine = load(target)
    slow = {kind: {u: rate for u, rate in rates.items() if u != "wgmma"} for kind, rates in machine.tensor.items()}
    for rows in (4096, 1):
        sizes = {"B": 4, "H": 16, "S": rows, "T": 4096, "D": depth, "E": depth}
        specialised = specialise(parse(Source("t.tile", PROGRAMS[name])), None, None, sizes)
        with mlir.context(), ir.Location.unknown():
            result = lower(build(specialised), replace(machine, tensor=slow))
        first = result.emitted.kernels[0]
        assert result.plan.kernels[0].options.unit == "mma.sync"
        assert name == "causal" or len(result.emitted.kernels) == (1 if rows > 1 else 2)
        cubin = compile_kernel(result.emitted.module, first.name, chip, first.threads, parameters=parameters(first))
        assert "mma.sync" in cubin.ptx and first.shared <= machine.sm.shared_per_block


# ---- on a GPU ----------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("s, t, d, e", [(2, 5, 64, 64), (517, 517, 128, 128), (300, 777, 64, 64), (129, 640, 72, 136)])
def test_on_a_gpu(name, s, t, d, e, monkeypatch):
    torch = pytest.importorskip("torch")
    import tilec

    monkeypatch.setattr(chain_fusion, "profitable", lambda together, separate: True)
    random = np.random.default_rng(s + t)
    shapes = [(2, 3, s, d), (2, 3, t, d), (2, 3, t, e)]
    wide = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    inputs = [torch.from_numpy(a).cuda().bfloat16() for a in wide]
    op = tilec.compile(PROGRAMS[name])
    got = op(*inputs)
    again = op(*inputs)
    assert isinstance(op.plan.kernels[0].options, ContractionChain) and torch.equal(
        got.nan_to_num(), again.nan_to_num()
    )
    assert_within(PROGRAMS[name], [from_torch(i) for i in inputs], from_torch(got), kind="cuda")
