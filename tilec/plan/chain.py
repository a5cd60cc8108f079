"""Contraction chains (`tilec.analysis.chain`): which operations become one, the reasons of refusals, and the predicted times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from math import prod

from tilec.analysis import bf16_split
from tilec.analysis.bf16_split import products_of
from tilec.analysis.chain import Chain, Product, multiplicand_allowed, read_chain
from tilec.analysis.expression import Expr, Reader, Total, Unreadable, parts_of
from tilec.analysis.graph import Graph, Node
from tilec.analysis.neighbours import SIZE, Neighbours
from tilec.analysis.operation_costs import instructions_of
from tilec.analysis.siblings import are_siblings
from tilec.analysis.space import Space
from tilec.analysis.subscripts import steps, subscripts
from tilec.analysis.traffic import bytes_of, element_bytes, outputs_of, strides
from tilec.analysis.weights import is_nan_of_nan
from tilec.core.fitted import ChainTimes
from tilec.core.hardware import LINE, WARP
from tilec.core.mlir import ir
from tilec.core.target import Target
from tilec.cost.block_tile import unit_type
from tilec.cost.chain import CHAIN_ROWS, ChainProblem, choose_chain_tile, product_depth, reduction_depth

HELD = 1 << 14  # bytes of an operand that L1 holds beside the tiles in shared memory
WIDEST = 256  # columns of the product, and reduced elements of the scores: what registers and shared memory hold
WEIGHT_TERMS = {
    ("bf16", None): 3, ("bf16", "tf32"): 2, ("bf16", "bf16"): 1, ("f16", None): 2, ("f16", "tf32"): 1, ("f16", "bf16"): 1,
    ("tf32", "tf32"): 1, ("tf32", "bf16"): 1,
}  # fmt: skip
"""By the type of the factors and what `using` allows: in how many parts of that type an f32 weight is multiplied.

An f32 has 24 significant bits, a bf16 8 and the same exponents: three of them are an f32, so that three exact products
add up to the exact one. An f16 has fewer exponents: two of them are a weight of at most 1 but for 2^-25."""
LARGEST_WEIGHT = 256.0  # of f16 weights: the sums' own terms are far from an f16's end


@contextmanager
def as_contractions(nodes: Iterable[Node]) -> Iterator[list[Node]]:
    """Products of a single row are contractions meanwhile. The list has those; what is taken off it remains one."""
    changed = [n for n in nodes if n.contraction is None and n.vector_product is not None]
    for n in changed:
        n.contraction = n.vector_product
    try:
        yield changed
    finally:
        for n in changed:
            n.contraction = None


def is_contraction_chain(nodes: list[Node]) -> bool:
    """Whether a kernel has contractions of which one reads others, or one and further reductions, and so is a contraction chain."""
    several = sum(n.contraction is not None for n in nodes) > 1 and not are_siblings(nodes)
    return several or is_reduced_contraction(nodes)


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
    if set(space.grid) != {*chain.batch, *chain.rows}:
        return "they have further parallel indices"
    if space.extents[chain.between] >= 2**31 and any(c.locates is not None for c in chain.online.carried):
        return "the index of an extreme takes more than 31 bits"
    in_parts = any(x.further for x in chain.factors)
    if in_parts and any(c.locates is not None for c in chain.online.carried):
        return "the index of an extreme is not found anew among numbers that have no parts"
    if in_parts and len(chain.products) > 1:
        return "rows of several results are not computed anew of numbers that have no parts"
    if in_parts and not all(map(is_nan_of_nan, (chain.score, *(p.weights for p in chain.products)))):
        return "weights are not NaN for each score that is, by which numbers without parts are noticed"
    return _refuse_storage(chain, space) or _refuse_size(chain, nodes, space, graph, target)


def _refuse_storage(chain: Chain, space: Space) -> str | None:
    """Tiles lie in lines along the contiguous dimension, which is one of the two of a factor's tiles."""
    if multiplicands_of(chain) is None:
        kinds = " and ".join(sorted({x.stored for x in chain.factors}))
        why = "where both of a product must be bf16, f16, f32 in parts, or f32 that `using` allows to be rounded"
        return f"the factors are {kinds}, {why}, or of the first one i8 or u8"
    across = any(first.left.contiguous != first.inner for first in chain.firsts)
    by_rows = across and (chain.products or len(chain.rows) > 1)
    if by_rows or any(x.contiguous is None for x in chain.factors):
        return "a factor is not contiguous along the index of which a block reads all elements"
    between, depth = space.extents[chain.between], product_depth(chain.left.bytes)
    for first in chain.firsts:
        inner = space.extents[first.inner]
        if inner % depth and not all(x.ends(first.inner, inner) for x in (first.left, first.right)):
            return f"{inner} of a dimension's elements are no multiple of {depth}, and what follows them is not 0"
    if not all(p.values.ends(chain.between, between) for p in chain.products):
        return "the values are a part of a dimension, and what follows them is not 0"
    return None


