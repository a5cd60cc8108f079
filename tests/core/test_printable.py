"""Nothing that a text contains steers a terminal, and carets stand under what they mean."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import pytest

import tilec
from tilec.core.diagnostics import CallError, Diagnostic, Source, Span, TileError
from tilec.process.printable import columns, escaped, printable

STEERING = (
    "\x07\x08\x0b\x0c\r\x1b\x7f\x85\x9b\u061c\u200b\u200e\u200f\u2028\u2029\u202a\u202d\u202e\u2066\u2067\u2069"
    "\ufeff\udc80\U000e0041"
)


def steers(text: str) -> list[str]:
    """By Unicode's own categories: controls, formats, separators of lines, surrogates."""
    return [c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Cs") and c not in "\n\t"]


def test_every_control_and_format_character_of_unicode_is_escaped():
    joining = {"\u0600", "\u0601", "\u0602", "\u0603", "\u0604", "\u0605", "\u06dd", "\u070f", "\u0890", "\u0891", "\u08e2"}
    for number in range(0x110000):
        c = chr(number)
        if (steers(c) and c not in joining and number < 0x11000) or 0xE0000 <= number < 0xE0080:
            assert printable(c) == escaped(c) != c, hex(number)
    assert printable("a\tb\nä 世界 ∑") == "a\tb\nä 世界 ∑" and printable("\x1b\u202e\U000e0041") == "\\x1b\\u202e\\U000e0041"


BEFORE = ["", "abc", "世界", "e\u0301", "\x1b[31m", "\u202e", "\t\x07", "ａ", "😀", "\r", "\u200b\u2066世"]


@pytest.mark.parametrize("before", BEFORE)
def test_carets_stand_under_what_they_mean(before):
    source = Source("a.tile", f"{before}$$ rest\n")
    line, carets = str(Diagnostic("wrong", Span(source, len(before), len(before) + 2))).splitlines()[1:]

    def width(text: str) -> int:
        wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
        return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))

    assert not steers(line)
    assert width(line[: line.index("$$")]) == width(carets[: carets.index("^")]) and carets.endswith("^^")
    assert sum(map(columns, before)) == width(printable(before))


@pytest.mark.parametrize("c", STEERING)
def test_messages_and_reports_escape(c, tmp_path):
    name = tmp_path / f"a{c if c.isprintable() or ord(c) < 0xD800 or ord(c) > 0xDFFF else ''}b.tile"
    wrong = Source(str(name), f"y[i] = x[i] + $ {c} z # {c}\n{c} = 3")
    with pytest.raises(TileError) as raised:
        from tilec.dsl.mistakes import read

        read(wrong)
    assert not steers(str(raised.value))
    assert not steers(str(CallError(f"no op `{c}`", hint=c)))
    for call in (lambda: tilec.compile("y[i] = x[i]", op=c), lambda: tilec.compile("y[i] = x[i]", target=f"h{c}")):
        with pytest.raises(TileError) as raised:
            call()
        assert not steers(str(raised.value))


def test_a_file_name_is_no_part_of_a_kernel(tmp_path):
    """Printed kernels name the file in comments: a line end in a name would end the comment."""
    path = tmp_path / "a\nraise SystemExit(3)\n#\x1b[31m\u202e.tile"
    Path(path).write_text("y[i] = x[i] + 1  # \x1b[2J\n")
    op = tilec.compile(path, target="cpu")
    assert op(np.ones(3, np.float32)).tolist() == [2, 2, 2]
    for text in (op.kernels[0].source, op.explain(), *op.stages.values()):
        assert not steers(text) and "\nraise" not in text


def test_reports_of_models_escape():
    from tilec.torch.reports import Eager, GraphReport

    report = GraphReport("g\x1b[31m", "inference", eager=[Eager("sort\x07", "because \u202e", "layers.\x1b[2J")])
    assert not steers(str(report)) and "layers.\\x1b[2J" in str(report)
