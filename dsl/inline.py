"""Names to what they mean: indices, sizes and tensors are told apart, and calls of functions disappear.

One equation becomes a group of equations, the last of which is the one written:

    y[i, j] = softmax[j](x[i, j])        softmax.m[i]    = max[j](x[i, j])
                                    ->   softmax.e[i, j] = exp(x[i, j] - softmax.m[i])
                                         y[i, j]         = softmax.e[i, j] / sum[j](softmax.e[i, j])

A local, and an argument that is more than a name and used more than once, becomes an equation over its free indices, so
that nothing is computed twice. Within a group an index name means one range, as within an equation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tilec.diagnostics import Note, Span
from tilec.dsl import ast
from tilec.dsl.check_scope import Module, Report, TensorInfo, free_indices, suggestion
from tilec.dsl.notation import bodies, logsumexp, plural, rename, trivial, uses
from tilec.dsl.ranges import Poly
from tilec.functions import FUNCTIONS

_MAX_CALLS = 1000
_MAX_NODES = 100_000
_MAX_NESTED = 150
_SMALL = 32  # nodes: below this, an argument inside a reduction is computed in place rather than stored


@dataclass(frozen=True)
class Scope:
    """What names mean at a place; in a function, `values` are its parameters and locals, and all there is."""

    module: Module
    indices: dict[str, str]  # as written -> as in the group
    values: dict[str, ast.Expr] = field(default_factory=dict)
    ranges: dict[str, ast.Range] = field(default_factory=dict)  # of index parameters, as the call gives them
    function: str | None = None
    reduced: frozenset[str] = frozenset()
    guards: tuple[tuple[ast.Expr, bool], ...] = ()
    calls: tuple[ast.Def, ...] = ()


class _Instance:
    """One inlined call; takes its name, `softmax` or `softmax_2`, when it first needs one."""

    def __init__(self, inliner: Inliner, function: str):
        self.inliner, self.function, self.prefix = inliner, function, None

    def name(self, local: str) -> str:
        if self.prefix is None:
            self.prefix = self.inliner.instance(self.function)
        return f"{self.prefix}.{local}"


class Inliner:
    """Resolves the equations of one op, in order."""

    def __init__(self, module: Module, tensors: dict[str, TensorInfo], sizes: dict[str, Poly], report: Report):
        self.module, self.tensors, self.sizes, self.report = module, tensors, sizes, report
        self.later: dict[str, Span] = {}  # names that the op defines further down
        self.instances: dict[str, int] = {}
        self.nodes = self.calls = self.depth = 0

    def equation(self, equation: ast.Equation) -> list[ast.Equation] | None:
        """The group of an equation, itself last; None where it has a mistake."""
        mistakes = self.report.count
        self.nodes = self.calls = self.depth = 0
        self.group: list[ast.Equation] = []
        self.main = equation
        self.bound: dict[str, tuple | None] = {i: None for i in equation.indices}
        self.where = {r.index: r for r in equation.ranges}
        for r in equation.ranges:
            self.bound[r.index] = (r.low, r.high)
        for index in equation.indices:
            if index in self.sizes:
                hint = "an index runs over a range; choose another name"
                self.report.error(f"`{index}` is a size", equation.span, hint=hint)
        for r in equation.ranges:
            self._sizes_only(r, equation.indices)
        scope = Scope(self.module, {i: i for i in equation.indices})
        value = self._resolve(equation.value, scope)
        for r in equation.ranges:
            if r.index not in equation.indices and not self._reduced_somewhere(r.index, value):
                known = self.bound
                self.report.error(f"nothing runs over index `{r.index}`", r.span, hint=suggestion(r.index, known))
        if self.report.count > mistakes:
            return None
        return [*self.group, replace(equation, value=value)]

    def function(self, function: ast.Def) -> None:
        """Only the names in a function, its parameters standing for some number."""
        self.nodes = self.calls = self.depth = 0
        self.group, self.bound, self.where = [], {i: None for i in function.indices}, {}
        self.main = ast.Equation(function.name, function.indices, function.result, span=function.span)
        values: dict[str, ast.Expr] = {p: ast.Number(0, span=function.span) for p in function.parameters}
        indices = {i: i for i in function.indices}
        scope = Scope(self.module, indices, values, {}, function.name, calls=(function,))
        for local in function.locals:
            self._resolve(local.value, scope)
            values[local.name] = ast.Number(0, span=local.span)
        self._resolve(function.result, scope)

    def instance(self, name: str) -> str:
        """A name for one more inlined call: `softmax`, `softmax_2`, …"""
        count = self.instances.get(name, 0) + 1
        self.instances[name] = count
        return name if count == 1 else f"{name}_{count}"

    def _reduced_somewhere(self, index: str, value: ast.Expr) -> bool:
        expressions = [value, *(e.value for e in self.group)]
        return any(
            isinstance(node, ast.Reduce) and any(r.index == index for r in node.ranges)
            for expression in expressions
            for node in ast.walk(expression)
        )

    def _affordable(self, value: ast.Expr, span: Span) -> bool:
        """Functions that call functions multiply; past the limit that is a mistake, not a program."""
        stack, deepest = [(value, 1)], 0
        while stack:
            node, depth = stack.pop()
            deepest = max(deepest, depth)
            self.nodes += 1
            stack.extend((child, depth + 1) for child in ast.children(node))
        if deepest <= _MAX_NESTED and self.nodes <= _MAX_NODES and self.calls <= _MAX_CALLS:
            return True
        self.report.error("the functions called here unfold to too much", self.main.span)
        return False

    # ---- expressions ----

    def _resolve(self, expr: ast.Expr, scope: Scope) -> ast.Expr:
        if self.depth >= _MAX_NESTED:
            self.report.error("functions and expressions are nested too deep", self.main.span)
            return expr
        self.depth += 1
        try:
            return self._resolve_one(expr, scope)
        finally:
            self.depth -= 1

    def _resolve_one(self, expr: ast.Expr, scope: Scope) -> ast.Expr:
        match expr:
            case ast.Number() | ast.Boolean():
                return expr
            case ast.Name():
                return self._name(expr, scope)
            case ast.Access():
                return self._access(expr, scope)
            case ast.Pad(access=access, value=value):
                access, value = self._resolve(access, scope), self._resolve(value, scope)
                return replace(expr, access=access, value=value)
            case ast.Unary(operand=operand) | ast.Cast(operand=operand):
                return replace(expr, operand=self._resolve(operand, scope))
            case ast.Binary(left=left, right=right) | ast.Compare(left=left, right=right):
                return replace(expr, left=self._resolve(left, scope), right=self._resolve(right, scope))
            case ast.Conditional():
                return self._conditional(expr, scope)
            case ast.Call():
                return self._call(expr, scope)
            case ast.Reduce():
                return self._reduce(expr, scope)
            case ast.Scan():
                return self._scan(expr, scope)

    def _name(self, expr: ast.Name, scope: Scope) -> ast.Expr:
        name = expr.name
        if name in scope.indices:
            return replace(expr, name=scope.indices[name])
        if name in scope.values:
            return scope.values[name]
        if scope.function is None and name in self.sizes:
            return expr
        if scope.function is None and (info := self.tensors.get(name)):
            if info.shape:
                dots = ", ".join("…" for _ in info.shape)
                hint = f"write `{name}[{dots}]`"
                self.report.error(f"`{name}` has {plural(len(info.shape), 'dimension')}", expr.span, hint=hint)
            return ast.Access(name, (), span=expr.span)
        self._unknown(name, expr.span, scope)
        return expr

    def _access(self, expr: ast.Access, scope: Scope) -> ast.Expr:
        subscripts = tuple(self._resolve(s, scope) for s in expr.subscripts)
        name, info = expr.tensor, self.tensors.get(expr.tensor) if scope.function is None else None
        if name in scope.values:
            hint = f"names inside a function stand for whole values: write `{name}`"
            self.report.error(f"`{name}` takes no subscripts here", expr.span, hint=hint)
        elif info is None and name in scope.indices:
            self.report.error(f"`{name}` is an index, not a tensor", expr.span)
        elif info is None and scope.function is None and name in self.sizes:
            self.report.error(f"`{name}` is a size, not a tensor", expr.span)
        elif info is None:
            self._unknown(name, expr.span, scope)
        elif info.shape is not None and len(info.shape) != len(subscripts):
            message = (
                f"`{name}` has {plural(len(info.shape), 'dimension')}, but {len(subscripts)} stand in the brackets"
            )
            self.report.error(message, expr.span, [Note(f"`{name}` is defined here", info.span)])
        return replace(expr, subscripts=subscripts)

    def _unknown(self, name: str, span: Span, scope: Scope) -> None:
        if scope.function is None and name in self.later:
            note = Note(f"`{name}` is defined here", self.later[name])
            self.report.error(f"`{name}` is read before it is defined", span, [note])
            return
        if scope.function is not None:
            known = [*scope.values, *scope.indices]
            hint = suggestion(name, known) or "a function sees its parameters and its own names only"
            self.report.error(f"unknown name `{name}`", span, hint=hint)
            return
        hint = suggestion(name, [*self.tensors, *self.sizes, *scope.indices])
        if name in scope.module.defs or name in FUNCTIONS or name in scope.module.ops:
            hint = f"`{name}` is a function: write `{name}(…)`"
        elif hint is None and len(name) <= 2 and name.islower():
            hint = f"an index stands on the left side or in a reduction: `sum[{name}](…)`"
        self.report.error(f"unknown name `{name}`", span, hint=hint)

    def _conditional(self, expr: ast.Conditional, scope: Scope) -> ast.Expr:
        condition = self._resolve(expr.condition, scope)
        then = self._resolve(expr.then, replace(scope, guards=(*scope.guards, (condition, True))))
        otherwise = self._resolve(expr.otherwise, replace(scope, guards=(*scope.guards, (condition, False))))
        return replace(expr, condition=condition, then=then, otherwise=otherwise)

    # ---- what binds indices ----

    def _sizes_only(self, range_: ast.Range, indices: Iterable[str]) -> None:
        """Bounds are made of numbers and sizes: a range that depends on another index is written with `if`."""
        stack = [bound for bound in (range_.low, range_.high) if bound is not None]
        while stack:
            match stack.pop():
                case ast.SizeName(name=name, span=span) if name not in self.sizes:
                    what = "an index" if name in indices else "a tensor" if name in self.tensors else "no size"
                    hint = suggestion(name, self.sizes)
                    if what == "an index":
                        hint = f"a triangle is written with `if`: `sum[k](x[k] if k < {name} else 0)`"
                    message = f"a bound is made of numbers and sizes, and `{name}` is {what}"
                    self.report.error(message, span, hint=hint)
                case ast.SizeBinary(left=left, right=right):
                    stack += [right, left]

    def _bind(self, item: ast.Range, scope: Scope) -> ast.Range:
        """The range under the name that it has in the group: another one, where its name already has another range."""
        name = item.index
        self._sizes_only(item, scope.indices)
        if name in scope.ranges:
            given = scope.ranges[name]
            name = given.index
            item = replace(item, low=item.low or given.low, high=item.high or given.high)
        elif scope.function is not None:
            name = scope.indices.get(name) or f"{scope.function}.{name}"
        elif name in self.sizes:
            self.report.error(f"`{name}` is a size", item.span, hint="an index needs a name of its own")
        if item.low is None and name in self.where:
            item = replace(item, low=self.where[name].low, high=self.where[name].high)
        bounds = None if item.low is None else (item.low, item.high)
        fresh, count = name, 1
        while self.bound.get(fresh, bounds) != bounds:
            count += 1
            fresh = f"{name}_{count}"
        self.bound[fresh] = bounds
        return replace(item, index=fresh)

    def _reduce(self, expr: ast.Reduce, scope: Scope) -> ast.Expr:
        if expr.kind == "logsumexp":
            return self._inline(logsumexp(expr), scope.module, expr.ranges, (expr.body,), expr.span, scope)
        ranges = tuple(self._bind(r, scope) for r in expr.ranges)
        names = {written.index: bound.index for written, bound in zip(expr.ranges, ranges)}
        inner = replace(
            scope, indices=scope.indices | names, reduced=scope.reduced | set(names.values()),
            values=_rename_values(scope, ranges, names),
        )  # fmt: skip
        return replace(expr, ranges=ranges, body=self._resolve(expr.body, inner))

    def _scan(self, expr: ast.Scan, scope: Scope) -> ast.Expr:
        index = scope.indices.get(expr.range.index)
        if index is None:
            hint = f"a scan keeps its index, so it must stand on the left side; `sum[{expr.range.index}](…)` removes it"
            self.report.error(f"index `{expr.range.index}` is not in scope", expr.range.span, hint=hint)
            return expr
        if expr.range.low is not None:
            hint = "give it with `where`"
            self.report.error("a scan runs over the whole range of its index", expr.range.span, hint=hint)
        range_ = ast.Range(index, None, None, expr.range.span)
        return replace(expr, range=range_, body=self._resolve(expr.body, scope))

    # ---- calls ----

    def _call(self, expr: ast.Call, scope: Scope) -> ast.Expr:
        if found := scope.module.defs.get(expr.function):
            return self._inline(*found, expr.indices, expr.arguments, expr.span, scope)
        row = FUNCTIONS.get(expr.function)
        arguments = tuple(self._resolve(a, scope) for a in expr.arguments)
        if row is None:
            self._not_a_function(expr, scope)
        elif expr.indices:
            self.report.error(f"`{expr.function}` takes no indices", expr.indices[0].span)
        elif expr.function in ("max", "min") and len(arguments) == 1:
            name = expr.function
            hint = f"write `{name}[k](…)` to reduce over `k`, `{name}(a, b)` to compare two values"
            self.report.error(f"`{name}` of one value", expr.span, hint=hint)
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
            hint = suggestion(name, [*scope.module.defs, *FUNCTIONS, *scope.module.ops])
            self.report.error(f"unknown function `{name}`", expr.span, hint=hint)

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
        outside = replace(scope, indices=scope.indices | written)
        instance = _Instance(self, function.name)
        reduces = any(isinstance(n, ast.Reduce | ast.Scan | ast.Call) for e in bodies(function) for n in ast.walk(e))
        values: dict[str, ast.Expr] = {}
        for parameter, argument in zip(function.parameters, arguments):
            value = self._resolve(argument, outside)
            once = not reduces and uses(function, parameter) <= 1
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

    def _call_index(self, item: ast.Range, scope: Scope) -> ast.Range:
        if item.low is None and item.index in scope.indices:
            index, given = scope.indices[item.index], scope.ranges.get(item.index, item)
            if given.low is None and (bounds := self.bound.get(index)) is not None:
                given = replace(given, low=bounds[0], high=bounds[1])
            return replace(given, index=index)
        return self._bind(item, scope)

    def _fits(self, function: ast.Def, ranges, arguments, span: Span, scope: Scope) -> bool:
        mistakes = self.report.count
        name, note = function.name, Note(f"`{function.name}` is defined here", function.span)
        if function in scope.calls:
            self.report.error(f"`{name}` calls itself", span, [note])
        if len(ranges) != len(function.indices):
            message = f"`{name}` takes {plural(len(function.indices), 'index', 'indices')}, not {len(ranges)}"
            hint = f"write `{name}[{', '.join(function.indices)}](…)`" if function.indices else f"write `{name}(…)`"
            self.report.error(message, span, [note], hint)
        if len(arguments) != len(function.parameters):
            message = f"`{name}` takes {plural(len(function.parameters), 'argument')}, not {len(arguments)}"
            self.report.error(message, span, [note])
        if self.calls >= _MAX_CALLS or self.nodes >= _MAX_NODES:
            self.report.error("the functions called here unfold to too much", self.main.span)
        return self.report.count == mistakes

    def _share(self, value: ast.Expr, instance: _Instance, local: str, scope: Scope) -> ast.Expr:
        """The value itself where repeating it costs nothing, else an access to an equation that computes it once."""
        if trivial(value):
            return value
        free = free_indices(value, self.bound)
        if any(map(self._starts_later, free)):
            return value
        plain = not any(isinstance(node, ast.Reduce | ast.Scan) for node in ast.walk(value))
        if plain and scope.reduced & set(free) and sum(1 for _ in ast.walk(value)) <= _SMALL:
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

    def _under_guards(self, value: ast.Expr, indices: tuple[str, ...], scope: Scope) -> ast.Expr:
        """The conditions around the call come along: where they fail the value is never read, and may be anything."""
        hoisted = {equation.name for equation in self.group}
        if all(node.tensor in hoisted for node in ast.walk(value) if isinstance(node, ast.Access)):
            return value
        for condition, holds in reversed(scope.guards):
            if set(free_indices(condition, self.bound)) <= set(indices):
                zero = ast.Number(0, span=value.span)
                then, otherwise = (value, zero) if holds else (zero, value)
                value = ast.Conditional(condition, then, otherwise, span=value.span)
        return value


def _rename_values(scope: Scope, ranges: tuple[ast.Range, ...], names: dict[str, str]) -> dict[str, ast.Expr]:
    """Parameters and locals speak of an index parameter by the call's name; a reduction may have had to rename it."""
    changed = {
        scope.ranges[w].index: new for w, new in names.items() if w in scope.ranges and scope.ranges[w].index != new
    }
    if not changed:
        return scope.values
    return {name: rename(value, changed) for name, value in scope.values.items()}
