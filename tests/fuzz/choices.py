"""Where a drawn case comes from: a row of whole numbers, random or given. The same row gives the same case."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random


class Choices:
    """Draws from ranges and lists. `taken` are the numbers so far, each counted from the simplest choice, 0.

    What `given` holds comes first. After that choices are random where there is a seed, else the simplest.
    """

    def __init__(self, seed: str | None = None, given: Sequence[int] = ()):
        self._random, self._given = Random(seed) if seed is not None else None, given
        self.taken: list[int] = []

    def below(self, count: int) -> int:
        """A number from 0 to `count`, excluded."""
        place = len(self.taken)
        if place < len(self._given):
            number = min(self._given[place], count - 1)
        else:
            number = int(self._random.random() * count) if self._random else 0
        self.taken.append(number)
        return number

    def integer(self, low: int, high: int) -> int:
        """A number from `low` to `high`, included."""
        if high - low < 1 << 50:
            return low + self.below(high - low + 1)
        return low + min(self.below(1 << 32) << 32 | self.below(1 << 32), high - low)

    def pick(self, *options):
        """One of the options; the first is the simplest."""
        return options[self.below(len(options))] if len(options) > 1 else options[0]

    def chance(self, percent: float) -> bool:
        return self.below(1000) >= 1000 - 10 * percent

    def ordered(self, values: Sequence) -> list:
        """The values in any order; as they are in the simplest case."""
        rest = list(values)
        return [rest.pop(self.below(len(rest))) if len(rest) > 1 else rest.pop() for _ in values]


def mutated(numbers: Sequence[int], seed: str) -> Choices:
    """Choices that are like others, but for a few, or from a place on."""
    random, made = Random(seed), list(numbers)
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(made)) if made else 0
        match random.randrange(4):
            case 0:
                del made[at:]
            case 1:
                del made[at : at + random.choice((1, 2, 8))]
            case 2:
                made[at:at] = made[(start := random.randrange(len(made) + 1)) : start + 8]
            case _ if made:
                made[at] = random.choice((0, 1, random.randrange(100), random.randrange(1000)))
    return Choices(seed, made)
