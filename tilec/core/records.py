"""Frozen dataclasses as MLIR dictionaries: each field is an entry, and one that is None has none.

    @dataclass(frozen=True)
    class Cut:
        dim: int                                        Cut(2, "left")  <->  {dim = 2 : i64, side = "left"}
        side: str
        loops: tuple[int, ...] | None = None

A field is a whole number, true or false, a word, or several whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_type_hints

from tilec.core import mlir
from tilec.core.mlir import ir

Value = int | bool | str | tuple[int, ...]
Record = TypeVar("Record")
NOUNS = {int: "a whole number", bool: "true or false", str: "a word", tuple: "a list of whole numbers"}


class Malformed(Exception):
    """An attribute that is no record of a type; the text says why."""


@cache
def fields_of(record: type) -> dict[str, Field]:
    return {f.name: f for f in fields(record)}


_hints = cache(get_type_hints)


@cache
def kind_of(record: type, name: str) -> type:
    """int, bool, str or tuple."""
    hint = _hints(record)[name]
    kinds = [k for k in get_args(hint) if k is not NoneType] if isinstance(hint, UnionType) else [hint]
    (kind,) = kinds
    return getattr(kind, "__origin__", kind)


def items(record: object) -> Iterator[tuple[str, Value]]:
    """The fields that are not None."""
    kind: Any = type(record)
    for name in fields_of(kind):
        if (value := getattr(record, name)) is not None:
            yield name, value


def to_attributes(record: object) -> dict[str, ir.Attribute]:
    return {name: attribute_of(value) for name, value in items(record)}


def to_attribute(record: object) -> ir.DictAttr:
    return ir.DictAttr.get(to_attributes(record))


def from_attribute(record: type[Record], attribute: ir.Attribute) -> Record:
    """Raises Malformed."""
    table: Any = record
    if not isinstance(attribute, ir.DictAttr):
        raise Malformed(f"a dictionary, not {attribute}")
    known, values = fields_of(table), {}
    for entry in attribute:
        if entry.name not in known:
            raise Malformed(f"a dictionary without `{entry.name}`")
        kind = kind_of(table, entry.name)
        if (value := read(entry.attr, kind)) is None:
            raise Malformed(f"a dictionary in which `{entry.name}` is {NOUNS[kind]}, not {entry.attr}")
        values[entry.name] = value
    if missing := [n for n, f in known.items() if f.default is MISSING and n not in values]:
        raise Malformed(f"a dictionary with `{missing[0]}`")
    return record(**values)


def get(op: ir.Operation, name: str, record: type[Record]) -> Record | None:
    """The record that is an operation's attribute of this name; None where it has none."""
    return from_attribute(record, op.attributes[name]) if name in op.attributes else None


def read(attribute: ir.Attribute, kind: type) -> Any:
    """The number, word or list that an attribute holds; None where it is of another kind."""
    match attribute:
        case ir.BoolAttr() if kind is bool:
            return attribute.value
        case ir.IntegerAttr() if kind is int and str(attribute.type) == "i64":
            return attribute.value
        case ir.StringAttr() if kind is str:
            return attribute.value
        case ir.DenseI64ArrayAttr() if kind is tuple:
            return tuple(attribute)
    return None


def attribute_of(value: Value) -> ir.Attribute:
    """The attribute that holds a field's value; `read` gives it back."""
    match value:
        case bool():
            return ir.BoolAttr.get(value)
        case int():
            return mlir.integer(value)
        case str():
            return mlir.string(value)
    return mlir.integers(value)
