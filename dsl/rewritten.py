"""Programs as they were meant, for hints: scatters, recurrences, names of other languages."""

from __future__ import annotations

from collections.abc import Iterable

from tilec.dsl import ast
from tilec.dsl.check_scope import text_of
from tilec.dsl.notation import CONSTANTS

_SPELLED = {
    "ln": "log", "maximum": "max", "minimum": "min", "fmax": "max", "fmin": "min", "fabs": "abs", "absolute": "abs", "power": "pow",
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2", "arcsinh": "asinh", "arccosh": "acosh",
    "arctanh": "atanh", "sgn": "sign", "logistic": "sigmoid", "clip": "clamp", "log1": "log1p", "rint": "round", "swish": "silu",
    "lgammaf": "lgamma", "mod": "fmod", "remainder": "fmod",
}  # fmt: skip
_REDUCED = {
    "avg": "mean", "average": "mean", "product": "prod", "maximum": "max", "minimum": "min", "amax": "max", "amin": "min",
    "lse": "logsumexp", "logaddexp": "logsumexp", "add": "sum", "total": "sum",
}  # fmt: skip
SIZES = ("len", "size", "shape")
_CHOICES = ("where", "select", "if_else", "ifelse", "cond", "iff")
_WORDS = {
    "True": "true", "TRUE": "true", "False": "false", "FALSE": "false", "Inf": "inf", "INFINITY": "inf", "Infinity": "inf",
    "infinity": "inf", "NaN": "nan", "NAN": "nan", "PI": "pi", "Pi": "pi", "M_PI": "pi", "TAU": "tau",
}  # fmt: skip


def constant_hint(expr: ast.Expr) -> str | None:
    """Where `e` may have been meant as an index."""
    if isinstance(expr, ast.Number) and (name := text_of(expr)) in CONSTANTS:
        return f"nothing defines `{name}` here, so that it is the number {CONSTANTS[name]:.5g}: `sum[{name}](…)` makes it an index"
    return None


def word_hint(name: str) -> str | None:
    """How a name that other languages have is written."""
    return f"write `{_WORDS[name]}`" if name in _WORDS else None


def call_hint(call: ast.Call) -> str | None:
    """How a call of a function that other languages have is written."""
    name, arguments = call.function, [text_of(a) for a in call.arguments]
    if name in _CHOICES and len(arguments) == 3 and not call.indices:
        condition, then, otherwise = arguments
        return f"write `{then} if {condition} else {otherwise}`"
    if call.indices and name in _REDUCED:
        return f"write `{_REDUCED[name]}[{', '.join(r.index for r in call.indices)}]({', '.join(arguments)})`"
    if not call.indices and name in _SPELLED:
        return f"write `{_SPELLED[name]}({', '.join(arguments)})`"
    if name in ("square", "sqr") and len(arguments) == 1:
        return f"write `{_factor(call.arguments[0])} ** 2`"
    if name in ("reciprocal", "recip") and len(arguments) == 1:
        return f"write `1 / {_factor(call.arguments[0])}`"
    if name in SIZES:
        return "a size has a name in the type, as `N` in `x: f32[N]`"
    return None


def _factor(expr: ast.Expr) -> str:
    plain = isinstance(expr, (ast.Name, ast.Number, ast.Access, ast.Call))
    return text_of(expr) if plain else f"({text_of(expr)})"


def left_hint(name: str, item: ast.Expr | ast.Range) -> str:
    """How a left side with a subscript that is no index is written."""
    match item:
        case ast.Range(index=index):
            return f"the range stands at the end: `{name}[{index}] = … where {text_of(item)}`"
        case ast.Access() as access:
            inner = dict.fromkeys(n.name for s in access.subscripts for n in ast.traverse(s) if isinstance(n, ast.Name))
            new = next(n for n in ("k", "n", "m", "a", "b", "_k") if n not in inner)
            reduced = f"sum[{', '.join(inner)}](… if {text_of(access)} == {new} else 0)" if inner else "…"
            return f"write to every element, of what belongs there: `{name}[{new}] = {reduced}`"
        case ast.Number(value=value):
            return f"choose among the elements on the right: `{name}[i] = … if i == {value} else …`"
    return "shift the accesses on the right instead: the left side runs over all its values"


# ---- equations that read their own name ------------------------------------------------------------------------------

_SCANS = {"+": "cumsum", "*": "cumprod", "max": "cummax", "min": "cummin"}


def own_hint(equation: ast.Equation) -> str:
    """For an equation that reads the name that it defines."""
    reads = [a for a in ast.traverse(equation.value) if _reads(a, equation.name)]
    if all(not isinstance(a, ast.Access) or _names(a.subscripts) == equation.indices for a in reads):
        return "a name is defined once: give the new value a name of its own"
    for index in equation.indices:
        for part in _branches(equation.value):
            if (found := _scanned(equation, part, index)) is not None:
                return f"a running value is a scan: `{_left(equation)} = {found}`"
    return "an equation has no order in which elements are computed; running sums, products and extremes are scans: `cumsum[i](…)`"


def _left(equation: ast.Equation) -> str:
    return f"{equation.name}[{', '.join(equation.indices)}]" if equation.indices else equation.name


def _reads(node: ast.Expr, name: str) -> bool:
    return (isinstance(node, ast.Access) and node.tensor == name) or (isinstance(node, ast.Name) and node.name == name)


def _names(subscripts: Iterable[ast.Expr]) -> tuple[str | None, ...]:
    return tuple(s.name if isinstance(s, ast.Name) else None for s in subscripts)


def _branches(expr: ast.Expr) -> tuple[ast.Expr, ...]:
    return (expr.then, expr.otherwise) if isinstance(expr, ast.Conditional) else (expr,)


def _scanned(equation: ast.Equation, part: ast.Expr, index: str) -> str | None:
    """`y[i - 1] + e` as `cumsum[i](e)`."""
    match part:
        case ast.Binary(op="+" | "*" as op, left=left, right=right):
            pair = left, right
        case ast.Call(function="max" | "min" as op, arguments=(left, right)):
            pair = left, right
        case _:
            return None
    for before, other in (pair, pair[::-1]):
        if _is_before(before, equation, index) and not any(_reads(n, equation.name) for n in ast.traverse(other)):
            return f"{_SCANS[op]}[{index}]({text_of(other)})"
    return None


def _is_before(expr: ast.Expr, equation: ast.Equation, index: str) -> bool:
    """Whether it is the equation's own element one before in `index`."""
    if not isinstance(expr, ast.Access) or expr.tensor != equation.name or len(expr.subscripts) != len(equation.indices):
        return False
    for subscript, own in zip(expr.subscripts, equation.indices):
        match subscript:
            case ast.Name(name=name) if name == own and own != index:
                continue
            case ast.Binary(op="-", left=ast.Name(name=name), right=ast.Number(value=1)) if name == own == index:
                continue
        return False
    return True
