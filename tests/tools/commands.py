"""What the tests of the command line share: a folder with the examples, and the command in this process or another."""

import shlex
import shutil
import sys

import pytest

from tilec.cli import command
from tilec.process import progress
from tools import ROOT

QUIET = "from tilec.process import progress; progress.FIRST = 1e6"
"""What a script begins with whose standard error is compared: however busy the machine is, nothing says what it is at."""
IN_SHELL = shlex.join([sys.executable, "-c", f"import sys; {QUIET}; from tilec.cli.command import main; sys.exit(main())"])
"""The command for a shell, so."""
SOFTMAX = ["softmax.tile", "-D", "M=40,N=50"]


@pytest.fixture(name="folder", autouse=True)
def examples_folder(tmp_path, monkeypatch):
    """A folder with the examples, where the command runs."""
    for program in (ROOT / "examples").glob("*.tile"):
        shutil.copy(program, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("TILEC_DEBUG", raising=False)
    return tmp_path


@pytest.fixture(name="tilec")
def tilec_command(capfd, monkeypatch):
    """Runs the command; returns its status, output and error output. However busy the machine is, it does not say what it is at."""
    monkeypatch.setattr(progress, "FIRST", 1e6)

    def run(*arguments: object) -> tuple[int, str, str]:
        try:
            status = command.main([str(a) for a in arguments])
        except SystemExit as done:
            status = done.code or 0
        captured = capfd.readouterr()
        return status, captured.out, captured.err

    return run
