"""map: operations of a block become loops, threads and vectors of the backend."""

from __future__ import annotations

from tilec.core import locations, mlir
from tilec.core.mlir import ir


def map_kernels(module: ir.Operation) -> None:
    if ir.StringAttr(module.attributes["tilec.backend"]).value == "cuda":
        from tilec.passes.cuda.kernel import map_cuda

        map_cuda(module)
    else:
        from tilec.passes.cpu.loops import map_cpu

        map_cpu(module)
    for function in mlir.functions(module):
        if locations.CUT in function.attributes:
            del function.attributes[locations.CUT]


def share_launches(module: ir.Operation) -> None:
    """Kernels that share a launch become one function (CUDA)."""
    if "tilec.launches" in module.attributes:
        from tilec.passes.cuda import launches

        launches.share_launches(module)
