"""The formatter: the same words with canonical white space between them.

It prints tokens, not the tree, so comments stay and the parsed program cannot change. Every statement begins a line;
within a statement the author's line breaks stay, and a header's parameters may have lines of their own; up to one blank
line stays; in a run of statements of one line each the `=` stand below each other, and so do comments at the ends of lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lark import Token

from tilec.core.diagnostics import Source
from tilec.dsl import ast
from tilec.dsl.parse import lex, parse

_INDENT = "    "
_NO_SPACE_BEFORE = {",", ")", "]", ";", ":"}
_NO_SPACE_AFTER = {"(", "["}
_BINARY = {"+", "-", "*", "/", "//", "%", "**", "&", "|", "^", "<<", ">>"}
_OPERATOR_WORDS = {
    "not",
    "and",
    "or",
    "if",
    "else",
    "in",
    "return",
    "using",
    "where",
    "expect",
    "->",
    "=",
    ":",
}
_ALIGN_LIMIT = 24  # a left side longer than the others by more than this is not worth lining up with


@dataclass
class _Line:
    """One line of output."""

    depth: int
    tokens: list[Token] = field(default_factory=list)
    comment: str | None = None
    blank_before: bool = False
    continued: bool = False  # goes on with the statement of the line before,
    header: bool = False  # or with the header
    equals: int | None = None  # which token is the `=` of an equation that has only this line

    @property
    def indent(self) -> str:
        if self.header:
            return _INDENT * (self.depth + (not self.tokens or self.tokens[0].value != ")"))
        return _INDENT * (self.depth + 2 * self.continued)


def format_source(text: str) -> str:
    """The text in canonical form; raises TileError where it does not parse. Formatting twice changes nothing more."""
    source = Source("<format>", text)
    program = parse(source)
    lines = _lines(lex(source.text), _starts(program), _one_liners(program, source.text))
    _mark_equals(lines)
    printed = [_print(line) for line in lines]
    _align(lines, printed)
    out = "\n".join(printed).strip("\n")
    return out + "\n" if out else ""


def _starts(program: ast.Program) -> set[int]:
    """Where statements and declarations begin."""
    nodes: list = [*program.imports, *program.defs, *program.ops]
    if any(_short(op) for op in program.ops):
        nodes = [*program.imports, *program.defs]
    nodes += [s for op in program.ops for s in op.body] + [local for d in program.defs for local in d.locals]
    return {node.span.start for node in nodes}


def _short(op: ast.Op) -> bool:
    return bool(op.outputs) and all(t.dtype is None for t in op.outputs)


def _one_liners(program: ast.Program, text: str) -> set[int]:
    """Where functions begin that the author has on one line, and that stay there."""
    return {d.span.start for d in program.defs if "\n" not in text[d.span.start : d.span.end]}


def _lines(tokens: list[Token], starts: set[int], one_liners: set[int]) -> list[_Line]:
    """The tokens, cut into lines."""
    lines: list[_Line] = [_Line(0)]
    depth, newlines, flat, brace, header = 0, 1, False, False, False

    def fresh(depth: int, continued: bool = False) -> _Line:
        if not lines[-1].tokens and lines[-1].comment is None:
            lines.pop()
        blank = newlines > 1 and bool(lines) and not brace
        lines.append(_Line(depth, blank_before=blank, continued=continued, header=continued and header))
        return lines[-1]

    for token in tokens:
        if token.type == "COMMENT":
            comment = token.value.rstrip()
            if (newlines and (lines[-1].tokens or lines[-1].comment is not None or newlines > 1)) or lines[
                -1
            ].comment is not None:
                fresh(depth)
            brace = brace and bool(lines[-1].tokens)
            lines[-1].comment = comment
            newlines = 0
            continue
        if not token.value.strip():
            newlines += token.value.count("\n")
            continue
        if token.value == ";":
            continue
        header = (header or token.type in ("OP", "DEF")) and token.value != "{"
        flat = flat or token.start_pos in one_liners
        closes = token.value == "}" and not flat
        depth -= closes
        begins = token.start_pos in starts or (token.value == "return" and not flat) or closes
        if (begins and not (flat and token.start_pos not in one_liners)) or (brace and not flat):
            if closes:
                newlines = min(newlines, 1)
            fresh(depth)
        elif lines[-1].comment is not None or (newlines and not flat and lines[-1].tokens):
            newlines = min(newlines, 1)
            fresh(depth, continued=True)
        lines[-1].tokens.append(token)
        brace = token.value == "{"
        depth += brace and not flat
        flat = flat and token.value != "}"
        newlines = 0
    return lines


def _mark_equals(lines: list[_Line]) -> None:
    """Finds the `=` of equations of one line: the ones that are lined up."""
    for k, line in enumerate(lines):
        follows = k + 1 < len(lines) and lines[k + 1].continued
        if line.continued or follows or not line.tokens or line.tokens[0].type != "NAME":
            continue
        line.equals = next((n for n, token in enumerate(line.tokens) if token.value == "="), None)


def _print(line: _Line) -> str:
    code = _join(line.tokens)
    gap = "  " if code else ""
    text = line.indent + code + (gap + line.comment if line.comment is not None else "")
    return ("\n" if line.blank_before else "") + text.rstrip()


def _join(tokens: list[Token]) -> str:
    out = ""
    nesting: list[str] = []
    for k, token in enumerate(tokens):
        before = tokens[k - 1] if k else None
        if before is not None and _spaced(tokens, k, nesting):
            out += " "
        out += token.value
        if token.value in "([{":
            nesting.append(token.value)
        elif token.value in ")]}" and nesting:
            nesting.pop()
    return out


def _spaced(tokens: list[Token], k: int, nesting: list[str]) -> bool:
    """Whether a space stands before token k."""
    before, token = tokens[k - 1], tokens[k]
    if token.value in _NO_SPACE_BEFORE or before.value in _NO_SPACE_AFTER or ".." in (token.value, before.value):
        return False
    if before.value == ":":
        return not _is_range(tokens, k - 1)
    if token.value in ("(", "["):
        return before.type not in ("NAME", "RSQB") and before.value not in ("]",) and not _is_sign(tokens, k - 1)
    return not _is_sign(tokens, k - 1)


def _is_sign(tokens: list[Token], k: int) -> bool:
    """Whether token k is a unary minus, or another sign before an operand."""
    if tokens[k].value not in ("-", "!", "~"):
        return False
    if k == 0:
        return True
    before = tokens[k - 1]
    opens = before.value in ("(", "[", ",", "{", "~", *_BINARY, *_OPERATOR_WORDS)
    return opens or before.type == "COMPARISON"


def _is_range(tokens: list[Token], k: int) -> bool:
    """Whether the colon at k is that of `low:high`, not that of a type."""
    return any(token.value == "in" for token in _back_to_comma(tokens, k))


def _back_to_comma(tokens: list[Token], k: int) -> list[Token]:
    """The tokens from the last comma or opening bracket at the colon's own level."""
    level, start = 0, k
    while start > 0:
        value = tokens[start - 1].value
        if value in (")", "]"):
            level += 1
        elif value in ("(", "["):
            level -= 1
        if level < 0 or (level == 0 and value == ","):
            break
        start -= 1
    return tokens[start:k]


