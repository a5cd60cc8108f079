"""The TextMate grammar of editors, made of the words of the grammar and their kinds (`dsl/highlight.py`).

`python -m benchmarks docs` writes it; tests/editors/test_textmate.py fails where it is not current.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from benchmarks.files import ROOT

PATH = ROOT / "editors" / "vscode" / "syntaxes" / "tile.tmLanguage.json"
Rule: TypeAlias = "dict[str, Rule | list[Rule] | str]"
_NAME, _END = "[A-Za-z_][A-Za-z0-9_]*", "(?![A-Za-z0-9_])"


def write(path: Path = PATH) -> bool:
    """Writes the grammar; returns whether it changed."""
    current = text()
    if path.is_file() and path.read_text(encoding="utf-8") == current:
        return False
    path.write_text(current, encoding="utf-8")
    return True


def text() -> str:
    return json.dumps(grammar(), indent=2) + "\n"


def grammar() -> Rule:
    """Rules by priority: of those that match at the first place, an editor takes the first."""
    from tilec.dsl.highlight import DEFINED, ILLEGAL, KINDS, NAMES
    from tilec.dsl.parse import terminals

    patterns = {t.name if t.name in KINDS else t.pattern.value: t.pattern.value for t in terminals()}
    words: dict[str, list[str]] = {}  # by scope
    signs: dict[tuple[int, str], list[str]] = {}  # by length, the longest first, and scope
    for name, kind in KINDS.items():
        if name in ("COMMENT", "NUMBER", "STRING", "NAME"):
            continue
        for each in _texts(patterns[name]):
            if each.isalpha():
                words.setdefault(kind.scope, []).append(each)
            else:
                signs.setdefault((-len(each), kind.scope), []).append(re.escape(each))
    keywords = [word for group in words.values() for word in group]
    for name, kind in NAMES.items():
        words.setdefault(kind.scope, []).append(name)
    declaring = words.pop(KINDS["OP"].scope)
    comment = _match(KINDS["COMMENT"].scope, "#.*")
    return {
        "name": "tile",
        "scopeName": "source.tile",
        "fileTypes": ["tile"],
        "patterns": [
            comment,
            {
                "begin": _one_of(declaring) + _END,
                "beginCaptures": {"0": _scope(KINDS["OP"].scope)},
                "end": f"(?!{_one_of(keywords)}{_END})({_NAME})|(?=[^ \\t\\r\\n\\f#])",
                "endCaptures": {"1": _scope(DEFINED.scope)},
                "patterns": [comment],
            },
            *(_match(scope, _one_of(group) + _END) for scope, group in words.items()),
            _match(KINDS["NAME"].scope, _NAME),
            _match(KINDS["NUMBER"].scope, patterns["NUMBER"].replace(r"\d", "[0-9]")),  # an editor's \d has digits of all scripts
            _match(KINDS["STRING"].scope, '"[^"\\n]*"'),
            *(_match(scope, _one_of(group)) for (_, scope), group in sorted(signs.items())),
            _match(ILLEGAL.scope, "[^ \\t\\r\\n\\f]"),
        ],
    }


def _texts(pattern: str) -> list[str]:
    """The words of a terminal that is a word, or one of several."""
    return pattern.removeprefix("(?:").removesuffix(")").split("|") if pattern.startswith("(?:") else [pattern]


def _one_of(words: Iterable[str]) -> str:
    return f"(?:{'|'.join(words)})"


def _scope(scope: str) -> Rule:
    return {"name": f"{scope}.tile"}


def _match(scope: str, pattern: str) -> Rule:
    return {"match": pattern, **_scope(scope)}
