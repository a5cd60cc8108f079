"""Random programs whose sizes vary: the ranges of sizes, and the numbers that they are called with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fuzz.accesses import Dim, Tensor
from fuzz.choices import Choices
from fuzz.programs import SIZES, Case, Program, data
from fuzz.values import Value
from tilec.core.dtypes import BOOL, DTYPES, compute_type
from tilec.core.varying import Varying

CALLS = 5
PRODUCTS = 15
"""Percent of programs that are a product of matrices, or attention."""
TRIES = 4  # at programs that depend on a size that varies
AROUND = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1024, 2047, 2048, 2049)
"""Ends of classes of sizes, and numbers around tiles."""
FEW = (3, 5, 9, 17, 18, 33)
"""The greatest numbers that sizes are called with, for what runs in Python alone."""
MANY = (5, 17, 20, 33, 66, 130, 300)
ALONE = (600, 2049, 4100)
"""As MANY, where only one size varies."""


@dataclass(frozen=True)
class Sized:
    """A program, the ranges of the sizes that vary, and the numbers of the others. `calls`: sizes to call it with, of those that
    vary. `declared`: its types tell the ranges. `beyond`: sizes outside of the ranges."""

    text: str
    varies: dict[str, Varying]
    sizes: dict[str, int]
    calls: tuple[dict[str, int], ...]
    beyond: tuple[dict[str, int], ...]
    declared: bool
    tensors: tuple[Tensor, ...]
    seed: int
    special: bool
    exact: frozenset[str]

    def at(self, chosen: dict[str, int]) -> Case:
        """The program at some sizes, with inputs."""
        sizes = {**self.sizes, **chosen}
        return Case(self.text, sizes, data(self.tensors, self.seed, self.special, sizes), self.exact)

    def inputs(self, chosen: dict[str, int]) -> dict[str, np.ndarray]:
        return self.at(chosen).inputs

    @property
    def called(self) -> list[str]:
        """Its ranges, and what it is called with, in words."""
        ranges = ", ".join([*(f"{name} = {v}" for name, v in self.varies.items()), *(f"{n} = {k}" for n, k in self.sizes.items())])
        return [ranges, *(", ".join(f"{name} = {n}" for name, n in chosen.items()) for chosen in self.calls)]

    def __repr__(self) -> str:
        return "\n".join([*self.called, self.text])


LEAST = (
    "op f(x: bool[M]) -> (y: bool) { y = any[i](x[i]) }\n", {"M": Varying(1, 2)}, {}, ({"M": 1}, {"M": 2}), (), False,
    (Tensor("x", (Dim("M", 1, 2),), Value("", BOOL, 1), BOOL),), 0, False, frozenset("y"),
)  # fmt: skip
"""What is left where nothing that depends on sizes is drawn."""


@dataclass(frozen=True)
class _Range:
    varying: Varying
    numbers: tuple[int, ...]


def drawn_sized(draw: Choices, small: bool = False) -> Sized:
    """A program with one to three sizes that vary. `small`: for what runs in Python alone."""
    for _ in range(TRIES):
        if (made := _drawn(draw, small)) is not None:
            return made
    return Sized(*LEAST)


def _drawn(draw: Choices, small: bool) -> Sized | None:
    """None where what was drawn depends on no size that varies."""
    count = draw.integer(1, 3)
    varying = "MNK"[: draw.integer(1, count)]
    tops = FEW if small else MANY if len(varying) > 1 or not draw.chance(6) else ALONE
    ranges = {name: _range(draw, tops) for name in varying}
    fixed = {name: draw.pick(*(n for n in SIZES if n <= max(tops))) for name in "MNK"[len(varying) : count]}
    least = {name: r.varying.low for name, r in ranges.items()} | fixed
    most = {name: max(r.numbers) for name, r in ranges.items()} | fixed
    maker = Program(draw, least, draw.pick(1, 2, 2, 3, 3, 4), draw.chance(15), most, varying)
    maker.scope.deepest = 2000 if small else 20_000
    products = draw.chance(PRODUCTS)
    text, exact = _products(maker) if products else maker.program(draw.pick(1, 1, 1, 2, 2, 3, 6))
    named = maker.sizes(text)
    varies = {name: r.varying for name, r in ranges.items() if name in named}
    declared, seed = draw.chance(30), draw.below(1 << 16)
    if not varies:
        return None
    if declared and (written := _declared(text, varies)) is not None:
        text = written
    else:
        declared = False
    calls = tuple({name: ranges[name].numbers[n] for name in varies} for n in range(CALLS))
    beyond = tuple({**calls[-1], name: n} for name, v in varies.items() for n in (_outside(draw, v),) if n is not None)
    others = {name: n for name, n in fixed.items() if name in named}
    return Sized(text, varies, others, calls, beyond, declared, tuple(maker.inputs), seed, maker.special, exact)


def _products(maker: Program) -> tuple[str, frozenset[str]]:
    """A product, perhaps of batches and with what follows it, or attention, of which sizes are numbers where there are too few."""
    draw, scope = maker.draw, maker.scope
    rows, columns, inner = (scope.dim(name if name in scope.sizes else str(draw.pick(8, 16, 5))) for name in "MNK")
    dtype, result = DTYPES[draw.pick("f32", "bf16", "f16")], draw.pick("f32", "bf16")
    attention, batch = draw.chance(40), [scope.dim("2")] if draw.chance(30) else []

    def read(name: str, *subscripts: tuple[str, Dim]) -> str:
        order = draw.ordered(subscripts)
        element = Value("", compute_type(dtype), 2, 2)
        scope.add_input(Tensor(name, (*batch, *(dim for _, dim in order)), element, dtype))
        return f"{name}[{', '.join([*'b' * len(batch), *(at for at, _ in order)])}]"

    if attention:
        inner = scope.dim(str(draw.pick(16, 8, 5)))
        score = f"sum[k]({read('q', ('i', rows), ('k', inner))} * {read('c', ('j', columns), ('k', inner))}) * 0.25"
        masked = f"{score} if j <= i else -inf" if draw.chance(40) and columns.value else score
        at = "b, " * len(batch)
        lines = [
            f"s[{at}i, j]: f32 = {masked}" if masked == score else f"s[{at}i, j]: f32 = max({masked}, -1000)",
            f"e[{at}i, j]: f32 = softmax[j](s[{at}i, j])",
            f"y[{at}i, l] = sum[j](e[{at}i, j] * {read('v', ('j', columns), ('l', inner))})",
        ]
        shape = [*batch, rows, inner]
    else:
        value = f"sum[k]({read('a', ('i', rows), ('k', inner))} * {read('w', ('j', columns), ('k', inner))})"
        value = draw.pick(value, f"max({value}, 0)", f"gelu({value})")
        lines, shape = [f"y[{'b, ' * len(batch)}i, j] = {value}"], [*batch, rows, columns]
    inputs = ", ".join(f"{t.name}: {t.dtype}[{', '.join(d.text for d in t.dims)}]" for t in maker.inputs)
    body = "\n".join(f"    {line}" for line in lines)
    return f"op f({inputs}) -> (y: {result}[{', '.join(d.text for d in shape)}]) {{\n{body}\n}}\n", frozenset()


def _range(draw: Choices, tops: Sequence[int]) -> _Range:
    """A range, and numbers of it for each call: both ends first, if the greatest is no larger than `top`, then ends of classes and
    others, often of a class that was met before."""
    step = draw.pick(1, 1, 1, 1, 2, 3, 4, 8, 16)
    top = max(step, draw.pick(*tops) // step * step)
    low = min(max(0, top - step), draw.pick(1, 2, 0, 0, 3, 16, 17) // step * step + draw.pick(0, 0, step))
    high = draw.pick(top, top, 1 << 13, 100_000) // step * step
    high = max(high, top)
    near = [n for n in AROUND if low <= n <= top and n % step == 0] or [low]
    numbers = [low, top]
    while len(numbers) < CALLS:
        match draw.pick("any", "near", "near", "beside"):
            case "any":
                chosen = draw.integer(low // step, top // step) * step
            case "near":
                chosen = draw.pick(*near)
            case _:
                chosen = min(top, max(low, draw.pick(*numbers) + draw.pick(step, -step)))
        numbers.append(chosen)
    return _Range(Varying(low, high, step), tuple(numbers))


def _outside(draw: Choices, v: Varying) -> int | None:
    """A number that is not one of a range; None where memory for it would be large, or it would be no size."""
    numbers = [n for n in (v.low - 1, v.low - v.multiple, v.high + v.multiple, v.low + 1) if n >= 0 and not v.has(n)]
    near = [n for n in numbers if n <= max(ALONE) + 16]
    return draw.pick(*near) if near else None


def _declared(text: str, varies: dict[str, Varying]) -> str | None:
    """The text with ranges in the types of its inputs, if these name each size alone."""
    before, _, header = text.rpartition("op f(")
    inputs, arrow, rest = header.partition(") -> (")
    for name, v in varies.items():
        inputs, found = re.subn(rf"(\[|, ){name}(?=[,\]])", rf"\1{name}: {v}", inputs, count=1)
        if not found:
            return None
    return f"{before}op f({inputs}{arrow}{rest}"