def _align(lines: list[_Line], printed: list[str]) -> None:
    """Lines up `=`, then comments, in runs of neighbouring lines."""
    for run in _runs(lines, lambda line: line.equals is not None):
        heads = {k: lines[k].indent + _join(lines[k].tokens[: lines[k].equals]) for k in run}
        widest = max(map(len, heads.values()))
        if widest - min(map(len, heads.values())) > _ALIGN_LIMIT:
            continue
        for k in run:
            line, blank = lines[k], "\n" if lines[k].blank_before else ""
            code = heads[k].ljust(widest) + " " + _join(line.tokens[line.equals :])
            printed[k] = blank + code + (f"  {line.comment}" if line.comment else "")
    for run in _runs(lines, lambda line: line.comment is not None and bool(line.tokens)):
        comments = {k: lines[k].comment or "" for k in run}
        codes = {k: printed[k][: -len(comments[k])].rstrip() for k in run}
        widest = max(len(code.strip("\n")) for code in codes.values())
        for k in run:
            blank = "\n" if lines[k].blank_before else ""
            printed[k] = blank + codes[k].strip("\n").ljust(widest) + "  " + comments[k]


def _runs(lines: list[_Line], wanted: Callable[[_Line], bool]) -> list[list[int]]:
    """Maximal runs of neighbouring lines of one depth that are wanted."""
    runs: list[list[int]] = []
    for k, line in enumerate(lines):
        if not wanted(line):
            continue
        last = runs[-1] if runs else None
        if last and last[-1] == k - 1 and not line.blank_before and lines[k - 1].depth == line.depth:
            last.append(k)
        else:
            runs.append([k])
    return runs
