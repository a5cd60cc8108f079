"""Programs made from programs, word by word: an op of one more dimension, for `vmap` (`splice.py` puts ops into programs)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tilec.core.dtypes import DTYPES
from tilec.core.functions import FUNCTIONS
from tilec.dsl import ast
from tilec.dsl.modules import standard_library
from tilec.dsl.parse import lex
from tilec.dsl.parse_tree import REDUCTIONS, SCANS


class Unbatched(Exception):
    """Why an op has no form with one more dimension."""


@dataclass
class Edits:
    """Changes of a text: at a place, characters up to another place become others."""

    text: str
    changes: list[tuple[int, int, str]] = field(default_factory=list)

    def insert(self, at: int, text: str) -> None:
        self.changes.append((at, at, text))

    def replace(self, start: int, end: int, text: str) -> None:
        self.changes.append((start, end, text))

    def part(self, start: int, end: int) -> str:
        """The changed text between two places."""
        out, at = "", start
        for first, last, new in sorted(c for c in self.changes if start <= c[0] and c[1] <= end):
            if first >= at:
                out += self.text[at:first] + new
                at = last
        return out + self.text[at:end]


class Words:
    """The words of a program's text, by where they begin."""

    def __init__(self, program: ast.Program):
        self.program, self.text = program, program.span.source.text
        self.ops = {op.name: op for op in program.ops}
        self.defs = {d.name for d in program.defs}

    @cached_property
    def _tokens(self) -> list[tuple[int, str]]:
        found = lex(self.text)
        return [(t.start_pos or 0, t.value) for t in found if t.type != "COMMENT" and t.value.strip()]

    @cached_property
    def _order(self) -> Mapping[int, int]:
        return {start: k for k, (start, _) in enumerate(self._tokens)}

    def after(self, at: int) -> tuple[int, str]:
        """The word behind the one that begins there."""
        return self._tokens[self._order[at] + 1]

    def free(self, *hints: str) -> Iterator[str]:
        """Names like these that the text does not have."""
        taken = {value for _, value in self._tokens} | {
            *DTYPES,
            *FUNCTIONS,
            *REDUCTIONS,
            *SCANS,
            *standard_library().defs,
        }
        for hint in hints:
            name, n = hint, 0
            while name in taken:
                name, n = f"{hint}_{n}", n + 1
            taken.add(name)
            yield name

    def knows(self, function: str) -> bool:
        """Whether a name is a function of numbers, and no op of another file."""
        return function in self.defs or function in FUNCTIONS or function in standard_library().defs

    @staticmethod
    def is_short(op: ast.Op) -> bool:
        return any(t.shape is None for t in (*op.inputs, *op.outputs))


def called(statement: ast.Statement, ops: Mapping[str, ast.Op]) -> tuple[tuple[str, ...], str, tuple[str, ...]] | None:
    """The results, the op and the arguments of a statement that calls an op."""
    match statement:
        case ast.OpCall(names=names, op=op, arguments=arguments):
            return names, op, arguments
        case ast.Equation(name=name, value=ast.Call(function=function, arguments=given)) if function in ops:
            return (name,), function, tuple(a.name for a in given if isinstance(a, ast.Name))
    return None


# ---- one more dimension ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batched:
    """A program whose op `op` has a further dimension, the first, of some inputs, and of the `results` that depend on them."""

    text: str
    op: str
    results: tuple[bool, ...]


def batched(program: ast.Program, op: ast.Op, inputs: Sequence[bool]) -> Batched:
    """The op for `inputs` that have a further dimension. Raises Unbatched where it calls an op of another file."""
    words = Words(program)
    index, size = words.free("b", "B")
    made = _Batch(words, index, size)
    name, results = made.of(op, tuple(inputs))
    if words.is_short(op):
        return Batched(made.whole, name, results)
    return Batched("\n".join([words.text, *made.texts.values()]), name, results)


class _Batch:
    def __init__(self, words: Words, index: str, size: str):
        self.words, self.index, self.size = words, index, size
        self.texts: dict[tuple[str, tuple[bool, ...]], str] = {}
        self.known: dict[tuple[str, tuple[bool, ...]], tuple[str, tuple[bool, ...]]] = {}
        self.whole = ""

    def of(self, op: ast.Op, inputs: tuple[bool, ...]) -> tuple[str, tuple[bool, ...]]:
        """The name of the op's form for these inputs, and which results have the dimension."""
        key = op.name, inputs
        if key in self.known:
            return self.known[key]
        edits, more = Edits(self.words.text), {t.name for t, more in zip(op.inputs, inputs) if more}
        for statement in op.body:
            self._statement(op, statement, more, edits)
        results = tuple(t.name in more for t in op.outputs)
        if self.words.is_short(op):
            self.known[key] = op.name, results
            self.whole = edits.part(0, len(self.words.text))
            return self.known[key]
        for tensor in (*op.inputs, *op.outputs):
            if tensor.name in more:
                if tensor.shape:
                    edits.insert(tensor.shape[0].span.start, f"{self.size}, ")
                else:
                    edits.insert(tensor.span.end, f"[{self.size}]")
        (name,) = self.words.free(f"{op.name}_{''.join('01'[more] for more in inputs)}")
        at, _ = self.words.after(op.span.start)
        edits.replace(at, at + len(op.name), name)
        self.texts[key] = edits.part(op.span.start, op.span.end)
        self.known[key] = name, results
        return self.known[key]

    def _statement(self, op: ast.Op, statement: ast.Statement, more: set[str], edits: Edits) -> None:
        """Adds to `more` what the statement defines, if it has the dimension."""
        if isinstance(statement, ast.Expect):
            edits.replace(statement.span.start, statement.span.end, "")
            return
        if (call := called(statement, self.words.ops)) is not None:
            names, function, arguments = call
            if function not in self.words.ops:
                raise Unbatched(f"`{op.name}` calls `{function}`, an op of another file")
            if any(a in more for a in arguments):
                name, results = self.of(self.words.ops[function], tuple(a in more for a in arguments))
                more |= {n for n, r in zip(names, results) if r}
                text = f"{', '.join(names)} = {name}({', '.join(arguments)})"
                edits.replace(statement.span.start, statement.span.end, text)
            return
        assert isinstance(statement, ast.Equation)
        value, found = statement.value, False
        own = {*statement.indices, *(r.index for r in (*statement.ranges, *ast.bound_in(value)))}
        for node in ast.traverse(value):
            if isinstance(node, ast.Call):
                own |= {r.index for r in node.indices}
        for node in ast.traverse(value):
            match node:
                case ast.Access(tensor=name, span=span) if name in more:
                    at, bracket = self.words.after(span.start)
                    assert bracket == "[", node
                    edits.insert(at + 1, f"{self.index}, ")
                case ast.Name(name=name, span=span) if name in more and name not in own:
                    edits.insert(span.end, f"[{self.index}]")
                case _:
                    continue
            found = True
        if not found:
            return
        if isinstance(value, ast.Call) and not statement.indices and not self.words.knows(value.function):
            raise Unbatched(f"`{op.name}` calls `{value.function}`, of another file")
        start = statement.span.start
        at, bracket = self.words.after(start)
        if statement.indices:
            edits.insert(at + 1, f"{self.index}, ")
        else:
            edits.insert(start + len(statement.name), f"[{self.index}]")
        more.add(statement.name)
