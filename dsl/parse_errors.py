"""Messages for syntax errors, and the recovery of the parser.

The parser is LALR, so that it knows every word that would fit at the place of a wrong word. There are three recoveries:
insert the missing word (a comma, a bracket), replace the wrong word by another (`==` for `=`), or skip the statement and
continue at the next one. The rest of the file is then parsed, so that one run reports all mistakes.
"""

# mypy: no-strict-optional

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, takewhile
from typing import Any

from lark import Token, Tree
from lark.parsers.lalr_analysis import Shift
from lark.parsers.lalr_interactive_parser import InteractiveParser

from tilec.core.diagnostics import Diagnostic, Note, Source, Span

_OPENERS = {"RPAR": "LPAR", "RSQB": "LSQB", "RBRACE": "LBRACE"}
_DECLARATIONS = {"OP", "DEF", "IMPORT", "$END"}
_OPERANDS = {"NAME", "NUMBER", "TRUE", "FALSE", "LPAR", "NOT", "MINUS", "TILDE"}
_ENDS = {"RBRACE", "RPAR", "RSQB", "COMMA", "SEMICOLON", "WHERE", "EXPECT", *_DECLARATIONS}  # of an expression
_CONDITIONAL = "`if` and `else` are parts of an expression: `y[i] = a if condition else b`"
_LOOPS = {"for", "while", "loop", "parallel", "do"}
_FOREIGN = {
    "let": "a definition is just `name[i] = expression`",
    "var": "a definition is just `name[i] = expression`",
    "const": "a definition is just `name[i] = expression`",
    "fn": "functions are written `def name(x) { return … }`, ops `op name(x: f32[N]) -> (y: f32[N]) { … }`",
    "function": "functions are written `def name(x) { return … }`, ops `op name(x: f32[N]) -> (y: f32[N]) { … }`",
}
_COMMENTS = {"//": "`//` divides: a comment begins with `#`", "/*": "a comment begins with `#`"}
_ARITHMETIC = ("+", "-", "*", "/")
_SPOKEN = {
    "NAME": "a name", "NUMBER": "a number", "STRING": "a file name in quotes", "$END": "the end of the file",
    "COMMA": "`,`", "COLON": "`:`", "EQUAL": "`=`", "LPAR": "`(`", "RPAR": "`)`", "LSQB": "`[`", "RSQB": "`]`",
    "LBRACE": "`{`", "RBRACE": "`}`", "SEMICOLON": "`;`", "ELSE": "`else`", "IN": "`in`", "RETURN": "`return`",
}  # fmt: skip


@dataclass(frozen=True)
class Insert:
    """Read `token` before the word that does not fit."""

    token: Token


@dataclass(frozen=True)
class Replace:
    """Read `token` in place of the word that does not fit."""

    token: Token


@dataclass(frozen=True)
class GiveUp:
    """Leave the statement that begins at character `start`; `resume` is the place in the token list where the next begins."""

    resume: int
    start: int


Recovery = Insert | Replace | GiveUp
Lost = tuple[str, int | None]  # a name that is not defined, and where the statement begins that would; None: an op's


