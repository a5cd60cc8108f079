"""What expressions are made of: literals, indices, and accesses of tensors, which come into being as they are asked for."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from fuzz.choices import Choices
from fuzz.edges import ORDINARY, integers
from fuzz.values import Value, limit, worst
from tilec.core.dtypes import BOOL, DTYPES, F32, F64, I64, DType, compute_type
from tilec.core.varying import evaluated

FLOATS = [F32, DTYPES["f16"], DTYPES["bf16"], F64, DTYPES["f8e4m3"], DTYPES["f8e5m2"]]
INTEGERS = [DTYPES[n] for n in ("i32", "i64", "u8", "i8", "i16", "u16", "u32", "u64")]
DEEPEST = 40_000
"""The points of the largest space that an expression is evaluated over, but for huge programs."""


@dataclass(frozen=True)
class Dim:
    """A size: its text and its number. Of one that varies, `value` is the least number, and `most` the greatest."""

    text: str
    value: int
    most: int

    def at(self, sizes: Mapping[str, int]) -> int:
        """Its number where names have these."""
        return evaluated(self.text, sizes)


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

    @property
    def most(self) -> int:
        return max(0, self.dim.most - self.low)

    def reported_by(self, text: str) -> bool:
        """Whether an expression tells the range: a use may have been drawn and thrown away, and where a reduction has an
        index of this name it is another one.
        """
        use = rf"\b[nxy]\d+\[([^][]*, )?{self.name}[],]"
        return self.bare and not self.stated and bool(re.search(use, without_reductions(text, self.name)))


@dataclass(frozen=True)
class Tensor:
    """A tensor that can be read, and what is known of its elements. An input of subscripts of the dimension `ids` holds
    numbers from 0 to its size, excluded, or from -2 to its size + 1 where it is `wide`.
    """

    name: str
    dims: tuple[Dim, ...]
    element: Value
    dtype: DType
    ids: Dim | None = None
    wide: bool = False


Scope = dict[str, Index]


@dataclass
class Accesses:
    """Draws the leaves of expressions. Inputs come into being as expressions ask for them.

    `soft` counts the `pad` and `if` around: what is read there says nothing about ranges. `opaque` are the parameters
    inside a function, where tensors and indices cannot be read. What is `plain` leaves out what names sizes, as the short
    form does: bare indices tell all ranges. Of sizes that vary, `sizes` are the least numbers, and `most` the greatest ones.
    """

    draw: Choices
    sizes: dict[str, int]
    special: bool = False
    tensors: list[Tensor] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    defs: list[str] = field(default_factory=list)
    soft: int = 0
    volume: int = 1
    opaque: list[Value] | None = None
    names: int = 0
    plain: bool = False
    deepest: int = DEEPEST
    most: Mapping[str, int] | None = None

    # ---- drawing -----------------------------------------------------------------------------------------------------

    def pick(self, *options):
        """One of the options; the first is the simplest."""
        return self.draw.pick(*options)

    def chance(self, percent: int) -> bool:
        return self.draw.chance(percent)

    def fresh(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    def dim(self, text: str) -> Dim:
        return Dim(text, evaluated(text, self.sizes), evaluated(text, self.most or self.sizes))

    def some_dim(self) -> Dim:
        a, b = next(iter(self.sizes)), list(self.sizes)[-1]
        if self.plain or not self.chance(20):
            return self.dim(self.pick(*self.sizes))
        return self.dim(self.pick("3", f"{a} + 1", "1", f"{a} * {b}", f"{b} // 2", f"2 * {a}"))

    @contextmanager
    def softly(self):
        self.soft += 1
        yield
        self.soft -= 1

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
            dtype = self.pick(*INTEGERS)
            number = self.pick(*integers(dtype)) if self.chance(40) else self.pick(*ORDINARY)
            return Value(f"{dtype}({number})", dtype, abs(number), 0, True, number < 0)
        if self.chance(8):
            return Value(f"f32({self.pick('inf', '-inf', 'nan', '-0.0')})", F32, math.inf, 0, False)
        text, grain = self.pick(("1.0", 0), ("0.5", 1), ("2.0", 0), ("0.0", 0), ("1.25", 2), ("-0.5", 1))
        return (
            Value(f"{self.pick(F32, F32, F64)}({text})", F32, 2, grain, True, False)
            if self.chance(50)
            else Value(f"f32({text})", F32, 2, grain, True, False)
        )

    def index_value(self, scope: Scope) -> Value:
        if self.chance(20) and not self.plain:
            name = self.pick(*self.sizes)
            return Value(name, I64, self.dim(name).most, 0, True, False)
        index = self.pick(*scope.values())
        return Value(index.name, I64, max(1, index.dim.most), 0, True, False)

    def literal_like(self, value: Value) -> Value:
        """A number that takes the type of what it meets."""
        if value.dtype.is_float:
            if self.chance(5):
                return Value(self.pick("inf", "-inf", "nan"), value.dtype, math.inf, 0, False)
            text, bound, grain = self.pick(
                ("1", 1, 0), ("0.5", 1, 1), ("2", 2, 0), ("1.5", 2, 1), ("3", 3, 0), ("0", 0, 0), ("-0.25", 1, 2)
            )
            return Value(text, value.dtype, bound, grain, True, text.startswith("-"))
        edges = value.kind == "int" and self.chance(30)
        number = self.pick(*integers(value.dtype)) if edges else self.pick(1, 2, 3, 5, 7, 0)
        return Value(str(number), value.dtype, abs(number), 0, True, number < 0)

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
        if self.plain or self.pick("pad", "if") == "pad":
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
        if fitting and self.plain:
            return self.bare(self.pick(*fitting))
        if fitting:
            options += [lambda: self.bare(self.pick(*fitting))] * 6
            options.append(lambda: (f"{dim.text} - 1 - {self.pick(*fitting).name}", True, []))
            options.append(lambda: (f"{self.pick(*fitting).name} // {self.pick(2, 3)}", True, []))
        if shorter and not fitting and not self.plain:
            options.append(lambda: self.bare(self.pick(*shorter), stated=True))
        if dim.value > 0:
            options.append(lambda: (str(self.pick(0, dim.value - 1)), True, []))
            if scope and not self.plain:
                options.append(lambda: (f"{self.pick(*scope.values()).name} % ({dim.text})", True, []))
            if not self.plain:
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
                known = [t for t in self.inputs if t.ids == dim and t.wide != inside]
                if known and self.chance(50):
                    tensor = self.pick(*known)
                    plain = [[i for i in scope.values() if i.dim.text == d.text] for d in tensor.dims]
                    if all(plain):
                        return (
                            f"{tensor.name}[{', '.join(self.pick(*p).name for p in plain)}]" if plain else tensor.name
                        )
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
        dtype = self.pick(*(d for d in INTEGERS if limit(d) > dim.most + 2 and not (wide and d.kind == "uint")))
        element = Value("", dtype, dim.most + 1, 0, True, wide)
        tensor = Tensor(self.fresh("n"), tuple(i.dim for i in used), element, dtype, dim, wide)
        self.add_input(tensor)
        return tensor, [i.name for i in used]

    def new_input(self, scope: Scope, kind: str) -> tuple[Tensor, list[tuple[str, bool, list[Index]]]]:
        """An input whose dimensions suit the subscripts drawn."""
        dims, subscripts = [], []
        indices = [i for i in scope.values() if self.plain or not self.chance(25)]
        for index in self.draw.ordered(indices) if len(indices) > 1 and self.chance(40) else indices:
            for dim, subscript in self.fitted(scope, index):
                dims.append(dim)
                subscripts.append(subscript)
        if self.chance(5):
            dims.append(self.dim("3"))
            subscripts.append((str(self.pick(0, 1, 2)), True, []))
        if self.chance(5) or math.prod(d.most for d in dims) > self.deepest or len(dims) > 16:
            dims, subscripts = [], []
        dtype = {
            "float": lambda: self.pick(F32, F32, *FLOATS),
            "int": lambda: self.pick(*INTEGERS),
            "bool": lambda: BOOL,
        }
        tensor = Tensor(self.fresh("x"), tuple(dims), *self.fresh_element(dtype[kind]()))
        self.add_input(tensor)
        return tensor, subscripts

    def fresh_element(self, dtype: DType) -> tuple[Value, DType]:
        if dtype.is_float:
            if self.special and self.chance(60):
                return Value("", compute_type(dtype), math.inf, None, False), dtype
            return Value("", compute_type(dtype), 2, 2, not self.special), dtype
        if dtype is BOOL:
            return Value("", dtype, 1, 0, True, False), dtype
        wide = self.chance(60)
        return Value("", dtype, limit(dtype) if wide else 4, 0, True, dtype.kind == "int"), dtype

    def add_input(self, tensor: Tensor) -> None:
        self.tensors.append(tensor)
        self.inputs.append(tensor)

    def fitted(self, scope: Scope, index: Index) -> list[tuple[Dim, tuple[str, bool, list[Index]]]]:
        """One dimension, or two, and how an index subscripts them."""
        name, text = index.name, index.dim.text
        plain = [(index.dim, (name, True, [index]))]
        match self.plain or self.pick(
            "bare", "bare", "bare", "bare", "bare", "window", "stride", "part", "split", "join"
        ):
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
                others = [i for i in scope.values() if i.dim.most * index.dim.most <= self.deepest]
                if others:
                    other = self.pick(*others)
                    dim = self.dim(f"({text}) * ({other.dim.text})")
                    return [(dim, (f"{name} * ({other.dim.text}) + {other.name}", True, []))]
        return plain


REDUCTION = re.compile(r"\b(?:sum|prod|max|min|mean|logsumexp|any|all|argmax|argmin)\[([^][]*)\]\(")


def without_reductions(text: str, index: str) -> str:
    """An expression without its reductions over an index of this name."""
    place = 0
    while found := REDUCTION.search(text, place):
        place = found.end()
        if index not in (given.partition(" in ")[0] for given in found[1].split(", ")):
            continue
        depth, end = 1, place
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        text, place = text[: found.start()] + text[end:], found.start()
    return text


def _surely_shorter(a: Dim, b: Dim) -> bool:
    """Whether the checker can tell that a size is within another, whatever the names stand for."""
    if a.text.isdecimal() and b.text.isdecimal():
        return a.value < b.value
    return b.text in (f"{a.text} + 1", f"{a.text} + 2", f"2 * ({a.text}) + 1", f"2 * {a.text}")
