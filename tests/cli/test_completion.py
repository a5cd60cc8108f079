"""`tilec completion`: what a shell offers with the script."""

import shutil
import subprocess
import sys

import pytest
from tools.commands import examples_folder, tilec_command  # noqa: F401 - fixtures

pytest.importorskip("shtab")
BASH = """
source tilec.bash
COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]}-1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
$(complete -p tilec | sed 's/.*-F \\([^ ]*\\).*/\\1/')
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes(tilec, folder):
    status, script, _ = tilec("completion", "bash")
    assert status == 0
    (folder / "tilec.bash").write_text(script)

    def offered(*words: str) -> list[str]:
        done = subprocess.run(["bash", "-c", BASH, "bash", "tilec", *words], capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert offered("ex") == ["explain"]
    assert offered("run", "softmax.tile", "--tar") == ["--target"]
    assert {"h100", "h200"} <= set(offered("explain", "--target", "h"))
    assert offered("check", "softm") == ["softmax.tile"] and "tilec.bash" not in offered("check", "")
    assert "tilec.bash" in offered("opt", "")
    assert offered("dump", "softmax.tile", "--after", "t") == ["tile"]


@pytest.mark.parametrize("shell", ["zsh", "fish", "tcsh"])
def test_scripts_of_other_shells_know_the_commands(tilec, shell):
    status, script, _ = tilec("completion", shell)
    assert status == 0 and all(name in script for name in ("explain", "doctor", "h200"))


def test_without_shtab(tilec, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    status, _, error = tilec("completion", "bash")
    assert status == 1 and 'hint: pip install "tilec[completion]"' in error
