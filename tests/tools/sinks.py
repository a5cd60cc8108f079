"""Attention whose softmax has more entries than scores: sinks, null keys, an implicit 0, a part of another attention."""

from __future__ import annotations

SIZES = {"H": 2, "S": 40, "T": 72, "D": 64}
PRODUCT = "o[h, i, d] = sum[j in 0:T](p[h, i, j] * v[h, j, d]){using}"


def attention(
    middle: str, score: str = "t[h, i, j]", more: str = ", z: {kind}[H]", product: str = PRODUCT, out: str = "", kind: str = "bf16",
    using: str = " using bf16", shared: str = "h", heads: str = "H", last: str = "",
) -> str:  # fmt: skip
    """A program of scores `s`, which `middle` makes weights `p` of; `z` is what joins the scores."""
    return f"""op f(q: {kind}[H, S, D], k: {kind}[{heads}, T, D], v: {kind}[{heads}, T, D]{more}) -> (o: {kind}[H, S, D]{out}) {{
    t[h, i, j] = sum[d](q[h, i, d] * k[{shared}, j, d]) / 8
    s[h, i, j] = {score}
    {middle}
    {product}
    {last}
}}""".replace("{kind}", kind).replace("{using}", using).replace("v[h,", f"v[{shared},")


COLUMN = "c[h, i, j] = s[h, i, j] if j < T else z[h] where j in 0:T + 1\n    "
JOINED = COLUMN + "p[h, i, j] = softmax[j](c[h, i, j])"
BY_HAND = """m[h, i] = max(max[j](s[h, i, j]), z[h])
    e[h, i, j] = exp(s[h, i, j] - m[h, i])
    l[h, i] = sum[j](e[h, i, j]) + exp(z[h] - m[h, i])
    p[h, i, j] = e[h, i, j] / l[h, i]"""
TWICE = """c[h, i, j]: {kind} = s[h, i, j] if j < T else z[h] where j in 0:T + 1
    m[h, i]: {kind} = max[j](c[h, i, j])
    x[h, i, j] = c[h, i, j] - m[h, i]
    p[h, i, j]: {kind} = softmax[j](x[h, i, j])"""
SEVERAL = """c[h, i, j] = s[h, i, j] if j < T else z[h, j - T] where j in 0:T + 3
    p[h, i, j] = softmax[j](c[h, i, j])"""
FIRST = """c[h, i, j] = z[h] if j < 1 else s[h, i, j - 1] where j in 0:T + 1
    p[h, i, j] = softmax[j](c[h, i, j])"""
IMPLICIT = """m[h, i] = max(max[j](s[h, i, j]), 0)
    e[h, i, j] = exp(s[h, i, j] - m[h, i])
    p[h, i, j] = e[h, i, j] / (exp(-m[h, i]) + sum[j](e[h, i, j]))"""
UNBOUNDED = """m[h, i] = max[j](s[h, i, j])
    e[h, i, j] = exp(s[h, i, j] - m[h, i])
    p[h, i, j] = e[h, i, j] / (exp(-m[h, i]) + sum[j](e[h, i, j]))"""
LOGARITHM = """c[h, i, j] = s[h, i, j] if j < T else z[h] where j in 0:T + 1
    l[h, i] = logsumexp[j](c[h, i, j])
    p[h, i, j] = exp(s[h, i, j] - l[h, i])"""
MERGED = """m[h, i] = max[j](s[h, i, j])
    l[h, i] = m[h, i] + log(sum[j](exp(s[h, i, j] - m[h, i])))
    a[h, i] = max(l[h, i], z[h, i])
    w[h, i] = a[h, i] + log(exp(l[h, i] - a[h, i]) + exp(z[h, i] - a[h, i]))
    p[h, i, j] = exp(s[h, i, j] - w[h, i])"""
CAUSAL = "t[h, i, j] if j <= i + T - S else -inf"
WINDOW = "t[h, i, j] if j <= i + T - S and j > i + T - S - 20 else -inf"
EMPTY = "t[h, i, j] if j <= i - 20 else -inf"
ADDED = "t[h, i, j] + (0.0 if j <= i + T - S else -3.38e38)"
ALL = """o[h, i, d] = sum[j in 0:T + 3](p[h, i, j] * (v[h, j, d] if j < T else y[h, j - T, d])){using}"""

GIVEN = {  # for each name, what `attention` is given
    "a column": dict(middle=JOINED),
    "by hand": dict(middle=BY_HAND),
    "taken from the maximum twice": dict(middle=TWICE, using=""),
    "causal": dict(middle=JOINED, score=CAUSAL),
    "a window": dict(middle=JOINED, score=WINDOW),
    "a mask that is added": dict(middle=TWICE, score=ADDED, using=""),
    "rows without scores": dict(middle=JOINED, score=EMPTY),
    "rows without scores, by hand": dict(middle=BY_HAND, score=EMPTY),
    "rows without scores, taken from the maximum twice": dict(middle=TWICE, score=EMPTY, using=""),
    "grouped heads": dict(middle=JOINED, score=CAUSAL, shared="h // 2", heads="H // 2"),
    "a column by row": dict(middle=JOINED.replace("z[h]", "z[h, i]"), score=WINDOW, more=", z: f32[H, S]"),
    "several columns": dict(middle=SEVERAL, score=CAUSAL, more=", z: {kind}[H, 3]"),
    "several columns with values": dict(middle=SEVERAL, score=CAUSAL, more=", z: {kind}[H, 3], y: {kind}[H, 3, D]", product=ALL),
    "a column before": dict(middle=FIRST, score=CAUSAL, product=PRODUCT.replace("p[h, i, j]", "p[h, i, j + 1]")),
    "off by one": dict(middle=IMPLICIT, more=""),
    "off by one, causal": dict(middle=IMPLICIT, score=CAUSAL, more=""),
    "off by one, as a column": dict(middle=JOINED.replace("z[h]", "0.0"), more=""),
    "off by one, of the maximum alone": dict(middle=UNBOUNDED, more=""),
    "a logarithm": dict(middle=LOGARITHM, score=CAUSAL),
    "a logarithm that is a result": dict(middle=LOGARITHM, score=CAUSAL, out=", l: f32[H, S]"),
    "rows without scores, a logarithm": dict(middle=LOGARITHM, score=EMPTY),
    "merged with another part": dict(middle=MERGED, score=CAUSAL, more=", z: f32[H, S]", out=", w: f32[H, S]"),
}


def forms(kind: str = "bf16") -> dict[str, str]:
    """The programs, of bf16 or of f32; a weight that is f32 may be rounded for the product with bf16 values."""
    own = {"kind": kind, "using": " using bf16" if kind == "bf16" else ""}
    return {name: attention(**(own | given)) for name, given in GIVEN.items()}


FORMS = forms()
