"""Tensors that are read or written at flat addresses have fewer dimensions in the IR, inputs of batches of rows have more."""

import re
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from conftest import as_list
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.varying import built, varying, wrong_sizes

import tilec

LINEAR = """op f(x: f32[4, 6, 5], w: f32[5, 7], r: f32[4, 6, 7]) -> (y: f32[4, 6, 7], z: f32[4, 6]) {
    t[m, n] = sum[k](x[m // 6, m % 6, k] * w[k, n]) where m in 0:24
    y[b, s, n] = max(t[b * 6 + s, n], 0) + r[b, s, n]
    z[b, s] = max[n](y[b, s, n])
}"""
PROGRAMS = {  # text: shapes of inputs and results in the IR
    "op f(x: f32[6, 4]) -> (y: f32[24]) { y[p] = x[p // 4, p % 4] where p in 0:24 }": ["24", "24"],
    "op f(x: f32[6, 4]) -> (y: f32[6, 4]) { t[p] = x[p // 4, p % 4] where p in 0:24\n y[i, j] = t[i * 4 + j] }": ["24", "24"],
    "op f(x: f32[6, 4]) -> (y: f32[24]) { y[p] = x[p // (9 // 2), p % (9 // 2)] where p in 0:24 }": ["24", "24"],
    "op f(x: f32[6, 4]) -> (y: f32[24]) { y[p] = x[-p // -4, p - p // 4 * 4] where p in 0:24 }": ["24", "24"],
    "op f(x: f32[2, 3, 4]) -> (y: f32[24]) { y[p] = x[p // 12, p // 4 % 3, p & 3] where p in 0:24 }": ["24", "24"],
    "op f(x: f32[8, 6]) -> (y: f32[4, 12]) { y[i, j] = x[(i * 12 + j) // 6, (i * 12 + j) % 6] }": ["48", "48"],
    "op f(x: f32[10, 6]) -> (y: f32[5, 4]) { y[i, j] = x[(i * 8 + j * 2 + 1) // 6, (i * 8 + j * 2 + 1) % 6] }": ["60", "5x4"],
    "op f(x: f32[6, 4]) -> (y: f32[24]) { y[p] = x[p // 4 - 1, p % 4] if p >= 4 else 0 where p in 0:24 }": ["24", "24"],
    "op f(x: f32[6, 4]) -> (y: f32[23]) { y[p] = x[(p + 1) // 4, (p + 1) % 4] where p in 0:23 }": ["24", "23"],
    "op f(x: f32[6, 4]) -> (y: f32[30]) { y[p] = x[p // 4, p % 4] if p < 24 else 0 where p in 0:30 }": ["24", "30"],
    "op f(x: f32[6, 4]) -> (y: f32[3, 10]) { y[i, j] = x[(i * 10 + j) // 4, (i * 10 + j) % 4] if i * 10 + j < 24 else 0 }": [
        "24", "3x10",
    ],
    LINEAR: ["24x5", "5x7", "24x7", "24x7", "24"],
    "op f(x: f32[6, 4, 1, 1]) -> (y: f32[6, 4]) { y[i, j] = x[i, j, 0, 0] * 2 }": ["6x4", "6x4"],
    "op f(x: f32[1, 6, 1, 4]) -> (y: f32[6]) { y[i] = sum[j](x[0, i, 0, j]) }": ["6x4", "6"],
    # rows of an input that are read batch by batch
    "op f(x: f32[24, 5]) -> (y: f32[6, 5]) { y[i, d] = sum[j in 0:4](x[i * 4 + j, d]) }": ["6x4x5", "6x5"],
    "op f(x: f32[24, 5]) -> (y: f32[6, 4, 5]) { y[i, j, d] = x[i * 4 + j, d] * x[i * 4 + 3 - j, d] * f32(j) }": ["6x4x5", "6x4x5"],
    # others stay as they are
    "op f(x: f32[24, 5]) -> (y: f32[5, 5]) { y[i, d] = sum[j in 0:6](x[i * 4 + j, d]) where i in 0:5 }": ["24x5", "5x5"],
    "op f(x: f32[24, 5]) -> (y: f32[6, 5], z: f32[24]) { y[i, d] = sum[j in 0:4](x[i * 4 + j, d])\n z[m] = sum[d](x[m, d]) }": [
        "24x5", "6x5", "24",
    ],
    "op f(x: f32[22, 5]) -> (y: f32[5, 5]) { y[i, d] = sum[j in 0:4](x[i * 4 + j, d]) where i in 0:5 }": ["22x5", "5x5"],
    "op f(x: f32[6, 4]) -> (y: f32[24], s: f32[6]) { y[p] = x[p // 4, p % 4] where p in 0:24\n s[i] = sum[j](x[i, j]) }": [
        "6x4", "24", "6",
    ],
    "op f(x: f32[6, 4]) -> (y: f32[24]) { y[p] = pad(x[p // 4 - 1, p % 4], 0) where p in 0:24 }": ["6x4", "24"],
    "op f(x: f32[24]) -> (y: f32[6, 4]) { y[i, j] = x[i * 4 + j] * f32(j) }": ["24", "6x4"],
    "op f(x: f32[24]) -> (y: f32[6, 4]) { y[i, j] = cumsum[j](x[i * 4 + j]) }": ["24", "6x4"],
    "op f(x: f32[6, 4], p: i64[9]) -> (y: f32[9]) { y[n] = x[p[n] // 4, p[n] % 4] }": ["6x4", "9", "9"],
    "op f(x: f32[2, 3, 4, 5]) -> (y: f32[2, 4, 15]) { y[b, s, e] = x[b, e // 5, s, e % 5] }": ["2x3x4x5", "2x4x15"],
    "op f(x: f32[6, 4]) -> (y: f32[4, 6]) { y[i, j] = x[j, i] }": ["6x4", "4x6"],
}  # fmt: skip


