"""Contraction chains: a contraction whose result is only reduced along its columns, by row reductions and perhaps by a
second contraction, all in one loop over the index between them.

    s[i, j] = sum_d q[i, d] k[j, d]                 scores: made a tile at a time, never stored
    m, l    = reductions over j of s                states, online (`tilec.analysis.online_reduction`)
    o[i, e] = sum_j w(s[i, j], m, l) v[j, e]        product, if there is one: adds the tile's weights times v

A block has some rows i, and loops over the tiles of j. This module decides whether operations have this form, and which
tiles of j a mask leaves: conditions that are affine in indices get bounds over a tile (`Mask`).
"""

# mypy: no-strict-optional

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf

from tilec.analysis.expression import Expr, Reader, Total, Unreadable
from tilec.analysis.online_reduction import Carried, Online, derive
from tilec.analysis.products import stored_term
from tilec.core import mlir
from tilec.core.mlir import ir

Linear = tuple[dict[Expr, int], int]  # the sum of leaves times numbers, and a number
_AT_LEAST = {2: (1, -1), 3: (0, -1), 4: (1, 1), 5: (0, 1)}  # cmpi a, b: sign * (a - b) - strict >= 0


@dataclass(frozen=True)
class Mask:
    """A condition: elements for which it fails add nothing. It holds where each of `bounds` is at least 0."""

    condition: Expr
    bounds: tuple[Linear, ...]


@dataclass(frozen=True)
class Chain:
    """The parts of a contraction chain. `left` and `right` are the stored factors of the scores (rows and columns of the
    scores). `weights` and `values` are the factors of the product. `rows` and `columns` are kernel dimensions of the
    product, `inner` the reduced dimension of the scores, `batch` the dimensions that all factors have. Without a second
    contraction there are neither `product`, `weights`, `values` nor `columns`."""

    online: Online
    scores: Total
    product: Carried | None
    left: Expr
    right: Expr
    weights: Expr | None
    values: Expr | None
    rows: int
    inner: int
    columns: int | None
    batch: tuple[int, ...]
    masks: tuple[Mask, ...]

    @property
    def between(self) -> int:
        return self.online.dim

    @property
    def absorbing(self) -> float | None:
        """A score that changes no state, by which a mask can be told to all that follows; None where there is none."""
        for number in (-inf, 0.0, inf):
            terms = [self.under(c.term, masked=False) for c in self.online.carried]
            swapped = [folded(t.replace(lambda p: self._score(p, number))) for t in terms]  # noqa: B023
            if all(t.number == c.identity for t, c in zip(swapped, self.online.carried)):
                return number
        return None

    def _score(self, x: Expr, number: float) -> Expr | None:
        return Expr("constant", key=number) if x.op == "total" and x.key == self.scores.number else None

    def under(self, expression: Expr, masked: bool) -> Expr:
        """An expression where all masks hold, unless `masked`."""
        if masked:
            return expression
        return _assume(expression, {m.condition for m in self.masks})


def read_chain(reader: Reader, outputs: Iterable[Expr]) -> Chain | str:
    """The contraction chain that computes `outputs`, as read by `reader`; or the reason why there is none."""
    try:
        return _chain(reader, list(outputs))
    except Unreadable as error:
        return str(error)


