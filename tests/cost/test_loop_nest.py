"""The price of a loop nest on a CPU follows what its innermost loop does."""

import pytest
from tools.lowering import lowered

from tilec.core.target import BUILT_IN
from tilec.core.targets import load
from tilec.cost.loop_nest import LoopAccess, LoopBody, LoopOperation, nest_us

TARGET = load(BUILT_IN / "cpu.toml")


def sums(rows: int, columns: int, steps: tuple[int | None, int], **more) -> LoopBody:
    """Of the rows of a matrix whose elements lie so many apart."""
    both = frozenset({0, 1})
    read, written = LoopAccess(steps, 4), LoopAccess((1, 0), 4, stores=True)
    return LoopBody((rows, columns), frozenset({1}), (read, written), (LoopOperation(both, 1, 4),), **more)


def us(body: LoopBody, order: tuple[int, ...] = (0, 1)) -> float:
    return nest_us(body, order, body.extents, TARGET)


def test_strided_elements_cost_more():
    """Of one amount of work: rows in memory, every third element, elements of another row each, and at computed subscripts."""
    together, third, other, computed = (us(sums(64, 1024, (a, b))) for a, b in ((1024, 1), (3072, 3), (1, 64), (1024, None)))
    assert together < 0.5 * third and third <= other and together < 0.5 * computed


def test_lines_that_l1_loses_cost_more():
    near, far = us(sums(1, 64, (1, 24))), us(sums(1, 1 << 16, (1, 24)))
    assert far / (1 << 16) > 2 * near / 64
    assert us(sums(1, 64, (1, 1024))) > us(sums(1, 64, (1, 1040)))  # a page apart: one set of the cache for all


def test_short_rows_cost_more():
    """Rows of 1024, of 100 and of 12 elements, of as many elements in all."""
    prices = [us(sums((1 << 15) // n, n, (n, 1))) * ((1 << 15) // n * n) ** -1 for n in (1024, 100, 12)]
    assert prices == sorted(prices) and prices[-1] > 3 * prices[0]


def test_states_that_wait_cost_more():
    plain, choice = us(sums(64, 48, (48, 1))), us(sums(64, 48, (48, 1), choices=12))
    lanes = us(sums(64, 4096, (4096, 1), choices=12)) / (4096 / 48)
    assert choice > 3 * plain and lanes < 0.5 * choice
    scan = us(sums(64, 4096, (4096, 1), serial=1))
    assert scan > 3 * us(sums(64, 4096, (4096, 1)))
    assert us(sums(64, 4096, (4096, 1), serial=1, latencies=2.6)) > 2 * scan


def test_no_iterations_cost_nothing():
    assert nest_us(sums(4, 0, (1, 1)), (0, 1), (4, 0), TARGET) == 0


PROGRAMS = {
    "column": ("y[j] = sum[i](x[i, j])", 2.0),
    "across": ("y[i] = sum[j](x[j, i] * x[i, j])", None),
    "quotient": ("y[i] = sum[j in 0:512](x[i, j // 2])", None),
    "computed": ("y[i] = sum[j in 0:512](x[i, clamp(511 - j * j, 0, 511)])", None),
    "place": ("y[i] = argmax[j](x[i, j])", 16.0),
}


def loops_us(body: str) -> float:
    result = "i64[512]" if "argmax" in body else "f32[512, 512]" if body.startswith("y[i, j]") else "f32[512]"
    text = f"op f(x: f32[512, 512]) -> (y: {result}) {{ {body} }}"
    (kernel,) = lowered(text, None, {}, target=TARGET, end="plan")[1].plan.kernels
    return float(kernel.work.loops_us)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_priced_by_their_loops(name):
    """Beside the sum of rows: vectors of columns cost about as much, elements apart and states that wait more."""
    body, most = PROGRAMS[name]
    rows, own = loops_us("y[i] = sum[j](x[i, j])"), loops_us(body)
    assert rows > 0
    assert own > 3 * rows if most is None else rows < own < most * rows


def test_what_registers_transpose_is_no_strided_access():
    plain, transposed = loops_us("y[i, j] = x[i, j] + 1"), loops_us("y[i, j] = x[j, i] + x[i, j]")
    assert plain < transposed < 0.5 * loops_us("y[i] = sum[j](x[j, i] * x[i, j])")


def test_an_edit_of_the_loops_moves_the_price():
    text = "op f(x: f32[M, N]) -> (y: f32[M]) { y[i] = sum[j](x[i, j]) }"
    (kernel,) = lowered(text, None, {"M": 512, "N": 512}, target=TARGET, end="plan")[1].plan.kernels
    transposed = kernel.weigh(type(kernel)(**{**vars(kernel), "loops": {name: (1, 0) for name in kernel.loops}}))
    assert transposed.loops_us > 2 * kernel.work.loops_us


