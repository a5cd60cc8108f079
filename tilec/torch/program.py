"""A program under construction: tensors of known shape, and one equation for each operation on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from typing import TypeVar

import numpy as np

from tilec.core.dtypes import DTYPES, from_numpy
from tilec.index.questions import divisions
from tilec.torch import indices as ix
from tilec.torch.extents import broadcast
from tilec.torch.extents import shape as extents_of
from tilec.torch.indices import Index
from tilec.torch.unsupported import Unsupported

Subscript = Index | str
S = TypeVar("S", bound=Subscript)
Positions = Callable[[Sequence[Index]], list[Index]]

_KEYWORDS = "op def return where if else and or not in using expect import true false pad rand"
_WORD = re.compile(r"[A-Za-z_]\w*")
WORDS = frozenset(_KEYWORDS.split())


def reason(error: Exception) -> str:
    """Why an operation could not be translated; PyTorch runs it, whatever the error is."""
    return str(error) if isinstance(error, Unsupported) else f"{type(error).__name__}: {error}"


def dtype_name(dtype: np.dtype) -> str:
    found = from_numpy(dtype) if np.dtype(dtype).kind not in "OSUc" else None
    if found is None:
        raise Unsupported(f"type {dtype}")
    return found.name


@dataclass(frozen=True)
class Tensor:
    """A value of the program, of the type `dtype`. A view is an access to another's elements, which nothing stores: `positions`
    gives the subscripts of the tensor of that name. A tensor by a `formula` is nowhere stored either: a number, or what is made
    of its subscripts; `affine` gives the same as an index, where it is one. `nominal` is the type that it is to have where it
    leaves the program, if the program keeps it wider. `origin` is a tensor and a number whose product it is, where it is a
    multiple of another, or another in a wider type: a sum of products may read that, and multiply once."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nominal: str = ""
    positions: Positions | None = None
    formula: Callable[[Sequence[Index]], str] | None = None
    affine: Callable[[Sequence[Index]], Index] | None = None
    origin: tuple[Tensor, float] | None = None

    def at(self, *subscripts: Subscript) -> str:
        """An access; of a scalar, its name."""
        assert len(subscripts) == len(self.shape), (self, subscripts)
        if self.positions is not None or self.formula is not None:
            known = [s if isinstance(s, Index) else ix.opaque(s) for s in subscripts]
            known = self.positions(known) if self.positions is not None else known
            if self.formula is not None:
                return self.formula(known)
            subscripts = tuple(known)
        texts = [s.sum_text() if isinstance(s, Index) else s for s in subscripts]
        return f"{self.name}[{', '.join(texts)}]" if texts else self.name

    def index_at(self, *subscripts: Index) -> Index | None:
        """An element as an index, where it is a sum of indices."""
        if self.affine is None:
            return None
        return self.affine(self.positions(subscripts) if self.positions is not None else subscripts)

    def along(self, indices: Sequence[Subscript], extents: Sequence[int]) -> str:
        """The access that NumPy's broadcasting gives."""
        return self.at(*self.aligned(indices, extents))

    def aligned(self, indices: Sequence[S], extents: Sequence[int]) -> list[S | Index]:
        """Subscripts as NumPy broadcasts: from the last dimension on, 0 where the extent is 1."""
        last = list(indices)[len(indices) - len(self.shape) :]
        whole = list(extents)[len(indices) - len(self.shape) :]
        return [ix.number(0) if n == 1 and e != 1 else i for i, n, e in zip(last, self.shape, whole)]

    @property
    def torch_dtype(self) -> str:
        """The type that PyTorch gives it, by its name here."""
        return self.nominal or self.dtype

    def seen(self, shape: Sequence[int], positions: Callable[[Sequence[Index]], Sequence[Index]]) -> Tensor:
        """A view: an element of it is this tensor's at `positions`."""
        before = self.positions
        after: Positions = (lambda i: before(list(positions(i)))) if before else (lambda i: list(positions(i)))
        origin = (self.origin[0].seen(shape, positions), self.origin[1]) if self.origin else None
        return replace(self, shape=extents_of(shape), positions=after, origin=origin)

    def reshaped(self, shape: Sequence[int]) -> Tensor:
        """A view of the same elements in row-major order."""
        if 0 in shape:
            raise Unsupported("tensors without elements")
        mine = self.shape
        return self.seen(shape, lambda i: ix.unflat(ix.flat(i, ix.row_major(shape)), mine))

    def times(self, factor: float) -> tuple[Tensor, float] | None:
        """This times a number, as the origin of that; None where sums of its own products may overflow or vanish."""
        tensor, own = self.origin or (self, 1.0)
        return (tensor, own * factor) if 2**-10 <= abs(own * factor) <= 2**10 else None

    def expanded(self, shape: Sequence[int]) -> Tensor:
        """A view that repeats what has one element along a dimension, aligned at the last one."""
        lead, mine = len(shape) - len(self.shape), self.shape
        return self.seen(shape, lambda i: [j if n > 1 else ix.number(0) for j, n in zip(list(i)[lead:], mine)])

    def permuted(self, order: Sequence[int]) -> Tensor:
        """Dimension d of the view is dimension `order[d]`."""
        return self.seen([self.shape[p] for p in order], lambda i: [i[list(order).index(d)] for d in range(len(order))])


