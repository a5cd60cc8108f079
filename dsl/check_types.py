"""Types: every expression gets its dtype, every conversion becomes a `Cast`, `mean` becomes a division.

A literal has no type until it meets one (`weak_types`); `_coerce` then gives the type down to the leaves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tilec.core.diagnostics import Note
from tilec.core.dtypes import BOOL, DTYPES, F32, F64, I32, I64, DType, compute_type
from tilec.core.functions import FUNCTIONS
from tilec.core.reductions import REDUCTIONS, highest, lowest
from tilec.dsl import ast
from tilec.dsl.ast import replace
from tilec.dsl.check_scope import Report, TensorInfo, text_of
from tilec.dsl.index_terms import expression_of, range_of
from tilec.dsl.rewritten import constant_hint
from tilec.dsl.weak_types import UNKNOWN, WEAK, WEAK_FLOAT, WEAK_INT, default, holds, meet, rounds, wide
from tilec.index.facts import NONE
from tilec.index.terms import Term, term

_BOOLEAN_REDUCTIONS = ("any", "all")


def accumulator_of(dtype: DType) -> DType:
    """The accumulator's type of a reduction of such values (section 6): f32 for narrow floats, i32 for narrow integers."""
    if dtype.is_float:
        return wide(dtype)
    return dtype if dtype.bits >= 32 else I32