def _chain(reader: Reader, outputs: list[Expr]) -> Chain:
    shared = {d: t for t in reader.totals for d in t.dims if any(d in other.reduced for other in reader.totals)}
    if len(shared) != 1:
        raise Unreadable("there is no single index that one contraction makes and the other sums over")
    ((between, scores),) = shared.items()
    online = derive([t for t in reader.totals if t is not scores], between)
    if isinstance(online, str):
        raise Unreadable(online)
    wide = [c for c in online.carried if set(c.total.dims) - set(scores.dims)]
    if len(wide) > 1 or len(online.carried) != len(reader.totals) - 1:
        raise Unreadable("a single contraction must come last")
    product = wide[0] if wide else None
    last = product.total if product else scores
    left, right = _factors(scores.term, scores.dims)
    if left is None or between in left.dims:
        left, right = right, left
    weights, values = _product(product) if product else (None, None)
    rows, columns = set(scores.dims) & left.dims - right.dims, set(last.dims) - set(scores.dims)
    batch = tuple(d for d in scores.dims if d not in rows and d != between)
    kinds = [(rows, "rows"), (scores.reduced, "reduced indices"), *([(columns, "columns")] if product else [])]
    for found, what in kinds:
        if len(found) != 1:
            names = " and ".join(dict.fromkeys((scores.name, last.name)))
            raise Unreadable(f"the {what} of {names} are {len(found)} dimensions, not one")
    carried_dims = {d for c in online.carried for d in c.total.dims}
    if not carried_dims <= {*batch, *rows, *columns} or (values and values.dims - {*batch, *columns, between}):
        raise Unreadable(f"{last.name} has indices that {scores.name} does not have")
    for output in outputs:
        if between in output.dims:
            raise Unreadable(f"the result of {scores.name} is stored, element by element")
    masks = tuple(_masks(online, scores))
    (row,), (inner,), column = rows, scores.reduced, next(iter(columns), None)
    return Chain(online, scores, product, left, right, weights, values, row, inner, column, batch, masks)


def _factors(term: Expr, dims: tuple[int, ...]) -> tuple[Expr, Expr]:
    if term.op != "arith.mulf":
        raise Unreadable("the first contraction is not a sum of products")
    left, right = (stored_term(a) for a in term.args)
    if left.op != "element" or right.op != "element":
        raise Unreadable("the factors of the first contraction are computed, and not stored")
    return left, right


def _product(product: Carried) -> tuple[Expr, Expr]:
    """The weights and the values of the last contraction."""
    name = product.total.name
    if product.term.op != "arith.mulf":
        raise Unreadable(f"{name} is not a sum of products")
    own = set(product.total.dims)
    pair = sorted(product.term.args, key=lambda a: stored_term(a).op == "element" and bool(own & a.dims))
    weights, values = pair[0], stored_term(pair[1])
    if values.op != "element":
        raise Unreadable(f"the values that {name} adds up are computed, and not stored")
    if values.dims & weights.dims - {d for d in values.dims if d in own} - set(product.total.reduced):
        raise Unreadable(f"the factors of {name} share an index that its result does not have")
    return weights, values


# ---- masks -------------------------------------------------------------------------------------------------


def _masks(online: Online, scores: Total) -> Iterator[Mask]:
    """Affine conditions without which no state changes."""
    for condition in dict.fromkeys(c for carried in online.carried for c in _conditions(carried.term)):
        bounds = affine_bounds(condition)
        if bounds is None or all(online.dim not in leaf.dims for leaves, _ in bounds for leaf in leaves):
            continue
        if all(_without(c.term, condition).number == c.identity for c in online.carried):
            yield Mask(condition, bounds)


def _conditions(x: Expr) -> Iterator[Expr]:
    if x.op == "arith.select":
        yield x.args[0]
    for a in x.args:
        yield from _conditions(a)


def _assume(x: Expr, conditions: set[Expr]) -> Expr:
    """`x` where the conditions hold."""
    return x.replace(
        lambda p: _assume(p.args[1], conditions) if p.op == "arith.select" and p.args[0] in conditions else None
    )


def _without(x: Expr, condition: Expr) -> Expr:
    """`x` where a condition does not hold."""
    return folded(x.replace(lambda p: p.args[2] if p.op == "arith.select" and p.args[0] == condition else None))


