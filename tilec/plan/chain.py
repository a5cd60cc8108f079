"""Contraction chains (`tilec.analysis.chain`): which operations become one, the reasons of refusals, and the predicted times."""

# mypy: no-strict-optional

from __future__ import annotations

from math import prod
from typing import Any

from tilec.analysis.chain import Chain, multiplicand_allowed, read_chain
from tilec.analysis.expression import Expr, Reader, Unreadable
from tilec.analysis.graph import Graph, Node
from tilec.analysis.space import Space
from tilec.analysis.traffic import element_bytes, outputs_of
from tilec.core.hardware import WIDE
from tilec.core.mlir import ir
from tilec.core.target import Target
from tilec.cost.chain import CHAIN_ROWS, ChainProblem, choose_chain_tile

WIDEST = 256  # columns of the product, and reduced elements of the scores: what registers and shared memory hold
WEIGHT_TERMS = {("bf16", None): 3, ("bf16", "tf32"): 2, ("bf16", "bf16"): 1}
"""By the values' type and what `using` allows: in how many parts of that type an f32 weight is multiplied.

An f32 has 24 significant bits, a bf16 8 and the same exponents: three of them are an f32, so that three exact products
add up to the exact one. An f16 has fewer exponents, and no `using` to name it."""



def is_contraction_chain(nodes: list[Node]) -> bool:
    """Whether a kernel has two contractions, or one and further reductions, and so is a contraction chain."""
    return sum(n.contraction is not None for n in nodes) == 2 or is_reduced_contraction(nodes)


def is_reduced_contraction(nodes: list[Node]) -> bool:
    """Whether a kernel has one contraction, and reductions of its result."""
    return sum(n.contraction is not None for n in nodes) == 1 and sum(bool(n.reduced) for n in nodes) > 1


def refuse_contraction_chain(nodes: list[Node], space: Space, graph: Graph, target: Target) -> str | None:
    """Why nodes that `is_contraction_chain` holds for cannot be a contraction chain; None if they can."""
    why = _refuse(nodes, space, graph, target)
    both = "both are contractions, but " if sum(n.contraction is not None for n in nodes) > 1 else ""
    return why and f"{both}no contraction chain: {why}"


def _refuse(nodes: list[Node], space: Space, graph: Graph, target: Target) -> str | None:
    chain = chain_of(nodes, space, graph)
    if isinstance(chain, str):
        return chain
    if 0 in space.extents.values():
        return "an index has no values"
    if set(space.grid) != {*chain.batch, chain.rows}:
        return "they have further parallel indices"
    return _refuse_storage(chain) or _refuse_size(chain, nodes, space, graph, target)


def _refuse_storage(chain: Chain) -> str | None:
    """Tiles lie in lines along the contiguous dimension: each factor must be contiguous along the index that its tile has whole."""
    factors = _factors(chain)
    kinds = {x.type for x, _ in factors}
    if kinds not in ({"bf16"}, {"f16"}):
        return f"the factors are {' and '.join(sorted(kinds))}, where all must be bf16 or all f16"
    for x, allowed in factors:
        if not allowed & {*x.own_dims[-1:]} or len(set(x.own_dims)) < len(x.own_dims):
            return "a factor is not contiguous along the index of which a block reads all elements"
    return None


def _factors(chain: Chain) -> list[tuple[Expr, set[int]]]:
    """Each stored factor, with the indices along which it may be contiguous."""
    if chain.values is None:  # nothing else reads these tiles, so that they may lie either way
        return [(chain.left, {chain.inner, chain.rows}), (chain.right, {chain.inner, chain.between})]
    return [(chain.left, {chain.inner}), (chain.right, {chain.inner}), (chain.values, {chain.columns})]


def refuse_tma(chain: Chain, space: Space) -> str | None:
    """Why TMA cannot load the factors' tiles, without which there is no `wgmma`."""
    for x, _ in _factors(chain):
        if len(x.own_dims) > 5:
            return f"a factor has {len(x.own_dims)} dimensions, and TMA takes 5"
        if (length := space.extents[x.own_dims[-1]]) * 2 % WIDE:
            return f"rows of {length} elements do not all begin at a multiple of {WIDE} bytes, as TMA demands"
    return None


def chain_units(chain: Chain, space: Space, target: Target) -> tuple[str, ...]:
    """The matrix instructions that the chain can take on a target; without a second contraction, `wgmma` only."""
    tma = target.has("tma") and refuse_tma(chain, space) is None
    able = {"wgmma": tma, "mma.sync": chain.values is not None}
    return tuple(u for u in CHAIN_ROWS if u in target.instructions(chain.left.type) and able[u])


