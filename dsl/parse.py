"""Text to syntax tree: `parse(source)`.

Lark's LALR parser is driven token by token, so that a mistake does not end the parse (see `parse_errors`), and its tree
is turned into the AST without recursion. Hostile text meets the limits below, and gets an error, not a stack overflow.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import Any

import lark
from lark import Lark, Token, Tree, UnexpectedInput
from lark.lexer import TerminalDef

from tilec.core.diagnostics import Diagnostic, Source, Span, TileError
from tilec.dsl import ast
from tilec.dsl.parse_errors import recover
from tilec.dsl.parse_tree import TreeBuilder
from tilec.dsl.parse_words import GiveUp, Insert, Lost, Replace, Words

MAX_BYTES = 1 << 20
MAX_TOKENS = 300_000
MAX_NAMES = 10_000
MAX_DIAGNOSTICS = 50

_IMPORTED = re.compile(r"(?<=import)([ \t]+)'([^'\"\n]*)'")
_DOTS = re.compile(r'#[^\n]*|"[^"\n]*"|(?P<dots>\.\.[.=]*)')
_SIZED = re.compile(r"[\[,]\s*[\w+*/() -]+:\s*[\w.-]*\s*\Z")
_LEGAL = re.compile(r'#[^\n]*|"[^"\n]*"|[A-Za-z0-9_ \t\r\n\f]+|->|[()\[\]{}:;,.<>=+\-*/%^&|~]+|!')
_LOOKALIKE = {
    "−": "-",
    "–": "-",
    "×": "*",
    "·": "*",
    "÷": "/",
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
    "“": '"',
    "”": '"',
    "‘": '"',
    "’": '"',
}
_ELSEWHERE = {
    "@": "a product of matrices is `sum[k](a[i, k] * b[k, j])`",
    "?": "write `a if condition else b`",
    "'": 'a name is made of letters, digits and `_`; a file name stands in `"`',
    ".": "functions have no prefix, and dimensions are subscripts: `sum[j](x[i, j])`",
}  # what other languages write


@dataclass(frozen=True)
class Partial:
    """The parts of a source with mistakes of form that could be read. `lost` are the names that given-up statements and
    declarations would define, with the place of the statement; None for a declaration."""

    program: ast.Program
    problems: list[Diagnostic]
    lost: set[Lost]


def parse(source: Source) -> ast.Program:
    """The program in a source; raises TileError with every mistake of form that was found."""
    found = parse_partly(source)
    if found.problems:
        raise TileError(found.problems)
    return found.program


def parse_partly(source: Source) -> Partial:
    """The program as far as it has form. Raises TileError for a text that is not worth reading on."""
    problems: list[Diagnostic] = []
    text = _legal_text(source, problems)
    if text is None:
        raise TileError(problems)
    lost: set[Lost] = set()
    tree = _tree(source, text, problems, lost)
    program = TreeBuilder(source, problems).transform(tree)
    problems.sort(key=lambda d: d.span.start)
    return Partial(program, problems[:MAX_DIAGNOSTICS], lost)


def _legal_text(source: Source, problems: list[Diagnostic]) -> str | None:
    """The text with characters blanked out that no token can contain, offsets unchanged; None if the rest is not worth reading."""
    text = source.text
    if len(text) > MAX_BYTES:
        message = f"the file has {len(text)} characters; the limit is {MAX_BYTES}"
        problems.append(Diagnostic(message, Span(source, 0, 1)))
        return None
    for quoted in _IMPORTED.finditer(text):
        hint = f'write `import "{quoted[2]}"`'
        where = Span(source, quoted.end(1), quoted.end())
        problems.append(Diagnostic("a file name stands in double quotes", where, hint=hint))
    text = _without_dots(source, _IMPORTED.sub(r'\1"\2"', text), problems)
    pieces, at = [], 0
    while at < len(text):
        if match := _LEGAL.match(text, at):
            pieces.append(match.group())
            at = match.end()
            continue
        end = at + 1
        if text[at] == '"':
            end = (text.find("\n", at) + 1 or len(text) + 1) - 1
            problems.append(Diagnostic("the quotes are never closed", Span(source, at, end), hint='add `"`'))
        else:
            message, advice = _illegal(text[at])
            problems.append(Diagnostic(message, Span(source, at, end), hint=advice))
        pieces.append('""'.ljust(end - at) if end - at > 1 else " ")
        at = end
        if len(problems) >= MAX_DIAGNOSTICS:
            return None
    return "".join(pieces)


def _without_dots(source: Source, text: str, problems: list[Diagnostic]) -> str:
    """With `:` in place of the `..` of other languages' ranges. Those of sizes have `..`: `f32[M: 1..8192]`."""

    def replaced(match: re.Match[str]) -> str:
        if (dots := match["dots"]) is None or len(problems) >= MAX_DIAGNOSTICS:
            return match[0]
        before, after = text[max(0, match.start() - 80) : match.start()], text[match.end() : match.end() + 80]
        message, at = f"`{dots}` is not a word of the language", Span(source, match.start(), match.end())
        if _SIZED.search(before):
            if dots != "..":
                hint = "the range of a size is written `M: 1..8192`, and both ends are among its numbers"
                problems.append(Diagnostic(message, at, hint=hint))
            return "..".ljust(len(dots))
        ends = re.search(r"[\w.+*/ -]*\Z", before), re.match(r"[\w+*/ -]*", after)
        low, high = (end[0].strip() if end else "" for end in ends)
        high += " + 1" * (bool(high) and "=" in dots)
        hint = f"a range is `low:high`, without `high` itself: write `{low.split(' in ')[-1] or 0}:{high or 'N'}`"
        if not low and not high:
            hint = "each dimension has an index of its own: `y[b, i] = x[b, i]`"
        problems.append(Diagnostic(message, at, hint=hint))
        return ":".ljust(len(dots))

    return _DOTS.sub(replaced, text) if ".." in text else text


