"""Programs for matrix units, each beside what users of PyTorch call: products, convolutions, attention and its relatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

from benchmarks import gathered_loads
from benchmarks.attention_loads import SCORES, attention, compiled, cross_entropy, decoding
from benchmarks.workloads import Bound, Input, Workload, functional, limit, torch

SQUARES = (512, 1024, 1536, 2048, 3072, 4096, 8192)
OBLONG = (
    (512, 8192, 4096), (8192, 512, 4096), (4096, 14336, 4096), (4096, 4096, 14336), (16384, 1024, 1024), (65536, 256, 256),
    (256, 16384, 1024), (2048, 8192, 512), (1000, 3000, 5000), (2040, 2008, 1992), (3000, 1000, 2000), (2047, 1999, 2001),
    (1023, 1025, 1024),
)  # fmt: skip
LONG_SUMS = ((256, 256, 16384), (128, 1024, 8192), (512, 512, 32768), (64, 64, 65536), (1024, 1024, 16384))
BATCHES = ((64, 1024, 1024, 512), (16, 512, 512, 512), (128, 256, 256, 256), (32, 1024, 1024, 64), (256, 128, 128, 512))
ROWS = ((1, 8192, 8192), (4, 8192, 8192), (16, 8192, 8192), (64, 8192, 8192), (16, 4096, 4096), (64, 14336, 4096))
CONVOLUTIONS = (  # N, H, C, K, window, stride; the first of each net its stem
    (32, 224, 3, 64, 7, 2), (32, 56, 64, 64, 1, 1), (32, 56, 64, 64, 3, 1), (32, 56, 64, 256, 1, 1), (32, 56, 256, 64, 1, 1),
    (32, 56, 128, 128, 3, 2), (32, 28, 128, 512, 1, 1), (32, 56, 256, 512, 1, 2), (32, 28, 128, 128, 3, 1),
    (32, 14, 256, 256, 3, 1), (32, 14, 1024, 256, 1, 1), (32, 14, 512, 512, 3, 2), (32, 7, 512, 512, 3, 1),
    (32, 7, 512, 2048, 1, 1), (32, 56, 96, 384, 1, 1), (32, 14, 384, 1536, 1, 1), (4, 256, 64, 64, 3, 1),
    (4, 128, 128, 128, 3, 1), (4, 32, 512, 512, 3, 1), (32, 56, 256, 256, 3, 1),
)  # fmt: skip
ODD_CHANNELS = ((32, 28, 100, 100, 3, 1), (32, 56, 36, 36, 3, 1), (32, 28, 99, 99, 3, 1), (32, 28, 180, 99, 1, 1))
TOKENS = (64, 512, 4096, 8192)  # rows of what several weights multiply
DEPTHWISE = ((32, 56, 256, 3), (32, 112, 32, 3), (32, 56, 96, 7), (32, 28, 192, 7), (32, 14, 384, 7))


def loads() -> Iterator[Workload]:
    for dtype, n in product(("bf16", "f16"), SQUARES):
        if dtype == "bf16" or n in (2048, 4096):
            yield matmul(dtype, n, n, n)
    for shape in (*OBLONG, *LONG_SUMS):
        yield matmul("bf16", *shape)
    yield from (matmul("bf16", *shape, right="n, k") for shape in ((2052, 2004, 1996), (2046, 2002, 1998)))
    yield from (few_rows(*shape) for shape in ROWS)
    for left, right in (("m, k", "n, k"), ("k, m", "k, n"), ("k, m", "n, k")):
        yield matmul("bf16", 4096, 4096, 4096, left=left, right=right)
    yield from (batched(*shape) for shape in BATCHES)
    yield from (epilogue(form, *shape) for form in EPILOGUES for shape in ((4096, 4096, 4096), (8192, 4096, 1024)))
    yield from (gated(*shape) for shape in product(TOKENS, ((1024, 4096), (4096, 14336))))
    yield from (projections(*shape) for shape in product(TOKENS, ((1024, 1024, 1024), (4096, 4096, 1024))))
    for n in (2048, 4096, 8192):
        yield matmul("f32", n, n, n)
        yield matmul("f32", n, n, n, using="tf32")
        yield matmul("f32", n, n, n, right="n, k", using="tf32")
    yield from (integers(n, n, n) for n in (4096, 8192))
    yield from (narrow(n, n, n, using) for n in (4096, 8192) for using in ("", " using f22"))
    yield from (block_scaled(n, n, n) for n in (4096, 8192))
    yield from (byte_weights(m, 8192, 8192) for m in (1, 4, 16))
    yield from (convolution(*shape) for shape in CONVOLUTIONS)
    yield from (replace(convolution(*shape), form="convolutions of odd channels") for shape in ODD_CHANNELS)
    yield from (depthwise(*shape) for shape in DEPTHWISE)
    for d, s, causal in product((64, 128), (512, 2048, 8192, 16384), (False, True)):
        yield attention("causal" if causal else "full", d, s)
    yield from (attention(form, d, 4096) for d in (96, 256) for form in ("full", "causal"))
    yield from (attention(form, 128, 4096) for form in SCORES if form not in ("full", "causal"))
    yield attention("causal by distance", 64, 4096, "f16")
    yield attention("causal", 128, 4096, packed=True)
    yield from (decoding(keys) for keys in (8192, 65536))
    yield from (cross_entropy(v) for v in (32768, 128256))
    yield from gathered_loads.loads()


# ---- products --------------------------------------------------------------------------------------------------------


def _product_bound(dtype: str, k: int) -> Bound:
    return limit(dtype, k / 8, 4)


def matmul(dtype: str, m: int, n: int, k: int, left: str = "m, k", right: str = "k, n", using: str = "") -> Workload:
    """`left` and `right`: the order of the factors' indices. `using`: the type that factors may be rounded to."""
    sizes = {"m": m, "n": n, "k": k}
    shapes = [tuple(sizes[i] for i in order.split(", ")) for order in (left, right)]
    text = f"op mm(a: {dtype}[{left.upper()}], b: {dtype}[{right.upper()}]) -> (y: {dtype}[M, N]) {{ "
    text += f"y[m, n] = sum[k](a[{left}] * b[{right}]){f' using {using}' if using else ''} }}"

    def peer(a, b):
        return (a if left == "m, k" else a.t()) @ (b if right == "k, n" else b.t())

    order = "" if (left, right) == ("m, k", "k, n") else f" [{left}] [{right}]"
    inputs = (Input(dtype, shapes[0]), Input(dtype, shapes[1], 1 / math.sqrt(k)))
    bound, rounded = _product_bound(dtype, k), 2.0**-10 if using else 0.0
    bound = Bound(bound.rtol + rounded, bound.atol + 4 * rounded)
    form = f"products of {using or dtype}" if dtype == "f32" else "products"
    return Workload(f"product {m}x{n}x{k}{order} {using or dtype}", text, inputs, peer, bound, flops=2.0 * m * n * k, form=form)