class Words:
    """The tokens of a source, with the questions that messages ask about their surroundings."""

    def __init__(self, source: Source, tokens: list[Token]):
        self.source, self.tokens = source, tokens
        self._read, self._open = 0, list[int]()  # of `opener`

    def span(self, at: int) -> Span:
        token = self.tokens[at]
        if token.type == "$END":
            end = len(self.source.text.rstrip())
            return Span(self.source, max(0, end - 1), end)
        return Span(self.source, token.start_pos, token.end_pos)

    def first_of_line(self, at: int) -> bool:
        return at == 0 or self.tokens[at].line != self.tokens[at - 1].end_line

    def starts_statement(self, at: int) -> bool:
        """Whether a statement plausibly starts here; exact enough for where to resume."""
        token, after = self.tokens[at], self.tokens[min(at + 1, len(self.tokens) - 1)]
        if token.type in ("EXPECT", "RETURN"):
            return True
        if token.value in _LOOPS or token.value in _FOREIGN:
            return self.first_of_line(at)
        if token.type != "NAME" or after.type not in ("LSQB", "EQUAL", "COLON", "COMMA"):
            return False
        return self.first_of_line(at) or self.tokens[at - 1].type in ("SEMICOLON", "LBRACE")

    def defined(self, lost: GiveUp) -> set[Lost]:
        """The names that statements and declarations which were given up would define."""
        names: set[Lost] = set()
        for k in range(bisect_left(self.tokens, lost.start, key=lambda t: t.start_pos), lost.resume):
            if self.tokens[k].type in ("OP", "DEF"):
                names.add((self.tokens[k + 1].value, None))
            elif self.starts_statement(k) or self.tokens[k].start_pos == lost.start:
                names |= {
                    (t.value, lost.start) for t in takewhile(lambda t: t.type in ("NAME", "COMMA"), self.tokens[k:])
                }
        return names

    def opener(self, at: int, closer: str) -> int | None:
        """The innermost bracket of the closer's kind that is still open before `at`. Later words are asked about later:
        each is read once."""
        if at < self._read:
            self._read, self._open = 0, []
        for k in range(self._read, at):
            kind = self.tokens[k].type
            if kind in _OPENERS.values():
                self._open.append(k)
            elif kind in _OPENERS and self._open and self.tokens[self._open[-1]].type == _OPENERS[kind]:
                self._open.pop()
        self._read = at
        return next((k for k in reversed(self._open) if self.tokens[k].type == _OPENERS[closer]), None)

    @cached_property
    def comments(self) -> list[tuple[int, str]]:
        """Where other languages would begin a comment, and how that is written here."""
        found = []
        for k, (token, after) in enumerate(pairwise([*self.tokens, self.tokens[-1]])):
            pair = token.value + after.value if token.end_pos == after.start_pos else ""
            shown = next((c for c in _COMMENTS if c == token.value or pair.startswith(c)), None)
            if shown is not None:
                found.append((k, _COMMENTS[shown]))
        return found


def recover(words: Words, at: int, parser: InteractiveParser) -> tuple[Diagnostic, Recovery]:
    """The message for the word at `at`, which the parser refused, and how to carry on."""
    expected = parser.accepts()
    return (
        _foreign(words, at, parser)
        or _branch(words, at, parser)
        or _equals(words, at, expected)
        or _missing_bracket(words, at, expected)
        or _missing_comma(words, at, expected)
        or _plain(words, at, expected, parser)
    )


def _token(kind: str, text: str, near: Token) -> Token:
    return Token.new_borrow_pos(kind, text, near)


Found = tuple[Diagnostic, Recovery] | None


def _foreign(words: Words, at: int, parser: InteractiveParser) -> Found:
    """Words of other languages: loops, declarations."""
    for k in (at - 1, at):
        text = words.tokens[k].value if k >= 0 and words.tokens[k].type in ("NAME", "IF", "RETURN") else None
        if text in _LOOPS and words.tokens[k - 1].type != "DEF":
            message = f"`{text}`: there are no loops in the language"
            hint = "an equation runs over all values of its indices: `y[i] = 2 * x[i]`; a sum is `sum[k](…)`"
            return Diagnostic(message, words.span(k), hint=hint), _skip_blocks(words, at, parser)
        if text in _FOREIGN:
            give_up = _give_up(words, at, parser)
            return Diagnostic(f"`{text}` is not a word of the language", words.span(k), hint=_FOREIGN[text]), give_up
    return None


def _branch(words: Words, at: int, parser: InteractiveParser) -> Found:
    """`if` as a statement, with its blocks."""
    begins = at == 0 or words.first_of_line(at) or words.tokens[at - 1].type in ("LBRACE", "RBRACE", "SEMICOLON")
    if words.tokens[at].type != "IF" or not begins:
        return None
    diagnostic = Diagnostic("`if` cannot start a statement", words.span(at), hint=_CONDITIONAL)
    return diagnostic, _skip_blocks(words, at, parser)


