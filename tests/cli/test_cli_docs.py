"""`docs/cli.md`, executed: every command in a `console` block runs, and prints what stands below it (`...`:
anything).

Blocks of a section run in order in one folder with the examples.
"""

import os
import re
import shutil

import pytest
from tools import ROOT, console
from tools.commands import examples_folder  # noqa: F401

from tilec.process import progress

PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def commands(section: str) -> list[tuple[str, int, str]]:
    return console.commands("".join(re.findall(r"^```console\n(.*?)^```", section, re.MULTILINE | re.DOTALL)))


@pytest.mark.skipif(os.name == "nt" or not shutil.which("bash"), reason="the page is written for a POSIX shell")
@pytest.mark.parametrize("section", [pytest.param(s, marks=pytest.mark.slow if s == "The IR" else ()) for s in SECTIONS])
def test_section(section, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.delenv("COLUMNS")
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # which would hide an order of output that users do not see
    monkeypatch.setattr(progress, "FIRST", 1e6)
    for text, status, expected in commands(SECTIONS[section]):
        console.check(text, status, expected)


def test_every_command_is_there():
    from tilec.cli.parsers import parser

    (choices,) = [a.choices for a in parser()._actions if a.choices]
    for name in choices:
        assert f"| `{name}` |" in PAGE and f"$ tilec {name}" in PAGE
