"""Subscripts under construction: terms of the algebra of subscripts (`tilec/index`), printed as text of the language."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf, prod

from tilec.index import questions
from tilec.index.facts import NONE, Ends
from tilec.index.terms import Leaf, Term, call, index, summands, term, traverse
from tilec.torch.extents import Extent, extent_of
from tilec.torch.layout import row_major
from tilec.torch.unsupported import Unsupported

ANY: Ends = (-inf, inf)
_WITHIN = "within"
_PRINTED: ContextVar[list[Term] | None] = ContextVar("printed", default=None)


@dataclass(frozen=True)
class Index:
    """A term. `str` of it is text of the language, bare or in parentheses as it needs."""

    term: Term

    @property
    def range(self) -> Ends:
        """The smallest and the largest value. Raises Unsupported where they vary."""
        if self._varies:
            raise Unsupported("ends of a subscript that vary")
        return NONE.bounds(self.term)

    def fits(self, extent: int) -> bool:
        """Whether it is from 0 to extent - 1."""
        return self.at_least(0) and self.below(extent)

    def at_least(self, least: int) -> bool:
        """Whether it is known to be no less than a number, or an extent."""
        if isinstance(least, int) and not self._varies:
            return NONE.bounds(self.term)[0] >= least
        return NONE.proves(self.term - _term(least))

    def below(self, end: int) -> bool:
        """Whether it is known to be less than a number, or an extent."""
        if isinstance(end, int) and not self._varies:
            return NONE.bounds(self.term)[1] < end
        return NONE.proves(_term(end) - 1 - self.term)

    @property
    def _varies(self) -> bool:
        return any(leaf.op == "size" for x in traverse(self.term) for leaf in (*x.leaves, *_ends(x)))

    @property
    def constant(self) -> int | None:
        """Its value, if it is a number."""
        return self.term.constant

    def __str__(self) -> str:
        return _operand(_noted(self.term))

    def sum_text(self) -> str:
        """Without parentheses, as a subscript may be written."""
        return _sum(*_parts(_noted(self.term)))

    def __add__(self, other: Index | int) -> Index:
        return Index(self.term + _term(other))

    __radd__ = __add__

    def __mul__(self, factor: int) -> Index:
        return Index(self.term * _term(factor))

    __rmul__ = __mul__

    def __neg__(self) -> Index:
        return Index(-self.term)

    def __sub__(self, other: Index | int) -> Index:
        return Index(self.term - _term(other))

    def __rsub__(self, other: Index | int) -> Index:
        return Index(_term(other) - self.term)

    def __floordiv__(self, divisor: int) -> Index:
        return Index(self.term // _term(divisor))

    def __mod__(self, divisor: int) -> Index:
        return Index(self.term % _term(divisor))


def _term(of: Index | Extent | int) -> Term:
    return of.term if isinstance(of, Index | Extent) else term(of)


# ---- making ----------------------------------------------------------------------------------------------------------


def number(value: int) -> Index:
    return Index(_term(value))


def name(text: str, extent: int) -> Index:
    """An index whose values are 0 to extent - 1."""
    return number(0) if extent == 1 and text.startswith("i") else Index(index(text, _term(extent)))


def within(position: Index, extent: int) -> Index:
    """An index that is known to be 0 to extent - 1 where it is read: a condition says so."""
    if position.fits(extent):
        return position
    return Index(call(_WITHIN, position.term, low=0, high=_term(extent) - 1))


def _ends(x: Term) -> list[Leaf]:
    """The symbols that the ends of a term's symbols depend on."""
    return [leaf for symbol in x.free for end in symbol.ends if end is not None for leaf in end.free]


def opaque(text: str, range: tuple[float, float] = ANY) -> Index:
    """A subscript of which only the text, of an expression, is known."""
    return element(text if text.isidentifier() else f"({text})", range)


def element(text: str, range: tuple[float, float]) -> Index:
    """A subscript of which only the text, which needs no parentheses, is known. An end of its range that varies is left out."""
    low, high = (None if end in ANY or isinstance(end, Extent) else int(end) for end in range)
    return Index(call(text, low=low, high=high))


def where(position: Index, here: Index, value: int) -> Index:
    """An index where the index `here` has this value, which may be outside of its range."""
    return Index(NONE.rebuilt(position.term, {here.term.symbol: _term(value)}))


