"""The proof that every access stays inside its tensor (docs/language.md, "Ranges").

Where sizes have names, polynomials decide for all sizes at once (`ranges`), and only an access that is outside for every size is
refused. Where all sizes are numbers, integer systems decide what polynomials leave open (`index_domain`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilec.core.diagnostics import Note
from tilec.core.dtypes import I64
from tilec.dsl import ast
from tilec.dsl.check_scope import Report, TensorInfo, free_indices, text_of
from tilec.dsl.index_domain import Condition, Domain
from tilec.dsl.index_values import Values, index_values
from tilec.dsl.notation import OPPOSITE, arithmetic
from tilec.dsl.ranges import Atom, Bounds, Facts, Poly, combined, indices_of, interval, nonnegative, size_poly

_MAX_TERMS = 400  # a subscript with larger products is treated like data


@dataclass(frozen=True)
class _Here:
    """A place in an expression: the facts about indices, and the conditions that they come from."""

    facts: Facts
    conditions: tuple[Condition, ...] = ()

    def binding(self, bounds: Bounds) -> _Here:
        """Inside a reduction over these ranges: conditions on an outer index of the same name do not apply."""
        kept = tuple(c for c in self.conditions if not free_indices(c[0], bounds))
        return _Here(self.facts.binding(bounds), kept)


class AccessChecker:
    """Accesses of one op's equations; with names for sizes it refuses only accesses that are always wrong."""

    def __init__(self, tensors: Mapping[str, TensorInfo], sizes: Mapping[str, Poly], report: Report):
        self.tensors, self.sizes, self.report = tensors, sizes, report

    def prove(self, equation: ast.Equation, ranges: Mapping[str, ast.Range]) -> ast.Equation:
        """The equation with `guarded` set on accesses; an access that may fall outside is an error."""
        bounds = {
            i: (size_poly(r.low, {}), size_poly(r.high, {}) - 1)
            for i, r in ranges.items() if r.low is not None and r.high is not None
        }  # fmt: skip
        own = {i: b for i, b in bounds.items() if i in equation.indices}
        return ast.replace(equation, value=self._prove(equation.value, _Here(Facts(own)), bounds))

    def _prove(self, expr: ast.Expr, here: _Here, bounds: Bounds) -> ast.Expr:
        def go(e: ast.Expr) -> ast.Expr:
            return self._prove(e, here, bounds)

        match expr:
            case ast.Access(subscripts=subscripts):
                expr = ast.with_children(expr, tuple(map(go, subscripts)))
                guarded = self._guarded(expr, here)
                return expr if guarded == expr.guarded else ast.replace(expr, guarded=guarded)
            case ast.Pad(access=access, value=value):
                access = ast.replace(access, subscripts=tuple(map(go, access.subscripts)))
                return ast.replace(expr, access=access, value=go(value))
            case ast.Conditional(condition=condition, then=then, otherwise=otherwise):
                then, otherwise = (
                    self._prove(branch, self._where(condition, holds, here), bounds)
                    for branch, holds in ((then, True), (otherwise, False))
                )
                return ast.replace(expr, condition=go(condition), then=then, otherwise=otherwise)
            case ast.Reduce(ranges=ranges, body=body):
                inner = here.binding({r.index: bounds[r.index] for r in ranges})
                return ast.replace(expr, body=self._prove(body, inner, bounds))
            case ast.Scan(body=body):  # takes in all that came before, whatever an `if` around it says
                free = _Here(Facts({i: bounds[i] for i in here.facts.bounds}))
                return ast.replace(expr, body=self._prove(body, free, bounds))
            case _:
                return ast.with_children(expr, tuple(map(go, ast.children(expr))))

    def _where(self, condition: ast.Expr, holds: bool, here: _Here) -> _Here:
        facts = here.facts.assume(self._facts(condition, holds, here.facts))
        return _Here(facts, (*here.conditions, (condition, holds)))

    def _guarded(self, access: ast.Access, here: _Here) -> bool:
        """Whether the access needs care; reports one that is affine and not provably inside."""
        info = self.tensors.get(access.tensor)
        if info is None or info.shape is None or info.hoisted:
            return False
        always, guarded = here.facts.unconditional, False
        for k, (subscript, extent) in enumerate(zip(access.subscripts, info.shape)):
            p = self.affine(subscript, here.facts)
            if p is None:
                guarded |= not self._within(subscript, extent, always)  # a gather: checked where it is used
            elif _inside(p, extent, always):
                continue  # a reduction does not run along the empty range of an index it does not use
            elif here.facts.impossible or _inside(p, extent, here.facts):
                guarded = True
            elif extent.constant is None or (domain := self._domain(subscript, here)) is None:
                guarded = True
                if self._surely_outside(p, extent, here):
                    self._outside(access, k, p, extent, here)
            elif not self._always(subscript, domain).is_inside(subscript, extent.constant):
                guarded = True
                if not domain.is_inside(subscript, extent.constant):
                    self._outside(access, k, p, extent, here, domain)
        return guarded

    def _domain(self, subscript: ast.Expr, here: _Here) -> Domain | None:
        """The values of the indices, if all sizes that matter are numbers."""
        ranges = {i: found for i, ends in here.facts.unconditional.bounds.items() if (found := _numbers(ends)) is not None}
        sizes = {name: n for name, size in self.sizes.items() if (n := size.constant) is not None}
        conditions = [c for c in here.conditions if _is_of_indices(c[0])]
        used = {name for part in (subscript, *(c for c, _ in conditions)) for name in _names(part)}
        if len(ranges) < len(here.facts.bounds) or (used - ranges.keys() - sizes.keys()) & self.sizes.keys():
            return None
        return Domain(ranges, sizes, conditions)

    def _always(self, subscript: ast.Expr, domain: Domain) -> Domain:
        """The domain without its conditions, and without indices that the subscript does not use."""
        used = _names(subscript)
        return Domain({i: ends for i, ends in domain.ranges.items() if i in used}, domain.sizes)

    def _outside(
        self, access: ast.Access, k: int, p: Poly, extent: Poly, here: _Here, domain: Domain | None = None
    ) -> None:  # fmt: skip
        """Reports an access of which a subscript takes values outside of its dimension."""
        subscript, info = access.subscripts[k], self.tensors[access.tensor]
        at = text_of(subscript)
        message = f"`{text_of(access)}` may reach outside: the conditions are too many to be weighed. "
        message += f"Dimension {k} of `{access.tensor}` has size {extent}"
        if domain is None or not domain.limited:
            low, high = interval(p, here.facts.bounds) if domain is None else domain.ends(subscript)
            message = f"`{text_of(access)}` reaches outside: `{at}` takes the values {low}" + f" to {high}" * (low != high)
            message += f", and dimension {k} of `{access.tensor}` has size {extent}"
        above, below = here.facts.proves(p), here.facts.proves(extent - 1 - p)
        if domain is not None and extent.constant is not None:
            above, below = domain.is_at_least(subscript, 0), domain.is_below(subscript, extent.constant)
        if p.constant is not None and p.constant < 0:
            hint = f"subscripts count from the beginning: the last one is `{extent - 1}`"
        else:
            tests = " and ".join([f"{at} >= 0"] * (not above) + [f"{at} < {extent}"] * (not below))
            hint = f"write `pad({text_of(access)}, 0)`, or guard it: `… if {tests} else 0`"
        self.report.error(message, access.span, [Note(f"`{access.tensor}` is defined here", info.span)], hint)

    def _surely_outside(self, p: Poly, extent: Poly, here: _Here) -> bool:
        """Whether it is outside for all sizes. Corners are reached where nothing is rounded, no condition is in the way and no
        range can be empty."""
        bounds = here.facts.bounds
        low, high = interval(p, bounds)
        if low is None or high is None or any(isinstance(v, Atom) for q in (p, low, high) for v in q.variables):
            return False
        if here.facts.known or any(_is_of_indices(c) for c, _ in here.conditions):
            return False
        if any("." in v for v in (extent.variables | high.variables) if isinstance(v, str) and v not in bounds):
            return False
        nonempty = all(nonnegative(b - a) for a, b in bounds.values())
        return nonempty and (nonnegative(high - extent) or nonnegative(-low - 1))

    # ---- facts about indices in expressions ----

    def affine(self, expr: ast.Expr, facts: Facts) -> Poly | None:
        """A subscript as a polynomial that is affine in the indices; None if it depends on data or is not affine."""
        p = self._integer(expr, facts)
        if p is None:
            return None
        for monomial, _ in p.terms:
            moving = [
                v for v in monomial if v in facts.bounds or (isinstance(v, Atom) and indices_of(v.left, facts.bounds))
            ]
            if len(moving) > 1:
                return None
        return p

    def _integer(self, expr: ast.Expr, facts: Facts) -> Poly | None:
        """An expression's value in terms of indices; None where it depends on data, or may leave 64 bits and wrap around."""
        p = self._polynomial(expr, facts)
        return None if p is None or self._may_wrap(expr, facts) else p

    def _may_wrap(self, expr: ast.Expr, facts: Facts) -> bool:
        """As far as sizes are known."""
        if isinstance(expr, (ast.Name, ast.Number)):
            return False
        return (names := self._values(expr, facts)) is not None and index_values(expr, names) is None

    def _within(self, subscript: ast.Expr, extent: Poly, facts: Facts) -> bool:
        """Whether a subscript of indices that is not affine, such as `abs(i - 3)` or `min(i + 1, N - 1)`, is surely inside."""
        names = self._values(subscript, facts)
        found = None if names is None else index_values(subscript, names)
        if found is None or extent.constant is None:
            return False
        if 0 <= found[0] <= found[1] < extent.constant:
            return True
        domain = self._domain(subscript, _Here(facts))
        return domain is not None and self._always(subscript, domain).is_inside(subscript, extent.constant)

    def _values(self, expr: ast.Expr, facts: Facts) -> dict[str, Values] | None:
        """The values of the names in an expression; None where sizes are open."""
        names = {}
        for name in {e.name for e in ast.traverse(expr) if isinstance(e, ast.Name)}:
            low, high = facts.unconditional.bounds.get(name) or (self.sizes.get(name),) * 2
            if low is None or high is None or low.constant is None or high.constant is None:
                return None
            names[name] = low.constant, max(low.constant, high.constant)
        return names

    def _polynomial(self, expr: ast.Expr, facts: Facts) -> Poly | None:
        match expr:
            case ast.Number(value=int(value)):
                return Poly.of(value)
            case ast.Cast(operand=operand, dtype=dtype) if dtype is I64:
                return self._polynomial(operand, facts)
            case ast.Name(name=name) if name in facts.bounds:
                return Poly.of(name)
            case ast.Name(name=name):
                return self.sizes.get(name)
            case ast.Unary(op="-", operand=operand):
                p = self._polynomial(operand, facts)
                return None if p is None else -p
            case ast.Binary() if (same := arithmetic(expr)) is not None:
                return self._polynomial(same, facts)
            case ast.Binary(op=op, left=left, right=right):
                a, b = self._polynomial(left, facts), self._polynomial(right, facts)
                return None if a is None or b is None else self._arithmetic(op, a, b, facts)
        return None

    def _arithmetic(self, op: str, a: Poly, b: Poly, facts: Facts) -> Poly | None:
        match op:
            case "+" | "-":
                return combined(op, a, b)
            case "*" if len(a.terms) * len(b.terms) <= _MAX_TERMS:
                return combined(op, a, b)
            case "//" | "%" if b == Poly():  # as language.md says; a zero that is written out is refused with the types
                return Poly()
            case "//" | "%" if not indices_of(b, facts.bounds):
                return combined(op, a, b)
        return None

    def _facts(self, condition: ast.Expr, holds: bool, facts: Facts) -> list[Poly]:
        """Polynomials that are >= 0 where the condition holds (or fails)."""
        match condition:
            case ast.Unary(op="not", operand=operand):
                return self._facts(operand, not holds, facts)
            case ast.Binary(op="and" | "or" as op, left=left, right=right):
                if (op == "and") != holds:
                    return []
                first = self._facts(left, holds, facts)
                return first + self._facts(right, holds, facts.assume(first))
            case ast.Compare(op=op, left=left, right=right):
                a, b = self._integer(left, facts), self._integer(right, facts)
                return [] if a is None or b is None else _comparison(op, holds, a, b, facts)
        return []


