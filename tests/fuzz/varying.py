"""Random programs whose sizes vary: what is accepted is right at each size, and what is refused is wrong at some size."""

from __future__ import annotations

from dataclasses import dataclass

from tools.varying import all_sizes, wrong_sizes

from fuzz.choices import Choices
from fuzz.programs import drawn_case
from tilec.core.diagnostics import CallError, TileError
from tilec.core.source import read_source
from tilec.core.varying import Varying
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise

SMALL = [2, 3, 4, 5, 6, 7, 8]


@dataclass(frozen=True)
class Drawn:
    """A program, the ranges of some of its sizes, and the numbers of the others."""

    text: str
    varies: dict[str, Varying]
    sizes: dict[str, int]


def drawn(draw: Choices) -> Drawn | None:
    """None for one of the short form, whose sizes have no names. Each size that varies is that of an input, too."""
    case = drawn_case(draw, sizes=SMALL)
    if case.op is None or not case.sizes:
        return None
    varies: dict[str, Varying] = {}
    for name, number in case.sizes.items():
        if draw.chance(60) or (not varies and name == list(case.sizes)[-1]):
            step = draw.pick(1, 1, 2) if number % 2 == 0 else 1
            low = draw.pick(max(0, number - 3 * step), 0, step)
            varies[name] = Varying(low // step * step, number + draw.pick(1, 0, 2) * step, step)
    before, _, header = case.text.rpartition("op f(")
    known = ", ".join(f"of_{n}: bool[{n}]" for n in varies)
    text = f"{before}op f({known}{'' if header.startswith(')') else ', '}{header}"
    return Drawn(text, varies, {n: v for n, v in case.sizes.items() if n not in varies})


def fault(program: Drawn) -> str | None:
    """What is wrong: a result, a check that fails or is missing, or that it is refused though it is right at each size."""
    parsed = parse(read_source(program.text))
    try:
        specialise(parsed, "f", None, program.sizes, varies=program.varies)
    except TileError as error:
        for chosen in all_sizes(program.varies):
            try:
                specialise(parsed, "f", None, {**program.sizes, **chosen})
            except TileError:
                return None
        return f"refused, and right at each size: {error}"
    try:
        return "; ".join(wrong_sizes(program.text, program.varies, "f", **program.sizes)) or None
    except CallError as error:
        return str(error)
