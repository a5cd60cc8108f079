"""`docs/cli.md`, executed: every command in a `console` block runs, and prints what stands below it (`...`:
anything).

Blocks of a section run in order in one folder with the examples. A comment `# exit status 1` behind a command
says how it ends.
"""

import os
import re
import shutil
import subprocess

import pytest
from tools import ROOT
from tools.commands import IN_SHELL

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


@pytest.mark.skipif(os.name == "nt" or not shutil.which("bash"), reason="the page is written for a POSIX shell")
@pytest.mark.parametrize("section", SECTIONS)
def test_section(section, tmp_path):
    for program in (ROOT / "examples").glob("*.tile"):
        shutil.copy(program, tmp_path)
    environment = {**os.environ, "TILEC_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": ""}
    environment.pop("PYTHONUNBUFFERED", None)  # which would hide an order of output that users do not see
    for command, status, expected in commands(SECTIONS[section]):
        script = f'tilec() {{ {IN_SHELL} "$@"; }}\n{command}\n'
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == status, f"{command}\n{done.stdout}"
        assert matches(expected, done.stdout), f"{command}\n{done.stdout}"


def test_every_command_is_there():
    from tilec.cli.command import parser

    (choices,) = [a.choices for a in parser()._actions if a.choices]
    for name in choices:
        assert f"| `{name}` |" in PAGE and f"$ tilec {name}" in PAGE
