"""What editors do with names: where they stand, other names for them, names to choose from, and hints beside statements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lark import Token

from tilec.core.diagnostics import Diagnostic, Source, Span
from tilec.dsl import ast
from tilec.dsl.check_scope import Suggestion
from tilec.dsl.highlight import NAMES
from tilec.dsl.modules import standard_library
from tilec.dsl.parse import lex_any
from tilec.dsl.symbols import Symbol
from tilec.lsp.document import Document, head_of

_BUILT_IN = {"support.type": "type", "support.function": "function"}  # by scope


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
    for name, node in _declared(document).items():
        if name not in seen:
            seen.add(name)
            yield name, "op" if isinstance(node, ast.Op) else "function", head_of(node)
    for name, kind in NAMES.items():
        if name not in seen:
            yield name, _BUILT_IN.get(kind.scope, "value"), name


def _declared(document: Document) -> dict[str, ast.Op | ast.Def]:
    """The ops and functions that a text sees: its own, those of its imports and of the standard library."""
    module = standard_library() if document.reading is None else document.reading.module
    return {name: found[0] for table in (standard_library().defs, module.defs, module.ops) for name, found in table.items()}


def call_at(document: Document, offset: int) -> tuple[str, list[str], int] | None:
    """The head of the innermost call around a place, its parameters, and the number of the argument there, from 0."""
    tokens = [t for t in lex_any(document.source.text[:offset]) if t.type != "COMMENT" and not t.isspace()]
    depth, number = 0, 0
    for k in range(len(tokens) - 1, 0, -1):
        if tokens[k] in (")", "]", "}"):
            depth += 1
        elif depth and tokens[k] in ("(", "[", "{"):
            depth -= 1
        elif tokens[k] == "{":
            return None
        elif tokens[k] == "," and not depth:
            number += 1
        elif tokens[k] in ("(", "["):
            name = _before_indices(tokens[:k])
            node = _declared(document).get(name) if tokens[k] == "(" else None
            if node is not None:
                parameters = [t.name for t in node.inputs] if isinstance(node, ast.Op) else list(node.parameters)
                return head_of(node), parameters, number
            number = 0
    return None


def _before_indices(tokens: Sequence[Token]) -> str:
    """The name that a bracket behind some words belongs to: `softmax` of `softmax[j]`."""
    k = len(tokens) - 1
    if k >= 0 and tokens[k] == "]":
        while k >= 0 and tokens[k] != "[":
            k -= 1
        k -= 1
    return str(tokens[k]) if k >= 0 else ""


def corrections(document: Document) -> Iterator[tuple[Span, str, Diagnostic]]:
    """Where a message says what may have been meant: the name, the other one, and the message."""
    names = [t for t in lex_any(document.source.text) if t.type == "NAME"]
    for d in document.messages:
        if isinstance(d.hint, Suggestion) and d.span.source is document.source:
            written = (t for t in names if t == d.hint.written and d.span.start <= (t.start_pos or 0) < d.span.end)
            if (token := next(written, None)) is not None:
                yield Span(document.source, token.start_pos or 0, token.end_pos or 0), d.hint.meant, d
