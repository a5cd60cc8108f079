"""Nothing is written beside results, temporaries and scratch memory, and nothing is read outside of arrays.

The examples and shapes around the widths of vectors run under guard pages, in a process of their own.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np
import pytest
from conftest import Within
from expectations import EXAMPLES
from fuzz.guards import Guarded, Overrun, in_a_child, run_checked

import tilec

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs mprotect and fork")


def poke(array: np.ndarray, place: int) -> None:
    """Writes a byte at a distance from the first."""
    ctypes.c_uint8.from_address(array.ctypes.data + place).value = 1


def test_what_is_written_next_to_an_array_is_found():
    for place, where in ((-1, "before"), (8, "behind")):
        with Guarded() as guarded:
            poke(guarded.empty("result y", (8,), np.uint8), place)
            with pytest.raises(Overrun, match=f"1 bytes were written {where} result y"):
                guarded.check()


def test_touching_a_guard_page_is_found():
    def touch(pages, place):
        with Guarded(pages) as guarded:
            poke(guarded.empty("y", (5,), np.float32), place)
            guarded.check()

    for pages, place in (("end", 20), ("begin", -1)):
        with pytest.raises(Overrun, match="SIGSEGV"):
            in_a_child(lambda p=pages, n=place: touch(p, n))
    in_a_child(lambda: touch("end", 19))


@pytest.mark.some(3)
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_stay_inside(name):
    e = EXAMPLES[name]
    inputs = e.inputs(np.random.default_rng(0))
    ways = [None, "end", "begin"]
    for results in in_a_child(lambda: [run_checked(e.path, e.op, e.sizes, inputs, pages) for pages in ways]):
        Within(e.path, inputs, op=e.op, sizes=e.sizes, kind="cpu")(results)


@pytest.mark.parametrize("to", ["bf16", "f8e4m3", "i8"])
def test_rows_around_vectors_stay_inside(to):
    """LLVM stored four bytes for the last of nine elements."""
    text = f"op f(x: f32[M, N], z: f64[M, N]) -> (y: {to}[M, N], s: {to}[M]) {{\n"
    text += "    y[i, j] = exp(x[i, j])\n    s[i] = max[j](z[i, j])\n}\n"

    def all_sizes():
        for n, pages in ((9, "end"), (13, "begin"), (31, "end")):
            run_checked(text, "f", {"M": 6, "N": n}, [np.ones((6, n), np.float32), np.ones((6, n))], pages)

    in_a_child(all_sizes)


def test_a_program_that_writes_too_much_is_found():
    """A kernel for longer rows stands for a wrong one."""
    text = "op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] * 2 }"
    long = tilec.compile(text, sizes={"N": 40}).build()._last
    with pytest.raises(Overrun):
        in_a_child(lambda: run_checked(text, "f", {"N": 33}, [np.ones(33, np.float32)], None, of=long))
