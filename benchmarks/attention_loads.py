"""Attention and its relatives, decoding, and reductions of a linear layer's results, beside what users of PyTorch call."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from benchmarks.workloads import EXAMPLES, Bound, Input, Workload, functional, limit, torch

HEADS, GROUPS = 32, 4
PLACES, COLUMNS = 16384, 2048  # of all sequences together; of all heads together
WINDOW, REACH = 1024, 512


@dataclass(frozen=True)
class Score:
    """`text`: the score in tilec, of `t`. In PyTorch `change(extra)` makes a change of a score, and `mask(extra)` a mask, both by
    places (b, h, i, j). `more` declares the `extra` tensors, which `inputs(b, heads, s)` describes. `kept`: the share of scores
    that count. `flags` of PyTorch's own attention; None where it has no such form."""

    text: str
    change: Callable | None = None
    mask: Callable | None = None
    more: str = ""
    inputs: Callable = lambda b, heads, s: ()
    kept: Callable = lambda s: 1.0
    flags: dict | None = None


def _causal(*_) -> Callable:
    return lambda b, h, i, j: j <= i


def _half(s: int) -> float:
    return 0.5


def _by_distance(*_) -> Callable:
    return lambda s, b, h, i, j: s + torch.exp2((-1 - h) / 4) * (j - i)


def _capped(*_) -> Callable:
    return lambda s, b, h, i, j: 20 * torch.tanh(s / 20)


T = "t[b, h, i, j]"
SCORES = {
    "full": Score(T, flags={}),
    "causal": Score(f"{T} if j <= i else -inf", None, _causal, kept=_half, flags={"is_causal": True}),
    "causal, grouped": Score(
        f"{T} if j <= i else -inf", None, _causal, kept=_half, flags={"is_causal": True, "enable_gqa": True}
    ),
    "causal by distance": Score(
        f"{T} + exp2(f32(-1 - h) / 4) * f32(j - i) if j <= i else -inf", _by_distance, _causal, kept=_half
    ),
    "capped in a window": Score(
        f"20 * tanh({T} / 20) if j <= i and j > i - {WINDOW} else -inf", _capped,
        lambda: lambda b, h, i, j: (j <= i) & (j > i - WINDOW),
        kept=lambda s: sum(min(i + 1, WINDOW) for i in range(s)) / s**2,
    ),
    "near a place": Score(
        f"{T} if j >= i - {REACH} and j <= i + {REACH} else -inf", None, lambda: lambda b, h, i, j: (i - j).abs() <= REACH,
        kept=lambda s: sum(min(i + REACH + 1, s) - max(i - REACH, 0) for i in range(s)) / s**2,
    ),
    "with a bias": Score(
        f"{T} + bias[h, i, j]", lambda bias: lambda s, b, h, i, j: s + bias[h, i, j],
        more=", bias: bf16[H, S, S]", inputs=lambda b, heads, s: (Input("bf16", (heads, s, s)),),
    ),
    "causal in segments": Score(
        f"{T} if seg[b, i] == seg[b, j] and j <= i else -inf", None,
        lambda seg: lambda b, h, i, j: (seg[b, i] == seg[b, j]) & (j <= i),
        more=", seg: i32[B, S]", inputs=lambda b, heads, s: (Input("i32", (b, s), below=8, ascend=True),), kept=lambda s: 1 / 16,
    ),
    "of lengths": Score(
        f"{T} if j <= n[b] else -inf", None, lambda n: lambda b, h, i, j: j <= n[b],
        more=", n: i32[B]", inputs=lambda b, heads, s: (Input("i32", (b,), below=s),), kept=_half,
    ),
}  # fmt: skip


