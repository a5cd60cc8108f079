"""Runs mypy over the whole package, and prints its errors with the paths of this repository.

    python tests/tools/typecheck.py [mypy's options]

The package's folders lie side by side (`package-dir` in pyproject.toml), which mypy does not read: it is shown a folder of
links, in which they are one package. Options and exceptions are in pyproject.toml.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".mypy_cache"


def linked(folder: Path) -> dict[str, str]:
    """Makes the package in a folder; returns the repository's folder for each linked one."""
    mapping = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    shutil.rmtree(folder, ignore_errors=True)
    made = {}
    for package, source in sorted(mapping.items()):  # a package comes before those in it
        place = folder.joinpath(*package.split("."))
        if place.exists():  # in the folder of its parent
            continue
        inner = [name for name in mapping if name.startswith(f"{package}.")]
        made[str(place.relative_to(ROOT))] = source
        if not inner:
            place.symlink_to(ROOT / source, target_is_directory=True)
            continue
        place.mkdir(parents=True)
        for path in (ROOT / source).iterdir():
            if path.name != "__pycache__":
                (place / path.name).symlink_to(path, target_is_directory=path.is_dir())
    return made


def typecheck(*options: str) -> tuple[int, str]:
    """mypy's exit status and its text."""
    folder = CACHE / "package"
    made = linked(folder)
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", str(CACHE), *options]
    done = subprocess.run(
        [*command, "-p", "tilec"], cwd=ROOT, env=os.environ | {"MYPYPATH": str(folder)}, capture_output=True, text=True
    )
    text = done.stdout + done.stderr
    for place, source in sorted(made.items(), reverse=True):  # inner packages first
        text = text.replace(f"{place}{os.sep}", f"{source}{os.sep}")
    return done.returncode, text


if __name__ == "__main__":
    status, text = typecheck(*sys.argv[1:])
    print(text, end="")
    sys.exit(status)
