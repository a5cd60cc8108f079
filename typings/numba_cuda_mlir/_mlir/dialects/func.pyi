from collections.abc import Callable, Sequence

from numba_cuda_mlir._mlir._mlir_libs._mlir.ir import (
    Block,
    BlockArgumentList,
    FlatSymbolRefAttr,
    FunctionType,
    InsertionPoint,
    Location,
    OpView,
    Type,
    Value,
)
from numba_cuda_mlir._mlir.dialects._func_ops_gen import ReturnOp as ReturnOp

class FuncOp(OpView):
    def __init__(
        self,
        name: str,
        type: FunctionType | tuple[Sequence[Type], Sequence[Type]],
        *,
        visibility: str | None = None,
        body_builder: Callable[[FuncOp], None] | None = None,
        loc: Location | None = None,
        ip: InsertionPoint | None = None,
    ) -> None: ...
    @property
    def arguments(self) -> BlockArgumentList: ...
    def add_entry_block(self, arg_locs: Sequence[Location] | None = None) -> Block: ...

class CallOp(OpView):
    def __init__(
        self,
        calleeOrResults: FuncOp | list[Type],
        argumentsOrCallee: list[Value] | FlatSymbolRefAttr | str,
        arguments: list[Value] | None = None,
        *,
        loc: Location | None = None,
        ip: InsertionPoint | None = None,
    ) -> None: ...
