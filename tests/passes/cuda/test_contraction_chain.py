"""Chains of two contractions for CUDA: planned, mapped and printed, run by an emulator; on request compiled, or run on a
GPU. All within the program's error bounds."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import assert_within, from_torch
from tools import lowering
from tools.attention_programs import PROGRAMS, SIZES, program, two_results
from tools.chains import WITHOUT_WGMMA, check, lowered, reasons, warps, without_wgmma
from tools.contractions import arrays_of
from tools.cuda_kernels import compiled

from tilec.core import mlir
from tilec.core.diagnostics import CallError, Source
from tilec.core.mlir import ir
from tilec.core.targets import load
from tilec.cost.chain import ChainTile, choose_chain_tile
from tilec.cost.model import Choice
from tilec.driver.lowering import lower
from tilec.dsl.build import build
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise
from tilec.kernels import ContractionChain
from tilec.plan import chain_fusion
from tilec.semantics.interpreter import Fault, interpret


@pytest.mark.crossed
@pytest.mark.parametrize("tile", [(64, 32), warps(16, 32), warps(64, 32, 1)], ids=["wgmma", "a warp", "warps"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, tile, monkeypatch):
    check(PROGRAMS[name], SIZES, tile, monkeypatch)


@pytest.mark.parametrize("tile", [(64, 32), warps(32, 32)], ids=["wgmma", "warps"])
@pytest.mark.parametrize("name", ["causal", "in three parts"])
def test_printed(name, tile, monkeypatch):
    check(PROGRAMS[name], SIZES | {"D": 72}, tile, monkeypatch, printed=True)


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


def test_no_warp_waits_for_a_stage_that_another_may_have_released(monkeypatch):
    """One warp of a warpgroup releases a stage of the values for all four. One that waited for the stage once more, behind the
    exponentials, could find it filled again, and wait for ever."""
    sizes = {"B": 1, "H": 1, "S": 128, "T": 320, "D": 64, "E": 64}
    text = lowered(PROGRAMS["softmax"], sizes, (128, 64), monkeypatch)[1].emitted.module
    step = text[: text.index("mbarrier_arrive(shared + v_empty")].rpartition("for tile in range")[2]
    assert step.count("mbarrier_wait(shared + v_full + previous") == 1 and step.count("mbarrier_wait(shared + v_full") == 2


@pytest.mark.parametrize("name", ["softmax", "causal"])
def test_three_warpgroups_take_turns(name, monkeypatch):
    sizes = {"B": 1, "H": 1, "S": 200, "T": 100, "D": 32, "E": 32}
    result = check(PROGRAMS[name], sizes, (192, 32), monkeypatch)
    assert "named_barrier" in result.emitted.module and result.emitted.kernels[0].threads == 512


@pytest.mark.crossed
@pytest.mark.parametrize("tile", [(64, 32), (128, 32)], ids=["alone", "ping-pong"])
@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("name", ["softmax", "causal", "a window", "no reduction"])
def test_persistent_blocks(name, rows, tile, monkeypatch):
    """Three blocks of tiles of which there are more, of which a mask leaves each another number of steps, or none."""
    machine = replace(load("h200"), units=3)
    sizes = {"B": 2, "H": 2, "S": 130, "T": 72, "D": 32, "E": 32}
    own = ChainTile(*tile, 2, 168, 0, ping_pong=tile[0] > 64, persistent=True, row_stages=rows)
    result = check(PROGRAMS[name], sizes, own, monkeypatch, target=machine)
    assert result.emitted.kernels[0].grid == 3 and result.plan.kernels[0].blocks > 6


def test_printed_persistent_blocks(monkeypatch):
    text, sizes = program(" / 8 if j <= i - 40 else -inf"), {"B": 2, "H": 1, "S": 130, "T": 72, "D": 32, "E": 32}
    own = ChainTile(64, 32, 2, 168, 0, ping_pong=False, persistent=True)
    check(text, sizes, own, monkeypatch, printed=True, target=replace(load("h200"), units=2))


def test_persistent_blocks_are_refused(monkeypatch):
    text = program(" if j <= i and i - j < 900 else -inf")
    _, result = lowered(text, SIZES, (64, 32), monkeypatch)
    (kernel,) = result.plan.kernels
    for changes in ({"persistent_blocks": -1}, {"persistent_blocks": 4, "blocks_per_row": 2}):
        refusal = replace(kernel.options, **changes).refuse(kernel, kernel, load("h200"))
        assert refusal is not None and refusal.option == "persistent_blocks"


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_maxima_that_grow(kind, monkeypatch):
    """By less than sums may lag behind, by more, and from far below 0; rows of infinities and NaN."""
    text = f"""op f(q: {kind}[S, D], k: {kind}[T, D], v: {kind}[T, D]) -> (o: f32[S, D], l: f32[S]) {{
    s[i, j] = sum[d](q[i, d] * k[j, d])
    p[i, j] = softmax[j](s[i, j])
    o[i, d] = sum[j](p[i, j] * v[j, d]) using bf16
    l[i] = logsumexp[j](s[i, j])
}}"""
    sizes = {"S": 64, "T": 160, "D": 16}
    q, k, v = arrays_of(text, sizes)
    q[:], k[:] = 0, 0
    q[:, 0] = 1
    q[:, 1] = np.linspace(-1, 1, 64)
    k[:, 0] = np.repeat([-40, -38, -31, 20, 25], 32) + np.arange(160) % 7
    k[:, 1] = np.repeat([5, -3, 40, 2, 60], 32)
    check(text, sizes, (64, 32), monkeypatch, [q, k, v])
    k[150, 0], q[3, 0] = np.inf, -1
    check(text, sizes, (64, 32), monkeypatch, [q, k, v])


def test_batches_and_edges_of_every_dimension(monkeypatch):
    sizes = {"B": 2, "H": 1, "S": 65, "T": 33, "D": 72, "E": 136}
    check(PROGRAMS["softmax"], sizes, (64, 32), monkeypatch)


def test_heads_next_to_columns(monkeypatch):
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
    q, k, v = arrays_of(PROGRAMS["softmax"], SIZES)
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
    q, k, v = arrays_of(text, SIZES)
    q[0, 0, 5], k[0, 0, 9] = 12, 12
    check(text, SIZES, (64, 32), monkeypatch, [q, k, np.abs(v)])


@pytest.mark.parametrize(
    "left_out", ["running = 1", "running = 0", "nvgpu.mbarrier.try_wait.parity", "nvgpu.mbarrier.arrive %"]
)
def test_what_is_waited_for_is_needed(left_out, monkeypatch):
    """Every wait of the loop orders something: without one of them, there is a race, or someone waits for ever."""
    _, result = lowered(PROGRAMS["softmax"], SIZES | {"T": 100}, (64, 32), monkeypatch)
    lines = result.texts["map"].splitlines(keepends=True)
    (*_, last) = [n for n, line in enumerate(lines) if left_out in line and "func.func" not in line]
    inputs = arrays_of(PROGRAMS["softmax"], SIZES | {"T": 100})
    interpret("".join(lines), inputs)
    with pytest.raises(Fault, match=r"race|stuck|unwritten|may still run|wait"):
        interpret("".join(lines[:last] + lines[last + 1 :]), inputs)


# ---- refusals ----------------------------------------------------------------------------------------------


LARGE = {"B": 2, "H": 8, "S": 1024, "T": 1024, "D": 128, "E": 128}


@pytest.mark.parametrize(
    "text, sizes, target, reason",
    [
        (PROGRAMS["softmax"], LARGE | {"E": 512}, "h200", "room for 256 columns of the last contraction, not 512"),
        (PROGRAMS["softmax"].replace("bf16[", "f32["), LARGE | {"S": 256, "T": 256}, "h200", "the factors are f32"),
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
        sizes = LARGE | {"B": 32, "D": depth, "E": depth}
        (kernel,) = lowering.planned(Source("t.tile", PROGRAMS["causal"]), None, sizes, target).kernels
        assert isinstance(kernel.options, ContractionChain), depth
        assert (kernel.options.unit == "wgmma") == (target == "h200" and depth != 65)


def test_a_schedule_is_obeyed_or_refused(tmp_path, monkeypatch):
    from tilec.plan.schedule.write import read_schedule, write_schedule

    specialised = specialise(parse(Source("t.tile", PROGRAMS["causal"])), None, None, LARGE)
    path = tmp_path / "t.sched.toml"

    def planned(schedule=None):
        with mlir.context(), ir.Location.unknown():
            return lower(build(specialised), load("h200"), schedule=schedule)

    with monkeypatch.context() as patch:
        _, chosen = lowered(PROGRAMS["causal"], LARGE, (128, 128), patch)
    path.write_text(write_schedule(chosen.plan, specialised))
    first = planned(read_schedule(path))
    assert first.plan.kernels[0].options == chosen.plan.kernels[0].options
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
    narrow = text.replace("block = [128, 128]", "block = [64, 128]")
    for edited, old, new, why in (
        (text, "block = [128, 128]", "block = [100, 128]", "`block` must be 64, 128 or 192 rows"),
        (narrow, "warps = 8", "warps = 4", "`ping_pong` needs two warpgroups"),
        (text, "warps = 8", "warps = 4", "`warps` must be 8 for 128 rows by wgmma, not 4"),
        (text, 'unit = "wgmma"', 'unit = "fma"', "`unit` must be one of wgmma, mma.sync"),
        (text, "\nstages = 2", "\nweight_terms = 2", "`weight_terms` follows from the program, and must be 1"),
    ):
        path.write_text(edited.replace(old, new))
        with pytest.raises(CallError, match=why):
            planned(read_schedule(path))


# ---- compiled ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["causal", "in three parts"])
@pytest.mark.parametrize("depth", [pytest.param(64, marks=pytest.mark.slow), 128])
def test_compiled(name, depth):
    """No spills, no stack, no products that the assembler serialises."""
    sizes = {"B": 4, "H": 16, "S": 4096, "T": 4096, "D": depth, "E": depth}
    _, result = lowering.lowered(Source("t.tile", PROGRAMS[name]), None, sizes)
    ((kernel, cubin),) = compiled(result.emitted, "sm_90a")
    assert "wgmma.mma_async" in cubin.ptx and kernel.shared <= load("h200").sm.shared_per_block


@pytest.mark.slow
@pytest.mark.parametrize("target, chip", WITHOUT_WGMMA)
@pytest.mark.parametrize("name, depth", [("causal", 64), ("softmax", 128), ("in three parts", 128), ("softmax", 256)])
def test_warps_are_compiled(name, depth, target, chip, monkeypatch):
    """The tile that the planner chooses where there are no warpgroups, and parts of few rows: no spills, no stack."""
    machine = without_wgmma(target)
    for rows, parts in ((4096, 1), (1, 4)):
        sizes = {"B": 4, "H": 16, "S": rows, "T": 4096, "D": depth, "E": depth}

        def chosen(task, place, parts=parts):
            return [Choice(replace(c.tile, parts=parts), c.prediction) for c in choose_chain_tile(task, place)[:1]]

        monkeypatch.setattr("tilec.plan.cuda.chain.choose_chain_tile", chosen)
        _, result = lowered(PROGRAMS[name], sizes, None, monkeypatch, machine)
        assert result.plan.kernels[0].options.unit == "mma.sync"
        (first, cubin), *combining = compiled(result.emitted, chip)
        assert len(combining) == (parts > 1)
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
