"""Products of matrices whose sizes vary: kernels that are made once, at every boundary of their tiles."""

from dataclasses import replace

import pytest
from tools.contractions import BATCHED, LINEAR, MATMUL, NT
from tools.cuda_kernels import compiled
from tools.varying_kernels import lowered_for, wrong_kernels

from tilec.core.varying import Varies
from tilec.plan.cuda import contraction

BF16, F32 = {"t": "bf16", "o": "bf16"}, {"t": "f32", "o": "f32"}


def made(text, varies, block, monkeypatch, sizes, **changes):
    """A product's kernels of (instruction, rows, columns), with these options."""

    def only(built):
        return (built.instruction, *built.block[:2]) == block and getattr(built, "cluster", (1, 1)) == (1, 1)

    def schedule(plan):
        *others, kernel = plan.kernels
        return replace(plan, kernels=(*others, replace(kernel, options=replace(kernel.options, **changes))))

    monkeypatch.setattr(contraction, "_is_buildable", only)
    found = lowered_for(text, varies, schedule=schedule, **sizes)
    assert (options := found.plan.kernels[-1].options).instruction == block[0] and options.block[:2] == block[1:]
    return found


def check(text, varies, block, several, monkeypatch, sizes, **changes):
    found = made(text, varies, block, monkeypatch, sizes, **changes)
    ((name, _),) = varies.items()
    assert not wrong_kernels(text, found, [{name: n} for n in several], **sizes)
    return found


@pytest.mark.parametrize(
    ("changes", "several"),
    [
        ({}, (2, 64, 65)), ({"persistent_blocks": 2}, (63, 130)), ({"cluster": (1, 2), "persistent_blocks": 2}, (129,)),
    ],
)  # fmt: skip
def test_rows_by_warpgroups(changes, several, monkeypatch):
    """At the last row of a tile, before and behind it; with fewer blocks than tiles, and with clusters along columns."""
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


IMAGES = """op conv(x: bf16[N, H, W, C], f: bf16[K, R, S, C]) -> (y: bf16[N, H, W, K]) {
 y[n, h, w, k] = sum[r, s, c](pad(x[n, h + r - R // 2, w + s - S // 2, c], 0) * f[k, r, s, c])
}
"""


@pytest.mark.parametrize(
    ("text", "ends", "block", "several"),
    [
        (LINEAR, (64, 200, 8), ("wgmma", 64, 64), (64, 72, 192)), (NT, (17, 200), ("wgmma", 64, 64), (17, 65)),
        (NT, (17, 100), ("mma.sync", 32, 32), (33,)), (MATMUL, (65, 200), ("wgmma", 64, 64), (65, 128)),
    ],
)  # fmt: skip
def test_columns(text, ends, block, several, monkeypatch):
    """Results leave by TMA where lines begin at multiples of 16 bytes; factors whose lines do not are stored in longer ones."""
    found = check(text.format(**BF16), {"N": ends}, block, several, monkeypatch, {"M": 33, "K": 64})
    if text == MATMUL:
        assert found.emitted.kernels[-1].maps[-1].shape == (64, "64 * ((N + 63) // 64)")


@pytest.mark.parametrize(
    ("text", "kinds", "ends", "block", "several"),
    [
        (NT, BF16, (8, 200, 8), ("wgmma", 64, 64), (8, 64, 72, 200)), (MATMUL, BF16, (8, 304, 8), ("wgmma", 64, 64), (264,)),
        (NT, BF16, (8, 200, 8), ("mma.sync", 32, 32), (8, 40)), (NT, BF16, (17, 200), ("wgmma", 64, 64), (17, 65)),
        (NT, F32, (1, 200), ("fma", 32, 64), (1, 17)),
    ],
)  # fmt: skip
def test_sums(text, kinds, ends, block, several, monkeypatch):
    """Of fewer steps than stages, of one, and of a last one that is not full."""
    check(text.format(**kinds), {"K": ends}, block, several, monkeypatch, {"M": 33, "N": 32})


def test_sums_in_parts():
    """A view of the left factor, with k in two dimensions, has as many rows as the size asks for."""
    sizes = {"N": 64, "K": 512}
    found = lowered_for(MATMUL.format(**F32), {"M": (17, 128)}, **sizes)
    assert len(found.emitted.kernels) == 2
    assert not wrong_kernels(MATMUL.format(**F32), found, [{"M": 17}], **sizes)


@pytest.mark.parametrize(("size", "ends", "several"), [("N", (2, 9), (2, 5)), ("H", (4, 40), (4, 9)), ("W", (4, 40), (7,))])
def test_images(size, ends, several, monkeypatch):
    """Tiles of a window are boxes at every size: the tensor's extents alone say what is outside."""
    sizes = {"N": 2, "H": 6, "W": 8, "C": 64, "K": 64, "R": 3, "S": 3}
    check(IMAGES, {size: ends}, ("wgmma", 64, 64), several, monkeypatch, {n: v for n, v in sizes.items() if n != size})


@pytest.mark.parametrize("block", [("wgmma", 64, 64), ("mma.sync", 32, 32)])
def test_lines_that_are_aligned_at_the_typical_size_alone_are_refused(block, monkeypatch):
    text = NT.format(**BF16).replace("[M, K]", "[M, K + 7]").replace("[N, K]", "[N, K + 7]")
    text = text.replace(") -> (c", ", z: bf16[K]) -> (c").replace("b[n, k])", "b[n, k]) + z[0]")
    with pytest.raises(Varies, match="lines of"):
        made(text, {"K": (9, 250)}, block, monkeypatch, {"M": 32, "N": 32})


def test_tiles_have_what_blocks_hold():
    """All rows of the typical size are fewer than those of the class, of which a block holds no more than it has sums for."""
    for ends in ((2, 16), (17, 128), (129, 512)):
        kernel = lowered_for(LINEAR.format(**BF16), {"M": ends}, N=4096, K=4096).plan.kernels[-1]
        assert kernel.tile[0] <= kernel.options.block[0]
        assert getattr(kernel.options, "stream_k", 0) == 0 and getattr(kernel.options, "cluster", (1, 1))[0] == 1


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