VARYING = {  # text, what varies: shapes of inputs and results in the IR
    "op f(x: f32[M, 4]) -> (y: f32[M * 4]) { y[p] = x[p // 4, p % 4] }": (["4 * M"], ["4 * M"]),
    "op f(x: f32[6, N]) -> (y: f32[6, N]) { t[p] = x[p // N, p % N] where p in 0:6 * N\n y[i, j] = t[i * N + j] }": (
        ["6 * N"], ["6 * N"],
    ),
    "op f(x: f32[M, 6, 5], w: f32[5, 7], r: f32[M, 6, 7]) -> (y: f32[M, 6, 7]) {"
    " t[m, n] = sum[k](x[m // 6, m % 6, k] * w[k, n]) where m in 0:M * 6\n y[b, s, n] = t[b * 6 + s, n] + r[b, s, n] }": (
        ["6 * M, 5", "5, 7", "6 * M, 7"], ["6 * M, 7"],
    ),
    # inputs that alone determine a size keep their dimensions
    "op f(x: f32[M, N, 5], w: f32[5, 7], r: f32[M, N, 7]) -> (y: f32[M, N, 7]) {"
    " t[m, n] = sum[k](x[m // N, m % N, k] * w[k, n]) where m in 0:M * N\n y[b, s, n] = t[b * N + s, n] + r[b, s, n] }": (
        ["M, N, 5", "5, 7", "M * N, 7"], ["M * N, 7"],
    ),
    # rows of an input that are read batch by batch
    "op f(x: f32[4 * M, 5]) -> (y: f32[M, 5]) { y[i, d] = sum[j in 0:4](x[i * 4 + j, d]) }": (["M, 4, 5"], ["M, 5"]),
    # others stay as they are
    "op f(x: f32[M, N]) -> (y: f32[N, M]) { y[i, j] = x[j, i] }": (["M, N"], ["N, M"]),
    "op f(x: f32[M, 4], p: i64[9]) -> (y: f32[9]) { y[n] = x[p[n] // 4, p[n] % 4] }": (["M, 4", "9"], ["9"]),
}  # fmt: skip


@pytest.mark.parametrize("text", VARYING)
def test_shapes_that_vary(text):
    varies = {name: (1, 3) for name in "MN" if re.search(rf"\b{name}\b", text)}
    program = built(varying(text, varies))
    found = []
    for described in re.search(r"func.func @f\((.*)", program)[1].partition(") attributes")[0].split(") -> ("):
        types = re.findall(r"tensor<([^>]*)x[if]\d+> \{(?:tilec.extents = \[([^]]*)\])?", described)
        found.append([words.replace('"', "") or shape.replace("x", ", ") for shape, words in types])
    assert tuple(found) == VARYING[text]
    assert wrong_sizes(text, varies) == []


def shapes(ir: str) -> list[str]:
    signature = re.search(r"func.func @\w+\((.*)\{", ir)[1]
    return [m[1] for m in re.finditer(r"tensor<((?:\d+x?)*?)x[if]\d+>", signature)]


