"""Contractions for CUDA whose result is only reduced along its columns: planned, mapped and printed, run by the interpreter and
by an emulator, compiled. All within the program's error bounds."""

from dataclasses import replace

import numpy as np
import pytest
from tools.chains import WITHOUT_WGMMA, chains_pay, check, lowered, without_wgmma
from tools.contractions import arrays_of, emulated
from tools.cuda_kernels import compiled
from tools.lowering import lowered as lower_text
from tools.lowering import planned
from tools.reduced_contractions import (
    KEPT,
    PING_PONG,
    PROGRAMS,
    SHARED,
    SIZES,
    STEPS,
    TALL_WARPS,
    WARPS,
    program,
)

from tilec.core.diagnostics import CallError, Source
from tilec.core.targets import load
from tilec.cost.chain import ChainTile
from tilec.kernels import ContractionChain
from tilec.semantics.interpreter import interpret


@pytest.mark.crossed
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("tile", [KEPT, STEPS, WARPS, TALL_WARPS])
def test_programs(name, tile, monkeypatch):
    check(PROGRAMS[name], SIZES, tile, monkeypatch)


@pytest.mark.parametrize("inner, unit", [(16, "mma.sync"), (80, "mma.sync"), (128, "wgmma")])
def test_rows_that_go_on_behind_what_is_summed(inner, unit, monkeypatch):
    """Steps of warpgroups have 64 elements: what followed in both factors was multiplied, too."""
    text = PROGRAMS["log of sums"].replace("D]", "D + 8]").replace("\n z", " where d in 0:D\n z")
    result = check(text, SIZES | {"D": inner}, None, monkeypatch)
    assert result.plan.kernels[0].options.unit == unit


@pytest.mark.parametrize("name", ["log of sums", "least distance"])
@pytest.mark.parametrize("tile", [PING_PONG, SHARED])
def test_two_warpgroups(name, tile, monkeypatch):
    sizes = {"M": 130, "N": 100, "D": 136}
    check(PROGRAMS[name], sizes, tile, monkeypatch)


@pytest.mark.crossed
@pytest.mark.parametrize("name", ["log of sums", "top 1", "causal"])
@pytest.mark.parametrize("length", [8, 32, 64, 96, 136])
def test_any_number_of_tiles(name, length, monkeypatch):
    """The last of which may be cut."""
    check(PROGRAMS[name], {"M": 130, "N": length, "D": 72}, PING_PONG if length > 8 else KEPT, monkeypatch)
    check(PROGRAMS[name], {"M": 70, "N": length, "D": 72}, WARPS, monkeypatch)


@pytest.mark.crossed
@pytest.mark.parametrize("name", ["log of sums", "least distance", "statistics of softmax", "causal", "norms of rows"])
@pytest.mark.parametrize("parts", [pytest.param(2, marks=pytest.mark.slow), 3, 7])
@pytest.mark.parametrize("one", [KEPT, replace(TALL_WARPS, bn=32)])
def test_blocks_share_rows(one, name, parts, monkeypatch):
    """Parts of different lengths, of which some may be empty, are combined by a second kernel."""
    tile = replace(one, parts=parts)
    result = check(PROGRAMS[name], {"M": 66, "N": 136, "D": 72}, tile, monkeypatch)
    assert result.emitted.kernels[0].grid == 2 * parts


def test_parts_of_nothing(monkeypatch):
    """Parts of which a mask leaves nothing add nothing; a row without anything is one of nothing."""
    tile = replace(KEPT, parts=4)
    for mask in ("j < i - 3", "j > i + 60", "j < i and j > 40"):
        text = program(f" z[i] = logsumexp[j](s[i, j] - 300 if {mask} else -inf)")
        check(text, {"M": 66, "N": 136, "D": 72}, tile, monkeypatch)


@pytest.mark.some(2)
@pytest.mark.parametrize("tile", [KEPT, PING_PONG, SHARED, replace(PING_PONG, parts=2), WARPS, replace(TALL_WARPS, parts=2)])
def test_printed(tile, monkeypatch):
    sizes = {"M": 130 if tile.bm == 128 else 66, "N": 72, "D": 72}
    check(PROGRAMS["log of sums"], sizes, tile, monkeypatch, printed=True)


