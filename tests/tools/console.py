"""`console` blocks of documents: commands, each with its exit status and the output that stands below it."""

from __future__ import annotations

import io
import re
import subprocess
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout

from tilec.cli import command
from tools.commands import IN_SHELL

FIGURE = re.compile(r" *(\d+(?:\.\d+)?)( us| ms|%)(?!\w)")
"""A predicted time or share, with the spaces that align it."""
BAR = re.compile(r"  #+$", re.MULTILINE)
NEAR = 0.2
"""The largest relative difference of a figure in a document from the one that is printed."""
NEAR_SHARE = 5.0
"""The same of a share, in points of a hundred."""


def commands(blocks: str) -> list[tuple[str, int, str]]:
    """Command, exit status and expected output of each; a comment `# exit status 1` behind a command says how it ends."""
    found = []
    for part in re.split(r"^\$ ", blocks, flags=re.MULTILINE)[1:]:
        text, _, output = part.partition("\n")
        status = re.search(r"# exit status (\d+)$", text)
        found.append((text, int(status[1]) if status else 0, output))
    return found


def matches(expected: str, found: str) -> bool:
    """Whether these are the same text; `...` stands for any text."""
    return re.fullmatch(_pattern(expected.rstrip("\n")), found.rstrip("\n"), re.DOTALL) is not None


def nearly_matches(expected: str, found: str) -> bool:
    """As `matches`, but times and shares are the same if they are near, and bars may have any length."""
    expected, found = (BAR.sub("  #", text.rstrip("\n")) for text in (expected, found))
    figures, pattern, end = list(FIGURE.finditer(expected)), "", 0
    for figure in figures:
        pattern += rf"{_pattern(expected[end : figure.start()])} *(\d+(?:\.\d+)?){re.escape(figure[2])}"
        end = figure.end()
    same = re.fullmatch(pattern + _pattern(expected[end:]), found, re.DOTALL)
    return same is not None and all(
        abs(float(value) - float(figure[1])) <= (NEAR_SHARE if figure[2] == "%" else NEAR * float(figure[1]))
        for figure, value in zip(figures, same.groups(), strict=True)
    )


def _pattern(expected: str) -> str:
    return re.escape(expected).replace(re.escape("..."), ".*?")


def run(text: str) -> tuple[int, str]:
    """The exit status and the output of a command. One with nothing for the shell runs here, which takes a tenth of the time."""
    plain = re.fullmatch(r"tilec ([\w ./,=-]+?)(?: +#.*)?", text)
    return _run_here(plain[1].split()) if plain else _run_in_shell(text)


def _run_here(arguments: list[str]) -> tuple[int, str]:
    """Output waits in a buffer and error output does not, as where both are one pipe; so a missing flush shows."""
    found = io.BytesIO()
    out, err = io.TextIOWrapper(found, "utf-8"), io.TextIOWrapper(found, "utf-8", write_through=True)
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = command.main(arguments)
        except SystemExit as done:
            status = done.code or 0
        out.flush()
    return status, found.getvalue().decode()


def _run_in_shell(text: str) -> tuple[int, str]:
    script = f'tilec() {{ {IN_SHELL} "$@"; }}\n{text}\n'
    done = subprocess.run(["bash", "-c", script], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def check(text: str, status: int, expected: str, same: Callable[[str, str], bool] = matches) -> None:
    """Runs a command; its exit status and output are those of the document."""
    found, output = run(text)
    assert found == status, f"{text}\n{output}"
    assert same(expected, output), f"{text}\n{output}"
