"""Products of matrices of many shapes for the GPU suite: square, wide, tall, batched, of odd sizes, of few rows, of long sums.

    nn   y[m, n] = sum[k](a[m, k] * b[k, n])        nt   y[m, n] = sum[k](a[m, k] * b[n, k])
    tn   y[m, n] = sum[k](a[k, m] * b[k, n])        tt   y[m, n] = sum[k](a[k, m] * b[n, k])
"""

from __future__ import annotations

from math import sqrt

from benchmarks.workloads import Input, Workload, functional, limit

SQUARES = [("bf16", "nn", 1, n, n, n) for n in (512, 1536, 3072)] + [("f16", "nn", 1, 4096, 4096, 4096)]
TURNED = [("bf16", form, 1, 4096, 4096, 4096) for form in ("nt", "tn", "tt")]
WIDE = [
    ("bf16", "nt", 1, 512, 8192, 4096), ("bf16", "nn", 1, 8192, 512, 4096), ("bf16", "nn", 1, 4096, 14336, 4096),
    ("bf16", "nt", 1, 4096, 4096, 14336), ("bf16", "nn", 1, 16384, 1024, 1024), ("bf16", "nn", 1, 65536, 256, 256),
    ("bf16", "nt", 1, 256, 16384, 1024), ("bf16", "nn", 1, 2048, 8192, 512),
]  # fmt: skip
BATCHED = [
    ("bf16", "nn", 64, 1024, 1024, 512), ("bf16", "nn", 16, 512, 512, 512), ("bf16", "nn", 128, 256, 256, 256),
    ("bf16", "nt", 32, 1024, 1024, 64), ("bf16", "nn", 8, 2048, 2048, 128), ("bf16", "nt", 256, 128, 128, 512),
]  # fmt: skip
ODD = [
    ("bf16", "nn", 1, 1000, 3000, 5000), ("bf16", "nn", 1, 2040, 2008, 1992), ("bf16", "nt", 1, 3000, 1000, 2000),
    ("bf16", "nn", 1, 2047, 1999, 2001), ("bf16", "nt", 1, 1023, 1025, 1024),
]  # fmt: skip
FEW_ROWS = [("bf16", form, 1, m, 8192, 8192) for form, m in (("nn", 4), ("nn", 64), ("nt", 1), ("nt", 8), ("nt", 32))]
FEW_ROWS += [("bf16", "nt", 1, 64, 14336, 4096), ("bf16", "nn", 1, 64, 4096, 4096), ("bf16", "nn", 1, 16, 4096, 4096)]
LONG_SUMS = [
    ("bf16", "nt", 1, 128, 1024, 8192), ("bf16", "nt", 1, 512, 512, 32768), ("bf16", "tn", 1, 64, 64, 65536),
    ("bf16", "tn", 1, 1024, 1024, 16384),
]  # fmt: skip
VECTOR_UNITS = [("f32", "nn", 1, 1024, 1024, 1024), ("f32", "nt", 1, 2048, 2048, 2048)]
EPILOGUES = [("gelu", "nt", 8192, 4096, 1024), ("bias", "nn", 2048, 2048, 2048), ("residual", "nn", 4096, 4096, 4096)]


def products() -> list[Workload]:
    shapes = (*SQUARES, *TURNED, *WIDE, *BATCHED, *ODD, *FEW_ROWS, *LONG_SUMS, *VECTOR_UNITS)
    return [_product(*s) for s in shapes] + [_with_epilogue(*s) for s in EPILOGUES]


def _factors(dtype: str, form: str, batch: int, m: int, n: int, k: int) -> tuple[str, str, tuple[Input, Input]]:
    """The parameters of a program, its sum, and the inputs."""
    left, right = ("mk" if form[0] == "n" else "km"), ("kn" if form[1] == "n" else "nk")
    sizes, outer = {"m": m, "n": n, "k": k}, ["b"] if batch > 1 else []
    a, b = ([*outer, *dims] for dims in (left, right))
    declared = ", ".join(f"{name}: {dtype}[{', '.join(dims).upper()}]" for name, dims in (("a", a), ("b", b)))
    total = f"sum[k](a[{', '.join(a)}] * b[{', '.join(b)}])"
    shapes = [tuple(batch if d == "b" else sizes[d] for d in dims) for dims in (a, b)]
    return declared, total, (Input(dtype, shapes[0]), Input(dtype, shapes[1], 1 / sqrt(k)))


def _turned(form: str, a, b):
    """Both factors as PyTorch multiplies them."""
    return (a if form[0] == "n" else a.mT), (b if form[1] == "n" else b.mT)


def _product(dtype: str, form: str, batch: int, m: int, n: int, k: int) -> Workload:
    declared, total, inputs = _factors(dtype, form, batch, m, n, k)
    of, at = ("B, ", "b, ") if batch > 1 else ("", "")

    def peer(a, b):
        left, right = _turned(form, a, b)
        return left @ right

    return Workload(
        f"product {form} {f'{batch} of ' if batch > 1 else ''}{m}x{n}x{k} {dtype}",
        f"op product({declared}) -> (y: {dtype}[{of}M, N]) {{ y[{at}m, n] = {total} }}",
        inputs, peer, limit(dtype, k / 8, 4), flops=2.0 * batch * m * n * k,
    )  # fmt: skip


def _with_epilogue(kind: str, form: str, m: int, n: int, k: int) -> Workload:
    declared, total, inputs = _factors("bf16", form, 1, m, n, k)
    further, expression = {
        "gelu": ("d: bf16[N]", "gelu_tanh(h[m, n] + d[n])"), "bias": ("d: bf16[N]", "h[m, n] + d[n]"),
        "residual": ("d: bf16[M, N]", "h[m, n] + d[m, n]"),
    }[kind]  # fmt: skip

    def peer(a, b, d):
        left, right = _turned(form, a, b)
        total = left @ right + d
        return functional().gelu(total, approximate="tanh") if kind == "gelu" else total

    return Workload(
        f"product + {kind} {form} {m}x{n}x{k} bf16",
        f"op product({declared}, {further}) -> (y: bf16[M, N]) {{ h[m, n] = {total}  y[m, n] = {expression} }}",
        (*inputs, Input("bf16", (m, n) if kind == "residual" else (n,))), peer, limit("bf16", k / 8, 4), flops=2.0 * m * n * k,
    )  # fmt: skip
