"""The types in which matrix units may multiply a contraction's factors, which decide whether they can compute it.

Matrix units multiply narrow numbers exactly and add in float32, or 8-bit integers in int32. A product of bf16 tensors,
which the language computes in f32, loses nothing there; nor does one of bf16 and i8, as a bf16 holds every i8. A product
of f32 tensors would lose 16 bits of every factor, and uses matrix units only where the source allows it (`using bf16`).
"""

from __future__ import annotations

from math import gcd

from tilec.analysis import bf16_split
from tilec.analysis.graph import Node
from tilec.analysis.isomorphic import of_operation, of_structure
from tilec.analysis.products import Scaled, scaled, stored
from tilec.core import mlir
from tilec.core.hardware import LINE
from tilec.core.mlir import ir
from tilec.core.target import Target
from tilec.cost.block_tile import element_bytes, unit_type

EIGHT_BIT_FLOATS = {"f8E4M3FN": "f8e4m3", "f8E5M2": "f8e5m2"}  # MLIR's names, and the language's
_BYTES_AND_F8 = frozenset({"i8", "u8", *EIGHT_BIT_FLOATS})
HOLDS = {  # multiplicand: the stored types of which it holds every value, the fastest first
    "f8e4m3": frozenset({"f8E4M3FN"}),
    "f8e5m2": frozenset({"f8E5M2"}),
    "f16": _BYTES_AND_F8 | {"f16"},
    "bf16": _BYTES_AND_F8 | {"bf16"},
    "tf32": _BYTES_AND_F8 | {"bf16", "f16"},
}
_BY_WARPS = frozenset({"i8", "bf16", "f16", "tf32"})  # of which a warp alone multiplies fragments, too
_INTEGERS = {"arith.extsi": "i8", "arith.extui": "u8"}
_FROM_INTEGERS = {"arith.sitofp": "i8", "arith.uitofp": "u8"}


@of_structure
def multiplicands_of(node: Node, target: Target) -> tuple[str, ...]:
    """The types in which a target's matrix units may multiply both factors of a contraction, the fastest first: those that lose
    nothing that the source does not allow to be lost. Where there is none, the type of the product.
    """
    assert node.contraction is not None
    kinds = tuple(kind for kind in _without_loss(node) if _is_built(kind, target, scales_of(node)))
    return kinds if kinds and kinds != (bf16_split.KIND,) else (*kinds, str(node.contraction.left.type))


def multiplicand_of(node: Node, target: Target) -> str:
    """The fastest of them."""
    return multiplicands_of(node, target)[0]


@of_structure
def scales_of(node: Node) -> int:
    """How many adjacent places of k share what the factors are scaled by; 0 where they are not scaled."""
    assert node.contraction is not None
    return gcd(*(scaled_factor(node, f).period for f in (node.contraction.left, node.contraction.right)))


@of_operation
def scaled_factor(node: Node, factor: ir.Value) -> Scaled:
    """A factor of a contraction, without what is the same for many adjacent places of k."""
    assert node.contraction is not None
    inner = [(d, node.extents[d]) for d in node.contraction.k]
    return scaled(node.op, factor, inner)


def _is_built(kind: str, target: Target, scales: int) -> bool:
    """Whether the passes print products of a type for a target. Sums that are scaled take as many lines of k as share a scale."""
    instructions = target.instructions(unit_type(kind))
    if kind == bf16_split.KIND:
        return "wgmma" in instructions and target.has("tma") and not scales
    if scales:
        return "wgmma" in instructions and scales % (LINE // element_bytes(kind)) == 0
    return "wgmma" in instructions or (kind in _BY_WARPS and bool(instructions))


def _without_loss(node: Node) -> tuple[str, ...]:
    assert node.contraction is not None
    factors = node.contraction.left, node.contraction.right
    product = str(factors[0].type)
    allowed = mlir.get_string(node.op, "tilec.multiplicand")
    if product == "i32":
        kinds = {_INTEGERS.get(_made_by(f)) for f in factors}
        narrow = all(str(stored(f).type) == "i8" for f in factors)
        return (kind,) if narrow and len(kinds) == 1 and (kind := kinds.pop()) else ()
    if product != "f32":
        return ()
    if allowed not in (None, "f22"):
        return (allowed,)
    held = {held_by(node, f) for f in factors}
    return tuple(kind for kind, types in HOLDS.items() if held <= types) or (bf16_split.KIND,) * (held == {"f32"})


def held_by(node: Node, factor: ir.Value) -> str:
    """The narrowest type that has every value of a factor."""
    plain = stored(scaled_factor(node, factor).core)
    owner = mlir.definition(plain)
    if owner is not None and owner.name in _FROM_INTEGERS and str(owner.operands[0].type) == "i8":
        return _FROM_INTEGERS[owner.name]
    return str(plain.type)


def converted(node: Node, factor: ir.Value, target: Target) -> str:
    """The 8-bit type of a factor that threads convert to 16 bits where they load it from shared memory; "" for other factors."""
    held = held_by(node, factor)
    if held in EIGHT_BIT_FLOATS:
        return EIGHT_BIT_FLOATS[held] if target.instructions("f8") else ""  # an instruction of the same chips
    return held if held in ("i8", "u8") else ""


def converts(node: Node, target: Target) -> bool:
    """Whether matrix units multiply an 8-bit float as a number of 16 bits. Warps convert it in fewer instructions than threads that
    multiply its numbers one by one."""
    assert node.contraction is not None
    factors = node.contraction.left, node.contraction.right
    narrow = {converted(node, f, target) for f in factors}
    return multiplicand_of(node, target) in ("bf16", "f16") and bool(narrow & {*EIGHT_BIT_FLOATS.values()})


def _made_by(factor: ir.Value) -> str:
    owner = mlir.definition(factor)
    return "" if owner is None else owner.name
