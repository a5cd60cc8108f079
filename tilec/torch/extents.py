"""Extents of a partition whose sizes vary: terms over its sizes, in the place of numbers.

Translators compute with them and compare them as they do with numbers. A comparison is proved for all numbers in the sizes' ranges.
Where that cannot be, it has the answer for the sizes that the graph was traced with, and is kept as a condition: the program is one
for sizes that give the same answer. Where a translator needs the number of an extent, the operation cannot vary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import reduce, wraps
from math import isinf
from typing import TYPE_CHECKING, ParamSpec, cast

from tilec.core.extents import amount
from tilec.core.varying import Varying, number
from tilec.index.facts import NONE
from tilec.index.terms import Term, term
from tilec.torch.unsupported import Unsupported

if TYPE_CHECKING:
    import torch

    from tilec.torch.concrete import Expression

P = ParamSpec("P")
HIGH = 1 << 20
"""The greatest number of a size that has no other end: what a program indexes by such sizes is mostly within 32 bits."""


@dataclass
class Scope:
    """The sizes of a program: their ranges, the numbers that they were traced with, and the terms of PyTorch's symbols.
    `conditions`: terms, and whether each is at least 0, or is 0. `answers`: questions about numbers, those they were asked with,
    and the answer. `proving`: what is not proved is no condition, but an error."""

    varies: Mapping[str, Varying]
    traced: Mapping[str, int]
    symbols: Mapping[Expression, Term]
    conditions: dict[tuple[Term, bool], bool] = field(default_factory=dict)
    answers: list[tuple[Callable[[Mapping[str, int]], bool], bool]] = field(default_factory=list)
    proving: bool = False

    def number(self, x: Term, sizes: Mapping[str, int]) -> int:
        return number(amount(x, self.varies), sizes)

    def decided(self, x: Term, equal: bool) -> bool:
        """Whether a term is 0, if `equal`, or is at least 0."""
        if (known := x.constant) is not None:
            return known == 0 if equal else known >= 0
        if NONE.proves(-x - 1) or (equal and NONE.proves(x - 1)):
            return False
        if not equal and NONE.proves(x):
            return True
        if self.proving:
            raise Unsupported("a comparison of sizes that is not proved")
        found = self.number(x, self.traced)
        return self.conditions.setdefault((x, equal), found == 0 if equal else found >= 0)

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether the program is one for these sizes."""
        if not all(v.has(sizes[name]) for name, v in self.varies.items()):
            return False
        found = ((self.number(x, sizes), equal, answer) for (x, equal), answer in self.conditions.items())
        if not all((n == 0 if equal else n >= 0) == answer for n, equal, answer in found):
            return False
        return all(question(sizes) == answer for question, answer in self.answers)

    def term(self, expression: Expression) -> Term:
        """The term of an expression of symbols, as sympy has it. Raises Unsupported for one that is no term."""
        if expression.is_Integer:
            return term(int(str(expression)))
        if expression in self.symbols:
            return self.symbols[expression]
        args = [self.term(a) for a in expression.args]
        match type(expression).__name__:
            case "Add":
                return sum(args, term(0))
            case "Mul":
                found = term(1)
                for a in args:
                    found = found * a
                return found
            case "Pow" if (exponent := args[1].constant) is not None and exponent > 0:
                found = args[0]
                for _ in range(exponent - 1):
                    found = found * args[0]
                return found
            case "FloorDiv" | "CleanDiv":
                return args[0] // args[1]
            case "Mod" | "PythonMod":
                return args[0] % args[1]
            case "Max":
                return reduce(lambda a, b: a if self.decided(a - b, False) else b, args)
            case "Min":
                return reduce(lambda a, b: b if self.decided(a - b, False) else a, args)
        raise Unsupported(f"a size that is {expression}")


_SCOPE: ContextVar[Scope | None] = ContextVar("sizes", default=None)


@contextmanager
def scope(of: Scope) -> Iterator[None]:
    """Has symbols stand for sizes of a program."""
    token = _SCOPE.set(of)
    try:
        yield
    finally:
        _SCOPE.reset(token)


def current() -> Scope | None:
    return _SCOPE.get()


@contextmanager
def proving() -> Iterator[None]:
    """While what cannot be proved of sizes is an Unsupported, and makes no condition."""
    if (known := _SCOPE.get()) is None or known.proving:
        yield
        return
    known.proving = True
    try:
        yield
    finally:
        known.proving = False


