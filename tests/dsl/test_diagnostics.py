"""Messages, word for word: each `golden/diagnostics/NAME.tile` has its output in `NAME.txt` beside it.

`TILEC_UPDATE_GOLDEN=1 pytest tests/dsl/test_diagnostics.py` writes the outputs anew, to be read in the diff.
"""

import os
from pathlib import Path

import pytest
from tools import TESTS

from tilec.core.diagnostics import Source, TileError
from tilec.dsl.check import check
from tilec.dsl.parse import parse

GOLDEN = TESTS / "golden" / "diagnostics"


def output(path: Path) -> str:
    source = Source(path.name, path.read_text())
    try:
        diagnostics = check(parse(source))
    except TileError as error:
        diagnostics = error.diagnostics
    return "\n".join(map(str, diagnostics)) + "\n"


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.tile")), ids=lambda path: path.stem)
def test_messages(path):
    expected = path.with_suffix(".txt")
    found = output(path)
    assert found.strip(), "a golden program is a wrong one"
    if os.environ.get("TILEC_UPDATE_GOLDEN"):
        assert not os.environ.get("CI"), "golden files are not written in CI"
        expected.write_text(found)
    assert found == expected.read_text()


def test_every_output_has_its_program():
    assert {p.stem for p in GOLDEN.glob("*.txt")} == {p.stem for p in GOLDEN.glob("*.tile")}
