"""Sizes that vary: those whose number only a call tells, within a range that is known before."""

from __future__ import annotations

from dataclasses import dataclass

from tilec.index.terms import Term, size


@dataclass(frozen=True)
class Varying:
    """A size from `low` to `high`, both among its values, that is a multiple of `multiple`."""

    low: int
    high: int
    multiple: int = 1

    def term(self, name: str) -> Term:
        """The size of that name."""
        return size(name, self.low, self.high, self.multiple)

    def has(self, number: int) -> bool:
        """Whether a number is one of its values."""
        return self.low <= number <= self.high and number % self.multiple == 0

    def __str__(self) -> str:
        return f"{self.low}..{self.high}" + (f" by {self.multiple}" if self.multiple > 1 else "")
