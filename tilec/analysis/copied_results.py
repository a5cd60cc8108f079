"""Results that are an input, or another result. No kernel makes them: memory is copied (`passes/tensor/bufferize.py`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat

from tilec.analysis.traffic import bytes_of
from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.core.target import Target
from tilec.cost.model import Prediction, Work, predict

BLOCK = 16384  # bytes that a block of the driver's copy on a GPU is taken to move


@dataclass(frozen=True)
class Copy:
    """The tensor `source` copied into the result `name`."""

    name: str
    source: str
    work: Work
    prediction: Prediction


def copies_of(function: ir.Operation, target: Target) -> tuple[Copy, ...]:
    """The copies of a program that run after its kernels. On a CPU one core makes them."""
    block = mlir.entry(function)
    names = dict(zip(block.arguments, _names(function, "arg_attrs")))
    returned = list(list(block.operations)[-1].operation.operands)
    found = []
    for value, name in zip(returned, _names(function, "res_attrs")):
        if value not in names:
            names[value] = name
            continue
        size = bytes_of(value)
        if target.kind == "cuda":
            work = Work(dram_read=size, dram_write=size, blocks=max(1, size // BLOCK))
        else:
            work = Work(dram_read=size, dram_write=size, threads=1, working_set=2 * size)
        found.append(Copy(name, names[value], work, predict(work, target)))
    return tuple(found)


def _names(function: ir.Operation, key: str) -> Iterable[str]:
    """Of arguments or results; IR that a person wrote may have none."""
    if key not in function.attributes:
        return repeat("?")
    attributes = map(ir.DictAttr, ir.ArrayAttr(function.attributes[key]))
    return [ir.StringAttr(a["tilec.name"]).value if "tilec.name" in a else "?" for a in attributes]
