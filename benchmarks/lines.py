"""python -m benchmarks lines: how many lines the product has, by folder, with and without blank ones, comments and docstrings."""

from __future__ import annotations

import io
import tokenize
from collections import Counter
from pathlib import Path

from rich.console import Console

from benchmarks.report import print_table

ROOT = Path(__file__).parents[1]
SKIPPED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_lines(text: str) -> int:
    """Lines with code on them: a string that is a statement of its own counts as prose."""
    lines, statement = set[int](), list[tokenize.TokenInfo]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SKIPPED:
            statement.append(token)
        elif token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
            if [t.type for t in statement] != [tokenize.STRING]:
                lines.update(n for t in statement for n in range(t.start[0], t.end[0] + 1))
            statement = []
    return len(lines)


def counted() -> dict[str, Counter[str]]:
    """Files, lines and lines of code of each folder of the package."""
    found: dict[str, Counter[str]] = {}
    package = ROOT / "tilec"
    for folder in [package, *sorted(p for p in package.iterdir() if p.is_dir() and p.name != "__pycache__")]:
        files = folder.glob("*.py") if folder == package else folder.resolve().rglob("*.py")
        texts = [f.read_text() for f in files]
        found[folder.name] = Counter(
            files=len(texts), lines=sum(t.count("\n") for t in texts), code=sum(map(code_lines, texts))
        )
    return found


def show() -> int:
    """A table, and the sums."""
    found = {folder: counts for folder, counts in counted().items() if counts["files"]}
    found["all"] = sum(found.values(), Counter())
    cells = [[folder, *(f"{counts[of]:,}" for of in ("files", "lines", "code"))] for folder, counts in found.items()]
    print_table(Console(), "", ["folder", "files", "lines", "of code"], cells)
    return 0
