from collections.abc import Callable
from typing import TypeVar

from numba_cuda_mlir._mlir._mlir_libs._mlir import ir as ir
from numba_cuda_mlir._mlir._mlir_libs._mlir import passmanager as passmanager

# The generated modules of dialects call these where they define their operations.
_Class = TypeVar("_Class", bound=type)

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")

def register_value_caster(
    typeid: ir.TypeID, *, replace: bool = False
) -> Callable[[Callable[[_Argument], _Result]], Callable[[_Argument], _Result]]: ...
def register_dialect(dialect_class: _Class) -> _Class: ...
def register_operation(dialect_class: type, *, replace: bool = ...) -> Callable[[_Class], _Class]: ...
