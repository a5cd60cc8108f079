"""Contraction chains: a contraction whose result is only reduced along its columns, by row reductions and perhaps by a
second contraction, all in one loop over the index between them.

    s[i, j] = sum_d q[i, d] k[j, d]                 scores: made a tile at a time, never stored
    m, l    = reductions over j of s                states, online (`tilec.analysis.online_reduction`)
    o[i, e] = sum_j w(s[i, j], m, l) v[j, e]        products, if there are some: each adds its weights of the tile times its v

Weights may be made of the results of several contractions over the same rows and columns, and several products may add up weights
along j, each its own: of the gradients of attention, those of keys and of values.

A block has some rows i, and loops over the tiles of j. This module decides whether operations have this form, and which
tiles of j a mask leaves: conditions that are affine in indices get bounds over a tile (`Mask`).

Factors are elements of stored tensors at affine places: `k[b, h // 4, j, d]`, `x[b, j, 1, h, d]`, `x[b, j, h * 64 + d]`, of
which a block reads boxes (`tilec/analysis/factor_access.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, replace
from math import inf

from tilec.analysis.bf16_split import parted
from tilec.analysis.carried import Carried, Online
from tilec.analysis.chain_masks import Mask, Match, folded, masks_of, matches_of, where, with_single_conditions
from tilec.analysis.expression import Expr, Reader, Total, Unreadable, constant, parts_of
from tilec.analysis.extremes import without_idle_roundings
from tilec.analysis.factor_access import FactorAccess, elements_of, factor_of_element
from tilec.analysis.linear_factor import linear_factor
from tilec.analysis.online_reduction import derive
from tilec.analysis.products import stored
from tilec.analysis.rules import rewritten
from tilec.analysis.subscripts import periods, subscripts
from tilec.analysis.weights import largest, narrow_type, without_rounding
from tilec.core import mlir
from tilec.core.mlir import ir


@dataclass(frozen=True)
class First:
    """A contraction whose result stays on chip: `left` has its rows, `right` its columns; it sums over dimension `inner`.
    `unsigned`: the factors are integers without sign. `term`: what it sums, of numbers themselves where their parts are stored."""

    total: Total
    left: FactorAccess
    right: FactorAccess
    inner: int
    term: Expr
    unsigned: bool = False

    @property
    def stored(self) -> set[str]:
        """The types of its factors."""
        return {"u8" if self.unsigned else x.stored for x in (self.left, self.right)}


@dataclass(frozen=True)
class Product:
    """A contraction that comes last, as it is `carried`. `weights` and `values` are its factors; the program rounds a weight to
    `weight_type`, as multiplying it does if that is the type of the values. `columns`: the kernel dimension that it alone has.
    `whole_values`: the values, also of numbers that are stored in parts."""

    carried: Carried
    weights: Expr
    weight_type: str
    values: FactorAccess
    columns: int
    whole_values: Expr

    @property
    def total(self) -> Total:
        return self.carried.total

    @property
    def weight_bound(self) -> float:
        """What no weight exceeds in absolute value, unless it is a NaN."""
        return largest(self.weights)


@dataclass(frozen=True)
class Chain:
    """The parts of a contraction chain. `firsts` are the contractions of stored factors whose elements are reduced; the `scores`
    are those of the first. `products` are the contractions that come last, if there are some. `rows` are kernel dimensions of all
    results, `batch` the dimensions of which a block has one element. A block may have as many elements of a dimension of rows as
    divide its number in `head_groups`, where it has one: the right factors and the products' values read its quotient by that.

    `score` is what all else reads of a score, such as `20 * tanh(s / 20) + bias`: it takes the score's place in the terms of
    `online` and in weights, which are those where no mask excludes an element."""

    online: Online
    firsts: tuple[First, ...]
    score: Expr
    products: tuple[Product, ...]
    rows: tuple[int, ...]
    batch: tuple[int, ...]
    head_groups: dict[int, int]
    masks: tuple[Mask, ...]
    matches: tuple[Match, ...] = ()

    @property
    def between(self) -> int:
        return self.online.dim

    @property
    def scores(self) -> Total:
        return self.firsts[0].total

    @property
    def left(self) -> FactorAccess:
        return self.firsts[0].left

    @property
    def right(self) -> FactorAccess:
        return self.firsts[0].right

    @property
    def inner(self) -> int:
        return self.firsts[0].inner

    def right_of(self, product: Product) -> int | None:
        """The number of the first contraction whose tiles along `between` are those of a product's values, too."""

        def renamed(x: Expr, inner: int) -> Expr:
            dims = tuple(product.columns if d == inner else d for d in x.own_dims)
            return replace(x, own_dims=dims, args=tuple(renamed(a, inner) for a in x.args))

        for n, first in enumerate(self.firsts):
            same = first.right.contiguous == first.inner and not first.right.evens_first
            if same and renamed(first.right.expression, first.inner) == product.values.expression:
                return n
        return None

    @property
    def row_states(self) -> list[Carried]:
        """What is carried for each row: all but the products."""
        return [c for c in self.online.carried if c.total.number not in self.columns]

    @property
    def columns(self) -> dict[int, int]:
        """The dimension of the columns of each product, by its reduction's number."""
        return {p.total.number: p.columns for p in self.products}

    @property
    def factors(self) -> tuple[FactorAccess, ...]:
        """Those that are stored."""
        stored = [x for first in self.firsts for x in (first.left, first.right)]
        return (*stored, *(p.values for p in self.products))

    @property
    def terms(self) -> tuple[Expr, ...]:
        """What is computed of each score."""
        return (*(c.term for c in self.online.carried), *(p.weights for p in self.products))

    @property
    def absorbing(self) -> float | None:
        """A score that changes no state, by which a mask reaches all that follows; None where there is none."""
        for number in (-inf, 0.0, inf):
            swapped = [folded(c.term.replace(lambda p: self._score(p, number))) for c in self.online.carried]  # noqa: B023
            if all(t.number == c.identity for t, c in zip(swapped, self.online.carried)):
                return number
        return None

    def _score(self, x: Expr, number: float) -> Expr | None:
        return Expr("constant", key=number) if x.op == "total" and x.key == self.scores.number else None


