"""Writes to computed positions, read from the other side: each element of a result looks at all that may be written to it.

    y[j] = x[j] + sum[t](v[t] if position[t] == j else 0)             accumulated
    last[j] = max[t](t if position[t] == j else -1)                   else the last write counts, as on the CPU; where PyTorch
    y[j] = v[last[j]] if last[j] >= 0 else x[j]                    leaves the order open, this is one of its results

So a program looks at each pair of a write and a position. That is taken where it is no slower than PyTorch's writes (`costs`). Sums
of rows are reductions by key, for which a GPU sorts the positions first (`tilec/analysis/by_key.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod
from typing import TYPE_CHECKING

from tilec.core.dtypes import DTYPES
from tilec.torch import indices as ix
from tilec.torch.aliases import node_at
from tilec.torch.aten import affine_writes, costs
from tilec.torch.aten.gathers import Advanced, bound, element, table
from tilec.torch.aten.pools import highest, lowest
from tilec.torch.aten.table import Call, expresses, op_name, operand
from tilec.torch.indices import Index
from tilec.torch.program import Tensor, Unsupported, literal, reduction

if TYPE_CHECKING:
    from torch.fx import Node

TOO_MANY = "writes to computed positions"
NESTED = 4
"""Writes of which each is a choice of its own in the expression of an element."""

PositionAt = Callable[[Sequence[Index]], str]


def positions_of(call: Call, given: Tensor, node: Node | None, extent: int, wraps: bool) -> PositionAt:
    """Positions in a dimension as i32. What may be outside is read by way of a table of the dimension's positions, as a gather,
    which is checked. One that is negative counts from the end, if it `wraps`."""
    graph = call.graph
    if node is not None and (known := bound(node)) is not None and known <= extent:
        return lambda i: f"i32({given.at(*i)})"
    inside = table(graph, extent)

    def position(i: list[Index]) -> str:
        text = given.at(*i)
        return inside.at(ix.opaque(f"{text} + {extent} if {text} < 0 else {text}" if wraps else text))

    made = graph.emit(given.shape, "i32", position)
    return lambda i: made.at(*i)


def affordable(call: Call, pairs: int, written: int, rows: tuple[int, int] | None = None) -> None:
    """Raises Unsupported where so many pairs take longer than PyTorch's writes. `rows`: of a sum of whole rows, how many are
    written, and to how many."""
    size = DTYPES[call.dtype].bits // 8
    moved = size * (2 * prod(call.shape) + written) + 8 * written
    by_key = rows is not None and costs.sum_by_key_pays(call.device, *rows, pairs, moved)
    if not by_key and not costs.scatter_pays(call.device, pairs, moved):
        raise Unsupported(f"{call.name}: {TOO_MANY}")


def combined(kind: str, dtype: str, before: str, text: str, count: str, own: bool) -> str:
    """What becomes of an element by a reduction `text` of so many writes; `own`: its value before takes part."""
    if kind == "mean":
        many = f"({count} + 1)" if own else f"max({count}, 1)"
        total = f"{before} + {text}" if own else text
        quotient = f"({total}) / {many}" if DTYPES[dtype].is_float else f"({total}) // {many}"
        return quotient if own else f"{quotient} if {count} > 0 else {before}"
    joined = {"sum": "{} + {}", "prod": "{} * {}", "amax": "max({}, {})", "amin": "min({}, {})"}[kind].format(
        before, text
    )
    return joined if own else f"{text} if {count} > 0 else {before}"


NEUTRAL = {"sum": lambda dtype: "0", "mean": lambda dtype: "0", "prod": lambda dtype: "1", "amax": lowest,
           "amin": highest}  # fmt: skip
LANGUAGE = {"sum": "sum", "mean": "sum", "prod": "prod", "amax": "max", "amin": "min"}
NAMES = {"add": "sum", "multiply": "prod"}  # of `scatter`'s reductions


# ---- along a dimension -------------------------------------------------------------------------------------------------


@expresses("scatter scatter_add scatter_reduce")
def scatter(call: Call) -> Tensor:
    """The write of index element (..., t, ...) goes to (..., index[..., t, ...], ...)."""
    x, index = call["self"], call["index"]
    source = call["src"] if "src" in call else call["value"]
    kind = "sum" if call.name == "scatter_add" else call.get("reduce")
    kind = NAMES.get(kind, kind)
    own = bool(call.get("include_self", True))
    if not x.shape:
        x, index = x.reshaped((1,)), index.reshaped((1,))
        source = source.reshaped((1,)) if isinstance(source, Tensor) else source
    if not index.shape:
        index = index.reshaped((1,))
    if isinstance(source, Tensor) and not source.shape:
        source = source.reshaped((1,))
    axis, writes = int(call["dim"]) % len(x.shape), prod(index.shape)
    whole = all(n == m or d == axis for d, (n, m) in enumerate(zip(index.shape, x.shape)))
    affordable(call, writes * x.shape[axis], writes)
    position = positions_of(call, index, node_at(call.node, 2), x.shape[axis], False)
    made = along(call, x, axis, index.shape, position, source, kind, own, whole)
    return made if call.shape else made.reshaped(())


def along(
    call: Call, x: Tensor, axis: int, written: Sequence[int], position: PositionAt, source: Tensor | float, kind: str | None,
    own: bool, whole: bool,
) -> Tensor:  # fmt: skip
    count, dtype = written[axis], call.dtype
    tests = lambda i: [f"{p} < {n}" for d, (p, n, m) in enumerate(zip(i, written, x.shape)) if d != axis and n < m]  # noqa: E731

    def at(i: list[Index], t: Index) -> list[Index]:
        """The position of write t to an element; it is read where `tests` hold."""
        inner = [t if d == axis else p for d, p in enumerate(i)]
        return [p if d == axis or n == m else ix.within(p, n) if n > 1 else ix.number(0)
                for d, (p, n, m) in enumerate(zip(inner, written, x.shape))]  # fmt: skip

    def guarded(i: list[Index], text: str, otherwise: str) -> str:
        return text if whole else f"{text} if {' and '.join(tests(i))} else {otherwise}"

    value = lambda k: operand(source, dtype, lambda s: s.at(*k))  # noqa: E731
    before = lambda i: operand(x, dtype, lambda s: s.at(*i))  # noqa: E731
    hit = lambda i, t: f"{position(at(i, t))} == {i[axis]}"  # noqa: E731
    if kind is None and count <= NESTED:

        def nested(i: list[Index]) -> str:
            text = before(i)
            for t in range(count):
                text = f"{value(at(i, ix.number(t)))} if {hit(i, ix.number(t))} else ({text})"
            return guarded(i, f"({text})", before(i))

        return call.graph.emit(x.shape, dtype, nested)
    if kind is None:
        newest = lambda i: reduction("max", [count], lambda k: f"i32({k[0]}) if {hit(i, k[0])} else -1")  # noqa: E731
        last = call.graph.emit(x.shape, "i32", lambda i: guarded(i, newest(i), "-1"))

        def written_last(i: list[Index]) -> str:
            t = ix.opaque(f"clamp({last.at(*i)}, 0, {count - 1})", (0, count - 1))
            return guarded(i, f"({value(at(i, t))} if {last.at(*i)} >= 0 else {before(i)})", before(i))

        return call.graph.emit(x.shape, dtype, written_last)
    neutral = NEUTRAL[kind](dtype)

    def reduced(i: list[Index]) -> str:
        body = lambda k: f"{value(at(i, k[0]))} if {hit(i, k[0])} else {neutral}"  # noqa: E731
        text = reduction(LANGUAGE[kind], [count], body)
        hits = reduction("sum", [count], lambda k: f"i32({hit(i, k[0])})") if kind == "mean" or not own else ""
        found = combined(kind, dtype, before(i), text, hits, own)
        return guarded(i, f"({found})", before(i))

    return call.graph.emit(x.shape, dtype, reduced)


@expresses("index_add index_copy", whole="a negative position is an error, which PyTorch's decomposition counts from the end")
@expresses("index_reduce")
def index_add(call: Call) -> Tensor:
    """Rows of `source` go to rows of the tensor."""
    if call.node.meta.get(CHANGES):
        return _changed(call)
    x, index, source = call["self"], call["index"], call["source"]
    kind = {"index_add": "sum", "index_copy": None}.get(call.name, call.get("reduce"))
    kind, own = NAMES.get(str(kind), kind), bool(call.get("include_self", True))
    index = index if index.shape else index.reshaped((1,))
    x, source = (t if t.shape else t.reshaped((1,)) for t in (x, source))
    axis, count = int(call["dim"]) % len(x.shape), index.shape[0]
    written = [count if d == axis else n for d, n in enumerate(x.shape)]
    if prod(source.shape) == prod(written) == 1:
        source = source.reshaped(written)
    if list(source.shape) != written:
        raise Unsupported(f"{call.name}: rows of another shape")
    looked = prod(written) * x.shape[axis] if kind else count * x.shape[axis]
    affordable(call, looked, prod(written), (count, x.shape[axis]) if kind == "sum" else None)
    found = positions_of(call, index, node_at(call.node, 2), x.shape[axis], False)
    alpha = call.get("alpha", 1)
    if alpha not in (None, 1):
        plain = source
        factor = literal(alpha, call.dtype)
        source = call.graph.emit(
            written, call.dtype, lambda i: f"{operand(plain, call.dtype, lambda s: s.at(*i))} * {factor}"
        )
    made = along(call, x, axis, written, lambda i: found([i[axis]]), source, kind, own, True)
    return made if call.shape else made.reshaped(())


# ---- at positions in several dimensions --------------------------------------------------------------------------------


CHANGES = "tilec_changes"
"""Of nodes that write one position of a dimension of a graph's input, and nothing else of it: a kernel can do that in place."""


