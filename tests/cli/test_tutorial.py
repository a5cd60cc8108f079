"""`docs/tutorial`, executed: the blocks of a chapter run in order in one folder with the examples, the answers' too.

A `tile` block whose first line names a file is saved there. `python` blocks share their names. `console` blocks run, and print
what stands below each command; predicted times may be a fifth off, since the cost model changes.
"""

import os
import re
import shutil
import sys
from types import ModuleType

import pytest
from tools import ROOT, console
from tools.commands import examples_folder  # noqa: F401

from tilec.process import progress

FOLDER = ROOT / "docs" / "tutorial"
CHAPTERS = sorted(p.stem for p in FOLDER.glob("[0-9]_*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt" or not shutil.which("bash"), reason="the pages are written for a POSIX shell")
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_chapter(chapter, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr(progress, "FIRST", 1e6)
    text = (FOLDER / f"{chapter}.md").read_text(encoding="utf-8")
    if "import torch" in text:
        pytest.importorskip("torch")
        from tilec.torch import reports
        from tilec.torch.backend import register

        register()
        reports.forget()  # what other tests compiled in this process
    session = ModuleType("__tutorial__")
    monkeypatch.setitem(sys.modules, session.__name__, session)  # where Dynamo looks up what a model of the chapter calls
    for block in BLOCK.finditer(text):
        language, body = block.groups()
        line = text[: block.start(2)].count("\n")
        if language == "tile" and (name := re.match(r"# (\w+\.tile)\n", body)):
            (folder / name[1]).write_text(body)
        elif language == "python":
            exec(compile("\n" * line + body, f"{chapter}.md", "exec"), vars(session))
        elif language == "console":
            for command, status, expected in console.commands(body):
                console.check(command, status, expected, console.nearly_matches)


def test_chapters_follow_one_another():
    """The index has all of them in order, each leads to the next one, and each has exercises with answers."""
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[\d\. .*?\]\((\w+)\.md\)", index, re.MULTILINE) == CHAPTERS
    assert [int(name[0]) for name in CHAPTERS] == list(range(1, len(CHAPTERS) + 1))
    for chapter, following in zip(CHAPTERS, [*CHAPTERS[1:], None], strict=True):
        text = (FOLDER / f"{chapter}.md").read_text(encoding="utf-8")
        assert following is None or f"]({following}.md)" in text
        exercises = text.partition("## Exercises")[2]
        assert exercises.count("<summary>Answer</summary>") == len(re.findall(r"^\*\*\d\.\*\*", exercises, re.MULTILINE)) >= 1


@pytest.mark.parametrize("found, same", [("1.1 us", True), ("  0.9 us  ####", False), ("1.5 us", False), ("1 ms", False)])
def test_figures_may_be_near(found, same):
    assert console.nearly_matches("time ... 1.0 us", f"time a b {found}") is same
    assert console.nearly_matches("time 1.0 us  ##\nend", "time    1.1 us  ###\nend")
