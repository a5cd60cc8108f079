"""The reference: the equations of a program evaluated one after another in NumPy, at f64.

It shares only the parser and the checker with the compiler. Every compiled form is tested against it.

- Every float is an f64. Integers and bools keep their types, and integers wrap around.
- `rounded=True` rounds to a float type where the source does: at every cast, and so at every name that is
  declared narrower than its value. Arithmetic and literals stay f64 all the same, and `using` is ignored.
- A gather outside its tensor is an `OutOfRangeError`. The branch not taken of an `if` is not evaluated.

An equation is evaluated over its whole index space at once: each of its indices is an axis, and the value of
an expression an array that is 1 long on the axes it does not depend on (or 0-dimensional). Where that would
be large, the space is halved, again and again, along the left side's indices and along reductions.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from tilec.core.conversions import to_float, to_integer
from tilec.core.diagnostics import CallError, Diagnostic, TileError
from tilec.core.dtypes import DType, from_numpy
from tilec.core.functions import FUNCTIONS
from tilec.core.operators import COMBINE, OPERATORS, UNARY
from tilec.core.reductions import REDUCTIONS
from tilec.core.source import read_source
from tilec.driver.arguments import as_declared
from tilec.dsl import ast
from tilec.dsl.parse import parse
from tilec.dsl.specialise import Specialised, choose_op, specialise

LARGEST = 1 << 23
"""Elements that one array on the way may have, as far as the space can be halved."""

Tensors = dict[str, np.ndarray]


class OutOfRangeError(TileError, IndexError):
    """An index that depends on data fell outside its tensor."""


def reference(
    source: str | Path,
    op: str | None = None,
    sizes: dict[str, int] | None = None,
    rounded: bool = False,
) -> Callable[..., np.ndarray | tuple[np.ndarray, ...]]:
    """A function of arrays that evaluates `op` (the only one, if None) of a `.tile` file or program text.

    Arguments go by position or by name. The result is an array, or a named tuple where the op has several;
    floats are f64, or with `rounded` of the declared type. `sizes` binds the sizes that no argument tells.
    """
    program = parse(read_source(source))

    def call(*arguments: Any, **named: Any) -> Any:
        arrays = _arrays(choose_op(program, op).inputs, arguments, named)
        types = [(_row(name, array), array.shape) for name, array in arrays.items()]
        special = specialise(program, op, types, sizes)
        return _results(special, evaluate(special, arrays, rounded), rounded)

    return call


def _arrays(inputs: tuple[ast.Tensor, ...], arguments: tuple, named: dict[str, object]) -> Tensors:
    """The arguments of a call as arrays by name, in the inputs' order; a Python number takes their type."""
    names = [t.name for t in inputs]
    given = dict(zip(names, arguments))
    if len(arguments) > len(names) or given.keys() & named.keys() or {*given, *named} != set(names):
        raise CallError(f"the arguments must be {', '.join(names)}, each once")
    given |= named
    return {t.name: np.asarray(as_declared(given[t.name], t.dtype)) for t in inputs}


def _row(name: str, array: np.ndarray) -> DType:
    dtype = from_numpy(array.dtype)
    if dtype is None:
        raise CallError(f"`{name}` is an array of {array.dtype}, which the language does not have")
    return dtype


def evaluate(special: Specialised, arrays: Tensors, rounded: bool = False) -> Tensors:
    """All tensors of a specialised op by name, floats at f64."""
    tensors = {name: a if a.dtype.kind in "iub" else a.astype(np.float64) for name, a in arrays.items()}
    with np.errstate(all="ignore"):
        for equation in special.equations:
            tensors[equation.name] = _equation(equation, tensors, special.sizes, rounded)
    return tensors


def _results(special: Specialised, tensors: Tensors, rounded: bool) -> Any:
    found = [tensors[t.name] for t in special.outputs]
    if rounded:
        found = [
            to_float(array, dtype.numpy) if dtype.is_float else array
            for array, dtype in zip(found, map(ast.dtype_of, special.outputs))
        ]
    if len(found) == 1:
        return found[0]
    return namedtuple(special.name, [t.name for t in special.outputs], rename=True)(*found)


_Box = TypeVar("_Box", bound="Space")
EVERYWHERE = np.asarray(True)
"""The mask of values that are used wherever they are evaluated."""

# ---- one equation ------------------------------------------------------------------------------------------


