"""Tables of target files as dataclasses: every key and every type is checked, and a message names the key.

Annotations of the dataclasses are types and not text, as evaluating text takes longer than the rest of reading a file.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin

from tilec.core.diagnostics import CallError

T = TypeVar("T")


def parse(kind: Any, value: object, where: str, key: str) -> Any:
    """`value` as the annotated type `kind`, or a message that names the key."""
    if get_origin(kind) not in (None, dict, tuple):  # X | None
        kind = next(k for k in get_args(kind) if k is not NoneType)
    if is_dataclass(kind):
        return parse_table(kind, expect(value, dict, where, key), where, key)
    if get_origin(kind) is dict:
        table = expect(value, dict, where, key)
        return {k: parse(get_args(kind)[1], v, where, f"{key}.{k}") for k, v in table.items()}
    if get_origin(kind) is tuple:
        items = enumerate(expect(list(value) if type(value) is tuple else value, list, where, key))
        return tuple(expect(v, get_args(kind)[0], where, f"{key}[{i}]") for i, v in items)
    made = expect(value, kind, where, key)
    if kind in (int, float) and not 0 <= made < float("inf"):
        raise CallError(f"{where}: `{key}` is {made}, and must be a finite number, 0 or above")
    if made == 0 and key.rpartition(".")[2] in ("units", "clock_ghz", "bandwidth_gbs", "achievable", "warp"):
        raise CallError(f"{where}: `{key}` must not be 0")
    return made


def parse_table(kind: Any, table: Mapping[str, object], where: str, key: str) -> Any:
    """The dataclass `kind` from its table. Raises CallError for an unknown key, a missing one, and a value of another type."""
    hints, prefix = {f.name: f.type for f in fields(kind)}, f"{key}." if key else ""
    for name in table:
        if name not in hints:
            close = difflib.get_close_matches(name, hints, 1)
            hint = f"did you mean `{close[0]}`?" if close else f"known: {', '.join(hints)}"
            raise CallError(f"{where}: unknown key `{prefix}{name}`", hint=hint)
    for f in fields(kind):
        if f.name not in table and f.default is MISSING and f.default_factory is MISSING:
            raise CallError(f"{where}: `{prefix}{f.name}` is missing")
    return kind(**{n: parse(hints[n], v, where, prefix + n) for n, v in table.items()})


_WORDS = {
    str: "a string", int: "an integer", float: "a number", bool: "true or false", dict: "a table", list: "a list",
}  # fmt: skip


def expect(value: object, kind: type[T], where: str, key: str) -> T:
    """`value`, which is of the type `kind`; a whole number may stand for a number. Raises CallError where it is not."""
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind or not isinstance(value, kind):
        raise CallError(f"{where}: `{key}` must be {_WORDS[kind]}, not {value!r}")
    return value