def few_rows(m: int, n: int, k: int) -> Workload:
    """Memory limits it: each weight is read for a few products."""
    found = matmul("bf16", m, n, k)
    return replace(found, form="few rows of bf16") if m <= 16 else found


def byte_weights(m: int, n: int, k: int) -> Workload:
    """Few rows times weights of 8 bits with a scale for each column."""
    text = """op linear(x: bf16[M, K], w: i8[N, K], s: f32[N]) -> (y: bf16[M, N]) {
        y[m, n] = sum[k](x[m, k] * w[n, k] * s[n])
    }"""

    def peer(x, w, s):
        return (x @ w.to(x.dtype).t()) * s.to(x.dtype)

    inputs = (Input("bf16", (m, k)), Input("i8", (n, k), 25), Input("f32", (n,), 1 / (25 * math.sqrt(k))))
    name = f"few rows, weights of i8 {m}x{n}x{k}"
    return Workload(
        name, text, inputs, peer, limit("bf16", k / 8, 8), flops=2.0 * m * n * k,
        compiled_peers={"torch.compile": compiled(peer)}, form="few rows, weights of i8",
    )  # fmt: skip


def batched(b: int, m: int, n: int, k: int) -> Workload:
    text = "op mm(a: bf16[B, M, K], b: bf16[B, K, N]) -> (y: bf16[B, M, N]) { y[i, m, n] = sum[k](a[i, m, k] * b[i, k, n]) }"
    inputs = (Input("bf16", (b, m, k)), Input("bf16", (b, k, n), 1 / math.sqrt(k)))
    name = f"product {b} of {m}x{n}x{k} bf16"
    return Workload(
        name, text, inputs, lambda a, b: a @ b, _product_bound("bf16", k), flops=2.0 * b * m * n * k, form="products"
    )  # fmt: skip


