"""README.md and docs/: what they show runs, what is generated is current, and links lead somewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from tools import ROOT

from tilec.core.diagnostics import Source
from tilec.dsl.check import check
from tilec.dsl.parse import parse

FOLDERS = (ROOT, ROOT / "docs", ROOT / "docs" / "guides")
PAGES = sorted(p.relative_to(ROOT).as_posix() for folder in FOLDERS for p in folder.glob("*.md"))
TUTORIAL = sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs" / "tutorial").glob("*.md"))
"""Their commands and Python run in `tests/cli/test_tutorial.py`."""
GUIDE = "CONTRIBUTING.md"
"""Its examples change tables of the compiler: each has a process for itself."""
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MAIN = "import sys; from tilec.cli.command import main; sys.exit(main())"


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    return [body for name, body in BLOCK.findall(text(page)) if name == language]


def _commands():
    for page in PAGES:
        for body in blocks(page, "sh"):
            for line in body.replace("\\\n", " ").splitlines():
                if line.startswith("tilec "):
                    yield pytest.param(line, id=f"{Path(page).stem}: {line}")


@pytest.mark.some(3)
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python") and p != GUIDE])
def test_python_runs(page, monkeypatch, capsys):
    """The blocks of a page follow one another, in the repository's root."""
    monkeypatch.chdir(ROOT)
    if "backend=\"tilec\"" in text(page):
        pytest.importorskip("torch")
        from tilec.torch import reports
        from tilec.torch.backend import register

        register()
        reports.forget()  # what other tests compiled in this process
    names: dict = {"__name__": "__docs__"}
    for body in blocks(page, "python"):
        line = text(page)[: text(page).index(body)].count("\n")
        exec(compile("\n" * line + body, page, "exec"), names)


def _worked_examples():
    for section in re.split(r"^(?=## )", text(GUIDE), flags=re.MULTILINE):
        for name, body in BLOCK.findall(section):
            if name == "python":
                yield pytest.param(body, id=section.partition("\n")[0].removeprefix("## "))


@pytest.mark.slow
@pytest.mark.parametrize("code", list(_worked_examples()))
def test_worked_example(code, tmp_path):
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_what_can_be_added_has_an_example():
    found = [example.id for example in _worked_examples()]
    assert found == ["A function of the language", "A pass", "A kernel family", "A target"]


@pytest.mark.parametrize("page", [p for p in [*PAGES, *TUTORIAL] if blocks(p, "tile")])
def test_programs_are_right(page):
    for body in blocks(page, "tile"):
        assert check(parse(Source(page, body))) == []


@pytest.mark.some(3)
@pytest.mark.parametrize("command", list(_commands()))
def test_command_succeeds(command, tmp_path):
    """On copies: what a command writes stays out of the repository."""
    for path in [*(ROOT / "examples").glob("*.tile"), *(ROOT / "tilec/targets").glob("*.toml")]:
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    for path in (ROOT / "examples").glob("*.tile"):  # some pages name programs without their folder
        (tmp_path / path.name).write_bytes(path.read_bytes())
    words = shlex.split(command.partition(" > ")[0], comments=True)[1:]
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *words], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_make_targets_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for body in blocks(page, "sh"):
            for name in re.findall(r"^make (\w+)", body, re.MULTILINE):
                assert name in targets, f"{page}: make {name}"


def test_generated_sections_are_current():
    sys.path.insert(0, str(ROOT))
    from benchmarks.docs import pages

    stale = [name for name, now, current in pages() if now != current]
    assert not stale, f"run `python -m benchmarks docs`: {stale}"


@pytest.mark.parametrize("page", [*PAGES, *TUTORIAL])
def test_links_lead_somewhere(page):
    prose = re.sub(r"`[^`\n]*`", "", BLOCK.sub("", text(page)))
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose):
        if "://" not in target:
            assert (ROOT / page).parent.joinpath(target).exists(), f"{page}: {target}"


@pytest.mark.parametrize("page", [*PAGES, *TUTORIAL])
def test_anchors_exist(page):
    headings = {
        re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-")
        for h in re.findall(r"^#+ (.*)$", text(page), re.MULTILINE)
    }
    for anchor in re.findall(r"\]\(#([\w-]+)\)", text(page)):
        assert anchor in headings, f"{page}: #{anchor}"



def test_the_glossary_has_every_family_and_option():
    from tilec.kernels import FAMILIES

    names = set(FAMILIES) | {f.name for family in FAMILIES.values() for f in fields(family) if not f.metadata["fixed"]}
    assert sorted(n for n in names if f"`{n}`" not in text("docs/glossary.md")) == []


# ---- sentences -------------------------------------------------------------------------------------------------------

LONGEST = 31  # words of a sentence
PROSE = ["README.md", GUIDE, *sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md"))]
"""All but the changelog, whose entries are lists."""


def sentences(page: str) -> list[str]:
    """Of running text and list items, without blocks, tables, headings and what is generated; each code span is one word."""
    prose = re.sub(r"<!-- generated.*?<!-- end -->", "\n\n", re.sub(r"^```.*?^```$", "\n\n", page, flags=re.M | re.S), flags=re.S)
    found = []
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)|\n(?=[|#])", prose):
        if not part.lstrip().startswith(("|", "#", "<!--")):
            plain = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "code", " ".join(part.split())))
            found += re.split(r"""(?<=[.!?])["')\]*]*\s+""", plain)
    return found


@pytest.mark.parametrize("page", PROSE)
def test_sentences_are_short(page):
    long = [s for s in sentences(text(page)) if sum(bool(re.search(r"\w", word)) for word in s.split()) > LONGEST]
    assert not long, "\n".join(long)


def test_long_sentences_are_found():
    one, two = "a " * 20 + "end. ", "`f(x, y)` " * 33
    assert [len(s.split()) for s in sentences(f"{one}{one}\n\n```sh\n{two}\n```\n- {two}")] == [21, 21, 34]