def read_chain(reader: Reader, outputs: Iterable[Iterable[int]], rows: Iterable[int] | None = None) -> Chain | str:
    """The contraction chain that computes results, as read by `reader`; or the reason why there is none. `outputs` has the kernel
    dimensions of each result that leaves the kernel, but for those of one element. `rows`: the dimensions of rows, where these are
    known: of a dimension of the batch, a block has one element, which a factor may be read without."""
    try:
        return _chain(reader, [{*dims} for dims in outputs], rows if rows is None else {*rows})
    except Unreadable as error:
        return str(error)


def _chain(reader: Reader, outputs: list[set[int]], known: Set[int] | None) -> Chain:
    shared = {d for t in reader.totals for d in t.dims if any(d in other.reduced for other in reader.totals)}
    if len(shared) != 1:
        raise Unreadable("there is no single index that one contraction makes and the other sums over")
    (between,) = shared
    made = [t for t in reader.totals if between in t.dims]
    scores = made[0]
    totals = dict(enumerate(reader.totals))
    plain = lambda x: without_idle_roundings(with_single_conditions(x), totals)  # noqa: E731
    others = [replace(t, term=rewritten(plain(t.term), "chain")) for t in reader.totals if t not in made]
    online = derive(others, (between,), rounded=True)
    if isinstance(online, str):
        raise Unreadable(online)
    wide = [c for c in online.carried if set(c.total.dims) - set(scores.dims)]
    if len(online.carried) + len(online.shared) != len(others):
        raise Unreadable("no further contractions than those of one index may come last")
    last = wide[0].total if wide else scores
    for other in made[1:]:
        if set(other.dims) != set(scores.dims):
            raise Unreadable(f"{scores.name} and {other.name} have different indices")
        if not wide:
            raise Unreadable(f"{scores.name} and {other.name} are reduced together, where no contraction follows")
    pairs = [_factors(t.term) for t in made]
    pairs = [pair[::-1] if between in pair[0].dims else pair for pair in pairs]
    lefts, rights = zip(*pairs)
    factors = [_product(c) for c in wide]
    shared_by = [elements_of(x)[0] for x in (*rights, *(values for _, values in factors))]
    own = [d for d in scores.dims if all(d in elements_of(x)[0].dims for x in lefts)]
    head_groups = {d: n for d, n in periods(own, [p for x in shared_by for p in subscripts(x)]).items() if n > 1}
    rows = {d for d in own if not any(d in elements_of(x)[0].dims for x in rights) or d in head_groups} - {between}
    rows = rows if known is None else {d for d in rows if d in known}
    single: set[int] = set()
    if not rows:  # of one dimension, which all factors may have, a block has one
        able = [d for d in own or scores.dims if d != between] if known is None else [d for d in scores.dims if d in known]
        rows = single = set(able[-1:])
        head_groups = dict.fromkeys(single, 1)
    columns = [set(c.total.dims) - set(scores.dims) for c in wide]
    batch = tuple(d for d in scores.dims if d not in rows and d != between)
    reduced = [(t.reduced, "reduced indices") for t in made]
    for found, what in (*reduced, *((own_columns, "columns") for own_columns in columns)):
        if len(found) != 1:
            names = " and ".join(dict.fromkeys((*(t.name for t in made), *(c.total.name for c in wide or ()), last.name)))
            raise Unreadable(f"the {what} of {names} are {len(found)} dimensions, not one")
    if not rows:
        raise Unreadable(f"{scores.name} has no rows: no index that its first factor alone has")
    all_columns = {d for own_columns in columns for d in own_columns}
    for c in online.carried:
        if not set(c.total.dims) <= {*batch, *rows, *all_columns}:
            raise Unreadable(f"{c.total.name} has indices that {scores.name} does not have")
    for c, (_, values), own_columns in zip(wide, factors, columns):
        if values.dims - {*batch, *head_groups, *own_columns, between}:
            raise Unreadable(f"{c.total.name} has indices that {scores.name} does not have")
    for dims in outputs:
        if between in dims:
            raise Unreadable(f"the result of {scores.name} is stored, element by element")
        if not dims <= {*batch, *rows, *all_columns}:
            raise Unreadable(f"a result has indices that {last.name} does not have")
        if len(dims & all_columns) > 1:
            raise Unreadable("a result has the columns of two contractions")
    tiled = {*rows, between, *(d for t in made for d in t.reduced), *all_columns}
    shared_dims, firsts = tiled - {*head_groups}, []
    for total, left, right in zip(made, lefts, rights):
        (inner,) = total.reduced
        rows_factor = factor_of_element(left).tile({*rows, inner}, tiled, single=single)
        columns_factor = factor_of_element(right).tile({between, inner}, shared_dims, paged=between)
        term = total.term.replace(lambda x: None if (found := parted(x)) is None else found.whole)
        firsts.append(First(total, rows_factor, columns_factor, inner, term, term.args[0].op == "arith.extui"))
    orders = [tuple(single) or tuple(d for d in first.left.along if d in rows) for first in firsts]
    if len({*orders}) > 1:
        raise Unreadable(f"the rows of {' and '.join(t.name for t in made)} lie in different orders")
    products = []
    for c, (weights, values), (column,) in zip(wide, factors, columns):
        access = factor_of_element(values, weighted=True).tile({between, column}, shared_dims, paged=between)
        unrounded, kind = without_rounding(weights, values.type), narrow_type(weights)
        in_parts = parted(values)
        products.append(Product(c, unrounded, kind, access, column, values if in_parts is None else in_parts.whole))
    score = Expr("total", key=scores.number, own_dims=scores.dims, type=scores.term.type)
    chain = Chain(online, tuple(firsts), score, tuple(products), orders[0], batch, head_groups, ())
    masks = tuple(masks_of(online))
    chain = replace(chain, matches=tuple(matches_of(online, rows)) if products else ())
    masked = _with_score(_assuming(chain, masks))
    chain = _with_score(chain) if masks and masked.absorbing is None else masked
    integers = score.type != "f32"
    if integers and (chain.score.type != "f32" or any(p == score for x in chain.terms for p in parts_of(x))):
        raise Unreadable(f"the integers of {scores.name} are read in several ways, or not as f32")
    return chain


