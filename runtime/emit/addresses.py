"""emit, for CUDA: addresses of global memory whose last terms are what unrolled loops count.

    gain + (j_chunk * 2048 + thread * 4) * 4    ->    gain + thread * 16 + j_chunk * 8192

Once the loop is unrolled, the last term is a number, which an access adds to its address without an instruction, so that all
accesses share one address. LLVM keeps such sums as they stand. Of the form on the left it knows the lower bits of
`thread * 4`, and makes an `or` of the sum: each access then takes two registers and instructions of its own. (Layernorm of rows
of 12,288 f32 took 72 registers instead of 64, with 512 threads: one block an SM, and not two.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.runtime.emit.index import Memory, plus, times

Text = str | int
ACCESSES = ("memref.load", "memref.store", "vector.load", "vector.store")


class Address(str):
    """The text of an index, in elements. `terms`: its terms with their factors, those of unrolled loops last."""

    __slots__ = ("terms",)
    terms: tuple[tuple[Text, int], ...]

    def bytes(self, base: str, size: int) -> str:
        """The address, for elements of `size` bytes from `base` on."""
        address: Text = base
        for text, factor in self.terms:
            if product := re.fullmatch(r"(\w+) \* (\d+)", str(text)):
                text, factor = product[1], factor * int(product[2])
            address = plus(address, times(text, factor * size))
        return str(address)


def address_of(memory: Memory, indices: Sequence[ir.Value], text: Callable[[ir.Value], Text], whole: str) -> str:
    """`whole` as an Address, if unrolled loops count a part of it."""
    before: list[tuple[Text, int]] = [(memory.offset, 1)] if memory.offset != 0 else []
    last: list[tuple[Text, int]] = []
    constant = 0
    for index, stride in zip(indices, memory.strides):
        if not isinstance(stride, int):
            before.append((times(text(index), stride), 1))
            continue
        for value, factor in _terms(index):
            if value is None:
                constant += factor * stride
            else:
                (last if _counts_steps(value) else before).append((text(value), factor * stride))
    if not last or not before:
        return whole
    found = Address(whole)
    found.terms = (*before, *last, *([(constant, 1)] if constant else []))
    return found


def is_part_of_addresses(op: ir.Operation) -> bool:
    """Whether an operation makes a sum with a part that unrolled loops count, and only addresses of global memory use it."""
    return (
        op.name == "affine.apply"
        and any(v is not None and _counts_steps(v) for v, _ in _terms(op.results[0]))
        and all(_is_global_subscript(user) for user in mlir.uses(op.results[0]))
    )


def _is_global_subscript(user: ir.Operation) -> bool:
    if user.name not in ACCESSES:
        return False
    memory = next(v for v in user.operands if isinstance(v.type, ir.MemRefType))
    return ir.MemRefType(memory.type).memory_space is None


def _terms(value: ir.Value) -> Iterator[tuple[ir.Value | None, int]]:
    """The values, with their factors, of which an index is the sum; None for numbers."""
    known, made = mlir.constant_value(value), mlir.definition(value)
    if known is not None:
        yield None, int(known)
    elif made is not None and made.name == "affine.apply" and (parts := _linear(made)) is not None:
        for operand, factor in parts:
            if operand is None:
                yield None, factor
            else:
                yield from ((v, f * factor) for v, f in _terms(operand))
    else:
        yield value, 1


def _linear(op: ir.Operation) -> list[tuple[ir.Value | None, int]] | None:
    """Operands and factors of an affine map that is a sum."""
    map_ = ir.AffineMapAttr(op.attributes["map"]).value
    operands, pending = list(op.operands), list(map_.results)
    found: list[tuple[ir.Value | None, int]] = []

    def operand(e: ir.AffineExpr) -> ir.Value | None:
        match e:
            case ir.AffineDimExpr():
                return operands[e.position]
            case ir.AffineSymbolExpr():
                return operands[map_.n_dims + e.position]
        return None

    while pending:
        match pending.pop():
            case ir.AffineAddExpr() as e:
                pending += [e.rhs, e.lhs]
            case ir.AffineConstantExpr() as e:
                found.append((None, e.value))
            case ir.AffineMulExpr(rhs=ir.AffineConstantExpr() as factor) as e if (value := operand(e.lhs)) is not None:
                found.append((value, factor.value))
            case e if (value := operand(e)) is not None:
                found.append((value, 1))
            case _:
                return None
    return found


def _counts_steps(value: ir.Value) -> bool:
    """Whether it counts the iterations of a loop whose bounds are known."""
    if not isinstance(value.owner, ir.Block):
        return False
    loop = value.owner.owner
    if not isinstance(loop, ir.OpView | ir.Operation) or loop.operation.name != "scf.for":
        return False
    known = all(mlir.constant_value(v) is not None for v in list(loop.operation.operands)[:3])
    return known and value == value.owner.arguments[0]
