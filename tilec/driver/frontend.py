"""The ops of a program's text and their parameters, as a call needs them: parsed and checked once for all processes.

The disk cache remembers a text without mistakes by its digest, and the digests of all files that it imports. A later process
parses it again only to compile something new.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tilec.core.diagnostics import Source
from tilec.core.dtypes import DTYPES, DType
from tilec.process import progress
from tilec.process.collection import uncollected
from tilec.process.reading import read_bytes
from tilec.runtime import cache


@dataclass(frozen=True)
class Declared:
    """An op's name, and its parameters with their types, None where calls determine them."""

    name: str
    inputs: tuple[tuple[str, DType | None], ...]


PROGRAMS = "tilec.driver.program_compiler"
"""The compiler of programs as a process of its own, as `compile_server` names it."""


class Program:
    """A program without mistakes. `written`: the types of each op's inputs by name. `imports`: digests of the files that it
    imports. `digest` stands for its text and for these files."""

    def __init__(
        self, source: Source, written: Mapping[str, Sequence[Sequence[Any]]], imports: Mapping[str, str], key: str
    ):
        self.source, self.written, self.imports = source, written, imports
        self.ops = {
            name: Declared(name, tuple((n, DTYPES[t] if t else None) for n, t in inputs)) for name, inputs in written.items()
        }
        self.digest = cache.make_key(key, *imports.values())

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
    folders = (str(Path(folder).resolve()) for folder in source.folders)
    key = cache.make_key("program", cache.compiler_digest(), where, source.text, *folders)
    if (found := _from_cache(source, key)) is not None:
        return found
    before()
    with uncollected():
        program = _elsewhere(source, key) or parsed(source, key)
    cache.save(key, {"imports": program.imports, "ops": program.written}, {})
    return program


def _from_cache(source: Source, key: str) -> Program | None:
    found = cache.load(key)
    if found is None:
        return None
    try:
        imports = found[0]["imports"]
        if any(_digest(read_bytes(path)) != digest for path, digest in imports.items()):
            return None
        return Program(source, found[0]["ops"], imports, key)
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        return None


def _elsewhere(source: Source, key: str) -> Program | None:
    """By the process that compiles programs, if there is one and it finds no mistake."""
    reply = ask_compiler(source, {})
    return Program(source, reply["ops"], reply["imports"], key) if reply is not None and "ops" in reply else None


def ask_compiler(
    source: Source, wanted: Mapping[str, Any], hear: Callable[[Any], None] = lambda part: None
) -> dict[str, Any] | None:  # fmt: skip
    """The reply of the process that compiles programs, and `hear` its parts; None where no such process was started, and for files,
    whose imports are found from the folder in which this process is now."""
    from tilec.process import compile_server, workers

    if not source.name.startswith("<") or source.folders or not compile_server.running(PROGRAMS):
        workers.check()
        return None
    return compile_server.ask(PROGRAMS, {"name": source.name, "text": source.text, **wanted}, hear)


def parsed(source: Source, key: str = "") -> Program:
    """The program of a text, with its tree, by this process. Raises TileError with all of its mistakes."""
    from tilec.dsl.mistakes import read
    from tilec.dsl.modules import load_file

    imports: dict[str, str] = {}

    def load(path: str, importer: Source) -> Source:
        loaded = load_file(path, importer)
        imports[str(Path(loaded.name).resolve())] = _digest(loaded.text.encode())
        return loaded

    progress.at(f"reading {source.name}")
    tree = read(source, load)
    written = {op.name: [(t.name, t.dtype.name if t.dtype else None) for t in op.inputs] for op in tree.ops}
    program = Program(source, written, imports, key)
    program.tree = tree
    return program


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
