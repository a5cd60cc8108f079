"""Programs for matrix units, each beside what users of PyTorch call: products, convolutions, attention and its relatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product

from benchmarks.workloads import EXAMPLES, Bound, Input, Workload, functional, limit, torch

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
DEPTHWISE = ((32, 56, 256, 3), (32, 112, 32, 3), (32, 56, 96, 7), (32, 28, 192, 7), (32, 14, 384, 7))
HEADS, GROUPS = 32, 4


def loads() -> Iterator[Workload]:
    for dtype, n in product(("bf16", "f16"), SQUARES):
        if dtype == "bf16" or n in (2048, 4096):
            yield matmul(dtype, n, n, n)
    for shape in (*OBLONG, *LONG_SUMS, *ROWS):
        yield matmul("bf16", *shape)
    for left, right in (("m, k", "n, k"), ("k, m", "k, n"), ("k, m", "n, k")):
        yield matmul("bf16", 4096, 4096, 4096, left=left, right=right)
    yield from (batched(*shape) for shape in BATCHES)
    yield from (epilogue(form, *shape) for form in EPILOGUES for shape in ((4096, 4096, 4096), (8192, 4096, 1024)))
    yield from (integers(n) for n in (4096, 8192))
    yield from (narrow(n, using) for n in (4096, 8192) for using in ("", " using f22"))
    yield from (convolution(*shape) for shape in CONVOLUTIONS)
    yield from (depthwise(*shape) for shape in DEPTHWISE)
    for d, s, causal in product((64, 128), (512, 2048, 8192, 16384), (False, True)):
        yield attention("causal" if causal else "full", d, s)
    yield from (attention(form, d, 4096) for d in (96, 256) for form in ("full", "causal"))
    yield from (attention(form, 128, 4096) for form in SCORES if form not in ("full", "causal"))
    yield from (decoding(keys) for keys in (8192, 65536))
    yield from (cross_entropy(v) for v in (32768, 128256))


# ---- products --------------------------------------------------------------------------------------------------------


def _product_bound(dtype: str, k: int) -> Bound:
    return limit(dtype, k / 8, 4)


def matmul(dtype: str, m: int, n: int, k: int, left: str = "m, k", right: str = "k, n") -> Workload:
    """`left` and `right`: the order of the factors' indices."""
    sizes = {"m": m, "n": n, "k": k}
    shapes = [tuple(sizes[i] for i in order.split(", ")) for order in (left, right)]
    text = f"op mm(a: {dtype}[{left.upper()}], b: {dtype}[{right.upper()}]) -> (y: {dtype}[M, N]) {{ "
    text += f"y[m, n] = sum[k](a[{left}] * b[{right}]) }}"

    def peer(a, b):
        return (a if left == "m, k" else a.t()) @ (b if right == "k, n" else b.t())

    order = "" if (left, right) == ("m, k", "k, n") else f" [{left}] [{right}]"
    inputs = (Input(dtype, shapes[0]), Input(dtype, shapes[1], 1 / math.sqrt(k)))
    return Workload(f"product {m}x{n}x{k}{order} {dtype}", text, inputs, peer, _product_bound(dtype, k), flops=2.0 * m * n * k)


def batched(b: int, m: int, n: int, k: int) -> Workload:
    text = "op mm(a: bf16[B, M, K], b: bf16[B, K, N]) -> (y: bf16[B, M, N]) { y[i, m, n] = sum[k](a[i, m, k] * b[i, k, n]) }"
    inputs = (Input("bf16", (b, m, k)), Input("bf16", (b, k, n), 1 / math.sqrt(k)))
    name = f"product {b} of {m}x{n}x{k} bf16"
    return Workload(name, text, inputs, lambda a, b: a @ b, _product_bound("bf16", k), flops=2.0 * b * m * n * k)


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
    return Workload(f"product, {form} {m}x{n}x{k} bf16", text, inputs, peer, limit("bf16", k / 8, 8), flops=2.0 * m * n * k)