def multiplicands_of(chain: Chain) -> tuple[str, str] | None:
    """The types in which matrix units multiply the factors of the scores, and weights and values; None where there are none that
    lose no more than is allowed."""
    scores = _multiplicand({kind for first in chain.firsts for kind in first.stored}, [first.total for first in chain.firsts])
    if not chain.products:
        return (scores, scores) if scores not in (None, bf16_split.KIND) else None
    product = _multiplicand({p.values.stored for p in chain.products}, [p.total for p in chain.products])
    return (scores, product) if scores and product not in (None, "i8") else None


def _multiplicand(stored: set[str], products: list[Total]) -> str | None:
    (kind, *others) = stored
    if kind == "f32" and all(multiplicand_allowed(t.operation) in ("tf32", "bf16") for t in products):
        kind = "tf32"
    return kind if not others and kind in ("bf16", "f16", "tf32", "i8", "u8", bf16_split.KIND) else None


def refuse_warpgroups(chain: Chain, extents: dict[int, int]) -> str | None:
    """Why TMA cannot load the factors' tiles, without which there is no `wgmma`."""
    if any(not {*chain.rows} <= {*first.left.along} for first in chain.firsts):
        return "a factor of one row has no dimension for the other rows of a box"
    inner, size = extents[chain.inner], chain.left.bytes
    if any((p.values.bytes != 2) != p.values.evens_first for p in chain.products):
        return "wgmma takes values of 16 bits as they lie, and of 32 bits where those of even numbers along k come first"
    if size != 2 and any(x.contiguous != first.inner for first in chain.firsts for x in (first.left, first.right)):
        return "wgmma takes factors that are contiguous along another index than that of their sum in 16 bits alone"
    steps = {} if chain.products else {chain.inner: (reduction_depth("wgmma", inner, size), inner)}
    return next((why for x in chain.factors if (why := x.refuse_box(steps)) is not None), None)


def refuse_warps(chain: Chain) -> str | None:
    """Why warps cannot load and multiply the factors' tiles by `mma.sync`."""
    if chain.left.bytes == 1 and any(x.contiguous != first.inner for first in chain.firsts for x in (first.left, first.right)):
        return "factors of 8 bits have to be contiguous along the index of their sum"
    if any(first.unsigned for first in chain.firsts):
        return "integers without sign take wgmma"
    if any(x.further for x in chain.factors):
        return "factors that are stored in parts take wgmma"
    if _lies_between(chain):
        return "tiles that are contiguous along the index between the contractions take wgmma"
    return None


def _lies_between(chain: Chain) -> bool:
    """Whether a factor of a chain with a second contraction is contiguous along the index between the contractions."""
    factors = [*(first.right for first in chain.firsts), *(p.values for p in chain.products)]
    return bool(chain.products) and chain.between in [x.contiguous for x in factors]


def _lines_of_steps(chain: Chain) -> int:
    """The lines of which a step has a multiple: one where a factor lies along steps, and one of even and one of odd numbers."""
    return _lies_between(chain) + any(p.values.evens_first for p in chain.products)


def chain_units(chain: Chain, extents: dict[int, int], target: Target) -> tuple[str, ...]:
    """The matrix instructions that the chain can take on a target."""
    tma = target.has("tma") and refuse_warpgroups(chain, extents) is None
    able = {"wgmma": tma, "mma.sync": refuse_warps(chain) is None}
    kinds = multiplicands_of(chain)
    assert kinds is not None
    return tuple(u for u in CHAIN_ROWS if all(u in target.instructions(unit_type(k)) for k in kinds) and able[u])


def _refuse_size(chain: Chain, nodes: list[Node], space: Space, graph: Graph, target: Target) -> str | None:
    wide = [(x.inner, "reduced elements of the first") for x in chain.firsts] if chain.products else []
    wide += [(p.columns, "columns of the last") for p in chain.products]
    for d, what in wide:
        if space.extents[d] > WIDEST:
            return f"a block has room for {WIDEST} {what} contraction, not {space.extents[d]}"
    if not chain_units(chain, space.extents, target):
        return refuse_warpgroups(chain, space.extents) or refuse_warps(chain) or f"{target.name} lacks wgmma and TMA"
    if unable := next((p for p in chain.products if _terms_of(p, chain) is None), None):
        return f"its {unable.weight_type} weights may be larger than an f16, and take bf16 factors, and not f16"
    computed = [x for p in (chain.score, *(p.weights for p in chain.products)) for x in parts_of(p) if x.args]
    if len(chain.products) > 1 and any(x.type in ("i32", "i64") for x in computed):
        return "registers do not hold several results beside integers that are computed for each score, such as random numbers"
    if not choose_chain_tile(target, chain_problem(nodes, space, graph, target)):
        return "no tile fits registers and shared memory"
    return None


