"""What conditions say of indices, where all sizes are numbers: exactly, by systems of integer inequalities.

An expression of indices becomes cases: inequalities, and the sum that it is equal to where they hold. A quotient is a variable
of its own between two inequalities. `min`, `max`, `abs`, `clamp` and `if` have a case for each side. A condition becomes
alternatives, each a list of inequalities. A part that depends on data says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from tilec.core.dtypes import I64
from tilec.dsl import ast
from tilec.dsl.index_values import Values, index_values
from tilec.dsl.integer_systems import MOST_WORK, Row, TooMuch, Work, has_solution
from tilec.dsl.notation import OPPOSITE, arithmetic

_MOST_CASES = 64  # docs/language.md, "Ranges", has this number
_MOST_SYSTEMS = 256
Condition = tuple[ast.Expr, bool]
"""An expression, and whether it holds."""
_Sum = tuple[dict[str, int], int]
_Case = tuple[tuple[Row, ...], _Sum]
_Alternatives = list[tuple[Row, ...]]


@dataclass
class Domain:
    """The values of indices (`ranges`) where all `conditions` hold."""

    ranges: Mapping[str, Values]
    sizes: Mapping[str, int]
    conditions: Sequence[Condition] = ()

    def __post_init__(self) -> None:
        numbers = {name: (size, size) for name, size in self.sizes.items()}
        self._values = numbers | {i: (low, max(low, high)) for i, (low, high) in self.ranges.items()}
        self._quotients: dict[tuple[tuple[tuple[str, int], ...], int, int], str] = {}
        # By the numbers (`id`) of expressions. Each entry holds its expression, so that no other gets its number.
        self._expressions: dict[int, tuple[ast.Expr, list[_Case] | None]] = {}
        self._meanings: dict[tuple[int, bool], tuple[ast.Expr, _Alternatives]] = {}
        self._left = 10 * MOST_WORK  # for all questions together
        self.limited = False
        """Whether a limit was met, so that what was not proved may hold all the same."""

    def is_inside(self, expr: ast.Expr, extent: int) -> bool:
        """Whether the expression is 0 to extent - 1 here. False where that is not known, too."""
        return self.is_at_least(expr, 0) and self.is_below(expr, extent)

    def is_at_least(self, expr: ast.Expr, least: int) -> bool:
        return self._never(expr, lambda s: _plus(s, -1, least - 1))

    def is_below(self, expr: ast.Expr, end: int) -> bool:
        return self._never(expr, lambda s: _plus(s, 1, -end))

    def ends(self, expr: ast.Expr) -> Values:
        """The least and the greatest value here, as far as it is known, of an expression that does not leave 64 bits."""
        low, high = index_values(expr, self._values) or (0, 0)
        least = _first(low, high, lambda n: not self.is_at_least(expr, n + 1))
        return least, -_first(-high, -low, lambda n: not self.is_below(expr, -n))

    def _never(self, expr: ast.Expr, beyond: Callable[[_Sum], Row]) -> bool:
        """Whether no values of the indices make `beyond` of the expression at least 0."""
        if index_values(expr, self._values) is None or (cases := self._cases(expr)) is None:
            return False
        systems = [(*some, *rows, beyond(value)) for some in self._known for rows, value in cases]
        if len(systems) > _MOST_SYSTEMS:
            self.limited = True
            return False
        return not any(map(self._may_hold, systems))

    def _may_hold(self, rows: tuple[Row, ...]) -> bool:
        """Whether values of the indices make each row at least 0. True where that takes too long to say."""
        within = [row for n, (a, b) in self.ranges.items() for row in (({n: 1}, -a), ({n: -1}, b))]
        work = Work(allowed := min(MOST_WORK, self._left))
        try:
            return has_solution((*within, *self._defined(), *rows), work=work)
        except TooMuch:
            self.limited = True
            return True
        finally:
            self._left -= allowed - max(work.left, 0)

    @cached_property
    def _known(self) -> _Alternatives:
        """The alternatives of all conditions together. Those with the fewest come first; one that makes too many is left out."""
        found: _Alternatives = [()]
        parts = [part for condition in self.conditions for part in _parts(*condition)]
        for more in sorted((self._alternatives(*part) for part in parts), key=len):
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

    def _defined(self) -> Iterable[Row]:
        """The inequalities of the quotients: by * q <= x <= by * q + by - 1."""
        for (parts, number, by), q in self._quotients.items():
            factors = dict(parts)
            yield factors | {q: -by}, number
            yield {v: -a for v, a in factors.items()} | {q: by}, by - 1 - number

    # ---- expressions ----

    def _cases(self, expr: ast.Expr) -> list[_Case] | None:
        """None where it depends on data, or is no sum of multiples of indices."""
        if id(expr) not in self._expressions:
            found = self._cases_of(expr)
            if found is not None and len(found) > _MOST_CASES:
                self.limited, found = True, None
            self._expressions[id(expr)] = expr, found
        return self._expressions[id(expr)][1]

    def _cases_of(self, expr: ast.Expr) -> list[_Case] | None:
        found: list[_Case] | None
        match expr:
            case ast.Number(value=int(value)):
                return [((), ({}, value))]
            case ast.Name(name=name) if name in self.ranges:
                return [((), ({name: 1}, 0))]
            case ast.Name(name=name) if name in self.sizes:
                return [((), ({}, self.sizes[name]))]
            case ast.Cast(operand=operand, dtype=dtype) if dtype is I64:
                return self._cases(operand)
            case ast.Unary(op="-", operand=operand):
                inner = self._cases(operand)
                return None if inner is None else [(rows, _scaled(value, -1)) for rows, value in inner]
            case ast.Binary() if (same := arithmetic(expr)) is not None:
                return self._cases(same)
            case ast.Binary(op=op, left=left, right=right):
                return self._of_both(op, left, right)
            case ast.Call(function="min" | "max" as function, arguments=(first, *others)):
                found = self._cases(first)
                for other in others:
                    more = self._cases(other)
                    if found is None or more is None:
                        return None
                    if len(found) * len(more) > _MOST_CASES:
                        self.limited = True
                        return None
                    found = _extremes(function, found, more)
                return found
            case ast.Call(function="abs", arguments=(operand,)):
                return self._cases(ast.Call("max", (), (operand, ast.Unary("-", operand))))
            case ast.Call(function="clamp", arguments=(operand, low, high)):
                return self._cases(ast.Call("min", (), (ast.Call("max", (), (operand, low)), high)))
            case ast.Conditional(condition=condition, then=then, otherwise=otherwise):
                yes, no = self._cases(then), self._cases(otherwise)
                if yes is None or no is None:
                    return None
                found = [(a + rows, v) for a in self._alternatives(condition, True) for rows, v in yes]
                return found + [(a + rows, v) for a in self._alternatives(condition, False) for rows, v in no]
        return None

    def _of_both(self, op: str, left: ast.Expr, right: ast.Expr) -> list[_Case] | None:
        found: list[_Case] = []
        for (known, a), (more, b) in product(self._cases(left) or (), self._cases(right) or ()):
            if (value := self._binary(op, a, b)) is None:
                return None
            found.append((known + more, value))
        return found or None

    def _binary(self, op: str, a: _Sum, b: _Sum) -> _Sum | None:
        match op:
            case "+" | "-":
                return _sum(a, _scaled(b, 1 if op == "+" else -1))
            case "*" if not a[0] or not b[0]:
                return _scaled(b, a[1]) if not a[0] else _scaled(a, b[1])
            case "//" | "%" if not b[0]:
                if not (by := b[1]):  # as language.md says
                    return {}, 0
                quotient = self._quotient(a, by) if by > 0 else self._quotient(_scaled(a, -1), -by)
                return quotient if op == "//" else _sum(a, _scaled(quotient, -by))
        return None

    def _quotient(self, x: _Sum, by: int) -> _Sum:
        whole = {v: a // by for v, a in x[0].items() if a % by == 0}
        rest, number = {v: a for v, a in x[0].items() if a % by}, x[1] % by
        if not rest:
            return whole, x[1] // by
        key = tuple(sorted(rest.items())), number, by
        name = self._quotients.setdefault(key, f"//{len(self._quotients)}")
        return _sum((whole, x[1] // by), ({name: 1}, 0))

    # ---- conditions ----

    def _alternatives(self, condition: ast.Expr, holds: bool) -> _Alternatives:
        """Inequalities of which one list holds wherever the condition does (or fails). One list of none says nothing."""
        key = id(condition), holds
        if key not in self._meanings:
            found = self._alternatives_of(condition, holds)
            self._meanings[key] = condition, found if len(found) <= _MOST_CASES else self._few(found, [()])
        return self._meanings[key][1]

    def _alternatives_of(self, condition: ast.Expr, holds: bool) -> _Alternatives:
        match condition:
            case ast.Boolean(value=value):
                return [()] if value is holds else []
            case ast.Unary(op="not", operand=operand):
                return self._alternatives(operand, not holds)
            case ast.Unary(op="~", operand=operand) if _is_condition(operand):
                return self._alternatives(operand, not holds)
            case ast.Binary(op="and" | "or" | "&" | "|" as op, left=left, right=right) if op in ("and", "or") or (
                _is_condition(left) and _is_condition(right)
            ):
                return _joined(op in ("and", "&"), holds, *(self._alternatives(side, holds) for side in (left, right)))
            case ast.Binary(op="^", left=left, right=right) if _is_condition(left) and _is_condition(right):
                return self._same(left, right, not holds)
            case ast.Compare(op="==" | "!=" as op, left=left, right=right) if _is_condition(left) and _is_condition(
                right
            ):
                return self._same(left, right, holds is (op == "=="))
            case ast.Compare(op=op, left=left, right=right):
                return self._comparison(op if holds else OPPOSITE[op], left, right)
            case ast.Conditional(condition=inner, then=then, otherwise=otherwise):
                yes = _joined(True, True, self._alternatives(inner, True), self._alternatives(then, holds))
                return yes + _joined(True, True, self._alternatives(inner, False), self._alternatives(otherwise, holds))
        return [()]

    def _same(self, left: ast.Expr, right: ast.Expr, same: bool) -> _Alternatives:
        both = (
            _joined(True, True, self._alternatives(left, a), self._alternatives(right, a is same))
            for a in (True, False)
        )
        return [rows for alternatives in both for rows in alternatives]

    def _comparison(self, op: str, left: ast.Expr, right: ast.Expr) -> _Alternatives:
        """Nothing is said by arithmetic that may leave 64 bits."""
        if any(index_values(side, self._values) is None for side in (left, right)):
            return [()]
        a, b = self._cases(left), self._cases(right)
        if a is None or b is None:
            return [()]
        if len(a) * len(b) > _MOST_CASES:
            self.limited = True
            return [()]
        found: _Alternatives = []
        for (known, x), (more, y) in product(a, b):
            up, down = _sum(y, _scaled(x, -1)), _sum(x, _scaled(y, -1))  # right - left, left - right
            rules: dict[str, list[tuple[_Sum, ...]]] = {
                "<": [(_less_one(up),)], "<=": [(up,)], ">": [(_less_one(down),)], ">=": [(down,)], "==": [(up, down)],
                "!=": [(_less_one(up),), (_less_one(down),)],
            }  # fmt: skip
            for rows in rules[op]:
                if all(factors or number >= 0 for factors, number in rows):  # not one that numbers alone rule out
                    found.append((*known, *more, *rows))
        return found


def _parts(condition: ast.Expr, holds: bool) -> Iterator[Condition]:
    """The conditions that all hold where this one does: `a and b` that holds has two, `a or b` that fails, too."""
    match condition:
        case ast.Unary(op="not", operand=operand):
            yield from _parts(operand, not holds)
        case ast.Binary(op="and" | "or" as op, left=left, right=right) if (op == "and") is holds:
            yield from _parts(left, holds)
            yield from _parts(right, holds)
        case ast.Binary(op="&" | "|" as op, left=left, right=right) if (
            (op == "&") is holds and _is_condition(left) and _is_condition(right)
        ):
            yield from _parts(left, holds)
            yield from _parts(right, holds)
        case _:
            yield condition, holds


def _joined(
    conjunction: bool, holds: bool, left: _Alternatives, right: _Alternatives
) -> _Alternatives:
    """`a and b` that holds, or `a or b` that fails, needs both sides; else there is one more alternative."""
    return [a + b for a in left for b in right] if conjunction is holds else left + right


def _is_condition(expr: ast.Expr) -> bool:
    """Whether a bool is what it gives, as far as its form tells."""
    match expr:
        case ast.Boolean() | ast.Compare() | ast.Unary(op="not") | ast.Binary(op="and" | "or"):
            return True
        case ast.Binary(op="&" | "|" | "^", left=left, right=right):
            return _is_condition(left) and _is_condition(right)
        case ast.Unary(op="~", operand=operand):
            return _is_condition(operand)
        case ast.Conditional(then=then, otherwise=otherwise):
            return _is_condition(then) and _is_condition(otherwise)
    return False


def _extremes(function: str, left: list[_Case], right: list[_Case]) -> list[_Case]:
    sign = 1 if function == "max" else -1
    found = []
    for (known, a), (more, b) in product(left, right):
        over = _scaled(_sum(a, _scaled(b, -1)), sign)  # at least 0 where `a` is taken
        for row, value in ((over, a), (_less_one(_scaled(over, -1)), b)):
            if row[0] or row[1] >= 0:  # not a side that numbers alone rule out
                found.append(((*known, *more, row), value))
    return found


def _sum(a: _Sum, b: _Sum) -> _Sum:
    factors = dict(a[0])
    for v, factor in b[0].items():
        factors[v] = factors.get(v, 0) + factor
    return {v: f for v, f in factors.items() if f}, a[1] + b[1]


def _scaled(a: _Sum, by: int) -> _Sum:
    return ({v: f * by for v, f in a[0].items()}, a[1] * by) if by else ({}, 0)


def _plus(a: _Sum, by: int, number: int) -> _Sum:
    return _sum(_scaled(a, by), ({}, number))


def _less_one(a: _Sum) -> _Sum:
    return a[0], a[1] - 1


def _first(low: int, high: int, reached: Callable[[int], bool]) -> int:
    """The first number at which `reached`, which then stays so, becomes true; `high` where it is never."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle + 1, high)
    return low
