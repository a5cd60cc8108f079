"""Error bounds of compiled programs: a running error analysis of any program, on the inputs at hand.

Every value of the program becomes an interval that holds all results of a correct compilation (`tilec.semantics.intervals`,
`tilec.semantics.interval_reductions`). The intervals follow from the documented bounds of functions (`tilec.core.functions`) and of
reductions alone. Tests, `tilec run --check` and all other checks compare results with them (`tilec.semantics.comparison`), so that
nobody chooses a tolerance. docs/numerics.md names the exceptions.

The intervals are those of one execution (Wilkinson's running analysis), so they are narrow where the data is well
conditioned and wide where digits cancel. Where errors may change a comparison, a rounding or an index, both outcomes
are allowed: a value that the documented errors leave undetermined has no bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce as fold
from typing import Literal, assert_never

import numpy as np

from tilec.core.dtypes import F8E4M3, F8E5M2, F32, F64, DType
from tilec.core.functions import HIDDEN
from tilec.core.operators import COMBINE
from tilec.dsl import ast
from tilec.dsl.specialise import Specialised
from tilec.semantics import intervals as on
from tilec.semantics.interval_conversions import cast, compared, of_integers, rounded_to
from tilec.semantics.interval_functions import function, power
from tilec.semantics.interval_products import any_of, ball, is_narrow, least, multiplicand, regrouped, sides, using
from tilec.semantics.interval_reductions import (
    Total,
    arg_reduce,
    gamma,
    largest,
    reduce,
    sum_of_parts,
    sum_parts,
    unit_roundoff,
)
from tilec.semantics.intervals import Enclosure, point
from tilec.semantics.reference import (
    EVERYWHERE,
    OutOfRangeError,
    Space,
    blocks,
    extents_of,
    is_inside,
    outside_error,
    stored,
    take,
)
from tilec.semantics.rounded_weights import Weights, in_two_parts, rounded_elsewhere

SMALLEST_NORMAL = {F32: 2.0**-126, F64: 2.0**-1022}
"""Smaller products lose digits."""
TWO_LEVEL = 128
"""Products of 8-bit floats that matrix units add before an f32 takes their sum."""
Kind = Literal["cpu", "cuda"] | None
"""The kind of target whose functions' bounds count; None for the larger bound of all."""


def enclose(special: Specialised, inputs: Mapping[str, np.ndarray], kind: Kind = None) -> dict[str, Enclosure]:
    """The intervals of all tensors of a specialised op; floats as f64, outputs rounded to their type."""
    with np.errstate(all="ignore"):
        tensors = {name: point(a if a.dtype.kind in "iub" else a.astype(np.float64)) for name, a in inputs.items()}
        weights = Weights(special.equations) if kind != "cpu" else None
        for equation in special.equations:
            tensors[equation.name] = _equation(equation, tensors, special.sizes, kind, weights)
        for t in special.outputs:
            if (dtype := ast.dtype_of(t)).is_float:
                tensors[t.name] = rounded_to(tensors[t.name], dtype, kind)
    return tensors


# ---- one equation ------------------------------------------------------------------------------------------


def _equation(
    equation: ast.Equation, tensors: dict, sizes: dict[str, int], kind: Kind, weights: Weights | None
) -> Enclosure:
    extents = extents_of(equation)
    axes = {name: axis for axis, name in enumerate(extents)}
    shape = [len(range(*extents[name])) for name in equation.indices]
    dtype = ast.dtype_of(equation)
    low, high = (np.empty(shape, stored(dtype)) for _ in range(2))
    for part in blocks(equation, _Space(tensors, sizes, axes, extents, True, kind, weights)):
        value = part.enclose(equation.value, EVERYWHERE)
        for end, result in zip(value, (low, high)):
            part.store(part.spread(end, list(range(len(shape)))), result)
    same = np.array_equal(low, high, equal_nan=dtype.is_float)
    same = same and (not dtype.is_float or np.array_equal(np.signbit(low), np.signbit(high)))
    return Enclosure(low, low if same else high)