def _factors(term: Expr) -> tuple[Expr, Expr]:
    if term.op not in ("arith.mulf", "arith.muli"):
        raise Unreadable("the first contraction is not a sum of products")
    left, right = map(stored, term.args)
    if term.op == "arith.muli" and ({left.type, right.type} != {"i8"} or len({a.op for a in term.args}) > 1):
        raise Unreadable("the first contraction multiplies integers that are neither i8 by i8 nor u8 by u8")
    if not elements_of(left) or not elements_of(right):
        raise Unreadable("the factors of the first contraction are computed, and not stored")
    return left, right


def _product(product: Carried) -> tuple[Expr, Expr]:
    """The weights and the values of a contraction that comes last."""
    name = product.total.name
    if product.term.op != "arith.mulf":
        raise Unreadable(f"{name} is not a sum of products")
    own = set(product.total.dims)
    pair = sorted(product.term.args, key=lambda a: bool(elements_of(a)) and bool(own & a.dims))
    weights, values = pair[0], stored(pair[1])
    if not elements_of(values):
        raise Unreadable(f"the values that {name} adds up are computed, and not stored")
    if values.dims & weights.dims - {d for d in values.dims if d in own} - set(product.total.reduced):
        raise Unreadable(f"the factors of {name} share an index that its result does not have")
    return weights, values


