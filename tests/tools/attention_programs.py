"""Programs of attention, and their sizes, for the tests of contraction chains."""

HEAD = "op f(q: bf16[B, H, S, D], k: bf16[B, H, T, D], v: bf16[B, H, T, E]) -> (o: bf16[B, H, S, E]) {\n"
SCORES = " s[b, h, i, j] = sum[d](q[b, h, i, d] * k[b, h, j, d])"
PRODUCT = " o[b, h, i, e] = sum[j](p[b, h, i, j] * v[b, h, j, e])"


def program(scores: str = "", weights: str = "softmax[j](s[b, h, i, j])", using: str = " using bf16") -> str:
    """Attention with something behind the scores, and other weights."""
    lines = [HEAD, SCORES, scores, "\n p[b, h, i, j] = ", weights, "\n", PRODUCT, using, "\n}"]
    return "".join(lines)


def two_results(scores: str, inputs: str = "") -> str:
    """Attention with something of its own for each row, and the logarithm of a row's sum as a second result."""
    return f"""op f(q: bf16[H, S, D], k: bf16[H, T, D], v: bf16[H, T, D], {inputs}z: f32[H, S, D]) -> (
    o: f32[H, S, D], l: f32[H, S]
) {{
    s[h, i, j] = sum[d](q[h, i, d] * k[h, j, d]) {scores}
    m[h, i] = max[j](s[h, i, j])
    e[h, i, j] = exp(s[h, i, j] - m[h, i])
    n[h, i] = sum[j](e[h, i, j])
    r[h, i, d] = sum[j](e[h, i, j] * v[h, j, d]) using bf16
    o[h, i, d] = r[h, i, d] / n[h, i] + z[h, i, d]
    l[h, i] = m[h, i] + log(n[h, i])
}}"""


PROGRAMS = {
    "softmax": program(" / sqrt(f32(D))"),
    "in three parts": program(" / sqrt(f32(D))", using=""),
    "causal": program(" / 8 if j <= i else -inf"),
    "a window": program(" / 8 if j <= i and j > i - 40 else -inf"),
    "later ones only": program(" / 8 if j >= i + 3 else -inf"),
    "a mask without form": program(" / 8 if (i * j) % 3 < 2 else -inf"),
    "no maximum": program(" / 8", "exp(s[b, h, i, j])", using=""),
    "exp2": program(" / 8", "exp2(s[b, h, i, j] - max[t](s[b, h, i, t]))"),
    "no reduction": program(" / 8", "max(s[b, h, i, j], 0)"),
}
SIZES = {"B": 1, "H": 1, "S": 40, "T": 72, "D": 64, "E": 64}
