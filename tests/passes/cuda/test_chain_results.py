"""Results of contraction chains that have an index which the last contraction does not have, as of `torch.stack` and `expand`.

A block has one element of such an index: no kernel may write the result that way."""

import pytest
from conftest import assert_within
from tools.chains import check, lowered
from tools.contractions import arrays

from tilec.kernels import ContractionChain
from tilec.semantics.interpreter import interpret

GRADIENT = """op f(q: bf16[B, S, D], k: bf16[B, S, D], l: f32[B, S], g: bf16[B, S, D], a: bf16[B, S, D]) -> ({result}) {{
    s[b, i, j] = sum[d](q[b, i, d] * k[b, j, d])
    p[b, i, j]: bf16 = exp(s[b, i, j] - l[b, i])
    r[b, j, d]: bf16 = sum[i](p[b, i, j] * g[b, i, d])
    {last}
}}"""
MAXIMA = """op f(q: bf16[B, S, D], k: bf16[B, S, D]) -> ({result}) {{
    s[b, i, j] = sum[d](q[b, i, d] * k[b, j, d])
    r[b, i] = max[j](s[b, i, j])
    {last}
}}"""
SIZES = {"B": 2, "S": 72, "D": 64}
FURTHER = {
    "stacked": (
        GRADIENT, "y: bf16[B, S, 3, D]", "y[b, j, c, d] = a[b, j, d] if c < 2 else r[b, j, d] where c in 0:3",
    ),
    "stacked in front": (
        GRADIENT, "y: bf16[2, B, S, D]", "y[c, b, j, d] = a[b, j, d] if c < 1 else r[b, j, d] where c in 0:2",
    ),
    "expanded": (GRADIENT, "y: bf16[B, S, D, 4]", "y[b, j, d, c] = r[b, j, d] where c in 0:4"),
    "expanded as long as the scores": (GRADIENT, "y: bf16[B, S, S, D]", "y[b, j, c, d] = r[b, j, d] where c in 0:S"),
    "maxima, expanded": (MAXIMA, "y: f32[B, S, 3]", "y[b, i, c] = r[b, i] where c in 0:3"),
    "maxima, stacked": (MAXIMA, "y: f32[3, B, S]", "y[c, b, i] = r[b, i] if c == 1 else f32(c) where c in 0:3"),
}  # fmt: skip


@pytest.mark.parametrize("name", FURTHER)
def test_another_kernel_has_a_further_index(name, monkeypatch):
    text, result, last = FURTHER[name]
    text = text.format(result=result, last=last)
    special, lower = lowered(text, SIZES, (64, 32), monkeypatch)
    chain, other = lower.plan.kernels
    assert isinstance(chain.options, ContractionChain) and not isinstance(other.options, ContractionChain)
    assert any("has indices that" in str(remark) for remark in lower.plan.remarks)
    inputs = arrays(special)
    assert_within(text, inputs, interpret(lower.texts["map"], inputs), kind="cuda")


@pytest.mark.parametrize("shape, last", [("B, S, 1, D", "b, j, c, d"), ("1, B, S, D", "c, b, j, d")])
def test_an_index_of_one_element_is_the_chains(shape, last, monkeypatch):
    check(
        GRADIENT.format(result=f"y: bf16[{shape}]", last=f"y[{last}] = r[b, j, d] + a[b, j, d] where c in 0:1"),
        SIZES, (64, 32), monkeypatch,
    )  # fmt: skip
