"""The standard library, in the language itself."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files


@cache
def text() -> str:
    return files(__name__).joinpath("std.tile").read_text(encoding="utf-8")


@cache
def names() -> frozenset[str]:
    """Of its functions, without the parser: a process that only writes programs does not load that."""
    return frozenset(re.findall(r"^def (\w+)", text(), re.MULTILINE))