def _illegal(character: str) -> tuple[str, str | None]:
    """The message for a character that no word contains. One beyond ASCII may look like a letter, or not show at all: it
    is named by its number, too."""
    number = f"U+{ord(character):04X}"
    shown = f"`{character}`" if character.isprintable() else f"`{number}`"
    named = f" ({number})" if character.isprintable() and not character.isascii() else ""
    hint = f"write `{_LOOKALIKE[character]}`" if character in _LOOKALIKE else _ELSEWHERE.get(character)
    if hint is None and not character.isascii():
        hint = "a program is written in ASCII characters, except in comments and file names"
    return f"unexpected character {shown}{named}", hint


@cache
def _lark() -> Lark:
    """The parser. Its tables stand beside the grammar, as to make them takes 0.2 s in every process."""
    folder = files("tilec.dsl")
    grammar = folder.joinpath("grammar.lark").read_text()
    tables = json.loads(folder.joinpath("grammar.json").read_text(), object_hook=_numbered)
    return Lark.load(tables) if tables["of"] == tables_of(grammar) else make_lark(grammar)


def make_lark(grammar: str) -> Lark:
    """Trees have all their words, from which the positions of those that are needed are found (`TreeBuilder`): Lark finds three for
    either end of every rule, in more time than all else that it does."""
    return Lark(grammar, parser="lalr", lexer="basic", keep_all_tokens=True, maybe_placeholders=False)


def tables_of(grammar: str) -> str:
    """The key of the tables in `grammar.json`: for another version of Lark, they are made anew."""
    return f"lark {lark.__version__}, {hashlib.sha256(grammar.encode()).hexdigest()}"


def _numbered(record: dict[str, Any]) -> dict[str | int, Any]:
    """JSON has strings for keys; those of Lark's tables are numbers where they look like it."""
    return {int(k) if k.isdigit() else k: v for k, v in record.items()}


def terminals() -> Collection[TerminalDef]:
    """The kinds of words of the grammar."""
    return _lark().terminals


def lex(text: str) -> list[Token]:
    """The tokens of a text, comments included, as the formatter prints them again."""
    return list(_lark().lex(text, dont_ignore=True))


def lex_any(text: str) -> list[Token]:
    """The tokens of any text, program or not, comments and white space included. Characters that no word has stand in white
    space."""
    return lex(_legal().sub(lambda found: found[0] if found["illegal"] is None else " ", text))


@cache
def _legal() -> re.Pattern[str]:
    """A word of the language, or one character that no word has."""
    number = next(t.pattern.value for t in terminals() if t.name == "NUMBER").replace(r"\d", "[0-9]")
    words = rf'#[^\n]*|"[^"\n]*"|[A-Za-z_][A-Za-z0-9_]*|{number}|\.\.|[ \t\r\n\f]+|[()\[\]{{}}:;,<>=+\-*/%^&|~!]'
    return re.compile(rf"{words}|(?P<illegal>[\s\S])")


def _tree(source: Source, text: str, problems: list[Diagnostic], lost: set[Lost]) -> Tree:
    """Lark's tree of the parts that could be read."""
    try:
        tokens = list(islice(_lark().lex(text), MAX_TOKENS + 1))
    except UnexpectedInput as error:
        at = error.pos_in_stream or 0
        diagnostic = Diagnostic(
            f"unexpected character `{text[at]}`", Span(source, at, at + 1), hint=_ELSEWHERE.get(text[at])
        )
        raise TileError([*problems, diagnostic]) from None
    if len(tokens) > MAX_TOKENS:
        where = Span(source, tokens[MAX_TOKENS].start_pos or 0, tokens[MAX_TOKENS].end_pos or 0)
        raise TileError([*problems, Diagnostic(f"the file has more than {MAX_TOKENS} words", where)])
    if len({token.value for token in tokens if token.type == "NAME"}) > MAX_NAMES:
        raise TileError([*problems, Diagnostic(f"the file has more than {MAX_NAMES} names", Span(source, 0, 1))])
    near = tokens[-1] if tokens else Token("$END", "", 0, 1, 1, 1, 1, 0)
    tokens.append(Token.new_borrow_pos("$END", "", near))
    words = Words(source, tokens)
    illegal = {d.span.line for d in problems}  # what stood there is blanked out: its line misleads
    parser = _lark().parse_interactive("")
    at, stuck = 0, (-1, 0)
    while at < len(tokens):
        try:
            result = parser.feed_token(tokens[at])
            at += 1
            continue
        except UnexpectedInput:
            stuck = (at, stuck[1] + 1 if stuck[0] == at else 1)
        diagnostic, recovery = recover(words, at, parser)
        repeated = stuck[1] > 1 and problems and problems[-1].span.line == diagnostic.span.line
        if not repeated and diagnostic.span.line not in illegal:
            problems.append(diagnostic)
        if len(problems) >= MAX_DIAGNOSTICS or stuck[1] > 200:
            raise TileError(sorted(problems, key=lambda d: d.span.start))
        match recovery:
            case Insert(token):
                parser.feed_token(token)
            case Replace(token):
                parser.feed_token(token)
                at += 1
            case GiveUp(resume):
                lost |= words.defined(recovery)
                at = resume
    return result