def integers(n: int) -> Workload:
    text = "op mm(a: i8[M, K], b: i8[N, K]) -> (y: i32[M, N]) { y[m, n] = sum[k](i32(a[m, k]) * i32(b[n, k])) }"
    return Workload(
        f"product {n} i8 into i32", text, (Input("i8", (n, n), below=127),) * 2, lambda a, b: torch._int_mm(a, b.t()),
        Bound(), flops=2.0 * n**3,
    )  # fmt: skip


def narrow(n: int, using: str) -> Workload:
    """One scale for each factor, as `torch._scaled_mm` has; it is 1 here."""
    text = "op mm(a: f8e4m3[M, K], b: f8e4m3[N, K]) -> (y: bf16[M, N]) { "
    text += f"y[m, n] = sum[k](f32(a[m, k]) * f32(b[n, k])){using} }}"

    def scaled(a, b):
        if not a.dtype.is_floating_point or a.element_size() > 1:
            return a @ b.t()
        one = torch.ones((), device="cuda")
        return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=bool(using))

    bound = Bound(2.0**-8 + (2.0**-7 if using else 0), math.sqrt(n) * (0.25 if using else 2.0**-8))
    return Workload(f"product {n} f8e4m3{using}", text, (Input("f8e4m3", (n, n)),) * 2, scaled, bound, flops=2.0 * n**3)


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
    return Workload(name, text, inputs, peer, _product_bound("bf16", depth), flops=flops)


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
    return Workload(name, text, inputs, peer, _product_bound("bf16", window * window))


# ---- attention -------------------------------------------------------------------------------------------------------

_ALIBI = "t[b, h, i, j] + exp2(f32(-1 - h) / 4) * f32(j - i)"
SCORES: dict[str, tuple[str, Callable | None, Callable]] = {
    # the score in tilec; in PyTorch as a change of a score and as a mask, both by places
    "full": ("t[b, h, i, j]", None, lambda b, h, i, j: i >= 0),
    "causal": ("t[b, h, i, j] if j <= i else -inf", None, lambda b, h, i, j: j <= i),
    "causal by distance": (
        f"{_ALIBI} if j <= i else -inf", lambda s, b, h, i, j: s + torch.exp2((-1 - h) / 4) * (j - i), lambda b, h, i, j: j <= i
    ),
    "capped in a window": (
        "20 * tanh(t[b, h, i, j] / 20) if j <= i and j > i - 1024 else -inf", lambda s, b, h, i, j: 20 * torch.tanh(s / 20),
        lambda b, h, i, j: (j <= i) & (j > i - 1024),
    ),
    "causal, grouped": ("t[b, h, i, j] if j <= i else -inf", None, lambda b, h, i, j: j <= i),
}  # fmt: skip


