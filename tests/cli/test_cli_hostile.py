"""Commands given files that others made: nothing in them reaches the terminal as a command to it."""

from __future__ import annotations

import subprocess
import unicodedata

import pytest
from tools.commands import IN_SHELL, examples_folder, tilec_command  # noqa: F401

NAME = "a\x1b[31m\x07\u202e[bold].tile"
TEXT = "op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + 1 }  # \x1b[2J \u202e \x07\n"


def steers(text: str) -> list[str]:
    return [c for c in text if unicodedata.category(c) in ("Cc", "Cf") and c not in "\n\t"]


COMMANDS = """
check FILE|check --ranges FILE|fmt --check FILE|plan FILE -D N=8|explain FILE -D N=8|dump FILE -D N=8 --after plan|emit FILE -D N=8
run FILE -D N=8 --check|verify FILE -D N=8|explain FILE --op ESCAPE|explain FILE -D N=ESCAPE|explain FILE -D N=8 --target ESCAPE
explain FILE -D N=8 --schedule ESCAPE|opt FILE|check FILE --nonsense=ESCAPE|torch report ESCAPE|check WRONG|fmt WRONG|run WRONG
"""


@pytest.mark.parametrize("command", COMMANDS.strip().replace("\n", "|").split("|"))
def test_nothing_steers_the_terminal(tilec, folder, command):
    (folder / NAME).write_text(TEXT)
    (folder / f"wrong{NAME}").write_text(TEXT + 'import "\x1b]0;title\x07.tile"\nop g(x: f32[N]) -> (y: f32[N]) { y[\u202e] = $ }')
    arguments = [{"FILE": NAME, "WRONG": f"wrong{NAME}"}.get(word, word).replace("ESCAPE", "\x1b[31m") for word in command.split()]
    _, out, err = tilec(*arguments)
    assert not steers(out) and not steers(err) and (out + err or command == "check FILE")


def test_a_pipe_gets_the_program_as_it_is(folder):
    done = subprocess.run(f"{IN_SHELL} fmt -", shell=True, input=TEXT, capture_output=True, text=True, check=True)
    assert "\x1b[2J \u202e \x07" in done.stdout


def test_a_program_from_a_device_and_from_the_input(folder):
    done = subprocess.run(f"{IN_SHELL} check /dev/zero", shell=True, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr == "error: cannot read '/dev/zero': it is a device, not a file\n"
    for name in ("/dev/stdin", "-"):
        done = subprocess.run(f"{IN_SHELL} check {name}", shell=True, input="y[i] = x[i] +", capture_output=True, text=True)
        assert done.returncode == 1 and "the file ends in the middle of a statement" in done.stderr
        done = subprocess.run(f"{IN_SHELL} check {name}", shell=True, input="#" * (5 << 20), capture_output=True, text=True)
        assert done.returncode == 1 and "it has more than 4194304 bytes" in done.stderr


def test_imports_by_path(tilec, folder):
    (folder / "lib").mkdir()
    (folder / "lib" / "part.tile").write_text("def twice(x) { return 2 * x }\n")
    (folder / "main.tile").write_text('import "part.tile"\nop f(x: f32[N]) -> (y: f32[N]) { y[i] = twice(x[i]) }\n')
    for command in ("check main.tile", "explain main.tile -D N=8", "run main.tile -D N=8 --check", "verify main.tile -D N=8"):
        assert "there is no such file" in tilec(*command.split())[2]
        assert tilec(*command.split(), "--path", "none", "--path", "lib")[0] == 0
