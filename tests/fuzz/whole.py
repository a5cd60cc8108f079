"""Random expressions of integers and bools."""

from __future__ import annotations

import re
from dataclasses import replace

from fuzz.accesses import INTEGERS, Accesses, Scope
from fuzz.values import Value, accumulated, cast, computed, limit, meeting, operand, worst
from tilec.core.dtypes import BOOL, I64

LOOSE = 8
"""Percent of comparisons and places of numbers that rounding has touched, so that either outcome may be right."""


class Whole(Accesses):
    """Draws integers and bools."""

    # ---- integers ----------------------------------------------------------------------------------------------------

    def whole_arithmetic(self, scope: Scope, fuel: int) -> Value:
        a = self.int(scope, fuel)
        b = self.literal_like(a) if self.chance(30) else self.int(scope, fuel)
        dtype, operator = meeting(a, b), self.pick("+", "-", "*", "**", "&", "|", "^", "<<", ">>", "~")
        if operator == "~":
            return computed(replace(a, text=f"(~{a.text})", bound=limit(a.dtype), negative=a.dtype.kind == "int"))
        if operator in ("&", "|", "^", "<<", ">>"):
            a, b = operand(a, dtype), operand(b, dtype)
            text, negative = f"({a.text} {operator} {b.text})", dtype.kind == "int"
            return computed(Value(text, dtype, limit(dtype), worst(a, b), True, negative))
        if operator == "**":
            return computed(replace(a, text=f"({a.text} ** {self.pick(2, 3, 0, 1, 5)})", bound=limit(a.dtype)))
        a, b = operand(a, dtype), operand(b, dtype)
        bound = a.bound * b.bound if operator == "*" else a.bound + b.bound
        negative = operator == "-" or a.negative or b.negative
        return computed(Value(f"({a.text} {operator} {b.text})", dtype, bound, worst(a, b), True, negative))

    def whole_division(self, scope: Scope, fuel: int) -> Value:
        a = self.int(scope, fuel)
        b = self.literal_like(a) if self.chance(50) else self.int(scope, fuel)
        if re.fullmatch(r"(\w+\()?0\)?", b.text):  # a divisor that is seen to be 0 is refused
            b = replace(b, text=f"{b.dtype}(3)", bound=3)
        dtype, operator = meeting(a, b), self.pick("//", "%", "fmod")
        a, b = operand(a, dtype), operand(b, dtype)
        bound = a.bound + 1 if operator == "//" else b.bound
        if operator == "fmod":
            text, negative = f"fmod({a.text}, {b.text})", a.negative
            return computed(Value(text, dtype, max(a.bound, b.bound), worst(a, b), True, negative))
        return computed(
            Value(f"({a.text} {operator} {b.text})", dtype, bound, worst(a, b), True, a.negative or b.negative)
        )

    def whole_reduction(self, scope: Scope, fuel: int) -> Value:
        kind = self.pick("sum", "max", "min", "prod")
        with self.binding(scope) as (inner, indices):
            if not indices:
                return self.leaf(scope, "int")
            body = self.int(inner, fuel)
        body = operand(body, accumulated(body.dtype))
        made = replace(body, text=f"{kind}[{self.brackets(indices, body.text)}]({body.text})")
        return replace(self.reduced(kind, made, indices[0].count, indices[0].most), negative=made.dtype.kind == "int")

    def whole_scan(self, scope: Scope, fuel: int) -> Value:
        return self.scan(scope, fuel, self.int)

    def place(self, scope: Scope, fuel: int) -> Value:
        kind = self.pick("argmax", "argmin")
        with self.binding(scope) as (inner, indices):
            body = self.pick(self.float, self.int)(inner, fuel) if indices else None
        if body is None or not indices[0].count or not (body.exact or self.chance(LOOSE)):
            return self.leaf(scope, "int")
        bound, grain = indices[0].dim.most, 0 if body.exact else None
        return Value(f"{kind}[{self.brackets(indices, body.text)}]({body.text})", I64, bound, grain, True, False)

    def whole_function(self, scope: Scope, fuel: int) -> Value:
        a, name = self.int(scope, fuel), self.pick("abs", "max", "min", "clamp", "floor")
        if name in ("abs", "floor"):
            return replace(a, text=f"{name}({a.text})")
        rest = [self.int(scope, fuel - 1) for _ in range(1 + (name == "clamp"))]
        dtype = a.dtype
        for b in rest:
            dtype = meeting(replace(a, dtype=dtype), b)
        values = [operand(v, dtype) for v in (a, *rest)]
        bound, negative = max(v.bound for v in values), any(v.negative for v in values)
        return Value(f"{name}({', '.join(v.text for v in values)})", dtype, bound, worst(*values), True, negative)

    def whole_conditional(self, scope: Scope, fuel: int) -> Value:
        test = self.bool(scope, fuel)
        with self.softly():
            a, b = self.int(scope, fuel), self.int(scope, fuel)
        dtype = meeting(a, b)
        a, b = operand(a, dtype), operand(b, dtype)
        text = f"({a.text} if {test.text} else {b.text})"
        return Value(text, dtype, max(a.bound, b.bound), worst(a, b, test), True, a.negative or b.negative)

    def from_float(self, scope: Scope, fuel: int) -> Value:
        return cast(self.float(scope, fuel), self.pick(*INTEGERS), self.chance(50)) or self.leaf(scope, "int")

    def recast(self, scope: Scope, fuel: int) -> Value:
        return cast(self.pick(self.int, self.bool)(scope, fuel), self.pick(*INTEGERS))

    # ---- bools -------------------------------------------------------------------------------------------------------

    def comparison(self, scope: Scope, fuel: int) -> Value:
        operator = self.pick("<", ">=", "==", "!=", ">", "<=")
        a = self.pick(self.float, self.int)(scope, fuel)
        b = self.literal_like(a) if self.chance(30) else self.pick(self.float, self.int)(scope, fuel)
        dtype = meeting(a, b)
        a, b = operand(a, dtype), operand(b, dtype)
        if not (a.exact and b.exact) and not self.chance(LOOSE):
            return self.leaf(scope, "bool")
        return Value(f"({a.text} {operator} {b.text})", BOOL, 1, 0 if a.exact and b.exact else None, True, False)

    def logic(self, scope: Scope, fuel: int) -> Value:
        a, operator = self.bool(scope, fuel), self.pick("and", "or", "not", "&", "|", "^")
        if operator == "not":
            return replace(a, text=f"(not {a.text})")
        b = self.bool(scope, fuel)
        return replace(a, text=f"({a.text} {operator} {b.text})", grain=worst(a, b))

    def quantifier(self, scope: Scope, fuel: int) -> Value:
        with self.binding(scope) as (inner, indices):
            body = self.bool(inner, fuel)
        return (
            replace(body, text=f"{self.pick('any', 'all')}[{self.brackets(indices, body.text)}]({body.text})")
            if indices
            else body
        )