@pytest.mark.crossed
@pytest.mark.parametrize("tile", [SHARED, ChainTile(128, 64, 3, 168, 0, True, False), TALL_WARPS])
@pytest.mark.parametrize("left, right", [("i, d", "d, j"), ("d, i", "j, d"), ("d, i", "d, j")])
def test_factors_lie_either_way(left, right, tile, monkeypatch):
    """A factor is contiguous along the index that is summed over, or along its own."""
    if tile.kept_left and left == "d, i":
        tile = ChainTile(128, 64, 2, 168, 0, False, False)  # such a factor does not stay in shared memory
    shapes = {"i": "M", "j": "N", "d": "D"}
    text = PROGRAMS["log of sums"].replace("x[i, d]", f"x[{left}]").replace("y[j, d]", f"y[{right}]")
    for name, old, new in (("x", "M, D", left), ("y", "N, D", right)):
        text = text.replace(f"{name}: bf16[{old}]", f"{name}: bf16[{', '.join(shapes[i] for i in new.split(', '))}]")
    check(text, {"M": 136, "N": 72, "D": 136}, tile, monkeypatch)


def test_batches(monkeypatch):
    """Heads of attention: the logarithm of the sum of its weights, in the layout that a model's activations have."""
    text = """op f(q: bf16[B, S, H, D], k: bf16[B, T, H, D]) -> (z: f32[B, H, S]) {
    s[b, h, i, j] = sum[d](q[b, i, h, d] * k[b, j, h, d]) / sqrt(f32(D))
    z[b, h, i] = logsumexp[j](s[b, h, i, j])
}"""
    check(text, {"B": 2, "S": 40, "T": 33, "H": 2, "D": 64}, KEPT, monkeypatch)


def test_rows_without_anything(monkeypatch):
    """Rows of which a mask leaves nothing have the logarithm -inf, and tiles of nothing before others leave no trace."""
    text = program(" z[i] = logsumexp[j](s[i, j] if j < i - 3 else -inf)")
    check(text, SIZES | {"M": 90}, KEPT, monkeypatch)
    late = program(" z[i] = logsumexp[j](s[i, j] - 300 if (i * j) % 3 < 2 and j < 20 else -inf)")
    check(late, SIZES, KEPT, monkeypatch)


@pytest.mark.parametrize("parts", [1, 3])
def test_infinities_and_nans(parts, monkeypatch):
    tile = replace(KEPT, parts=parts)
    for name in ("maximum", "log of sums", "least distance"):
        x, y, *others = arrays_of(PROGRAMS[name], SIZES)
        x[3, 5], x[7], y[11, 2], y[50, 3] = np.inf, np.nan, -np.inf, np.inf
        check(PROGRAMS[name], SIZES, tile, monkeypatch, [x, y, *others])


@pytest.mark.parametrize(
    "tile, printed",
    [
        (KEPT, False), (SHARED, False), (replace(PING_PONG, parts=3), False), (replace(KEPT, parts=5), False), (KEPT, True),
        (WARPS, False), (replace(TALL_WARPS, parts=3), True),
    ],
)
def test_positions_of_extremes(tile, printed, monkeypatch):
    """The first of equal elements, of NaNs before all numbers, and of nothing but infinities, in whatever tile and part it is."""
    sizes = {"M": 66, "N": 136, "D": 16}
    x, y = arrays_of(PROGRAMS["top 1"], sizes)
    rng = np.random.default_rng(3)
    x[:], y[:] = rng.integers(-1, 2, x.shape), rng.integers(-1, 2, y.shape)
    x[5:20] = 0
    x[:, :2], y[:, :2], y[[40, 90], 1] = 0, 1, -1
    x[3, :2] = np.inf  # one row of infinities, with two NaNs
    specialised, result = lowered(PROGRAMS["top 1"], sizes, tile, monkeypatch)

    def run():
        if printed:
            return emulated(specialised, result, [x, y])
        return list(interpret(result.texts["map"], [x, y]).values())

    with np.errstate(invalid="ignore"):
        scores = x.astype(np.float32) @ y.astype(np.float32).T
    first, largest = run()
    assert first[3] == 40
    assert np.array_equal(first, scores.argmax(1)) and np.array_equal(largest, scores.max(1), equal_nan=True)
    x[:], x[:, 0], y[:, 0] = 0, 1, -np.inf
    first, largest = run()
    assert not first.any() and (largest == -np.inf).all()


