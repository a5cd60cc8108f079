"""Mistakes in the forms of other tools: GitHub's annotations, and SARIF, which code scanners and editors read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

from tilec.core.diagnostics import Diagnostic, Span, printable_message

Json: TypeAlias = "dict[str, Json] | Sequence[Json] | str | int"

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
RULES = {
    "error": ("mistake", "The program is wrong."),
    "warning": ("doubt", "The program is right, and hardly does what was meant."),
}
"""By severity: the name of a rule, and what it says."""


def github(found: Sequence[Diagnostic]) -> str:
    """A workflow command for each, a line: GitHub Actions shows them beside the lines of a pull request."""
    return "\n".join(map(_command, found))


def _command(d: Diagnostic) -> str:
    at: dict[str, object] = {}
    if d.span is not Span.none():
        line, column = d.span.source.position(d.span.start)
        last, end = d.span.source.position(max(d.span.start, d.span.end - 1))
        at = {"file": d.span.source.shown, "line": line, "endLine": last, "col": column, "endColumn": end}
    notes = [f"{n.span}: note: {printable_message(n.message)}" for n in d.notes]
    properties = ",".join(f"{name}={_escaped(str(value), ':,')}" for name, value in {**at, "title": "tilec"}.items())
    return f"::{d.severity} {properties}::{_escaped(chr(10).join([d.text, *notes]))}"


def _escaped(text: str, more: str = "") -> str:
    """A text within a command: characters that end a line or a property stand as numbers."""
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def sarif(found: Sequence[Diagnostic]) -> str:
    """One run of SARIF 2.1.0."""
    from tilec.version import VERSION

    rules: Json = [{"id": name, "shortDescription": {"text": text}} for name, text in RULES.values()]
    run: dict[str, Json] = {
        "tool": {"driver": {"name": "tilec", "version": VERSION, "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "results": list(map(_result, found)),
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _result(d: Diagnostic) -> Json:
    name, _ = RULES[d.severity]
    result: dict[str, Json] = {"ruleId": name, "level": d.severity, "message": {"text": d.text}}
    if d.span is not Span.none():
        result["locations"] = [{"physicalLocation": _location(d.span)}]
    if d.notes:
        result["relatedLocations"] = [
            {"physicalLocation": _location(n.span), "message": {"text": printable_message(n.message)}} for n in d.notes
        ]
    return result


def _location(span: Span) -> Json:
    """The end of a region is behind its last character."""
    line, column = span.source.position(span.start)
    last, end = span.source.position(max(span.start + 1, span.end))
    region: Json = {"startLine": line, "startColumn": column, "endLine": last, "endColumn": end}
    return {"artifactLocation": {"uri": _uri(span.source.name)}, "region": region}


def _uri(name: str) -> str:
    """A path relative to the folder where the command runs stays relative."""
    path = Path(name)
    return path.as_uri() if path.is_absolute() else quote(os.fsencode(path.as_posix()))


FORMATS: Mapping[str, Callable[[Sequence[Diagnostic]], str]] = {"github": github, "sarif": sarif}