# ---- the score ---------------------------------------------------------------------------------------------


def _rewritten(chain: Chain, swap: Callable[[Expr], Expr]) -> Chain:
    """The chain with other terms."""
    carried = {c: replace(c, term=swap(c.term)) for c in chain.online.carried}
    online = replace(chain.online, carried=tuple(carried.values()))
    products = tuple(replace(p, carried=carried[p.carried], weights=swap(p.weights)) for p in chain.products)
    return replace(chain, online=online, products=products)


def _with_score(chain: Chain) -> Chain:
    """The chain with the largest expression by which all else reads a score in the score's place."""
    read = [*(c.term for c in chain.row_states), *(p.weights for p in chain.products)]
    whole = above = chain.score
    while (reader := _reader_of(above, read)) is not None:
        above = reader
        whole = above if above.type == "f32" else whole
    if whole is not chain.score:
        score = replace(chain.score, type="f32")
        chain = _rewritten(chain, lambda x: x.replace(lambda p: score if p == whole else None))
    products = tuple(replace(p, weights=_cheapened(p.weights)) for p in chain.products)
    return replace(chain, products=products, score=_cheapened(whole))


def _reader_of(x: Expr, terms: list[Expr]) -> Expr | None:
    """The one expression that reads `x` in all terms, if it reads no state. A term that is `x` is read by no expression."""
    if x in terms:
        return None
    found: set[Expr] = set()

    def look(part: Expr) -> bool:
        """Whether `part` is `x`."""
        if part == x:
            return True
        if any([look(a) for a in part.args]):
            found.add(part)
        return False

    if any([look(t) for t in terms]) or len(found) != 1:
        return None
    (above,) = found
    return None if _reads_state(above) else above


def _reads_state(x: Expr) -> bool:
    return x.op in ("state", "reference") or any(map(_reads_state, x.args))


def _cheapened(x: Expr) -> Expr:
    """A score or a weight with products in place of quotients by numbers, and one product in place of several. That is one
    rounding of a score, of which its sum's bound leaves as much."""

    def cheap(part: Expr) -> Expr | None:
        z, c = linear_factor(part) if part.totals and part.op in ("arith.divf", "arith.mulf") else (part, 1.0)
        return None if z is part or not 2.0**-100 < abs(c) < 2.0**100 else Expr("arith.mulf", (z.replace(cheap), constant(c)))

    return x.replace(cheap)


# ---- masks -------------------------------------------------------------------------------------------------


def _assuming(chain: Chain, masks: tuple[Mask, ...]) -> Chain:
    """The chain's terms where no mask excludes an element."""
    for mask in masks:
        chain = _rewritten(chain, lambda x: where(x, mask.condition, mask.holds))  # noqa: B023
    return replace(chain, masks=masks)


def multiplicand_allowed(op: ir.Operation) -> str | None:
    """The type to which `using` allows a contraction's factors to be rounded."""
    return mlir.get_string(op, "tilec.multiplicand")
