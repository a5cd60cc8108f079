"""What is known of one text: its mistakes, its symbols, and the facts about names. Nothing here knows the protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from tilec.core.diagnostics import Diagnostic, Source, Span, TileError
from tilec.dsl import ast, std
from tilec.dsl.check import Described
from tilec.dsl.mistakes import Reading, read_partly, warnings
from tilec.dsl.modules import Loader, load_file, locations, standard_library
from tilec.dsl.symbols import Symbol, Symbols


class Document:
    """A text that was read once. `reading` and `symbols` are None for a text that is not worth reading on."""

    def __init__(self, source: Source, loader: Loader):
        self.source, self.loader = source, loader
        self.reading: Reading | None = None
        self.mistakes: list[Diagnostic] = []
        try:
            self.reading = read_partly(source, loader)
            self.mistakes = self.reading.mistakes
        except TileError as error:
            self.mistakes = list(error.diagnostics)

    @cached_property
    def messages(self) -> list[Diagnostic]:
        """Those of `tilec check`: all mistakes; without one, warnings."""
        if self.mistakes or self.reading is None:
            return self.mistakes
        return warnings(self.reading.program, self.loader)

    @cached_property
    def symbols(self) -> Symbols | None:
        return None if self.reading is None else Symbols(self.reading.program, self.reading.module)

    @cached_property
    def facts(self) -> Mapping[str, Mapping[str, Described]]:
        """By op and name: type, shape and ranges, where the checks found them."""
        found = {} if self.reading is None else self.reading.elaborated
        return {name: {d.name: d for d in elaborator.described} for name, elaborator in found.items()}

    def described(self, symbol: Symbol) -> str:
        """The declaration of a symbol, as a program would write it."""
        if symbol.node is not None:
            return head_of(symbol.node)
        facts = self.facts.get(symbol.owner, {})
        if symbol.kind == "index":
            ranges = facts[symbol.equation].ranges if symbol.equation in facts else ()
            ends = next(((low, high) for name, low, high in ranges if name == symbol.name), None)
            return symbol.name if ends is None else f"{symbol.name} in {ends[0]}:{ends[1]}"
        if symbol.name in facts and symbol.kind in ("input", "result", "tensor"):
            return str(facts[symbol.name]).replace("  ", "\n")
        return symbol.name

    def at(self, offset: int) -> tuple[Symbol, Span] | None:
        return None if self.symbols is None else self.symbols.at(offset)

    def import_at(self, offset: int) -> Path | None:
        """The file of the `import` at a place, if it exists."""
        for import_ in () if self.reading is None else self.reading.program.imports:
            if import_.span.start <= offset <= import_.span.end:
                return next((p for p in locations(import_.path, self.source) if p.is_file()), None)
        return None

    def shown_at(self, d: Diagnostic) -> Span:
        """Where this text shows a message. Those about another file stand at an import."""
        if d.span.source.name == self.source.name:
            return d.span
        imports = () if self.reading is None else self.reading.program.imports
        named = [i for i in imports if d.span.source.name in map(str, locations(i.path, self.source))]
        return next((i.span for i in (*named, *imports)), Span(self.source, 0, 0))

    def equations(self) -> Iterator[tuple[ast.Equation, Described]]:
        """Those of which the checks found facts."""
        for op in () if self.reading is None else self.reading.program.ops:
            facts = self.facts.get(op.name, {})
            for statement in op.body:
                if isinstance(statement, ast.Equation) and statement.name in facts:
                    yield statement, facts[statement.name]

    def equation_at(self, offset: int) -> tuple[ast.Op, ast.Equation] | None:
        """The op and the statement that a place is in."""
        for op in () if self.reading is None else self.reading.program.ops:
            for statement in op.body:
                if isinstance(statement, ast.Equation) and statement.span.start <= offset <= statement.span.end:
                    return op, statement
        return None


def with_open(texts: Mapping[str, str]) -> Loader:
    """Reads an import from the texts that an editor has open, by their paths, before its file."""

    def loader(path: str, importer: Source) -> Source:
        found = load_file(path, importer)
        opened = texts.get(str(Path(found.name).absolute()))
        return found if opened is None else Source(found.name, opened, found.folders)

    return loader


def file_of(source: Source) -> Path:
    """The file that a source was read from."""
    if source is standard_library().program.span.source:
        return Path(std.__file__).with_name("std.tile")
    return Path(source.name).absolute()


def head_of(node: ast.Op | ast.Def) -> str:
    """A declaration without its body."""
    return node.span.source.text[node.span.start : node.span.end].partition("{")[0].strip()
