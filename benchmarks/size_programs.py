"""Programs whose sizes vary, for `python -m benchmarks sizes`: what they compute, in which ranges, and sizes that are drawn."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

SOFTMAX = """op f(x: f32[M, N]) -> (y: f32[M, N]) {
    e[i, j] = exp(x[i, j] - max[k](x[i, k]))
    y[i, j] = e[i, j] / sum[k](e[i, k])
}"""
LAYERNORM = """op f(x: f32[M, N], gain: f32[N], bias: f32[N]) -> (y: f32[M, N]) {
    mu[i] = mean[j](x[i, j])
    d[i, j] = x[i, j] - mu[i]
    v[i] = mean[j](d[i, j] * d[i, j])
    y[i, j] = d[i, j] * rsqrt(v[i] + 1e-5) * gain[j] + bias[j]
}"""
GELU = "op f(x: f32[M, N], b: f32[N]) -> (y: f32[M, N]) { y[i, j] = gelu(x[i, j] + b[j]) }"
LINEAR = """op f(x: T[M, K], w: T[K, N], b: T[N]) -> (y: T[M, N]) {
    h[m, n] = sum[k](x[m, k] * w[k, n])
    y[m, n] = h[m, n] + b[n]
}"""
ATTENTION = """op f(q: T[B, H, S, D], k: T[B, H, L, D], v: T[B, H, L, D]) -> (o: T[B, H, S, D]) {
    s[b, h, i, j] = sum[d](q[b, h, i, d] * k[b, h, j, d]) / sqrt(f32(D))
    p[b, h, i, j] = softmax[j](s[b, h, i, j])
    o[b, h, i, d] = sum[j](p[b, h, i, j] * v[b, h, j, d]) using T
}"""
SELF_ATTENTION = ATTENTION.replace("L, D", "S, D")
CONVOLUTION = """op f(x: T[N, C, H, W], f: T[K, C, R, S]) -> (y: T[N, K, H, W]) {
    y[n, k, h, w] = sum[c, r, s](pad(x[n, c, h + r - R // 2, w + s - S // 2], 0) * f[k, c, r, s])
}"""


@dataclass(frozen=True)
class Drawn:
    """A program. `fixed`: the numbers of sizes that do not vary. `varies`: the least and the greatest number of those that do;
    `most`: the greatest that is drawn, where it is less."""

    name: str
    text: str
    fixed: Mapping[str, int]
    varies: Mapping[str, tuple[int, int]]
    most: Mapping[str, int] = field(default_factory=dict)

    def sizes(self, count: int, seed: int = 0) -> list[dict[str, int]]:
        """Different sizes, in ascending order. Their logarithms are drawn evenly."""
        draw, found = random.Random(f"{self.name} {seed}"), set[tuple[int, ...]]()
        for _ in range(20 * count):
            found.add(tuple(self._number(draw, name) for name in self.varies))
            if len(found) == count:
                break
        return [{**self.fixed, **dict(zip(self.varies, numbers))} for numbers in sorted(found)]

    def _number(self, draw: random.Random, name: str) -> int:
        low, high = self.varies[name]
        high = min(high, self.most.get(name, high))
        return min(high, int(math.exp(draw.uniform(math.log(low), math.log(high + 1)))))


def programs(device: str) -> list[Drawn]:
    """On a CPU in f32, and no larger than takes some milliseconds; on a GPU products are of bf16."""
    cpu = device == "cpu"
    typed = lambda text: text.replace("T[", "f32[" if cpu else "bf16[").replace(" using T", "" if cpu else " using bf16")  # noqa: E731
    width, rows, long = (256, 64, 1024) if cpu else (4096, 4096, 16384)
    heads = {"B": 1, "H": 2 if cpu else 16, "D": 64 if cpu else 128}
    linear, channels = {"M": 64 if cpu else 512, "K": width, "N": width}, 16 if cpu else 64
    image = {"C": channels, "K": channels, "R": 3, "S": 3, "H": 28, "W": 28}
    found = [
        Drawn(f"{name}, {size}", text, {other: number}, {size: (1, 16384)}, {size: most})
        for name, text in (("softmax", SOFTMAX), ("layer norm", LAYERNORM), ("gelu", GELU))
        for size, other, number, most in (("M", "N", 1000, 4096 if cpu else 16384), ("N", "M", rows, 16384))
    ]
    found += [
        Drawn(f"linear, {size}", typed(LINEAR), _without(linear, size), {size: (1, 16384)}, {size: most})
        for size, most in (("M", 16384), ("N", 4096 if cpu else 16384), ("K", 4096 if cpu else 16384))
    ]
    return [
        *found,
        Drawn("attention, S", typed(SELF_ATTENTION), heads, {"S": (1, 8192)}, {"S": long if cpu else 8192}),
        Drawn("attention, L", typed(ATTENTION), {**heads, "S": 1}, {"L": (1, 8192)}),
        Drawn("convolution, N", typed(CONVOLUTION), image, {"N": (1, 512)}, {"N": 64 if cpu else 512}),
        Drawn("convolution, H and W", typed(CONVOLUTION), {**_without(image, "H", "W"), "N": 4}, {"H": (8, 512), "W": (8, 512)},
              dict.fromkeys(("H", "W"), 64 if cpu else 256)),
    ]  # fmt: skip


def _without(sizes: dict[str, int], *names: str) -> dict[str, int]:
    return {name: n for name, n in sizes.items() if name not in names}


__all__ = ["Drawn", "programs"]