EPILOGUES: dict[str, tuple[str, Callable]] = {
    "bias": ("h[m, n] + b[n]", lambda x, w, b, r: torch.addmm(b, x, w)),
    "bias and gelu": (
        "gelu_tanh(h[m, n] + b[n])", lambda x, w, b, r: functional().gelu(torch.addmm(b, x, w), approximate="tanh")
    ),
    "residual": ("h[m, n] + r[m, n]", lambda x, w, b, r: torch.addmm(r, x, w)),
}  # fmt: skip


def epilogue(form: str, m: int, n: int, k: int) -> Workload:
    expression, peer = EPILOGUES[form]
    text = f"""op mm(x: bf16[M, K], w: bf16[K, N], b: bf16[N], r: bf16[M, N]) -> (y: bf16[M, N]) {{
        h[m, n] = sum[k](x[m, k] * w[k, n])
        y[m, n] = {expression}
    }}"""
    scale = 1 / math.sqrt(k)
    inputs = (Input("bf16", (m, k)), Input("bf16", (k, n), scale), Input("bf16", (n,)), Input("bf16", (m, n)))
    name, flops = f"product, {form} {m}x{n}x{k} bf16", 2.0 * m * n * k
    return Workload(
        name, text, inputs, peer, limit("bf16", k / 8, 8), flops=flops, compiled_peers={"torch.compile": compiled(peer)},
        form="products with an epilogue",
    )  # fmt: skip


def gated(tokens: int, widths: tuple[int, int]) -> Workload:
    """The first half of a gated perceptron: two products of one factor, which meet."""
    m, (k, n) = tokens, widths
    text = """op gated(x: bf16[M, K], g: bf16[K, N], u: bf16[K, N]) -> (h: bf16[M, N]) {
        h[m, n] = silu(sum[k](x[m, k] * g[k, n])) * sum[k](x[m, k] * u[k, n])
    }"""

    def one_kernel(x, g, u):
        return functional().silu(x @ g) * (x @ u)

    def at_once(x, g, u):
        """With the weights in one matrix from before."""
        both = torch.cat((g, u), 1)
        run = torch.compile(lambda y: functional().silu(y[:, :n]) * y[:, n:], dynamic=False)
        return lambda: run(x @ both)

    inputs = (Input("bf16", (m, k)), Input("bf16", (k, n), 1 / math.sqrt(k)), Input("bf16", (k, n), 1 / math.sqrt(k)))
    return Workload(
        f"siblings, gated {m}x{n}x{k} bf16", text, inputs, one_kernel, limit("bf16", k / 4, 16), flops=4.0 * m * n * k,
        form="products of one factor", compiled_peers={"torch.compile": compiled(one_kernel), "cuBLAS, weights in one": at_once},
    )  # fmt: skip


