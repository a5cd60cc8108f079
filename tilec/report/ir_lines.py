"""Lines of IR: the source lines that their locations name, the lines of one kernel, and what a stage changed in them.

    %5 = arith.addf %4, %3 : f32 loc(#loc2)
    #loc2 = loc("softmax.tile":4:5)            →    %5 = arith.addf %4, %3 : f32, of softmax.tile:4
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

Location = tuple[str, int]
"""File and line."""

_ALIAS = re.compile(r"^#(loc\d*) = loc\((.*)\)$", re.MULTILINE)
_POSITION = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):\d+|#(loc\d*)')
_SIMPLE = re.compile(r" loc\((?:#loc\d*|unknown)\)")
_FUNCTION = re.compile(r'^  func\.func (?:private )?@("[^"]*"|[\w$.-]+)\(')
_NAME = re.compile(r'\btilec\.name = "([^"]*)"')
_NUMBERS = re.compile(r"%[\w#:]+|#map\d*")


@dataclass(frozen=True)
class Line:
    """A line of code and the source lines it comes from. `state`: "new" or "gone" by the stage before; else empty."""

    text: str
    locations: tuple[Location, ...] = ()
    state: str = ""


def functions(text: str) -> dict[str, list[Line]]:
    """The lines of each function of a module's text that has a body, by its name."""
    known = _Locations(text)
    found: dict[str, list[Line]] = {}
    own: list[Line] | None = None
    for row in text.split("\n"):
        if own is None and (head := _FUNCTION.match(row)) and row.rstrip().endswith("{"):
            own = found[head[1].strip('"')] = []
        if own is not None:
            own.append(known.line(row))
            if row.startswith("  }"):
                own = None
    return found


def operations(lines: Sequence[Line], names: Collection[str]) -> list[Line]:
    """Of a function's lines, those of the operations with these names, each whole."""
    found: list[Line] = []
    for operation in _operations(lines):
        if any(name in names for name in _NAME.findall(operation[0].text)):
            found += operation
    return found


def compared(before: Sequence[Line], after: Sequence[Line]) -> list[Line]:
    """The lines of `after`, those that are new marked, and between them the lines of `before` that are gone. Numbers of values and
    maps do not count."""
    old, new = ([_NUMBERS.sub("%", line.text.strip()) for line in lines] for lines in (before, after))
    found: list[Line] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            found += after[c:d]
        else:
            found += [replace(line, state="gone") for line in before[a:b]]
            found += [replace(line, state="new") for line in after[c:d]]
    return found


def _operations(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """The operations of a function's own block, each with the lines of its regions."""
    own: list[Line] = []
    for line in lines[1:-1]:
        first = line.text.startswith("    ") and line.text[4:5] not in (" ", "}", "^", "")
        if first and own:
            yield own
            own = []
        own.append(line)
    if own:
        yield own


class _Locations:
    """The aliases of locations in a module's text."""

    def __init__(self, text: str):
        self.aliases = dict(_ALIAS.findall(text))
        self.resolved: dict[str, tuple[Location, ...]] = {}

    def line(self, row: str) -> Line:
        """A line without its locations; the last of them is the operation's."""
        if " loc(" not in row:
            return Line(row)
        at = row.rindex(" loc(")
        locations = self.of(row[at + 5 :])
        text = _SIMPLE.sub("", row)
        return Line(_without_locations(text), locations)

    def of(self, text: str) -> tuple[Location, ...]:
        found: dict[Location, None] = {}
        for file, line, alias in _POSITION.findall(text):
            if not alias:
                found[file.replace("\\\\", "\\").replace('\\"', '"'), int(line)] = None
            else:
                if alias not in self.resolved:
                    self.resolved[alias] = self.of(self.aliases.get(alias, ""))
                found.update(dict.fromkeys(self.resolved[alias]))
        return tuple(found)


def _without_locations(text: str) -> str:
    """A line without what ` loc(...)` encloses."""
    while (start := text.find(" loc(")) >= 0:
        depth, at, quoted = 0, start + 4, False
        while at < len(text):
            letter = text[at]
            if quoted:
                at += letter == "\\"
                quoted = letter != '"'
            elif letter == '"':
                quoted = True
            else:
                depth += (letter == "(") - (letter == ")")
            at += 1
            if depth == 0:
                break
        text = text[:start] + text[at:]
    return text
