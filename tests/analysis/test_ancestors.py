"""What operations are computed from, and what is between two of them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tools.lowering import planned

from tilec.analysis.ancestors import Ancestors
from tilec.plan import chain_fusion


@pytest.mark.parametrize("seed", range(20))
def test_what_is_between_is_what_both_ways_find(seed):
    """Operations are numbers here, each computed from some before it; the way back ends at some."""
    draw = random.Random(seed)
    nodes: list[Any] = list(range(24))
    producers = {n: draw.sample(range(n), draw.randrange(min(n, 3) + 1)) for n in nodes}
    ends = {n for n in nodes if draw.random() < 0.2 * (seed % 3)}
    ancestors = Ancestors(nodes, producers.__getitem__, {n: n for n in nodes}, ends.__contains__)

    def before(node: int) -> set[int]:
        return {m for p in producers[node] for m in {p, *(() if p in ends else before(p))}}

    for last in nodes:
        for first in nodes:
            assert ancestors.has(last, first) == (first in before(last))
            between = {m for m in before(last) if first in before(m)}
            assert ancestors.between(first, last) == sum(1 << m for m in between)


def test_layers_that_add_to_one_tensor_are_looked_at_once_each(monkeypatch):
    """A product is computed from those of all layers before, through the tensor that they add to: no pair of them is a chain, which
    has what is between; that is found without looking for it again for each pair."""
    looked = []
    with_readers = chain_fusion._with_readers
    monkeypatch.setattr(chain_fusion, "_with_readers", lambda *a: looked.append(a) or with_readers(*a))

    def count(layers: int) -> int:
        weights, statements = [], []
        for n in range(layers):
            after = "y" if n == layers - 1 else f"x{n + 1}"
            weights += [f"u{n}: bf16[D, D]", f"v{n}: bf16[G, 64, F]", f"w{n}: bf16[G, F, D]"]
            statements.append(f"q{n}[i, c]: bf16 = sum[d](x{n}[i, d] * u{n}[d, c])")
            statements.append(f"h{n}[g, i, f]: bf16 = sum[e](q{n}[i, g * 64 + e] * v{n}[g, e, f])")
            statements.append(f"{after}[i, d]: bf16 = x{n}[i, d] + sum[g, f](h{n}[g, i, f] * w{n}[g, f, d])")
        text = f"op f(x0: bf16[M, D], {', '.join(weights)}) -> (y: bf16[M, D]) {{\n" + "\n".join(statements) + "\n}"
        looked.clear()
        assert len(planned(text, None, {"M": 512, "D": 256, "F": 512, "G": 4}).kernels) == 3 * layers
        return len(looked)

    assert count(10) - count(8) == count(8) - count(6) > 0
