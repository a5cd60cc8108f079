"""Integers of MLIR and of expressions as terms of the algebra of subscripts (`tilec/index/`).

    %q = arith.divui %i, %c4;  %r = arith.addi %q, %n        ->    i0 // 4 + n

A term is the value modulo 2 to the number of the type's bits: sums and products may wrap around, which changes no factor, step or
remainder by a power of two. `exact` gives the value itself: where a sum may leave its type, it is a call of the sum, which is the
same for the same sum. Operations that the algebra does not have are calls of their operands, floats among them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import inf, isinf
from typing import Generic, TypeVar

from tilec.analysis.expression import Expr
from tilec.core import mlir
from tilec.core.diagnostics import InternalError
from tilec.core.extents import Extent, known_loops, value_of
from tilec.core.mlir import ir
from tilec.core.varying import Varies
from tilec.index.facts import NONE, Ends, choose, maximum, minimum
from tilec.index.terms import Cond, Leaf, Term, at_least, below, call, equal, index, term

T = TypeVar("T")
BITS = {"index": 64, "i64": 64, "i32": 32, "i16": 16, "i8": 8}
LARGEST = 1 << 46
"""No tensor that memory holds has more elements: indices and sizes are smaller, in magnitude."""
PARTS = 16  # of products of sums; larger ones are calls
_SIGNED: dict[int, Callable[[Term, Term], Cond]] = {
    0: equal, 1: lambda a, b: ~equal(a, b), 2: below, 3: lambda a, b: at_least(b, a), 4: lambda a, b: below(b, a), 5: at_least,
}  # fmt: skip
"""Predicates of cmpi. Those of unsigned numbers are 4 more than from 2 on."""
_COUNTS = ("gpu.thread_id", "gpu.block_id", "gpu.block_dim", "gpu.grid_dim", "gpu.cluster", "memref.dim", "tensor.dim")
"""Operations whose results are not negative."""


def dim_index(d: int, extent: Extent | None) -> Term:
    """The index of a dimension, whose extent may not be known. One of no elements is taken for one of a single element."""
    return index(f"i{d}", LARGEST if extent is None else max(extent, 1) if isinstance(extent, int) else extent)


def within_bits(x: Term, bits: int) -> Term:
    """The value of a term that is taken modulo 2 to the number of bits, as a signed number."""
    return x if NONE.fits(x, bits) else call(f"i{bits}", x, low=-(1 << bits - 1), high=(1 << bits - 1) - 1)


class Reader(ABC, Generic[T]):
    """Reads values of one representation, each once."""

    def __init__(self) -> None:
        self._known: dict[T, Term] = {}
        self._exact: dict[T, Term] = {}
        self._numbers: dict[object, int] = {}

    def of(self, x: T) -> Term:
        """An integer modulo 2 to the number of its bits, or any other scalar as a call."""
        if x not in self._known:
            self._known[x] = self._read(x)
        return self._known[x]

    def exact(self, x: T) -> Term:
        """The value of an integer."""
        if x not in self._exact:
            self._exact[x] = within_bits(self.of(x), BITS.get(self._type(x), 64))
        return self._exact[x]

    def condition(self, x: T) -> Cond | None:
        """A comparison of integers, or a conjunction, disjunction or negation of conditions; None for others."""
        name, operands, op = self._parts(x)
        if name in ("arith.andi", "arith.ori") and self._type(x) == "i1":
            return Cond("and" if name == "arith.andi" else "or", None, tuple(map(self.holds, operands)))
        if name == "arith.xori" and self._type(x) == "i1" and self.of(operands[1]) is term(1):
            return None if (negated := self.condition(operands[0])) is None else ~negated
        if name != "arith.cmpi" or op is None or self._type(operands[0]) not in BITS:
            return None
        predicate = ir.IntegerAttr(op.attributes["predicate"]).value
        a, b = map(self.exact, operands)
        if predicate > 5 and not _natural(a, b):
            return None
        return _SIGNED[predicate - 4 if predicate > 5 else predicate](a, b)

    def holds(self, x: T) -> Cond:
        """The same; of a truth of which no more is known, that it is not 0."""
        return self.condition(x) or ~equal(self.of(x), 0)

    @abstractmethod
    def _type(self, x: T) -> str: ...

    @abstractmethod
    def _parts(self, x: T) -> tuple[str, Sequence[T], ir.Operation | None]:
        """The operation that computes a value, its operands, and where its attributes are."""

    @abstractmethod
    def _leaf(self, x: T) -> Term | None:
        """What a value is that no operation computes of others."""

    @abstractmethod
    def _opaque(self, x: T) -> Term:
        """A call for a value that the algebra does not have."""

    def _number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _read(self, x: T) -> Term:
        if (leaf := self._leaf(x)) is not None:
            return leaf
        found = self._computed(x) if self._type(x) in BITS else None
        if self._type(x) == "i1" and (holds := self.condition(x)) is not None:
            found = choose(holds, 1, 0)
        return self._opaque(x) if found is None else found

    def _computed(self, x: T) -> Term | None:
        name, operands, op = self._parts(x)
        match name, len(operands):
            case "arith.addi", 2:
                return self.of(operands[0]) + self.of(operands[1])
            case "arith.subi", 2:
                return self.of(operands[0]) - self.of(operands[1])
            case "arith.muli", 2:
                a, b = map(self.of, operands)
                return a * b if len(a.parts) * len(b.parts) <= PARTS else None
            case "arith.shli", 2:
                number = self.of(operands[1]).constant
                return self.of(operands[0]) * (1 << number) if number is not None and 0 <= number < 64 else None
            case "arith.trunci", 1:
                return self.of(operands[0])
            case ("arith.index_cast" | "arith.extsi"), 1:
                narrower = BITS.get(self._type(operands[0]), 1) > BITS[self._type(x)]
                return self.of(operands[0]) if narrower else self.exact(operands[0]) if self._type(operands[0]) in BITS else None
            case ("arith.index_castui" | "arith.extui"), 1 if self._type(operands[0]) in BITS:
                of, bits = self.exact(operands[0]), BITS[self._type(operands[0])]
                return of if _natural(of) else call(f"u{bits}", of, low=0, high=min((1 << bits) - 1, (1 << 63) - 1))
            case "arith.andi", 2 if (mask := self.of(operands[1]).constant) is not None:
                of = self.of(operands[0])
                return _masked(of, mask) if mask >= 0 else of - _masked(of, ~mask)
            case "arith.remui", 2 if (n := self.of(operands[1]).constant) is not None and n > 0 and n & (n - 1) == 0:
                return self.of(operands[0]) % n
            case ("arith.shrsi" | "arith.shrui" | "arith.divui"), 2 if (by := self._power_of_two(name, operands[1])):
                of, bits = self.of(operands[0]), BITS[self._type(operands[0])]
                exact = NONE.fits(of, bits) and (name == "arith.shrsi" or _natural(of))
                # of what may wrap around, or has no sign, it is another number, but the same for the same quotient
                return of // by if exact else typed_call(self._type(x), f"{name} {bits}", of // by)
            case "arith.select", 3:
                return choose(self.holds(operands[0]), self.exact(operands[1]), self.exact(operands[2]))
            case _ if op is None or not operands or any(self._type(v) not in BITS for v in operands):
                return None
        return self._of_values(name, [self.exact(v) for v in operands], op)

    def _power_of_two(self, name: str, operand: T) -> int:
        """What a shift to the right, or a division, divides by, if it is a power of two; else 0."""
        number = self.of(operand).constant if self._type(operand) in BITS else None
        if number is None or number < 0 or (name != "arith.divui" and number > 63):
            return 0
        return (number if number & (number - 1) == 0 else 0) if name == "arith.divui" else 1 << number

    def _of_values(self, name: str, args: list[Term], op: ir.Operation) -> Term | None:
        """What an operation computes of its operands' values, which are signed numbers of their types."""
        match name:
            case "arith.minsi":
                return minimum(*args)
            case "arith.maxsi":
                return maximum(*args)
            case "arith.floordivsi":
                return args[0] // args[1]
            case "arith.ceildivsi":
                return -(-args[0] // args[1])
            case "arith.divui" | "arith.divsi" if _natural(args[0], args[1] - 1):
                return args[0] // args[1]
            case "arith.remui" | "arith.remsi" if _natural(args[0], args[1] - 1):
                return args[0] % args[1]
            case "arith.remui" if (n := args[1].constant) is not None and n > 0:
                return call("remui", *args, low=0, high=n - 1)
            case "arith.andi" if ends := [NONE.bounds(a)[1] for a in args if _natural(a)]:
                return call("andi", *args, low=0, high=int(min(ends)))
            case "math.absi":
                return maximum(args[0], -args[0])
            case "affine.apply" | "affine.min" | "affine.max":
                map_ = ir.AffineMapAttr(op.attributes["map"]).value
                results = [affine_term(e, args, map_.n_dims) for e in map_.results]
                return maximum(*results) if name == "affine.max" else minimum(*results)
        return None


def affine_term(e: ir.AffineExpr, operands: Sequence[Term], dims: int) -> Term:
    """An affine expression of operands, the first `dims` of which are its dimensions."""
    match e:
        case ir.AffineConstantExpr():
            return term(e.value)
        case ir.AffineDimExpr():
            return operands[e.position]
        case ir.AffineSymbolExpr():
            return operands[dims + e.position]
    assert isinstance(e, ir.AffineBinaryExpr)
    a, b = (affine_term(side, operands, dims) for side in (e.lhs, e.rhs))
    match e:
        case ir.AffineAddExpr():
            return a + b
        case ir.AffineMulExpr():
            return a * b
        case ir.AffineModExpr():
            return within_bits(a, 64) % b
        case ir.AffineCeilDivExpr():
            return -(-within_bits(a, 64) // b)
    return within_bits(a, 64) // b


def _masked(x: Term, mask: int) -> Term:
    """Some of a number's lower bits: each run of them is the difference of two remainders."""
    found, bit = term(0), 0
    while mask >> bit:
        low = bit + ((mask >> bit) & -(mask >> bit)).bit_length() - 1
        bit = low + (~(mask >> low) & (mask >> low) + 1).bit_length() - 1
        found = found + x % (1 << bit) - x % (1 << low)
    return found


def _natural(*xs: Term) -> bool:
    return all(NONE.proves(x) for x in xs)


def outside_call(name: str, x: ir.Value) -> Term:
    """A value from outside, of which no more is known than its range. Those of type `index` are sizes and indices."""
    low, high = NONE.bounds(ValueTerms().of(x))
    if str(x.type) == "index":
        low, high = max(low, -LARGEST), min(high, LARGEST)
    return call(name, low=None if isinf(low) else int(low), high=None if isinf(high) else int(high))


def typed_call(type_: str, name: str, *args: Term, ends: Ends | None = None) -> Term:
    """A value of a type of which no more is known than its least and greatest value, if these are."""
    low, high = (-inf, inf) if ends is None else ends
    if (bits := BITS.get(type_)) is None:
        return call(name, *args)
    return call(name, *args, low=int(max(low, -(1 << bits - 1))), high=int(min(high, (1 << bits - 1) - 1)))


def _extent(x: ir.Value) -> Term | None:
    """A value that is computed of sizes alone."""
    if isinstance(x.type, ir.IndexType):
        with suppress(Varies, InternalError):
            return term(value_of(x))
    return None


def _constant(type_: str, number: float | None) -> Term | None:
    """An integer, or a truth: 1 or 0."""
    return None if number is None or not (type_ in BITS or type_ == "i1") else term(bool(number) if type_ == "i1" else int(number))


class ValueTerms(Reader[ir.Value]):
    """Of values in MLIR. `leaf`: what a value is that is asked for first; None for all that it does not know. `elements`: the least
    and the greatest element of tensors of integers, where that is known."""

    def __init__(self, leaf: Callable[[ir.Value], Term | None] = lambda _: None, elements: Mapping[ir.Value, Ends] | None = None):
        super().__init__()
        self.leaf, self.elements = leaf, elements or {}
        self._types: dict[ir.Value, str] = {}

    def _type(self, x: ir.Value) -> str:
        if (found := self._types.get(x)) is None:
            found = self._types[x] = str(x.type)
        return found

    def _parts(self, x: ir.Value) -> tuple[str, Sequence[ir.Value], ir.Operation | None]:
        op = mlir.definition(x)
        return ("", (), None) if op is None else (op.name, list(op.operands), op)

    def _leaf(self, x: ir.Value) -> Term | None:
        if (known := self.leaf(x)) is not None:
            return known
        if isinstance(x.type, ir.ShapedType):  # whatever computes it, which has indices of its own
            return call(f"tensor{self._number(x)}")
        op, number = mlir.definition(x), mlir.constant_value(x)
        if op is None:
            return self._argument(ir.BlockArgument(x))
        if op.name in ("tensor.dim", "memref.dim") and (extent := _extent(x)) is not None:
            return extent
        return _constant(str(x.type), number)

    def _argument(self, x: ir.BlockArgument) -> Term:
        loop = x.owner.owner.operation
        if loop.name == "scf.for" and x.arg_number == 0:  # from the start to below the end, by positive steps
            start, end = map(self.exact, list(loop.operands)[:2])
            return index(f"loop{self._number(x)}", end, start)
        return self._outside(x)

    def _outside(self, x: ir.Value) -> Term:
        """A value of which nothing is known. Those of type `index` are sizes and indices."""
        name, type_, op = f"value{self._number(x)}", str(x.type), mlir.definition(x)
        counts = op is not None and op.name.startswith(_COUNTS)
        return call(name, low=0 if counts else -LARGEST, high=LARGEST) if type_ == "index" else typed_call(type_, name)

    def _opaque(self, x: ir.Value) -> Term:
        op = mlir.definition(x)
        number = list(op.results).index(x)
        if op.name.startswith(_COUNTS) or not (op.operands or op.regions):
            return self._outside(x)
        ends = self.elements.get(op.operands[0]) if op.name == "tensor.extract" else None
        return typed_call(str(x.type), f"{op.name}#{self._number(op)}.{number}", *self._arguments(op), ends=ends)

    def _arguments(self, op: ir.Operation) -> list[Term]:
        """What an operation depends on that the algebra does not have."""
        inner = [o.results[0] for o in mlir.traverse(op) if o.name == "linalg.index"]
        return [self.of(v) for v in (*mlir.operands_of(op), *inner)]


def unclamped_value(terms: ValueTerms, subscript: ir.Value, guard: Cond) -> ir.Value:
    """A subscript before it was kept inside a tensor, where that changes nothing under a condition."""
    raw = subscript
    while (owner := mlir.definition(raw)) is not None and owner.name in ("arith.maxsi", "arith.minsi"):
        raw = owner.operands[0]
    if raw == subscript:
        return subscript
    a, b = (NONE.assume(guard).simplified(terms.exact(x)) for x in (subscript, raw))
    return raw if a is b else subscript


class BodyTerms(ValueTerms):
    """Of values in the body of a `linalg.generic`, and of what they read from outside of it: `dims` are the indices of its
    dimensions. Elements of operands are calls of their subscripts."""

    def __init__(
        self, op: ir.Operation, leaf: Callable[[ir.Value], Term | None] = lambda _: None,
        elements: Mapping[ir.Value, Ends] | None = None,
    ):  # fmt: skip
        super().__init__(leaf, elements)
        self.op, self.block, self.maps = op, mlir.body_of(op), mlir.maps_of(op)
        self.dims = [dim_index(d, e) for d, e in enumerate(known_loops(op))]

    def dims_of(self, x: Term) -> frozenset[int]:
        """The dimensions whose indices determine a term; none where memory, or anything else, does so, too."""
        called = any(u.op == "call" for u in x.unknowns)
        return frozenset(n for n, d in enumerate(self.dims) if d.symbol in x.free and not called)

    def _leaf(self, x: ir.Value) -> Term | None:
        op = mlir.definition(x)
        if op is not None and op.name == "linalg.index":
            return self.dims[mlir.index_dim(op)]
        return super()._leaf(x)

    def _argument(self, x: ir.BlockArgument) -> Term:
        if x.owner != self.block:
            return super()._argument(x)
        subscripts = [self.dims[d] for d in mlir.map_dims(self.maps[x.arg_number])]
        ends = self.elements.get(self.op.operands[x.arg_number])
        return typed_call(str(x.type), f"element{x.arg_number}", *(subscripts or [term(0)]), ends=ends)


class BlockTerms(BodyTerms):
    """The same, where no more is known of values from outside than their ranges, if they are no extents: they are the same in all
    of a block."""

    def _leaf(self, x: ir.Value) -> Term | None:
        op = mlir.definition(x)
        if mlir.constant_value(x) is not None or (x.owner if op is None else op.block) == self.block:
            return super()._leaf(x)
        extent = _extent(x)
        return outside_call(f"outside{self._number(x)}", x) if extent is None else extent


class ExprTerms(Reader[Expr]):
    """Of scalar expressions. The indices of kernel dimensions are below `largest`."""

    def __init__(self, largest: int = LARGEST):
        super().__init__()
        self.largest = largest
        self.sources: dict[Leaf, Expr] = {}
        """The expressions that are indices, elements of memory and values from outside."""

    def dim(self, d: int) -> Term:
        return index(f"i{d}", self.largest)

    def _type(self, x: Expr) -> str:
        return x.type

    def _parts(self, x: Expr) -> tuple[str, Sequence[Expr], ir.Operation | None]:
        return x.op, x.args, x.template

    def _leaf(self, x: Expr) -> Term | None:
        match x.op:
            case "index":
                return self.dim(x.own_dims[0])
            case "constant":
                return _constant(x.type, x.key) or call(f"constant {x.key!r}")
            case "outer":
                return outside_call(f"outer{self._number(x.key)}", x.key)
            case "element" | "total":
                args = [self.of(a) for a in x.args] or [self.dim(d) for d in x.own_dims]
                return typed_call(x.type, f"{x.op}{self._number(x.key)}", *args)
        return None

    def _read(self, x: Expr) -> Term:
        found = super()._read(x)
        if found.leaf is not None and x.op in ("index", "element", "outer"):
            self.sources.setdefault(found.leaf, x)
        return found

    def _opaque(self, x: Expr) -> Term:
        return typed_call(x.type, f"{x.op} {x.key}", *map(self.of, x.args), *map(self.dim, x.own_dims))
