"""Mutated sources: whatever the text, the front end gives a result or a TileError, soon and in little memory."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from fuzz.choices import Choices
from tilec.core.diagnostics import CallError, TileError
from tilec.core.source import read_source
from tilec.dsl.check import check
from tilec.dsl.format import format_source
from tilec.dsl.parse import parse
from tilec.dsl.specialise import describe_ranges, specialise

ROOT = Path(__file__).parents[2]
SECONDS = 20
TOKENS = [
    *"()[]{},;:=+-*/%<>!.^|&@$\\\"'#?~`\n\t\0\r\f", "//", "**", "==", "->", "<=", "!=", "||", "&&",
    "op", "def", "return", "where", "if", "else", "and", "or", "not", "in", "using", "expect", "import", "true", "false",
    "x", "y", "i", "j", "M", "N", "f32", "bf16", "i64", "bool", "sum", "max", "argmax", "cumsum", "softmax", "pad", "exp",
    "0", "1", "7", "0.5", "1e-5", "1e999", "inf", "nan", "9" * 30, "-1", "2" * 400, "[i, j]", "[i]", "(x[i])", "0:N",
    "é", "λ", "\u2028", "\U0001f600", "\ud800", "\ufeff", "١", "x" * 500,
]  # fmt: skip


class Slow(AssertionError):
    """It took longer than any text should."""


@cache
def corpus() -> list[str]:
    """The programs of the repository."""
    paths = [*sorted((ROOT / "examples").glob("*.tile")), *sorted((ROOT / "tests" / "filecheck").glob("*.tile"))]
    return ["y[i] = x[i]", "", *(p.read_text() for p in paths), (ROOT / "dsl" / "std" / "std.tile").read_text()]


def drawn_source(draw: Choices) -> str:
    """A program of the repository after some edits, or garbage."""
    if draw.chance(10):
        return "".join(draw.pick(*TOKENS, chr(draw.below(0x110000))) for _ in range(draw.below(61)))
    text = draw.pick(*corpus())
    for _ in range(draw.below(7)):
        text = mutated(draw, text)
    return text


def mutated(draw: Choices, text: str) -> str:
    at, length = draw.below(len(text) + 1), draw.below(31)
    token = draw.pick(*TOKENS)
    match draw.below(7):
        case 0:
            return text[:at] + text[at + length :]
        case 1:
            return f"{text[:at]} {token} {text[at:]}"
        case 2:
            return text[:at] + token + text[at + length :]
        case 3:
            return text[:at]
        case 4:
            to = draw.below(len(text) + 1)
            return text[:to] + text[at : at + length] + text[to:]
        case 5:
            return text[:at] + text[at : at + length] * draw.pick(2, 10, 300) + text[at + length :]
        case _:
            deep = draw.pick(3, 100, 3000)
            opening, closing = draw.pick(("(", ")"), ("exp(", ")"), ("-", ""), ("x[", "]"), ("not ", ""), ("1 + ", ""))
            return text[:at] + opening * deep + text[at : at + 4] + closing * deep + text[at + 4 :]


@contextmanager
def limited(seconds: int = SECONDS):
    """Raises Slow where the block takes longer."""

    def stop(*_):
        raise Slow(f"longer than {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check_text(text: str) -> str:
    """Parse, check, ranges, specialise with small sizes, and format: a result or a TileError; formatting keeps the
    meaning and leaves what it made alone. Returns why it is refused, if it is.
    """
    try:
        program = parse(read_source(_not_a_path(text)))
    except TileError as error:
        return str(error)
    problems = [str(problem) for problem in check(program)]
    for op in program.ops:
        for act in (lambda n: describe_ranges(program, n), lambda n: specialise(program, n, None, _sizes(program, n))):
            try:
                act(op.name)
            except (TileError, CallError) as error:
                str(error)
    once = format_source(_not_a_path(text))
    again = parse(read_source(_not_a_path(once)))
    assert again == program, f"formatting changed the program:\n{once}"
    twice = format_source(_not_a_path(once))
    assert twice == once, f"formatting twice differs:\n{once}\n---\n{twice}"
    return "\n".join(problems)


def _sizes(program, name: str) -> dict[str, int]:
    from tilec.dsl.check_sizes import size_names

    return {n: 3 for op in program.ops if op.name == name for n in size_names(op)}


def _not_a_path(text: str) -> str:
    return text if "\n" in text else text + "\n"
