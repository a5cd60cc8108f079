"""`docs/cli.md`, executed: every command in a `console` block runs, and prints what stands below it (`...`: anything).

Blocks run in order in one folder with the examples. A comment `# exit status 1` behind a command says how it ends.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[tuple[str, int, str]]:
    """Command, exit status and expected output."""
    found = []
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        status = re.search(r"# exit status (\d+)$", command)
        found.append((command, int(status[1]) if status else 0, output))
    return found


def matches(expected: str, found: str) -> bool:
    pattern = re.escape(expected.rstrip("\n"))
    return re.fullmatch(pattern.replace(re.escape("..."), ".*?"), found.rstrip("\n"), re.DOTALL) is not None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("docs")
    for program in (ROOT / "examples").glob("*.tile"):
        shutil.copy(program, path)
    return path


@pytest.mark.skipif(os.name == "nt" or not shutil.which("bash"), reason="the page is written for a POSIX shell")
@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: b.split("\n")[0][2:40])
def test_block(block, folder):
    environment = {**os.environ, "TILEC_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": ""}
    for command, status, expected in commands(block):
        script = f'tilec() {{ "{sys.executable}" -m tilec.cli "$@"; }}\n{command}\n'
        done = subprocess.run(
            ["bash", "-c", script], cwd=folder, env=environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == status, f"{command}\n{done.stdout}"
        assert matches(expected, done.stdout), f"{command}\n{done.stdout}"


def test_every_command_is_there():
    from tilec.cli import parser

    (choices,) = [a.choices for a in parser()._actions if a.choices]
    for name in choices:
        assert f"| `{name}` |" in PAGE and f"$ tilec {name}" in PAGE
