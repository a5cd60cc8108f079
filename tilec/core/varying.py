"""Sizes that vary, and the texts of extents over them.

A size varies where only a call tells its number, within a range that is known before. An extent over such sizes is written in
Python's notation: `2 * M + 1`, `(M + 127) // 128`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import lcm
from typing import TypeVar

from tilec.index.facts import minimum
from tilec.index.terms import Term, size

N = TypeVar("N", int, Term)


class Varies(Exception):
    """What is asked needs a number, where an extent varies."""


@dataclass(frozen=True)
class Varying:
    """A size from `low` to `high`, both among its values, that is a multiple of `multiple`. `invariant`: an element of a result has
    the same bits whichever of them the size is."""

    low: int
    high: int
    multiple: int = 1
    invariant: bool = field(default=False, kw_only=True)

    def term(self, name: str) -> Term:
        """The size of that name."""
        return size(name, self.low, self.high, self.multiple)

    @property
    def empty(self) -> bool:
        """Whether no number is one of its values."""
        return self.low < 0 or self.multiple < 1 or -(-self.low // self.multiple) * self.multiple > self.high

    def has(self, number: int) -> bool:
        """Whether a number is one of its values."""
        return self.low <= number <= self.high and number % self.multiple == 0

    def mistake(self, name: str) -> tuple[str, str] | None:
        """What is wrong with it as the range of a size, and what helps."""
        if self.multiple < 1 or self.low < 0:
            return f"`{name}` cannot be in {self}", "sizes are whole numbers from 0 on, and multiples of a number from 1 on"
        if self.low > self.high:
            return f"the range {self} of `{name}` is empty", f"its first number comes first: `{self.high}..{self.low}`"
        ends = -(-self.low // self.multiple) * self.multiple, self.high // self.multiple * self.multiple
        if ends != (self.low, self.high):
            hint = f"both ends of a range are multiples: `{ends[0]}..{ends[1]} by {self.multiple}`"
            return f"the range {self} of `{name}` does not end with multiples of {self.multiple}", hint
        return None

    def within(self, other: Varying) -> bool:
        """Whether all of its numbers are another range's."""
        return other.has(self.low) and other.has(self.high) and self.multiple % other.multiple == 0

    def common(self, other: Varying) -> Varying | None:
        """Its numbers that are another range's, too; None where there are none."""
        multiple = lcm(self.multiple, other.multiple)
        low, high = max(self.low, other.low), min(self.high, other.high)
        found = Varying(-(-low // multiple) * multiple, high // multiple * multiple, multiple)
        return None if found.low > found.high else found

    @property
    def middle(self) -> int:
        """A number of it between both ends."""
        return (self.low + self.high) // 2 // self.multiple * self.multiple

    @staticmethod
    def parse(text: str) -> Varying | None:
        """The range of a text, as `str` writes it; None where it is none."""
        found = re.fullmatch(r"\s*(\d{1,19})\s*\.\.\s*(\d{1,19})(?:\s+by\s+(\d{1,19}))?(\s+invariant)?\s*", text, re.ASCII)
        return Varying(int(found[1]), int(found[2]), int(found[3] or 1), invariant=bool(found[4])) if found else None

    def __str__(self) -> str:
        each = f" by {self.multiple}" if self.multiple != 1 else ""
        return f"{self.low}..{self.high}{each}"


def evaluated(text: str, sizes: Mapping[str, N]) -> N:
    """The value of an extent's text, of numbers or of terms. Raises ValueError for what is no such text."""

    def value(node: ast.expr) -> N:
        match node:
            case ast.Constant(value=int(number)):
                return number  # type: ignore[return-value]
            case ast.Name(id=name) if name in sizes:
                return sizes[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
            case ast.BinOp(left=left, op=op, right=right):
                a, b = value(left), value(right)
                match op:
                    case ast.Add():
                        return a + b
                    case ast.Sub():
                        return a - b
                    case ast.Mult():
                        return a * b
                    case ast.FloorDiv():
                        return a // b
                    case ast.Mod():
                        return a % b
            case ast.Call(func=ast.Name(id="min"), args=args):
                found = minimum(*map(value, args))
                return found if found.constant is None else found.constant  # type: ignore[return-value]
        raise ValueError(f"`{text}` is no extent over the sizes {', '.join(sizes)}")

    return value(ast.parse(text, mode="eval").body)


def ranges_text(varies: Mapping[str, Varying]) -> str:
    """`M = 1..8192, N = 16..64 by 16`."""
    return ", ".join(f"{name} = {v}" for name, v in varies.items())


def names_in(text: str) -> list[str]:
    """The sizes that an extent's text names."""
    return [name for name in re.findall(r"[A-Za-z_]\w*", text) if name != "min"]


def number(amount: int | str, sizes: Mapping[str, int]) -> int:
    """The value of a number, or of an extent's text."""
    return amount if isinstance(amount, int) else evaluated(amount, sizes)
