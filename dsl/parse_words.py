"""The words of a source, for messages about those that do not fit, and the ways to read on after one."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, takewhile

from lark import Token

from tilec.core.diagnostics import Source, Span
from tilec.core.functions import FUNCTIONS
from tilec.core.reductions import REDUCTIONS, SCANS
from tilec.dsl import std

OPENERS = {"RPAR": "LPAR", "RSQB": "LSQB", "RBRACE": "LBRACE"}
"""The kinds of opening brackets, by those that close them."""
CLOSERS = {opener: closer for closer, opener in OPENERS.items()}
LOOPS = {"for", "while", "loop", "parallel", "do"}
FOREIGN = {
    "let": "a definition is just `name[i] = expression`",
    "var": "a definition is just `name[i] = expression`",
    "const": "a definition is just `name[i] = expression`",
    "fn": "functions are written `def name(x) { return … }`, ops `op name(x: f32[N]) -> (y: f32[N]) { … }`",
    "function": "functions are written `def name(x) { return … }`, ops `op name(x: f32[N]) -> (y: f32[N]) { … }`",
}
COMMENTS = {"//": "`//` divides: a comment begins with `#`", "/*": "a comment begins with `#`"}


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


NEARBY_WORDS = 400  # words to either side that are looked at for what one means


class Words:
    """The tokens of a source, with the questions that messages ask about their surroundings. A message may replace later ones."""

    def __init__(self, source: Source, tokens: list[Token]):
        self.source, self.tokens = source, tokens
        self._read, self._open = 0, list[int]()  # of `opener`

    def span(self, at: int, last: int | None = None) -> Span:
        """Of a word, or of all from it to the last."""
        if last is not None:
            return Span(self.source, self.tokens[at].start_pos or 0, self.tokens[last].end_pos or 0)
        token = self.tokens[at]
        if token.type == "$END":
            end = len(self.source.text.rstrip())
            return Span(self.source, max(0, end - 1), end)
        return Span(self.source, token.start_pos or 0, token.end_pos or 0)

    def first_of_line(self, at: int) -> bool:
        return at == 0 or self.tokens[at].line != self.tokens[at - 1].end_line

    def starts_statement(self, at: int) -> bool:
        """Whether a statement plausibly starts here; exact enough for where to resume."""
        token, after = self.tokens[at], self.tokens[min(at + 1, len(self.tokens) - 1)]
        if token.type in ("EXPECT", "RETURN"):
            return True
        if token.value in LOOPS or token.value in FOREIGN:
            return self.first_of_line(at)
        if token.type != "NAME" or after.type not in ("LSQB", "EQUAL", "COLON", "COMMA"):
            return False
        return self.first_of_line(at) or self.tokens[at - 1].type in ("SEMICOLON", "LBRACE")

    def defined(self, lost: GiveUp) -> set[Lost]:
        """The names that statements and declarations which were given up would define."""
        names: set[Lost] = set()
        for k in range(bisect_left(self.tokens, lost.start, key=lambda t: t.start_pos or 0), lost.resume):
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
            if kind in OPENERS.values():
                self._open.append(k)
            elif kind in OPENERS and self._open and self.tokens[self._open[-1]].type == OPENERS[kind]:
                self._open.pop()
        self._read = at
        return next((k for k in reversed(self._open) if self.tokens[k].type == OPENERS[closer]), None)

    def text(self, first: int, last: int) -> str:
        """The source from one word to another, on one line, shortened."""
        text = " ".join(self.source.text[self.tokens[first].start_pos : self.tokens[last].end_pos].split())
        return text if len(text) <= 80 else text[:77] + "…"

    def partner(self, at: int) -> int:
        """The bracket that belongs to the bracket `at`; `at` itself where there is none near it."""
        kind = self.tokens[at].type
        step, opens, closes = (1, CLOSERS, OPENERS) if kind in CLOSERS else (-1, OPENERS, CLOSERS)
        depth, k = 0, at
        while 0 <= k < len(self.tokens) and abs(k - at) < NEARBY_WORDS:
            depth += (self.tokens[k].type in opens) - (self.tokens[k].type in closes)
            if depth == 0:
                return k
            k += step
        return at

    def operand_at(self, at: int) -> str:
        """The text of the operand that begins at a word: `x`, `x[…]`, `f(…)`, `f[…](…)`, `(…)`."""
        last = self.partner(at) if self.tokens[at].type == "LPAR" else at
        while self.tokens[at].type == "NAME" and self.tokens[last + 1].type in ("LSQB", "LPAR"):
            after = self.partner(last + 1)
            if after == last + 1:
                break
            last = after
        return self.text(at, last)

    def operand_ending(self, at: int) -> str:
        """The text of the operand of which a word is the last."""
        first = at
        while self.tokens[first].type in OPENERS:
            before = self.partner(first)
            if before == first:
                break
            first = before - 1 if before > 0 and self.tokens[before - 1].type in ("NAME", "RSQB") else before
            if self.tokens[first].type == "LPAR":
                break
        return self.text(first, at)

    def arguments(self, opener: int) -> list[str]:
        """The texts between the commas of a pair of parentheses."""
        close, parts, start, k = self.partner(opener), list[str](), opener + 1, opener + 1
        while k <= close and close > opener + 1:
            if self.tokens[k].type == "COMMA" or k == close:
                if k > start:
                    parts.append(self.text(start, k - 1))
                start = k + 1
            k = self.partner(k) + 1 if self.tokens[k].type in CLOSERS else k + 1
        return parts

    @cached_property
    def functions(self) -> set[str]:
        """The names that are followed by parentheses: of functions that there are, and of those that the text defines."""
        defined = {after.value for token, after in pairwise(self.tokens) if token.type == "DEF"}
        return {*FUNCTIONS, *REDUCTIONS, *SCANS, "mean", "logsumexp", *std.names(), *defined}

    @cached_property
    def comments(self) -> list[tuple[int, str]]:
        """Where other languages would begin a comment, and how that is written here."""
        found = []
        for k, (token, after) in enumerate(pairwise([*self.tokens, self.tokens[-1]])):
            pair = token.value + after.value if token.end_pos == after.start_pos else ""
            shown = next((c for c in COMMENTS if c == token.value or pair.startswith(c)), None)
            if shown is not None:
                found.append((k, COMMENTS[shown]))
        return found

    def comment(self, at: int) -> str | None:
        """The hint for another language's beginning of a comment, on the line of a word that does not fit or on the line before."""
        first = bisect_left(self.tokens, self.tokens[max(at - 1, 0)].line or 0, key=lambda token: token.line or 0)
        near = bisect_left(self.comments, first, key=lambda comment: comment[0])
        return next((hint for k, hint in self.comments[near : near + 1] if k <= at), None)


def token_near(kind: str, text: str, near: Token) -> Token:
    """A word that is read at the place of another."""
    return Token.new_borrow_pos(kind, text, near)
