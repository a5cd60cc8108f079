"""The data that all checks share: the list of mistakes, the modules, and the known facts of each tensor."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

from tilec.core.diagnostics import Diagnostic, Note, Span
from tilec.core.dtypes import DType
from tilec.dsl import ast
from tilec.index.terms import Term

MAX_DIAGNOSTICS = 100


class Report:
    """Collects mistakes; the same mistake, met again through another call of a function, counts once."""

    def __init__(self) -> None:
        self.diagnostics: list[Diagnostic] = []
        self.unfolded = 0  # operations that calls of functions became
        self.count = 0  # repetitions included: whether something is wrong must not depend on earlier messages
        self._seen: set[tuple[str, Span]] = set()
        self.context: Span | None = None  # the equation being checked: noted where the mistake shows in another place

    @property
    def full(self) -> bool:
        """Whether more mistakes would help nobody."""
        return len(self.diagnostics) >= MAX_DIAGNOSTICS

    def error(self, message: str, span: Span, notes: Iterable[Note] = (), hint: str | None = None) -> None:
        self.count += 1
        key = (message, span)
        if key in self._seen:
            return
        self._seen.add(key)
        if self.full:
            return
        notes = tuple(notes)
        if self.context is not None and span.source is not self.context.source:
            notes += (Note("called from here", self.context),)
        self.diagnostics.append(Diagnostic(message, span, notes, hint))


@dataclass(eq=False)
class Module:
    """A program and the declarations visible in it: its own, its imports', the standard library's. `unfolded`: for each op of its
    own, how many equations it becomes with all that it calls, and how deep its calls are."""

    program: ast.Program
    defs: dict[str, tuple[ast.Def, Module]] = field(default_factory=dict)
    ops: dict[str, tuple[ast.Op, Module]] = field(default_factory=dict)
    unfolded: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class TensorInfo:
    """A tensor in scope; dtype or shape are None where not known, be it not yet or because its definition is wrong."""

    name: str
    dtype: DType | None
    shape: tuple[Term, ...] | None
    span: Span
    hoisted: bool = False  # made by inlining: accessed with its own indices only


class Suggestion(str):
    """A hint that names what may have been meant: `meant` in place of `written`. Editors replace one with the other."""

    written: str
    meant: str


def suggestion(name: str, known: Iterable[str]) -> Suggestion | None:
    """`did you mean …?` for a name that nothing is called by."""
    close = difflib.get_close_matches(name, list(known)[:500], n=1, cutoff=0.76)
    if not close:
        return None
    found = Suggestion(f"did you mean `{close[0]}`?")
    found.written, found.meant = name, close[0]
    return found


def calls_itself(circle: list[str]) -> str:
    """The message for ops or functions each of which calls the next, and the last the first."""
    way = f", by way of {' and '.join(f'`{name}`' for name in circle[1:])}" if len(circle) > 1 else ""
    return f"`{circle[0]}` calls itself{way}"


def text_of(node: ast.Expr | ast.Range) -> str:
    """The source text of an expression, for messages: one line, not too long."""
    span = node.span
    text = " ".join(span.source.text[span.start : span.end].split())
    return text if len(text) <= 60 else text[:57] + "…"


def free_indices(expr: ast.Expr, indices: Iterable[str]) -> tuple[str, ...]:
    """Which of `indices` occur free, in order of first use."""
    wanted = frozenset(indices)
    found: dict[str, None] = {}

    def visit(node: ast.Expr, bound: frozenset[str]) -> None:
        match node:
            case ast.Name(name=name) if name in wanted and name not in bound:
                found.setdefault(name)
            case ast.Reduce(ranges=ranges, body=body):
                visit(body, bound | {r.index for r in ranges})
            case ast.Scan(range=range_, body=body):
                visit(body, bound)
                if range_.index in wanted and range_.index not in bound:
                    found.setdefault(range_.index)
            case _:
                for child in ast.children(node):
                    visit(child, bound)

    visit(expr, frozenset())
    return tuple(found)
