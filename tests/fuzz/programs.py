"""Random well-typed programs with sizes and inputs."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fuzz.accesses import FLOATS, INTEGERS, Index, Tensor
from fuzz.choices import Choices
from fuzz.edges import float_data, integer_data
from fuzz.expressions import Expressions
from fuzz.values import converted
from tilec.core.dtypes import BOOL, DType, compute_type

SIZES = [2, 3, 1, 4, 5, 0, 8, 7, 9, 13, 16, 17, 31, 33, 63, 64, 65, 127, 129, 130]
HUGE = [4096, 10_007, 65_537, 200_000]
"""Of one size, where the others are small."""


@dataclass(frozen=True)
class Case:
    """A program, the values of its sizes, and its inputs in order. `exact` names the results that no rounding reaches. The
    op is `f`, or the one of a short-form program, whose sizes its inputs tell.
    """

    text: str
    sizes: dict[str, int]
    inputs: dict[str, np.ndarray]
    exact: frozenset[str] = frozenset()

    @property
    def op(self) -> str | None:
        return "f" if "op f(" in self.text else None

    def __repr__(self) -> str:
        shown = "".join(f"\n{n} = {a.dtype}{list(a.shape)} {_short(a)}" for n, a in self.inputs.items())
        return f"sizes {self.sizes}\n{self.text}{shown}"


def _short(array: np.ndarray) -> str:
    return np.array2string(array.astype(np.float64) if array.dtype.kind == "V" else array, threshold=20)


def drawn_case(
    draw: Choices, statements: int | None = None, fuel: int | None = None, sizes: Sequence[int] = SIZES
) -> Case:
    """A program, sizes for it, and inputs. Most have one or two statements: what is wrong shows in few, and they are quick."""
    values = {name: draw.pick(*sizes) for name in "MNK"[: draw.integer(1, 3)]}
    huge = sizes is SIZES and draw.chance(1.5)
    if huge:
        values = {name: draw.pick(1, 2, 3) for name in values} | {draw.pick(*values): draw.pick(*HUGE)}
    fuel = fuel or draw.pick(1, 2, 2, 3, 3, 4)
    maker = Program(draw, values, fuel, special=draw.chance(15))
    if sizes is not SIZES:  # for what runs in Python alone
        maker.scope.deepest = 2000
    if huge:
        maker.scope.deepest = 3 * max(values.values())
    text, exact = maker.program(statements or draw.pick(1, 1, 1, 2, 2, 3, 6), short=draw.chance(20))
    seed = draw.below(1 << 16)
    return Case(
        text, maker.sizes(text), data(maker.inputs, seed, maker.special, values), exact
    )


class Program:
    """One op under construction, and the ops that it calls. Of sizes that vary, `most` are the greatest numbers, and `told` those
    that the shapes of inputs are to tell."""

    def __init__(
        self, draw: Choices, sizes: dict[str, int], fuel: int, special: bool, most: Mapping[str, int] | None = None,
        told: Collection[str] = (),
    ):  # fmt: skip
        self.scope, self.told = Expressions(draw, sizes, special, most=most), told
        self.draw, self.fuel, self.special = draw, fuel, special
        self.lines: list[str] = []
        self.read: set[str] = set()
        self.ops: list[str] = []
        self.made: list[tuple[Tensor, str]] = []

    @property
    def inputs(self) -> list[Tensor]:
        return self.scope.inputs

    def program(self, statements: int, short: bool = False) -> tuple[str, frozenset[str]]:
        """The text and the names of the exact results; in the short form if it is asked for, and can say the program."""
        self.scope.plain = short
        for _ in range(statements):
            self.equation()
            if not short and self.scope.chance(6):
                self.call()
        body = "\n".join(self.lines)
        unread = [t for t, _ in self.made if not _reads(self.lines, t.name)]
        # The sizes that arguments tell are known by no name there: a number that a range states is not known to be one.
        if short and not re.search(rf"\b({'|'.join(self.scope.sizes)})\b| in \d+:\d", body):
            return self.short_form(unread)
        results = [t for t, _ in self.made if t in unread or self.scope.chance(15)]
        text = body
        for tensor in results:  # a result's type stands in its declaration
            text = text.replace(f"@{tensor.name}@", "")
        for tensor, declared in self.made:
            text = text.replace(f"@{tensor.name}@", declared)
        self.bind(results)
        header = f"op f({', '.join(map(_declared, self.inputs))}) -> ({', '.join(map(_declared, results))})"
        exact = frozenset(t.name for t in results if t.element.exact)
        return "\n".join([*self.scope.defs, *self.ops, f"{header} {{", text, "}", ""]), exact

    def short_form(self, results: list[Tensor]) -> tuple[str, frozenset[str]]:
        """Statements without an op: the inputs are those that are read, in that order."""
        text = "\n".join(line.strip() for line in self.lines) + "\n"
        for tensor, declared in self.made:
            text = text.replace(f"@{tensor.name}@", declared)
        places = {t.name: re.search(rf"\b{t.name}\b", text) for t in self.inputs}
        self.inputs[:] = [t for t in self.inputs if places[t.name]]
        self.inputs.sort(key=lambda t: places[t.name].start())
        return "\n".join([*self.scope.defs, text]), frozenset(t.name for t in results if t.element.exact)

    def bind(self, results: list[Tensor], alone: bool = False) -> None:
        """An input that nothing reads tells the sizes that no other parameter or result does: for a called op, those that
        are no parameter's dimension `alone`.
        """
        reported = " ".join(
            d.text for t in (*self.inputs, *results) for d in t.dims if d.text in self.scope.sizes or not alone
        )
        message = " ".join([*self.lines, *(d.text for t, _ in self.made for d in t.dims)])
        if alone:
            message += " ".join(d.text for t in self.inputs for d in t.dims)
        missing = [n for n in self.scope.sizes if re.search(rf"\b{n}\b", message) and not re.search(rf"\b{n}\b", reported)]
        used = f"{message} {reported}"
        missing += [n for n in self.told if n not in missing and re.search(rf"\b{n}\b", used) and not self._tells(self.inputs, n)]
        if missing:
            element, dtype = self.scope.fresh_element(BOOL)
            self.inputs.append(
                Tensor(self.scope.fresh("unread"), tuple(self.scope.dim(n) for n in missing), element, dtype)
            )

    def sizes(self, text: str) -> dict[str, int]:
        if "op f(" not in text:
            return {}
        header = text.rpartition("op f(")[2].partition("\n")[0]
        return {n: v for n, v in self.scope.sizes.items() if re.search(rf"\b{n}\b", header)}

    def equation(self) -> None:
        scope = self.scope
        indices: dict[str, Index] = {}
        volume = 1
        shapes = [t.dims for t in scope.tensors if t.dims and len(t.dims) < 4]
        count = scope.pick(1, 2, 2, 3, 0) if not scope.chance(3) else self.draw.integer(4, 16)
        like = scope.pick(*reversed(shapes))[:count] if shapes and scope.chance(60) else ()
        for k, letter in enumerate("ijlhabcdeopqrstu"[:count]):
            dim = like[k] if k < len(like) else scope.some_dim()
            if volume * max(1, dim.most) > scope.deepest:
                dim = scope.dim("1")
            volume *= max(1, dim.most)
            indices[letter] = Index(letter, dim)
        scope.volume = volume
        value = scope.expression(indices, scope.pick(*range(self.fuel), *[self.fuel] * 3))
        dtype = self.stored(value)
        stored = converted(value, dtype, wild=scope.chance(30))
        if stored is None:
            dtype = value.dtype
            stored = converted(value, dtype)
        name = scope.fresh("y")
        dims = tuple(i.dim for i in indices.values())
        left = f"{name}[{', '.join(indices)}]" if indices else name
        seen = without_unread(stored.text, scope.defs)
        stated = [i for i in indices.values() if not i.reported_by(seen) or (not scope.plain and scope.chance(10))]
        where = f" where {', '.join(f'{i.name} in 0:{i.dim.text}' for i in stated)}" if stated else ""
        self.lines.append(f"    {left}@{name}@ = {stored.text}{where}")
        element = replace(stored, text="", dtype=compute_type(dtype))
        tensor = Tensor(name, dims, element, dtype)
        scope.tensors.append(tensor)
        self.made.append((tensor, f": {dtype}"))

    def stored(self, value) -> DType:
        """The declared type of a name: mostly what is computed."""
        if not self.scope.chance(40):
            return value.dtype
        return self.scope.pick(*FLOATS, *INTEGERS, BOOL)

    def _tells_sizes(self, inputs: list[Tensor], texts: list[str]) -> bool:
        """Whether the shapes of arguments say what each size is that an op uses."""
        used = [n for n in self.scope.sizes if any(re.search(rf"\b{n}\b", text) for text in texts)]
        return all(self._tells(inputs, n) for n in used)

    @staticmethod
    def _tells(inputs: list[Tensor], size: str) -> bool:
        return any(_linear(d.text, size) for t in inputs for d in t.dims)

    def call(self) -> None:
        """A call of an op that is made for it, with tensors that are there or new inputs."""
        inner = Program(self.draw, self.scope.sizes, 1, self.special, self.scope.most)
        inner.scope.names = self.scope.names
        for _ in range(self.scope.pick(1, 1, 2, 3)):
            inner.equation()
        self.scope.names = inner.scope.names
        inner.bind([], alone=True)
        results, op = [tensor for tensor, _ in inner.made], self.scope.fresh("g")
        if not self._tells_sizes(inner.inputs, [*inner.lines, *map(_declared, [*inner.inputs, *results])]):
            return
        header = f"op {op}({', '.join(map(_declared, inner.inputs))}) -> ({', '.join(map(_declared, results))})"
        body = re.sub(r"@\w+@", "", "\n".join(inner.lines))
        self.ops += [*inner.scope.defs, f"{header} {{\n{body}\n}}"]
        arguments = []
        for wanted in inner.inputs:
            known = [t for t in self.scope.tensors if _suits(t, wanted)]
            if known and self.scope.chance(60):
                arguments.append(self.scope.pick(*known).name)
            else:
                self.scope.add_input(wanted)
                arguments.append(wanted.name)
        made = [replace(result, name=self.scope.fresh("y")) for result in results]
        if len(set(arguments)) < len(arguments) or not arguments:
            return
        self.lines.append(f"    {', '.join(t.name for t in made)} = {op}({', '.join(arguments)})")
        self.scope.tensors += made
        self.made += [(tensor, "") for tensor in made]


def _linear(text: str, size: str) -> bool:
    """Whether an extent is a multiple of a size and a number, so that the extent tells the size."""
    return re.fullmatch(rf"[\d\s*+()-]*\b{size}\b[\d\s*+()-]*", text) is not None


def without_unread(text: str, functions: list[str]) -> str:
    """A value less the arguments of functions that may not read them: such tell no index's range."""
    for function in functions:
        name, parameters, result = re.search(r"def (\w+).*?\((.*)\) \{.*return (.*)\n", function, re.DOTALL).groups()
        if all(re.search(rf"\b{p}\b", result) for p in parameters.split(", ")):
            continue
        while call := re.search(rf"\b{name}\b[^(]*\(", text):
            depth, end = 1, call.end()
            while depth:
                depth += {"(": 1, ")": -1}.get(text[end], 0)
                end += 1
            text = text[: call.start()] + "0" + text[end:]
    return text


