"""Products of matrices whose sizes vary: kernels that are made once, at every boundary of their tiles."""

from dataclasses import replace

import pytest
from tools.contractions import BATCHED, LINEAR, MATMUL, NT
from tools.cuda_kernels import compiled
from tools.varying_kernels import lowered_for, wrong_kernels

from tilec.plan.cuda import contraction

BF16, F32 = {"t": "bf16", "o": "bf16"}, {"t": "f32", "o": "f32"}


def made(text, varies, block, monkeypatch, sizes, **changes):
    """A product's kernels of (instruction, rows, columns), with these options."""

    def only(built):
        return (built.instruction, *built.block[:2]) == block and getattr(built, "cluster", (1, 1)) == (1, 1)

    def schedule(plan):
        (kernel,) = plan.kernels
        return replace(plan, kernels=(replace(kernel, options=replace(kernel.options, **changes)),))

    monkeypatch.setattr(contraction, "_is_buildable", only)
    found = lowered_for(text, varies, schedule=schedule, **sizes)
    assert (options := found.plan.kernels[-1].options).instruction == block[0] and options.block[:2] == block[1:]
    return found


def check(text, varies, block, several, monkeypatch, sizes, **changes):
    found = made(text, varies, block, monkeypatch, sizes, **changes)
    ((name, _),) = varies.items()
    assert not wrong_kernels(text, found, [{name: n} for n in several], interpreted=False, **sizes)
    return found


@pytest.mark.parametrize(
    ("changes", "several"),
    [
        ({}, (2, 64, 65)), ({"persistent_blocks": 2}, (63, 130)), ({"cluster": (2, 1), "persistent_blocks": 4}, (64, 129)),
        ({"cluster": (2, 2), "persistent_blocks": 4}, (65,)), ({"cluster": (1, 2), "persistent_blocks": 2}, (129,)),
    ],
)  # fmt: skip
def test_rows_by_warpgroups(changes, several, monkeypatch):
    """At the last row of a tile, before and behind it; with fewer blocks than tiles, and clusters of which some have no tile."""
    text = LINEAR.format(**BF16)
    found = check(text, {"M": (2, 200)}, ("wgmma", 64, 64), several, monkeypatch, {"N": 128, "K": 72}, **changes)
    (kernel,) = found.emitted.kernels
    assert {m.shape[0] for m in kernel.maps} <= {"M", 72} and kernel.sizes == 1


def test_rows_of_alternate_tiles(monkeypatch):
    text, changes = LINEAR.format(**BF16), {"alternate_tiles": True, "persistent_blocks": 2}
    check(text, {"M": (17, 300)}, ("wgmma", 128, 64), (17, 129, 300), monkeypatch, {"N": 64, "K": 64}, **changes)


@pytest.mark.slow
@pytest.mark.parametrize(("kinds", "block"), [(BF16, ("mma.sync", 32, 32)), (F32, ("fma", 32, 64))])
def test_rows_by_warps(kinds, block, monkeypatch):
    check(LINEAR.format(**kinds), {"M": (2, 100)}, block, (31, 32, 33), monkeypatch, {"N": 40, "K": 24})


@pytest.mark.parametrize("block", [("wgmma", 64, 64), ("mma.sync", 32, 32)])
def test_batches(block, monkeypatch):
    changes = {"persistent_blocks": 3} if block[0] == "wgmma" else {}
    check(BATCHED.format(**BF16), {"B": (2, 9)}, block, (2, 5), monkeypatch, {"M": 64, "N": 32, "K": 64}, **changes)


def test_tiles_have_what_blocks_hold():
    """All rows of the typical size are fewer than those of the class, of which a block holds no more than it has sums for."""
    for ends in ((2, 16), (17, 128), (129, 512)):
        kernel = lowered_for(LINEAR.format(**BF16), {"M": ends}, N=4096, K=4096).plan.kernels[-1]
        assert kernel.tile[0] <= kernel.options.block[0]
        assert getattr(kernel.options, "stream_k", 0) == 0


def test_divisions_are_of_32_bits():
    """Numbers of tiles are proved to fit from the range of the size."""
    found = lowered_for(NT.format(**BF16), {"M": (513, 2048)}, N=4096, K=512)
    (kernel,) = found.emitted.kernels
    divisions = [line for line in kernel.text.splitlines() if "block // " in line or "tile // " in line]
    assert not [line for line in divisions if "within_u31(tile)" not in line], divisions


@pytest.mark.slow
def test_registers(monkeypatch):
    found = made(MATMUL.format(**BF16), {"M": (2049, 16384)}, ("wgmma", 128, 256), monkeypatch, {"N": 4096, "K": 4096})
    for _, cubin in compiled(found.emitted, "sm_90a"):
        assert not cubin.spills