def _refuse_size(chain: Chain, nodes: list[Node], space: Space, graph: Graph, target: Target) -> str | None:
    wide = ((chain.inner, "reduced elements of the first"), (chain.columns, "columns of the last"))
    for d, what in wide if chain.columns is not None else ():
        if space.extents[d] > WIDEST:
            return f"a block has room for {WIDEST} {what} contraction, not {space.extents[d]}"
    if not chain_units(chain, space, target):
        return refuse_tma(chain, space) or f"{target.name} lacks wgmma and TMA"
    if chain.values is not None and weight_terms_of(chain) is None:
        return f"its f32 weights take bf16 factors, of which three make up an f32, and not {chain.values.type}"
    if not choose_chain_tile(target, chain_problem(nodes, space, graph, target)):
        return "no tile fits registers and shared memory"
    return None


def weight_terms_of(chain: Chain) -> int | None:
    """The number of products that one weight takes; 0 without a second contraction."""
    if chain.values is None or chain.product is None:
        return 0
    return WEIGHT_TERMS.get((chain.values.type, multiplicand_allowed(chain.product.total.operation)))


def chain_of(nodes: list[Node], space: Space, graph: Graph) -> Chain | str:
    """The contraction chain of the nodes, or the reason why they are none."""
    dims = {n.op: space.dims[n] for n in nodes}
    made = {r.value: (n.op, k) for n in graph.nodes for k, r in enumerate(n.results) if n in nodes or n.inlined}
    reader = Reader(dims, made.get)
    try:
        outputs = [reader.result(*made[v]) for v in outputs_of(nodes, graph)]
    except Unreadable as error:
        return str(error)
    return read_chain(reader, outputs)


# ---- what it costs -----------------------------------------------------------------------------------------


def chain_problem(nodes: list[Node], space: Space, graph: Graph, target: Target) -> ChainProblem:
    """The contraction chain as the cost model sees it."""
    chain = chain_of(nodes, space, graph)
    assert isinstance(chain, Chain)
    extents = space.extents
    parts = {p for t in {c.term for c in chain.online.carried} for p in _parts(chain.under(t, masked=False))}
    special = sum(p.op.startswith("math.") and p.op != "math.fma" for p in parts)
    fma = (
        sum(bool(p.args) for p in parts)
        - special
        + sum(chain.columns not in c.total.dims for c in chain.online.carried)
    )
    out = sum(element_bytes(ir.ShapedType(v.type).element_type) for v in outputs_of(nodes, graph))
    terms = weight_terms_of(chain)
    return ChainProblem(
        extents[chain.rows], extents[chain.between], extents[chain.inner],
        0 if chain.columns is None else extents[chain.columns],
        prod(extents[d] for d in chain.batch), chain.left.type, 3 if terms is None else terms,
        _share(chain, extents), fma, special, out,
        (chain.left.own_dims[-1] == chain.inner, chain.right.own_dims[-1] == chain.inner), chain_units(chain, space, target),
    )  # fmt: skip


def _parts(x: Expr) -> Any:
    yield x
    for a in x.args:
        yield from _parts(a)


def _share(chain: Chain, extents: dict[int, int]) -> float:
    """The share of elements that the masks leave, from a sample of rows."""
    rows, length = extents[chain.rows], extents[chain.between]
    sample = [(2 * n + 1) * rows // 64 for n in range(32)]
    return sum(max(0, high - low) for low, high in (_range(chain, i, length) for i in sample)) / (32 * length)


def grows(chain: Chain, extents: dict[int, int]) -> bool:
    """Whether later rows have more unmasked elements than earlier ones."""
    first, last = (_range(chain, i, extents[chain.between]) for i in (0, extents[chain.rows] - 1))
    return last[1] - last[0] > first[1] - first[0]


def _range(chain: Chain, row: int, length: int) -> tuple[int, int]:
    """Elements that a row may need, where only the row's index takes part."""
    low, high = 0, length
    for mask in chain.masks:
        for leaves, number in mask.bounds:
            factor = sum(f for leaf, f in leaves.items() if chain.between in leaf.dims)
            others = {leaf: f for leaf, f in leaves.items() if chain.between not in leaf.dims}
            if any(leaf.dims != {chain.rows} for leaf in others):
                continue
            rest = number + row * sum(others.values())
            if factor < 0:
                high = min(high, rest // -factor + 1)
            elif factor > 0:
                low = max(low, -(rest // factor))
    return low, high