def _element(kind: str) -> str:
    """The type of the numbers that are multiplied."""
    return "bf16" if kind == bf16_split.KIND else kind


def weight_terms_of(chain: Chain) -> int | None:
    """The number of products that one weight takes, the most of all; 0 without a second contraction."""
    terms = [_terms_of(p, chain) for p in chain.products]
    able = [n for n in terms if n is not None]
    return max(able, default=0) if len(able) == len(terms) else None


def _terms_of(product: Product, chain: Chain) -> int | None:
    kinds, own = multiplicands_of(chain), product.weight_type
    assert kinds is not None
    kind = _element(kinds[1])
    if own == kind or (kind == "tf32" and own in ("bf16", "f16")):  # which a tf32 holds
        return 1
    if kind == "f16" and product.weight_bound > LARGEST_WEIGHT:
        return None
    if own != "f32":
        return 2 if kind == "bf16" else 1  # two bf16 have the bits of an f16
    return WEIGHT_TERMS.get((kind, multiplicand_allowed(product.total.operation)))


def chain_of(nodes: list[Node], space: Space, graph: Graph) -> Chain | str:
    """The contraction chain of the nodes, or the reason why they are none."""
    dims = {n.op: space.dims[n] for n in nodes}
    reader = Reader(dims, partial(graph.maker_in, nodes), computed=True)
    try:
        outputs = []
        for made in filter(None, (graph.maker_in(nodes, v) for v in outputs_of(nodes, graph))):
            reader.result(*made)
            outputs.append([d for d in reader.result_dims(*made) if space.extents[d] > 1])
        checks = [condition for n in nodes for condition, _ in reader.checks(n.op)]
    except Unreadable as error:
        return str(error)
    if any(condition.totals for condition in checks):
        return "whether a subscript is inside its tensor depends on what the kernel computes"
    return read_chain(reader, outputs)


# ---- what it costs -----------------------------------------------------------------------------------------