class Typer:
    """Types of the equations of one op; indices and sizes are i64."""

    def __init__(self, tensors: Mapping[str, TensorInfo], sizes: Mapping[str, Term], report: Report, decided: bool):
        self.tensors, self.sizes, self.report, self.decided = tensors, sizes, report, decided
        self.ranges: Mapping[str, ast.Range] = {}

    def equation(self, equation: ast.Equation, ranges: Mapping[str, ast.Range], declared: DType | None) -> ast.Equation:
        """The equation with types; its own is the declared one, or else its value's."""
        self.ranges = ranges
        value = self._expr(equation.value)
        dtype = declared or equation.dtype or default(value.dtype)
        if value.dtype in WEAK and not isinstance(value, ast.Number):
            literal = default(value.dtype) if dtype.kind == "bool" else meet(value.dtype, dtype)
            value = self._coerce(value, literal)
        return replace(equation, value=self._coerce(value, dtype), dtype=dtype)

    # ---- conversions ----

    def _coerce(self, expr: ast.Expr, to: DType) -> ast.Expr:
        """The expression as a value of type `to`."""
        if expr.dtype is to or UNKNOWN in (to, expr.dtype) or (expr.dtype in WEAK and to in WEAK):
            return expr
        if expr.dtype in WEAK:
            return self._settle(expr, to)
        if isinstance(expr, ast.Cast) and expr.operand.dtype is to and compute_type(to) is expr.dtype:
            return expr.operand  # widened only to be computed with: narrowing it again is exact
        if isinstance(expr, ast.Number) and holds(to, expr.value) and holds(expr.dtype, expr.value):
            return self._settle(expr, to)
        return ast.Cast(expr, to, expr.span)

    def _settle(self, expr: ast.Expr, to: DType) -> ast.Expr:
        """A literal, or an expression of literals, in the type that it has met."""
        match expr:
            case ast.Number(value=value) if to.is_float and to.bits < 32 and not holds(to, value):
                return ast.Cast(self._number(expr, value, F32), to, expr.span)  # rounded, as a declared type says
            case ast.Number(value=value):
                return self._number(expr, value, to)
            case ast.Unary(op="-", operand=ast.Number(value=value)) if to.is_integer:
                return self._number(expr, -value, to)
            case ast.Unary(operand=operand):
                return replace(expr, operand=self._settle(operand, to), dtype=to)
            case ast.Binary(left=left, right=right):
                return replace(expr, left=self._settle(left, to), right=self._settle(right, to), dtype=to)
            case ast.Conditional(then=then, otherwise=otherwise):
                return replace(expr, then=self._settle(then, to), otherwise=self._settle(otherwise, to), dtype=to)
            case ast.Call(arguments=arguments):
                return replace(expr, arguments=tuple(self._settle(a, to) for a in arguments), dtype=to)
        return ast.Cast(expr, to, expr.span)

    def _number(self, expr: ast.Expr, value: int | float, to: DType) -> ast.Expr:
        if to.kind == "bool":
            return ast.Boolean(bool(value), BOOL, expr.span)
        if to.is_float:
            return ast.Number(float(value) if abs(value) < math.inf else value, to, expr.span)
        if not holds(to, value):
            low, high = lowest(to), highest(to)
            self.report.error(f"{value} is outside of {to}", expr.span, hint=f"{to} holds {low} to {high}")
            value = 0
        return ast.Number(int(value), to, expr.span)

    def _strong(self, expr: ast.Expr) -> ast.Expr:
        return self._coerce(expr, default(expr.dtype))

    def _condition(self, expr: ast.Expr, what: str) -> ast.Expr:
        if expr.dtype not in (BOOL, UNKNOWN):
            text = text_of(expr)
            shown = (
                text if isinstance(expr, ast.Number | ast.Name | ast.Access | ast.Call | ast.Reduce) else f"({text})"
            )
            kind = f"a {expr.dtype.name}" if expr.dtype in WEAK else str(expr.dtype)
            message = f"{what} must be a bool, and `{text}` is {kind}"
            self.report.error(message, expr.span, hint=f"compare it: `{shown} != 0`")
        return expr

    # ---- one case per node ----

    def _expr(self, expr: ast.Expr) -> ast.Expr:
        match expr:
            case ast.Number(value=value):
                return replace(expr, dtype=WEAK_INT if isinstance(value, int) else WEAK_FLOAT)
            case ast.Boolean():
                return replace(expr, dtype=BOOL)
            case ast.Name():
                return self._name(expr)
            case ast.Access():
                return self._computed(self._load(expr))
            case ast.Pad():
                return self._pad(expr)
            case ast.Unary():
                return self._unary(expr)
            case ast.Binary():
                return self._binary(expr)
            case ast.Compare(left=left, right=right):
                left, right = self._same(self._expr(left), self._expr(right))
                return replace(expr, left=left, right=right, dtype=BOOL)
            case ast.Conditional():
                return self._conditional(expr)
            case ast.Cast(operand=operand, dtype=dtype):
                return self._cast(self._expr(operand), dtype, expr)
            case ast.Call():
                return self._call(expr)
            case ast.Reduce():
                return self._reduce(expr)
            case ast.Scan():
                return self._scan(expr)

    def _name(self, expr: ast.Name) -> ast.Expr:
        size = self.sizes.get(expr.name)
        if size is not None and size.constant is not None:
            return ast.Number(size.constant, I64, expr.span)
        return replace(expr, dtype=I64)

    def _load(self, expr: ast.Access) -> ast.Access:
        """The access in the type that is stored."""
        info = self.tensors.get(expr.tensor)
        subscripts = tuple(self._subscript(s) for s in expr.subscripts)
        return replace(expr, subscripts=subscripts, dtype=(info and info.dtype) or UNKNOWN)

    def _subscript(self, expr: ast.Expr) -> ast.Expr:
        typed = self._expr(expr)
        if typed.dtype.is_integer or typed.dtype is UNKNOWN:
            return self._coerce(typed, I64)
        kind = "a number with a fraction" if typed.dtype is WEAK_FLOAT else str(typed.dtype)
        message = f"a subscript is a whole number, and `{text_of(expr)}` is {kind}"
        self.report.error(message, expr.span, hint=constant_hint(expr))
        return typed

    def _computed(self, expr: ast.Expr) -> ast.Expr:
        """A stored value as one that is computed with: narrow floats widen to f32."""
        return self._coerce(expr, wide(expr.dtype))

    def _pad(self, expr: ast.Pad) -> ast.Expr:
        """`pad` has the stored type, unless its value would be rounded by that: then it is written out with `if`."""
        access, value = self._load(expr.access), self._expr(expr.value)
        if value.dtype is access.dtype or (value.dtype in WEAK and not rounds(value, access.dtype)):
            if value.dtype is WEAK_FLOAT and access.dtype.is_integer:
                self.report.error(f"the value must be of type {access.dtype}, as the tensor is", expr.value.span)
                value = replace(value, dtype=UNKNOWN)
            return self._computed(
                replace(expr, access=access, value=self._coerce(value, access.dtype), dtype=access.dtype)
            )
        if meet(access.dtype, value.dtype) is access.dtype or access.dtype is UNKNOWN:
            return replace(expr, access=access, value=self._coerce(value, access.dtype), dtype=access.dtype)
        then, otherwise = self._same(self._computed(replace(access, guarded=True)), value)
        return ast.Conditional(self._inside(access), then, otherwise, meet(then.dtype, otherwise.dtype), expr.span)

    def _inside(self, access: ast.Access) -> ast.Expr:
        """The condition that every subscript is inside."""
        info, at = self.tensors[access.tensor], access.span
        tests: list[ast.Expr] = []
        for subscript, extent in zip(access.subscripts, info.shape or ()):
            tests.append(ast.Compare(">=", subscript, ast.Number(0, I64, at), BOOL, at))
            tests.append(ast.Compare("<", subscript, expression_of(extent, at), BOOL, at))
        condition = tests[0] if tests else ast.Boolean(True, BOOL, at)
        for test in tests[1:]:
            condition = ast.Binary("and", condition, test, BOOL, at)
        return condition

    def _same(self, left: ast.Expr, right: ast.Expr) -> tuple[ast.Expr, ast.Expr]:
        """Both in the type that they meet in, and never weak; 0 and 1 beside a bool are bools."""
        for a, b in ((left, right), (right, left)):
            if a.dtype is BOOL and isinstance(b, ast.Number) and b.dtype is WEAK_INT and b.value in (0, 1):
                return self._coerce(left, BOOL), self._coerce(right, BOOL)
        dtype = default(meet(left.dtype, right.dtype))
        return self._coerce(left, dtype), self._coerce(right, dtype)

    def _unary(self, expr: ast.Unary) -> ast.Expr:
        operand = self._expr(expr.operand)
        if expr.op == "not":
            return replace(expr, operand=self._condition(operand, "the operand of `not`"), dtype=BOOL)
        if expr.op == "~":
            return self._inverted(expr, operand)
        if operand.dtype is BOOL:
            self.report.error("a bool cannot be negated with `-`", expr.span, hint="write `not`, or cast it: `i32(…)`")
        operand = self._computed(operand)
        if isinstance(operand, ast.Number) and operand.dtype in WEAK:
            return replace(operand, value=-operand.value, span=expr.span)
        return replace(expr, operand=operand, dtype=operand.dtype)

    def _inverted(self, expr: ast.Unary, operand: ast.Expr) -> ast.Expr:
        self._of_bits(operand, "~")
        if operand.dtype is BOOL:
            return replace(expr, op="not", operand=operand, dtype=BOOL)
        if isinstance(operand, ast.Number) and operand.dtype is WEAK_INT:
            return replace(operand, value=~int(operand.value), span=expr.span)
        return replace(expr, operand=operand, dtype=operand.dtype)

    def _of_bits(self, operand: ast.Expr, op: str) -> None:
        if operand.dtype.is_float and operand.dtype is not UNKNOWN:
            kind = f"a {operand.dtype.name}" if operand.dtype in WEAK else str(operand.dtype)
            message = f"`{op}` takes whole numbers or bools, and `{text_of(operand)}` is {kind}"
            self.report.error(message, operand.span, hint="a power is written `**`" if op == "^" else None)

    def _binary(self, expr: ast.Binary) -> ast.Expr:
        left, right = self._expr(expr.left), self._expr(expr.right)
        if expr.op in ("and", "or"):
            left, right = (self._condition(e, f"an operand of `{expr.op}`") for e in (left, right))
            return replace(expr, left=left, right=right, dtype=BOOL)
        dtype = meet(left.dtype, right.dtype)
        if expr.op in ("&", "|", "^", "<<", ">>"):
            for operand in (left, right):
                self._of_bits(operand, expr.op)
            dtype = UNKNOWN if dtype.is_float else dtype
        if dtype is BOOL and expr.op not in ("&", "|", "^"):
            dtype = I32
        if expr.op == "/" and not dtype.is_float:
            dtype = WEAK_FLOAT if dtype is WEAK_INT else F32
        if expr.op == "**" and dtype.is_integer and _negative(right):
            dtype = WEAK_FLOAT if dtype is WEAK_INT else F32
        if expr.op in ("//", "%") and isinstance(expr.right, ast.Number) and expr.right.value == 0 and dtype.is_integer:
            self.report.error("division by zero", expr.span)
        return replace(expr, left=self._coerce(left, dtype), right=self._coerce(right, dtype), dtype=dtype)

    def _conditional(self, expr: ast.Conditional) -> ast.Expr:
        condition = self._condition(self._expr(expr.condition), "the condition of `if`")
        then, otherwise = self._expr(expr.then), self._expr(expr.otherwise)
        if then.dtype in WEAK and otherwise.dtype in WEAK:
            return replace(
                expr,
                condition=condition,
                then=then,
                otherwise=otherwise,
                dtype=meet(then.dtype, otherwise.dtype),
            )
        then, otherwise = self._same(then, otherwise)
        return replace(
            expr, condition=condition, then=then, otherwise=otherwise, dtype=meet(then.dtype, otherwise.dtype)
        )

    def _cast(self, operand: ast.Expr, dtype: DType, written: ast.Cast) -> ast.Expr:
        if operand.dtype in WEAK and (dtype.is_float or operand.dtype is WEAK_INT):
            operand = self._settle(operand, compute_type(dtype))
        operand = self._strong(operand)
        if isinstance(operand, ast.Cast) and operand.operand.dtype is dtype:
            return self._coerce(operand, dtype)
        return operand if operand.dtype is dtype else ast.Cast(operand, dtype, written.span)

    def _call(self, expr: ast.Call) -> ast.Expr:
        arguments = [self._expr(a) for a in expr.arguments]
        if signature := FUNCTIONS[expr.function].signature:
            return self._call_of(expr, arguments, *(DTYPES[t] for t in signature))
        dtype = arguments[0].dtype
        for argument in arguments[1:]:
            dtype = meet(dtype, argument.dtype)
        dtype = I32 if dtype is BOOL else wide(dtype)
        if dtype.is_integer and FUNCTIONS[expr.function].integer is None:
            dtype = WEAK_FLOAT if dtype is WEAK_INT else F32
        return replace(expr, arguments=tuple(self._coerce(a, dtype) for a in arguments), dtype=dtype)

    def _call_of(self, expr: ast.Call, arguments: list[ast.Expr], takes: DType, gives: DType) -> ast.Expr:
        """A call of a function that has types of its own."""
        for argument in arguments:
            if takes.is_integer and argument.dtype is not UNKNOWN and not argument.dtype.is_integer:
                hint = f"write `{takes}({text_of(argument)})` if dropping its fraction is meant"
                message = f"`{expr.function}` takes whole numbers, this is {argument.dtype}"
                self.report.error(message, argument.span, hint=hint)
        return replace(expr, arguments=tuple(self._coerce(a, takes) for a in arguments), dtype=gives)

    # ---- reductions ----

    def _ranges(self, ranges: tuple[ast.Range, ...]) -> tuple[ast.Range, ...]:
        return tuple(replace(self.ranges.get(r.index, r), span=r.span) for r in ranges)

    def _accumulator(self, expr: ast.Reduce | ast.Scan, body: ast.Expr) -> DType:
        """The type that the reduction computes in: the one written, or the rule's."""
        kind, written = expr.kind, expr.accumulator
        if kind in _BOOLEAN_REDUCTIONS:
            self._condition(body, f"what `{kind}` runs over")
            if written not in (None, BOOL):
                self.report.error(f"`{kind}` does not take `in`: it has no accumulator", expr.span)
            return BOOL
        if written is None or body.dtype is UNKNOWN:
            return written or accumulator_of(body.dtype)
        if (body.dtype.is_float and not written.is_float) or written.kind == "bool":
            self.report.error(f"{written} cannot accumulate {body.dtype}", expr.span)
        elif written.is_float and written.bits < 32:
            hint = "types narrower than f32 are for storage: write `name[…]: " + f"{written} = …` to round the result"
            self.report.error(f"{written} cannot be an accumulator", expr.span, hint=hint)
        return written

    def _reduce(self, expr: ast.Reduce) -> ast.Expr:
        body = self._strong(self._expr(expr.body))
        accumulator = self._accumulator(expr, body)
        ranges = self._ranges(expr.ranges)
        product = isinstance(body, ast.Binary) and body.op == "*"
        if expr.multiplicand and not (expr.kind == "sum" and product and body.dtype in (F32, UNKNOWN)):
            self.report.error(
                "`using` can only follow a sum of products of f32", expr.span, hint="`sum[k](a[k] * b[k]) using tf32`"
            )
        if expr.kind == "mean":
            return self._mean(expr, ranges, body, accumulator)
        counts = [_count(r) for r in ranges]
        is_arg, stored = expr.kind.startswith("arg"), body.dtype
        body = self._coerce(body, accumulator)
        empty = [r for r, n in zip(ranges, counts) if n is term(0) or (self.decided and n is not None and not NONE.proves(n - 1))]
        if is_arg and empty:
            sometimes = " for some sizes" * (term(0) not in counts)
            self.report.error(f"`{expr.kind}` over an empty range{sometimes}", expr.span, [_range_note(empty[0], sometimes)])
        found = replace(expr, ranges=ranges, body=body, accumulator=accumulator, dtype=I64 if is_arg else accumulator)
        if expr.kind in ("max", "min") and stored.is_integer and empty:
            # of nothing: the end of the type that would have been compared
            end = ast.Number(REDUCTIONS[expr.kind].identity(stored), accumulator, expr.span)
            return end if term(0) in counts else ast.Call(expr.kind, (), (found, end), accumulator, expr.span)
        return found

    def _mean(self, expr: ast.Reduce, ranges: tuple[ast.Range, ...], body: ast.Expr, accumulator: DType) -> ast.Expr:
        """The sum, divided by how many there are. That of integers does not overflow, and is divided as f64 where an f32 does not
        hold it."""
        dtype = divided = accumulator if accumulator.is_float else F32
        counts = [n for n in map(_count, ranges) if n is not None and (self.decided or n.constant is not None)]
        whole = math.prod(counts, start=term(1))
        count = math.nan if len(counts) < len(ranges) else float(NONE.bounds(whole)[1])
        if expr.accumulator is None and not accumulator.is_float:
            accumulator = _sum_of_integers(body.dtype, count)
            divided = F32 if _largest(body.dtype) * count <= 1 << 24 else F64
        body = self._coerce(body, accumulator)
        total = replace(expr, kind="sum", ranges=ranges, body=body, accumulator=accumulator, dtype=accumulator)
        number: ast.Expr = ast.Number(count, divided, expr.span)
        if len(counts) == len(ranges) and whole.constant is None:
            number = ast.Cast(expression_of(whole, expr.span), divided, expr.span)
        return self._coerce(ast.Binary("/", self._coerce(total, divided), number, divided, expr.span), dtype)

    def _scan(self, expr: ast.Scan) -> ast.Expr:
        body = self._strong(self._expr(expr.body))
        accumulator = self._accumulator(expr, body)
        (range_,) = self._ranges((expr.range,))
        body = self._coerce(body, accumulator)
        return replace(expr, range=range_, body=body, accumulator=accumulator, dtype=accumulator)


def _sum_of_integers(dtype: DType, count: float) -> DType:
    """The type that adds up `count` integers of a type without overflow; f64, which rounds, where no integer does."""
    return next((wide for wide in (I32, I64) if _largest(dtype) * count <= highest(wide)), F64)


def _largest(dtype: DType) -> int:
    return int(max(-lowest(dtype), highest(dtype)))


def _negative(expr: ast.Expr) -> bool:
    return isinstance(expr, ast.Number) and expr.value < 0


def _count(range_: ast.Range) -> Term | None:
    """How many values its index has."""
    if range_.low is None or range_.high is None:
        return None
    low, high = range_of(range_)
    return high - low


def _range_note(range_: ast.Range, sometimes: str) -> Note:
    return Note(f"`{range_.index}` has no value here{sometimes}", range_.span)
