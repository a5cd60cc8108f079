from collections.abc import Sequence

from numba_cuda_mlir._mlir._mlir_libs._mlir.ir import Attribute, InsertionPoint, Location, OpResult, Type, Value
from numba_cuda_mlir._mlir.dialects._tensor_ops_gen import CollapseShapeOp as CollapseShapeOp
from numba_cuda_mlir._mlir.dialects._tensor_ops_gen import DimOp as DimOp
from numba_cuda_mlir._mlir.dialects._tensor_ops_gen import ExpandShapeOp as ExpandShapeOp
from numba_cuda_mlir._mlir.dialects._tensor_ops_gen import ExtractOp as ExtractOp
from numba_cuda_mlir._mlir.dialects._tensor_ops_gen import ExtractSliceOp as ExtractSliceOp
from numba_cuda_mlir._mlir.dialects._tensor_ops_gen import InsertSliceOp as InsertSliceOp
from numba_cuda_mlir._mlir.dialects._tensor_ops_gen import ParallelInsertSliceOp as ParallelInsertSliceOp
from numba_cuda_mlir._mlir.dialects._tensor_ops_gen import dim as dim
from numba_cuda_mlir._mlir.dialects._tensor_ops_gen import extract as extract

def empty(
    sizes: Sequence[Value | int],
    element_type: Type,
    *,
    encoding: Attribute | None = None,
    loc: Location | None = None,
    ip: InsertionPoint | None = None,
) -> OpResult: ...