BODIES = (
    "max[j]({s})", "min[j]({s})", "logsumexp[j]({s})", "sum[j]({s})", "sum[j](exp({s} - 3))", "sqrt(sum[j]({s} ** 2))",
    "f32(argmax[j]({s}))", "f32(argmin[j]({s}))", "sum[j](exp({s} - m[i]) * {s})", "sum[j]({s} if j == c[i] else 0)",
)  # fmt: skip
SCALED = ("s[i, j]", "s[i, j] / 8", "s[i, j] * 0.3 + b[j]", "b[j] - 2 * s[i, j]", "(s[i, j] if j <= i + 9 else -inf)")


def drawn(seed: int):
    """A program of one to three results, sizes around the edges of tiles, and a tile."""
    rng = np.random.default_rng(seed)
    pick = lambda *options: options[rng.integers(len(options))]  # noqa: E731
    s, count = f"({pick(*SCALED)})", pick(1, 2, 3)
    bodies = [pick(*BODIES) for _ in range(count)]
    lines = [f" m[i] = max[j]({s})"] if any("m[i]" in b for b in bodies) else []
    lines += [f" z{n}[i] = {b.format(s=s)}" for n, b in enumerate(bodies)]
    results = ", ".join(f"z{n}: f32[M]" for n in range(count))
    text = program("\n".join(lines), results, ", b: f32[N], c: i32[M]")
    bm, bn, kept = pick(64, 128), pick(32, 64, 96), bool(rng.integers(2))
    sizes = {"M": pick(bm - 1, bm, bm + 2), "N": pick(bn - 8, bn, bn + 8, 3 * bn - 8), "D": pick(8, 64, 72, 136)}
    if rng.integers(3) == 0:
        tile = pick(WARPS, TALL_WARPS, replace(TALL_WARPS, kept_left=True), replace(WARPS, bm=64, bn=96))
        return text, sizes | {"D": pick(8, 33, 72, 136)}, replace(tile, parts=pick(1, 2, 5))
    steps = -(-sizes["D"] // 64)
    pong = kept and bm == 128 and bool(rng.integers(2))
    return text, sizes, ChainTile(bm, bn, steps + 1 if pong else pick(2, 3), 168, 0, kept, pong, pick(1, 1, 2, 3, 5))


@pytest.mark.some(3)
@pytest.mark.parametrize("seed", range(12))
def test_drawn(seed, monkeypatch):
    text, sizes, tile = drawn(seed)
    check(text, sizes, tile, monkeypatch)


@pytest.mark.parametrize(
    "text, sizes, reason",
    [
        (program(" r[i, j] = s[i, j]\n z[i] = max[j](s[i, j])", "z: f32[M], r: f32[M, N]"), SIZES, ""),
        (PROGRAMS["maximum"].replace("bf16", "f32"), SIZES, "the factors are f32, where both of a product must be bf16"),
        (program(" z[i] = prod[j](s[i, j])"), SIZES, "z is not a sum, maximum or minimum of f32"),
        (program(" z[j] = max[i](s[i, j])", "z: f32[N]"), SIZES, ""),
    ],
)
def test_refused(text, sizes, reason, monkeypatch):
    chains_pay(monkeypatch)
    plan = planned(Source("t.tile", text), None, sizes)
    remarks = "\n".join(map(str, plan.remarks))
    assert reason in remarks, remarks
    if reason:
        assert not any(isinstance(k.options, ContractionChain) for k in plan.kernels)


LARGE = {"M": 32768, "N": 8192, "D": 128}


def test_the_model_prefers_one_kernel():
    """Reductions read a result of 1 GB that is never stored."""
    (kernel,) = planned(Source("t.tile", PROGRAMS["log of sums"]), None, LARGE).kernels
    assert isinstance(kernel.options, ContractionChain) and kernel.options.ping_pong


@pytest.mark.parametrize("target, sizes", [("a100", LARGE), ("rtx4090", LARGE), ("h200", LARGE | {"D": 129})])
def test_warps_multiply_where_warpgroups_cannot(target, sizes):
    """Without wgmma, and where TMA cannot copy rows."""
    (kernel,) = planned(Source("t.tile", PROGRAMS["log of sums"]), None, sizes, target).kernels
    assert isinstance(kernel.options, ContractionChain) and kernel.options.unit == "mma.sync"


def test_a_schedule_is_obeyed_or_refused(tmp_path, monkeypatch):
    from tilec.plan.schedule.write import read_schedule, write_schedule

    def planned(schedule=None):
        return lower_text(Source("t.tile", PROGRAMS["log of sums"]), None, LARGE, target="h200", schedule=schedule)

    with monkeypatch.context() as patch:
        specialised, chosen = lowered(PROGRAMS["log of sums"], LARGE, ChainTile(128, 128, 4, 168, 0, True, True), patch)
    path = tmp_path / "t.sched.toml"
    path.write_text(write_schedule(chosen.plan, specialised))
    first = planned(read_schedule(path))[1]
    assert first.plan.kernels[0].options == chosen.plan.kernels[0].options
    text = write_schedule(first.plan, specialised)
    path.write_text(text)
    assert planned(read_schedule(path))[1].plan.kernels == first.plan.kernels
    options = first.plan.kernels[0].options
    path.write_text(text.replace("block = [128, 128]", "block = [128, 64]"))
    edited = planned(read_schedule(path))[1]
    assert edited.plan.kernels[0].options.block == (128, 64)
    for old, new, why in (
        ("blocks_per_row = 1", "blocks_per_row = 0", "`blocks_per_row` must be from 1 to 256"),
        ("kept_left = true", "kept_left = false", "`ping_pong` needs the left factor in shared memory"),
        (f"stages = {options.stages}", "stages = 2", "`ping_pong` needs more `stages` than the 2 steps of a tile"),
    ):
        path.write_text(text.replace(old, new))
        with pytest.raises(CallError, match=why):
            planned(read_schedule(path))


@pytest.mark.parametrize(
    "sizes, tile",
    [
        (LARGE, None),
        ({"M": 16384, "N": 50257, "D": 4096}, ChainTile(128, 256, 4, 168, 196608, False, False)),
        (LARGE, ChainTile(128, 256, 5, 168, 200000, True, False)),
        ({"M": 128, "N": 50256, "D": 128}, ChainTile(128, 256, 5, 168, 200000, True, True, 8)),
    ],
)
def test_compiled(sizes, tile, monkeypatch):
    """No spills, no stack, no products that the assembler serialises."""
    _, result = lowered(PROGRAMS["log of sums"], sizes, tile, monkeypatch)
    (kernel, cubin), *combining = compiled(result.emitted, "sm_90a")
    assert "wgmma.mma_async" in cubin.ptx and kernel.shared <= load("h200").sm.shared_per_block
    assert len(combining) == (tile is not None and tile.parts > 1)


@pytest.mark.slow
@pytest.mark.parametrize("target, chip", WITHOUT_WGMMA)
@pytest.mark.parametrize("name, depth", [("log of sums", 128), ("log of sums", 1024), ("top 1", 256), ("least distance", 129)])
def test_warps_are_compiled(name, depth, target, chip, monkeypatch):
    """The tile that the planner chooses where there are no warpgroups: no spills, no stack."""
    machine = without_wgmma(target)
    _, result = lowered(PROGRAMS[name], LARGE | {"D": depth}, None, monkeypatch, machine)
    options = result.plan.kernels[0].options
    (kernel, cubin), *combining = compiled(result.emitted, chip)
    assert options.unit == "mma.sync" and len(combining) == (options.blocks_per_row > 1)
    assert "mma.sync" in cubin.ptx and kernel.shared <= machine.sm.shared_per_block
