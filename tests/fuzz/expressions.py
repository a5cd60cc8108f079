"""Random expressions of the language over a scope of indices and tensors, each with what is known of its value."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace

from fuzz.accesses import FLOATS, Index, Scope
from fuzz.values import Value, accumulated, cast, computed, limit, meeting, operand, tame, worst
from fuzz.whole import Whole
from tilec.core.dtypes import F32, F64, I64

FUNCTIONS = {
    "exp": (8, "{}", 3000), "sqrt": (2**20, "abs({}) + 0.5", 2000), "tanh": (64, "{}", 1), "sin": (100, "{}", 1),
    "cos": (100, "{}", 1), "exp2": (8, "{}", 256), "expm1": (8, "{}", 3000), "log": (2**20, "abs({}) + 0.5", 20),
    "log2": (2**20, "abs({}) + 0.5", 24), "log1p": (2**20, "abs({})", 20), "rsqrt": (2**20, "abs({}) + 0.5", 2),
    "tan": (1, "{}", 2), "erf": (64, "{}", 1), "sigmoid": (64, "{}", 1), "erfc": (4, "{}", 2), "atan": (64, "{}", 2),
    "asin": (64, "clamp({}, -0.75, 0.75)", 1), "acos": (64, "clamp({}, -0.75, 0.75)", 3), "sinh": (8, "{}", 3000),
    "cosh": (8, "{}", 3000), "asinh": (64, "{}", 8), "acosh": (64, "abs({}) + 1.5", 8), "atanh": (64, "clamp({}, -0.75, 0.75)", 2),
}  # fmt: skip
"""By function: the largest argument, how it is kept where the function is well-conditioned, a bound on the result."""


class Expressions(Whole):
    """Draws expressions of every kind."""

    # ---- by kind -----------------------------------------------------------------------------------------------------

    def expression(self, scope: Scope, fuel: int) -> Value:
        return self.pick(self.float, self.float, self.float, self.float, self.int, self.int, self.bool)(scope, fuel)

    def float(self, scope: Scope, fuel: int) -> Value:
        if fuel <= 0:
            return self.leaf(scope, "float")
        options = [
            self.arithmetic, self.reduction, self.function, self.conditional, self.extreme, self.division,
            self.rounding, self.power, self.narrowed, self.library, self.scan,
            self.negation, self.arithmetic, self.reduction, lambda s, f: self.leaf(s, "float"), self.random,
        ]  # fmt: skip
        if self.opaque is None:
            options += [self.contraction, self.from_int, self.own_function, self.masked]
        made = self.pick(*options)(scope, fuel - 1)
        wild = made.bound == math.inf and self.chance(50)
        return made if wild else tame(made, 2.0**20) if made.kind == "float" else self.as_float(made)

    def int(self, scope: Scope, fuel: int) -> Value:
        if fuel <= 0:
            return self.leaf(scope, "int")
        options = [
            self.whole_arithmetic, self.whole_division, self.whole_reduction,
            self.whole_function, self.whole_conditional, self.place, self.from_float, self.whole_scan, self.recast,
        ]  # fmt: skip
        return self.pick(*options)(scope, fuel - 1)

    def bool(self, scope: Scope, fuel: int) -> Value:
        if fuel <= 0:
            return self.leaf(scope, "bool")
        options = [self.comparison, self.comparison, self.logic, self.quantifier, lambda s, f: self.leaf(s, "bool")]
        return self.pick(*options)(scope, fuel - 1)

    def as_float(self, value: Value) -> Value:
        return value if value.kind == "float" else cast(value, F32)

    # ---- floats ------------------------------------------------------------------------------------------------------

    def arithmetic(self, scope: Scope, fuel: int) -> Value:
        a = self.float(scope, fuel)
        b = self.literal_like(a) if self.chance(15) else self.pick(self.float, self.float, self.int)(scope, fuel)
        dtype, operator = meeting(a, b), self.pick("+", "-", "*")
        a, b = operand(a, dtype), operand(b, dtype)
        bound = a.bound * b.bound if operator == "*" else a.bound + b.bound
        grain = worst(a, b)
        if grain is not None and operator == "*":
            grain = a.grain + b.grain
        negative = operator == "-" or a.negative or b.negative
        finite = a.finite and b.finite
        return computed(Value(f"({a.text} {operator} {b.text})", dtype, bound, grain, finite, negative))

    def negation(self, scope: Scope, fuel: int) -> Value:
        a = self.float(scope, fuel)
        return replace(a, text=f"(-{a.text})", negative=True)

    def apart(self, value: Value) -> Value:
        """A value that is at least 0.5."""
        return computed(
            Value(f"(abs({value.text}) + 0.5)", value.dtype, value.bound + 0.5,
                  None if value.grain is None else max(1, value.grain), value.finite, False)
        )  # fmt: skip

    def division(self, scope: Scope, fuel: int) -> Value:
        a, b = self.float(scope, fuel), self.float(scope, fuel)
        if self.chance(20):
            a, b, dtype = tame(a, 64), tame(b, 64), meeting(a, b)
            return Value(f"{self.pick('atan2', 'copysign')}({a.text}, {b.text})", dtype, 64, None, a.finite and b.finite)
        if self.chance(25):  # by anything, zeros and infinities among it
            dtype, operator = meeting(a, b), self.pick("/", "//", "%", "fmod")
            if operator == "fmod":
                return Value(f"fmod({a.text}, {b.text})", dtype, math.inf, None, False)
            return Value(f"({a.text} {operator} {b.text})", dtype, math.inf, None, False)
        a, b = tame(a, 256), self.apart(tame(b, 256))
        dtype = meeting(a, b)
        if self.chance(50):
            return Value(f"({a.text} / {b.text})", dtype, 2 * a.bound, None, a.finite and b.finite)
        if not (a.exact and b.exact):
            return a
        a, b = operand(a, dtype), operand(b, dtype)
        operator, finite = self.pick("//", "%"), a.finite and b.finite
        bound, grain = (2 * a.bound + 1, 0) if operator == "//" else (b.bound, worst(a, b))
        return computed(Value(f"({a.text} {operator} {b.text})", dtype, bound, grain, finite))

    def rounding(self, scope: Scope, fuel: int) -> Value:
        a = self.float(scope, fuel)
        if not a.exact:
            return a
        return replace(a, text=f"{self.pick('floor', 'ceil', 'round', 'trunc', 'sign')}({a.text})", bound=a.bound + 1, grain=0)

    def function(self, scope: Scope, fuel: int) -> Value:
        a, name = self.float(scope, fuel), self.pick(*FUNCTIONS)
        most, wrap, bound = FUNCTIONS[name]
        a = tame(a, most)
        return Value(f"{name}({wrap.format(a.text)})", a.dtype, bound, None, a.finite)

    def random(self, scope: Scope, fuel: int) -> Value:
        """A number of a stream: the seed and the place are any integers."""
        seed, place = (cast(self.int(scope, fuel), I64) for _ in range(2))
        grain = 24 if seed.exact and place.exact else None
        return Value(f"rand({seed.text}, {place.text})", F32, 1, grain, True, False)

    def extreme(self, scope: Scope, fuel: int) -> Value:
        name = self.pick("max", "min", "abs", "clamp")
        a = self.float(scope, fuel)
        if name == "abs":
            return replace(a, text=f"abs({a.text})", negative=False)
        rest = [
            self.literal_like(a) if self.chance(30) else self.float(scope, fuel - 1)
            for _ in range(1 + (name == "clamp"))
        ]
        dtype = a.dtype
        for b in rest:
            dtype = meeting(replace(a, dtype=dtype), b)
        values = [operand(v, dtype) for v in (a, *rest)]
        return Value(
            f"{name}({', '.join(v.text for v in values)})", dtype, max(v.bound for v in values), worst(*values),
            all(v.finite for v in values), any(v.negative for v in values),
        )  # fmt: skip

    def power(self, scope: Scope, fuel: int) -> Value:
        a = tame(self.float(scope, fuel), 64)
        match self.pick("2", "3", "0.5", "-2", "data"):
            case "2" | "3" as n:
                grain = None if a.grain is None else a.grain * int(n)
                bound = a.bound ** int(n)
                return computed(Value(f"({a.text} ** {n})", a.dtype, bound, grain, a.finite, n == "3" and a.negative))
            case "0.5" | "-2" as n:
                base = self.apart(a)
                return Value(f"({base.text} ** {n})", a.dtype, 8, None, a.finite, False)
        b = tame(self.float(scope, fuel), 3)
        base = self.apart(tame(a, 3))
        return Value(f"({base.text} ** {b.text})", meeting(base, b), 64, None, a.finite and b.finite, False)

    def narrowed(self, scope: Scope, fuel: int) -> Value:
        return cast(self.float(scope, fuel), self.pick(*FLOATS[1:], F32), self.chance(30))

    def from_int(self, scope: Scope, fuel: int) -> Value:
        return cast(self.pick(self.int, self.int, self.bool)(scope, fuel), self.pick(F32, F64, *FLOATS))

    def conditional(self, scope: Scope, fuel: int) -> Value:
        test = self.bool(scope, fuel)
        with self.softly():
            a, b = self.float(scope, fuel), self.float(scope, fuel)
        dtype = meeting(a, b)
        a, b = operand(a, dtype), operand(b, dtype)
        text, finite = f"({a.text} if {test.text} else {b.text})", a.finite and b.finite
        return Value(text, dtype, max(a.bound, b.bound), worst(a, b, test), finite, a.negative or b.negative)

    def masked(self, scope: Scope, fuel: int) -> Value:
        """A softmax or an extreme over a triangle."""
        if len(scope) < 2:
            return self.leaf(scope, "float")
        i, j = list(scope.values())[-2:]
        with self.softly():
            a = tame(self.float(scope, fuel), 64)
        body = f"{a.text} if {j.name} <= {i.name} else -inf"
        j.stated = i.stated = True
        return Value(f"exp(max({body}, -4) - 64)", a.dtype, 2, None, a.finite, False)

    def library(self, scope: Scope, fuel: int) -> Value:
        name = self.pick("relu", "gelu", "gelu_tanh", "silu", "softplus", "softmax", "log_softmax")
        if name.endswith("softmax"):
            indices = [i for i in scope.values() if i.count]
            a = tame(self.float(scope, fuel), 16)
            if not indices:
                return a
            return Value(f"{name}[{self.pick(*indices).name}]({a.text})", a.dtype, 64, None, a.finite)
        a = tame(self.float(scope, fuel), 64)
        if name == "relu":
            return replace(a, text=f"relu({a.text})", negative=False)
        return Value(f"{name}({a.text})", a.dtype, a.bound + 1, None, a.finite)

    # ---- reductions --------------------------------------------------------------------------------------------------

    @contextmanager
    def binding(self, scope: Scope, count: int = 1):
        """A scope with `count` more indices. Yields it with what stands in the brackets, once the body is drawn."""
        if self.opaque is not None:
            indices = [self.pick(*scope.values())] if scope else []
        else:
            indices = []
            for _ in range(count):
                dim = self.some_dim()
                low = self.pick(1, 2) if not self.plain and self.chance(8) and dim.value > 2 else 0
                if self.volume * max(1, math.prod(i.most for i in indices)) * max(1, dim.most) > self.deepest:
                    dim, low = self.dim("1"), 0
                shadowed = [i.name for i in scope.values() if (i.dim, i.low) == (dim, low) and self.chance(10)]
                indices.append(Index(shadowed[0] if shadowed else self.fresh("k"), dim, low))
        names = {i.name: i for i in indices}
        before = self.volume
        self.volume *= max(1, math.prod(i.most for i in indices))
        yield {**scope, **names}, list(names.values())
        self.volume = before

    def brackets(self, indices: list[Index], body: str) -> str:
        """What stands in a reduction's brackets: the ranges that its body does not tell, and sometimes those, too."""
        if self.opaque is not None:
            return ", ".join(i.name for i in indices)
        return ", ".join(
            i.name if i.reported_by(body) and not i.low and (self.plain or not self.chance(20))
            else f"{i.name} in {i.low}:{i.dim.text}" for i in indices
        )  # fmt: skip

    def reduction(self, scope: Scope, fuel: int) -> Value:
        kind = self.pick("sum", "max", "mean", "min", "logsumexp", "prod")
        with self.binding(scope, self.pick(1, 1, 2)) as (inner, indices):
            if not indices:
                return self.leaf(scope, "float")
            body = (
                self.float(inner, fuel)
                if kind in ("logsumexp", "prod")
                else self.pick(self.float, self.float, self.int)(inner, fuel)
            )
        body = tame(body, 1) if kind == "prod" else body
        suffix = " in f64" if body.kind == "float" and kind in ("sum", "mean", "prod") and self.chance(10) else ""
        dtype = F64 if suffix else accumulated(body.dtype)
        body = operand(body, dtype)
        text = f"{kind}[{self.brackets(indices, body.text)}]({body.text}){suffix}"
        return self.reduced(kind, replace(body, text=text), *_counts(indices))

    def reduced(self, kind: str, body: Value, least: int, count: int) -> Value:
        """A reduction of `least` to `count` values."""
        finite = body.finite and (least > 0 or not body.dtype.is_float or kind in ("sum", "prod"))
        match kind:
            case "sum":
                return computed(replace(body, bound=body.bound * count, finite=finite))
            case "prod":
                grain = None if body.grain is None else body.grain * count
                return computed(
                    replace(
                        body, bound=2.0 ** min(count * math.log2(max(1, body.bound)), 99), grain=grain, finite=finite
                    )
                )
            case "mean":
                dtype = body.dtype if body.dtype.is_float else F32
                return replace(body, dtype=dtype, grain=None, finite=finite)
            case "logsumexp":
                dtype = body.dtype if body.dtype.is_float else F32
                return replace(body, dtype=dtype, bound=body.bound + 12, grain=None, finite=finite, negative=True)
        bound = body.bound if least or body.dtype.is_float else limit(body.dtype)
        return replace(body, bound=bound, finite=finite, negative=body.negative or not least)

    def scan(self, scope: Scope, fuel: int, draw: Callable | None = None) -> Value:
        body = (draw or self.float)(scope, fuel)
        if not scope:
            return body
        index, kind = self.pick(*scope.values()), self.pick("cumsum", "cummax", "cummin", "cumprod")
        body = tame(body, 1) if kind == "cumprod" and body.kind == "float" else body
        body = operand(body, accumulated(body.dtype))
        made = replace(body, text=f"{kind}[{index.name}]({body.text})")
        made = self.reduced(kind[3:], made, max(1, index.count), max(1, index.most))
        return replace(made, grain=made.grain if kind != "cumprod" else None) if made.kind == "float" else made

    def contraction(self, scope: Scope, fuel: int) -> Value:
        """A sum of products of inputs, as matrices and convolutions are."""
        with self.binding(scope, self.pick(1, 1, 2)) as (inner, indices):
            factors = []
            for _ in range(2):
                factors.append(self.access(inner, "float"))
        dtype = meeting(*factors)
        a, b = (operand(f, dtype) for f in factors)
        suffix = self.pick("", "", " using tf32", " using bf16") if dtype is F32 else ""
        grain = None if worst(a, b) is None else a.grain + b.grain
        if suffix and max(v.bound * 2.0 ** (v.grain or 0) for v in (a, b)) > 128:
            suffix = ""
        product = computed(Value("", dtype, a.bound * b.bound, grain, a.finite and b.finite))
        body = f"{a.text} * {b.text}"
        text = f"sum[{self.brackets(indices, body)}]({body}){suffix}"
        return self.reduced("sum", replace(product, text=text), *_counts(indices))

    def own_function(self, scope: Scope, fuel: int) -> Value:
        """A call of a function that is made for it."""
        with self.softly():  # the function may not use what it is given
            arguments = [self.pick(self.float, self.float, self.int)(scope, fuel) for _ in range(self.pick(1, 2))]
        indices = [self.pick(*scope.values())] if scope and self.chance(60) else []
        parameters = [replace(a, text=self.fresh("p")) for a in arguments]
        brackets = f"[{indices[0].name}]" if indices else ""
        name, lines, before = self.fresh("fn"), [], self.opaque
        inner = {i.name: Index(i.name, i.dim, i.low) for i in indices}
        self.opaque = list(parameters)
        for _ in range(self.pick(0, 1, 2)):
            local = self.float(inner, fuel)
            lines.append(f"    {self.fresh('l')} = {local.text}")
            self.opaque.append(replace(local, text=lines[-1].split()[0]))
        result = self.float(inner, fuel + 1)
        self.opaque = before
        body = "\n".join([*lines, f"    return {result.text}"])
        self.defs.append(f"def {name}{brackets}({', '.join(p.text for p in parameters)}) {{\n{body}\n}}")
        return replace(result, text=f"{name}{brackets}({', '.join(a.text for a in arguments)})")


def _counts(indices: list[Index]) -> tuple[int, int]:
    """How many values a reduction over these indices has: the least and the greatest number."""
    return math.prod(i.count for i in indices), math.prod(i.most for i in indices)