@dataclass(frozen=True)
class _Space(Space):
    """The reference's box of indices, over which expressions are enclosed instead of evaluated.

    `mask` is where a value is used for certain: there, an index outside its tensor is an error.
    """

    tensors: dict[str, Enclosure]
    kind: Kind = None
    weights: Weights | None = None
    summed: frozenset[str] = frozenset()
    """The indices of the sums that expressions are terms of."""

    def enclose(self, expr: ast.Expr, mask: np.ndarray) -> Enclosure:
        found = self.enclose_part(expr, mask)
        if not self.summed or self.weights is None or not isinstance(expr, (ast.Access, ast.Cast)):
            return found
        if not self.weights.is_weight(expr, self.summed):
            return found
        source = self.weights.unrounded(expr)
        return rounded_elsewhere(found, expr.dtype, None if source is None else self.enclose_part(source, mask))

    def enclose_part(self, expr: ast.Expr, mask: np.ndarray) -> Enclosure:
        match expr:
            case ast.Number():
                return self.number(expr)
            case ast.Boolean():
                return point(expr.value)
            case ast.Name():
                return point(self.name(expr.name))
            case ast.Access():
                return self.enclose_access(expr, mask)
            case ast.Pad():
                return self.enclose_pad(expr, mask)
            case ast.Unary(op, operand):
                inner = self.enclose(operand, mask)
                return on.negative(inner) if op == "-" else Enclosure(~inner.high, ~inner.low)
            case ast.Binary(op, left, right):
                same = left == right
                return self.binary(op, self.enclose(left, mask), self.enclose(right, mask), expr.dtype, same)
            case ast.Compare(op, left, right):
                return compared(op, self.enclose(left, mask), self.enclose(right, mask))
            case ast.Conditional(condition, then, otherwise):
                test = self.enclose(condition, mask)
                first, second = self.enclose(then, mask & test.low), self.enclose(otherwise, mask & ~test.high)
                return on.select(test, first, second)
            case ast.Cast(operand, dtype):
                return cast(self.enclose(operand, mask), operand.dtype, dtype, self.kind)
            case ast.Call(name, _, arguments, dtype):
                return function(name, [self.enclose(a, mask) for a in arguments], dtype, self.kind)
            case ast.Reduce():
                return self.enclose_reduce(expr, mask)
            case ast.Scan():
                return self.enclose_scan(expr, mask)
            case _:
                assert_never(expr)

    def number(self, expr: ast.Number) -> Enclosure:
        """A literal is of the type that it meets."""
        value = np.asarray(expr.value, stored(expr.dtype))
        return point(on.to_nearest(value, expr.dtype) if expr.dtype.is_float else value)

    def binary(self, op: str, a: Enclosure, b: Enclosure, dtype: DType, same: bool) -> Enclosure:
        if not dtype.is_float:
            return of_integers(op, a, b, dtype)
        match op:
            case "+":
                return on.add(a, b, dtype)
            case "-":
                return on.add(a, on.negative(b), dtype)
            case "*":
                return on.multiply(a, b, dtype, same)
            case "/":
                return on.divide(a, b, dtype, double_rounding=self.kind != "cpu")
            case "//":
                return on.floor_divide(a, b, dtype)
            case "%":
                return on.modulo(a, b, dtype)
            case "**":
                return power(a, b, dtype, self.kind)
        raise AssertionError(op)

    # ---- accesses ------------------------------------------------------------------------------------------

    def enclose_access(self, expr: ast.Access, mask: np.ndarray) -> Enclosure:
        tensor = self.tensors[expr.tensor]
        if (low := self.view(expr, tensor.low)) is not None:
            high = low if tensor.is_point else self.view(expr, tensor.high)
            assert high is not None, "both ends have one shape"
            return Enclosure(low, high)
        subscripts, known = self.enclosed_subscripts(expr, mask)
        outside = mask & known & ~is_inside(subscripts, tensor.low.shape)
        if outside.any():
            raise OutOfRangeError(outside_error(expr, tensor.low.shape, subscripts, outside, self.extents))
        found = tensor.map(lambda end: take(end, subscripts))
        return found if np.all(known) else on.select(point(known), found, any_of(tensor))

    def enclose_pad(self, expr: ast.Pad, mask: np.ndarray) -> Enclosure:
        tensor, dtype = self.tensors[expr.access.tensor], expr.access.dtype
        subscripts, known = self.enclosed_subscripts(expr.access, mask)
        inside = is_inside(subscripts, tensor.low.shape)
        value = self.enclose(expr.value, mask & known & ~inside)
        found = on.select(
            point(inside), cast(tensor.map(lambda e: take(e, subscripts)), dtype, expr.dtype, self.kind), value
        )
        if np.all(known):
            return found
        return on.select(point(known), found, on.hull(cast(any_of(tensor), dtype, expr.dtype, self.kind), value))

    def enclosed_subscripts(self, expr: ast.Access, mask: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """The subscripts, and where all of them are determined."""
        found = [self.enclose(s, mask) for s in expr.subscripts]
        known = fold(np.logical_and, (s.low == s.high for s in found if not s.is_point), EVERYWHERE)
        return [s.low.astype(np.int64) for s in found], known

    # ---- reductions ----------------------------------------------------------------------------------------

    def enclose_reduce(self, expr: ast.Reduce, mask: np.ndarray) -> Enclosure:
        axes = tuple(self.axes[r.index] for r in expr.ranges)
        count = self.volume({r.index for r in expr.ranges})
        mask = self.anywhere(mask, axes) & (count > 0)
        if expr.kind == "sum" and expr.dtype.is_float:
            terms = replace(self, summed=self.summed | {r.index for r in expr.ranges})
            return sum_of_parts(terms.sums(expr, mask), np.asarray(count), expr.dtype, self.unit(expr, count))
        if half := self.halved(expr):
            first, second = (space.enclose_reduce(expr, mask) for space in self.halves(half))
            if expr.kind == "prod":
                return self.binary("*", first, second, expr.dtype, False)
            found = Enclosure(*(COMBINE[expr.kind](*ends) for ends in zip(first, second)))
            return on.of_either_sign(found, EVERYWHERE) if expr.dtype.is_float else found
        body = self.enclose(expr.body, mask).map(lambda end: self.spread(end, list(axes)))
        if expr.kind in ("argmax", "argmin"):
            start = self.extents[expr.ranges[0].index][0]
            return arg_reduce(body, axes[0], expr.kind).map(lambda end: end + start)
        return reduce(expr.kind, body, Total.reduction(body.low.shape, axes), expr.dtype)

    def sums(self, expr: ast.Reduce, mask: np.ndarray) -> list[np.ndarray]:
        """The parts of a sum (`sum_parts`), by halves where the space is large, without the products of factors."""
        axes = [self.axes[r.index] for r in expr.ranges]
        if product := self.product(expr):
            left, right = self.enclosed_factors([product.left, product.right], expr, mask)
            most = float(np.prod([max(np.abs(end).max(initial=0) for end in x) for x in (left, right)]))
            if leaves := regrouped(product):
                return self.regrouped(self.enclosed_factors(leaves, expr, mask), axes, product, expr)
            fits = bool(np.isfinite(most)) and (product.dtype is expr.dtype or most <= largest(product.dtype))
            if fits and self.volume({r.index for r in expr.ranges}) > 1:
                return self.contraction(left, right, axes, product, expr)
        if half := self.halved(expr):
            parts = [space.sums(expr, mask) for space in self.halves(half)]
            return [a + b for a, b in zip(*parts)]
        body = self.enclose(expr.body, mask)
        if product and (expr.multiplicand is not None or self.weights):  # which are not what the program has
            factors = ((left, product.left), (right, product.right))
            left, right = (multiplicand(x, self.using(expr, f)) for x, f in factors)
            body = on.multiply(left, right, product.dtype, product.left == product.right)
        body = body.map(lambda end: self.spread(end, axes))
        return sum_parts(body, Total.reduction(body.low.shape, tuple(axes)))

    def enclosed_factors(self, factors: Sequence[ast.Expr], expr: ast.Reduce, mask: np.ndarray) -> list[Enclosure]:
        """Of a sum's products; weights with what a GPU's matrix units do not hold of them."""
        found = [self.enclose(f, mask) for f in factors]
        if self.weights is None:
            return found
        parts = self.weights.in_two_parts(factors, [r.index for r in expr.ranges])
        axes = [self.axes[r.index] for r in expr.ranges]
        return [in_two_parts(x.map(lambda end: self.spread(end, axes)), tuple(axes)) if two else x for x, two in zip(found, parts)]

    def regrouped(self, leaves: list[Enclosure], axes: list[int], product: ast.Binary, expr: ast.Reduce) -> list[np.ndarray]:
        """The parts of a sum of products of three factors or more, which a kernel may multiply in any order, and of which it may
        apply to sums what several terms share. Where a product in some order may leave the type's range, the sum is anything."""
        most = [max(1.0, *(np.abs(end).max(initial=0) for end in x)) for x in leaves]
        count = self.volume({r.index for r in expr.ranges})
        left, right = sides(leaves)
        if not np.prod(most) * max(1, count) <= largest(product.dtype):  # a NaN is not, either
            shape = np.broadcast_shapes(left.low.shape, right.low.shape)
            nothing = np.zeros([1 if a in axes else n for a, n in enumerate(shape)])
            return [*[nothing] * 5, *[np.zeros((), np.int64)] * 5, np.ones((), np.int64)]
        low, high, size, positive, negative, *flags = self.contraction(left, right, axes, product, expr)
        lost = count * len(leaves) * on.ulp(np.zeros(()), product.dtype) * np.prod(most)
        error = gamma(2 * len(leaves), unit_roundoff(product.dtype)) * size + np.where(size > 0, lost, 0)
        return [low - error, high + error, size, positive + error, negative + error, *flags]

    def contraction(
        self, left: Enclosure, right: Enclosure, axes: list[int], product: ast.Binary, expr: ast.Reduce
    ) -> list[np.ndarray]:
        """The parts of `sum(left * right)`: that of the intervals' middles, and how far their radii reach, and the roundings of
        the products, where those of the sum do not count them."""
        square = product.left == product.right
        (a, da), (b, db) = (ball(x, self.using(expr, f)) for x, f in ((left, product.left), (right, product.right)))
        sizes = np.abs(a) + da, np.abs(b) + db
        middle, size = self.contract(a, b, axes), self.contract(*sizes, axes)
        reach = np.zeros_like(middle)
        if da.any() or db.any():
            reach = self.contract(np.abs(a), db, axes) + self.contract(da, sizes[1], axes)
        if product.dtype.mantissa < expr.dtype.mantissa:
            reach = reach + unit_roundoff(product.dtype) * size
        in_parts = self.in_parts(expr, product)  # whose smallest products are 2^-24 of the whole one
        if np.prod([least(x) for x in sizes]) < SMALLEST_NORMAL[product.dtype] * (2.0**24 if in_parts else 1):
            lost = on.ulp(np.zeros(()), product.dtype) / (1 if product.dtype is F64 else 2)  # of f64, here as in the kernel
            lost = lost * (6 if in_parts else 1)
            reach = reach + lost * self.contract(np.sign(sizes[0]), np.sign(sizes[1]), axes)
        low, high = middle - reach, middle + reach
        negative = (size - low) / 2
        if square or ((left.low >= 0).all() and (right.low >= 0).all()):
            low, negative = np.maximum(low, 0), np.zeros_like(size)
        return [low, high, size, (size + high) / 2, negative, *[np.zeros((), np.int64)] * 6]

    def using(self, expr: ast.Reduce, factor: ast.Expr) -> float:
        """The relative error of a multiplicand; on CUDA with what the rounding of a computed one hides."""
        name = expr.multiplicand.name if isinstance(expr.multiplicand, DType) else ""
        while isinstance(factor, ast.Cast):
            factor = factor.operand
        stored = isinstance(factor, ast.Access) and (self.weights is None or factor.tensor not in self.weights.equations)
        return using(expr) + (0.0 if self.kind == "cpu" or stored else HIDDEN.get(name, 0.0))

    def unit(self, expr: ast.Reduce, count: int) -> float:
        """The unit of a step of a sum. Matrix units, which narrow factors may go to, cut where others round; and of sums of 8-bit
        floats they keep fewer bits. On a GPU they may multiply f32 numbers in parts."""
        product = self.product(expr)
        factors = (regrouped(product) or (product.left, product.right)) if product else ()
        if len(factors) > 2:  # of which matrix units multiply those that are narrow
            factors = [f for f in factors if is_narrow(f)]
        types = {f.operand.dtype if isinstance(f, ast.Cast) else f.dtype for f in factors}
        narrow = all(t.bits < 32 for t in types)
        matrix = expr.dtype is not F64 and types and (narrow or expr.multiplicand is not None)
        in_parts = types == {F32} and product is not None and self.in_parts(expr, product)
        unit = unit_roundoff(expr.dtype) * (3 if in_parts else 2 if matrix else 1)
        short = expr.multiplicand is ast.F22 or (matrix and len(types) == 1 and types <= {F8E4M3, F8E5M2})
        few = count if expr.multiplicand is ast.F22 else min(count, TWO_LEVEL)
        return unit + (2 * unit_roundoff(ast.F22) * few / max(1, count) if short else 0)

    def in_parts(self, expr: ast.Reduce, product: ast.Binary) -> bool:
        """Whether a GPU may multiply f32 factors in bf16 parts: those of a product of matrices."""
        if self.kind == "cpu" or expr.multiplicand is not None or not (product.dtype is expr.dtype is F32):
            return False
        (left, _), (right, _) = self.width(product.left), self.width(product.right)
        return bool(left - right) and bool(right - left)

    def enclose_scan(self, expr: ast.Scan, mask: np.ndarray) -> Enclosure:
        axis = self.axes[expr.range.index]
        used = np.flip(np.logical_or.accumulate(np.flip(self.spread(mask, [axis]), axis), axis), axis)
        body = self.enclose(expr.body, used).map(lambda end: self.spread(end, [axis]))
        return reduce(expr.kind.removeprefix("cum"), body, Total.scan(body.low.shape, axis), expr.dtype)
