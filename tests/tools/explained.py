"""Plans of short programs, and what becomes of an expectation that stands in them."""

from __future__ import annotations

from tilec.core.diagnostics import Source, TileError
from tilec.plan.report.expectations import check_expectations
from tools.lowering import lowered

SOFTMAX = """op softmax(x: f32[M, N]) -> (y: f32[M, N]) {
    m[i]    = max[j](x[i, j])
    e[i, j] = exp(x[i, j] - m[i])
    s[i]    = sum[j](e[i, j])
    y[i, j] = e[i, j] / s[i]
    EXPECT
}
"""
MLP = """op mlp(x: f32[M, D], w: f32[D, F], v: f32[F, D]) -> (y: f32[M, D]) {
    h[m, f] = exp(sum[d](x[m, d] * w[d, f]))
    y[m, d] = sum[f](h[m, f] * v[f, d])
    EXPECT
}
"""


def planned(text: str, sizes: dict[str, int], target: str = "cpu", name: str = "program.tile"):
    specialised, result = lowered(Source(name, text), None, sizes, target=target, end="plan", emit=False)
    return specialised, result.plan


def failure(text: str, expect: str, sizes: dict[str, int], target: str = "cpu") -> str | None:
    specialised, plan = planned(text.replace("EXPECT", f"expect {expect}"), sizes, target)
    try:
        check_expectations(specialised, plan)
    except TileError as error:
        return str(error)
    return None
