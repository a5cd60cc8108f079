"""What conditions tell of indices whose ends are numbers: exactly, by systems of integer inequalities.

A term becomes cases: inequalities, and the sum that it is equal to where they hold. A quotient is a variable of its own between
two inequalities. Minima and choices have a case for each of their values. A condition becomes alternatives, each a list of
inequalities. A part that is a call tells nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import product

from tilec.index.facts import NONE
from tilec.index.integer_systems import MOST_WORK, Row, TooMuch, Work, has_solution
from tilec.index.terms import Cond, Leaf, Term, term

_MOST_CASES = 64  # docs/language.md, "Ranges", has this number
_MOST_SYSTEMS = 256
_Sum = tuple[dict[str, int], int]
_Case = tuple[tuple[Row, ...], _Sum]
_Alternatives = list[tuple[Row, ...]]


class Domain:
    """The values of indices where all conditions hold: of those in terms and conditions, and of `others`, which may have none."""

    def __init__(self, conditions: Sequence[Cond] = (), others: Iterable[Leaf] = ()):
        self.conditions = conditions
        self._quotients: dict[tuple[tuple[tuple[str, int], ...], int, int], str] = {}
        self._terms: dict[Term, list[_Case] | None] = {}
        self._meanings: dict[Cond, _Alternatives] = {}
        self._left = 10 * MOST_WORK  # for all questions together
        self._symbols = {*others, *(leaf for c in conditions for t in c.terms for leaf in t.free)}
        self.limited = False
        """Whether a limit was met, so that what was not proved may hold all the same."""

    def decides(self, x: Term) -> bool:
        """Whether the ends of all indices are numbers, or sums of multiples of sizes, whose own ends are."""
        return all(e is not None and _is_sum(e) for leaf in _with_ends({*self._symbols, *x.free}) for e in leaf.ends)

    def is_at_least(self, x: Term, least: int) -> bool:
        """Whether it is, where the conditions hold. False where that is not known, too."""
        return self._never(x, lambda s: _plus(s, -1, least - 1))

    def is_below(self, x: Term, end: int | Term) -> bool:
        number = end if isinstance(end, int) else end.constant
        return self._never(x - end, lambda s: s) if number is None else self._never(x, lambda s: _plus(s, 1, -number))

    def ends(self, x: Term) -> tuple[int, int]:
        """The least and the greatest value here, as far as it is known, of a term whose ends are known."""
        low, high = map(int, NONE.bounds(x))
        least = _first(low, high, lambda n: not self.is_at_least(x, n + 1))
        return least, -_first(-high, -low, lambda n: not self.is_below(x, -n))

    def _never(self, x: Term, beyond: Callable[[_Sum], Row]) -> bool:
        """Whether no values of the indices make `beyond` of the term at least 0."""
        self._symbols |= x.free
        if (cases := self._cases(x)) is None:
            return False
        systems = [(*some, *rows, beyond(value)) for some in self._known for rows, value in cases]
        if len(systems) > _MOST_SYSTEMS:
            self.limited = True
            return False
        return not any(map(self._may_hold, systems))

    def _may_hold(self, rows: tuple[Row, ...]) -> bool:
        """Whether values of the indices make each row at least 0. True where that takes too long to tell."""
        work = Work(allowed := min(MOST_WORK, self._left))
        try:
            return has_solution((*self._within(), *self._defined(), *rows), work=work)
        except TooMuch:
            self.limited = True
            return True
        finally:
            self._left -= allowed - max(work.left, 0)

    @cached_property
    def _known(self) -> _Alternatives:
        """The alternatives of all conditions together. Those with the fewest come first; one that makes too many is left out."""
        found: _Alternatives = [()]
        for more in sorted((self._alternatives(part) for c in self.conditions for part in _parts(c)), key=len):
            found = self._few([a + b for a in found for b in more], found)
        return found

    def _few(self, found: _Alternatives, otherwise: _Alternatives) -> _Alternatives:
        """Those that may hold, if they are not too many."""
        if 1 < len(found) <= _MOST_SYSTEMS:
            found = [rows for rows in found if self._may_hold(rows)]
        if len(found) <= _MOST_CASES:
            return found
        self.limited = True
        return otherwise

    def _within(self) -> Iterator[Row]:
        """The inequalities of the indices."""
        for leaf in sorted(_with_ends(self._symbols), key=lambda leaf: leaf.order):
            low, high = leaf.ends
            if low is not None and high is not None and _is_sum(low) and _is_sum(high):
                yield _row(term(leaf) - low)
                yield _row(high - term(leaf))

    def _defined(self) -> Iterator[Row]:
        """The inequalities of the quotients: by * q <= x <= by * q + by - 1."""
        for (parts, number, by), q in self._quotients.items():
            factors = dict(parts)
            yield factors | {q: -by}, number
            yield {v: -a for v, a in factors.items()} | {q: by}, by - 1 - number

    # ---- terms ----

    def _cases(self, x: Term) -> list[_Case] | None:
        """None where a part is not known, or is no sum of multiples of indices."""
        if x not in self._terms:
            self._terms[x] = self._limited(self._sums(x))
        return self._terms[x]

    def _limited(self, found: list[_Case] | None) -> list[_Case] | None:
        if found is None or len(found) <= _MOST_CASES:
            return found
        self.limited = True
        return None

    def _sums(self, x: Term) -> list[_Case] | None:
        """A case of a term is one of each of its leaves."""
        cases: list[tuple[tuple[Row, ...], dict[Leaf, _Sum]]] = [((), {})]
        for leaf in x.leaves:
            more = self._limited(self._values(leaf))
            if more is None or len(cases) * len(more) > _MOST_CASES:
                self.limited |= more is not None
                return None
            cases = [(known + rows, {**values, leaf: value}) for known, values in cases for rows, value in more]
        found = []
        for known, values in cases:
            total: _Sum = ({}, 0)
            for m, f in x.parts.items():
                part: _Sum = ({}, f)
                for value in (values[leaf] for leaf in m):
                    if value[0] and part[0]:
                        return None
                    part = _scaled(value, part[1]) if value[0] else _scaled(part, value[1])
                total = _sum(total, part)
            found.append((known, total))
        return found

    def _values(self, leaf: Leaf) -> list[_Case] | None:
        if leaf.is_symbol:
            return [((), _row(term(leaf)))]
        if leaf.op == "call" and leaf.name not in ("//", "%"):
            return None
        args = [self._cases(a) for a in leaf.args]
        each = [a for a in args if a is not None]
        if len(each) < len(args):
            return None
        if leaf.op == "min":
            return self._minimum(each)
        if leaf.when is not None:
            sides = zip((leaf.when, ~leaf.when), each)
            return [(a + rows, v) for when, cases in sides for a in self._alternatives(when) for rows, v in cases]
        found = []
        for (known, a), (more, b) in product(*each):
            if b[0]:
                return None
            found.append((known + more, self._divided(leaf, a, b[1])))
        return found

    def _minimum(self, each: list[list[_Case]]) -> list[_Case] | None:
        found, *others = each
        for other in others:
            if len(found) * len(other) > _MOST_CASES:
                self.limited = True
                return None
            pairs, found = product(found, other), []
            for (known, a), (more, b) in pairs:
                over = _sum(b, _scaled(a, -1))  # at least 0 where `a` is taken
                for row, value in ((over, a), (_plus(over, -1, -1), b)):
                    if row[0] or row[1] >= 0:  # not a side that numbers alone rule out
                        found.append(((*known, *more, row), value))
        return found

    def _divided(self, leaf: Leaf, a: _Sum, by: int) -> _Sum:
        """Its quotient, or remainder; by 0 it is 0."""
        if not by:
            return {}, 0
        quotient = self._quotient(a, by) if by > 0 else self._quotient(_scaled(a, -1), -by)
        return _sum(a, _scaled(quotient, -by)) if leaf.name == "%" else quotient

    def _quotient(self, x: _Sum, by: int) -> _Sum:
        whole = {v: a // by for v, a in x[0].items() if a % by == 0}
        rest, number = {v: a for v, a in x[0].items() if a % by}, x[1] % by
        if not rest:
            return whole, x[1] // by
        key = tuple(sorted(rest.items())), number, by
        name = self._quotients.setdefault(key, f"//{len(self._quotients)}")
        return _sum((whole, x[1] // by), ({name: 1}, 0))

    # ---- conditions ----

    def _alternatives(self, when: Cond) -> _Alternatives:
        """Inequalities of which one list holds wherever the condition does. One list of none tells nothing."""
        if when not in self._meanings:
            self._meanings[when] = (
                self._comparison(when.op, when.term) if when.term is not None else self._combined(when)
            )
        return self._meanings[when]

    def _combined(self, when: Cond) -> _Alternatives:
        found: _Alternatives = [()] if when.op == "and" else []
        for more in map(self._alternatives, when.parts):
            both = [a + b for a in found for b in more] if when.op == "and" else found + more
            found = both if len(both) <= _MOST_CASES else self._few(both, found if when.op == "and" else [()])
        return found

    def _comparison(self, op: str, x: Term) -> _Alternatives:
        if (cases := self._cases(x)) is None:
            return [()]
        found: _Alternatives = []
        for known, value in cases:
            above, below = _plus(value, 1, -1), _plus(value, -1, -1)
            rules: dict[str, Iterable[tuple[_Sum, ...]]] = {
                ">=": [(value,)], "==": [(value, _scaled(value, -1))], "!=": [(above,), (below,)],
            }  # fmt: skip
            for rows in rules[op]:
                if all(factors or number >= 0 for factors, number in rows):  # not one that numbers alone rule out
                    found.append((*known, *rows))
        return found if len(found) <= _MOST_CASES else self._few(found, [()])


def _with_ends(symbols: set[Leaf]) -> set[Leaf]:
    """And the sizes that their ends are made of."""
    found, pending = set[Leaf](), list(symbols)
    while pending:
        if (leaf := pending.pop()) not in found:
            found.add(leaf)
            pending += [x for e in leaf.ends if e is not None for x in e.free]
    return found


def _is_sum(x: Term) -> bool:
    return all(len(m) < 2 and all(leaf.is_symbol for leaf in m) for m in x.parts)


def _row(x: Term) -> _Sum:
    """A sum of multiples of symbols. A size and an index may have one name."""
    return {f"{m[0].name} size" if m[0].op == "size" else m[0].name: f for m, f in x.parts.items() if m}, x.number


def _parts(when: Cond) -> Iterator[Cond]:
    """The conditions that all hold where this one does."""
    if when.op != "and":
        yield when
    for part in when.parts if when.op == "and" else ():
        yield from _parts(part)


def _sum(a: _Sum, b: _Sum) -> _Sum:
    factors = dict(a[0])
    for v, factor in b[0].items():
        factors[v] = factors.get(v, 0) + factor
    return {v: f for v, f in factors.items() if f}, a[1] + b[1]


def _scaled(a: _Sum, by: int) -> _Sum:
    return ({v: f * by for v, f in a[0].items()}, a[1] * by) if by else ({}, 0)


def _plus(a: _Sum, by: int, number: int) -> _Sum:
    return _sum(_scaled(a, by), ({}, number))


def _first(low: int, high: int, reached: Callable[[int], bool]) -> int:
    """The first number at which `reached`, which then stays so, becomes true; `high` where it is never."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle + 1, high)
    return low