def _changed(call: Call) -> Tensor:
    """The tensor, but for one position of a dimension, which data tell."""
    x, wraps = call["self"], call.name != "index_copy"
    if wraps:
        part = call["values"]
        ((axis, at),) = [(d, t) for d, t in enumerate(call["indices"]) if t is not None]
    else:
        part, axis, at = call["source"], int(call["dim"]) % len(x.shape), call["index"]
    shape = (*x.shape[:axis], *at.shape, *x.shape[axis + 1 :])
    position = element(at, [ix.number(0) for _ in at.shape], x.shape[axis], wraps)

    def expression(i: list[Index]) -> str:
        inside = [*i[:axis], *(ix.number(0) for _ in at.shape), *i[axis + 1 :]]
        new = operand(part, x.torch_dtype, lambda t: t.along(inside, shape))
        return f"{new} if {i[axis]} == {position} else {x.at(*i)}"

    return call.emit(x.shape, call.dtype, expression, range(len(x.shape)))


@expresses("index_put _unsafe_index_put")
def index_put(call: Call) -> Tensor:
    """The inverse of NumPy's advanced indexing."""
    if call.node.meta.get(CHANGES):
        return _changed(call)
    x, source, by = call["self"], call["values"], Advanced(call, "as many writes as the data say")
    given, nodes, chosen, index_shape, first = by.given, by.nodes, by.chosen, by.index_shape, by.first
    if bool(call["accumulate"]) and call.dtype == "bool":
        raise Unsupported(f"{call.name}: sums of bools")
    rest = [d for d in range(len(x.shape)) if d not in chosen]
    lead = [d for d in rest if d < first]
    shape = [*(x.shape[d] for d in lead), *index_shape, *(x.shape[d] for d in rest if d not in lead)]
    writes, targets = prod(index_shape), prod(x.shape[d] for d in chosen)
    dtype = call.dtype

    def value(i: Sequence[Index], t: Sequence[Index]) -> str:
        at = [*(i[d] for d in lead), *t, *(i[d] for d in rest if d not in lead)]
        return operand(source, dtype, lambda s: s.along(at, shape))

    before = lambda i: operand(x, dtype, lambda s: s.at(*i))  # noqa: E731
    if call["accumulate"]:
        made = affine_writes.solved(call, x, {d: given[d] for d in chosen}, index_shape, before, value)
        if made is not None:
            return made
    ranks = call.graph.ranks.get(given[chosen[0]].name) if len(chosen) == 1 else None
    order = _sorted_by(nodes[chosen[0]]) if len(chosen) == 1 and not call["accumulate"] else None
    if order is not None and targets == writes:
        device, length = call.device, int(order.meta["val"].numel())
        if not costs.sort_pays(device, 1, length, str(given[chosen[0]].dtype)):
            raise Unsupported(f"{call.name}: {TOO_MANY}")
    else:
        ranks = None
        looked = writes * prod(x.shape) if call["accumulate"] else writes * targets
        alone = call["accumulate"] and len(chosen) == len(index_shape) == 1
        affordable(call, looked, prod(shape), (writes, targets) if alone else None)
    if ranks is not None:  # each position is written once: by the element of that rank
        return call.emit(call.shape, dtype, lambda i: value(i, [ix.opaque(
            f"clamp({ranks.at(i[chosen[0]])}, 0, {writes - 1})", (0, writes - 1))]))  # fmt: skip
    positions = {d: positions_of(call, given[d], nodes[d], x.shape[d], True) for d in chosen}

    def hit(i: Sequence[Index], t: Sequence[Index]) -> str:
        own = {d: given[d].aligned(t, index_shape) for d in chosen}
        return " and ".join(f"{positions[d](own[d])} == {i[d]}" for d in chosen)

    flat = lambda t: ix.flat(t, ix.row_major(index_shape))  # noqa: E731
    if call["accumulate"]:
        text = lambda i: reduction("sum", index_shape, lambda t: f"{value(i, t)} if {hit(i, t)} else 0")  # noqa: E731
        return call.emit(call.shape, dtype, lambda i: f"{before(i)} + {text(i)}")
    own = lambda i: dict(zip(chosen, i))  # noqa: E731
    newest = lambda i: reduction("max", index_shape, lambda t: f"i32({flat(t)}) if {hit(i, t)} else -1")  # noqa: E731
    last = call.graph.emit(
        [x.shape[d] for d in chosen], "i32", lambda i: newest([own(i).get(d) for d in range(len(x.shape))])
    )

    def expression(i: list[Index]) -> str:
        found = last.at(*(i[d] for d in chosen))
        t = ix.unflat(ix.opaque(f"clamp({found}, 0, {writes - 1})", (0, writes - 1)), index_shape)
        return f"{value(i, t)} if {found} >= 0 else {before(i)}"

    return call.emit(call.shape, dtype, expression)