def projections(tokens: int, widths: tuple[int, int, int]) -> Workload:
    """Queries, keys and values: three products of one factor, apart."""
    m, (k, n, p) = tokens, widths
    text = """op projections(x: bf16[M, K], wq: bf16[K, N], wk: bf16[K, P], wv: bf16[K, P])
        -> (q: bf16[M, N], k: bf16[M, P], v: bf16[M, P]) {
        q[m, n] = sum[j](x[m, j] * wq[j, n])
        k[m, p] = sum[j](x[m, j] * wk[j, p])
        v[m, p] = sum[j](x[m, j] * wv[j, p])
    }"""

    def each(x, wq, wk, wv):
        return x @ wq, x @ wk, x @ wv

    def at_once(x, wq, wk, wv):
        """With the weights in one matrix from before."""
        all_three = torch.cat((wq, wk, wv), 1)
        return lambda: (x @ all_three).split((n, p, p), 1)

    weights = (Input("bf16", (k, width), 1 / math.sqrt(k)) for width in (n, p, p))
    return Workload(
        f"siblings, projections {m}x({n}+{p}+{p})x{k} bf16", text, (Input("bf16", (m, k)), *weights), each,
        _product_bound("bf16", k), flops=2.0 * m * (n + 2 * p) * k,
        form="products of one factor", compiled_peers={"torch.compile": compiled(each), "cuBLAS, weights in one": at_once},
    )  # fmt: skip


def integers(m: int, n: int, k: int) -> Workload:
    text = "op mm(a: i8[M, K], b: i8[N, K]) -> (y: i32[M, N]) { y[m, n] = sum[k](i32(a[m, k]) * i32(b[n, k])) }"
    inputs = (Input("i8", (m, k), 25), Input("i8", (n, k), 25))

    def peer(a, b):
        return torch._int_mm(a, b.t())

    return Workload(
        f"product {m}x{n}x{k} i8 into i32", text, inputs, peer, Bound(), flops=2.0 * m * n * k, form="products of i8"
    )  # fmt: skip


def narrow(m: int, n: int, k: int, using: str) -> Workload:
    """One scale for each factor, as `torch._scaled_mm` has; it is 1 here."""
    text = "op mm(a: f8e4m3[M, K], b: f8e4m3[N, K]) -> (y: bf16[M, N]) { "
    text += f"y[m, n] = sum[k](f32(a[m, k]) * f32(b[n, k])){using} }}"

    def scaled(a, b):
        if not a.dtype.is_floating_point or a.element_size() > 1:
            return a @ b.t()
        one = torch.ones((), device="cuda")
        return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=bool(using))

    bound = Bound(2.0**-8 + (2.0**-7 if using else 0), math.sqrt(k) * (0.25 if using else 2.0**-8))
    inputs, form = (Input("f8e4m3", (m, k)), Input("f8e4m3", (n, k))), "products of f8, fast" if using else "products of f8"
    return Workload(f"product {m}x{n}x{k} f8e4m3{using}", text, inputs, scaled, bound, flops=2.0 * m * n * k, form=form)


