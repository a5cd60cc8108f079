"""The rooms of the package, lowest first, with their files: listed in docs/architecture.md, held by the test of layers."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = {
    "process": "tilec/process", "index": "tilec/index", "core": "tilec/core", "dsl": "dsl", "cost": "tilec/cost",
    "analysis": "tilec/analysis", "kernels": "tilec/kernels", "passes": "passes", "plan": "tilec/plan", "runtime": "runtime",
    "driver": "tilec/driver", "semantics": "tilec/semantics", "report": "tilec/report", "api": "tilec/api.py",
    "functions": "tilec/functions.py", "jax": "tilec/jax", "torch": "tilec/torch", "lsp": "tilec/lsp", "cli": "tilec/cli",
    "magics": "tilec/magics.py",
}  # fmt: skip
"""By the name after `tilec.`, lowest first: a module imports modules of its own room and of those before it."""


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for package, folder in (("tilec", "tilec"), *((f"tilec.{n}", n) for n in ("dsl", "passes", "runtime"))):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


def listing() -> str:
    """A table of files for each folder, with the first sentence of each file's docstring."""
    parts = []
    for place in ROOMS.values():
        if place.endswith(".py"):
            parts.append(f"**`{place}`**: {summary(ROOT / place)}")
            continue
        folders = sorted({p.parent for p in (ROOT / place).rglob("*.py")})
        for folder in folders:
            files = sorted(p for p in folder.glob("*.py") if p.stem != "__init__")
            head = f"**`{folder.relative_to(ROOT).as_posix()}/`**: {summary(folder / '__init__.py')}"
            rows = [f"| `{p.name}` | {summary(p)} |" for p in files]
            parts.append("\n".join([head, "", "| file | contents |", "| --- | --- |", *rows] if rows else [head]))
    return "\n\n".join(parts)


def summary(path: Path) -> str:
    """The first sentence of a file's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    first = " ".join(text.split("\n\n")[0].split())
    sentence = re.match(r".*?\.(?=\s|$)", first)
    return (sentence[0] if sentence else first).rstrip(".:").replace("|", "\\|") + "."