def _equation(equation: ast.Equation, tensors: Tensors, sizes: dict[str, int], rounded: bool) -> np.ndarray:
    extents = extents_of(equation)
    axes = {name: axis for axis, name in enumerate(extents)}
    result = np.empty([len(range(*extents[name])) for name in equation.indices], stored(ast.dtype_of(equation)))
    for part in blocks(equation, Space(tensors, sizes, axes, extents, rounded)):
        values = part.spread(part.value(equation.value, EVERYWHERE), list(range(result.ndim)))
        part.store(values, result)
    return result


def extents_of(equation: ast.Equation) -> dict[str, tuple[int, int]]:
    """The bounds of an equation's indices: first the indices of its left side in order, then those bound inside."""
    outer = {r.index: bounds_of(r) for r in equation.ranges}
    return outer | {r.index: bounds_of(r) for r in ast.bound_in(equation.value) if r.index not in outer}


def blocks(equation: ast.Equation, space: _Box) -> Iterator[_Box]:
    """The space in blocks small enough to evaluate; an index that the right side binds again is never cut."""
    if 0 in [space.extent(name) for name in equation.indices]:
        return
    inner = {r.index for r in ast.bound_in(equation.value)}
    longest = max((name for name in equation.indices if name not in inner), key=space.extent, default=None)
    if longest is None or space.extent(longest) < 2 or space.width(equation.value)[1] <= LARGEST:
        yield space
        return
    for half in space.halves(longest):
        yield from blocks(equation, half)


def bounds_of(r: ast.Range) -> tuple[int, int]:
    low, high = map(ast.number_of, ast.ends_of(r))
    return low, max(low, high)


def stored(dtype: DType) -> np.dtype:
    """The NumPy type that holds a value: f64 for every float."""
    return np.dtype(np.float64) if dtype.is_float else dtype.numpy