def block_scaled(m: int, n: int, k: int) -> Workload:
    """Scales of 128 numbers of a row of the left factor, and of 128x128 numbers of the right one."""
    text = """op mm(a: f8e4m3[M, K], b: f8e4m3[N, K], s: f32[M, K // 128], t: f32[N // 128, K // 128]) -> (y: bf16[M, N]) {
        y[m, n] = sum[k](a[m, k] * s[m, k // 128] * b[n, k] * t[n // 128, k // 128])
    }"""

    def peer(a, b, s, t):
        s, t = s.repeat_interleave(128, 1), t.repeat_interleave(128, 0).repeat_interleave(128, 1)
        return (a.to(s.dtype) * s) @ (b.to(s.dtype) * t).t()

    def scaled(a, b, s, t):
        columns = s.t().contiguous().t()  # as it is asked for
        return torch._scaled_mm(a, b.t(), columns, t.t(), out_dtype=torch.bfloat16)

    inputs = (Input("f8e4m3", (m, k)), Input("f8e4m3", (n, k)), Input("f32", (m, k // 128), mean=1, scale=0.1))
    inputs += (Input("f32", (n // 128, k // 128), mean=1, scale=0.1),)
    bound = Bound(2.0**-7, math.sqrt(k) * 2.0**-7)
    return Workload(
        f"product {m}x{n}x{k} f8e4m3, scales of blocks", text, inputs, peer, bound, flops=2.0 * m * n * k,
        peers={"_scaled_mm": scaled}, form="products of f8, scales of blocks",
    )  # fmt: skip


# ---- convolutions ----------------------------------------------------------------------------------------------------


def _window(stride: int, window: int) -> tuple[str, str]:
    pad = (window - 1) // 2
    step = f"{stride} * " if stride > 1 else ""
    h, w = (f"{step}{i} + {j} - {pad}" if window > 1 else f"{step}{i}" for i, j in (("h", "r"), ("w", "s")))
    return h, w


def convolution(n: int, size: int, c: int, k: int, window: int, stride: int) -> Workload:
    """Channels last; weights [K, R, S, C], as PyTorch has them in that format."""
    h, w = _window(stride, window)
    element = f"x[n, {h}, {w}, c]" if window == 1 else f"pad(x[n, {h}, {w}, c], 0)"
    out = (size - 1) // stride + 1
    result = f"bf16[{n}, {out}, {out}, {k}]"
    text = f"""op conv(x: bf16[{n}, {size}, {size}, {c}], f: bf16[{k}, {window}, {window}, {c}]) -> (y: {result}) {{
        y[n, h, w, k] = sum[r, s, c]({element} * f[k, r, s, c])
    }}"""
    if window == 1:
        text = f"""op conv(x: bf16[{n}, {size}, {size}, {c}], f: bf16[{k}, {c}]) -> (y: {result}) {{
            y[n, h, w, k] = sum[c]({element} * f[k, c])
        }}"""

    def peer(x, f):
        f = f[:, :, None, None] if f.ndim == 2 else f.permute(0, 3, 1, 2)
        found = functional().conv2d(x.permute(0, 3, 1, 2), f, stride=stride, padding=(window - 1) // 2)
        return found.permute(0, 2, 3, 1)

    depth = window * window * c
    filter_shape = (k, c) if window == 1 else (k, window, window, c)
    inputs = (Input("bf16", (n, size, size, c)), Input("bf16", filter_shape, 1 / math.sqrt(depth)))
    name = f"convolution {window}x{window}{f' by {stride}' if stride > 1 else ''} {n}x{size}x{size}x{c} to {k} bf16"
    flops = 2.0 * n * out * out * k * depth
    return Workload(name, text, inputs, peer, _product_bound("bf16", depth), flops=flops, form="convolutions")


def depthwise(n: int, size: int, c: int, window: int) -> Workload:
    pad = window // 2
    text = f"""op conv(x: bf16[N, H, W, C], f: bf16[{window}, {window}, C]) -> (y: bf16[N, H, W, C]) {{
        y[n, h, w, c] = sum[r, s](pad(x[n, h + r - {pad}, w + s - {pad}, c], 0) * f[r, s, c])
    }}"""

    def peer(x, f):
        weights = f.permute(2, 0, 1)[:, None]
        return functional().conv2d(x.permute(0, 3, 1, 2), weights, padding=pad, groups=c).permute(0, 2, 3, 1)

    inputs = (Input("bf16", (n, size, size, c)), Input("bf16", (window, window, c), 1 / window))
    name = f"depthwise convolution {window}x{window} {n}x{size}x{size}x{c} bf16"
    return Workload(name, text, inputs, peer, _product_bound("bf16", window * window), form="depthwise convolutions")