def indices(count: int, letter: str = "i") -> list[str]:
    return [f"{letter}{n}" for n in range(count)]


def ranges(names: Sequence[str], extents: Sequence[int]) -> str:
    return ", ".join(f"{i} in 0:{n}" for i, n in zip(names, extents))


def positions(count_or_shape: Sequence[int], letter: str = "i") -> list[Index]:
    """An index for each dimension."""
    return [ix.name(f"{letter}{d}", n) for d, n in enumerate(count_or_shape)]


def constant(shape: Sequence[int], dtype: str, value: float | int | bool) -> Tensor:
    """A tensor of one number."""
    text = literal(value, dtype)
    if dtype == "f64" and np.isfinite(value) and float(np.float32(value)) != float(value):
        text = f"f64({text})"  # a number alone is an f32
    return Tensor("", tuple(shape), dtype, formula=lambda i: text)


def count(number: int, dtype: str = "f32") -> str:
    """A count of elements as text of a type of floats."""
    return literal(float(number)) if isinstance(number, int) else f"{dtype}({number})"


def literal(value: float | int | bool, dtype: str = "") -> str:
    """A number of this type as text; without one, as Python's type has it. Integers beyond the type wrap around."""
    if isinstance(value, bool) and dtype in ("", "bool"):
        return str(value).lower()
    if dtype == "bool":
        return str(bool(value)).lower()
    if not DTYPES[dtype].is_float if dtype else isinstance(value, bool | int):
        value = int(value)
        if dtype:
            bits, signed = DTYPES[dtype].bits, DTYPES[dtype].kind == "int"
            value = (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1) if signed else value % (1 << bits)
            if signed and value == -(1 << bits - 1):
                return f"({value + 1} - 1)"
        return f"({value})" if value < 0 else str(value)
    value = float(value)
    if dtype and dtype != "f64" and np.isfinite(value):
        with np.errstate(over="ignore"):
            value = value if np.isfinite(np.float32(value)) else value * np.inf
    if np.isnan(value):
        return "nan"
    if np.isinf(value):
        return "inf" if value > 0 else "(-inf)"
    text = repr(value)
    return f"({text})" if text.startswith("-") else text


LARGEST_F8E4M3 = 448.0


