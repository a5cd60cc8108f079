"""Random expressions of the language over a scope of indices and tensors, each with what is known of its value."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from fuzz.values import Value, accumulated, cast, computed, converted, limit, meeting, operand, tame, worst
from hypothesis import strategies as st

from tilec.dtypes import BOOL, DTYPES, F32, F64, I64, DType, compute_type

FLOATS = [F32, DTYPES["f16"], DTYPES["bf16"], F64, DTYPES["f8e4m3"], DTYPES["f8e5m2"]]
INTEGERS = [DTYPES[n] for n in ("i32", "i64", "u8", "i8", "i16", "u16", "u32", "u64")]
DEEPEST = 40_000
"""The points of the largest space that an expression is evaluated over."""


@dataclass(frozen=True)
class Dim:
    """A size: its text and its number."""

    text: str
    value: int


@dataclass
class Index:
    """An index in scope, from `low` to the size `dim`. `bare`: a use tells its range; `stated`: the program must."""

    name: str
    dim: Dim
    low: int = 0
    bare: bool = False
    stated: bool = False

    @property
    def count(self) -> int:
        return max(0, self.dim.value - self.low)

    def told_by(self, text: str) -> bool:
        """Whether an expression tells the range: it may have been drawn and thrown away."""
        return self.bare and not self.stated and bool(re.search(rf"\b[nxy]\d+\[([^][]*, )?{self.name}[],]", text))


@dataclass(frozen=True)
class Tensor:
    """A tensor that can be read, and what is known of its elements. An input of subscripts holds 0 to `ids`, the last
    excluded, or from -2 to `ids + 1` where it is `wide`.
    """

    name: str
    dims: tuple[Dim, ...]
    element: Value
    dtype: DType
    ids: int | None = None
    wide: bool = False


Scope = dict[str, Index]


@dataclass
class Expressions:
    """Draws expressions. Inputs come into being as expressions ask for them.

    `soft` counts the `pad` and `if` around: what is read there says nothing about ranges. `opaque` are the parameters
    inside a function, where tensors and indices cannot be read.
    """

    draw: Callable
    sizes: dict[str, int]
    special: bool = False
    tensors: list[Tensor] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    defs: list[str] = field(default_factory=list)
    soft: int = 0
    volume: int = 1
    opaque: list[Value] | None = None
    names: int = 0

    # ---- drawing -----------------------------------------------------------------------------------------------------

    def pick(self, *options):
        """One of the options; the first is the simplest."""
        return options[self.draw(st.integers(0, len(options) - 1))] if len(options) > 1 else options[0]

    def chance(self, percent: int) -> bool:
        return self.draw(st.integers(0, 99)) >= 100 - percent

    def fresh(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    def dim(self, text: str) -> Dim:
        return Dim(text, eval(text, {"__builtins__": {}}, dict(self.sizes)))

    def some_dim(self) -> Dim:
        a, b = next(iter(self.sizes)), list(self.sizes)[-1]
        if not self.chance(20):
            return self.dim(self.pick(*self.sizes))
        return self.dim(self.pick("3", f"{a} + 1", "1", f"{a} * {b}", f"{b} // 2", f"2 * {a}"))

    @contextmanager
    def softly(self):
        self.soft += 1
        yield
        self.soft -= 1

    # ---- by kind -----------------------------------------------------------------------------------------------------

    def expression(self, scope: Scope, fuel: int) -> Value:
        return self.pick(self.float, self.float, self.float, self.float, self.int, self.int, self.bool)(scope, fuel)

    def float(self, scope: Scope, fuel: int) -> Value:
        if fuel <= 0:
            return self.leaf(scope, "float")
        options = [
            self.arithmetic, self.reduction, self.function, self.conditional, self.extreme, self.division, self.rounding, self.power, self.narrowed, self.library, self.scan,
            self.negation, self.arithmetic, self.reduction, lambda s, f: self.leaf(s, "float"),
        ]  # fmt: skip
        if self.opaque is None:
            options += [self.contraction, self.from_int, self.own_function, self.masked]
        made = self.pick(*options)(scope, fuel - 1)
        return tame(made, 2.0**20) if made.kind == "float" else self.as_float(made)

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

    # ---- leaves ------------------------------------------------------------------------------------------------------

    def leaf(self, scope: Scope, kind: str) -> Value:
        if self.opaque is not None:
            fitting = [v for v in self.opaque if v.kind == kind]
            return self.pick(*fitting) if fitting and not self.chance(15) else self.literal(kind)
        if self.chance(15):
            return self.literal(kind)
        if kind == "int" and scope and self.chance(30):
            return self.index_value(scope)
        return self.access(scope, kind)

    def literal(self, kind: str) -> Value:
        if kind == "bool":
            return Value(self.pick("true", "false"), BOOL, 1, 0, True, False)
        if kind == "int":
            dtype, number = self.pick(*INTEGERS), self.pick(1, 2, 0, 3, 7, 100)
            return Value(f"{dtype}({number})", dtype, number, 0, True, False)
        text, grain = self.pick(("1.0", 0), ("0.5", 1), ("2.0", 0), ("0.0", 0), ("1.25", 2))
        return Value(f"{self.pick(F32, F32, F64)}({text})", F32, 2, grain, True, False) if self.chance(50) else Value(
            f"f32({text})", F32, 2, grain, True, False
        )

    def index_value(self, scope: Scope) -> Value:
        if self.chance(20):
            name = self.pick(*self.sizes)
            return Value(name, I64, self.sizes[name], 0, True, False)
        index = self.pick(*scope.values())
        return Value(index.name, I64, max(1, index.dim.value), 0, True, False)

    def literal_like(self, value: Value) -> Value:
        """A number that takes the type of what it meets."""
        if value.dtype.is_float:
            text, bound, grain = self.pick(("1", 1, 0), ("0.5", 1, 1), ("2", 2, 0), ("1.5", 2, 1), ("3", 3, 0))
            return Value(text, value.dtype, bound, grain, True, False)
        number = self.pick(1, 2, 3, 5, 7)
        return Value(str(number), value.dtype, number, 0, True, False)

    # ---- accesses ----------------------------------------------------------------------------------------------------

    def access(self, scope: Scope, kind: str) -> Value:
        known = [t for t in self.tensors if t.element.kind == kind]
        texts = {i.dim.text for i in scope.values()}
        plain = [t for t in known if t.dims and all(d.text in texts for d in t.dims)]
        made = [t for t in plain if t not in self.inputs]
        if known and self.chance(75):
            tensor = self.pick(*(made if made and self.chance(70) else plain if plain and self.chance(80) else known))
            subscripts = [self.subscript(scope, dim) for dim in tensor.dims]
        else:
            tensor, subscripts = self.new_input(scope, kind)
        return self.read(scope, tensor, subscripts)

    def read(self, scope: Scope, tensor: Tensor, subscripts: list[tuple[str, bool, list[Index]]]) -> Value:
        """The element at (text, provably inside, bare indices) of each dimension; guarded where it may be outside."""
        name, texts = tensor.name, [text for text, *_ in subscripts]
        value = replace(tensor.element, text=f"{name}[{', '.join(texts)}]" if texts else name)
        guarded = not all(inside for _, inside, _ in subscripts)
        for *_, bare in subscripts:
            for index in bare:
                index.bare |= not self.soft and not guarded
        if not guarded:
            return value
        other = self.literal_like(tensor.element) if value.kind != "bool" else self.literal("bool")
        made = replace(value, bound=max(value.bound, other.bound), grain=worst(value, other))
        if self.pick("pad", "if") == "pad":
            return replace(made, text=f"pad({value.text}, {other.text})")
        tests = [
            f"{text} >= 0 and {text} < {dim.text}"
            for (text, inside, _), dim in zip(subscripts, tensor.dims)
            if not inside
        ]
        return replace(made, text=f"({value.text} if {' and '.join(tests)} else {other.text})")

    def subscript(self, scope: Scope, dim: Dim) -> tuple[str, bool, list[Index]]:
        """A subscript of a dimension: its text, whether it is provably inside, and the indices that it names bare."""
        fitting = [i for i in scope.values() if i.dim.text == dim.text]
        shorter = [i for i in scope.values() if _surely_shorter(i.dim, dim)]
        options: list[Callable] = []
        if fitting:
            options += [lambda: self.bare(self.pick(*fitting))] * 6
            options.append(lambda: (f"{dim.text} - 1 - {self.pick(*fitting).name}", True, []))
            options.append(lambda: (f"{self.pick(*fitting).name} // {self.pick(2, 3)}", True, []))
        if shorter and not fitting:
            options.append(lambda: self.bare(self.pick(*shorter), stated=True))
        if dim.value > 0:
            options.append(lambda: (str(self.pick(0, dim.value - 1)), True, []))
            if scope:
                options.append(lambda: (f"{self.pick(*scope.values()).name} % ({dim.text})", True, []))
            options.append(lambda: (self.gathered(scope, dim, inside=True), True, []))
        if scope:
            options.append(lambda: (self.shifted(scope), False, []))
        options.append(lambda: (self.gathered(scope, dim, inside=False), False, []))
        return self.pick(*options)()

    def bare(self, index: Index, stated: bool = False) -> tuple[str, bool, list[Index]]:
        index.stated |= stated
        return index.name, True, [] if stated else [index]

    def shifted(self, scope: Scope) -> str:
        a, b = self.pick(*scope.values()).name, self.pick(*scope.values()).name
        return self.pick(f"{a} + 1", f"{a} - 1", f"{a} + {b} - 1", f"2 * {a} + {b}", f"3 - {a}", f"{a} // 2 + {b} % 2")

    def gathered(self, scope: Scope, dim: Dim, inside: bool) -> str:
        """A subscript that depends on data."""
        with self.softly():
            kind = self.pick("ids", "remainder", "clamp") if inside else "ids"
            if kind == "ids":
                known = [t for t in self.inputs if t.ids == dim.value and t.wide != inside]
                if known and self.chance(50):
                    tensor = self.pick(*known)
                    plain = [[i for i in scope.values() if i.dim.text == d.text] for d in tensor.dims]
                    if all(plain):
                        return f"{tensor.name}[{', '.join(self.pick(*p).name for p in plain)}]" if plain else tensor.name
                tensor, subscripts = self.new_ids(scope, dim, wide=not inside)
                for index in scope.values():  # what is read as a subscript may stand where it says nothing
                    index.stated |= index.name in subscripts
                return f"{tensor.name}[{', '.join(subscripts)}]" if subscripts else tensor.name
            value = self.leaf(scope, "int")
            if kind == "remainder":
                return f"i64({value.text}) % ({dim.text})"
            return f"clamp(i64({value.text}), 0, {dim.text} - 1)"

    def new_ids(self, scope: Scope, dim: Dim, wide: bool) -> tuple[Tensor, list[str]]:
        used = [i for i in scope.values() if self.chance(60)][:2]
        dtype = self.pick(*(d for d in INTEGERS if limit(d) > dim.value + 2 and not (wide and d.kind == "uint")))
        element = Value("", dtype, dim.value + 1, 0, True, wide)
        tensor = Tensor(self.fresh("n"), tuple(i.dim for i in used), element, dtype, dim.value, wide)
        self.add_input(tensor)
        return tensor, [i.name for i in used]

    def new_input(self, scope: Scope, kind: str) -> tuple[Tensor, list[tuple[str, bool, list[Index]]]]:
        """An input whose dimensions suit the subscripts drawn."""
        dims, subscripts = [], []
        indices = [i for i in scope.values() if not self.chance(25)]
        for index in self.draw(st.permutations(indices)) if len(indices) > 1 and self.chance(40) else indices:
            for dim, subscript in self.fitted(scope, index):
                dims.append(dim)
                subscripts.append(subscript)
        if self.chance(5):
            dims.append(self.dim("3"))
            subscripts.append((str(self.pick(0, 1, 2)), True, []))
        if self.chance(5) or math.prod(d.value for d in dims) > DEEPEST or len(dims) > 5:
            dims, subscripts = [], []
        dtype = {"float": lambda: self.pick(F32, F32, *FLOATS), "int": lambda: self.pick(*INTEGERS), "bool": lambda: BOOL}
        tensor = Tensor(self.fresh("x"), tuple(dims), *self.fresh_element(dtype[kind]()))
        self.add_input(tensor)
        return tensor, subscripts

    def fresh_element(self, dtype: DType) -> tuple[Value, DType]:
        if dtype.is_float:
            return Value("", compute_type(dtype), 2, 2, not self.special), dtype
        if dtype is BOOL:
            return Value("", dtype, 1, 0, True, False), dtype
        wide = self.chance(25)
        return Value("", dtype, limit(dtype) if wide else 4, 0, True, dtype.kind == "int"), dtype

    def add_input(self, tensor: Tensor) -> None:
        self.tensors.append(tensor)
        self.inputs.append(tensor)

    def fitted(self, scope: Scope, index: Index) -> list[tuple[Dim, tuple[str, bool, list[Index]]]]:
        """One dimension, or two, and how an index subscripts them."""
        name, text = index.name, index.dim.text
        plain = [(index.dim, (name, True, [index]))]
        match self.pick("bare", "bare", "bare", "bare", "bare", "window", "stride", "part", "split", "join"):
            case "window":
                return [(self.dim(f"{text} + 2"), (f"{name} + {self.pick(1, 0, 2)}", True, []))]
            case "stride":
                return [(self.dim(f"2 * ({text}) + 1"), (f"2 * {name} + 1", True, []))]
            case "part":
                return [(self.dim("2"), (f"{name} % 2", True, []))]
            case "split" if index.dim.value:
                count = self.pick(2, 3)
                parts = [(self.dim(f"({text}) // {count} + 1"), (f"{name} // {count}", True, []))]
                return [*parts, (self.dim(str(count)), (f"{name} % {count}", True, []))]
            case "join":
                others = [i for i in scope.values() if i.dim.value * index.dim.value <= DEEPEST]
                if others:
                    other = self.pick(*others)
                    dim = self.dim(f"({text}) * ({other.dim.text})")
                    return [(dim, (f"{name} * ({other.dim.text}) + {other.name}", True, []))]
        return plain

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
        a, b = tame(self.float(scope, fuel), 256), self.apart(tame(self.float(scope, fuel), 256))
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
        return replace(a, text=f"{self.pick('floor', 'ceil', 'round')}({a.text})", bound=a.bound + 1, grain=0)

    def function(self, scope: Scope, fuel: int) -> Value:
        a, name = self.float(scope, fuel), self.pick(*FUNCTIONS)
        most, wrap, bound = FUNCTIONS[name]
        a = tame(a, most)
        return Value(f"{name}({wrap.format(a.text)})", a.dtype, bound, None, a.finite)

    def extreme(self, scope: Scope, fuel: int) -> Value:
        name = self.pick("max", "min", "abs", "clamp")
        a = self.float(scope, fuel)
        if name == "abs":
            return replace(a, text=f"abs({a.text})", negative=False)
        rest = [self.literal_like(a) if self.chance(30) else self.float(scope, fuel - 1) for _ in range(1 + (name == "clamp"))]
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
        return cast(self.float(scope, fuel), self.pick(*FLOATS[1:], F32))

    def from_int(self, scope: Scope, fuel: int) -> Value:
        return cast(self.pick(self.int, self.int, self.bool)(scope, fuel), self.pick(F32, F64))

    def conditional(self, scope: Scope, fuel: int) -> Value:
        test = self.bool(scope, fuel)
        with self.softly():
            a, b = self.float(scope, fuel), self.float(scope, fuel)
        dtype = meeting(a, b)
        a, b = operand(a, dtype), operand(b, dtype)
        text, finite = f"({a.text} if {test.text} else {b.text})", a.finite and b.finite
        return Value(text, dtype, max(a.bound, b.bound), worst(a, b), finite, a.negative or b.negative)

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
                low = self.pick(1, 2) if self.chance(8) and dim.value > 2 else 0
                if self.volume * max(1, math.prod(i.count for i in indices)) * max(1, dim.value) > DEEPEST:
                    dim, low = self.dim("1"), 0
                shadowed = [i.name for i in scope.values() if (i.dim, i.low) == (dim, low) and self.chance(10)]
                indices.append(Index(shadowed[0] if shadowed else self.fresh("k"), dim, low))
        names = {i.name: i for i in indices}
        before = self.volume
        self.volume *= max(1, math.prod(i.count for i in indices))
        yield {**scope, **names}, list(names.values())
        self.volume = before

    def brackets(self, indices: list[Index], body: str) -> str:
        """What stands in a reduction's brackets: the ranges that its body does not tell, and sometimes those, too."""
        if self.opaque is not None:
            return ", ".join(i.name for i in indices)
        return ", ".join(
            i.name if i.told_by(body) and not i.low and not self.chance(20)
            else f"{i.name} in {i.low}:{i.dim.text}" for i in indices
        )  # fmt: skip

    def reduction(self, scope: Scope, fuel: int) -> Value:
        kind = self.pick("sum", "max", "mean", "min", "logsumexp", "prod")
        with self.binding(scope, self.pick(1, 1, 2)) as (inner, indices):
            if not indices:
                return self.leaf(scope, "float")
            body = self.float(inner, fuel) if kind in ("logsumexp", "prod") else self.pick(self.float, self.float, self.int)(inner, fuel)
            count = math.prod(i.count for i in indices)
        body = tame(body, 1) if kind == "prod" else body
        suffix = " in f64" if body.kind == "float" and kind in ("sum", "mean", "prod") and self.chance(10) else ""
        dtype = F64 if suffix else accumulated(body.dtype)
        body = operand(body, dtype)
        text = f"{kind}[{self.brackets(indices, body.text)}]({body.text}){suffix}"
        return self.reduced(kind, replace(body, text=text), count)

    def reduced(self, kind: str, body: Value, count: int) -> Value:
        finite = body.finite and (count > 0 or not body.dtype.is_float or kind in ("sum", "prod"))
        match kind:
            case "sum":
                return computed(replace(body, bound=body.bound * count, finite=finite))
            case "prod":
                grain = None if body.grain is None else body.grain * count
                return computed(replace(body, bound=2.0 ** min(count * math.log2(max(1, body.bound)), 99), grain=grain, finite=finite))
            case "mean":
                dtype = body.dtype if body.dtype.is_float else F32
                return replace(body, dtype=dtype, grain=None, finite=finite)
            case "logsumexp":
                dtype = body.dtype if body.dtype.is_float else F32
                return replace(body, dtype=dtype, bound=body.bound + 12, grain=None, finite=finite, negative=True)
        bound = body.bound if count or body.dtype.is_float else limit(body.dtype)
        return replace(body, bound=bound, finite=finite, negative=body.negative or not count)

    def scan(self, scope: Scope, fuel: int, draw: Callable | None = None) -> Value:
        body = (draw or self.float)(scope, fuel)
        if not scope:
            return body
        index, kind = self.pick(*scope.values()), self.pick("cumsum", "cummax", "cummin", "cumprod")
        body = tame(body, 1) if kind == "cumprod" and body.kind == "float" else body
        body = operand(body, accumulated(body.dtype))
        made = self.reduced(kind[3:], replace(body, text=f"{kind}[{index.name}]({body.text})"), max(1, index.count))
        return replace(made, grain=made.grain if kind != "cumprod" else None) if made.kind == "float" else made

    def contraction(self, scope: Scope, fuel: int) -> Value:
        """A sum of products of inputs, as matrices and convolutions are."""
        with self.binding(scope, self.pick(1, 1, 2)) as (inner, indices):
            factors = []
            for _ in range(2):
                factors.append(self.access(inner, "float"))
            count = math.prod(i.count for i in indices)
        dtype = meeting(*factors)
        a, b = (operand(f, dtype) for f in factors)
        suffix = self.pick("", "", " using tf32", " using bf16") if dtype is F32 else ""
        grain = None if worst(a, b) is None else a.grain + b.grain
        if suffix and max(v.bound * 2.0 ** (v.grain or 0) for v in (a, b)) > 128:
            suffix = ""
        product = computed(Value("", dtype, a.bound * b.bound, grain, a.finite and b.finite))
        body = f"{a.text} * {b.text}"
        text = f"sum[{self.brackets(indices, body)}]({body}){suffix}"
        return self.reduced("sum", replace(product, text=text), count)

    def own_function(self, scope: Scope, fuel: int) -> Value:
        """A call of a function that is made for it."""
        with self.softly():  # the function may not use what it is given
            arguments = [self.pick(self.float, self.float, self.int)(scope, fuel) for _ in range(self.pick(1, 2))]
        indices = [self.pick(*scope.values())] if scope and self.chance(60) else []
        parameters = [replace(a, text=self.fresh("p")) for a in arguments]
        brackets = f"[{indices[0].name}]" if indices else ""
        name, lines, before = self.fresh("f"), [], self.opaque
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

    # ---- integers ----------------------------------------------------------------------------------------------------

    def whole_arithmetic(self, scope: Scope, fuel: int) -> Value:
        a = self.int(scope, fuel)
        b = self.literal_like(a) if self.chance(30) else self.int(scope, fuel)
        dtype, operator = meeting(a, b), self.pick("+", "-", "*", "**")
        if operator == "**":
            return computed(replace(a, text=f"({a.text} ** {self.pick(2, 3)})", bound=limit(a.dtype)))
        a, b = operand(a, dtype), operand(b, dtype)
        bound = a.bound * b.bound if operator == "*" else a.bound + b.bound
        negative = operator == "-" or a.negative or b.negative
        return computed(Value(f"({a.text} {operator} {b.text})", dtype, bound, 0, True, negative))

    def whole_division(self, scope: Scope, fuel: int) -> Value:
        a = self.int(scope, fuel)
        b = self.literal_like(a) if self.chance(50) else self.int(scope, fuel)
        dtype, operator = meeting(a, b), self.pick("//", "%")
        a, b = operand(a, dtype), operand(b, dtype)
        bound = a.bound + 1 if operator == "//" else b.bound
        return computed(Value(f"({a.text} {operator} {b.text})", dtype, bound, 0, True, a.negative or b.negative))

    def whole_reduction(self, scope: Scope, fuel: int) -> Value:
        kind = self.pick("sum", "max", "min", "prod")
        with self.binding(scope) as (inner, indices):
            if not indices:
                return self.leaf(scope, "int")
            body = self.int(inner, fuel)
            count = indices[0].count
        body = operand(body, accumulated(body.dtype))
        made = replace(body, text=f"{kind}[{self.brackets(indices, body.text)}]({body.text})")
        return replace(self.reduced(kind, made, count), negative=made.dtype.kind == "int")

    def whole_scan(self, scope: Scope, fuel: int) -> Value:
        return self.scan(scope, fuel, self.int)

    def place(self, scope: Scope, fuel: int) -> Value:
        kind = self.pick("argmax", "argmin")
        with self.binding(scope) as (inner, indices):
            body = self.pick(self.float, self.int)(inner, fuel) if indices else None
        if body is None or not indices[0].count or not body.exact:
            return self.leaf(scope, "int")
        bound = indices[0].dim.value
        return Value(f"{kind}[{self.brackets(indices, body.text)}]({body.text})", I64, bound, 0, True, False)

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
        return Value(f"{name}({', '.join(v.text for v in values)})", dtype, bound, 0, True, negative)

    def whole_conditional(self, scope: Scope, fuel: int) -> Value:
        test = self.bool(scope, fuel)
        with self.softly():
            a, b = self.int(scope, fuel), self.int(scope, fuel)
        dtype = meeting(a, b)
        a, b = operand(a, dtype), operand(b, dtype)
        text = f"({a.text} if {test.text} else {b.text})"
        return Value(text, dtype, max(a.bound, b.bound), 0, True, a.negative or b.negative)

    def from_float(self, scope: Scope, fuel: int) -> Value:
        return cast(self.float(scope, fuel), self.pick(*INTEGERS)) or self.leaf(scope, "int")

    def recast(self, scope: Scope, fuel: int) -> Value:
        return cast(self.pick(self.int, self.bool)(scope, fuel), self.pick(*INTEGERS))

    # ---- bools -------------------------------------------------------------------------------------------------------

    def comparison(self, scope: Scope, fuel: int) -> Value:
        operator = self.pick("<", ">=", "==", "!=", ">", "<=")
        a = self.pick(self.float, self.int)(scope, fuel)
        b = self.literal_like(a) if self.chance(30) else self.pick(self.float, self.int)(scope, fuel)
        dtype = meeting(a, b)
        a, b = operand(a, dtype), operand(b, dtype)
        if not (a.exact and b.exact):
            return self.leaf(scope, "bool")
        return Value(f"({a.text} {operator} {b.text})", BOOL, 1, 0, True, False)

    def logic(self, scope: Scope, fuel: int) -> Value:
        a, operator = self.bool(scope, fuel), self.pick("and", "or", "not")
        text = f"(not {a.text})" if operator == "not" else f"({a.text} {operator} {self.bool(scope, fuel).text})"
        return replace(a, text=text)

    def quantifier(self, scope: Scope, fuel: int) -> Value:
        with self.binding(scope) as (inner, indices):
            body = self.bool(inner, fuel)
        return replace(body, text=f"{self.pick('any', 'all')}[{self.brackets(indices, body.text)}]({body.text})") if indices else body


