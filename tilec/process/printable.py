"""Text for terminals: characters that would steer one are escaped, and the columns that the others take.

The text of a program, of a file's name or of a model is shown as it is, but for control characters (escapes, bells, carriage
returns), marks of direction, and other characters that nobody sees. These are written as in Python: `\\x1b`, `\\u202e`.
"""

from __future__ import annotations

import re
import unicodedata
from typing import IO

MOST = 200
"""Characters of a name that a message quotes."""

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_LONG_WORD = re.compile(rf"\w{{{MOST + 1},}}")


def is_terminal(file: IO[str]) -> bool:
    """Whether a file such as sys.stderr is a terminal. None, a closed one, and an object that cannot tell are not."""
    try:
        return bool(file.isatty())
    except (AttributeError, OSError, ValueError):
        return False


def printable(text: str) -> str:
    """The text with all unseen characters escaped, but for tabs and line ends."""
    return text if text.isascii() and text.isprintable() else _UNSEEN.sub(lambda m: escaped(m[0]), text)


def escaped(character: str) -> str:
    """The escape of an unseen character, and any other as it is."""
    if not _UNSEEN.match(character):
        return character
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def shortened(text: str) -> str:
    """The text with words of more than 200 letters cut: a name of a million letters is named by its beginning."""
    return _LONG_WORD.sub(lambda m: f"{m[0][:MOST]}…", text)


def columns(character: str) -> int:
    """How many columns of a terminal a character takes, as `printable` shows it. A tab counts as one."""
    if character.isascii():
        return len(escaped(character)) if not character.isprintable() and character not in "\t\n" else 1
    if _UNSEEN.match(character):
        return len(escaped(character))
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
