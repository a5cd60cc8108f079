"""Contraction chains whose factors are not of 16 bits: run thread by thread by the interpreter, where races are faults, by the
emulator of printed kernels, and compiled. All within the program's error bounds, which `using tf32` widens."""

import pytest
from tools.attention_programs import PRODUCT, PROGRAMS, SCORES, SIZES
from tools.chains import WITHOUT_WGMMA, check, reasons, warps
from tools.cuda_kernels import compiled
from tools.lowering import lowered, planned
from tools.reduced_contractions import KEPT, PING_PONG, STEPS, TALL_WARPS, WARPS
from tools.reduced_contractions import PROGRAMS as REDUCED
from tools.reduced_contractions import SIZES as REDUCED_SIZES

from tilec.core.diagnostics import Source
from tilec.kernels import ContractionChain


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
        assert "all f32 that `using` allows to be rounded" in reasons(text, SIZES)


def test_planned_before_kernels_that_store_scores():
    """The plan's own choice, on a GPU whose `wgmma` cannot take the values as they lie."""
    sizes = {"B": 1, "H": 16, "S": 4096, "T": 4096, "D": 64, "E": 64}
    (kernel,) = planned(Source("t.tile", of_f32(PROGRAMS["causal"])), None, sizes).kernels
    assert isinstance(kernel.options, ContractionChain) and kernel.options.unit == "mma.sync"


@pytest.mark.slow
@pytest.mark.parametrize("target, chip", WITHOUT_WGMMA)
@pytest.mark.parametrize("depth", [64, 128])
def test_compiled_in_tf32(depth, target, chip):
    """No spills, no stack."""
    sizes = {"B": 4, "H": 16, "S": 4096, "T": 4096, "D": depth, "E": depth}
    _, result = lowered(Source("t.tile", of_f32(PROGRAMS["causal"])), None, sizes, target=target)
    ((_, cubin),) = compiled(result.emitted, chip)
    assert "f32.tf32.tf32.f32" in cubin.ptx
