"""Fractions made of random bits, compared as whole numbers: the same answers, at the ends of the range, too."""

from __future__ import annotations

import numpy as np
import pytest
from tools.emulation import emulate
from tools.philox import expected

import tilec

TEXT = "op f(seed: i64, p: f32[M], x: f32[M, N]) -> (y: f32[M, N]) {{ y[i, j] = 1 if {} else x[i, j] }}"
QUESTIONS = {
    "rand(seed, j) < p[i]": np.less,
    "rand(seed, j) <= p[i]": np.less_equal,
    "rand(seed, j) > p[i]": np.greater,
    "rand(seed, j) >= p[i]": np.greater_equal,
    "p[i] < rand(seed, j)": lambda r, p: p < r,
    "p[i] <= rand(seed, j)": lambda r, p: p <= r,
    "p[i] > rand(seed, j)": lambda r, p: p > r,
    "p[i] >= rand(seed, j)": lambda r, p: p >= r,
    "not rand(seed, j) < p[i]": lambda r, p: ~(r < p),  # true for a NaN, as are the next three
    "not rand(seed, j) <= p[i]": lambda r, p: ~(r <= p),
    "not rand(seed, j) > p[i]": lambda r, p: ~(r > p),
    "not p[i] <= rand(seed, j)": lambda r, p: ~(p <= r),
}
COUNT, SEED = 36, 7
SCALED = "5.960464477539063e-08"  # 2^-24, by which a fraction is made


def limits() -> np.ndarray:
    """Numbers of the stream and those next to them, beside the ends of what they and floats may be."""
    drawn = [np.float32(r) for r in expected(SEED, 0, 4)]
    beside = [np.nextafter(r, np.float32(end)) for r in drawn for end in (0, 1)]
    ends = [0, -0.0, 1, 1 - 2**-24, 2.0**-24, 2.0**-25, 1e-45, -1e-45, -1, 1.5, 2.0**103, 3e38, -3e38, np.inf, -np.inf]
    return np.array([*drawn, *beside, *ends, np.nan], np.float32)


@pytest.mark.crossed
@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("target", ["cpu", "h200"])
def test_answers(question, target):
    p = limits()
    arrays = [np.int64(SEED), p, np.zeros((len(p), COUNT), np.float32)]
    op = tilec.compile(TEXT.format(question), target=target)
    found = op(*arrays) if target == "cpu" else op.interpret("map", *arrays)
    np.testing.assert_array_equal(found, answers(question, p))


def answers(question: str, p: np.ndarray) -> np.ndarray:
    return QUESTIONS[question](expected(SEED, 0, COUNT), p[:, None]).astype(np.float32)


@pytest.mark.parametrize("question", ["rand(seed, j) >= p[i]", "p[i] >= rand(seed, j)"])
def test_printed_kernels_answer_the_same(question):
    p = limits()[::5]
    (y,), _ = emulate(
        TEXT.format(question), None, {"seed": np.array(SEED), "p": p, "x": np.zeros((len(p), COUNT), np.float32)}
    )
    np.testing.assert_array_equal(y, answers(question, p))


@pytest.mark.parametrize(
    ("question", "whole"),
    [
        ("rand(seed, j) < p[i]", True),
        ("rand(seed, j) < 0.5", True),
        ("rand(seed, j) < x[i, j]", False),  # a limit of its own for every element
        ("rand(seed, j) * 3 < p[i]", False),  # a product that rounds
        ("rand(seed, j) == p[i]", False),
    ],
)
def test_what_is_compared_as_whole_numbers(question, whole):
    (kernel,) = tilec.compile(TEXT.format(question), target="h200", sizes={"M": 4, "N": COUNT}).build().kernels
    assert (SCALED not in kernel.source) == whole, kernel.source