def attention(form: str, d: int, s: int) -> Workload:
    """16,384 places in all, 2,048 columns of heads. `grouped`: a key head for 8 query heads."""
    score, change, mask = SCORES[form]
    grouped, heads, b = "grouped" in form, 2048 // d, max(1, 16384 // s)
    share = 8 if grouped else 1
    kv, of = (f"H // {share}", f"h // {share}") if grouped else ("H", "h")
    text = f"""op attention(q: bf16[B, H, S, D], k: bf16[B, {kv}, S, D], v: bf16[B, {kv}, S, D]) -> (o: bf16[B, H, S, D]) {{
        t[b, h, i, j] = sum[d](q[b, h, i, d] * k[b, {of}, j, d]) / sqrt(f32(D))
        s[b, h, i, j] = {score}
        p[b, h, i, j] = softmax[j](s[b, h, i, j])
        o[b, h, i, d] = sum[j](p[b, h, i, j] * v[b, {of}, j, d]) using bf16
    }}"""
    causal = form.startswith("causal") and change is None

    def sdpa(q, k, v):
        return functional().scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

    def plain(q, k, v):
        """Head by head, in the inputs' type."""
        at = torch.arange(s, device="cuda")
        found = torch.empty_like(q)
        for n, h in product(range(b), range(heads)):
            t = q[n, h] @ k[n, h // share].t() / math.sqrt(d)
            head = torch.tensor(float(h), device="cuda")
            t = t if change is None else change(t, n, head, at[:, None], at[None])
            t = torch.where(mask(n, h, at[:, None], at[None]), t, -math.inf)
            found[n, h] = torch.softmax(t, -1) @ v[n, h // share]
        return found

    def flex(q, k, v):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        blocks = create_block_mask(mask, None, None, s, s, device="cuda")
        run = torch.compile(flex_attention, dynamic=False)
        return lambda: run(q, k, v, score_mod=change, block_mask=blocks, enable_gqa=grouped)

    kept = sum(min(i + 1, 1024) for i in range(s)) / s**2 if "window" in form else 0.5 if form != "full" else 1.0
    shape, narrow_shape = (b, heads, s, d), (b, heads // share, s, d)
    backends = {} if change is not None else {n: _backend(n, sdpa) for n in ("cuDNN", "FlashAttention")}
    return Workload(
        f"attention {form} {'x'.join(map(str, shape))}", text, (Input("bf16", shape), *(Input("bf16", narrow_shape),) * 2),
        sdpa if change is None else plain, EXAMPLES["attention"].bound({"D": d, "T": s, "S": s}),
        flops=4.0 * b * heads * s * s * d * kept, expected=None if change is None else plain,
        peers=backends, compiled_peers={"FlexAttention": flex} if form != "full" else {},
    )  # fmt: skip


def _backend(name: str, call: Callable) -> Callable:
    def run(*tensors):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel([{"cuDNN": SDPBackend.CUDNN_ATTENTION, "FlashAttention": SDPBackend.FLASH_ATTENTION}[name]]):
            return call(*tensors)

    return run


def decoding(keys: int) -> Workload:
    """One query for each of 8 sequences; 32 query heads share 4 key heads."""
    share = HEADS // GROUPS
    keys_of = f"bf16[B, H // {share}, S, D]"
    text = f"""op attention(q: bf16[B, H, D], k: {keys_of}, v: {keys_of}) -> (o: bf16[B, H, D]) {{
        s[b, h, j] = sum[d](q[b, h, d] * k[b, h // {share}, j, d]) / sqrt(f32(D))
        p[b, h, j] = softmax[j](s[b, h, j])
        o[b, h, d] = sum[j](p[b, h, j] * v[b, h // {share}, j, d]) using bf16
    }}"""

    def sdpa(q, k, v):
        return functional().scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=True)[:, :, 0]

    shapes = ((8, HEADS, 128), *((8, GROUPS, keys, 128),) * 2)
    return Workload(
        f"decoding {keys} keys, 8x{HEADS}x128 by {GROUPS}", text, tuple(Input("bf16", x) for x in shapes), sdpa,
        EXAMPLES["attention"].bound({"D": 128, "T": keys, "S": 1}), peers={"cuDNN": _backend("cuDNN", sdpa)},
    )  # fmt: skip


def cross_entropy(vocabulary: int, m: int = 8192, k: int = 4096) -> Workload:
    """The loss of a linear layer's logits."""
    text = """op loss(x: bf16[M, K], w: bf16[V, K], label: i64[M]) -> (y: f32[M]) {
        t[i, v] = sum[k](x[i, k] * w[v, k])
        l[i] = logsumexp[v](t[i, v])
        y[i] = l[i] - t[i, label[i]]
    }"""

    def peer(x, w, label):
        return functional().cross_entropy(x @ w.t(), label, reduction="none")

    inputs = (Input("bf16", (m, k)), Input("bf16", (vocabulary, k), 1 / math.sqrt(k)), Input("i64", (m,), below=vocabulary))
    return Workload(
        f"linear and cross-entropy {m}x{k} to {vocabulary} bf16", text, inputs, peer, Bound(1e-4, 1e-3),
        flops=2.0 * m * k * vocabulary,
    )  # fmt: skip
