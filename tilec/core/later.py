"""Names of a package that are imported when they are first asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def later(package: str, sources: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package, for names with the sources of what they stand for, as `module:name`."""

    def get(name: str) -> Any:
        if name not in sources:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        module, attribute = sources[name].split(":")
        return getattr(import_module(module), attribute)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *sources})

    return get, names
