"""Factors of contraction chains that are stored first, in 16 bits, in bf16 parts or as tf32.

A chain's weights are made in registers, and are multiplied with factors as they lie in memory.

    s = sum[d](q * k);  p = softmax(s);  o = sum[j](p * v)        ->        s.left = bf16(q);  s.right = bf16(k);  o.right = bf16(v)
                                                                            s = sum[d](s.left * s.right);  ...

A bf16 holds every number of 8 bits, and what `using bf16` allows an f32 to be rounded to. An f32 that may not be rounded is the sum
of three (`tilec/analysis/bf16_split.py`), which both products take. As tf32 the values alone are stored, with
j last: `wgmma` reads words along k, in the order in which a thread has its weights (`Pack.evens_first`).
"""

from __future__ import annotations

from math import prod

from tilec.analysis import bf16_split
from tilec.analysis.access import access_of
from tilec.analysis.graph import Graph, Node
from tilec.analysis.multiplicands import HOLDS, held_by
from tilec.core import mlir
from tilec.core.hardware import WIDE
from tilec.core.mlir import ir
from tilec.core.target import Target
from tilec.passes.tensor.pack import SIDES, factor
from tilec.plan.chain import WIDEST
from tilec.plan.chain_fusion import operations_before
from tilec.plan.ordered_factors import read_by
from tilec.plan.steps import Applied, Pack

KINDS = ("bf16", "f16")


def chain_factors(graph: Graph, target: Target) -> tuple[Applied, ...]:
    """The factors to be stored, of all contractions that might be one chain with another."""
    found: dict[Pack, Applied] = {}
    for last in graph.nodes:
        if (c := last.contraction) is None or c.integer or prod(last.extents[d] for d in c.n) > WIDEST:
            continue
        before = operations_before(last, graph)
        firsts = [n for n in before if _is_first(n)]
        if firsts:
            found |= {p: Applied("chain_factors", p, line=last.line) for p in _packs(firsts, last, {*before}, graph, target)}
    return tuple(found.values())


def _is_first(node: Node) -> bool:
    """Whether a contraction's result is larger than its factors, of which a block has room for all places of k."""
    c = node.contraction
    if c is None or not c.m or not c.n:
        return False
    m, n, k = (prod(node.extents[d] for d in dims) for dims in (c.m, c.n, c.k))
    return 0 < k <= WIDEST and m * n > (m + n) * k


def _packs(firsts: list[Node], last: Node, before: set[Node], graph: Graph, target: Target) -> list[Pack]:
    """Of the factors that no operation `before` the last one makes: one type for all, or none where they have it. Factors of
    scores that are integers stay as they are."""
    firsts = [n for n in firsts if n.contraction is not None and not n.contraction.integer]
    sides = [(n, side) for n in firsts for side in (0, 1)]
    of_last = [(last, side) for side in (0, 1) if before.isdisjoint(graph.producer.get(v) for v in read_by(last, side, "bf16"))]
    factors = [(n, side, held_by(n, _value(n, side))) for n, side in (*sides, *of_last)]
    held = {kind for *_, kind in factors}
    if len(of_last) != 1 or held in ({"bf16"}, {"f16"}):
        return []
    allowed = {mlir.get_string(n.op, "tilec.multiplicand") for n in (*firsts, last)}
    if held == {"f32"} and "tf32" in allowed <= {"tf32", "bf16"} and "wgmma" in target.instructions("tf32"):
        values = _values(last, of_last[0][1])
        return [values] if values is not None else []
    if allowed == {"bf16"}:
        held = {"bf16" if kind == "f32" else kind for kind in held}
    kind = next((kind for kind in KINDS if held <= HOLDS[kind]), None)
    if held == {"f32"} and allowed == {None} and "wgmma" in target.instructions("bf16") and target.has("tma"):
        kind = bf16_split.KIND
    if kind is None:
        return []
    made = [_pack(n, side, kind) for n, side, own in factors if own != kind]
    return [] if None in made else [p for p in made if p is not None]


def _values(last: Node, side: int) -> Pack | None:
    """The values with k last, as words that `wgmma` reads."""
    assert last.contraction is not None
    found = access_of(last.op, _value(last, side))
    k = [d for d in last.contraction.k if last.extents[d] > 1]
    if found is None or not found.exact or len(k) != 1 or last.extents[k[0]] % (WIDE // 2):
        return None
    at = [p for p, s in enumerate(found.subscripts) if s.bare == k[0] and found.shape[p] == last.extents[k[0]]]
    if not at:
        return None
    order = (*(p for p in range(len(found.shape)) if p != at[0]), at[0])
    return Pack(last.name, SIDES[side], (), "tf32", (), order, evens_first=True)


def _value(node: Node, side: int) -> ir.Value:
    assert node.contraction is not None
    return (node.contraction.left, node.contraction.right)[side]


def _pack(node: Node, side: int, kind: str) -> Pack | None:
    """A factor with its dimensions in the order in which they are in memory."""
    found = access_of(node.op, factor(node.op, side, kind))
    if found is None or not found.exact:
        return None
    if found.operand is not None:
        return Pack(node.name, SIDES[side], tuple(mlir.map_dims(mlir.maps_of(node.op)[found.operand])), kind)
    if not isinstance(found.element, ir.FloatType):
        return None
    return Pack(node.name, SIDES[side], (), kind, (), tuple(range(len(found.shape))))
