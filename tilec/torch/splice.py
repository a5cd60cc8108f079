"""An operator's program inside another program: its statements, with the names of the program that takes them.

Where `torch.compile(model, backend="tilec")` meets an operator of `tilec.torch.op`, the partition takes the operator's statements
and compiles them with all else. Graphs of other back ends call the operator.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilec.dsl import ast
from tilec.dsl.batched_op import Edits, Words, called
from tilec.torch.aliases import schema
from tilec.torch.aten.table import Call, Translator, Value
from tilec.torch.program import Graph, Tensor, Unsupported
from tilec.torch.signature import Signature


def splicer(signature: Signature) -> Translator:
    """What translates a node that calls the operator of this signature (`tilec/torch/aten/table.py`)."""

    def translate(call: Call) -> Value:
        program = signature.program
        if program.tree.imports:
            raise Unsupported("an operator whose program imports a file")
        given: list[Tensor] = [
            call[argument.name] for argument in schema(call.node).arguments[: len(signature.inputs)]
        ]
        sizes = {n: int(call[n]) for n in signature.keywords}
        metas = [call.meta] if len(signature.results) == 1 else call.meta
        solved = signature.solve([t.shape for t in given], sizes)
        arguments = [_whole(call.graph, t) for t in given]
        made = Splice(call.graph, Words(program.tree), program.digest).op(
            signature.op, arguments, {n: int(v) for n, v in solved.items() if "." not in n}, [Call.typed(m) for m in metas]
        )
        return made[0] if len(made) == 1 else tuple(made)

    return translate


def _whole(graph: Graph, t: Tensor) -> Tensor:
    """The tensor as one that has its elements at its own subscripts: views are copied, which costs nothing where the copy's reader
    computes it again."""
    if t.positions is None and t.formula is None and not t.nominal:
        return t
    graph.hint = f"{t.name or 'value'}_seen"
    return graph.emit(t.shape, t.torch_dtype, lambda i: t.at(*i), whole=range(len(t.shape)))


@dataclass
class Splice:
    graph: Graph
    words: Words
    digest: str

    def op(
        self, op: ast.Op, arguments: Sequence[Tensor], sizes: Mapping[str, int], results: Sequence[tuple[tuple[int, ...], str]]
    ) -> list[Tensor]:  # fmt: skip
        """Appends the op's statements; `sizes` has a number for each of its sizes, `results` shapes and types."""
        if 0 in sizes.values():
            raise Unsupported("a size of 0")  # which may be a divisor
        names = {p.name: t.name for p, t in zip(op.inputs, arguments)}
        for statement in op.body:
            if isinstance(statement, ast.Expect):
                continue
            if called(statement, self.words.ops) is not None:
                raise Unsupported("an operator whose op calls another one")
            assert isinstance(statement, ast.Equation)
            like_index = re.fullmatch(r"[a-z]\d+", statement.name)  # as translators call theirs
            names[statement.name] = self.graph.fresh(f"{statement.name}_of_op" if like_index else statement.name)
        types = {t.name: (shape, dtype) for t, (shape, dtype) in zip(op.outputs, results)}
        for statement in op.body:
            if isinstance(statement, ast.Equation):
                self.graph.lines.append("  " + self._statement(statement, names, sizes, types.get(statement.name)))
        found = []
        for t, (shape, dtype) in zip(op.outputs, results):
            made = self.graph.stored[names[t.name]] = Tensor(names[t.name], shape, dtype)
            found.append(made)
        return found

    def _statement(
        self, statement: ast.Equation, names: Mapping[str, str], sizes: Mapping[str, int],
        result: tuple[tuple[int, ...], str] | None,
    ) -> str:  # fmt: skip
        """The statement's text. A result has a type, and ranges, which the op's head would tell."""
        edits, start = Edits(self.words.text), statement.span.start
        own = set(statement.indices)
        for node in ast.traverse(statement.value):
            if isinstance(node, ast.Call):
                own |= {r.index for r in node.indices}
        own |= {r.index for r in (*statement.ranges, *ast.bound_in(statement.value))}
        edits.replace(start, start + len(statement.name), names[statement.name])
        self._expression(statement.value, False, own, names, sizes, edits)
        for r in statement.ranges:
            self._range(r, sizes, edits)
        if result is not None:
            shape, dtype = result
            if statement.dtype is None:
                at = start + len(statement.name)
                if statement.indices:
                    at, word = self.words.after(start)
                    while word != "]":
                        at, word = self.words.after(at)
                    at += 1
                edits.insert(at, f": {dtype}")
            reported = {r.index for r in statement.ranges}
            rest = ", ".join(f"{i} in 0:{n}" for i, n in zip(statement.indices, shape) if i not in reported)
            if rest:
                edits.insert(statement.span.end, f", {rest}" if statement.ranges else f" where {rest}")
        return one_line(edits.part(start, statement.span.end))

    def _expression(
        self, expr: ast.Expr, affine: bool, own: set[str], names: Mapping[str, str], sizes: Mapping[str, int], edits: Edits
    ) -> None:  # fmt: skip
        """Renames what the expression reads. A size is a number of the type i64, which decides the type of arithmetic, but for
        subscripts and conditions on indices (`affine`)."""
        match expr:
            case ast.Name(name=name, span=span):
                if name in own:
                    pass
                elif name in names:
                    if names[name] in own:
                        raise Unsupported("a scalar that has the name of an index")
                    edits.replace(span.start, span.end, names[name])
                elif name in sizes:
                    edits.replace(span.start, span.end, str(sizes[name]) if affine else f"i64({sizes[name]})")
            case ast.Access(tensor=name, span=span):
                edits.replace(span.start, span.start + len(name), names[name])
                affine = True
            case ast.Compare():
                affine = affine or not any(isinstance(n, ast.Access) for n in ast.traverse(expr))
            case ast.Call(function=function, indices=indices, span=span):
                if function in self.words.defs:
                    edits.replace(span.start, span.start + len(function), self._def(function))
                for r in indices:
                    self._range(r, sizes, edits)
            case ast.Reduce(ranges=ranges):
                for r in ranges:
                    self._range(r, sizes, edits)
            case ast.Scan(range=r):
                self._range(r, sizes, edits)
        for child in ast.children(expr):
            self._expression(child, affine, own, names, sizes, edits)

    def _range(self, r: ast.Range, sizes: Mapping[str, int], edits: Edits) -> None:
        pending = [bound for bound in (r.low, r.high) if bound is not None]
        while pending:
            match pending.pop():
                case ast.SizeName(name=name, span=span):
                    edits.replace(span.start, span.end, str(sizes[name]))
                case ast.SizeBinary(left=left, right=right):
                    pending += [left, right]

    def _def(self, name: str) -> str:
        """The name of a function of the program in the graph, which gets it where it does not have it."""
        key = f"{self.digest} {name}"
        if (known := self.graph.functions.get(key)) is not None:
            return known[0]
        mine = self.graph.fresh(f"{name}_of_op")
        self.graph.functions[key] = mine, ""
        (function,) = (d for d in self.words.program.defs if d.name == name)
        edits = Edits(self.words.text)
        at, _ = self.words.after(function.span.start)
        edits.replace(at, at + len(name), mine)
        for value in (*(local.value for local in function.locals), function.result):
            for node in ast.traverse(value):
                if isinstance(node, ast.Call) and node.function in self.words.defs:
                    start = node.span.start
                    edits.replace(start, start + len(node.function), self._def(node.function))
        del self.graph.functions[key]  # functions stand behind those that they call
        self.graph.functions[key] = mine, one_line(edits.part(function.span.start, function.span.end))
        return mine


def one_line(text: str) -> str:
    """A statement without comments, on one line."""
    return " ".join(re.sub(r"#[^\n]*", "", text).split())
