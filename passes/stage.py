"""stage: the memory space of a block's data while the block runs."""

from __future__ import annotations

from tilec.core.mlir import ir


def stage(module: ir.Operation) -> None:
    if ir.StringAttr(module.attributes["tilec.backend"]).value == "cuda":
        from tilec.passes.cuda.stage import stage_cuda

        stage_cuda(module)
    else:
        from tilec.passes.cpu.stage import stage_cpu

        stage_cpu(module)
