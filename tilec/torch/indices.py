"""Subscripts under construction: sums of index names, quotients and remainders, simplified by their ranges as they are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd, prod

from tilec.torch.layout import row_major

Range = tuple[int, int]  # the smallest and the largest value
ANY: Range = (-(2**62), 2**62)


@dataclass(frozen=True)
class Atom:
    """A name, or another text that stands alone; a quotient or remainder (`op`) keeps what it was made of. One of `op` "=" is the
    index that it is `of`, in a smaller range."""

    text: str
    range: Range
    op: str = ""
    of: Index | None = None
    by: int = 1


@dataclass(frozen=True)
class Index:
    """A sum of atoms times numbers, and a number. `str` of it is text of the language, bare or in parentheses as it needs."""

    terms: tuple[tuple[Atom, int], ...]
    constant: int = 0

    @property
    def range(self) -> Range:
        low = high = self.constant
        for atom, factor in self.terms:
            ends = (atom.range[0] * factor, atom.range[1] * factor)
            low, high = low + min(ends), high + max(ends)
        return low, high

    def __str__(self) -> str:
        plain = self._plain()
        text = plain.sum_text()
        return text if plain.is_atom or (not plain.terms and plain.constant >= 0) else f"({text})"

    def _plain(self) -> Index:
        """Without the knowledge of smaller ranges."""
        if not any(atom.op == "=" for atom, _ in self.terms):
            return self
        total = number(self.constant)
        for atom, factor in self.terms:
            of = atom.of._plain() if atom.op == "=" and atom.of is not None else Index(((atom, 1),))
            total = total + of * factor
        return total

    @property
    def is_atom(self) -> bool:
        return len(self.terms) == 1 and self.terms[0][1] == 1 and not self.constant

    def sum_text(self) -> str:
        """Without parentheses, as a subscript may be written."""
        self = self._plain()
        parts: list[str] = []
        ordered = sorted(self.terms, key=lambda t: t[1] < 0)
        for atom, factor in ordered:
            size = abs(factor)
            product = atom.text if size == 1 else f"{atom.text} * {size}"
            if factor < 0 and not parts:
                parts.append(f"-({product})" if atom.op else f"-{product}")  # `-i // 2` is `(-i) // 2`
            else:
                parts.append((" - " if factor < 0 else " + " if parts else "") + product)
        if self.constant or not parts:
            sign = ("-" if self.constant < 0 else "") if not parts else (" - " if self.constant < 0 else " + ")
            parts.append(f"{sign}{abs(self.constant)}")
        return "".join(parts)

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.constant + other)
        counts = dict(self.terms)
        for atom, factor in other.terms:
            counts[atom] = counts.get(atom, 0) + factor
        return _recombined({a: f for a, f in counts.items() if f}, self.constant + other.constant)

    __radd__ = __add__

    def __mul__(self, factor: int) -> Index:
        if not factor:
            return number(0)
        return Index(tuple((a, f * factor) for a, f in self.terms), self.constant * factor)

    __rmul__ = __mul__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: Index | int) -> Index:
        return self + (-other)

    def __rsub__(self, other: Index | int) -> Index:
        return -self + other

    def __floordiv__(self, divisor: int) -> Index:
        assert divisor > 0
        if divisor == 1:
            return self
        whole, rest = self._split(divisor)
        quotient = Index(tuple((a, f // divisor) for a, f in whole.terms), whole.constant // divisor)
        low, high = (end // divisor for end in rest.range)
        if low == high:
            return quotient + low
        for common, large, _ in rest._multiples(
            divisor
        ):  # what is less than the common factor does not reach the quotient
            return quotient + large // (divisor // common)
        if rest.is_atom and rest.terms[0][0].op == "//":
            inner = rest.terms[0][0]
            assert inner.of is not None
            return quotient + inner.of // (inner.by * divisor)
        return quotient + _atom(rest, "//", divisor, (low, high))

    def __mod__(self, divisor: int) -> Index:
        assert divisor > 0
        if divisor == 1:
            return number(0)
        _, rest = self._split(divisor)
        low, high = (end // divisor for end in rest.range)
        if low == high:
            return rest + (-low * divisor)
        for common, large, small in rest._multiples(divisor):
            return large % (divisor // common) * common + small
        if rest.is_atom and rest.terms[0][0].op == "%" and rest.terms[0][0].by % divisor == 0:
            inner_of = rest.terms[0][0].of
            assert inner_of is not None
            return inner_of % divisor
        return _atom(rest, "%", divisor, (0, divisor - 1))

    def _split(self, divisor: int) -> tuple[Index, Index]:
        """What the divisor divides, and the rest, whose number is not negative and below the divisor."""
        whole = tuple((a, f) for a, f in self.terms if f % divisor == 0)
        rest = tuple((a, f) for a, f in self.terms if f % divisor)
        less = self.constant % divisor
        return Index(whole, self.constant - less), Index(rest, less)

    def _multiples(self, divisor: int) -> Iterator[tuple[int, Index, Index]]:
        """Sums of multiples of a number that divides the divisor, over that number, and what else there is, if it is smaller."""
        for common in sorted({gcd(f, divisor) for _, f in self.terms} - {1}, reverse=True):
            less = self.constant % common
            large = Index(
                tuple((a, f // common) for a, f in self.terms if f % common == 0), (self.constant - less) // common
            )
            small = Index(tuple((a, f) for a, f in self.terms if f % common), less)
            if small.range[0] >= 0 and small.range[1] < common:
                yield common, large, small


def number(value: int) -> Index:
    return Index((), value)


def name(text: str, extent: int) -> Index:
    """An index whose values are 0 to extent - 1."""
    return number(0) if extent == 1 and text.startswith("i") else Index(((Atom(text, (0, extent - 1)), 1),))


def within(index: Index, extent: int) -> Index:
    """An index that is known to be 0 to extent - 1 where it is read: a condition says so."""
    low, high = index.range
    if (low >= 0 and high < extent) or not index.terms:
        return index
    return Index(((Atom(str(index), (0, extent - 1), "=", index), 1),))


def opaque(text: str, range: Range = ANY) -> Index:
    """A subscript of which only the text is known."""
    return Index(((Atom(text if text.isidentifier() else f"({text})", range), 1),))


def range_where(index: Index, here: Index, value: int) -> Range:
    """The smallest and the largest value of an index where `here`, an atom of it, has this value."""
    ((atom, _),) = here.terms
    low = high = index.constant
    for term, factor in index.terms:
        if term == atom:
            ends = (value, value)
        elif term.of is None:
            ends = term.range
        else:
            ends = range_where(term.of, here, value)
            quotients = ends[0] // term.by, ends[1] // term.by
            if term.op == "//":
                ends = quotients
            elif term.op == "%":
                same = quotients[0] == quotients[1]
                ends = (ends[0] % term.by, ends[1] % term.by) if same else (0, term.by - 1)
        low, high = low + min(e * factor for e in ends), high + max(e * factor for e in ends)
    return low, high


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
        inside = d == first and position.range[0] >= 0 and position.range[1] < prod(shape)
        subscripts.append(quotient if inside else quotient % extent)
    return subscripts


def _atom(of: Index, op: str, by: int, range: Range) -> Index:
    return Index(((Atom(f"{of} {op} {by}", range, op, of, by), 1),))


def _recombined(counts: dict[Atom, int], constant: int) -> Index:
    """`x // d * d + x % d` is x."""
    for atom, factor in counts.items():
        if atom.op != "%" or atom.of is None:
            continue
        quotient = atom.of // atom.by
        if not quotient.is_atom:
            continue
        (partner, _), *_ = quotient.terms
        if counts.get(partner) == factor * atom.by:
            rest = {a: f for a, f in counts.items() if a not in (atom, partner)}
            return _recombined(rest, constant) + atom.of * factor
    return Index(tuple(counts.items()), constant)
