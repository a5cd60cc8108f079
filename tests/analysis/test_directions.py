"""Directions of memory: by how much computed subscripts grow along each dimension."""

from types import SimpleNamespace

import pytest
from tools.lowering import planned

from tilec.analysis.directions import mean_step, step_inside
from tilec.index.facts import minimum
from tilec.index.terms import index

I = index("i", 64)


@pytest.mark.parametrize(
    "subscript, exact, mean",
    [
        (2 * I, 2, 2),
        (I // 2, 0, 0.5),
        ((I + 3) // 4, 0, 0),  # varies from quotient to quotient
        ((I + 4) // 4, 0, 0.25),
        ((2 * I) // 8, 0, 0.25),
        (3 * (I // 3), 0, 1),
        (5 * (I // 2) + 7, 0, 2.5),
        (minimum(I // 2, 40), 0, 0.5),
        (63 - I // 2, 0, -0.5),
        (I % 2, 0, 0),
        (I // 64, 0, 0),
        (index("j", 8) + 3, 0, 0),
    ],
)
def test_steps(subscript, exact, mean):
    terms = SimpleNamespace(dims=[I])
    assert step_inside(terms, subscript, 0) == exact
    assert mean_step(terms, subscript, 0) == mean


def test_threads_do_not_lie_along_quotients():
    """Along `j`, the lines of memory that a warp reads lie apart."""
    text = """op f(x: f32[N, P, C]) -> (y: f32[N, C, 2 * P]) {
        m[n, j] = max[c](x[n, j // 2, c]) where j in 0:2 * P
        y[n, c, j] = x[n, j // 2, c] - m[n, j]
    }"""
    (kernel,) = planned(text, None, {"N": 128, "P": 2048, "C": 128}).kernels
    assert kernel.options.name == "rows" and kernel.options.thread_order[0] == 2
