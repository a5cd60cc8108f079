"""Places of a text as the protocol has them: a line, and units of an encoding in it."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property

from lsprotocol.types import Position, PositionEncodingKind, Range

_MARK = "\ufeff"
_BYTES = {
    PositionEncodingKind.Utf8: ("utf-8", 1), PositionEncodingKind.Utf16: ("utf-16-le", 2),
    PositionEncodingKind.Utf32: ("utf-32-le", 4),
}  # fmt: skip


class Lines:
    """The lines of a text. Offsets are those of a `Source`, which leaves out a byte order mark."""

    def __init__(self, text: str, encoding: PositionEncodingKind | str | None = None):
        self.text, self.mark = text, int(text.startswith(_MARK))
        self.codec, self.unit = _BYTES[PositionEncodingKind(encoding or PositionEncodingKind.Utf16)]

    @cached_property
    def starts(self) -> list[int]:
        """Of each line the first character: lines end with CR LF, LF or CR."""
        return [0, *(m.end() for m in re.finditer(r"\r\n|\n|\r", self.text))]

    def position(self, offset: int) -> Position:
        at = min(offset + self.mark, len(self.text))
        line = bisect_right(self.starts, at) - 1
        return Position(line, len(self._bytes(self.text[self.starts[line] : at])) // self.unit)

    def range(self, start: int, end: int) -> Range:
        return Range(self.position(start), self.position(end))

    @property
    def whole(self) -> Range:
        return Range(Position(0, 0), self.position(len(self.text)))

    def offset(self, position: Position) -> int:
        """That of a position behind the end of its line, or within a character, is the nearest before it."""
        if position.line >= len(self.starts):
            return len(self.text) - self.mark
        first = self.starts[position.line]
        last = self.starts[position.line + 1] if position.line + 1 < len(self.starts) else len(self.text)
        line = self.text[first:last].rstrip("\r\n")
        before = self._bytes(line)[: position.character * self.unit].decode(self.codec, "ignore")
        return max(0, first + len(before) - self.mark)

    def _bytes(self, text: str) -> bytes:
        return text.encode(self.codec, "surrogatepass")
