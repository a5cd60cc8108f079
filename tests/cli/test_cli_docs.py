"""`docs/cli.md`, executed: every command in a `console` block runs, and prints what stands below it (`...`:
anything).

Blocks of a section run in order in one folder with the examples. A comment `# exit status 1` behind a command
says how it ends.
"""

import io
import os
import re
import shutil
import subprocess
from contextlib import redirect_stderr, redirect_stdout

import pytest
from tools import ROOT
from tools.commands import IN_SHELL, examples_folder  # noqa: F401

from tilec.cli import command
from tilec.process import progress

PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def commands(section: str) -> list[tuple[str, int, str]]:
    """Command, exit status and expected output."""
    blocks = "".join(re.findall(r"^```console\n(.*?)^```", section, re.MULTILINE | re.DOTALL))
    found = []
    for part in re.split(r"^\$ ", blocks, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        status = re.search(r"# exit status (\d+)$", command)
        found.append((command, int(status[1]) if status else 0, output))
    return found


def matches(expected: str, found: str) -> bool:
    pattern = re.escape(expected.rstrip("\n"))
    return re.fullmatch(pattern.replace(re.escape("..."), ".*?"), found.rstrip("\n"), re.DOTALL) is not None


def run_here(arguments: list[str]) -> tuple[int, str]:
    """The exit status and all output of the command in this process. Its output waits in a buffer and its error output does not, as
    where both are one pipe; so a missing flush shows."""
    found = io.BytesIO()
    out, err = io.TextIOWrapper(found, "utf-8"), io.TextIOWrapper(found, "utf-8", write_through=True)
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = command.main(arguments)
        except SystemExit as done:
            status = done.code or 0
        out.flush()
    return status, found.getvalue().decode()


def run_in_shell(text: str) -> tuple[int, str]:
    script = f'tilec() {{ {IN_SHELL} "$@"; }}\n{text}\n'
    done = subprocess.run(["bash", "-c", script], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


@pytest.mark.skipif(os.name == "nt" or not shutil.which("bash"), reason="the page is written for a POSIX shell")
@pytest.mark.parametrize("section", [pytest.param(s, marks=pytest.mark.slow if s == "The IR" else ()) for s in SECTIONS])
def test_section(section, folder, tmp_path, monkeypatch):
    """A command with nothing for the shell runs in this process, which takes a tenth of the time."""
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.delenv("COLUMNS")
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # which would hide an order of output that users do not see
    monkeypatch.setattr(progress, "FIRST", 1e6)
    for text, status, expected in commands(SECTIONS[section]):
        plain = re.fullmatch(r"tilec ([\w ./,=-]+?)(?: +#.*)?", text)
        found, output = run_here(plain[1].split()) if plain else run_in_shell(text)
        assert found == status, f"{text}\n{output}"
        assert matches(expected, output), f"{text}\n{output}"


def test_every_command_is_there():
    from tilec.cli.parsers import parser

    (choices,) = [a.choices for a in parser()._actions if a.choices]
    for name in choices:
        assert f"| `{name}` |" in PAGE and f"$ tilec {name}" in PAGE
