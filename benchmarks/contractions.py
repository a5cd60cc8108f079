"""Contractions beside PyTorch on the GPU of this machine: right, and how fast.

    python -m benchmarks.contractions                   all cases
    python -m benchmarks.contractions bf16 --quick      cases whose names hold these words, without n = 8192

One line a case: the tile, registers, spills; the relative error against PyTorch in float64 or float32;
medians of both of one run, and their ratio. A case that fails is reported, and the others go on.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import tilec

MATMUL = "op mm(a: {t}[M, K], b: {t}[K, N]) -> (c: {t}[M, N]) {{\n c[m, n] = sum[k](a[m, k] * b[k, n]){u}\n}}\n"
TURNED = "op mm(a: {t}[{left}], b: {t}[{right}]) -> (c: {t}[M, N]) {{\n c[m, n] = sum[k](a[{i}] * b[{j}])\n}}\n"
LINEAR = """op linear(x: bf16[M, K], w: bf16[K, N], b: bf16[N]) -> (y: bf16[M, N]) {
 h[m, n] = sum[k](x[m, k] * w[k, n])
 y[m, n] = gelu(h[m, n] + b[n])
}
"""
BATCHED = """op mm(a: bf16[B, M, K], b: bf16[B, N, K]) -> (c: bf16[B, M, N]) {
 c[i, m, n] = sum[k](a[i, m, k] * b[i, n, k])
}
"""
CONV = """op conv(x: {t}[N, C, H, W], f: {t}[K, C, R, S]) -> (y: {t}[N, K, H, W]) {{
 y[n, k, h, w] = sum[c, r, s](pad(x[n, c, h + r - R // 2, w + s - S // 2], 0) * f[k, c, r, s])
}}
"""
CHANNELS_LAST = """op conv(x: bf16[N, H, W, C], f: bf16[K, R, S, C])
 -> (y: bf16[N, (H + 2 * {pad} - R) // {by} + 1, (W + 2 * {pad} - S) // {by} + 1, K]) {{
 y[n, h, w, k] = sum[r, s, c](pad(x[n, {by} * h + r - {pad}, {by} * w + s - {pad}, c], 0) * f[k, r, s, c])
}}
"""
IMAGES = (  # of ResNet-50, ConvNeXt and U-Net: images, channels, side, channels of the result, side of the window, stride
    (32, 3, 224, 64, 7, 2), (32, 64, 56, 64, 3, 1), (32, 64, 56, 256, 1, 1), (32, 256, 56, 64, 1, 1), (32, 128, 56, 128, 3, 2),
    (32, 256, 56, 512, 1, 2), (32, 256, 14, 256, 3, 1), (32, 512, 7, 512, 3, 1), (32, 96, 56, 192, 2, 2), (32, 96, 56, 384, 1, 1),
    (4, 64, 256, 64, 3, 1), (4, 128, 128, 128, 3, 1), (32, 256, 56, 256, 3, 1),
)  # fmt: skip
PROLOGUE = """op mm(a: bf16[M, K], s: f32[M], b: bf16[K, N]) -> (c: bf16[M, N]) {
 p[m, k]: bf16 = a[m, k] * s[m]
 c[m, n] = sum[k](p[m, k] * b[k, n])
}
"""
PROJECTION = """op project(o: bf16[B, H, S, D], w: bf16[H, D, E]) -> (r: bf16[B, S, E]) {
 r[b, s, e] = sum[h, d](o[b, h, s, d] * w[h, d, e])
}
"""
INTEGERS = "op mm(a: i8[M, K], b: i8[N, K]) -> (c: i32[M, N]) { c[m, n] = sum[k](i32(a[m, k]) * i32(b[n, k])) }"
EIGHT_BITS = "op mm(a: f8e4m3[M, K], b: f8e4m3[N, K]) -> (c: bf16[M, N]) { c[m, n] = sum[k](a[m, k] * b[n, k]) }"
ROW_SCALED = """op mm(a: f8e4m3[M, K], b: f8e4m3[N, K], s: f32[M], t: f32[N]) -> (c: bf16[M, N]) {
 c[m, n] = sum[k](a[m, k] * s[m] * b[n, k] * t[n])
}
"""
WEIGHTS = """op linear(x: bf16[M, K], w: i8[N, K], s: f32[N]) -> (y: bf16[M, N]) {
 y[m, n] = sum[k](x[m, k] * w[n, k] * s[n])
}
"""


@dataclass(frozen=True)
class Case:
    """`text` on `shapes` of `types`; `peer` computes the same with PyTorch. `operations` counts a multiply-
    add as two.
    """

    name: str
    text: str
    shapes: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]
    peer: Callable
    operations: float


def cases() -> list[Case]:
    import torch

    found = []

    def add(name, text, shapes, types, peer, operations):
        found.append(Case(name, text, tuple(shapes), tuple(types), peer, operations))

    plain = torch.matmul
    for t in ("bf16", "f16", "f32"):
        for n in (1024, 2048, 4096, 8192):
            add(f"{t} {n}", MATMUL.format(t=t, u=""), [(n, n)] * 2, [t] * 2, plain, 2 * n**3)
    for left, right, i, j, peer in (
        ("M, K", "N, K", "m, k", "n, k", lambda a, b: a @ b.T),
        ("K, M", "K, N", "k, m", "k, n", lambda a, b: a.T @ b),
        ("K, M", "N, K", "k, m", "n, k", lambda a, b: a.T @ b.T),
    ):
        for t in ("bf16", "f32"):
            text = TURNED.format(t=t, left=left, right=right, i=i, j=j)
            add(f"{t} 4096 [{left}] [{right}]", text, [(4096, 4096)] * 2, [t] * 2, peer, 2 * 4096**3)
    add("f64 2048", MATMUL.format(t="f64", u=""), [(2048, 2048)] * 2, ["f64"] * 2, plain, 2 * 2048**3)
    for kind in ("bf16", "tf32"):
        for n in (1024, 2048, 4096, 8192):
            text = MATMUL.format(t="f32", u=f" using {kind}")
            add(f"f32 {n} using {kind}", text, [(n, n)] * 2, ["f32"] * 2, plain, 2 * n**3)
    for t in ("bf16", "f32"):
        for m, n, k in ((1, 8192, 8192), (4, 8192, 8192), (16, 8192, 8192), (256, 256, 16384), (1024, 1024, 8192)):
            add(f"{t} few {m}x{n}x{k}", MATMUL.format(t=t, u=""), [(m, k), (k, n)], [t] * 2, plain, 2 * m * n * k)
    add("bf16 projection 4x2048 16x128 2048", PROJECTION, [(4, 16, 2048, 128), (16, 128, 2048)], ["bf16"] * 2,
        lambda o, w: torch.einsum("bhsd,hde->bse", o, w), 2 * 4 * 2048**3)  # fmt: skip
    add(
        "bf16 odd 2047x1999x2001",
        MATMUL.format(t="bf16", u=""),
        [(2047, 2001), (2001, 1999)],
        ["bf16"] * 2,
        plain,
        2 * 2047 * 1999 * 2001,
    )
    add(
        "bf16 edges 2040x2008x1992",
        MATMUL.format(t="bf16", u=""),
        [(2040, 1992), (1992, 2008)],
        ["bf16"] * 2,
        plain,
        2 * 2040 * 2008 * 1992,
    )
    add(
        "f32 odd 1023x1001x999",
        MATMUL.format(t="f32", u=""),
        [(1023, 999), (999, 1001)],
        ["f32"] * 2,
        plain,
        2 * 1023 * 1001 * 999,
    )
    gelu = torch.nn.functional.gelu
    for n in (4096, 8192):
        add(
            f"bf16 linear gelu {n}",
            LINEAR,
            [(n, n), (n, n), (n,)],
            ["bf16"] * 3,
            lambda x, w, b: gelu(x @ w + b),
            2 * n**3,
        )
    add("bf16 prologue 4096", PROLOGUE, [(4096, 4096), (4096,), (4096, 4096)], ["bf16", "f32", "bf16"],
        lambda a, s, b: (a * s[:, None]).to(a.dtype) @ b, 2 * 4096**3)  # fmt: skip
    add(
        "bf16 batched 64x1024x1024x128",
        BATCHED,
        [(64, 1024, 128)] * 2,
        ["bf16"] * 2,
        lambda a, b: a @ b.transpose(1, 2),
        2 * 64 * 1024**2 * 128,
    )
    one = torch.tensor(1.0, device="cuda")

    def integers(a, b):
        return torch._int_mm(a, b.T) if a.dtype == torch.int8 else a @ b.T

    def eight_bits(a, b, *scales):
        if a.dtype != torch.float8_e4m3fn:
            return (a * scales[0][:, None]) @ (b * scales[1][:, None]).T if scales else a @ b.T
        given = (scales[0][:, None], scales[1][None]) if scales else (one, one)
        return torch._scaled_mm(a, b.T, *given, out_dtype=torch.bfloat16)

    for n in (4096, 8192):
        add(f"i8 {n}", INTEGERS, [(n, n)] * 2, ["i8"] * 2, integers, 2 * n**3)
        add(f"f8 {n}", EIGHT_BITS, [(n, n)] * 2, ["f8e4m3"] * 2, eight_bits, 2 * n**3)
        add(f"f8 row scales {n}", ROW_SCALED, [(n, n)] * 2 + [(n,)] * 2, ["f8e4m3"] * 2 + ["f32"] * 2, eight_bits, 2 * n**3)
    for m in (1, 4, 16):
        add(f"i8 weights {m}x8192x8192", WEIGHTS, [(m, 8192), (8192, 8192), (8192,)], ["bf16", "i8", "f32"],
            lambda x, w, s: (x @ w.to(x.dtype).T) * s.to(x.dtype), 2 * m * 8192**2)  # fmt: skip
    convolve = torch.nn.functional.conv2d
    for t in ("f32", "bf16"):
        add(f"{t} conv 32x256x56x56 3x3", CONV.format(t=t), [(32, 256, 56, 56), (256, 256, 3, 3)], [t] * 2,
            lambda x, f: convolve(x, f, padding=1), 2 * 32 * 56 * 56 * 256 * 256 * 9)  # fmt: skip

    def channels_last(x: Any, f: Any, stride: int, pad: int) -> Any:
        made = convolve(x.permute(0, 3, 1, 2), f.permute(0, 3, 1, 2), stride=stride, padding=pad)
        return made.permute(0, 2, 3, 1)

    for n, c, size, k, window, by in IMAGES:
        pad = window // 2 if window % 2 else 0
        to = (size + 2 * pad - window) // by + 1
        add(f"bf16 conv {n}x{size}x{size}x{c} to {k}, {window}x{window} by {by}", CHANNELS_LAST.format(pad=pad, by=by),
            [(n, size, size, c), (k, window, window, c)], ["bf16"] * 2,
            partial(channels_last, stride=by, pad=pad), 2 * n * to**2 * k * c * window**2)  # fmt: skip
    return found


def run(case: Case) -> str:
    import torch
    from triton.testing import do_bench

    kinds = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64}
    kinds |= {"i8": torch.int8, "f8e4m3": torch.float8_e4m3fn}
    torch.manual_seed(0)
    sizes = [32.0 if t == "i8" else 1.0 for t in case.types]
    inputs = [(torch.randn(s, device="cuda") * z).to(kinds[t]) for s, z, t in zip(case.shapes, sizes, case.types)]
    op = tilec.compile(case.text)
    result = op(*inputs)
    out = torch.full_like(result, float("nan"))
    op(*inputs, out=out)
    torch.cuda.synchronize()
    wide = torch.float64 if case.types[0] == "f64" or max(map(max, case.shapes)) <= 2100 else torch.float32
    reference = case.peer(*(x.to(wide) for x in inputs)).to(wide)
    error = ((out.to(wide) - reference).norm() / reference.norm()).item()
    torch.backends.cuda.matmul.allow_tf32 = "using" in case.name  # the nearest that PyTorch has to either
    mine = do_bench(lambda: op(*inputs, out=out), warmup=100, rep=400, return_mode="median")
    theirs = do_bench(lambda: case.peer(*inputs), warmup=100, rep=400, return_mode="median")
    torch.backends.cuda.matmul.allow_tf32 = False
    speed = [case.operations / t / 1e9 for t in (mine, theirs)]
    rounded = case.types[0] in ("bf16", "f16", "f8e4m3") or "using" in case.name
    verdict = "" if error < (2e-2 if rounded else 1e-4) else "  WRONG"
    speeds = f"{speed[0]:7.1f} TFLOP/s, torch {speed[1]:7.1f}, ratio {speed[0] / speed[1]:.2f}"
    return f"{case.name:36} error {error:.1e}{verdict}  {speeds}   {resources(op)}"


def resources(op) -> str:
    """Registers and spills of the op's kernels."""
    cubins = op._latest.cubins
    shared = {k.name: k.shared for k in op._latest.emitted.kernels}
    threads = {k.name: k.threads for k in op._latest.emitted.kernels}
    parts = [
        f"{c.registers} regs x {threads[n]}, {c.spills} spilled, {shared[n]} B, {c.seconds:.1f} s"
        for n, c in cubins.items()
    ]
    return "; ".join(parts)


def main(words: list[str]) -> None:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    quick = "--quick" in words
    words = [w for w in words if not w.startswith("--")]
    for case in cases():
        if (words and not any(w in case.name for w in words)) or (quick and "8192" in case.name):
            continue
        try:
            print(run(case), flush=True)
        except Exception:
            print(f"{case.name:36} FAILED\n{traceback.format_exc(limit=-3)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
