"""Programs for every kind of kernel that multiplies on matrix units, with sizes just above those of tiles. On a GPU the sanitizers
run them, and the tests of equal bits. tests/plan/test_matrix_programs.py holds them to the kinds of kernels."""

from __future__ import annotations


def _attention(
    score: str = "s[b, h, i, j]", more: str = "", q: str = "B, H, S, D", k: str = "B, H, T, D", key: str = "b, h, j, d"
) -> str:  # fmt: skip
    """`score`: what softmax takes; `more`: further arguments; `q`, `k`: shapes; `key`: indices of a key."""
    query = q.lower().replace("s", "i")
    return f"""op f(q: bf16[{q}], k: bf16[{k}], v: bf16[{k}]{more}) -> (o: bf16[B, H, S, D]) {{
    s[b, h, i, j] = sum[d](q[{query}] * k[{key}]) / 8
    p[b, h, i, j] = softmax[j]({score})
    o[b, h, i, d] = sum[j](p[b, h, i, j] * v[{key}]) using bf16
}}"""


GRADIENTS = """op f(q: bf16[H, S, D], k: bf16[H, T, D], v: bf16[H, T, D], x: bf16[H, S, D], lse: f32[H, S], delta: f32[H, S]) -> (
    dq: bf16[H, S, D], dk: bf16[H, T, D], dv: bf16[H, T, D]
) {
    s[h, i, j] = sum[d](q[h, i, d] * k[h, j, d]) / 8
    p[h, i, j] = exp((s[h, i, j] if j <= i else -inf) - abs(lse[h, i]) - 4)
    g[h, i, j] = sum[d](x[h, i, d] * v[h, j, d])
    ds[h, i, j] = p[h, i, j] * (g[h, i, j] - delta[h, i])
    dq[h, i, d] = sum[j](ds[h, i, j] * k[h, j, d]) using bf16
    dk[h, j, d] = sum[i](ds[h, i, j] * q[h, i, d]) using bf16
    dv[h, j, d] = sum[i](p[h, i, j] * x[h, i, d]) using bf16
}"""
"""Of attention. The logsumexps are as large as those of inputs around 0, so that no weight is large."""


def _reduced(result: str = "logsumexp[j](s[i, j])", shape: str = "f32[M]") -> str:
    return f"""op f(x: bf16[M, D], y: bf16[N, D]) -> (z: {shape}) {{
    s[i, j] = sum[d](x[i, d] * y[j, d])
    z[i] = {result}
}}"""


def _product(left: str, right: str, result: str, value: str, more: str = "") -> str:
    return f"op f(a: {left}, b: {right}{more}) -> (c: {result}) {{ c[i, j] = {value} }}"


def _convolution(
    h: str, w: str, image: str = "N, H, W, C", result: str = "N, P, Q, K", rows: str = "H", columns: str = "W"
) -> str:  # fmt: skip
    """`h`, `w`: rows and columns of the image that a result at h, w takes; it has `rows` and `columns`."""
    access = image.lower().replace("h", "_").replace("w", w).replace("_", h)
    shape, at = result.replace("P", rows).replace("Q", columns), result.lower().replace("p", "h").replace("q", "w")
    return f"""op f(x: bf16[{image}], g: bf16[K, R, S, C]) -> (y: bf16[{shape}]) {{
    y[{at}] = sum[r, s, c](pad(x[{access}], 0) * g[k, r, s, c])
}}"""


