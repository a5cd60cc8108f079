"""A program under construction: tensors of known shape, and one equation for each operation on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from tests.outside.common import Inexpressible
from tilec.core.dtypes import from_numpy


def dtype_name(dtype: np.dtype) -> str:
    found = from_numpy(dtype) if np.dtype(dtype).kind not in "OSUc" else None
    if found is None:
        raise Inexpressible(f"type {dtype}")
    return found.name


@dataclass
class Tensor:
    name: str
    shape: tuple[int, ...]
    dtype: str

    def at(self, *subscripts: str) -> str:
        """An access; of a scalar, its name."""
        assert len(subscripts) == len(self.shape), (self, subscripts)
        return f"{self.name}[{', '.join(subscripts)}]" if subscripts else self.name

    def along(self, indices: Sequence[str], extents: Sequence[int]) -> str:
        """The access that NumPy's broadcasting gives: aligned at the last dimension, 0 where the extent is 1."""
        last = list(indices)[len(indices) - len(self.shape) :]
        whole = list(extents)[len(indices) - len(self.shape) :]
        return self.at(*("0" if n == 1 and e != 1 else i for i, n, e in zip(last, self.shape, whole)))


def indices(count: int, letter: str = "i") -> list[str]:
    return [f"{letter}{n}" for n in range(count)]


def ranges(names: Sequence[str], extents: Sequence[int]) -> str:
    return ", ".join(f"{i} in 0:{n}" for i, n in zip(names, extents))


def flat(names: Sequence[str], shape: Sequence[int]) -> str:
    """The place in row-major memory."""
    parts = [f"{i} * {prod(shape[d + 1 :])}" for d, i in enumerate(names)]
    return " + ".join(parts) or "0"


def unflat(place: str, shape: Sequence[int]) -> list[str]:
    """Subscripts of a place in row-major memory."""
    return ["0" if n == 1 else f"({place}) // {prod(shape[d + 1 :])} % {n}" for d, n in enumerate(shape)]


@dataclass
class Graph:
    """Equations so far; `inputs` are the program's arguments, by name, with their values."""

    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    count: int = 0

    def input(self, value: np.ndarray) -> Tensor:
        name = f"x{len(self.inputs)}"
        value = np.asarray(value)
        self.inputs[name] = np.ascontiguousarray(value) if value.ndim else value
        return Tensor(name, value.shape, dtype_name(value.dtype))

    def emit(self, shape: Sequence[int], dtype: str, expression: str | Callable[[list[str]], str]) -> Tensor:
        """A tensor by an expression of its indices i0, i1, ..."""
        names = indices(len(shape))
        text = expression if isinstance(expression, str) else expression(names)
        name = f"t{self.count}"
        self.count += 1
        left = f"{name}[{', '.join(names)}]" if names else name
        where = f" where {ranges(names, shape)}" if names else ""
        self.lines.append(f"  {left}: {dtype} = {text}{where}")
        return Tensor(name, tuple(int(n) for n in shape), dtype)

    def map(self, template: str, *operands: Tensor, dtype: str | None = None) -> Tensor:
        """Elementwise, broadcast; `{0}` is the first operand."""
        shape = np.broadcast_shapes(*(t.shape for t in operands))
        return self.emit(
            shape, dtype or operands[0].dtype, lambda i: template.format(*(t.along(i, shape) for t in operands))
        )

    def view(self, x: Tensor, shape: Sequence[int], subscripts: Callable[[list[str]], list[str]]) -> Tensor:
        return self.emit(shape, x.dtype, lambda i: x.at(*subscripts(i)))

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        if 0 in shape:
            raise Inexpressible("the result is known without the data")
        return self.view(x, shape, lambda i: unflat(flat(i, shape), x.shape))

    def reduce(
        self, kind: str, x: Tensor, axes: Sequence[int], keep: bool, body: str = "{0}", dtype: str | None = None,
        after: str = "{0}",
    ) -> Tensor:  # fmt: skip
        shape = [1 if d in axes else n for d, n in enumerate(x.shape)]
        short = [n for d, n in enumerate(x.shape) if d not in axes]

        def expression(i: list[str]) -> str:
            outer = list(i)
            if not keep:
                places = iter(i)
                outer = ["0" if d in axes else next(places) for d in range(len(x.shape))]
            inner = [f"k{d}" if d in axes else outer[d] for d in range(len(x.shape))]
            element = body.format(x.at(*inner))
            if not axes:
                return after.format(element)
            over = ranges([f"k{d}" for d in sorted(axes)], [x.shape[d] for d in sorted(axes)])
            return after.format(f"{kind}[{over}]({element})")

        return self.emit(shape if keep else short, dtype or x.dtype, expression)

    def program(self, outputs: Sequence[Tensor]) -> str:
        inputs = ", ".join(
            f"{n}: {dtype_name(a.dtype)}" + (f"[{', '.join(map(str, a.shape))}]" if a.ndim else "")
            for n, a in self.inputs.items()
        )
        results = ", ".join(
            f"{t.name}: {t.dtype}" + (f"[{', '.join(map(str, t.shape))}]" if t.shape else "") for t in outputs
        )
        return f"op f({inputs}) -> ({results}) {{\n" + "\n".join(self.lines) + "\n}"
