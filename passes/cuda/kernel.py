"""map, for CUDA: the operations of a block become the code of its threads, in the way of each kernel's family."""

from __future__ import annotations

from tilec.core.mlir import ir
from tilec.kernels import ByKey, ContractionChain, StoredContraction, Threaded, planned_kernels
from tilec.passes.cuda.by_key.kernel import map_by_key
from tilec.passes.cuda.chain.kernel import map_chain
from tilec.passes.cuda.contraction.kernel import map_contraction
from tilec.passes.cuda.threaded.kernel import KernelMapper
from tilec.passes.cuda.threaded.look_back import split_rows


def map_cuda(module: ir.Operation) -> None:
    for function, planned in planned_kernels(module):
        if getattr(planned.options, "overlap_launch", False):
            function.attributes["tilec.overlap"] = ir.UnitAttr.get()
        match planned.options:
            case ContractionChain():
                map_chain(function, planned)
            case StoredContraction():
                map_contraction(function, planned)
            case ByKey():
                map_by_key(function, planned)
            case Threaded() as options:
                if (parts := options.blocks_per_tile) > 1:
                    layout = options.layout(planned.tiles)
                    assert layout.lane is not None
                    split_rows(module, function, layout.lane, layout.vectors[layout.lane], parts)
                KernelMapper(function, planned.tiles, options, looks_back=parts > 1).build()