def _skip_blocks(words: Words, at: int, parser: InteractiveParser) -> GiveUp:
    """Past the whole loop or `if`, with its blocks, which would only repeat the mistake."""
    k = at
    while words.tokens[k].type not in ("LBRACE", *_DECLARATIONS) and words.tokens[k].line <= words.tokens[at].line:
        k += 1
    if words.tokens[k].type != "LBRACE":
        return _give_up(words, at, parser)
    k = _after_block(words, k)
    while words.tokens[k].type == "ELSE":
        while words.tokens[k].type not in ("LBRACE", "RBRACE", *_DECLARATIONS):
            k += 1
        k = _after_block(words, k)
    start, _ = _unwind(parser, words, at)
    return GiveUp(k, start)


def _after_block(words: Words, k: int) -> int:
    """The word behind the `}` of the block that begins at word k."""
    depth = 0
    while words.tokens[k].type not in _DECLARATIONS:
        depth += {"LBRACE": 1, "RBRACE": -1}.get(words.tokens[k].type, 0)
        k += depth >= 0
        if depth <= 0:
            break
    return k


def _equals(words: Words, at: int, expected: set[str]) -> Found:
    if words.tokens[at].type != "EQUAL" or "COMPARISON" not in expected:
        return None
    diagnostic = Diagnostic("`=` inside an expression", words.span(at), hint="write `==` to compare")
    return diagnostic, Replace(_token("COMPARISON", "==", words.tokens[at]))


def _missing_bracket(words: Words, at: int, expected: set[str]) -> Found:
    """A bracket that is never opened, never closed, or closed by one of another kind."""
    token = words.tokens[at]
    leaves = token.type in _DECLARATIONS or token.type == "RBRACE" or words.starts_statement(at)
    for closer, shown in (("RPAR", ")"), ("RSQB", "]"), ("RBRACE", "}")):
        if closer not in expected or (opener := words.opener(at, closer)) is None:
            continue
        opening = words.tokens[opener].value
        if closer != "RBRACE" and token.type in ("RPAR", "RSQB"):
            note = Note(f"`{opening}` opened here", words.span(opener))
            diagnostic = Diagnostic(f"`{opening}` is closed by `{token.value}`", words.span(at), (note,))
            return diagnostic, Replace(_token(closer, shown, token))
        if leaves and (closer != "RBRACE" or token.type in _DECLARATIONS):
            diagnostic = Diagnostic(f"`{opening}` is never closed", words.span(opener), hint=f"add `{shown}`")
            return diagnostic, Insert(_token(closer, shown, token))
    if "LBRACE" in expected and token.type in ("NAME", "RETURN", "EXPECT", "RBRACE"):
        diagnostic = Diagnostic("the body must be in braces: `{ … }`", words.span(at), hint="add `{` before it")
        return diagnostic, Insert(_token("LBRACE", "{", token))
    return None


def _missing_comma(words: Words, at: int, expected: set[str]) -> Found:
    token = words.tokens[at]
    if "COMMA" not in expected or token.type not in _OPERANDS or words.starts_statement(at):
        return None
    if not expected & {"RPAR", "RSQB"}:
        return None
    return Diagnostic("missing `,`", words.span(at)), Insert(_token("COMMA", ",", token))


def _plain(words: Words, at: int, expected: set[str], parser: InteractiveParser) -> tuple[Diagnostic, Recovery]:
    """Without a fitting repair: a message as close as the words around allow, then the next statement."""
    if expected == {"ELSE"} or ("ELSE" in expected and (words.tokens[at].type in _ENDS or words.starts_statement(at))):
        position = next((k for k in range(at - 1, -1, -1) if words.tokens[k].type == "IF"), at)
        hint = "an expression always has a value: `a if condition else b`"
        diagnostic = Diagnostic("`if` without `else`", words.span(position), hint=hint)
    else:
        message, hint = _name_it(words, at, expected) or _operator(words, at, expected)
        hint = hint or _comment(words, at)
        diagnostic = Diagnostic(message, words.span(at), hint=hint)
    return diagnostic, _give_up(words, at, parser)