def of_numbers(question: Callable[P, bool]) -> Callable[P, bool]:
    """Has a question about numbers, such as what takes less time, answered at the sizes of the call where extents vary. Sizes that
    have another answer have a program of their own."""

    @wraps(question)
    def asked(*args: P.args, **kwargs: P.kwargs) -> bool:
        if (known := _SCOPE.get()) is None or not any(isinstance(a, Extent) for a in args):
            return question(*args, **kwargs)

        def at(sizes: Mapping[str, int]) -> bool:
            return question(*(a.at(sizes, known) if isinstance(a, Extent) else a for a in args), **kwargs)  # type: ignore[arg-type]

        known.answers.append((at, answer := at(known.traced)))
        return answer

    return asked


@dataclass(frozen=True, eq=False)
class Extent:
    term: Term

    def _with(self, other: object) -> Term | None:
        if isinstance(other, Extent):
            return other.term
        return term(int(other)) if isinstance(other, int) else None

    def __add__(self, other: object) -> int | Extent:
        return NotImplemented if (x := self._with(other)) is None else of(self.term + x)

    __radd__ = __add__

    def __sub__(self, other: object) -> int | Extent:
        return NotImplemented if (x := self._with(other)) is None else of(self.term - x)

    def __rsub__(self, other: object) -> int | Extent:
        return NotImplemented if (x := self._with(other)) is None else of(x - self.term)

    def __mul__(self, other: object) -> int | Extent:
        return NotImplemented if (x := self._with(other)) is None else of(self.term * x)

    __rmul__ = __mul__

    def __neg__(self) -> int | Extent:
        return of(-self.term)

    def __floordiv__(self, other: object) -> int | Extent:
        return NotImplemented if (x := self._with(other)) is None else of(self.term // x)

    def __rfloordiv__(self, other: object) -> int | Extent:
        return NotImplemented if (x := self._with(other)) is None else of(x // self.term)

    def __mod__(self, other: object) -> int | Extent:
        return NotImplemented if (x := self._with(other)) is None else of(self.term % x)

    def __rmod__(self, other: object) -> int | Extent:
        return NotImplemented if (x := self._with(other)) is None else of(x % self.term)

    def __eq__(self, other: object) -> bool:
        return NotImplemented if (x := self._with(other)) is None else _decided(self.term - x, True)

    def __le__(self, other: object) -> bool:
        return NotImplemented if (x := self._with(other)) is None else _decided(x - self.term, False)

    def __lt__(self, other: object) -> bool:
        return NotImplemented if (x := self._with(other)) is None else _decided(x - self.term - 1, False)

    def __ge__(self, other: object) -> bool:
        return NotImplemented if (x := self._with(other)) is None else _decided(self.term - x, False)

    def __gt__(self, other: object) -> bool:
        return NotImplemented if (x := self._with(other)) is None else _decided(self.term - x - 1, False)

    def __bool__(self) -> bool:
        return not _decided(self.term, True)

    def __hash__(self) -> int:
        return hash(self.term)

    def __index__(self) -> int:
        raise Unsupported("a size that varies, where a number is needed")

    __int__ = __float__ = __index__

    def __str__(self) -> str:
        return str(self.term) if self.term.leaf is not None and not self.term.leaf.args else f"({self.term})"

    def at(self, sizes: Mapping[str, int], within: Scope) -> int:
        """Its number."""
        return within.number(self.term, sizes)


def _decided(x: Term, equal: bool) -> bool:
    if (known := _SCOPE.get()) is None:
        raise Unsupported("a size that varies, where no program is written")
    return known.decided(x, equal)


def of(x: Term) -> int | Extent:
    """An extent that is a term: a number, if the term is one."""
    return Extent(x) if (known := x.constant) is None else known


def extent_of(x: Term) -> int:
    """The same, as translators have it."""
    return extent(of(x))


def extent(value: int | torch.SymInt | Extent) -> int:
    """An extent as translators have it: of a symbol's, over the sizes of the program. They take it for a number."""
    if (node := getattr(value, "node", None)) is not None:  # a SymInt: this module serves programs without PyTorch, too
        if (known := _SCOPE.get()) is None:
            raise Unsupported("a size that is a symbol")
        value = of(known.term(node.expr))
    return cast("int", value) if isinstance(value, Extent) else int(value)


def shape(values: Iterable[int | torch.SymInt]) -> tuple[int, ...]:
    """The same of several."""
    return tuple(map(extent, values))


def most(value: int) -> int:
    """The greatest number of an extent."""
    if not isinstance(value, Extent):
        return value
    high = NONE.bounds(value.term)[1]
    if isinf(high):
        raise Unsupported("a size without a greatest number")
    return int(high)


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape of an elementwise result, as NumPy has it, of operands whose shapes fit."""
    rank = max(map(len, shapes), default=0)
    aligned = [(*(1 for _ in range(rank - len(s))), *s) for s in shapes]
    return tuple(next((n for n in extents if n != 1), 1) for extents in zip(*aligned))
