"""An installed tilec is imported wherever Python starts: in a clone, beside it, or elsewhere; whatever the clone is called."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from tools import ROOT

PARTS = ("tilec", "dsl", "passes", "runtime", "pyproject.toml", "README.md", "LICENSE")
SCRIPT = """
import sys
from pathlib import Path
import tilec
import tilec.passes
from tilec.dsl import parse
from tilec.runtime import cache
op = tilec.compile("y[i] = x[i] + 1", target="cpu")
folders = {Path(m.__file__).resolve().parents[n] for m, n in ((tilec, 0), (parse, 1), (cache, 1), (tilec.passes, 1))}
print(tilec.__version__, *folders, sep="|")
"""


def test_the_folders_of_the_package_are_linked():
    for name in ("dsl", "passes", "runtime"):
        link = ROOT / "tilec" / name
        assert link.is_symlink() and link.readlink() == Path("..", name)


@pytest.mark.slow
@pytest.mark.parametrize("editable", [True, False], ids=["editable", "plain"])
@pytest.mark.parametrize("name", ["tilec", "compiler"])
def test_an_installed_package_is_found(tmp_path, name, editable):
    pytest.importorskip("setuptools", minversion="77")
    clone, elsewhere = tmp_path / "code" / name, tmp_path / "elsewhere"
    clone.mkdir(parents=True)
    elsewhere.mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, clone / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, clone / part)
    python = install(tmp_path / "venv", clone, editable)
    for place in (clone, clone.parent, elsewhere):
        script = place / "script.py"
        script.write_text(SCRIPT)
        for how, folder in (("-c", place), (str(script), tmp_path))[: 2 if place == clone.parent else 1]:
            version, *folders = run(python, how, folder)
            assert version != "0+unknown"
            inside = editable or place == clone  # Python that starts in a clone takes the clone's sources
            ours = clone if inside else tmp_path / "venv"
            assert folders and all(Path(f).is_relative_to(ours) for f in folders), (how, place, folders)


def install(folder: Path, clone: Path, editable: bool) -> str:
    """A Python with tilec as pip installs it, and the packages of this Python."""
    venv.create(folder, symlinks=True)
    python = str(folder / "bin" / "python")
    site = sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
    Path(site, "zz_needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, *(["-e"] if editable else []), str(clone)], check=True)
    return python


def run(python: str, how: str, folder: Path) -> list[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [python, "-B", how, *([SCRIPT] if how == "-c" else [])], cwd=folder, env=kept, capture_output=True, text=True
    )
    assert done.returncode == 0, (how, folder, done.stderr)
    return done.stdout.strip().split("|")