def _inside(p: Poly, extent: Poly, facts: Facts) -> bool:
    match p.terms:
        case (((Atom(op="//", left=left, right=right),), 1),) if nonnegative(right - 1):  # q < n: left < n right
            return _inside(left, extent * right, facts)
    return facts.proves(p) and facts.proves(extent - 1 - p)


def _comparison(op: str, holds: bool, a: Poly, b: Poly, facts: Facts) -> list[Poly]:
    match op if holds else OPPOSITE[op]:
        case "<":
            return [b - a - 1]
        case "<=":
            return [b - a]
        case ">":
            return [a - b - 1]
        case ">=":
            return [a - b]
        case "==":
            return [a - b, b - a]
        case _:  # `!=` at an end of the range cuts that end off
            return [p - 1 for p in (a - b, b - a) if facts.proves(p)]


def _names(expr: ast.Expr) -> set[str]:
    return {e.name for e in ast.traverse(expr) if isinstance(e, ast.Name)}


def _numbers(ends: tuple[Poly, Poly]) -> Values | None:
    low, high = (end.constant for end in ends)
    return None if low is None or high is None else (low, high)


def _is_of_indices(condition: ast.Expr) -> bool:
    """Whether some comparison in a condition is one of indices and sizes alone, and not of a reduction's own index."""
    match condition:
        case ast.Access() | ast.Reduce() | ast.Scan():
            return False
        case ast.Compare():
            return not any(isinstance(e, (ast.Access, ast.Reduce, ast.Scan)) for e in ast.traverse(condition))
    return any(map(_is_of_indices, ast.children(condition)))
