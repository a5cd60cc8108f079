"""Resolves names to indices, sizes and tensors, and inlines calls of functions.

One equation becomes a group of equations, the last of which is the original one:

    y[i, j] = softmax[j](x[i, j])        softmax.m[i]    = max[j](x[i, j])
                                    ->   softmax.e[i, j] = exp(x[i, j] - softmax.m[i])
                                         y[i, j]         = softmax.e[i, j] / sum[j](softmax.e[i, j])

A local variable becomes an equation over its free indices. So does an argument that is more than a name and is used more
than once. Nothing is computed twice in this way. Within a group an index name means one range, as within an equation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilec.core.diagnostics import Note, Span
from tilec.core.functions import FUNCTIONS
from tilec.core.quantities import count
from tilec.dsl import ast
from tilec.dsl.ast import replace
from tilec.dsl.check_scope import Module, Report, TensorInfo, suggestion
from tilec.dsl.inline_calls import MAX_CALLS, MAX_NODES, MAX_UNFOLDED, Calls, Scope
from tilec.dsl.notation import CONSTANTS, logsumexp, rename
from tilec.dsl.rewritten import own_hint, word_hint
from tilec.index.terms import Term

_MAX_NESTED = 150


class Inliner(Calls):
    """Resolves the equations of one op, in order."""

    def __init__(self, module: Module, tensors: dict[str, TensorInfo], sizes: Mapping[str, Term], report: Report):
        self.module, self.tensors, self.sizes, self.report = module, tensors, sizes, report
        self.later: dict[str, Span] = {}  # names that the op defines further down
        self.instances: dict[str, int] = {}
        self.nodes = self.calls = self.depth = 0

    def equation(self, equation: ast.Equation) -> list[ast.Equation] | None:
        """The group of an equation, itself last; None where it has a mistake. `unread` are then the arguments that no function
        makes anything of: the indices in them have their ranges all the same."""
        mistakes = self.report.count
        self.nodes = self.calls = self.depth = 0
        self.group, self.unread = [], []
        self.main = equation
        self.bound = {i: None for i in equation.indices}
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
        self.group, self.unread, self.bound, self.where = [], [], {i: None for i in function.indices}, {}
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
        number = self.instances[name] = self.instances.get(name, 0) + 1
        return name if number == 1 else f"{name}_{number}"

    def _reduced_somewhere(self, index: str, value: ast.Expr) -> bool:
        expressions = [value, *(e.value for e in self.group)]
        return any(
            isinstance(node, ast.Reduce) and any(r.index == index for r in node.ranges)
            for expression in expressions
            for node in ast.traverse(expression)
        )

    def _affordable(self, value: ast.Expr, span: Span) -> bool:
        """Functions that call functions multiply; past the limit that is a mistake, not a program."""
        stack, deepest, before = [(value, 1)], 0, self.nodes
        while stack:
            node, depth = stack.pop()
            deepest = max(deepest, depth)
            self.nodes += 1
            stack.extend((child, depth + 1) for child in ast.children(node))
        self.report.unfolded += self.nodes - before
        if self.report.unfolded > MAX_UNFOLDED:
            self.report.error(f"the functions that are called unfold to more than {MAX_UNFOLDED} operations", self.main.span)
            return False
        if deepest <= _MAX_NESTED and self.nodes <= MAX_NODES and self.calls <= MAX_CALLS:
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
                found, value = self._resolve(access, scope), self._resolve(value, scope)
                return replace(expr, access=found, value=value)
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
                message = f"`{name}` has {count(len(info.shape), 'dimension')}, and is given no subscripts"
                self.report.error(message, expr.span, hint=hint)
            return ast.Access(name, (), span=expr.span)
        if name in CONSTANTS and (scope.function is not None or name not in self.later):
            return ast.Number(CONSTANTS[name], span=expr.span)
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
            self._unknown(name, expr.span, scope, tensor=bool(subscripts))
        elif info.shape is not None and len(info.shape) != len(subscripts):
            message = f"`{name}` has {count(len(info.shape), 'dimension')}, and is given {count(len(subscripts), 'subscript')}"
            self.report.error(message, expr.span, [Note(f"`{name}` is defined here", info.span)])
        return replace(expr, subscripts=subscripts)

    def _unknown(self, name: str, span: Span, scope: Scope, tensor: bool = False) -> None:
        if scope.function is None and name == self.main.name and name in self.later:
            self.report.error(f"`{name}` is read in its own definition", span, hint=own_hint(self.main))
            return
        if scope.function is None and name in self.later:
            note = Note(f"`{name}` is defined here", self.later[name])
            self.report.error(f"`{name}` is read before it is defined", span, [note])
            return
        hint: str | None
        if hint := word_hint(name):
            self.report.error(f"unknown name `{name}`", span, hint=hint)
            return
        if scope.function is not None:
            known = [*scope.values, *scope.indices]
            hint = suggestion(name, known) or "a function sees its parameters and its own names only"
            self.report.error(f"unknown name `{name}`", span, hint=hint)
            return
        hint = suggestion(name, [*self.tensors, *self.sizes, *scope.indices])
        if hint is None and span.source.text[max(0, span.start - 80) : span.start].rstrip().endswith("//"):
            hint = "`//` divides: a comment begins with `#`"
        if name in scope.module.defs or name in FUNCTIONS or name in scope.module.ops:
            hint = f"`{name}` is a function: write `{name}(…)`"
        elif hint is not None:
            pass
        elif tensor:
            hint = "a tensor is an input of the op, or defined by an equation above this one"
        elif len(name) <= 2 and name.islower():
            hint = f"an index stands on the left side or in a reduction: `sum[{name}](…)`"
        self.report.error(f"unknown name `{name}`", span, hint=hint)

    def _conditional(self, expr: ast.Conditional, scope: Scope) -> ast.Expr:
        condition = self._resolve(expr.condition, scope)
        then = self._resolve(expr.then, replace(scope, guards=(*scope.guards, (condition, True))))
        otherwise = self._resolve(expr.otherwise, replace(scope, guards=(*scope.guards, (condition, False))))
        return replace(expr, condition=condition, then=then, otherwise=otherwise)

    # ---- binding of indices ----

    def _sizes_only(self, range_: ast.Range, indices: Iterable[str]) -> None:
        """Bounds are made of numbers and sizes: a range that depends on another index is written with `if`."""
        named = [n for bound in (range_.high, range_.low) if bound is not None for n in ast.names_of(bound)]
        for name, span in ((n.name, n.span) for n in named if n.name not in self.sizes):
            what = "an index" if name in indices else "a tensor" if name in self.tensors else "not a size"
            hint: str | None = suggestion(name, self.sizes)
            if what == "an index":
                hint = f"a triangle is written with `if`: `sum[k](x[k] if k < {name} else 0)`"
            self.report.error(f"a bound is made of numbers and sizes, and `{name}` is {what}", span, hint=hint)

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
        fresh, number = name, 1
        while self.bound.get(fresh, bounds) != bounds:
            number += 1
            fresh = f"{name}_{number}"
        self.bound[fresh] = bounds
        return replace(item, index=fresh)

    def _reduce(self, expr: ast.Reduce, scope: Scope) -> ast.Expr:
        if expr.kind == "logsumexp":
            return self._inline(logsumexp(expr), scope.module, expr.ranges, (expr.body,), expr.span, scope)
        ranges = tuple(self._bind(r, scope) for r in expr.ranges)
        names = {written.index: bound.index for written, bound in zip(expr.ranges, ranges)}
        inner = replace(
            self._with_ranges(scope, ranges), indices=scope.indices | names, reduced=scope.reduced | set(names.values()),
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
        return replace(expr, range=range_, body=self._resolve(expr.body, self._with_ranges(scope, [range_])))


def _rename_values(scope: Scope, ranges: tuple[ast.Range, ...], names: dict[str, str]) -> dict[str, ast.Expr]:
    """Parameters and locals speak of an index parameter by the call's name; a reduction may have had to rename it."""
    changed = {
        scope.ranges[w].index: new for w, new in names.items() if w in scope.ranges and scope.ranges[w].index != new
    }
    if not changed:
        return scope.values
    return {name: rename(value, changed) for name, value in scope.values.items()}
