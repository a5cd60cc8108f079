"""Numbers that a scalar is multiplied by, read from its expression."""

from math import inf

import pytest

from tilec.analysis.expression import Expr, constant
from tilec.analysis.linear_factor import inside, linear_factor

X = Expr("element", key="x", own_dims=(0,))
STATE = Expr("state", key=0)
CONDITION = Expr("element", key="c", own_dims=(0,), type="i1")


def times(a, b):
    return Expr("arith.mulf", (a, b))


def over(a, b):
    return Expr("arith.divf", (a, b))


def negative(a):
    return Expr("arith.negf", (a,))


def masked(a, b):
    return Expr("arith.select", (CONDITION, a, b), "")


FACTORS = {
    "a product": (times(X, constant(3.0)), X, 3.0, times(STATE, constant(3.0))),
    "from the left": (times(constant(3.0), X), X, 3.0, times(constant(3.0), STATE)),
    "several": (over(times(X, constant(3.0)), constant(2.0)), X, 1.5, over(times(STATE, constant(3.0)), constant(2.0))),
    "twice negative": (negative(times(X, constant(-2.0))), X, 2.0, negative(times(STATE, constant(-2.0)))),
    "a mask": (masked(times(X, constant(2.0)), constant(-inf)), masked(X, constant(-inf)), 2.0, times(STATE, constant(2.0))),
    "under a mask, negative": (
        times(masked(negative(X), constant(-inf)), constant(2.0)), masked(negative(X), constant(-inf)), 2.0,
        times(STATE, constant(2.0)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("x, z, c, state", FACTORS.values(), ids=FACTORS)
def test_factors(x, z, c, state):
    """The maximum of x is the factors of x, and no others, applied to the maximum of z."""
    assert linear_factor(x) == (z, c)
    assert inside(x, STATE) == (z, state)


@pytest.mark.parametrize("x", [X, negative(X), times(X, constant(-2.0)), masked(negative(X), constant(-inf))])
def test_no_positive_factor(x):
    assert inside(x, STATE) == (x, STATE)
