"""Schedules for partitions: a folder of `.tile` files with `.sched.toml` files beside them, as a dump and `tilec plan` leave it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from tilec.process.reading import read_bytes


def plain(text: str) -> str:
    """A program's text without comments and blanks, by which texts are compared."""
    lines = (line.partition("#")[0].split() for line in text.splitlines())
    return "\n".join(" ".join(words) for words in lines if words)


@lru_cache(maxsize=16)
def _schedules(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*.sched.toml")):
        source = path.with_name(path.name.removesuffix(".sched.toml") + ".tile")
        if source.is_file():
            found[plain(read_bytes(source).decode("utf-8"))] = str(path)
    return found


def schedule_of(text: str, folder: Path | None) -> str | None:
    """The schedule file beside the program in the folder that has this text, or None."""
    return None if folder is None else _schedules(folder).get(plain(text))
