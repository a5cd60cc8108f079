"""The ops of a program's text and their parameters, as a call needs them: parsed and checked once for all processes.

The disk cache remembers a text without mistakes by its digest, and the digests of all files that it imports. A later process
parses it again only to compile something new.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tilec.core.diagnostics import Source
from tilec.core.dtypes import DTYPES, DType
from tilec.process import progress
from tilec.process.generated import uncollected
from tilec.runtime import cache


@dataclass(frozen=True)
class Declared:
    """An op's name, and its parameters with their types, None where calls determine them."""

    name: str
    inputs: tuple[tuple[str, DType | None], ...]


class Program:
    """A program without mistakes. `digest` stands for its text and all that it imports."""

    def __init__(self, source: Source, ops: Mapping[str, Declared], digest: str):
        self.source, self.ops, self.digest = source, ops, digest

    @cached_property
    def tree(self) -> Any:
        """The syntax tree."""
        from tilec.dsl.parse import parse

        return parse(self.source)

    def op(self, name: str | None) -> Declared:
        """The op of that name; without a name, the only one. Raises CallError."""
        if name is None and len(self.ops) == 1:
            return next(iter(self.ops.values()))
        if name is not None and name in self.ops:
            return self.ops[name]
        from tilec.dsl.specialise import choose_op

        return self.ops[choose_op(self.tree, name).name]


def read_program(source: Source, before: Callable[[], object] = lambda: None) -> Program:
    """The program of a text. Raises TileError with all of its mistakes. `before` is called if it must be parsed."""
    where = source.name if source.name.startswith("<") else str(Path(source.name).resolve())
    key = cache.make_key("program", cache.compiler_digest(), where, source.text)
    if (found := _from_cache(source, key)) is not None:
        return found
    before()
    with uncollected():
        return _parsed(source, key)


def _from_cache(source: Source, key: str) -> Program | None:
    found = cache.load(key)
    if found is None:
        return None
    try:
        imports, ops = found[0]["imports"], found[0]["ops"]
        if any(_digest(Path(path).read_bytes()) != digest for path, digest in imports.items()):
            return None
        known = {
            name: Declared(name, tuple((n, DTYPES[t] if t else None) for n, t in inputs))
            for name, inputs in ops.items()
        }
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        return None
    return Program(source, known, cache.make_key(key, *imports.values()))


def _parsed(source: Source, key: str) -> Program:
    from tilec.dsl.mistakes import read
    from tilec.dsl.modules import load_file

    imports: dict[str, str] = {}

    def load(path: str, importer: Source) -> Source:
        loaded = load_file(path, importer)
        imports[str(Path(loaded.name).resolve())] = _digest(loaded.text.encode())
        return loaded

    progress.at(f"reading {source.name}")
    tree = read(source, load)
    ops = {op.name: Declared(op.name, tuple((t.name, t.dtype) for t in op.inputs)) for op in tree.ops}
    written = {name: [(n, t.name if t else None) for n, t in op.inputs] for name, op in ops.items()}
    cache.save(key, {"imports": imports, "ops": written}, {})
    program = Program(source, ops, cache.make_key(key, *imports.values()))
    program.tree = tree
    return program


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