def folded(x: Expr) -> Expr:
    """`x` with its constants folded. An infinity absorbs what is added to it, and a weight of 0 makes a product 0."""
    args = tuple(folded(a) for a in x.args)
    numbers = [a.number for a in args]
    infinite = next((n for n in numbers if n in (inf, -inf)), None)
    match x.op:
        case "math.fma" if numbers[0] in (inf, -inf) and numbers[1]:
            return Expr("constant", key=numbers[0] * numbers[1])
        case "math.exp2" | "math.exp" if numbers[0] == -inf:
            return Expr("constant", key=0.0)
        case "arith.mulf" if 0 in numbers and infinite is None:
            return Expr("constant", key=0.0)
        case "arith.mulf" if None not in numbers:
            return Expr("constant", key=numbers[0] * numbers[1])
        case "arith.divf" if None not in numbers and numbers[1]:
            return Expr("constant", key=numbers[0] / numbers[1])
        case "arith.addf" if infinite is not None:
            return Expr("constant", key=infinite)
        case "arith.maximumf" if None not in numbers:
            return Expr("constant", key=max(numbers))
    return Expr(x.op, args, x.key, x.own_dims, x.type, x.template)


def affine_bounds(condition: Expr) -> tuple[Linear, ...] | None:
    """Affine forms that are all at least 0 just where the condition holds."""
    if condition.op == "arith.andi":
        parts = [affine_bounds(a) for a in condition.args]
        return None if None in parts else tuple(b for part in parts for b in part)
    if condition.op != "arith.cmpi":
        return None
    predicate = ir.IntegerAttr(condition.template.attributes["predicate"]).value
    sides = [linear(a) for a in condition.args]
    if predicate not in _AT_LEAST or None in sides or any(map(_may_wrap, sides)):
        return None
    strict, sign = _AT_LEAST[predicate]
    leaves, number = _add(_times(sides[0], sign), _times(sides[1], -sign))
    return ((leaves, number - strict),)


def _may_wrap(side: Linear) -> bool:
    """Whether it may leave 64 bits, whatever the indices of tensors that memory holds."""
    leaves, number = side
    return sum(map(abs, leaves.values())) > 2**16 or abs(number) > 2**62


def linear(x: Expr) -> Linear | None:
    """An integer expression as a sum of leaves times numbers."""
    match x.op:
        case "constant":
            return {}, int(x.key)
        case "index" | "outer":
            return {x: 1}, 0
        case "arith.index_cast" | "arith.extsi":
            return linear(x.args[0])
        case "affine.apply":
            map_ = ir.AffineMapAttr(x.template.attributes["map"]).value
            return _affine(map_.results[0], [linear(a) for a in x.args], map_.n_dims)
    parts = [linear(a) for a in x.args]
    if len(parts) != 2 or None in parts:
        return None
    a, b = parts
    match x.op:
        case "arith.addi":
            return _add(a, b)
        case "arith.subi":
            return _add(a, _times(b, -1))
        case "arith.muli" if not a[0] or not b[0]:
            return _times(b, a[1]) if not a[0] else _times(a, b[1])
    return None


def _affine(expr: ir.AffineExpr, inner: list[Linear | None], dims: int) -> Linear | None:
    match expr:
        case ir.AffineConstantExpr():
            return {}, expr.value
        case ir.AffineDimExpr():
            return inner[expr.position]
        case ir.AffineSymbolExpr():
            return inner[dims + expr.position]
        case ir.AffineAddExpr() | ir.AffineMulExpr():
            a, b = _affine(expr.lhs, inner, dims), _affine(expr.rhs, inner, dims)
            if a is None or b is None:
                return None
            if isinstance(expr, ir.AffineAddExpr):
                return _add(a, b)
            if not a[0] or not b[0]:
                return _times(b, a[1]) if not a[0] else _times(a, b[1])
    return None


def _add(a: Linear, b: Linear) -> Linear:
    leaves = {leaf: a[0].get(leaf, 0) + b[0].get(leaf, 0) for leaf in a[0] | b[0]}
    return {leaf: factor for leaf, factor in leaves.items() if factor}, a[1] + b[1]


def _times(a: Linear, factor: int) -> Linear:
    return {leaf: f * factor for leaf, f in a[0].items()}, a[1] * factor


def multiplicand_allowed(op: ir.Operation) -> str | None:
    """The type to which `using` allows a contraction's factors to be rounded."""
    allowed = mlir.get_string(op, "tilec.multiplicand")
    return None if allowed == "f22" else allowed  # it allows sums to lose bits, which these products do not
