"""Values of MLIR as terms: their ranges, and what CUDA kernels make of them."""

from __future__ import annotations

import re

import pytest

from tilec.analysis.index_terms import LARGEST, ValueTerms
from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.index.facts import NONE
from tilec.index.terms import Term, index

LOOP = """func.func @f(%n: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %c10 = arith.constant 10 : index
  %t = gpu.thread_id x
  scf.for %i = %c0 to %c10 step %c1 {
    %0 = affine.apply affine_map<(a, b) -> (a * 128 + b - 5)>(%i, %t)
    %1 = arith.divui %i, %c3 : index
    %2 = arith.remui %0, %c3 : index
    %3 = affine.min affine_map<(a) -> (a * -8 + 60, 8)>(%i)
    %4 = affine.apply affine_map<(a) -> (a floordiv 3 + a mod 4)>(%i)
    %5 = arith.maxsi %0, %c0 : index
    %6 = arith.addi %i, %n : index
    %7 = arith.muli %0, %3 : index
    %8 = arith.andi %0, %c3 : index
    %9 = arith.shrui %i, %c1 : index
    %10 = arith.subi %c10, %i : index
  }
  return
}"""
SOME = -LARGEST, LARGEST + 9  # of any index, and one below 10
WANT = [(-5, 1274), (0, 3), (0, 2), (-12, 8), (0, 6), (0, 1274), SOME, (-15288, 10192), (0, 3), (0, 4), (1, 10)]
UNKNOWN = -(2**63), 2**63 - 1


def threads(value: ir.Value) -> Term | None:
    """Numbers of 128 threads."""
    return index("thread", 128) if getattr(value.owner, "name", "") == "gpu.thread_id" else None


def test_ranges_follow_arithmetic():
    with mlir.context(), ir.Location.unknown():
        module = ir.Module.parse(LOOP)
        terms = ValueTerms(threads)
        (loop,) = [op for op in mlir.traverse(module.operation) if op.name == "scf.for"]
        body = [o.operation for o in loop.regions[0].blocks[0].operations if o.operation.name != "scf.yield"]
        assert [NONE.bounds(terms.exact(op.results[0])) for op in body] == WANT


def test_a_clamp_and_a_choice_of_any_number_have_ranges():
    text = """func.func @f(%n: i64, %c: i1) {
      %c0 = arith.constant 0 : i64
      %c7 = arith.constant 7 : i64
      %c9 = arith.constant 9 : i64
      %0 = arith.addi %n, %c7 : i64
      %1 = arith.maxsi %0, %c0 : i64
      %2 = arith.minsi %1, %c7 : i64
      %3 = arith.select %c, %2, %c9 : i64
      %4 = arith.select %c, %0, %c9 : i64
      %5 = arith.minsi %0, %n : i64
      return
    }"""
    with mlir.context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        terms = ValueTerms()
        found = [NONE.bounds(terms.exact(op.results[0])) for op in mlir.traverse(module.operation) if len(op.results)]
        assert found[3:] == [UNKNOWN, (0, 2**63 - 1), (0, 7), (0, 9), UNKNOWN, UNKNOWN]


@pytest.mark.parametrize(("extent", "marked"), [(2**20, True), (2**33, False)])
def test_divisions_are_marked_where_they_fit_32_bits(extent, marked):
    from tools.lowering import emitted

    source = "op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + x[i // 3] }"
    (kernel,) = emitted(source, None, {"N": extent}).kernels
    assert bool(re.search(r"within_u31\(.*\) // 3", kernel.text)) == marked, kernel.text


def test_ranges_of_64_bit_integers_end_where_they_may_wrap():
    text = """func.func @f() {
      %c8 = arith.constant 8192 : i64
      %c2 = arith.constant 2 : i64
      %big = arith.constant 4611686018427387904 : i64
      %t = gpu.thread_id x
      %0 = arith.index_cast %t : index to i64
      %1 = arith.muli %0, %c8 : i64
      %2 = arith.shrui %1, %c2 : i64
      %3 = arith.muli %0, %big : i64
      %4 = arith.shrui %3, %c2 : i64
      %5 = arith.andi %3, %c8 : i64
      %6 = arith.subi %0, %c2 : i64
      %7 = arith.divui %6, %c8 : i64
      %8 = arith.remui %6, %c8 : i64
      %9 = arith.divui %1, %c8 : i64
      return
    }"""
    with mlir.context(), ir.Location.unknown():
        terms = ValueTerms(threads)
        module = ir.Module.parse(text)
        body = [
            op
            for op in mlir.traverse(module.operation)
            if op.name.startswith(("arith.", "gpu.")) and op.name != "arith.constant"
        ]
        found = [NONE.bounds(terms.exact(op.results[0])) for op in body]
    assert found[:7] == [(0, 127), (0, 127), (0, 127 * 8192), (0, 127 * 2048), UNKNOWN, UNKNOWN, (0, 0)]
    assert found[7:] == [(-2, 125), UNKNOWN, (0, 8191), (0, 127)]  # of -2, which is 2^64 - 2 without a sign


def test_quotients_by_powers_of_two_are_shifts_with_a_sign():
    """NVVM's LLVM 7 drops the logical shift of `8 * i + 5`, known to fit 32 bits, where the result is cut to 32."""
    from tools.lowering import emitted

    source = "op f(n: i64[N]) -> (y: i32[N], z: f32[N]) { y[i] = i32(i // 8 + n[i])  z[i] = rand(7, i64(i)) }"
    text = "".join(kernel.text for kernel in emitted(source, None, {"N": 4096}).kernels)
    assert re.search(r"within_i32\(.*\) >> 3\b", text) and re.search(r"within_i32\(.*\) >> 2\b", text), text
    assert not re.search(r"within_u31\(v_\d+\)\)* (>>|//) (uint64\()?[1248]\b", text), text