# ---- expressions over a space ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Space:
    """A box of indices, over which expressions are evaluated: the axis and the extent of each index.

    `mask` in the methods is where the value will be used: elsewhere anything may come out, but no error.
    """

    tensors: dict[str, Any]
    """Arrays; of those who evaluate something else than numbers, what stands for arrays."""
    sizes: dict[str, int]
    axes: dict[str, int]
    extents: dict[str, tuple[int, int]]
    rounded: bool

    def extent(self, index: str) -> int:
        low, high = self.extents[index]
        return high - low

    def volume(self, indices: set[str]) -> int:
        return math.prod(self.extent(i) for i in indices)

    def anywhere(self, mask: np.ndarray, axes: Sequence[int]) -> np.ndarray:
        """Where a value is used for some index along these axes, which then have one element."""
        return np.logical_or.reduce(self.spread(mask, []), axis=tuple(axes), keepdims=True)

    def halves(self, index: str) -> list[Self]:
        low, high = self.extents[index]
        middle = (low + high) // 2
        parts = ((low, middle), (middle, high))
        return [replace(self, extents=self.extents | {index: part}) for part in parts]

    def width(self, expr: ast.Expr) -> tuple[set[str], int]:
        """The indices that an expression depends on, and the elements of the largest array that it takes."""
        if isinstance(expr, ast.Name):
            free = {expr.name} & self.axes.keys()
            return free, self.volume(free)
        factors = self.factors(expr)
        parts = [self.width(child) for child in factors or ast.children(expr)]
        free = set().union(*(names for names, _ in parts))
        if isinstance(expr, ast.Reduce):
            free -= {r.index for r in expr.ranges}
        elif isinstance(expr, ast.Scan):
            free |= {expr.range.index}
        return free, max([self.volume(free), *(largest for _, largest in parts)])

    def store(self, values: np.ndarray, result: np.ndarray) -> None:
        """Puts values of this block, one axis for every index, where they belong in an equation's result."""
        block = tuple(slice(*extent) for extent in list(self.extents.values())[: result.ndim])
        result[block] = values.reshape(result[block].shape)

    def spread(self, value: np.ndarray, axes: list[int]) -> np.ndarray:
        """The value with one axis for every index, of full length along `axes`."""
        value = np.asarray(value)
        if value.ndim == 0:
            value = value.reshape((1,) * len(self.axes))
        full = {axis: self.extent(name) for name, axis in self.axes.items()}
        return np.broadcast_to(value, [full[a] if a in axes else n for a, n in enumerate(value.shape)])

    def value(self, expr: ast.Expr, mask: np.ndarray) -> np.ndarray:
        match expr:
            case ast.Number() | ast.Boolean():
                return np.asarray(expr.value, stored(expr.dtype))
            case ast.Name():
                return self.name(expr.name)
            case ast.Access():
                return self.access(expr, mask)
            case ast.Pad():
                return self.pad(expr, mask)
            case ast.Unary(op, operand):
                return UNARY[op](self.value(operand, mask))
            case ast.Binary(op, left, right) | ast.Compare(op, left, right):
                return OPERATORS[op](self.value(left, mask), self.value(right, mask))
            case ast.Conditional():
                return self.conditional(expr, mask)
            case ast.Cast(operand, dtype):
                return self.cast(self.value(operand, mask), dtype)
            case ast.Call():
                arguments = [self.value(a, mask) for a in expr.arguments]
                return np.asarray(FUNCTIONS[expr.function].reference(*arguments), stored(expr.dtype))
            case ast.Reduce():
                return self.reduce(expr, mask)
            case ast.Scan():
                return self.scan(expr, mask)
        raise AssertionError(expr)

    def name(self, name: str) -> np.ndarray:
        if name not in self.axes:
            return np.asarray(self.sizes[name], np.int64)
        shape = [1] * len(self.axes)
        shape[self.axes[name]] = -1
        return np.arange(*self.extents[name], dtype=np.int64).reshape(shape)

    def cast(self, value: np.ndarray, dtype: DType) -> np.ndarray:
        if dtype.is_float and self.rounded:
            value = to_float(value, dtype.numpy)
        elif dtype.is_integer and value.dtype.kind == "f":
            value = to_integer(value, dtype.numpy)
        return np.asarray(value).astype(stored(dtype))

    def conditional(self, expr: ast.Conditional, mask: np.ndarray) -> np.ndarray:
        """Both branches are computed everywhere; each is used, and so may fail, only where it is taken."""
        condition = self.value(expr.condition, mask)
        then = self.value(expr.then, mask & condition)
        return np.where(condition, then, self.value(expr.otherwise, mask & ~condition))

    # ---- accesses ------------------------------------------------------------------------------------------

    def access(self, expr: ast.Access, mask: np.ndarray) -> np.ndarray:
        tensor = self.tensors[expr.tensor]
        if (view := self.view(expr, tensor)) is not None:
            return view
        subscripts = self.subscripts(expr, mask)
        outside = mask & ~is_inside(subscripts, tensor.shape)
        if outside.any():
            raise OutOfRangeError(outside_error(expr, tensor.shape, subscripts, outside, self.extents))
        return take(tensor, subscripts)

    def pad(self, expr: ast.Pad, mask: np.ndarray) -> np.ndarray:
        tensor = self.tensors[expr.access.tensor]
        subscripts = self.subscripts(expr.access, mask)
        inside = is_inside(subscripts, tensor.shape)
        element = self.cast(take(tensor, subscripts), expr.dtype)
        return np.where(inside, element, self.value(expr.value, mask & ~inside))

    def subscripts(self, expr: ast.Access, mask: np.ndarray) -> list[np.ndarray]:
        return [np.asarray(self.value(s, mask)).astype(np.int64) for s in expr.subscripts]

    def view(self, expr: ast.Access, tensor: np.ndarray) -> np.ndarray | None:
        """An access by distinct indices within the tensor, without copying it; None where it is not that."""
        names = [s.name for s in expr.subscripts if isinstance(s, ast.Name) and s.name in self.axes]
        if len(set(names)) < tensor.ndim:
            return None
        spans = [self.extents[name] for name in names]
        if any(low < 0 or high > n for (low, high), n in zip(spans, tensor.shape)):
            return None
        where: tuple[Any, ...] = (*(slice(*span) for span in spans), ...)
        block = tensor[where]
        order = sorted(range(len(names)), key=lambda d: self.axes[names[d]])
        shape = [1] * len(self.axes)
        for name, extent in zip(names, block.shape):
            shape[self.axes[name]] = extent
        return block.transpose(order).reshape(shape)

    # ---- reductions ----------------------------------------------------------------------------------------

    def reduce(self, expr: ast.Reduce, mask: np.ndarray) -> np.ndarray:
        axes = [self.axes[r.index] for r in expr.ranges]
        mask = self.anywhere(mask, axes)
        mask = mask & (self.volume({r.index for r in expr.ranges}) > 0)
        factors = [self.value(f, mask) for f in self.factors(expr) or ()]
        if factors and all(np.isfinite(f).all() for f in factors):  # infinities are not to be added up first
            left, right = factors
            return self.contract(left, right, axes)
        if half := self.halved(expr):
            first, second = (space.reduce(expr, mask) for space in self.halves(half))
            return COMBINE[expr.kind](first, second)
        body = self.spread(self.value(expr.body, mask), axes)
        if expr.kind in ("argmax", "argmin"):
            index = REDUCTIONS[expr.kind].reference(body, axes[0])
            return np.expand_dims(index, axes) + self.extents[expr.ranges[0].index][0]
        return np.expand_dims(REDUCTIONS[expr.kind].reference(body, tuple(axes)), axes)

    def halved(self, expr: ast.Reduce) -> str | None:
        """The range to halve of a reduction whose body is large; None if it is not, or has no such range."""
        if expr.kind not in COMBINE or self.width(expr.body)[1] <= LARGEST:
            return None
        bound = {r.index for r in ast.bound_in(expr.body)}
        names = [r.index for r in expr.ranges if r.index not in bound and self.extent(r.index) > 1]
        return max(names, key=self.extent, default=None)

    def factors(self, expr: ast.Expr) -> tuple[ast.Expr, ast.Expr] | None:
        """The two factors of a sum of float products, which need no array of all the products."""
        product = self.product(expr)
        return (product.left, product.right) if product else None

    def product(self, expr: ast.Expr) -> ast.Binary | None:
        """The terms of a sum of float products, without casts that change no value."""
        if not isinstance(expr, ast.Reduce) or expr.kind != "sum":
            return None
        body = expr.body
        while isinstance(body, ast.Cast) and self.is_lossless(body):
            body = body.operand
        return body if isinstance(body, ast.Binary) and body.op == "*" and body.dtype.is_float else None

    def is_lossless(self, cast: ast.Cast) -> bool:
        """Whether a cast changes no value."""
        source, target = cast.operand.dtype, cast.dtype
        return source.is_float and target.is_float and (not self.rounded or source.bits < target.bits)

    def contract(self, left: np.ndarray, right: np.ndarray, axes: list[int]) -> np.ndarray:
        """`sum(left * right)` over `axes`, as a contraction."""
        right = self.spread(right, [])
        left = self.spread(left, [a for a in axes if right.shape[a] == 1])
        operands: list[Any] = []
        kept: set[int] = set()
        for array in (left, right):
            long = [a for a, n in enumerate(array.shape) if n != 1]
            operands += [array.reshape([array.shape[a] for a in long]), long]
            kept |= set(long)
        result = np.einsum(*operands, sorted(kept - set(axes)), optimize=True)
        shape = np.broadcast_shapes(left.shape, right.shape)
        return np.reshape(result, [1 if a in axes else n for a, n in enumerate(shape)])

    def scan(self, expr: ast.Scan, mask: np.ndarray) -> np.ndarray:
        axis = self.axes[expr.range.index]
        used = self.spread(np.any(self.spread(mask, [axis]), axis, keepdims=True), [axis])  # all of it, or nothing
        body = self.spread(self.value(expr.body, used), [axis])
        return COMBINE[expr.kind.removeprefix("cum")].accumulate(body, axis=axis, dtype=body.dtype)


