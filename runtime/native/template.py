"""Tables of a class of sizes, in one piece of memory: copied, with the amounts of some sizes in them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from tilec.runtime.native.tables import KeepAlive
from tilec.runtime.program import Amount


class Within(int):
    """An address in a template: bytes from where it begins."""


class Template(KeepAlive):
    """Tables with texts of amounts among their words. `sized`: these texts, by the numbers of their words."""

    def __init__(self) -> None:
        super().__init__()
        self.sized: dict[int, str] = {}
        self._words: list[int] = []
        self._inner: list[int] = []  # words that are addresses of the template

    def words(self, values: Sequence[Amount]) -> int:
        begin = len(self._words)
        for number, value in enumerate(values or (0,), begin):
            if isinstance(value, str):
                self.sized[number] = value
            elif isinstance(value, Within):
                self._inner.append(number)
            self._words.append(0 if isinstance(value, str) else int(value))
        return Within(8 * begin)

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return tuple(np.array(row, np.int64) for row in (self._words, self._inner, [*self.sized]))  # type: ignore[return-value]

    def filled(self, amounts: Sequence[int]) -> Filled:
        """A copy with these amounts, one for each of `sized`. No word is added to the template any more."""
        words, inner, sized = self._arrays
        found = Filled(words.copy())
        found.words[inner] += found.begin
        found.words[sized] = amounts
        return found


class Filled:
    """Tables of one call's sizes, which lie here as long as this object does."""

    def __init__(self, words: np.ndarray):
        self.words, self.begin = words, int(words.__array_interface__["data"][0])

    def address(self, of: int) -> int:
        """Of a table, by its address in the template."""
        return self.begin + of

    def put(self, of: int, values: Sequence[int]) -> None:
        """Writes a row, by its address in the template."""
        self.words[of // 8 : of // 8 + len(values)] = values
