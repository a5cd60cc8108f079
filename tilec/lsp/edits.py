"""What editors do with names: where they stand, other names for them, names to choose from, and hints beside statements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilec.core.diagnostics import Source, Span
from tilec.core.dtypes import DTYPES
from tilec.dsl import ast
from tilec.dsl.modules import standard_library
from tilec.dsl.symbols import Symbol
from tilec.lsp.document import Document


class Refused(Exception):
    """Why a name cannot be another one."""


def renamed(document: Document, symbol: Symbol, name: str) -> list[Span]:
    """Where a symbol's name stands, if it may have another one. Raises Refused otherwise."""
    if symbol.span.source is not document.source:
        raise Refused(f"`{symbol.name}` is declared in another file")
    assert document.symbols is not None, "the symbol is one of them"
    for other in document.symbols.seen_from(symbol.owner):
        separate = "index" in (other.kind, symbol.kind) and other.equation and symbol.equation and other.equation != symbol.equation
        if other is not symbol and other.name == name and not separate:
            raise Refused(f"`{name}` is {'an' if other.kind[0] in 'aeio' else 'a'} {other.kind} here already")
    text, spans = document.source.text, sorted(symbol.spans, key=lambda span: -span.start)
    for span in spans:
        text = text[: span.start] + name + text[span.end :]
    changed = Document(Source(document.source.name, text, document.source.folders), document.loader)
    if len(changed.mistakes) > len(document.mistakes):
        raise Refused(f"`{name}` cannot be the name: {changed.mistakes[0].message}")
    return spans[::-1]


def hints(document: Document) -> Iterator[tuple[int, str]]:
    """Of each statement the offset of its end, and its type and ranges, as far as it does not say them."""
    for equation, facts in document.equations():
        written = {r.index for r in equation.ranges}
        ranges = [f"{name} in {low}:{high}" for name, low, high in facts.ranges if name not in written]
        kind = str(replace(facts, ranges=())).partition(": ")[2]
        text = ", ".join([*([kind] if equation.dtype is None and kind else []), *ranges])
        if text:
            yield equation.span.end, text


def names_at(document: Document, offset: int) -> Iterator[tuple[str, str, str]]:
    """What may be written at a place: a name, its kind, and its declaration."""
    if document.symbols is None or document.reading is None:
        return
    owner = next((op.name for op in document.reading.program.ops if op.span.start <= offset <= op.span.end), "")
    seen = set[str]()
    for symbol in document.symbols.seen_from(owner):
        if symbol.name not in seen:
            seen.add(symbol.name)
            yield symbol.name, symbol.kind, document.described(symbol)
    module = document.reading.module
    known: dict[str, ast.Op | ast.Def] = {d.name: d for d in standard_library().program.defs}
    if module is not None:
        known |= {name: found[0] for name, found in module.defs.items()}
        known |= {name: found[0] for name, found in module.ops.items()}
    for name, node in known.items():
        if name not in seen:
            head = node.span.source.text[node.span.start : node.span.end].partition("{")[0].strip()
            yield name, "op" if isinstance(node, ast.Op) else "function", head
    for name in DTYPES:
        yield name, "type", name