@cache
def saturates() -> bool:
    """Whether PyTorch has the largest number of float8_e4m3fn for larger ones and infinities, as from 2.12 on, and not NaN as the
    language has. Its other types of 8 bits keep infinities, or are none of the language's."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        return bool(torch.tensor(2 * LARGEST_F8E4M3).to(torch.float8_e4m3fn).float() == LARGEST_F8E4M3)


def converted(text: str, source: str, dtype: str) -> str:
    """A number of one type as one of another, as PyTorch converts it."""
    if dtype == "u8" and DTYPES[source].is_float:  # by way of integers, where it is negative
        return f"u8(i64({text}))"
    if dtype == "f8e4m3" and source not in ("bool", "i8", "u8", "f8e4m3") and saturates():
        wide = text if DTYPES[source].is_float else f"f32({text})"
        return f"f8e4m3(clamp({wide}, {-LARGEST_F8E4M3}, {LARGEST_F8E4M3}))"
    return f"{dtype}({text})"


def reduction(kind: str, extents: Sequence[int], inside: Callable[[list[Index]], str]) -> str:
    """A reduction over indices k0, k1, ... of these extents; of no index, what would be reduced."""
    many = [n for n in extents if n != 1] or list(extents[:1])

    def spread(k: Sequence[Index]) -> str:
        found = iter(k)
        return inside([next(found) if n != 1 or len(many) == len(extents) == 1 else ix.number(0) for n in extents])

    if not many:
        return inside([])
    if kind in ("argmax", "argmin"):
        return f"{kind}[k0 in 0:{many[0]}]({spread([ix.name('k0', many[0])])})"
    found, text = in_parts(indices(len(many), "k"), many, spread, "k", [0] if many == [1] else ())
    return f"{kind}[{ranges(indices(len(found), 'k'), found)}]({text})"


def reducing(
    kind: str, x: Tensor, axes: Sequence[int], keepdim: bool, body: str | Callable[[list[Index]], str] = "{0}",
    dtype: str | None = None, after: str = "{0}",
) -> tuple[list[int], str, Callable[[list[Index]], str]]:  # fmt: skip
    """Shape, type and expression of a reduction over these dimensions: of `body` with an element, or of what it is at given
    positions, put into `after`."""
    axes = sorted(axes)
    shape = [1 if d in axes else n for d, n in enumerate(x.shape)]
    short = [n for d, n in enumerate(x.shape) if d not in axes]

    def expression(i: list[Index]) -> str:
        outer = list([p for d, p in enumerate(i) if d not in axes] if keepdim else i)

        def inside(k: Sequence[Index]) -> str:
            at, rest = dict(zip(axes, k)), iter(outer)
            inner = [at[d] if d in at else next(rest) for d in range(len(x.shape))]
            return body.format(x.at(*inner)) if isinstance(body, str) else body(inner)

        return after.format(reduction(kind, [x.shape[d] for d in axes], inside))

    return shape if keepdim else short, dtype or x.dtype, expression


def in_parts(
    names: Sequence[str],
    extents: Sequence[int],
    make: Callable[[list[Index]], str],
    letter: str,
    whole: Sequence[int] = (),
) -> tuple[tuple[int, ...], str]:
    """The text that `make` gives for indices of these names, and their extents: where the text has only quotients and remainders
    of one, there is an index for each part instead, but for those that are to stay `whole`; and of one element none. Names are
    the letter and a number."""
    own = [ix.name(n, e) for n, e in zip(names, extents)]
    with ix.printed() as read:
        text = make(own)
    if 0 in extents:
        return tuple(extents), text
    few = [[e] if e > 1 or d in whole else [] for d, e in enumerate(extents)]
    for parts in ([ix.digits(own[d], f[0], read) if f and d not in whole else f for d, f in enumerate(few)], few):
        if all(len(p) == 1 for p in parts):
            break
        count = iter(range(sum(map(len, parts))))
        found = [ix.flat([ix.name(f"{letter}{next(count)}", n) for n in p], ix.row_major(p)) for p in parts]
        with ix.printed() as finer_read:
            finer = make(found)
        if divisions(finer_read) < divisions(read) + (parts is few):
            return tuple(n for p in parts for n in p), finer
    return tuple(extents), text


@dataclass
class Graph:
    """Equations so far, and what each of them `stored`. `inputs` are the program's arguments by name; `values` their values,
    where these are known. `functions` has names and texts of functions that statements call. `orders` has, for shapes, the order
    of memory in which the dimensions of a new tensor are stored, if it is not theirs. `ranks` has, by the name of a sort's
    places, the rank of each element: the inverse permutation. `rows` has, by the name of a matrix whose rows are another one's at
    positions that are data, that matrix and the positions."""

    inputs: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, np.ndarray] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    stored: dict[str, Tensor] = field(default_factory=dict)
    results: list[Tensor] = field(default_factory=list)
    printed: list[int] = field(default_factory=list)
    hint: str = "t"
    functions: dict[str, tuple[str, str]] = field(default_factory=dict)
    orders: Mapping[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    ranks: dict[str, Tensor] = field(default_factory=dict)
    rows: dict[str, tuple[Tensor, Callable[[Index], Index]]] = field(default_factory=dict)

    def argument(self, name: str, shape: Sequence[int], dtype: str) -> Tensor:
        """An input of the program."""
        name = self.fresh(name)
        self.inputs[name] = made = Tensor(name, extents_of(shape), dtype)
        return made

    def input(self, value: np.ndarray) -> Tensor:
        """An input whose value is known."""
        value = np.asarray(value)
        made = self.argument(f"x{len(self.inputs)}", value.shape, dtype_name(value.dtype))
        self.values[made.name] = np.ascontiguousarray(value) if value.ndim else value
        return made

    def fresh(self, hint: str) -> str:
        """A name like this one that nothing has."""
        base = hint + "_" if hint in WORDS or hint in DTYPES else hint
        name, n = base, 0
        while name in self.names:
            name, n = f"{base}_{n}", n + 1
        self.names.add(name)
        return name

    def emit(
        self, shape: Sequence[int], dtype: str, expression: str | Callable[[list[Index]], str], nominal: str = "",
        whole: Sequence[int] = (),
    ) -> Tensor:  # fmt: skip
        """A tensor by an expression of its indices i0, i1, ... An index that is only read in parts, as `i0 // 4` and `i0 % 4`,
        becomes an index for each part: the tensor is stored so, and what is returned is a view of it that has the shape. So it is
        where `orders` has another order of its dimensions."""
        shape = extents_of(shape)
        if callable(expression) and shape in self.orders:
            order = self.orders[shape]
            dims = [order.index(d) for d in range(len(order))]
            inside = replace(self, orders={})  # the same statements and names
            stored = inside.emit([shape[d] for d in order], dtype, lambda i: expression([i[k] for k in dims]), nominal,
                                 [dims[d] for d in whole])  # fmt: skip
            return stored.permuted(dims)
        made = self.fresh(self.hint)
        make = expression if not isinstance(expression, str) else lambda i: expression
        extents, text = in_parts(indices(len(shape)), shape, make, "i", whole)
        names = indices(len(extents))
        left = f"{made}[{', '.join(names)}]" if names else made
        where = f" where {ranges(names, extents)}" if names else ""
        self.lines.append(f"  {left}: {dtype} = {text}{where}")
        stored = self.stored[made] = Tensor(made, extents, dtype, nominal if nominal != dtype else "")
        return stored if extents == shape else stored.reshaped(shape)

    def map(self, template: str, *operands: Tensor, dtype: str | None = None) -> Tensor:
        """Elementwise, broadcast; `{0}` is the first operand."""
        shape = broadcast(*(t.shape for t in operands))
        return self.emit(
            shape, dtype or operands[0].dtype, lambda i: template.format(*(t.along(i, shape) for t in operands))
        )

    def solid(self, x: Tensor, dims: Sequence[int]) -> Tensor:
        """The tensor itself, where it is asked for what is outside of it in these dimensions: some views are copied."""
        if x.positions is None and x.formula is None:
            return x
        if self._is_bare(x, dims):  # what is outside stays outside: subscripts are made as of indices that are inside
            return x.seen(x.shape, lambda i: [ix.within(p, x.shape[d]) if d in dims else p for d, p in enumerate(i)])
        return self.emit(x.shape, x.dtype, lambda i: x.at(*i), x.nominal, range(len(x.shape)))

    def _is_bare(self, x: Tensor, dims: Sequence[int]) -> bool:
        """Whether being outside of the view in these dimensions is being outside of the tensor: each is one of its dimensions, and
        all of that."""
        if x.formula is not None or x.positions is None:
            return False
        stored = (self.stored.get(x.name) or self.inputs[x.name]).shape
        names = [ix.name(f"k{d}_", n) for d, n in enumerate(x.shape)]
        found = [str(p) for p in x.positions(names)]
        for d in dims:
            at = [k for k, text in enumerate(found) if str(names[d]) in text]
            if len(at) != 1 or found[at[0]] != str(names[d]) or stored[at[0]] != x.shape[d]:
                return False
        return True

    def copied(self, x: Tensor, dtype: str | None = None) -> Tensor:
        return self.emit(x.shape, dtype or x.dtype, lambda i: x.at(*i), x.nominal if dtype is None else "")

    def view(self, x: Tensor, shape: Sequence[int], subscripts: Callable[[list[Index]], Sequence[Subscript]]) -> Tensor:
        """A tensor of elements of another."""
        return self.emit(shape, x.dtype, lambda i: x.at(*subscripts(i)), x.nominal)

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        return self.copied(x.reshaped(shape))

    def reduce(
        self, kind: str, x: Tensor, axes: Sequence[int], keepdim: bool, body: str = "{0}", dtype: str | None = None,
        after: str = "{0}",
    ) -> Tensor:  # fmt: skip
        return self.emit(*reducing(kind, x, axes, keepdim, body, dtype, after))

    def program(self, outputs: Sequence[Tensor], name: str = "f") -> str:
        """The text. A result that is an input, a view or another result is copied, and one that is kept wider is rounded.
        `results` then has what is returned: the elements of the outputs in row-major order, whose dimensions may be in parts;
        `printed` has the numbers of the lines that they depend on."""
        self.results = []
        for t in outputs:
            if (result := self._itself(t)) is None or result in self.results:
                self.hint = f"{t.name}_out" if t.name else "out"
                made = self.copied(t, t.torch_dtype)
                result = self.stored[made.name]
            self.results.append(result)
        self.printed = self._read([t.name for t in self.results])
        declared = lambda t: f"{t.name}: {t.dtype}" + (f"[{', '.join(map(str, t.shape))}]" if t.shape else "")  # noqa: E731
        inputs, leaving = (", ".join(map(declared, ts)) for ts in (self.inputs.values(), self.results))
        functions = "".join(f"{text}\n" for _, text in self.functions.values())
        return f"{functions}op {name}({inputs}) -> ({leaving}) {{\n" + "\n".join(self.lines[n] for n in self.printed) + "\n}"

    def _itself(self, t: Tensor) -> Tensor | None:
        """The stored tensor whose elements, in their order, these are."""
        found = self.stored.get(t.name)
        if found is None or t.formula is not None or t.nominal or prod(t.shape) != prod(found.shape):
            return None
        if t.positions is None:
            return found
        here = positions(found.shape)
        return found if t.reshaped(found.shape).at(*here) == found.at(*here) else None

    def _read(self, results: Sequence[str]) -> list[int]:
        """The numbers of the statements that results depend on."""
        wanted, found = set(results), []
        for number in reversed(range(len(self.lines))):
            name, *words = _WORD.findall(self.lines[number])
            if name in wanted:
                wanted.update(words)
                found.append(number)
        return found[::-1]
