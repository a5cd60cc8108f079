"""`expect` statements: conditions on the plan, of its quantities, sizes, numbers and `fused`. The plan evaluates them."""

from __future__ import annotations

from collections.abc import Collection

from tilec.dsl import ast
from tilec.dsl.check_scope import Report, suggestion, text_of

_QUANTITIES = ("kernels", "traffic", "minimal")
_FUNCTIONS = ("min", "max", "abs")
_BOOL, _NUMBER = "a bool", "a number"


def check_expect(statement: ast.Expect, tensors: Collection[str], sizes: Collection[str], report: Report) -> None:
    """Reports expressions that are no conditions on the plan."""
    checker = _Checker(tensors, sizes, report)
    if checker.kind(statement.condition) == _NUMBER:
        text = text_of(statement.condition)
        hint = f"compare it: `{text} == 1`" if text == "kernels" else f"compare it: `{text} <= …`"
        report.error(f"`expect` takes a condition, and `{text}` is a number", statement.condition.span, hint=hint)


class _Checker:
    """Tells for every part whether it is a number or a bool; None where it is wrong, which has been reported."""

    def __init__(self, tensors: Collection[str], sizes: Collection[str], report: Report):
        self.tensors, self.sizes, self.report = tensors, sizes, report

    def kind(self, expr: ast.Expr) -> str | None:
        match expr:
            case ast.Number():
                return _NUMBER
            case ast.Boolean():
                return _BOOL
            case ast.Name():
                return self._quantity(expr)
            case ast.Call(function="fused"):
                return self._fused(expr)
            case ast.Call(function=name, arguments=arguments) if name in _FUNCTIONS:
                return _NUMBER if self._all(arguments, _NUMBER, f"`{name}`") else None
            case ast.Call(function=name, span=span):
                hint = "its functions are `fused`, `min`, `max` and `abs`"
                self.report.error(f"`expect` does not know the function `{name}`", span, hint=hint)
            case ast.Binary(op="and" | "or" as op, left=left, right=right):
                return _BOOL if self._all((left, right), _BOOL, f"`{op}`") else None
            case ast.Unary(op="~") | ast.Binary(op="&" | "|" | "^" | "<<" | ">>"):
                hint = "it has `and`, `or` and `not`"
                self.report.error(f"`expect` has no operator `{expr.op}`", expr.span, hint=hint)
            case ast.Unary(op="not", operand=operand):
                return _BOOL if self._all((operand,), _BOOL, "`not`") else None
            case ast.Unary(op=op, operand=operand):
                return _NUMBER if self._all((operand,), _NUMBER, f"`{op}`") else None
            case ast.Binary(op=op, left=left, right=right):
                return _NUMBER if self._all((left, right), _NUMBER, f"`{op}`") else None
            case ast.Compare(left=left, right=right):
                return _BOOL if self._same(left, right) else None
            case ast.Conditional(condition=condition, then=then, otherwise=otherwise):
                decided = self._all((condition,), _BOOL, "`if`")
                kind = self._same(then, otherwise)
                return kind if decided else None
            case _:
                self.report.error("`expect` is about the plan, not about values", expr.span)
        return None

    def _quantity(self, expr: ast.Name) -> str | None:
        name = expr.name
        if name in _QUANTITIES or name in self.sizes:
            return _NUMBER
        if name in self.tensors:
            hint = "tensors stand in `fused(a, b)` only"
            self.report.error(f"`expect` is about the plan, and `{name}` is a tensor", expr.span, hint=hint)
            return None
        hint = suggestion(name, _QUANTITIES) or "its quantities are `kernels`, `traffic` and `minimal`"
        self.report.error(f"`expect` does not know `{name}`", expr.span, hint=hint)
        return None

    def _fused(self, call: ast.Call) -> str:
        if len(call.arguments) < 2:
            hint = "`fused(e, y)`: `e` is computed in the kernel of `y`, and not stored"
            self.report.error("`fused` takes the names of two tensors or more", call.span, hint=hint)
        for argument in call.arguments:
            if not isinstance(argument, ast.Name):
                self.report.error("`fused` takes the names of tensors", argument.span)
            elif argument.name not in self.tensors:
                near = suggestion(argument.name, self.tensors)
                self.report.error(f"`{argument.name}` is not a tensor of this op", argument.span, hint=near)
        return _BOOL

    def _all(self, parts: tuple[ast.Expr, ...], wanted: str, taker: str) -> bool:
        """Whether all parts are of the kind that `taker` takes."""
        right = True
        for part in parts:
            kind = self.kind(part)
            if kind not in (None, wanted):
                self.report.error(f"{taker} takes {wanted}, and `{text_of(part)}` is {kind}", part.span)
            right &= kind == wanted
        return right

    def _same(self, left: ast.Expr, right: ast.Expr) -> str | None:
        """The kind of both, where they are of one."""
        a, b = self.kind(left), self.kind(right)
        if a is None or b is None:
            return None
        if a != b:
            self.report.error(f"`{text_of(left)}` is {a}, and `{text_of(right)}` is {b}", right.span)
            return None
        return a
