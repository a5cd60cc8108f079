"""ONNX operators on signals and sequences: Fourier transforms of real pairs, columns back into images, n-grams, caches."""

from __future__ import annotations

from math import pi

import numpy as np

from tests.outside.onnx_compute import number
from tests.outside.onnx_table import Node, expressed
from tilec.torch.aten.pools import folded
from tilec.torch.aten.windows import Window
from tilec.torch.program import Graph, Tensor, Unsupported


def transform(g: Graph, x: Tensor, axis: int, length: int, shape: tuple[int, ...], inverse: bool) -> Tensor:
    """The discrete Fourier transform along a dimension: sums of products with cosines and sines of whole parts of a turn. Numbers
    are pairs in the last dimension, or real where that has one element."""
    wide = "f64" if x.dtype == "f64" else "f32"
    count, scale = min(length, x.shape[axis]), f" / {length}" if inverse else ""
    angle = f"f64(i0) * {number(2 * pi / length)}"
    cosines, sines = (g.emit((length,), wide, f"{wide}({f}({angle}))") for f in ("cos", "sin"))
    cosine, sine = (t.at(f"i{axis} * k % {length}") for t in (cosines, sines))
    at = lambda part: x.at(*("k" if d == axis else f"i{d}" for d in range(len(x.shape) - 1)), part)  # noqa: E731
    sign = "-" if inverse else ""
    real, imaginary = f"{at('0')} * {cosine}", f"{sign}(-{at('0')} * {sine})"
    if x.shape[-1] == 2:
        real += f" + {sign}({at('1')} * {sine})"
        imaginary += f" + {at('1')} * {cosine}"
    over = f"k in 0:{count}"
    if shape[-1] == 1:
        return g.emit(shape, x.dtype, lambda i: f"sum[{over}]({real}){scale}")
    last = f"i{len(shape) - 1}"
    return g.emit(shape, x.dtype, lambda i: f"sum[{over}](({real}) if {last} == 0 else ({imaginary})){scale}")


@expressed("DFT")
def fourier(g: Graph, n: Node) -> Tensor:
    x, shape, inverse, half = n.x(), n.shape(), bool(n.attribute("inverse", 0)), bool(n.attribute("onesided", 0))
    given = n.parameter(2)
    axis = (int(np.asarray(given).reshape(())) if given is not None else n.attribute("axis", -2)) % len(x.shape)
    length = n.parameter(1)
    if length is not None:
        length = int(np.asarray(length).reshape(()))
    else:
        length = 2 * (x.shape[axis] - 1) if inverse and half else x.shape[axis]
    if inverse and half:  # the other half is the conjugate of this one
        ends = f"i{axis} == 0 or i{axis} * 2 == {length}"
        keep = lambda i: f"0 if i{axis} * 2 > {length} else {x.at(*i)} * (1 if {ends} else 2)"  # noqa: E731
        x = g.emit(x.shape, x.dtype, keep)
    return transform(g, x, axis, length, shape, inverse)


@expressed("STFT")
def frames(g: Graph, n: Node) -> Tensor:
    x, shape, step = n.x(), n.shape(), int(np.asarray(n.parameter(1)).reshape(()))
    window = n.x(2) if 2 in n else None
    length = window.shape[0] if window else int(np.asarray(n.parameter(3, x.shape[-2])).reshape(()))
    factor = f" * {window.at('i2')}" if window else ""
    size = (x.shape[0], shape[1], length, x.shape[-1])
    parts = g.emit(size, x.dtype, lambda i: f"{x.at('i0', f'i1 * {step} + i2', 'i3')}{factor}")
    return transform(g, parts, 2, length, shape, False)


@expressed("Col2Im")
def columns(g: Graph, n: Node) -> Tensor:
    x, image, kernel = n.x(), n.parameter(1).tolist(), n.parameter(2).tolist()
    rank = len(image)
    strides, dilations = (tuple(n.attribute(k) or [1] * rank) for k in ("strides", "dilations"))
    pads = n.attribute("pads") or [0] * 2 * rank
    window = Window(strides, tuple(pads[:rank]), dilations, tuple(kernel))
    counts = [(m + a + b - (k - 1) * d - 1) // s + 1 for m, a, b, k, d, s in
              zip(image, pads, pads[rank:], kernel, dilations, strides)]  # fmt: skip
    whole = x.reshaped((*n.shape()[:2], *kernel, *counts))
    return g.emit(n.shape(), x.dtype, lambda i: folded(whole, window, i, 2))


@expressed("TensorScatter")
def cache(g: Graph, n: Node) -> Tensor:
    """At each position the row that is written there, or what was there."""
    x, rows = n.x(0), n.x(1)
    axis = n.attribute("axis", -2) % len(x.shape)
    begin = n.x(2).at("i0") if 2 in n else "0"
    row = f"(i{axis} - {begin})"
    row = f"({row} % {x.shape[axis]})" if n.attribute("mode", "linear") == "circular" else row
    new = rows.at(*(row if d == axis else f"i{d}" for d in range(len(x.shape))))
    return g.emit(x.shape, x.dtype, lambda i: f"{new} if {row} >= 0 and {row} < {rows.shape[axis]} else {x.at(*i)}")


@expressed("TfIdfVectorizer")
def grams(g: Graph, n: Node) -> Tensor:
    """How often each of the given sequences is among the elements, which may be some apart."""
    x, pool = n.x(), n.attribute("pool_int64s")
    if pool is None:
        raise Unsupported("strings")
    starts, mode = n.attribute("ngram_counts"), n.attribute("mode")
    low, high, skips = (n.attribute(k) for k in ("min_gram_length", "max_gram_length", "max_skip_count"))
    where, sums, gram = n.attribute("ngram_indexes"), dict[int, list[str]](), 0
    lead = ["i0"] if len(x.shape) == 2 else []
    for size, (begin, end) in enumerate(zip(starts, [*starts[1:], len(pool)]), 1):
        for first in range(begin, end, size):
            terms = pool[first : first + size]
            if low <= size <= high:
                for apart in range(1, (skips if size > 1 else 0) + 2):
                    count = x.shape[-1] - apart * (size - 1)
                    tests = [f"{x.at(*lead, f'p + {t * apart}')} == {v}" for t, v in enumerate(terms)]
                    if count > 0:
                        sums.setdefault(where[gram], []).append(f"sum[p in 0:{count}](i32({' and '.join(tests)}))")
            gram += 1
    weights = n.attribute("weights") or [1.0] * gram
    last = f"i{len(lead)}"
    found = g.emit(n.shape(), "i32", lambda i: "".join(
        f"({' + '.join(parts)}) if {last} == {column} else (" for column, parts in sums.items()) + "0" + ")" * len(sums))
    text = {"TF": "f32({0})", "IDF": "f32(min({0}, 1)) * {1}", "TFIDF": "f32({0}) * {1}"}[mode]
    if mode == "TF":
        return g.map(text, found, dtype="f32")
    shares = np.zeros(n.shape()[-1], np.float32)
    shares[list(where)] = weights
    return g.map(text, found, g.input(shares), dtype="f32")
