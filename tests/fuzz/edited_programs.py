"""Small programs of every family of kernels, whose options the fuzzers edit."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fuzz.programs import Case
from tilec.core.dtypes import DTYPES
from tilec.core.fitted import NestTimes, WarpgroupTimes
from tilec.core.target import Target
from tilec.core.targets import load


@dataclass(frozen=True)
class Program:
    """A small program whose kernels are of one family on a target. `inputs`: type and shape of each."""

    target: str
    family: str
    text: str
    sizes: dict[str, int]
    inputs: dict[str, tuple[str, tuple[int, ...]]]

    @property
    def case(self) -> Case:
        rng, arrays = np.random.default_rng(7), {}
        for name, (dtype, shape) in self.inputs.items():
            arrays[name] = np.asarray(rng.normal(size=shape)).astype(DTYPES[dtype].numpy)
        return Case(self.text, self.sizes, arrays)

    @property
    def machine(self) -> Target:
        """The target, altered so that the family is the planner's choice for few elements."""
        target = load(self.target)
        match self.family:
            case "panels":
                slow = replace(target.fit(NestTimes), vector_issue=1e-5)
                groups = target.fitted.groups | {"nests": slow}
                return replace(target, fitted=replace(target.fitted, groups=groups))
            case "by_key":
                return replace(target, units=2, rates=replace(target.rates, integer=1e-6))
            case "panel_chain":
                return replace(target, dram=replace(target.dram, bandwidth_gbs=0.001))
            case "vector_contraction":
                return replace(target, sm=replace(target.sm, shared_per_block=2048))
            case "contraction" if target.has("wgmma"):
                groups = target.fitted.groups | {"warpgroup_contraction": replace(target.fit(WarpgroupTimes), mma_sync=0.01)}
                return replace(target, fitted=replace(target.fitted, groups=groups))
            case "warpgroup_contraction" | "contraction_chain" if target.has("tma"):
                slow = {"mma.sync": 0.01}
                return replace(target, tensor={t: rates | slow for t, rates in target.tensor.items()})
        return target