def _sorted_by(node: Node | None) -> Node | None:
    """The positions that a sort of one row gives, if positions are these."""
    if node is None or node.op != "call_function" or op_name(node) != "getitem" or node.args[1] != 1:
        return None
    return node if op_name(node_at(node)) == "sort" and len(node.meta["val"].shape) == 1 else None


# ---- counts ------------------------------------------------------------------------------------------------------------


@expresses("histc")
def histogram(call: Call) -> Tensor:
    """How many elements lie in each of equal parts of a range; one at its end counts in the last part."""
    x, bins, low, high = call["self"], int(call["bins"]), call["min"], call["max"]
    if low == high:
        raise Unsupported("histc: a range that depends on data")
    if not (-inf < low < high < inf):
        raise Unsupported("histc: a range of no numbers")
    count = prod(x.shape)
    affordable(call, count * bins, count)
    flat, compute = x.reshaped((count,)), "f64" if x.dtype == "f64" else "f32"
    wide = compute if DTYPES[x.dtype].is_float else "i64"
    a, b = (literal(float(v) if DTYPES[x.dtype].is_float else int(v), wide) for v in (low, high))

    def part(i: list[Index]) -> str:
        value = operand(flat, wide, lambda t: t.at(*i))
        position = (
            f"({value} - {a}) * {bins} / ({b} - {a})" if wide != "i64" else f"({value} - {a}) * {bins} // ({b} - {a})"
        )
        return f"min(i32({position}), {bins - 1}) if {value} >= {a} and {value} <= {b} else -1"

    parts = call.graph.emit((count,), "i32", part)
    return call.emit(
        (bins,), call.dtype, lambda i: reduction("sum", [count], lambda k: f"i32({parts.at(k[0])} == {i[0]})")
    )


@expresses("embedding_dense_backward")
def embedding_dense_backward(call: Call) -> Tensor:
    """A row is the sum of the gradients of all that was read of it."""
    if call["scale_grad_by_freq"]:
        raise Unsupported(f"{call.name}: rows are divided by how often they were read")
    (rows, width), padding = call.shape, int(call["padding_idx"])
    reads = prod(call["indices"].shape)
    affordable(call, reads * rows * width, reads * width, (reads, rows))
    gradient, index = call["grad_output"].reshaped((reads, width)), call["indices"].reshaped((reads,))

    def expression(i: list[Index]) -> str:
        text = reduction("sum", [reads], lambda k: f"{gradient.at(k[0], i[1])} if {index.at(k[0])} == {i[0]} else 0")
        return f"0 if {i[0]} == {padding} else {text}" if padding >= 0 else text

    return call.emit(call.shape, call.dtype, expression)
