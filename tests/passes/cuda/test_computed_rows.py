"""A computed factor whose lines of k are no whole boxes is stored in rows of its own dimension, where that is faster."""

from __future__ import annotations

import pytest
from tools.lowering import lowered, planned

from tilec.kernels.contraction import WarpgroupContraction

PROGRAM = """op f(g: bf16[B, T, O], s: f32[O], x: bf16[B, T, I]) -> (w: f32[O, I]) {
    y[b, t, o]: bf16 = bf16(g[b, t, o] * s[o])
    w[o, i] = sum[b, t](y[b, t, o] * x[b, t, i])
}"""


def text(batch, rows, out, inner):
    return (
        PROGRAM.replace("B, T, O", f"{batch}, {rows}, {out}").replace("[O]", f"[{out}]")
        .replace("B, T, I", f"{batch}, {rows}, {inner}").replace("O, I", f"{out}, {inner}")
    )  # fmt: skip


@pytest.mark.parametrize("rows", [257, 197, 65])
def test_rows_of_the_factors_own_dimension(rows):
    """The gradient of a weight behind a scale, over the positions of images."""
    plan = planned(text(64, rows, 768, 3072), "f")
    (pack,) = plan.packs
    assert pack.stored == "w.left" and pack.dims == (2, 3, 0) and not pack.extents, "rows of `o`"
    assert isinstance(plan.kernels[-1].options, WarpgroupContraction)


def test_another_length_of_rows_is_left():
    """770 elements of 16 bits are no multiple of 16 bytes."""
    assert not planned(text(64, 257, 770, 3072), "f").packs


def test_it_is_lowered():
    lowered(text(64, 257, 768, 3072), "f")
