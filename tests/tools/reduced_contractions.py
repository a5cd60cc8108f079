"""Programs of contractions whose result is only reduced along its columns, their sizes, and tiles of them."""

from tilec.cost.chain import ChainTile

SCORES = " s[i, j] = sum[d](x[i, d] * y[j, d])\n"


def program(body: str, results: str = "z: f32[M]", more: str = "") -> str:
    """Something that is computed from rows of scores."""
    return f"op f(x: bf16[M, D], y: bf16[N, D]{more}) -> ({results}) {{\n{SCORES}{body}\n}}"


PROGRAMS = {
    "maximum": program(" z[i] = max[j](s[i, j])"),
    "log of sums": program(" z[i] = logsumexp[j](s[i, j])"),
    "statistics of softmax": program(
        " m[i] = max[j](s[i, j] / 8)\n l[i] = sum[j](exp(s[i, j] / 8 - m[i]))", "m: f32[M], l: f32[M]"
    ),
    "norms of rows": program(" z[i] = sqrt(sum[j](s[i, j] ** 2))"),
    "least distance": program(" z[i] = min[j](a[i] - 2 * s[i, j] + b[j])", more=", a: f32[M], b: f32[N]"),
    "causal": program(" z[i] = logsumexp[j](s[i, j] if j <= i else -inf)"),
    "chosen element": program(
        " z[i] = logsumexp[j](s[i, j]) - sum[j](s[i, j] if j == t[i] else 0)", more=", t: i32[M]"
    ),
    "top 1": program(" z[i] = argmax[j](s[i, j])\n m[i] = max[j](s[i, j])", "z: i64[M], m: f32[M]"),
    "nearest": program(" z[i] = i32(argmin[j](b[j] - 2 * s[i, j]))", "z: i32[M]", ", b: f32[N]"),
    "nearest and its weight": program(
        " z[i] = argmax[j](s[i, j])\n w[i] = logsumexp[j](s[i, j]) - max[j](s[i, j])", "z: i64[M], w: f32[M]"
    ),
    "rounded results": program(" r[i, j]: bf16 = s[i, j]\n z[i] = max[j](f32(r[i, j]))"),
}
SIZES = {"M": 40, "N": 72, "D": 136}
KEPT, STEPS = ChainTile(64, 32, 4, 168, 0, True, False), ChainTile(64, 32, 3, 168, 0, False, False)
PING_PONG = ChainTile(128, 32, 4, 168, 0, True, True)
SHARED = ChainTile(128, 64, 2, 168, 0, False, False)
WARPS = ChainTile(32, 32, 2, 168, 0, True, False, unit="mma.sync")
TALL_WARPS = ChainTile(64, 64, 3, 168, 0, False, False, unit="mma.sync", warp_rows=32)