def _name_it(words: Words, at: int, expected: set[str]) -> tuple[str, str | None] | None:
    """Words in places where people are known to put them."""
    token, before = words.tokens[at], words.tokens[at - 1] if at else None
    match token.type:
        case "$END":
            return "the file ends in the middle of a statement", None
        case "RBRACE" if "RBRACE" not in expected and words.opener(at, "RBRACE") is None:
            return "`}` without `{`", None
        case "RBRACE" if "RETURN" in expected:
            return "a function ends with `return expression`", None
        case "NAME" if before is not None and before.type == "NUMBER" and before.end_pos == token.start_pos:
            return f"`{before.value}{token.value}` is not a name", "a name begins with a letter or `_`"
        case "SEMICOLON":
            return "`;` in the middle of a statement", "`;` may only separate statements"
        case "ELSE":
            return "`else` without `if`", _CONDITIONAL
    return None


def _comment(words: Words, at: int) -> str | None:
    """Another language's beginning of a comment, on the line of the word that does not fit or on the line before."""
    first = bisect_left(words.tokens, words.tokens[max(at - 1, 0)].line, key=lambda token: token.line)
    near = bisect_left(words.comments, first, key=lambda comment: comment[0])
    return next((hint for k, hint in words.comments[near : near + 1] if k <= at), None)


def _operator(words: Words, at: int, expected: set[str]) -> tuple[str, str | None]:
    """Operators that the language does not have; or just the word, and the words that would have fitted."""
    value = words.tokens[at].value
    if value in _ARITHMETIC and words.tokens[at + 1].value == "=":
        return f"`{value}=` is not an operator", "a name is defined once: `name[i] = …`"
    if value in _ARITHMETIC and at and words.tokens[at - 1].value == value:
        return f"`{value}{value}` is not an operator", None
    if value == "+" and "NUMBER" in expected:
        return "there is no unary `+`", "leave it out"
    if value == ":" and at and words.tokens[at - 1].type in ("LSQB", "COMMA"):
        return "there are no slices", "an index names a whole dimension: `y[i] = sum[j](x[i, j])`"
    return f"unexpected {_speak(words.tokens[at])}" + _wanted(expected), None


def _speak(token: Token) -> str:
    return "the end of the file" if token.type == "$END" else f"`{token.value[:40]}`"


def _wanted(expected: set[str]) -> str:
    """`: expected …` where few words would do; nothing where a list would not help."""
    if {"NUMBER", "NAME"} <= expected:
        return ": expected an expression"
    known = [_SPOKEN[kind] for kind in sorted(expected) if kind in _SPOKEN]
    return f": expected {' or '.join(known)}" if 0 < len(known) <= 3 and len(known) == len(expected) else ""


def _unwind(parser: InteractiveParser, words: Words, at: int) -> tuple[int, bool]:
    """Pops the parser to the innermost list of statements or declarations.

    Returns the beginning of the rest, and whether that is a header or function.
    """
    start = words.tokens[at].start_pos
    state = parser.parser_state
    table = state.parse_conf.parse_table.states
    left_declaration = False
    while not any(table[state.state_stack[-1]].get(word, (None,))[0] is Shift for word in ("EXPECT", "OP")):
        state.state_stack.pop()
        gone = state.value_stack.pop()
        left_declaration |= isinstance(gone, Token) and gone.type in ("OP", "DEF")
        start = min(start, _begin(gone, start))
    return start, left_declaration


def _begin(part: Token | Tree, otherwise: int) -> int:
    """Where the first word of a part stands that was read; `otherwise` for one without words."""
    pending: list[Any] = [part]
    while pending:
        part = pending.pop()
        if isinstance(part, Token):
            return part.start_pos
        pending += part.children[::-1]
    return otherwise


def _give_up(words: Words, at: int, parser: InteractiveParser) -> GiveUp:
    """To the next statement, or past the whole declaration if its header (or a function's body) is what went wrong."""
    start, left_declaration = _unwind(parser, words, at)
    k = at
    while words.tokens[k].type not in _DECLARATIONS:
        if not left_declaration and (words.tokens[k].type == "RBRACE" or (k > at and words.starts_statement(k))):
            return GiveUp(k if words.tokens[k].type != "RBRACE" or "RBRACE" in parser.accepts() else k + 1, start)
        if not left_declaration and k == at and words.starts_statement(k) and words.first_of_line(k):
            return GiveUp(k, start)
        k += 1
    return GiveUp(k, start)
