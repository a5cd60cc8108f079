from collections.abc import Sequence

from numba_cuda_mlir._mlir._mlir_libs._mlir.ir import (
    Block,
    InsertionPoint,
    Location,
    Operation,
    OpView,
    Type,
    Value,
)
from numba_cuda_mlir._mlir.dialects._scf_ops_gen import ConditionOp as ConditionOp
from numba_cuda_mlir._mlir.dialects._scf_ops_gen import WhileOp as WhileOp
from numba_cuda_mlir._mlir.dialects._scf_ops_gen import YieldOp as YieldOp

class ForOp(OpView):
    def __init__(
        self,
        lower_bound: Value,
        upper_bound: Value,
        step: Value,
        iter_args: Operation | OpView | Sequence[Value] | None = None,
        *,
        loc: Location | None = None,
        ip: InsertionPoint | None = None,
    ) -> None: ...
    @property
    def body(self) -> Block: ...
    @property
    def induction_variable(self) -> Value: ...
    @property
    def inner_iter_args(self) -> Sequence[Value]: ...

class ForallOp(OpView):
    def __init__(
        self,
        lower_bounds: Sequence[Value | int],
        upper_bounds: Sequence[Value | int],
        steps: Sequence[Value | int],
        shared_outs: Operation | OpView | Sequence[Value] | None = None,
        *,
        mapping: object = None,
        loc: Location | None = None,
        ip: InsertionPoint | None = None,
    ) -> None: ...
    @property
    def body(self) -> Block: ...
    @property
    def rank(self) -> int: ...

class InParallelOp(OpView):
    def __init__(self, loc: Location | None = None, ip: InsertionPoint | None = None) -> None: ...
    @property
    def block(self) -> Block: ...

class IfOp(OpView):
    def __init__(
        self,
        cond: Value,
        results_: Sequence[Type] | None = None,
        *,
        has_else: bool = False,
        loc: Location | None = None,
        ip: InsertionPoint | None = None,
    ) -> None: ...
    @property
    def then_block(self) -> Block: ...
    @property
    def else_block(self) -> Block: ...
