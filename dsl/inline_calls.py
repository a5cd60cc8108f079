"""Inlines calls of functions: parameters become their arguments, and shared values become equations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from tilec.core.diagnostics import Note, Span
from tilec.core.dtypes import OTHER_NAMES
from tilec.core.functions import FUNCTIONS
from tilec.core.quantities import count
from tilec.dsl import ast
from tilec.dsl.ast import replace
from tilec.dsl.check_scope import Module, Report, TensorInfo, calls_itself, free_indices, suggestion
from tilec.dsl.notation import bodies, matters, trivial, uses
from tilec.dsl.rewritten import SIZES, call_hint

MAX_CALLS = 1000
MAX_NODES = 100_000
MAX_UNFOLDED = 500_000  # of all calls that are checked together
_SMALL = 32  # nodes: below this, an argument inside a reduction is computed in place rather than stored


@dataclass(frozen=True)
class Scope:
    """The meanings of names at a place; in a function, `values` are its parameters and locals, and no other names exist."""

    module: Module
    indices: dict[str, str]  # as written -> as in the group
    values: dict[str, ast.Expr] = field(default_factory=dict)
    ranges: dict[str, ast.Range] = field(default_factory=dict)  # of index parameters, as the call gives them
    function: str | None = None
    reduced: frozenset[str] = frozenset()
    guards: tuple[tuple[ast.Expr, bool], ...] = ()
    calls: tuple[ast.Def, ...] = ()


class Instance:
    """One inlined call; takes its name, `softmax` or `softmax_2`, from `unique` when it first needs one."""

    def __init__(self, unique: Callable[[str], str], function: str):
        self.unique, self.function = unique, function
        self.prefix: str | None = None

    def name(self, local: str) -> str:
        if self.prefix is None:
            self.prefix = self.unique(self.function)
        return f"{self.prefix}.{local}"


class Calls:
    """The part of `inline.Inliner` that unfolds calls, and what it takes of the rest."""

    report: Report
    tensors: dict[str, TensorInfo]
    main: ast.Equation
    group: list[ast.Equation]
    unread: list[ast.Expr]
    bound: dict[str, tuple[ast.Size | None, ast.Size | None] | None]
    calls: int
    nodes: int

    if TYPE_CHECKING:

        def instance(self, name: str) -> str: ...
        def _affordable(self, value: ast.Expr, span: Span) -> bool: ...
        def _resolve(self, expr: ast.Expr, scope: Scope) -> ast.Expr: ...
        def _bind(self, item: ast.Range, scope: Scope) -> ast.Range: ...

    def _call(self, expr: ast.Call, scope: Scope) -> ast.Expr:
        if found := scope.module.defs.get(expr.function):
            return self._inline(*found, expr.indices, expr.arguments, expr.span, scope)
        row = FUNCTIONS.get(expr.function)
        if row is None and (expr.indices or expr.function in SIZES):  # what stands inside has no meaning
            self._not_a_function(expr, scope)
            return expr
        arguments = tuple(self._resolve(a, scope) for a in expr.arguments)
        if row is None:
            self._not_a_function(expr, scope)
        elif expr.indices:
            self.report.error(f"`{expr.function}` takes no indices", expr.indices[0].span)
        elif expr.function in ("max", "min") and len(arguments) == 1:
            name = expr.function
            hint = f"write `{name}[k](…)` to reduce over `k`, `{name}(a, b)` to compare two values"
            self.report.error(f"`{name}(…)` compares two values or more, and has one here", expr.span, hint=hint)
        elif len(arguments) not in row.arity:
            message = (
                f"`{expr.function}` takes {row.arity} argument{'s' * (str(row.arity) != '1')}, not {len(arguments)}"
            )
            self.report.error(message, expr.span)
        return replace(expr, arguments=arguments)

    def _not_a_function(self, expr: ast.Call, scope: Scope) -> None:
        name = expr.function
        if name in scope.module.ops:
            hint = f"give its result a name: `t = {name}(…)`"
            self.report.error(f"`{name}` is an op: it stands alone on the right side", expr.span, hint=hint)
        elif scope.function is None and name in self.tensors:
            self.report.error(f"`{name}` is a tensor, not a function", expr.span, hint=f"write `{name}[…]`")
        else:
            cast, advice = OTHER_NAMES.get(name), call_hint(expr)
            if cast is not None:
                advice = f"a cast is `{cast}(…)`"
            elif advice is None:
                advice = suggestion(name, [*scope.module.defs, *FUNCTIONS, *scope.module.ops])
            self.report.error(f"unknown function `{name}`", expr.span, hint=advice)

    def _inline(
        self, function: ast.Def, home: Module, ranges: tuple[ast.Range, ...], arguments: tuple[ast.Expr, ...],
        span: Span, scope: Scope,
    ) -> ast.Expr:  # fmt: skip
        """The value of a call, after its shared parts have become equations of the group."""
        stand_in = ast.Number(0, span=span)
        if not self._fits(function, ranges, arguments, span, scope):
            return stand_in
        self.calls += 1
        result = self._unfold(function, home, ranges, arguments, span, scope)
        return result if self._affordable(result, span) else stand_in

    def _unfold(
        self, function: ast.Def, home: Module, ranges: tuple[ast.Range, ...], arguments: tuple[ast.Expr, ...],
        span: Span, scope: Scope,
    ) -> ast.Expr:  # fmt: skip
        given = tuple(self._call_index(r, scope) for r in ranges)
        written = {r.index: g.index for r, g in zip(ranges, given)}
        scope = self._with_ranges(scope, given)
        outside = replace(scope, indices=scope.indices | written)
        instance = Instance(self.instance, function.name)
        reduces = any(
            isinstance(n, ast.Reduce | ast.Scan | ast.Call) for e in bodies(function) for n in ast.traverse(e)
        )
        values: dict[str, ast.Expr] = {}
        for parameter, argument in zip(function.parameters, arguments):
            value = self._resolve(argument, outside)
            if not matters(function, parameter) and not scope.guards:
                self.unread.append(value)
            once = (not reduces and uses(function, parameter) <= 1) or self._counts(value)
            values[parameter] = value if once else self._share(value, instance, parameter, scope)
        inner = Scope(
            home, dict(zip(function.indices, (g.index for g in given))), values, dict(zip(function.indices, given)),
            function.name, scope.reduced, scope.guards, (*scope.calls, function),
        )  # fmt: skip
        for local in function.locals:
            value = self._resolve(local.value, inner)
            values[local.name] = self._share(value, instance, local.name, scope)
        result = self._resolve(function.result, inner)
        for index in free_indices(result, written.values()):
            if index not in scope.indices.values():
                message = f"`{function.name}` keeps index `{index}`, which is not on the left side"
                self.report.error(message, span, hint=f"add `{index}` on the left side, or reduce: `sum[{index}](…)`")
        return result

    def _counts(self, value: ast.Expr) -> bool:
        """Whether a value is arithmetic of indices and sizes, which a subscript must show."""
        nodes = list(islice(ast.traverse(value), _SMALL + 1))


        def plain(n: ast.Expr) -> bool:
            match n:
                case ast.Number(value=value):
                    return isinstance(value, int)
                case ast.Name(name=name):
                    return name not in self.tensors
                case ast.Binary(op=op) | ast.Unary(op=op):
                    return op in ("+", "-", "*", "//", "%", "<<", ">>", "&")
            return False

        return len(nodes) <= _SMALL and all(map(plain, nodes))

    def _call_index(self, item: ast.Range, scope: Scope) -> ast.Range:
        if item.low is None and item.index in scope.indices:
            index, given = scope.indices[item.index], scope.ranges.get(item.index, item)
            if given.low is None and (bounds := self.bound.get(index)) is not None:
                given = replace(given, low=bounds[0], high=bounds[1])
            return replace(given, index=index)
        return self._bind(item, scope)

    def _fits(
        self, function: ast.Def, ranges: tuple[ast.Range, ...], arguments: tuple[ast.Expr, ...], span: Span, scope: Scope
    ) -> bool:
        mistakes = self.report.count
        if self.report.unfolded > MAX_UNFOLDED:  # as was reported
            self.report.count += 1
            return False
        name, note = function.name, Note(f"`{function.name}` is defined here", function.span)
        if function in scope.calls:
            circle = list(scope.calls[scope.calls.index(function) :])
            first = circle.index(min(circle, key=lambda f: f.span.start))
            names = [f.name for f in (*circle[first:], *circle[:first])]
            self.report.error(calls_itself(names), circle[first].span)
        if len(ranges) != len(function.indices):
            message = f"`{name}` takes {count(len(function.indices), 'index', 'indices')}, not {len(ranges)}"
            hint = f"write `{name}[{', '.join(function.indices)}](…)`" if function.indices else f"write `{name}(…)`"
            self.report.error(message, span, [note], hint)
        if len(arguments) != len(function.parameters):
            message = f"`{name}` takes {count(len(function.parameters), 'argument')}, not {len(arguments)}"
            self.report.error(message, span, [note])
        if self.calls >= MAX_CALLS or self.nodes >= MAX_NODES:
            self.report.error("the functions called here unfold to too many operations", self.main.span)
        return self.report.count == mistakes

    def _share(self, value: ast.Expr, instance: Instance, local: str, scope: Scope) -> ast.Expr:
        """The value itself where repeating it costs nothing, else an access to an equation that computes it once."""
        if trivial(value):
            return value
        free = free_indices(value, self.bound)
        if any(map(self._starts_later, free)):
            return value
        plain = not any(isinstance(node, ast.Reduce | ast.Scan) for node in ast.traverse(value))
        if plain and scope.reduced & set(free) and sum(1 for _ in ast.traverse(value)) <= _SMALL:
            return value
        order = {index: k for k, index in enumerate(self.main.indices)}
        indices = tuple(sorted(free, key=lambda i: order.get(i, len(order))))
        name = instance.name(local)
        guarded = self._under_guards(value, indices, scope)
        self.group.append(ast.Equation(name, indices, guarded, span=value.span))
        subscripts = tuple(ast.Name(i, span=value.span) for i in indices)
        return ast.Access(name, subscripts, span=value.span)

    def _starts_later(self, index: str) -> bool:
        """Whether an index does not run from 0, as the indices of an equation of the group must."""
        bounds = self.bound.get(index)
        return bounds is not None and bounds[0] != ast.SizeNumber(0)

    def _with_ranges(self, scope: Scope, ranges: Iterable[ast.Range]) -> Scope:
        """The scope within these ranges: there a condition on one of their indices is that it holds for any of its values.

        A read at one place of a reduction, a scan or a function over `j` is needed at the others, for every value of `j`.
        """
        names = {r.index for r in ranges}
        guards = []
        for condition, holds in scope.guards:
            if free := sorted(names & set(free_indices(condition, self.bound))):
                at = condition.span
                condition = condition if holds else ast.Unary("not", condition, span=at)
                bound = tuple(ast.Range(index, None, None, at) for index in free)
                condition, holds = ast.Reduce("any", bound, condition, span=at), True
            guards.append((condition, holds))
        return replace(scope, guards=tuple(guards))

    def _under_guards(self, value: ast.Expr, indices: tuple[str, ...], scope: Scope) -> ast.Expr:
        """The conditions around the call come along for accesses that may need them: where they fail the value is never read,
        and may be anything."""
        shared = {equation.name for equation in self.group}
        read = (node for node in ast.traverse(value) if isinstance(node, ast.Access) and node.tensor not in shared)
        if not scope.guards or all(map(self._is_inside, read)):
            return value
        for condition, holds in reversed(scope.guards):
            if set(free_indices(condition, self.bound)) <= set(indices):
                zero = ast.Number(0, span=value.span)
                then, otherwise = (value, zero) if holds else (zero, value)
                value = ast.Conditional(condition, then, otherwise, span=value.span)
        return value

    def _is_inside(self, access: ast.Access) -> bool:
        """Whether all subscripts are bare indices, which run over the subscripted dimension unless a range is given."""
        return all(isinstance(s, ast.Name) and self.bound.get(s.name) is None for s in access.subscripts)