def flat(positions: Sequence[Index], strides: Sequence[int], offset: int = 0) -> Index:
    total = number(offset)
    for position, stride in zip(positions, strides, strict=True):
        total = total + position * stride
    return total


def unflat(position: Index, shape: Sequence[int]) -> list[Index]:
    """Subscripts of a position in row-major memory."""
    strides = row_major(shape)
    first = next((d for d, n in enumerate(shape) if n != 1), 0)
    subscripts = []
    for d, (extent, stride) in enumerate(zip(shape, strides)):
        quotient = position // stride
        inside = d == first and position.fits(prod(shape))
        subscripts.append(quotient if inside else quotient % extent)
    return subscripts


def digits(position: Index, extent: int, read: Sequence[Term]) -> list[int]:
    """Extents of the parts of an index that terms read; of one that is read as a whole, its own."""
    found = questions.digits(position.term, *read) if position.constant is None else None
    return [extent_of(n) for n in found] if found else [extent]


# ---- printing --------------------------------------------------------------------------------------------------------

Part = tuple[str, bool, int]
"""A text, whether it is a quotient or a remainder, and the number that it is multiplied by."""


@contextmanager
def printed() -> Iterator[list[Term]]:
    """The terms that are printed meanwhile."""
    outer, found = _PRINTED.get(), list[Term]()
    token = _PRINTED.set(found)
    try:
        yield found
    finally:
        _PRINTED.reset(token)
        if outer is not None:
            outer += found


def _noted(x: Term) -> Term:
    if (found := _PRINTED.get()) is not None:
        found.append(x)
    return x


def _parts(x: Term) -> tuple[list[Part], int]:
    """The parts of a sum, and the number that is added."""
    remainders, x = summands(x)
    parts: list[Part] = [_multiple(f"{_operand(of)} % {_right(by)}", c) for c, of, by in remainders]
    known = next((leaf for m in x.parts for leaf in m if leaf.name == _WITHIN), None)
    if known is not None:  # printed without what is known of it
        c, rest = x.collect(known)
        more, number = _parts(c * known.args[0] + rest)
        return parts + more, number
    parts += [(_product(m), len(m) == 1 and m[0].op == "//", f) for m, f in x.parts.items() if m]
    return parts, x.number


def _multiple(text: str, factor: Term) -> Part:
    """A quotient or a remainder, by its text, times a term."""
    known = factor.constant
    return (text, True, known) if known is not None else (f"({text}) * {_right(factor)}", False, 1)


def _product(leaves: Sequence[Leaf]) -> str:
    """The indices of a product first: sizes follow."""
    if len(leaves) == 1:
        return _leaf(leaves[0])
    ordered = sorted(leaves, key=lambda leaf: leaf.op == "size")
    return " * ".join(f"({_leaf(x)})" if x.op == "//" else _leaf(x) for x in ordered)


def _leaf(leaf: Leaf) -> str:
    if leaf.op == "//":
        return f"{_operand(leaf.args[0])} // {_right(leaf.args[1])}"
    assert not leaf.args, "a name or another text"
    return leaf.name


def _sum(parts: list[Part], number: int) -> str:
    texts: list[str] = []
    for text, computed, factor in sorted(parts, key=lambda p: (p[2] < 0, -abs(p[2]))):
        product = text if abs(factor) == 1 else f"{text} * {abs(factor)}"
        if factor < 0 and not texts:
            texts.append(f"-({product})" if computed else f"-{product}")  # `-i // 2` is `(-i) // 2`
        else:
            texts.append((" - " if factor < 0 else " + " if texts else "") + product)
    if number or not texts:
        sign = ("-" if number < 0 else "") if not texts else (" - " if number < 0 else " + ")
        texts.append(f"{sign}{abs(number)}")
    return "".join(texts)


def _operand(x: Term) -> str:
    parts, number = _parts(x)
    alone = len(parts) == 1 and parts[0][2] == 1 and not number and all(len(m) < 2 for m in x.parts)
    bare = alone or (not parts and number >= 0)
    return _sum(parts, number) if bare else f"({_sum(parts, number)})"


def _right(x: Term) -> str:
    """A divisor or a factor: `a // (S // 4)`, where `a // S // 4` is another number."""
    text, whole = _operand(x), x.constant is not None or (x.leaf is not None and not x.leaf.args)
    return text if whole or text != _sum(*_parts(x)) else f"({text})"