HEADS = {"B": 1, "H": 4, "S": 200, "T": 264, "D": 64}
IMAGE = {"N": 2, "C": 64, "H": 18, "W": 20, "K": 72, "R": 3, "S": 3}
SIDE = {"M": 1032, "N": 1032, "K": 528}
BF16 = _product("bf16[M, K]", "bf16[K, N]", "bf16[M, N]", "sum[k](a[i, k] * b[k, j])")
TF32 = _product("f32[M, K]", "f32[N, K]", "f32[M, N]", "sum[k](a[i, k] * b[j, k]) using tf32")
GATED = """op f(x: bf16[M, K], g: bf16[K, N], u: bf16[K, N]) -> (y: bf16[M, N]) {
    a[i, j] = sum[k](x[i, k] * g[k, j])
    b[i, j] = sum[k](x[i, k] * u[k, j])
    y[i, j] = silu(a[i, j]) * b[i, j]
}"""
SEPARATE = """op f(x: bf16[M, K], g: bf16[K, N], u: bf16[K, P]) -> (y: bf16[M, N], z: f32[M, P]) {
    y[i, j] = sum[k](x[i, k] * g[k, j])
    z[i, j] = sum[k](x[i, k] * u[k, j])
}"""
SCALED = "sum[k](f32(a[i, k]) * f32(b[j, k]) * u[i, k // 128] * v[j // 128, k // 128])"
PROGRAMS: dict[str, tuple[str, dict[str, int]]] = {
    "attention": (_attention(), HEADS),
    "gradients of attention": (GRADIENTS, {"H": 16, "S": 776, "T": 776, "D": 64}),
    "attention capped in a window": (_attention("20 * tanh(s[b, h, i, j] / 20) if j <= i and j > i - 100 else -inf"), HEADS),
    "attention of grouped heads": (_attention(q="B, S, H, D", k="B, T, H // 2, D", key="b, j, h // 2, d"), HEADS),
    "attention of segments": (
        _attention("s[b, h, i, j] if g[b, i] == e[b, j] else -inf", ", g: i32[B, S], e: i32[B, T]"), HEADS),
    "attention with a bias": (_attention("s[b, h, i, j] + a[h, i, j]", ", a: bf16[H, S, T]"), HEADS),
    "attention of lengths": (_attention("s[b, h, i, j] if j < n[b] else -inf", ", n: i32[B]"), HEADS),
    "decoding": (_attention(), HEADS | {"S": 1, "T": 4100}),
    "attention, rows that begin anywhere": (_attention(), HEADS | {"D": 65}),
    "reduced product": (_reduced(), {"M": 2056, "N": 4104, "D": 72}),
    "reduced product of long rows": (_reduced(), {"M": 2056, "N": 8200, "D": 1032}),
    "reduced product, rows that begin anywhere": (
        _reduced("argmax[j](s[i, j])", "i64[M]"), {"M": 520, "N": 16400, "D": 129}),
    "convolution": (_convolution("h + r - 1", "w + s - 1"), IMAGE),
    "strided convolution": (_convolution("2 * h + r - 1", "2 * w + s - 1", rows="P", columns="Q"), IMAGE | {"P": 9, "Q": 10}),
    "dilated convolution": (_convolution("h + 2 * r - 2", "w + 2 * s - 2"), IMAGE),
    "convolution, channels first": (
        _convolution("h + r - 1", "w + s - 1", "N, C, H, W", "N, K, P, Q", "H", "W"), IMAGE | {"W": 24}),
    "convolution of 3 channels": (_convolution("h + r - 1", "w + s - 1"), IMAGE | {"C": 3}),
    "product": (BF16, SIDE),
    "large product": (BF16, {"M": 4096, "N": 4096, "K": 2048}),
    "product by clusters": (BF16, {"M": 2048, "N": 2048, "K": 528}),
    "product of shared steps": (BF16, SIDE | {"K": 2064}),
    "products of one left factor": (GATED, SIDE),
    "products of one left factor, apart": (SEPARATE, SIDE | {"P": 520}),
    "product, rows that begin anywhere": (BF16, {"M": 1031, "N": 1033, "K": 517}),
    "split product": (BF16, {"M": 136, "N": 264, "K": 16384}),
    "i8 product": (
        _product("i8[M, K]", "i8[N, K]", "i32[M, N]", "sum[k](i32(a[i, k]) * i32(b[j, k]))"), SIDE),
    "f8 product": (_product("f8e4m3[M, K]", "f8e4m3[N, K]", "bf16[M, N]", "sum[k](a[i, k] * b[j, k])"), SIDE),
    "f8 product with scales of blocks": (
        _product("f8e4m3[M, K]", "f8e4m3[N, K]", "bf16[M, N]", SCALED, ", u: f32[M, K // 128], v: f32[N // 128, K // 128]"),
        {"M": 1032, "N": 1024, "K": 512}),
    "tf32 product": (TF32, SIDE),
    "f32 product of parts": (TF32.removesuffix(" using tf32 }") + " }", {"M": 2056, "N": 2056, "K": 1032}),
    "weights of i8": (
        _product("bf16[M, K]", "i8[N, K]", "bf16[M, N]", "sum[k](a[i, k] * b[j, k]) * s[j]", ", s: f32[N]"),
        {"M": 4, "N": 2056, "K": 4112}),
}  # fmt: skip
"""Text and sizes, by what is multiplied."""


def _schedule(name: str, option: str) -> str:
    """Of one product, as `BF16` has it."""
    m, n, k = (PROGRAMS[name][1][d] for d in "MNK")
    return f"""version = 2
[[plan]]
program = "f(a: bf16[{m}, {k}], b: bf16[{k}, {n}])"
target = "h200"
[plan.kernels.f_c]
operations = ["c.sum", "c"]
[plan.kernels.f_c.warpgroup_contraction]
{option}
"""


SCHEDULES = {
    name: _schedule(name, option)
    for name, option in {"product by clusters": "cluster = [2, 1]", "product of shared steps": "stream_k = 48"}.items()
}
"""Of programs for which the model chooses other options; where the target is another, they say nothing."""