PRODUCT = "op f(a: {t}[M, K], b: {t}[K, N]) -> (y: f32[M, N]) {{ y[i, j] = sum[k](a[i, k] * b[k, j]) }}"
PROGRAMS = {
    "softmax, cpu": Program(
        "cpu", "loop_nest",
        "op f(x: f32[M, N]) -> (y: f32[M, N]) { m[i] = max[j](x[i, j]) e[i, j] = exp(x[i, j] - m[i]) "
        "y[i, j] = e[i, j] / sum[k](e[i, k]) }",
        {"M": 40, "N": 33}, {"x": ("f32", (40, 33))},
    ),
    "columns and a scan, cpu": Program(
        "cpu", "loop_nest",
        "op f(x: f64[M, N]) -> (y: f64[N], z: f64[M, N]) { y[j] = sum[i](x[i, j]) z[i, j] = cumsum[j](x[i, j]) }",
        {"M": 37, "N": 24}, {"x": ("f64", (37, 24))},
    ),
    "transposed sum, cpu": Program(
        "cpu", "register_transpose",
        "op f(x: f32[M, N], w: f32[N, M]) -> (y: f32[N, M]) { y[j, i] = x[i, j] + w[j, i] }",
        {"M": 40, "N": 33}, {"x": ("f32", (40, 33)), "w": ("f32", (33, 40))},
    ),
    "transpose of bytes, cpu": Program(
        "cpu", "register_transpose",
        "op f(x: i8[B, M, N]) -> (y: i8[B, N, M]) { y[h, j, i] = x[h, i, j] }",
        {"B": 2, "M": 35, "N": 50}, {"x": ("i8", (2, 35, 50))},
    ),
    "product, cpu": Program(
        "cpu", "panels",
        "op f(a: f32[M, K], b: f32[K, N]) -> (y: f32[M, N]) { y[i, j] = max(sum[k](a[i, k] * b[k, j]), 0) }",
        {"M": 35, "K": 13, "N": 40}, {"a": ("f32", (35, 13)), "b": ("f32", (13, 40))},
    ),
    "products of a batch, cpu": Program(
        "cpu", "panels",
        "op f(a: f64[B, K, M], b: f64[B, N, K]) -> (y: f64[B, M, N]) { y[h, i, j] = sum[k](a[h, k, i] * b[h, j, k]) }",
        {"B": 2, "M": 19, "K": 10, "N": 21}, {"a": ("f64", (2, 10, 19)), "b": ("f64", (2, 21, 10))},
    ),
    "product of f32, cpu": Program(  # by AMX where the host has it, as sums of bf16
        "cpu", "panels",
        "op f(a: f32[M, K], b: f32[N, K]) -> (y: f32[M, N]) { y[i, j] = sum[k](a[i, k] * b[j, k]) }",
        {"M": 35, "K": 70, "N": 40}, {"a": ("f32", (35, 70)), "b": ("f32", (40, 70))},
    ),
    "product of bf16, cpu": Program(  # by AMX where the host has it
        "cpu", "panels",
        "op f(a: bf16[M, K], b: bf16[K, N]) -> (y: f32[M, N]) { y[i, j] = sum[k](a[i, k] * b[k, j]) }",
        {"M": 20, "K": 13, "N": 18}, {"a": ("bf16", (20, 13)), "b": ("bf16", (13, 18))},
    ),
    "attention, cpu": Program(
        "cpu", "panel_chain",
        "op f(q: f32[S, D], k: f32[T, D], v: f32[T, E]) -> (o: f32[S, E]) { "
        "s[i, j] = sum[d](q[i, d] * k[j, d]) t[i, j] = s[i, j] if j <= i else -inf "
        "m[i] = max[j](t[i, j]) e[i, j] = exp(t[i, j] - m[i]) l[i] = sum[j](e[i, j]) "
        "o[i, d] = sum[j](e[i, j] / l[i] * v[j, d]) }",
        {"S": 23, "T": 19, "D": 6, "E": 7}, {"q": ("f32", (23, 6)), "k": ("f32", (19, 6)), "v": ("f32", (19, 7))},
    ),
    "convolution, cpu": Program(
        "cpu", "panels",
        "op f(x: f32[H, C], w: f32[O, C, 3]) -> (y: f32[H - 2, O]) { y[h, o] = sum[c, r](x[h + r, c] * w[o, c, r]) }",
        {"H": 30, "C": 4, "O": 20}, {"x": ("f32", (30, 4)), "w": ("f32", (20, 4, 3))},
    ),
    "sines": Program(
        "h200", "points",
        "op f(x: bf16[M, N], w: f32[N]) -> (y: bf16[M, N]) { y[i, j] = bf16(sin(x[i, j]) * w[j]) }",
        {"M": 6, "N": 64}, {"x": ("bf16", (6, 64)), "w": ("f32", (64,))},
    ),
    "variance of columns": Program(
        "h200", "columns",
        "op f(x: f32[M, N]) -> (y: f32[N]) { m[j] = mean[i](x[i, j]) y[j] = mean[i]((x[i, j] - m[j]) ** 2) }",
        {"M": 40, "N": 24}, {"x": ("f32", (40, 24))},
    ),
    "sums by key": Program(
        "h200", "by_key",
        "op f(x: f32[T, D], k: i64[T]) -> (y: f32[V, D]) { s[v, d] = sum[t](x[t, d] if k[t] == v else 0) where v in 0:V "
        "y[v, d] = s[v, d] + v }",
        {"T": 70, "D": 24, "V": 3}, {"x": ("f32", (70, 24)), "k": ("i64", (70,))},
    ),
    "softmax": Program(
        "h200", "rows",
        "op f(x: bf16[M, N]) -> (y: bf16[M, N]) { m[i] = max[j](x[i, j]) e[i, j] = exp(x[i, j] - m[i]) "
        "y[i, j] = bf16(e[i, j] / sum[k](e[i, k])) }",
        {"M": 5, "N": 1024}, {"x": ("bf16", (5, 1024))},
    ),
    "rmsnorm of rows that begin anywhere": Program(
        "h200", "rows",
        "op f(x: f32[M, N], g: f32[N]) -> (y: f32[M, N]) { s[i] = mean[j](x[i, j] ** 2) "
        "y[i, j] = x[i, j] * rsqrt(s[i] + 1) * g[j] }",
        {"M": 5, "N": 131}, {"x": ("f32", (5, 131)), "g": ("f32", (131,))},
    ),
    "argmax": Program(
        "h200", "rows",
        "op f(x: f32[M, N]) -> (y: i32[M], z: f32[M]) { y[i] = argmax[j](x[i, j]) z[i] = logsumexp[j](x[i, j]) }",
        {"M": 6, "N": 96}, {"x": ("f32", (6, 96))},
    ),
    "scan": Program(
        "h200", "scan",
        "op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = 2 * cumsum[j](x[i, j]) }",
        {"M": 2, "N": 1300}, {"x": ("f32", (2, 1300))},
    ),
    "transpose": Program(
        "h200", "transpose",
        "op f(x: f32[M, N]) -> (y: f32[N, M]) { y[j, i] = 2 * x[i, j] }",
        {"M": 48, "N": 40}, {"x": ("f32", (48, 40))},
    ),
    "transpose of narrow elements": Program(
        "h200", "transpose",
        "op f(x: f16[M, N]) -> (y: f16[N, M]) { y[j, i] = x[i, j] }",
        {"M": 64, "N": 128}, {"x": ("f16", (64, 128))},
    ),
    "product in plain arithmetic": Program(
        "h200", "vector_contraction",
        PRODUCT.format(t="f32"),
        {"M": 33, "K": 21, "N": 40}, {"a": ("f32", (33, 21)), "b": ("f32", (21, 40))},
    ),
    "product by fma": Program(
        "h200", "contraction",
        PRODUCT.format(t="f32"),
        {"M": 33, "K": 21, "N": 40}, {"a": ("f32", (33, 21)), "b": ("f32", (21, 40))},
    ),
    "products by mma.sync": Program(
        "h200", "contraction",
        "op f(a: bf16[B, M, K], b: bf16[B, K, N]) -> (y: bf16[B, M, N]) "
        "{ y[h, i, j] = bf16(max(sum[k](a[h, i, k] * b[h, k, j]), 0)) }",
        {"B": 2, "M": 40, "K": 72, "N": 24}, {"a": ("bf16", (2, 40, 72)), "b": ("bf16", (2, 72, 24))},
    ),
    "product by wgmma": Program(
        "h200", "warpgroup_contraction",
        PRODUCT.format(t="bf16"),
        {"M": 80, "K": 96, "N": 48}, {"a": ("bf16", (80, 96)), "b": ("bf16", (96, 48))},
    ),
    "convolution by mma.sync": Program(
        "h200", "contraction",
        "op f(x: bf16[H, W, C], w: bf16[O, 3, 3, C]) -> (y: bf16[H, W, O]) "
        "{ y[h, v, o] = bf16(sum[r, s, c](pad(x[h + r - 1, v + s - 1, c], 0) * w[o, r, s, c])) }",
        {"H": 7, "W": 9, "C": 24, "O": 40}, {"x": ("bf16", (7, 9, 24)), "w": ("bf16", (40, 3, 3, 24))},
    ),
    "strided convolution by wgmma": Program(
        "h200", "warpgroup_contraction",
        "op f(x: bf16[H, W, C], w: bf16[2, 2, C, O]) -> (y: f32[H // 2, W // 2, O]) "
        "{ y[h, v, o] = sum[r, s, c](x[2 * h + r, 2 * v + s, c] * w[r, s, c, o]) }",
        {"H": 14, "W": 18, "C": 40, "O": 48}, {"x": ("bf16", (14, 18, 40)), "w": ("bf16", (2, 2, 40, 48))},
    ),
    "product of rows and weights of experts by wgmma": Program(
        "h200", "warpgroup_contraction",
        "op f(x: bf16[S, K], p: i32[B, I], e: i32[B], w: bf16[3, K, N]) -> (y: bf16[B, I, N]) { "
        "y[b, i, n] = bf16(sum[k](x[abs(p[b, i]) % S, k] * w[abs(e[b]) % 3, k, n])) }",
        {"S": 90, "B": 2, "I": 80, "K": 72, "N": 48},
        {"x": ("bf16", (90, 72)), "p": ("i32", (2, 80)), "e": ("i32", (2,)), "w": ("bf16", (3, 72, 48))},
    ),
    "product of rows that begin anywhere by wgmma": Program(
        "h200", "warpgroup_contraction",
        PRODUCT.format(t="f16"),
        {"M": 70, "K": 66, "N": 36}, {"a": ("f16", (70, 66)), "b": ("f16", (66, 36))},
    ),
    "product of many tiles by wgmma": Program(
        "h200", "warpgroup_contraction",
        "op f(a: bf16[M, K], b: bf16[N, K], s: f32[N]) -> (y: bf16[M, N]) { y[i, j] = s[j] * sum[k](a[i, k] * b[j, k]) }",
        {"M": 240, "K": 72, "N": 120}, {"a": ("bf16", (240, 72)), "b": ("bf16", (120, 72)), "s": ("f32", (120,))},
    ),
    "products that meet by wgmma": Program(
        "h200", "warpgroup_contraction",
        "op f(x: bf16[M, K], g: bf16[K, N], u: bf16[K, N]) -> (y: bf16[M, N]) "
        "{ y[i, j] = max(sum[k](x[i, k] * g[k, j]), 0) * sum[k](x[i, k] * u[k, j]) }",
        {"M": 80, "K": 96, "N": 72}, {"x": ("bf16", (80, 96)), "g": ("bf16", (96, 72)), "u": ("bf16", (96, 72))},
    ),
    "products apart by wgmma": Program(
        "h200", "warpgroup_contraction",
        "op f(x: bf16[M, K], g: bf16[N, K], u: bf16[P, K]) -> (y: bf16[M, N], z: f32[M, P]) "
        "{ y[i, j] = sum[k](x[i, k] * g[j, k]) z[i, j] = sum[k](x[i, k] * u[j, k]) }",
        {"M": 80, "K": 96, "N": 72, "P": 40}, {"x": ("bf16", (80, 96)), "g": ("bf16", (72, 96)), "u": ("bf16", (40, 96))},
    ),
    "attention": Program(
        "h200", "contraction_chain",
        "op f(q: bf16[S, D], k: bf16[T, D], v: bf16[T, E]) -> (o: bf16[S, E]) { "
        "s[i, j] = sum[d](q[i, d] * k[j, d]) m[i] = max[j](s[i, j]) p[i, j] = exp(s[i, j] - m[i]) "
        "l[i] = sum[j](p[i, j]) o[i, e] = bf16(sum[j](p[i, j] * v[j, e]) / l[i]) }",
        {"S": 80, "T": 72, "D": 16, "E": 16}, {"q": ("bf16", (80, 16)), "k": ("bf16", (72, 16)), "v": ("bf16", (72, 16))},
    ),
    "logarithms of sums, and nearest": Program(
        "h200", "contraction_chain",
        "op f(x: bf16[M, D], y: bf16[N, D], b: f32[N]) -> (z: f32[M], n: i64[M]) { "
        "s[i, j] = b[j] + sum[d](x[i, d] * y[j, d]) z[i] = logsumexp[j](s[i, j]) n[i] = argmin[j](s[i, j]) }",
        {"M": 140, "N": 200, "D": 72}, {"x": ("bf16", (140, 72)), "y": ("bf16", (200, 72)), "b": ("f32", (200,))},
    ),
    "attention of grouped heads": Program(
        "h200", "contraction_chain",
        "op f(q: bf16[H, S, D], k: bf16[H // 4, D, T], v: bf16[H // 4, T, D], n: i32[H]) -> (o: bf16[H, S, D], l: f32[H, S]) { "
        "s[h, i, j] = sum[d](q[h, i, d] * k[h // 4, d, j]) if j < n[h] else -inf "
        "p[h, i, j]: bf16 = softmax[j](s[h, i, j]) l[h, i] = logsumexp[j](s[h, i, j]) "
        "o[h, i, d] = sum[j](p[h, i, j] * v[h // 4, j, d]) }",
        {"H": 8, "S": 20, "T": 72, "D": 16},
        {"q": ("bf16", (8, 20, 16)), "k": ("bf16", (2, 16, 72)), "v": ("bf16", (2, 72, 16)), "n": ("i32", (8,))},
    ),
    "attention by warps": Program(
        "a100", "contraction_chain",
        "op f(q: bf16[S, D], k: bf16[T, D], v: bf16[T, E]) -> (o: bf16[S, E]) { "
        "s[i, j] = sum[d](q[i, d] * k[j, d]) if j <= i else -inf m[i] = max[j](s[i, j]) p[i, j] = exp(s[i, j] - m[i]) "
        "l[i] = sum[j](p[i, j]) o[i, e] = bf16(sum[j](p[i, j] * v[j, e]) / l[i]) }",
        {"S": 40, "T": 72, "D": 18, "E": 13}, {"q": ("bf16", (40, 18)), "k": ("bf16", (72, 18)), "v": ("bf16", (72, 13))},
    ),
}  # fmt: skip
