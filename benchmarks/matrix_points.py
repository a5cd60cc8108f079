"""The points of the audit for matrix units: every kind of product, convolution, attention and decoding, at many sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from benchmarks import attention_loads as a
from benchmarks import matrix_loads as m
from benchmarks.memory_loads import Load
from benchmarks.workloads import Workload


@dataclass(frozen=True)
class Point(Load):
    """Named for its workload."""

    @property
    def name(self) -> str:
        return self.work.name


SQUARES = (512, 768, 1024, 1536, 2048, 3072, 4096)
ORDERS = (("m, k", "n, k"), ("k, m", "k, n"), ("k, m", "n, k"))
MIXED = ((1000, 3000, 2000), (4096, 4096, 1024), (512, 4096, 4096))
ATTENTION = (8192, 2048)  # places of all sequences, columns of all heads
MEASURED = ("full", "causal")


def points() -> Iterator[Point]:
    for kind, loads in _kinds().items():
        for load in loads:
            yield Point(load, load.name, kind)


def _kinds() -> dict[str, list[Workload]]:
    few = [m.few_rows(*shape) for shape in m.ROWS]
    plain = [m.matmul("bf16", n, n, n) for n in SQUARES]
    plain += [m.matmul("bf16", *shape) for shape in (*m.OBLONG, *m.LONG_SUMS) if shape[0] * shape[1] * shape[2] < 10**11]
    plain += [m.matmul("bf16", 2048, 2048, 2048, left=left, right=right) for left, right in ORDERS]
    plain += [m.matmul("f16", *shape) for shape in ((1024, 1024, 1024), (3072, 3072, 1024))]
    wide = [m.matmul("f32", *shape) for shape in (*((n, n, n) for n in (1024, 2048)), *MIXED)]
    tf32 = [m.matmul("f32", *shape, using="tf32") for shape in (*((n, n, n) for n in (1024, 2048)), *MIXED)]
    tf32 += [m.matmul("f32", 2048, 2048, 2048, right="n, k", using="tf32")]
    eight = [make(*shape) for make in (m.integers, m.block_scaled) for shape in ((2048, 2048, 2048), (4096, 2048, 4096))]
    eight += [m.narrow(n, n, k, using) for n, k in ((2048, 2048), (4096, 1024)) for using in ("", " using f22")]
    eight += [m.byte_weights(rows, 4096, 8192) for rows in (1, 4, 16)]
    fused = [m.epilogue(form, *s) for form in m.EPILOGUES for s in ((2048, 2048, 2048), (8192, 1024, 1024), (1024, 8192, 512))]
    windows = [m.convolution(8 if n == 32 else n, *rest) for n, *rest in m.CONVOLUTIONS]
    attention = [
        a.attention(form, d, s, places=ATTENTION[0], columns=ATTENTION[1])
        for form, d, s in product(MEASURED, (64, 96, 128, 256), (512, 2048, 8192))
    ]
    relatives = [a.attention(form, 128, 2048, places=ATTENTION[0]) for form in a.SCORES if form not in MEASURED]
    relatives += [a.attention("causal by distance", 64, 4096, "f16", places=4096)]
    relatives += [a.attention("causal", 128, 2048, packed=True, places=ATTENTION[0])]
    few += [a.decoding(keys, sequences) for keys, sequences in ((8192, 8), (2048, 16), (65536, 1))]
    reduced = [a.cross_entropy(32768, 2048, 1024), a.cross_entropy(8192, 4096, 4096)]
    reduced += [a.reduced(f, *s) for f in ("logsumexp", "max") for s in ((16384, 8192, 64), (4096, 16384, 256), (512, 32768, 2048))]
    return {
        "products": plain, "few rows": few, "batched products": [m.batched(*shape) for shape in m.BATCHES],
        "f32 products": wide, "tf32 products": tf32, "8-bit products": eight, "products with an epilogue": fused,
        "convolutions": windows, "attention": attention, "relatives of attention": relatives, "reduced products": reduced,
    }  # fmt: skip