def _suits(tensor: Tensor, wanted: Tensor) -> bool:
    a, b = tensor.element, wanted.element
    better = a.bound <= b.bound and (a.grain is not None and a.grain <= (b.grain or 0)) and a.finite >= b.finite
    same = tensor.dtype is wanted.dtype and tensor.dims == wanted.dims
    return same and better and a.negative <= b.negative and wanted.ids is None


def _reads(lines: list[str], name: str) -> bool:
    return any(re.search(rf"(?<![\w@]){name}(?![\w@])", line.partition(" = ")[2]) for line in lines)


def _declared(tensor: Tensor) -> str:
    dims = ", ".join(d.text for d in tensor.dims)
    return f"{tensor.name}: {tensor.dtype}" + (f"[{dims}]" if dims else "")


def data(tensors: Sequence[Tensor], seed: int, special: bool, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Numbers for inputs, where sizes are these."""
    return {t.name: _data(t, np.random.default_rng([seed, n]), special, sizes) for n, t in enumerate(tensors)}


def _data(tensor: Tensor, rng: np.random.Generator, special: bool, sizes: Mapping[str, int]) -> np.ndarray:
    """Elements that keep what the tensor promises: multiples of a quarter, small or any integers, subscripts."""
    shape, dtype = tuple(d.at(sizes) for d in tensor.dims), tensor.dtype
    if tensor.ids is not None:
        count = tensor.ids.at(sizes)
        low, high = (-2, count + 2) if tensor.wide else (0, max(1, count))
        return np.asarray(rng.integers(low, high, shape)).astype(dtype.numpy)
    if dtype is BOOL:
        return np.asarray(rng.integers(0, 2, shape)).astype(bool)
    if dtype.is_float:
        if not tensor.element.exact:
            return float_data(rng, dtype, shape)
        array = np.asarray(rng.integers(-8, 9, shape) / 4)
        if special:
            array = np.where(rng.random(shape) < 0.1, rng.choice([np.nan, np.inf, -np.inf, -0.0], shape), array)
        with np.errstate(all="ignore"):
            return np.asarray(array).astype(dtype.numpy)
    if tensor.element.bound > 4:
        return integer_data(rng, dtype, shape)
    return np.asarray(rng.integers(max(-4, np.iinfo(dtype.numpy).min), 4, shape, dtype.numpy, endpoint=True))