def inputs(text: str, rng) -> list[np.ndarray]:
    made = []
    for dtype, sizes in re.findall(r"\w+: (f32|i64)\[([\d, ]*)\]", text.partition("->")[0]):
        shape = [int(size) for size in sizes.split(",")]
        made.append(rng.integers(0, 24, shape) if dtype == "i64" else rng.integers(-8, 8, shape).astype(np.float32))
    return made


@pytest.mark.parametrize(("text", "want"), PROGRAMS.items())
def test_dimensions_that_are_one_address(text, want, rng):
    op, x = tilec.compile(text, target="cpu"), inputs(text, rng)
    results = [
        op(*x),
        *(tilec.interpret(text, stage, *x, target=t) for stage, t in (("build", "cpu"), ("map", "sm_90a"))),
    ]
    assert shapes(op.stages["build"]) == want
    reference = as_list(tilec.reference(text)(*x))
    for found in results:
        for one, other in zip(as_list(found), reference, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_linear_layer_between_views_is_one_product():
    """On three dimensions it is what it is on two: loaded by TMA, with what follows in its epilogue."""
    text = """op f(x: bf16[8, 512, 1024], w: bf16[1024, 1024], c: bf16[1024]) -> (y: bf16[8, 512, 1024]) {
        t[m, n] = sum[k](x[m // 512, m % 512, k] * w[k, n]) where m in 0:4096
        y[b, s, n] = silu(t[b * 512 + s, n] + c[n])
        expect kernels == 1
    }"""
    explained = tilec.compile(text, target="h200").build().explain(full=True)
    assert re.search("left factor.*loaded by TMA", explained) and re.search("right factor.*loaded by TMA", explained)


def test_attention_of_an_odd_number_of_rows_is_a_chain():
    """Its inputs are matrices of the rows of all batches: boxes of 37 rows end with their batch."""
    text = """op f(q: bf16[R, 64], k: bf16[R, 64], x: bf16[R, 64], v: bf16[R, 64], lse: f32[B, 197]) -> (dq: bf16[B, 197, 64]) {
        s[b, i, j] = sum[d](q[b * 197 + i, d] * k[b * 197 + j, d]) / 8 where b in 0:B, i in 0:197, j in 0:197
        g[b, i, j] = sum[d](x[b * 197 + i, d] * v[b * 197 + j, d]) where b in 0:B, i in 0:197, j in 0:197
        ds[b, i, j] = exp(s[b, i, j] - lse[b, i]) * g[b, i, j]
        dq[b, i, d] = sum[j](ds[b, i, j] * k[b * 197 + j, d]) using bf16
        expect kernels == 1
    }"""
    (kernel,) = tilec.compile(text, target="h200", sizes={"R": 12608, "B": 64}).plan.kernels
    assert kernel.options.unit == "wgmma"


@st.composite
def views(draw):
    """Shapes of the same number of elements."""
    total, shapes = 24 * draw(st.integers(1, 2)), []
    for _ in range(draw(st.integers(2, 4))):
        rest, shape = total, []
        while rest > 1 and len(shape) < 4:
            shape.append(draw(st.sampled_from([n for n in range(2, rest + 1) if rest % n == 0])))
            rest //= shape[-1]
        shapes.append([*shape, rest] if rest > 1 else shape)
    return shapes


@given(views())
@settings(deadline=None, max_examples=25)
def test_chains_of_views(chain):
    lines = []
    for n, (before, after) in enumerate(pairwise(chain)):
        names = [f"i{d}" for d in range(len(after))]
        flat = " + ".join(f"{i} * {prod(after[d + 1 :])}" for d, i in enumerate(names))
        at = ", ".join(f"({flat}) // {prod(before[d + 1 :])} % {size}" for d, size in enumerate(before))
        ranges = ", ".join(f"{i} in 0:{size}" for i, size in zip(names, after))
        lines.append(f"t{n + 1}[{', '.join(names)}] = t{n}[{at}] * {n + 2} where {ranges}")
    first, last = (", ".join(map(str, chain[n])) for n in (0, -1))
    text = f"op f(t0: f32[{first}]) -> (t{len(chain) - 1}: f32[{last}]) {{\n" + "\n".join(lines) + "\n}"
    x = np.arange(prod(chain[0]), dtype=np.float32).reshape(chain[0])
    want = tilec.reference(text)(x)
    np.testing.assert_array_equal(tilec.interpret(text, "build", x, target="cpu"), want)
