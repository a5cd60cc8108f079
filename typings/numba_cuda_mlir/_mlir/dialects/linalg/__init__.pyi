from collections.abc import Sequence

from numba_cuda_mlir._mlir._mlir_libs._mlir.ir import DenseI64ArrayAttr, Operation, OpView, Value
from numba_cuda_mlir._mlir.dialects._linalg_ops_gen import FillOp as FillOp
from numba_cuda_mlir._mlir.dialects._linalg_ops_gen import GenericOp as GenericOp
from numba_cuda_mlir._mlir.dialects._linalg_ops_gen import IndexOp as IndexOp
from numba_cuda_mlir._mlir.dialects._linalg_ops_gen import YieldOp as YieldOp

def fill_builtin_region(op: Operation) -> None: ...
def transpose(
    input: Operation | OpView | Value, *, outs: Sequence[Operation | OpView | Value], permutation: DenseI64ArrayAttr | list[int]
) -> OpView: ...
def fill(*ins: Operation | OpView | Value, outs: Sequence[Operation | OpView | Value]) -> OpView: ...
