"""The ops of a program's text and their parameters, as a call needs them: parsed and checked once for all processes.

The disk cache remembers a text without mistakes by its digest, the digests of all files that it imports, and the places where
these were looked for in vain. A later process parses it again only to compile something new.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilec.core.diagnostics import Source
from tilec.core.dtypes import DTYPES, DType
from tilec.process import logs, progress
from tilec.process.collection import uncollected
from tilec.process.reading import read_bytes
from tilec.runtime import cache

if TYPE_CHECKING:
    from tilec.dsl import ast


@dataclass(frozen=True)
class Declared:
    """An op's name, and its parameters with their types, None where calls determine them."""

    name: str
    inputs: tuple[tuple[str, DType | None], ...]


PROGRAMS = "tilec.driver.program_compiler"
"""The compiler of programs as a process of its own, as `compile_server` names it."""


class Program:
    """A program without mistakes. `written`: the types of each op's inputs by name. `imports`: digests of the files that it
    imports. `missing`: where they would have been found first. `digest` stands for its text and for these files."""

    def __init__(
        self, source: Source, written: Mapping[str, Sequence[Sequence[Any]]], imports: Mapping[str, str],
        missing: Sequence[str], key: str,
    ):  # fmt: skip
        self.source, self.written, self.imports, self.missing = source, written, imports, missing
        self.ops = {
            name: Declared(name, tuple((n, DTYPES[t] if t else None) for n, t in inputs)) for name, inputs in written.items()
        }
        self.digest = cache.make_key(key, *imports.values())

    @cached_property
    def tree(self) -> ast.Program:
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
    key = cache.make_key("program", cache.compiler_digest(), source.text, *_folders(source))
    if (found := _from_cache(source, key)) is not None:
        return found
    before()
    with uncollected():
        program = _elsewhere(source, key) or parsed(source, key)
    cache.save(key, {"imports": program.imports, "missing": program.missing, "ops": program.written}, {})
    return program


def _folders(source: Source) -> list[str]:
    """A program's name, and where its imports are looked for. Links are followed when the files are read. A text that imports
    nothing is the same program in all folders."""
    named = not source.name.startswith("<")
    own = _absolute(source.name) if named else source.name
    return [own, *([_absolute(".")] if not named and "import" in source.text else []), *map(_absolute, source.folders)]


def _absolute(path: str | Path) -> str:
    """The path from the root, its links and `..` as they are."""
    try:
        return str(Path(path).absolute())
    except OSError:  # the folder in which this process is was removed
        return str(path)


def _from_cache(source: Source, key: str) -> Program | None:
    found = cache.load(key)
    if found is None:
        return None
    try:
        imports = found[0]["imports"]
        if any(_digest(read_bytes(path)) != digest for path, digest in imports.items()):
            return None
        missing = found[0]["missing"]
        if any(os.path.isfile(path) for path in missing):
            return None
        return Program(source, found[0]["ops"], imports, missing, key)
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        return None


def _elsewhere(source: Source, key: str) -> Program | None:
    """By the process that compiles programs, if there is one and it finds no mistake."""
    reply = ask_compiler(source, {})
    return Program(source, reply["ops"], {}, (), key) if reply is not None and "ops" in reply else None


def ask_compiler(
    source: Source, wanted: Mapping[str, object], on_part: Callable[[dict[str, object]], None] = lambda part: None
) -> dict[str, Any] | None:  # fmt: skip
    """The reply of the process that compiles programs, and `on_part` its parts; None where no such process was started, and for
    files. A program that imports files gets an error: that process may be in another folder, and may have read older ones."""
    from tilec.process import compile_server, workers

    logged = "op" in wanted and (logs.wants("plan") or logs.wants("fusion"))  # by the process that decides
    if logged or not source.name.startswith("<") or source.folders or not compile_server.running(PROGRAMS):
        workers.check()
        return None
    return compile_server.ask(PROGRAMS, {"name": source.name, "text": source.text, **wanted}, on_part)


def parsed(source: Source, key: str = "") -> Program:
    """The program of a text, with its tree, by this process. Raises TileError with all of its mistakes."""
    from tilec.dsl.mistakes import read
    from tilec.dsl.modules import load_file, locations

    imports: dict[str, str] = {}
    missing: dict[str, None] = {}

    def load(path: str, importer: Source) -> Source:
        loaded = load_file(path, importer)
        imports[_absolute(loaded.name)] = _digest(loaded.text.encode())
        before = takewhile(lambda location: str(location) != loaded.name, locations(path, importer))
        missing.update(dict.fromkeys(map(_absolute, before)))
        return loaded

    progress.at(f"reading {source.name}")
    tree = read(source, load)
    written = {op.name: [(t.name, t.dtype.name if t.dtype else None) for t in op.inputs] for op in tree.ops}
    program = Program(source, written, imports, [*missing], key)
    program.tree = tree
    return program


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