def attention(
    form: str, d: int, s: int, dtype: str = "bf16", packed: bool = False, places: int = PLACES, columns: int = COLUMNS
) -> Workload:
    """`grouped`: a key head for 8 query heads. `packed`: q, k and v are parts of one tensor, `[B, S, 3, H, D]`."""
    score = SCORES[form]
    heads, b = columns // d, max(1, places // s)
    share = 8 if "grouped" in form else 1
    kv, of = (f"H // {share}", f"h // {share}") if share > 1 else ("H", "h")
    inputs = f"q: {dtype}[B, H, S, D], k: {dtype}[B, {kv}, S, D], v: {dtype}[B, {kv}, S, D]"
    q, k, v = "q[b, h, i, d]", f"k[b, {of}, j, d]", f"v[b, {of}, j, d]"
    if packed:
        inputs = f"x: {dtype}[B, S, 3, H, D]"
        q, k, v = "x[b, i, 0, h, d]", "x[b, j, 1, h, d]", "x[b, j, 2, h, d]"
    text = f"""op attention({inputs}{score.more}) -> (o: {dtype}[B, H, S, D]) {{
        t[b, h, i, j] = sum[d]({q} * {k}) / sqrt(f32(D))
        s[b, h, i, j] = {score.text}
        p[b, h, i, j] = softmax[j](s[b, h, i, j])
        o[b, h, i, d] = sum[j](p[b, h, i, j] * {v}) using bf16
    }}"""

    def parts(*tensors):
        if not packed:
            return (*tensors[:3], tensors[3:])
        return (*(tensors[0][:, :, n].transpose(1, 2) for n in range(3)), tensors[1:])

    def sdpa(*tensors):
        q, k, v, _ = parts(*tensors)
        return functional().scaled_dot_product_attention(q, k, v, **score.flags)

    def plain(*tensors):
        """Head by head, in the inputs' type."""
        q, k, v, extra = parts(*tensors)
        at = torch.arange(s, device=q.device)
        change, mask = (made and made(*extra) for made in (score.change, score.mask))
        found = torch.empty_like(q)
        for n, h in product(range(b), range(heads)):
            t = q[n, h] @ k[n, h // share].t() / math.sqrt(d)
            head = torch.tensor(h, device=q.device)
            t = t if change is None else change(t, n, head, at[:, None], at[None]).to(t.dtype)
            t = t if mask is None else torch.where(mask(n, h, at[:, None], at[None]), t, -math.inf)
            found[n, h] = torch.softmax(t, -1) @ v[n, h // share]
        return found

    def flex(*tensors):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        q, k, v, extra = parts(*tensors)
        change, mask = (made and made(*extra) for made in (score.change, score.mask))
        rows = b if extra else None  # the mask differs from sequence to sequence
        blocks = mask and create_block_mask(mask, rows, None, s, s, device="cuda")
        run = torch.compile(flex_attention, dynamic=False)
        return lambda: run(q, k, v, score_mod=change, block_mask=blocks, enable_gqa=share > 1)

    known = score.flags is not None
    shape, narrow_shape = (b, heads, s, d), (b, heads // share, s, d)
    factors = (Input(dtype, (b, s, 3, heads, d)),) if packed else (Input(dtype, shape), *(Input(dtype, narrow_shape),) * 2)
    backends = {n: _backend(n, sdpa) for n in ("cuDNN", "FlashAttention")} if known else {}
    name = f"attention {form}{', packed' if packed else ''} {'x'.join(map(str, shape))}{'' if dtype == 'bf16' else ' ' + dtype}"
    return Workload(
        name, text, (*factors, *score.inputs(b, heads, s)), sdpa if known else plain,
        EXAMPLES["causal_attention"].bound({"D": d, "S": s}),
        flops=4.0 * b * heads * s * s * d * score.kept(s), expected=None if known else plain,
        peers=backends, compiled_peers={} if known else {"FlexAttention": flex},
        form="attention" if known else "relatives of attention",
    )  # fmt: skip


def compiled(peer: Callable) -> Callable:
    """Makes what torch.compile makes of it."""

    def make(*tensors):
        from benchmarks.torch_peers import compiled

        fast = compiled(peer, tensors)
        return lambda: fast(*tensors)

    return make


def _backend(name: str, call: Callable) -> Callable:
    def run(*tensors):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel([{"cuDNN": SDPBackend.CUDNN_ATTENTION, "FlashAttention": SDPBackend.FLASH_ATTENTION}[name]]):
            return call(*tensors)

    return run


def decoding(keys: int, sequences: int = 8) -> Workload:
    """One query for each of some sequences; 32 query heads share 4 key heads."""
    share = HEADS // GROUPS
    keys_of = f"bf16[B, H // {share}, S, D]"
    text = f"""op attention(q: bf16[B, H, D], k: {keys_of}, v: {keys_of}) -> (o: bf16[B, H, D]) {{
        s[b, h, j] = sum[d](q[b, h, d] * k[b, h // {share}, j, d]) / sqrt(f32(D))
        p[b, h, j] = softmax[j](s[b, h, j])
        o[b, h, d] = sum[j](p[b, h, j] * v[b, h // {share}, j, d]) using bf16
    }}"""

    def sdpa(q, k, v):
        return functional().scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=True)[:, :, 0]

    shapes = ((sequences, HEADS, 128), *((sequences, GROUPS, keys, 128),) * 2)
    return Workload(
        f"decoding {keys} keys, {sequences}x{HEADS}x128 by {GROUPS}", text, tuple(Input("bf16", x) for x in shapes), sdpa,
        EXAMPLES["causal_attention"].bound({"D": 128, "S": keys}), peers={"cuDNN": _backend("cuDNN", sdpa)},
        form="decoding of few keys" if keys <= 8192 else "decoding of many keys",
    )  # fmt: skip


# ---- reductions of a product's rows ----------------------------------------------------------------------------------


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
        flops=2.0 * m * k * vocabulary, compiled_peers={"torch.compile": compiled(peer)}, form="linear and cross-entropy",
    )  # fmt: skip


def reduced(function: str, m: int, n: int, k: int) -> Workload:
    """The logarithm of the sum of exponentials, or the maximum, of each row of a product."""
    text = f"op reduced(x: bf16[M, K], w: bf16[N, K]) -> (y: f32[M]) {{ y[i] = {function}[j](sum[k](x[i, k] * w[j, k])) }}"
    peer = (lambda x, w: (x @ w.t()).logsumexp(-1)) if function == "logsumexp" else (lambda x, w: (x @ w.t()).amax(-1))
    inputs = (Input("bf16", (m, k)), Input("bf16", (n, k), 1 / math.sqrt(k)))
    name = f"{function} of product {m}x{n}x{k} bf16"
    return Workload(name, text, inputs, peer, limit("f32", k, 8), flops=2.0 * m * n * k)