def chain_problem(nodes: list[Node], space: Space, graph: Graph, target: Target) -> ChainProblem:
    """The contraction chain as the cost model sees it."""
    chain = chain_of(nodes, space, graph)
    assert isinstance(chain, Chain)
    extents, fit = space.extents, target.fit(ChainTimes)
    whole = (chain.score, *(c.term for c in chain.row_states), *(p.weights for p in chain.products))
    parts = {p for x in whole for p in parts_of(x) if chain.between in p.dims}  # the others are computed once a row
    of_words = {p for p in parts if p.op == "arith.sitofp" and p.args[0].op == "total"}  # of 32 bits: by the float units
    special = sum(_SPECIAL.get(p.op, 0) for p in parts - of_words if p.args)
    near = Neighbours(chain.between)
    exchanged = [x for p in chain.products for x in near.worthwhile(p.weights)]
    shared_parts = {p for p in parts if exchanged and chain.between in p.dims and near.shares(p)}
    fma = sum(_instructions(p, graph) / (SIZE if p in shared_parts else 1) for p in parts) - special
    fma += len(chain.row_states) + sum(1 + (p.values.bytes < 4) for p in chain.products)  # as which a product is fitted
    factors = {part.expression for x in chain.factors for part in x.parts}
    stored = {x.key for x in factors}
    read = lambda x: prod(-(-extents[d] // (chain.head_groups.get(d, 1) or 1)) for d in x.dims)  # noqa: E731
    loaded = [p for p in parts - factors if p.op == "element" and chain.between in p.dims]
    per_score = [p for p in loaded if p.dims & {*chain.rows}]
    gathered = any(p.args and not p.dims & {*chain.rows} for p in loaded)
    further = fit.several_products_registers + fit.gathered_registers * gathered
    further += fit.several_results_registers * (len(chain.products) - 1) if chain.products else 0
    out = sum(element_bytes(v.type) for v in outputs_of(nodes, graph))
    terms, kinds, columns = weight_terms_of(chain), multiplicands_of(chain), [extents[p.columns] for p in chain.products]
    assert kinds is not None
    in_scores, in_values = len(chain.left.parts), max((len(p.values.parts) for p in chain.products), default=1)
    return ChainProblem(
        prod(extents[d] for d in chain.rows), extents[chain.between], extents[chain.inner],
        columns[0] if columns else 0,
        prod(extents[d] for d in chain.batch), _element(kinds[0]), 3 if terms is None else terms,
        _share(chain, extents), fma + fit.load_operations * len(loaded), special, out,
        k_major=(chain.left.contiguous == chain.inner, chain.right.contiguous == chain.inner),
        units=chain_units(chain, extents, target),
        row_extents=tuple(extents[d] for d in chain.rows),
        head_groups=tuple(n if (n := chain.head_groups.get(d, 0)) < extents[d] else 0 for d in chain.rows),
        score_bytes=sum(element_bytes(p.key.type.element_type) for p in per_score if _spread_bytes(p, chain) > HELD),
        line_bytes=sum(line_bytes(p, chain.rows[-1], chain.between) for p in per_score),
        operand_bytes=sum(bytes_of(p.key) for p in per_score),
        factor_bytes=sum(min(bytes_of(v), 2 * sum(read(x) for x in factors if x.key == v)) for v in stored),
        listed=bool(chain.matches), pages=tuple(sorted({x.page for x in chain.factors if x.page})),
        by_data=bool(chain.matches) or any(leaf.op == "element" for m in chain.masks for x, _ in m.bounds for leaf in x),
        score_registers=sum(0.5 for p in {p for p in per_score if p.key.type.element_type.width == 16}),
        other_registers=(fit.exchange_registers if exchanged else 0) + (further if len(chain.firsts) > 1 else 0),
        line_steps=_lines_of_steps(chain), more_inner=tuple(extents[first.inner] for first in chain.firsts[1:]),
        of_values=_element(kinds[1]), parts=(in_scores, in_values),
        pairs=(len(products_of(in_scores, in_scores)), len(products_of(terms or 0, in_values))),
        more_columns=tuple(columns[1:]),
        columns_of_rights=sum(chain.right_of(p) is not None for p in chain.products),
    )  # fmt: skip


_SPECIAL = {"math.exp2": 1, "math.exp": 1, "math.tanh": 2, "arith.divf": 1, "math.log": 1, "math.erf": 1, "math.sqrt": 1,
            "arith.sitofp": 1}  # fmt: skip
"""Operations of the special units, as which conversions count."""


def _spread_bytes(x: Expr, chain: Chain) -> int:
    """Bytes over which the elements that all scores of one batch read lie."""
    type_ = ir.ShapedType(x.key.type)
    moved = [n for n, s in zip(type_.shape, subscripts(x)) if s.dims & {*chain.rows, chain.between}]
    return prod(moved) * element_bytes(type_.element_type)


def line_bytes(x: Expr, row: int, column: int) -> float:
    """Bytes of the lines that the requests of a warp for one element for each of its scores touch, for each score: of 8 rows and,
    two columns apart, 4 columns. 0 for what is read two columns at a time. Places that data tell count as one."""
    type_ = ir.ShapedType(x.key.type)
    size = element_bytes(type_.element_type)
    if not x.args and x.own_dims[-1:] == (column,) and size in (2, 4):
        return 0.0
    moved = strides(x.key, steps(x, (row, column)))
    down, along = moved.get(row, 0), moved.get(column, 0)
    lines = {(r * down + 2 * c * along) // LINE for r in range(8) for c in range(4)}
    return len(lines) * LINE / WARP


def _instructions(p: Expr, graph: Graph) -> float:
    """Of one operation, in the approximate form that is planned for it."""
    if not p.args or p.type == "index" or p.op in ("element", "arith.index_cast"):
        return 0
    if p.template is None:
        return 1
    return instructions_of(p.template, graph.approximate)


def _share(chain: Chain, extents: dict[int, int]) -> float:
    """The share of elements that the masks leave, from a sample of rows."""
    length = extents[chain.between]
    sample = [{d: (2 * n + 1) * extents[d] // 64 for d in chain.rows} for n in range(32)]
    return sum(max(0, high - low) for low, high in (_range(chain, at, length) for at in sample)) / (32 * length)


def growing(chain: Chain, extents: dict[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The dimensions of rows along which later rows have more unmasked elements than earlier ones, and those along which they have
    fewer."""
    first = dict.fromkeys(chain.rows, 0)

    def length(row: dict[int, int]) -> int:
        low, high = _range(chain, row, extents[chain.between])
        return high - low

    gained = {d: length(first | {d: extents[d] - 1}) - length(first) for d in chain.rows}
    return tuple(d for d, n in gained.items() if n > 0), tuple(d for d, n in gained.items() if n < 0)


def _range(chain: Chain, row: dict[int, int], length: int) -> tuple[int, int]:
    """Elements that a row may need, where only the row's indices take part."""
    low, high = 0, length
    for mask in chain.masks:
        for leaves, number in mask.bounds:
            factor = sum(f for leaf, f in leaves.items() if chain.between in leaf.dims)
            others = {leaf: f for leaf, f in leaves.items() if chain.between not in leaf.dims}
            if any(leaf.op != "index" or leaf.own_dims[0] not in row for leaf in others):
                continue
            rest = number + sum(f * row[leaf.own_dims[0]] for leaf, f in others.items())
            if factor < 0:
                high = min(high, rest // -factor + 1)
            elif factor > 0:
                low = max(low, -(rest // factor))
    return low, high
