"""The interpreter on IR whose extents vary: written by hand, and after every stage."""

from pathlib import Path

import numpy as np
import pytest
from tools.varying import all_sizes, results, varying
from tools.varying_kernels import lowered_for, wrong_kernels

from tilec.core import mlir
from tilec.core.diagnostics import CallError
from tilec.core.mlir import ir
from tilec.core.source import read_source
from tilec.core.targets import load
from tilec.driver.lowering import lower
from tilec.dsl.build import build
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise
from tilec.semantics.comparison import compare
from tilec.semantics.inputs import random_inputs
from tilec.semantics.interpreter import interpret, prepare

EXAMPLES = Path(__file__).parents[2] / "examples"
TENSORS = """
func.func @f(%x: tensor<?x4xf32> {tilec.extents = ["2 * M + 1", "4"], tilec.name = "x"})
    -> (tensor<?x4xf32> {tilec.extents = ["M", "4"], tilec.name = "y"})
    attributes {tilec.sizes = {M = array<i64: 0, 9, 1>}} {
  %c0 = arith.constant 0 : index
  %d = tensor.dim %x, %c0 : tensor<?x4xf32>
  %m = affine.apply affine_map<(d0) -> ((d0 - 1) floordiv 2)>(%d)
  %e = tensor.empty(%m) : tensor<?x4xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
      outs(%e : tensor<?x4xf32>) {
  ^bb0(%out: f32):
    %i = linalg.index 0 : index
    %j = linalg.index 1 : index
    %at = affine.apply affine_map<(d0)[s0] -> (d0 + s0)>(%i)[%m]
    %v = tensor.extract %x[%at, %j] : tensor<?x4xf32>
    linalg.yield %v : f32
  } -> tensor<?x4xf32>
  return %y : tensor<?x4xf32>
}"""
MEMORY = """
func.func @f(
    %x: memref<?xf32> {tilec.extents = ["M"], tilec.name = "x"}, %y: memref<?xf32> {tilec.extents = ["M"], tilec.name = "y"}
) attributes {tilec.inputs = 1 : i64, tilec.sizes = {M = array<i64: 0, 9, 1>}} {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %m = memref.dim %x, %c0 : memref<?xf32>
  %even = memref.alloc(%m) : memref<?x2xf32>
  scf.forall (%i, %k) = (0, 0) to (%m, 2) step (1, 1) {
    %v = memref.load %x[%i] : memref<?xf32>
    memref.store %v, %even[%i, %k] : memref<?x2xf32>
  }
  scf.forall (%i) = (0) to (%m) step (2) {
    %end = affine.min affine_map<(d0)[s0] -> (d0 + 2, s0)>(%i)[%m]
    scf.for %j = %i to %end step %c2 {
      %v = memref.load %even[%j, %c0] : memref<?x2xf32>
      %w = arith.addf %v, %v : f32
      memref.store %w, %y[%j] : memref<?xf32>
    }
    %next = arith.addi %i, %end : index
    %length = arith.subi %end, %i : index
    %both = arith.cmpi eq, %length, %c2 : index
    scf.if %both {
      %c1 = arith.constant 1 : index
      %at = arith.addi %i, %c1 : index
      %v = memref.load %x[%at] : memref<?xf32>
      memref.store %v, %y[%at] : memref<?xf32>
    }
  }
  return
}"""
SHAPES = """
func.func @f(%x: tensor<?xf32> {tilec.extents = ["3 * M"], tilec.name = "x"})
    -> (tensor<?x3xf32> {tilec.extents = ["M", "3"], tilec.name = "y"}) attributes {tilec.sizes = {M = array<i64: 0, 8, 2>}} {
  %c0 = arith.constant 0 : index
  %d = tensor.dim %x, %c0 : tensor<?xf32>
  %m = affine.apply affine_map<(d0) -> (d0 floordiv 3)>(%d)
  %w = tensor.expand_shape %x [[0, 1]] output_shape [%m, 3] : tensor<?xf32> into tensor<?x3xf32>
  %z = tensor.collapse_shape %w [[0, 1]] : tensor<?x3xf32> into tensor<?xf32>
  %y = tensor.expand_shape %z [[0, 1]] output_shape [%m, 3] : tensor<?xf32> into tensor<?x3xf32>
  return %y : tensor<?x3xf32>
}"""


def numbers(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_tensors_of_any_extent():
    run = prepare(TENSORS)
    for m in (0, 1, 4):
        x = numbers(2 * m + 1, 4)
        assert np.array_equal(run([x])["y"], x[m : 2 * m])


def test_memory_of_any_extent():
    run = prepare(MEMORY)
    for m in (0, 1, 2, 5):
        x = numbers(m)
        assert np.array_equal(run([x])["y"], np.where(np.arange(m) % 2, x, 2 * x))


def test_shapes_of_any_extent():
    run = prepare(SHAPES)
    for m in (0, 2, 6):
        assert np.array_equal(run([numbers(3 * m)])["y"], numbers(m, 3))


@pytest.mark.parametrize(("text", "shape", "why"), [
    (TENSORS, (8, 4), "argument 0 has the shape"), (TENSORS, (3, 5), "in the IR"), (TENSORS, (21, 4), "`M` is 10, and varies in"),
    (SHAPES, (9,), "which is not"), (MEMORY, (10,), "`M` is 10"),
])  # fmt: skip
def test_shapes_that_no_sizes_have_are_refused(text, shape, why):
    with pytest.raises(CallError, match=why):
        interpret(text, [numbers(*shape)])


@pytest.mark.parametrize("target", ["cpu", "h200"])
@pytest.mark.parametrize("name", ["softmax", "transpose", "cumsum"])
def test_every_stage_at_every_size(name, target):
    path, program = EXAMPLES / f"{name}.tile", parse(read_source(EXAMPLES / f"{name}.tile"))
    with mlir.context(), ir.Location.unknown():
        special = varying(path, {"M": (0, 40)}, N=20)
        texts = lower(build(special), load(target), at={"M": 7}, locations=False, emit=False).texts
    for stage, text in texts.items():
        run = prepare(text)
        for chosen in all_sizes({"M": (0, 40, 8)}):
            exact = specialise(program, None, None, {"N": 20, **chosen})
            inputs = random_inputs(exact, 1, {})
            found = results(run, exact, inputs)
            assert all(c.within for c in compare(exact, inputs, found).values()), (stage, chosen)


def test_a_kernels_blocks_follow_from_the_programs_sizes():
    """No argument of the kernel says M, only M * M."""
    text = "op f(x: f32, u: bool[M]) -> (y: f32[M * M]) { y[i] = x where i in 0:M * M }"
    made = lowered_for(text, {"M": (17, 128)})
    assert not wrong_kernels(text, made, [{"M": m} for m in (17, 33)])