# ---- arrays ------------------------------------------------------------------------------------------------


def is_inside(subscripts: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    inside = EVERYWHERE
    for subscript, extent in zip(subscripts, shape):
        inside = inside & (subscript >= 0) & (subscript < extent)
    return inside


def take(tensor: np.ndarray, subscripts: list[np.ndarray]) -> np.ndarray:
    """The elements at the subscripts; any element where they are outside."""
    if tensor.size == 0:
        return np.zeros(np.broadcast_shapes(*(s.shape for s in subscripts)), tensor.dtype)
    return np.asarray(tensor[tuple(np.clip(s, 0, n - 1) for s, n in zip(subscripts, tensor.shape))])


def outside_error(
    expr: ast.Access, shape: tuple[int, ...], subscripts: list[np.ndarray], outside: np.ndarray,
    extents: dict[str, tuple[int, int]],
) -> Diagnostic:  # fmt: skip
    """The error of the first access that is outside its tensor; `extents` are those of the axes."""
    first = np.argmax(outside)
    at = dict(zip(extents, np.unravel_index(first, outside.shape))) if outside.ndim else {}
    for dimension, (subscript, extent) in enumerate(zip(subscripts, shape)):
        index = np.broadcast_to(subscript, outside.shape).flat[first]
        if not 0 <= index < extent:
            used = {n.name for n in ast.traverse(expr.subscripts[dimension]) if isinstance(n, ast.Name)}
            positions = [f"{name} = {extents[name][0] + int(n)}" for name, n in at.items() if n or name in used]
            message = f"index {index} is outside 0:{extent}, dimension {dimension} of `{expr.tensor}`"
            message += f", at {', '.join(positions)}" if positions else ""
            return Diagnostic(message, expr.span, hint="`pad(access, value)` gives a value outside")
    raise AssertionError("no subscript is outside")