def _surely_shorter(a: Dim, b: Dim) -> bool:
    """Whether the checker can tell that a size is within another, whatever the names stand for."""
    if a.text.isdecimal() and b.text.isdecimal():
        return a.value < b.value
    return b.text in (f"{a.text} + 1", f"{a.text} + 2", f"2 * ({a.text}) + 1", f"2 * {a.text}")


FUNCTIONS = {
    "exp": (8, "{}", 3000), "sqrt": (2**20, "abs({}) + 0.5", 2000), "tanh": (64, "{}", 1), "sin": (100, "{}", 1),
    "cos": (100, "{}", 1), "exp2": (8, "{}", 256), "expm1": (8, "{}", 3000), "log": (2**20, "abs({}) + 0.5", 20),
    "log2": (2**20, "abs({}) + 0.5", 24), "log1p": (2**20, "abs({})", 20), "rsqrt": (2**20, "abs({}) + 0.5", 2),
    "tan": (1, "{}", 2), "erf": (64, "{}", 1), "sigmoid": (64, "{}", 1),
}  # fmt: skip
"""By function: the largest argument, how it is kept where the function is well-conditioned, a bound on the result."""

__all__ = ["BOOL", "DEEPEST", "FLOATS", "INTEGERS", "Dim", "Expressions", "Index", "Scope", "Tensor", "converted"]
