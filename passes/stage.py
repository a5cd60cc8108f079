"""stage: the memory space of a block's data while the block runs."""

from __future__ import annotations

from tilec.mlir import ir


def stage(module: ir.Operation) -> None:
    if ir.StringAttr(module.attributes["tilec.backend"]).value == "cuda":
        from tilec.passes.stage_cuda import stage_cuda

        stage_cuda(module)
    else:
        from tilec.passes.stage_cpu import stage_cpu

        stage_cpu(module)
