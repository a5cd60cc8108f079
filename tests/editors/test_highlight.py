"""Colours of programs: the Pygments lexer and the TextMate grammar give every word the kind that the parser's lexer says."""

import json
import tomllib

import pytest
from fuzz.choices import Choices
from fuzz.programs import drawn_case
from fuzz.text import corpus, drawn_source
from pygments import highlight
from pygments.formatters import NullFormatter
from pygments.lexers import get_lexer_by_name
from pygments.token import Error
from tools import ROOT
from tools.textmate import scopes

from benchmarks import textmate
from tilec.core.dtypes import DTYPES
from tilec.core.functions import FUNCTIONS
from tilec.dsl.highlight import ILLEGAL, KINDS, NAMES, TileLexer, kinds
from tilec.dsl.parse import lex, terminals

GRAMMAR = json.loads(textmate.PATH.read_text(encoding="utf-8"))
GOLDEN = [p.read_text(encoding="utf-8") for p in sorted((ROOT / "tests" / "golden" / "diagnostics").glob("*.tile"))]
LINES = "op # c\n f(x: f32[N]) -> # d\n(y: f32[N])\n{ y[i]=x[i]if i<1else 0x1F+1.*.5e3 }\ndef\n\ndef op g op\n"
HOSTILE = ["", "\n", "a@@b . .. .5 1. \"x\n\"yé\" # é\n", "1..8192 0in x1 \r\n\f\t", "\ud800 \u2028 ١ \x00", LINES]


def expected(text: str) -> list[tuple[int, str, str]]:
    """By the lexer of the parser, words that nothing can be in a character at a time."""
    found = []
    for at, word, kind in kinds(text):
        if kind is ILLEGAL:
            found += [(at + k, c, f"{kind.scope}.tile") for k, c in enumerate(word)]
        elif kind is not None:
            found.append((at, word, f"{kind.scope}.tile"))
    return found


def assert_same(text: str) -> None:
    assert "".join(word for _, word, _ in kinds(text)) == text
    assert list(scopes(GRAMMAR, text)) == expected(text)


def drawn_texts(count: int) -> list[str]:
    made = [drawn_case(Choices(f"highlight {n}")).text for n in range(count)]
    return made + [drawn_source(Choices(f"highlight {n}")) for n in range(count)]


def test_every_kind_of_word_has_a_colour():
    words = {t.name if t.name in KINDS else t.pattern.value for t in terminals() if not t.name.startswith("__IGNORE")}
    assert words == set(KINDS)
    assert {*DTYPES, *FUNCTIONS, "sum", "cumsum", "pad", "softmax", "inf"} <= set(NAMES)


@pytest.mark.parametrize("count", [5, pytest.param(150, marks=pytest.mark.slow)])
def test_the_grammar_of_editors_has_the_words_of_the_parser(count):
    for text in (*corpus(), *GOLDEN, *HOSTILE, *drawn_texts(count)):
        assert_same(text)


def test_words_are_those_of_the_parser():
    for text in corpus():
        found = [(at, word) for at, word, kind in kinds(text) if kind is not None]
        assert found == [(t.start_pos, str(t)) for t in lex(text) if not t.type.startswith("__IGNORE")]


def test_the_grammar_of_editors_is_current():
    assert textmate.PATH.read_text(encoding="utf-8") == textmate.text(), "run `python -m benchmarks docs`"


def test_pygments_finds_the_lexer():
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pygments.lexers"]
    assert entry == {"tile": f"{TileLexer.__module__}:{TileLexer.__qualname__}"}
    for text in (*corpus()[2:6], *HOSTILE):
        lexer = TileLexer(stripnl=False, ensurenl=False)
        assert highlight(text, lexer, NullFormatter()) == text.replace("\r\n", "\n").replace("\r", "\n")
    assert not any(token is Error for text in corpus() for token, _ in TileLexer().get_tokens(text))


@pytest.mark.skipif("not __import__('importlib.metadata').metadata.entry_points(group='pygments.lexers', name='tile')")
def test_the_installed_lexer_has_its_name():
    assert type(get_lexer_by_name("tile")).__name__ == "TileLexer"
