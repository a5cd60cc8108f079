"""The map of a block's shared memory at the top of the kernel; below, its names are used instead of numbers.

    shared = shared_address(...)  # 98368 bytes of shared memory
    a_tiles = 0      # 49152 bytes: bf16 6x64x64
    b_tiles = 49152  # 49152 bytes: bf16 6x64x64
    full = 98304     # 48 bytes: 6 barriers
    ...
    mbarrier_wait(shared + full + stage * 8, ...)

The names are offsets. Addresses would each take a register through the whole kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tilec.runtime.emit.names import Names

ALIGN = 16  # bytes


@dataclass(frozen=True)
class Piece:
    name: str
    offset: int
    size: int
    what: str


class SharedMemory:
    """One block's. `bytes` are how many the launch has to give it."""

    def __init__(self, names: Names):
        self.names, self.bytes = names, 0
        self.pieces: list[Piece] = []

    def reserve(self, letters: str, size: int, what: str, overlay: bool = False) -> str:
        """The address of `size` bytes behind all others; with `overlay`, of those at the start."""
        offset = 0 if overlay else self.bytes
        piece = Piece(self.names.variable(letters), offset, size, what)
        self.pieces.append(piece)
        self.bytes = max(self.bytes, size) if overlay else offset + -(-size // ALIGN) * ALIGN
        return f"shared + {piece.name}"

    def lines(self, start: str) -> list[str]:
        """The lines of the map."""
        found = [(f"{p.name} = {p.offset}", f"{p.size} bytes: {p.what}") for p in self.pieces]
        width = max(len(text) for text, _ in found)
        first = f"    shared = {start}  # {self.bytes} bytes of shared memory"
        return [first, *(f"    {text:{width}}  # {comment}" for text, comment in found)]


_TOTAL = re.compile(r"^    shared = .*  # (\d+) bytes of shared memory$", re.MULTILINE)
_PIECE = re.compile(r"^    (\w+) = (\d+) *  # (\d+) bytes: (.*)$", re.MULTILINE)


def printed_map(text: str) -> tuple[int, list[Piece]]:
    """The bytes and the pieces of the map in a printed kernel; 0 and none where it has no map."""
    if (total := _TOTAL.search(text)) is None:
        return 0, []
    return int(total[1]), list(_pieces(text, total.end() + 1))


def _pieces(text: str, at: int) -> Iterator[Piece]:
    while found := _PIECE.match(text, at):
        yield Piece(found[1], int(found[2]), int(found[3]), found[4])
        at = found.end() + 1
