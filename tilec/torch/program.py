"""A program under construction: tensors of known shape, and one equation for each operation on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tilec.core.dtypes import DTYPES, from_numpy
from tilec.torch import indices as ix
from tilec.torch.indices import Index

Subscript = Index | str
Positions = Callable[[Sequence[Index]], list[Index]]

_KEYWORDS = "op def return where if else and or not in using expect import true false pad rand"
WORDS = frozenset(_KEYWORDS.split())


class Inexpressible(Exception):
    """Why the language cannot say an operation: the reason is what cases are counted by, and what a split of a graph tells."""


def dtype_name(dtype: np.dtype) -> str:
    found = from_numpy(dtype) if np.dtype(dtype).kind not in "OSUc" else None
    if found is None:
        raise Inexpressible(f"type {dtype}")
    return found.name


@dataclass(frozen=True)
class Tensor:
    """A value of the program, of the type `dtype`. A view is an access to another's elements, which nothing stores: `positions`
    gives the subscripts of the tensor of that name. A tensor by a `formula` is nowhere stored either: a number, or what is made
    of its subscripts. `nominal` is the type that it is to have where it leaves the program, if the program keeps it wider."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nominal: str = ""
    positions: Positions | None = None
    formula: Callable[[Sequence[Index]], str] | None = None

    def at(self, *subscripts: Subscript) -> str:
        """An access; of a scalar, its name."""
        assert len(subscripts) == len(self.shape), (self, subscripts)
        if self.positions is not None or self.formula is not None:
            known = [s if isinstance(s, Index) else ix.opaque(s) for s in subscripts]
            subscripts = tuple(self.positions(known) if self.positions else known)
            if self.formula is not None:
                return self.formula(known if self.positions is None else self.positions(known))
        texts = [s.sum_text() if isinstance(s, Index) else s for s in subscripts]
        return f"{self.name}[{', '.join(texts)}]" if texts else self.name

    def along(self, indices: Sequence[Subscript], extents: Sequence[int]) -> str:
        """The access that NumPy's broadcasting gives: aligned at the last dimension, 0 where the extent is 1."""
        last = list(indices)[len(indices) - len(self.shape) :]
        whole = list(extents)[len(indices) - len(self.shape) :]
        return self.at(*(ix.number(0) if n == 1 and e != 1 else i for i, n, e in zip(last, self.shape, whole)))

    @property
    def torch_dtype(self) -> str:
        """The type that PyTorch gives it, by its name here."""
        return self.nominal or self.dtype

    def seen(self, shape: Sequence[int], positions: Callable[[Sequence[Index]], Sequence[Index]]) -> Tensor:
        """A view: an element of it is this tensor's at `positions`."""
        before = self.positions
        after: Positions = (lambda i: before(list(positions(i)))) if before else (lambda i: list(positions(i)))
        return replace(self, shape=tuple(int(n) for n in shape), positions=after)

    def reshaped(self, shape: Sequence[int]) -> Tensor:
        """A view of the same elements in row-major order."""
        if 0 in shape:
            raise Inexpressible("tensors without elements")
        mine = self.shape
        return self.seen(shape, lambda i: ix.unflat(ix.flat(i, ix.row_major(shape)), mine))

    def expanded(self, shape: Sequence[int]) -> Tensor:
        """A view that repeats what has one element along a dimension, aligned at the last one."""
        lead, mine = len(shape) - len(self.shape), self.shape
        return self.seen(shape, lambda i: [j if n > 1 else ix.number(0) for j, n in zip(list(i)[lead:], mine)])

    def permuted(self, order: Sequence[int]) -> Tensor:
        """Dimension d of the view is dimension `order[d]`."""
        return self.seen([self.shape[p] for p in order], lambda i: [i[list(order).index(d)] for d in range(len(order))])

    @property
    def is_rearranged(self) -> bool:
        """Whether the view does more than order dimensions anew, so that being outside of it is not being outside of the tensor."""
        if self.positions is None or self.formula is not None:
            return self.formula is not None
        names = [ix.name(f"k{d}", n) for d, n in enumerate(self.shape)]
        found = [str(p) for p in self.positions(names)]
        return any(n != 1 and str(i) not in found for i, n in zip(names, self.shape)) or any(
            f not in [str(i) for i in names] and f != "0" for f in found
        )


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


