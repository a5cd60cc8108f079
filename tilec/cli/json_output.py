"""What `--json` prints: a record on the standard output. docs/json.md describes the records."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import fields, is_dataclass
from typing import TypeAlias

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"


def show_json(record: object) -> None:
    """Prints a record, a dataclass. It is ASCII, so that nothing in it steers a terminal."""
    sys.stdout.write(json.dumps(as_json(record), indent=2, allow_nan=False) + "\n")


def as_json(value: object) -> Json:
    """A record as JSON has it. JSON has no number that is infinite or NaN: these are null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, dict):
        return {str(key): as_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(each) for each in value]
    if is_dataclass(value):
        return {f.name: as_json(getattr(value, f.name)) for f in fields(value)}
    raise TypeError(f"{type(value).__name__} is not a part of a record")
