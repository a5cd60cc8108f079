"""Ranges of indices, and the proof that every access stays inside its tensor (docs/language.md, "Ranges")."""

# mypy: no-strict-optional

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilec.core.diagnostics import Note, Span
from tilec.core.dtypes import I64
from tilec.dsl import ast
from tilec.dsl.check_scope import Report, TensorInfo, free_indices, text_of
from tilec.dsl.index_values import Values, index_values
from tilec.dsl.notation import arithmetic
from tilec.dsl.ranges import Atom, Facts, Poly, divide, indices_of, interval, nonnegative, size_poly, to_size

_MAX_TERMS = 400  # a subscript with larger products is treated like data


@dataclass(frozen=True)
class _Use:
    """A place where an index subscripts a dimension bare."""

    extent: Poly
    tensor: str
    dimension: int
    span: Span
    binding: bool  # False in `pad` and under an `if` about the index: there it need not cover the dimension


class RangeChecker:
    """Ranges of the groups of one op; with names for sizes it refuses only accesses that are always wrong."""

    def __init__(self, tensors: Mapping[str, TensorInfo], sizes: Mapping[str, Poly], report: Report):
        self.tensors, self.sizes, self.report = tensors, sizes, report

    # ---- inference ----

    def infer(
        self, group: list[ast.Equation], declared: TensorInfo | None, unread: Sequence[ast.Expr] = ()
    ) -> dict[str, ast.Range] | None:
        """The range of every index of a group, whose last equation defines `declared`; None if some have none. What indices
        subscript in `unread` counts, too."""
        mistakes = self.report.count
        main = group[-1]
        explicit = {r.index: r for r in main.ranges}
        uses: dict[str, list[_Use]] = {}
        bound: dict[str, Span] = {}
        self.lost: set[str] = set()  # indices of names without a shape, since their equation has a mistake
        for equation in (main, *group[:-1]):
            for index in equation.indices:
                bound.setdefault(index, equation.span)
            for r in _bound_ranges(equation.value):
                bound.setdefault(r.index, r.span)
                if r.low is not None:
                    explicit[r.index] = r
        for value in (*(equation.value for equation in group), *unread):
            self._collect(value, frozenset(), frozenset(bound), uses)
        if declared is not None and declared.shape is not None:
            if len(declared.shape) != len(main.indices):
                message = f"`{main.name}` has {len(declared.shape)} dimensions, but {len(main.indices)} indices"
                self.report.error(message, main.span, [Note("it is declared here", declared.span)])
                return None
            for k, index in enumerate(main.indices):
                use = _Use(declared.shape[k], main.name, k, declared.span, True)
                if index in explicit:
                    self._declared_agrees(explicit[index], use)
                uses.setdefault(index, []).append(use)
        found: dict[str, ast.Range] = {}
        for index, span in bound.items():
            if index in self.lost and index not in explicit and index not in uses:
                continue
            if index in explicit:
                range_ = self._written(explicit[index])
            else:
                range_ = self._from_uses(index, span, uses.get(index, []), group)
            if range_ is not None:
                found[index] = range_
        for index in main.indices:
            self._starts_at_zero(index, found.get(index), explicit.get(index))
        return found if self.report.count == mistakes and self.lost <= found.keys() else None

    def _collect(
        self, expr: ast.Expr, soft: frozenset[str], bound: frozenset[str], uses: dict[str, list[_Use]]
    ) -> None:
        match expr:
            case ast.Access(tensor=tensor, subscripts=subscripts):
                info = self.tensors.get(tensor)
                if info is not None and info.shape is not None and not info.hoisted:
                    for k, (subscript, extent) in enumerate(zip(subscripts, info.shape)):
                        if isinstance(subscript, ast.Name) and subscript.name in bound:
                            name = subscript.name
                            use = _Use(extent, tensor, k, subscript.span, name not in soft)
                            uses.setdefault(name, []).append(use)
                elif info is not None and info.shape is None and self.report.count:
                    self.lost |= {s.name for s in subscripts if isinstance(s, ast.Name) and s.name in bound}
                for subscript in subscripts:
                    self._collect(subscript, soft, bound, uses)
            case ast.Pad(access=access, value=value):
                self._collect(access, bound, bound, uses)
                self._collect(value, soft, bound, uses)
            case ast.Conditional(condition=condition, then=then, otherwise=otherwise):
                self._collect(condition, soft, bound, uses)
                inside = soft | set(free_indices(condition, bound))
                self._collect(then, inside, bound, uses)
                self._collect(otherwise, inside, bound, uses)
            case _:
                for child in ast.children(expr):
                    self._collect(child, soft, bound, uses)

    def _written(self, range_: ast.Range) -> ast.Range | None:
        """A range given in the source, in sizes as far as they are known."""
        try:
            low, high = size_poly(range_.low, self.sizes), size_poly(range_.high, self.sizes)
        except ZeroDivisionError:
            self.report.error("division by zero in a bound", range_.span)
            return None
        if not _leaves(low) | _leaves(high) <= self._known_sizes():
            return None
        if (a := low.constant) is not None and (b := high.constant) is not None:
            high = Poly.of(max(a, b))
        return ast.Range(range_.index, to_size(low), to_size(high), range_.span)

    def _known_sizes(self) -> set:
        return set().union(*map(_leaves, self.sizes.values()))

    def _declared_agrees(self, range_: ast.Range, use: _Use) -> None:
        written = self._written(range_)
        if written is not None and self._differ(size_poly(written.high, {}), use.extent):
            message = f"`{range_.index}` runs to {_size_text(written.high)} here, but `{use.tensor}` has {use.extent}"
            self.report.error(message, range_.span, [Note(f"dimension {use.dimension} is {use.extent}", use.span)])

    def _taken_for_inputs(self, group: list[ast.Equation]) -> list[Note]:
        """The subscripts that the short form takes for inputs, as they are neither on the left side nor reduced over: a
        mistyped index is one."""
        subscripts = [
            s for e in group for a in ast.traverse(e.value) if isinstance(a, ast.Access) for s in a.subscripts
        ]
        scalars = {s.tensor: s.span for s in subscripts if isinstance(s, ast.Access) and not s.subscripts}
        told = "is neither on the left side nor in a reduction, and so is taken for an input"
        return [
            Note(f"`{name}` {told}", at) for name, at in scalars.items()
            if (info := self.tensors.get(name)) is not None and info.dtype is None
        ]  # fmt: skip

    def _from_uses(self, index: str, span: Span, uses: list[_Use], group: list[ast.Equation]) -> ast.Range | None:
        """The extent that all bare uses of an index of the group agree on."""
        binding = [use for use in uses if use.binding] or uses
        if not binding:
            hint = f"give it one: `where {index} in 0:N`, or `sum[{index} in 0:N](…)` in a reduction"
            message = f"the range of `{index}` is unknown: `{index}` alone is not a subscript of any tensor here"
            self.report.error(message, span, self._taken_for_inputs(group), hint=hint)
            return None
        first = binding[0]
        for other in binding[1:]:
            if self._differ(first.extent, other.extent):
                notes = [Note(f"{_dimension(use)} is {use.extent}", use.span) for use in (first, other)]
                message = f"index `{index}` runs over sizes that differ: {first.extent} and {other.extent}"
                named = first.extent.constant is None or other.extent.constant is None
                hint = "are the subscripts in the right order? "
                hint += "Sizes that are equal have one name in the types. " if named else ""
                hint += f"A part of a dimension is `where {index} in 0:…`"
                self.report.error(message, other.span if other.span.source is span.source else span, notes, hint)
                return None
        return ast.Range(index, ast.SizeNumber(0), to_size(first.extent), first.span)

    def _differ(self, a: Poly, b: Poly) -> bool:
        """Whether two sizes are not the same; open sizes of the short form and quotients may yet turn out so."""
        if a == b:
            return False
        open_ = any(isinstance(v, Atom) or "." in v for v in (a.variables | b.variables))
        return not open_ or nonnegative(a - b - 1) or nonnegative(b - a - 1)

    def _starts_at_zero(self, index: str, range_: ast.Range | None, written: ast.Range | None) -> None:
        if range_ is None or written is None or size_poly(range_.low, {}) == Poly():
            return
        hint = f"let `{index}` run from 0 and shift the accesses: `x[{index} + {_size_text(written.low)}]`"
        self.report.error(f"index `{index}` of the left side must run from 0", written.span, hint=hint)

    # ---- accesses ----

    def prove(self, equation: ast.Equation, ranges: Mapping[str, ast.Range]) -> ast.Equation:
        """The equation with `guarded` set on accesses; an access that may fall outside is an error."""
        bounds = {i: (size_poly(r.low, {}), size_poly(r.high, {}) - 1) for i, r in ranges.items()}
        own = {i: b for i, b in bounds.items() if i in equation.indices}
        return ast.replace(equation, value=self._prove(equation.value, Facts(own), bounds))

    def _prove(self, expr: ast.Expr, facts: Facts, bounds: Mapping) -> ast.Expr:
        def go(e: ast.Expr) -> ast.Expr:
            return self._prove(e, facts, bounds)

        match expr:
            case ast.Access(subscripts=subscripts):
                expr = ast.with_children(expr, tuple(map(go, subscripts)))
                guarded = self._guarded(expr, facts)
                return expr if guarded == expr.guarded else ast.replace(expr, guarded=guarded)
            case ast.Pad(access=access, value=value):
                access = ast.replace(access, subscripts=tuple(map(go, access.subscripts)))
                return ast.replace(expr, access=access, value=go(value))
            case ast.Conditional(condition=condition, then=then, otherwise=otherwise):
                yes = facts.assume(self._facts(condition, True, facts))
                no = facts.assume(self._facts(condition, False, facts))
                then, otherwise = self._prove(then, yes, bounds), self._prove(otherwise, no, bounds)
                return ast.replace(expr, condition=go(condition), then=then, otherwise=otherwise)
            case ast.Reduce(ranges=ranges, body=body):
                inner = facts.binding({r.index: bounds[r.index] for r in ranges})
                return ast.replace(expr, body=self._prove(body, inner, bounds))
            case ast.Scan(body=body):  # takes in all that came before, whatever an `if` around it says
                return ast.replace(expr, body=self._prove(body, Facts({i: bounds[i] for i in facts.bounds}), bounds))
            case _:
                return ast.with_children(expr, tuple(map(go, ast.children(expr))))

    def _guarded(self, access: ast.Access, facts: Facts) -> bool:
        """Whether the access needs care; reports one that is affine and not provably inside."""
        info = self.tensors.get(access.tensor)
        if info is None or info.shape is None or info.hoisted:
            return False
        always, guarded = facts.unconditional, False
        for k, (subscript, extent) in enumerate(zip(access.subscripts, info.shape)):
            p = self.affine(subscript, facts)
            if p is None:
                guarded |= not self._within(subscript, extent, always)  # a gather: checked where it is used
            elif not _inside(
                p, extent, always
            ):  # a reduction does not run along the empty range of an index it does not use
                guarded = True
                if not (facts.impossible or _inside(p, extent, facts)):
                    self._outside(access, k, p, extent, facts)
        return guarded

    def _outside(self, access: ast.Access, k: int, p: Poly, extent: Poly, facts: Facts) -> None:
        """Reports an access that is not inside; with sizes open, only if it is outside for all of them."""
        low, high = interval(p, facts.bounds)
        numeric = extent.constant is not None and all(isinstance(v, Atom) or v in facts.bounds for v in p.variables)
        if not numeric and not self._surely_outside(p, low, high, extent, facts):
            return
        subscript = access.subscripts[k]
        values = f"{_or_unknown(low)} to {_or_unknown(high)}" if low != high else f"{_or_unknown(low)}"
        message = f"`{text_of(access)}` reaches outside: `{text_of(subscript)}` takes the values {values}"
        message += f", and dimension {k} of `{access.tensor}` has size {extent}"
        info = self.tensors[access.tensor]
        at = text_of(subscript)
        tests = [f"{at} >= 0"] * (not facts.proves(p)) + [f"{at} < {extent}"] * (not facts.proves(extent - 1 - p))
        if p.constant is not None and p.constant < 0:
            hint = f"subscripts count from the beginning: the last one is `{extent - 1}`"
        else:
            hint = f"write `pad({text_of(access)}, 0)`, or guard it: `… if {' and '.join(tests)} else 0`"
        self.report.error(message, access.span, [Note(f"`{access.tensor}` is defined here", info.span)], hint)

    def _surely_outside(self, p: Poly, low: Poly | None, high: Poly | None, extent: Poly, facts: Facts) -> bool:
        """Corners are reached where nothing is rounded, no condition is in the way and no range can be empty."""
        if facts.known or low is None or high is None or any(isinstance(v, Atom) for v in p.variables):
            return False
        if any("." in v for v in (extent.variables | high.variables) if isinstance(v, str) and v not in facts.bounds):
            return False
        nonempty = all(nonnegative(b - a) for a, b in facts.bounds.values())
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
        return found is not None and extent.constant is not None and 0 <= found[0] <= found[1] < extent.constant

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
                return None if a is None or b is None else self._arithmetic(op, a, b, expr, facts)
        return None

    def _arithmetic(self, op: str, a: Poly, b: Poly, expr: ast.Expr, facts: Facts) -> Poly | None:
        match op:
            case "+":
                return a + b
            case "-":
                return a - b
            case "*":
                return a * b if len(a.terms) * len(b.terms) <= _MAX_TERMS else None
            case "//" | "%":
                if b == Poly():  # as language.md says; a zero that is written out is refused with the types
                    return Poly()
                if indices_of(b, facts.bounds):
                    return None
                return divide(op, a, b)
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


def _leaves(p: Poly) -> set[str]:
    """The names in a polynomial, also inside `//`."""
    return {n for v in p.variables for n in ((v,) if isinstance(v, str) else _leaves(v.left) | _leaves(v.right))}


def _inside(p: Poly, extent: Poly, facts: Facts) -> bool:
    match p.terms:
        case (((Atom(op="//", left=left, right=right),), 1),) if nonnegative(right - 1):  # q < n: left < n right
            return _inside(left, extent * right, facts)
    return facts.proves(p) and facts.proves(extent - 1 - p)


_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


def _comparison(op: str, holds: bool, a: Poly, b: Poly, facts: Facts) -> list[Poly]:
    match op if holds else _OPPOSITE[op]:
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


def _bound_ranges(expr: ast.Expr) -> Iterator[ast.Range]:
    for node in ast.traverse(expr):
        if isinstance(node, ast.Reduce):
            yield from node.ranges


def _size_text(size: ast.Size) -> str:
    return str(size_poly(size, {}))


def _dimension(use: _Use) -> str:
    return f"dimension {use.dimension} of `{use.tensor}`"


def _or_unknown(p: Poly | None) -> str:
    return "?" if p is None else str(p)
