"""JSON schemas of what `--json` prints, and their tables in docs/json.md, made of the records' types and docstrings.

The schemas are JSON Schema 2020-12. They are shipped as tilec/cli/schemas/COMMAND.json.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Literal, get_args, get_origin, get_type_hints

from benchmarks.report import table

FOLDER = "tilec/cli/schemas"
SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


def roots() -> dict[str, type]:
    """The record of each command."""
    from tilec.cli import records
    from tilec.plan.report.records import Explanation
    from tilec.plan.report.what_if import WhatIf

    return {
        "check": records.Checked, "plan": records.Planned, "explain": Explanation, "explain --what-if": WhatIf, "run": records.Ran,
        "verify": records.Verified, "doctor": records.Examined,
    }  # fmt: skip


def schema(root: type) -> dict[str, object]:
    """The schema of a record. The records in it are under `$defs`, by their names."""
    (name,) = get_args(get_type_hints(root)["schema"])
    inner = {each.__name__: _object(each) for each in records_of(root) if each is not root}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:{name.replace('.', ':').replace('/', ':')}"}
    return {**head, "title": name, **_object(root), "$defs": inner}


def records_of(root: type) -> list[type]:
    """A record and those in it, each after the first one that has it."""
    found: list[type] = []
    pending = [root]
    while pending:
        each = pending.pop(0)
        if each not in found:
            found.append(each)
            pending += [part for hint in get_type_hints(each).values() for part in _parts(hint) if is_dataclass(part)]
    return found


def _parts(hint: object) -> Iterator[type]:
    if isinstance(hint, type) and not get_args(hint):
        yield hint
    for part in get_args(hint):
        yield from _parts(part)


def _object(record: type) -> dict[str, object]:
    hints, meanings = get_type_hints(record), docstrings(record)
    properties = {}
    for f in fields(record):
        meaning = {"description": meanings[f.name]} if f.name in meanings else {}
        properties[f.name] = {**_of(hints[f.name]), **meaning}
    names = [f.name for f in fields(record)]
    text = " ".join((record.__doc__ or "").split())
    return {"description": text, "type": "object", "properties": properties, "required": names}


def _of(hint: object) -> dict[str, object]:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is object:
        return {}
    if isinstance(hint, type) and hint in SIMPLE:
        return {"type": SIMPLE[hint]}
    if isinstance(hint, type) and is_dataclass(hint):
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if origin is Literal:
        return {"const": arguments[0]} if len(arguments) == 1 else {"enum": list(arguments)}
    if origin is UnionType:
        return {"anyOf": [_of(a) for a in arguments]}
    if origin is list:
        return {"type": "array", "items": _of(arguments[0])}
    if origin is dict and arguments[0] is str:
        return {"type": "object", "additionalProperties": _of(arguments[1])}
    if origin is tuple:
        return {"type": "array", "prefixItems": [_of(a) for a in arguments], "items": False, "minItems": len(arguments)}
    raise TypeError(f"a record cannot have a field of {hint}")


def docstrings(record: type) -> dict[str, str]:
    """By field, the text of the string under it."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(record))).body
    assert isinstance(node, ast.ClassDef)
    found = {}
    for before, after in zip(node.body, node.body[1:]):
        if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            assert isinstance(before.target, ast.Name)
            found[before.target.id] = " ".join(str(after.value.value).split())
    return found


def files() -> Iterator[tuple[str, str]]:
    """The path of every schema, and its text."""
    for command, root in roots().items():
        yield f"{FOLDER}/{command.rpartition(' --')[2]}.json", json.dumps(schema(root), indent=2) + "\n"


def stale() -> Iterator[tuple[str, str, str]]:
    """The path of every schema, the text of the file, and the text that it should have."""
    for name, text in files():
        path = Path(__file__).parents[1] / name
        yield name, path.read_text(encoding="utf-8") if path.is_file() else "", text


# ---- the tables ----------------------------------------------------------------------------------------------------------


def tables() -> str:
    """A section for each command, with a table for each record."""
    parts = []
    for command, root in roots().items():
        parts.append(f"### `tilec {command} --json`")
        for record in records_of(root):
            hints, meanings = get_type_hints(record), docstrings(record)
            rows = [[f"`{f.name}`", _text(hints[f.name]), meanings.get(f.name, "")] for f in fields(record)]
            name = f"**{record.__name__}**: " if record is not root else ""
            parts.append(f"{name}{' '.join((record.__doc__ or '').split())}\n\n{table(['field', 'type', 'meaning'], rows)}")
    return "\n\n".join(parts)


def _text(hint: object) -> str:
    """`list of Kernel`, `number or null`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is object:
        return "any"
    if origin is Literal:
        return " or ".join(f"`{json.dumps(a)}`" for a in arguments)
    if origin is UnionType:
        return " or ".join(_text(a) for a in arguments)
    if origin is list:
        return f"list of {_text(arguments[0])}"
    if origin is dict:
        return f"object of {_text(arguments[1])}"
    if origin is tuple:
        return f"list of {len(arguments)}: {', '.join(_text(a) for a in arguments)}"
    assert isinstance(hint, type)
    return SIMPLE.get(hint, f"**{hint.__name__}**")
