"""The colours of programs: a kind for each word of the grammar, and a lexer for Pygments, which finds words as the parser does.

`pip install tilec` registers the lexer under the name `tile`. The grammar of editors (`benchmarks/textmate.py`) is made of the same
table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from pygments.lexer import Lexer
from pygments.token import Comment, Error, Keyword, Name, Number, Operator, Punctuation, String, Text, _TokenType

from tilec.core.dtypes import DTYPES
from tilec.core.functions import FUNCTIONS
from tilec.dsl import ast, std
from tilec.dsl.parse import lex_any, terminals
from tilec.dsl.parse_tree import CONSTANTS, REDUCTIONS, SCANS

Found: TypeAlias = "tuple[int, _TokenType, str]"  # where a word begins, its kind and its text


@dataclass(frozen=True)
class Kind:
    """How words of a kind are shown: `token` by Pygments, `scope` by TextMate grammars."""

    token: _TokenType
    scope: str


_PUNCTUATION = {
    "LPAR": "section.parens.begin", "RPAR": "section.parens.end", "LSQB": "section.brackets.begin", "RSQB": "section.brackets.end",
    "LBRACE": "section.braces.begin", "RBRACE": "section.braces.end", "COMMA": "separator.comma", "COLON": "separator.colon",
    "SEMICOLON": "terminator.statement",
}  # fmt: skip
_KINDS = {
    "COMMENT": Kind(Comment.Single, "comment.line.number-sign"),
    "IMPORT": Kind(Keyword.Namespace, "keyword.control.import"),
    "OP DEF": Kind(Keyword.Declaration, "storage.type.function"),
    "IF ELSE RETURN WHERE IN USING EXPECT": Kind(Keyword, "keyword.control"),
    "AND OR NOT": Kind(Operator.Word, "keyword.operator.logical"),
    "TRUE FALSE": Kind(Keyword.Constant, "constant.language"),
    "NUMBER": Kind(Number, "constant.numeric"),
    "STRING": Kind(String.Double, "string.quoted.double"),
    "COMPARISON": Kind(Operator, "keyword.operator.comparison"),
    "BAR CARET AMPERSAND SHIFT TILDE": Kind(Operator, "keyword.operator.bitwise"),
    "PLUS MINUS STAR SLASH DOUBLE_SLASH PERCENT POWER": Kind(Operator, "keyword.operator.arithmetic"),
    "EQUAL": Kind(Operator, "keyword.operator.assignment"),
    "DOTS": Kind(Operator, "keyword.operator.range"),
    "->": Kind(Punctuation, "punctuation.separator.arrow"),
    "WRONG_OR WRONG_AND WRONG_NOT": Kind(Error, "invalid.illegal.operator"),
    "NAME": Kind(Name, "variable.other"),
}
KINDS = {word: kind for words, kind in _KINDS.items() for word in words.split()} | {
    word: Kind(Punctuation, f"punctuation.{scope}") for word, scope in _PUNCTUATION.items()
}
"""By the names of the grammar's terminals; of one without a name, by its text."""

DEFINED = Kind(Name.Function, "entity.name.function")
"""The name behind `op` or `def`."""

NAMES = {
    **dict.fromkeys([*DTYPES, ast.TF32.name, ast.F22.name], Kind(Keyword.Type, "support.type")),
    **dict.fromkeys([*FUNCTIONS, *REDUCTIONS, *SCANS, "pad", *sorted(std.names())], Kind(Name.Builtin, "support.function")),
    **dict.fromkeys(CONSTANTS, Kind(Keyword.Constant, "constant.language")),
}
"""Names that mean the same in all programs which do not define them anew. (`pi`, `tau` and `e` are names of tensors as often.)"""


def kinds(text: str) -> Iterator[tuple[int, str, Kind | None]]:
    """Position, text and kind of the words of any text, program or not, and of what stands between them: white space (None), and
    characters that no word has (`ILLEGAL`)."""
    words = {t.name: KINDS.get(t.name) or KINDS.get(t.pattern.value) for t in terminals()}
    declares = False
    for token in lex_any(text):
        at = token.start_pos or 0
        if (kind := words[token.type]) is None:
            for gap in _GAPS.finditer(text, at, at + len(token)):
                declares = declares and gap["space"] is not None
                yield gap.start(), gap[0], None if gap["space"] else ILLEGAL
            continue
        if token.type == "NAME":
            kind = DEFINED if declares else NAMES.get(token, kind)
        if token.type != "COMMENT":
            declares = token.type in ("OP", "DEF")
        yield at, str(token), kind


ILLEGAL = Kind(Error, "invalid.illegal")
_GAPS = re.compile(r"(?P<space>[ \t\r\n\f]+)|[^ \t\r\n\f]+")


class TileLexer(Lexer):
    """The lexer of `.tile` programs."""

    name = "tile"
    url = ""
    aliases = ("tile", "tilec")
    filenames = ("*.tile",)
    mimetypes = ("text/x-tile",)

    def get_tokens_unprocessed(self, text: str) -> Iterator[Found]:
        """Position, kind and text of each word and of each gap, in their order."""
        for at, word, kind in kinds(text):
            yield at, kind.token if kind else Text, word