def literal(value: float | int | bool, dtype: str = "") -> str:
    """A number of this type as text; without one, as Python's type has it. Integers beyond the type wrap around."""
    if isinstance(value, bool) and dtype in ("", "bool"):
        return str(value).lower()
    if dtype == "bool":
        return str(bool(value)).lower()
    if isinstance(value, bool | int) and (not dtype or not DTYPES[dtype].is_float):
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
        outer = iter([p for d, p in enumerate(i) if d not in axes] if keepdim else i)
        inner = [ix.name(f"k{d}", n) if d in axes else next(outer) for d, n in enumerate(x.shape)]
        element = body.format(x.at(*inner)) if isinstance(body, str) else body(inner)
        if not axes:
            return after.format(element)
        over = ranges([f"k{d}" for d in axes], [x.shape[d] for d in axes])
        return after.format(f"{kind}[{over}]({element})")

    return shape if keepdim else short, dtype or x.dtype, expression


@dataclass
class Graph:
    """Equations so far. `inputs` are the program's arguments by name; `values` their values, where these are known."""

    inputs: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, np.ndarray] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    hint: str = "t"

    def argument(self, name: str, shape: Sequence[int], dtype: str) -> Tensor:
        """An input of the program."""
        name = self._free(name)
        self.inputs[name] = made = Tensor(name, tuple(int(n) for n in shape), dtype)
        return made

    def input(self, value: np.ndarray) -> Tensor:
        """An input whose value is known."""
        value = np.asarray(value)
        made = self.argument(f"x{len(self.inputs)}", value.shape, dtype_name(value.dtype))
        self.values[made.name] = np.ascontiguousarray(value) if value.ndim else value
        return made

    def _free(self, hint: str) -> str:
        """A name like this one that nothing has."""
        base = hint + "_" if hint in WORDS or hint in DTYPES else hint
        name, n = base, 0
        while name in self.names:
            name, n = f"{base}_{n}", n + 1
        self.names.add(name)
        return name

    def emit(
        self, shape: Sequence[int], dtype: str, expression: str | Callable[[list[Index]], str], nominal: str = ""
    ) -> Tensor:
        """A tensor by an expression of its indices i0, i1, ..."""
        shape = tuple(int(n) for n in shape)
        name = self._free(self.hint)
        text = expression if isinstance(expression, str) else expression(positions(shape))
        names = indices(len(shape))
        left = f"{name}[{', '.join(names)}]" if names else name
        where = f" where {ranges(names, shape)}" if names else ""
        self.lines.append(f"  {left}: {dtype} = {text}{where}")
        return Tensor(name, shape, dtype, nominal if nominal != dtype else "")

    def map(self, template: str, *operands: Tensor, dtype: str | None = None) -> Tensor:
        """Elementwise, broadcast; `{0}` is the first operand."""
        shape = np.broadcast_shapes(*(t.shape for t in operands))
        return self.emit(
            shape, dtype or operands[0].dtype, lambda i: template.format(*(t.along(i, shape) for t in operands))
        )

    def stored(self, x: Tensor) -> Tensor:
        """The tensor itself, where being outside of it can be asked: a view that rearranges is copied."""
        return self.copied(x) if x.is_rearranged else x

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
        """The text. A result that is an input, a view or another result is copied, and one that is kept wider is rounded."""
        results: list[Tensor] = []
        for t in outputs:
            itself = t.positions is None and t.formula is None and not t.nominal and t.name not in self.inputs
            if not itself or t.name in [r.name for r in results]:
                self.hint = f"{t.name}_out" if t.name else "out"
                t = self.copied(t, t.torch_dtype)
            results.append(t)
        declared = lambda t: f"{t.name}: {t.dtype}" + (f"[{', '.join(map(str, t.shape))}]" if t.shape else "")  # noqa: E731
        inputs, leaving = (", ".join(map(declared, ts)) for ts in (self.inputs.values(), results))
        return f"op {name}({inputs}) -> ({leaving}) {{\n" + "\n".join(self.lines) + "\n}"
