"""Inputs of the short form that were hardly meant as inputs: an index that nothing sums over, a comment behind `//`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tilec.core.diagnostics import Diagnostic
from tilec.dsl import ast
from tilec.dsl.check_scope import text_of
from tilec.dsl.notation import CONSTANTS


def doubts(op: ast.Op) -> list[Diagnostic]:
    """A warning for each of them, with what was probably meant."""
    scalars = {tensor.name for tensor in op.inputs if tensor.dtype is None}
    found = []
    for equation in (s for s in op.body if isinstance(s, ast.Equation)):
        found += [_unsummed(equation, names) for names in [list(dict.fromkeys(_bare_inputs(equation, scalars)))] if names]
        found += [_comment(node) for node in ast.traverse(equation.value) if _is_comment(node, op, scalars)]
    return found


def constant_for_input(op: ast.Op) -> str | None:
    """For a call with too many arguments: the names that are constants, and may have been meant as inputs."""
    names = {n.name for s in op.body if isinstance(s, ast.Equation) for n in ast.traverse(s.value) if isinstance(n, ast.Name)}
    for name in sorted(names & CONSTANTS.keys() - {t.name for t in op.inputs}):
        return f"`{name}` is the number {CONSTANTS[name]:.5g}, as nothing defines it; an input needs another name, or the full form"
    return None


def _bare_inputs(equation: ast.Equation, scalars: set[str]) -> Iterator[str]:
    """The inputs that subscript a tensor bare."""
    for access in (node for node in ast.traverse(equation.value) if isinstance(node, ast.Access)):
        yield from (s.name for s in access.subscripts if isinstance(s, ast.Name) and s.name in scalars)


def _unsummed(equation: ast.Equation, names: list[str]) -> Diagnostic:
    subject, one = " and ".join(f"`{name}`" for name in names), len(names) == 1
    taken = "is neither on the left side nor in a reduction, and so is taken for an input"
    message = f"{subject} {taken if one else taken.replace('is ', 'are ').replace('an input', 'inputs')}"
    left = f"{equation.name}[{', '.join(equation.indices)}]" if equation.indices else equation.name
    hint = f"to sum over {'it' if one else 'them'}: `{left} = sum[{', '.join(names)}]({text_of(equation.value)})`"
    return Diagnostic(message, equation.span, hint=hint, severity="warning")


def _is_comment(node: ast.Expr, op: ast.Op, scalars: set[str]) -> bool:
    """Whether it is a quotient by a word at the end of a line, which nothing else reads."""
    match node:
        case ast.Binary(op="//", right=ast.Name(name=name) as word) if name in scalars and len(name) > 2:
            ends = re.match(r"[ \t;}]*(\n|\Z)", word.span.source.text[word.span.end :]) is not None
            reads = (n for s in op.body if isinstance(s, ast.Equation) for n in ast.traverse(s.value))
            return ends and sum(isinstance(n, ast.Name) and n.name == name for n in reads) == 1
    return False


def _comment(node: ast.Expr) -> Diagnostic:
    assert isinstance(node, ast.Binary)
    word = text_of(node.right)
    hint = f"a comment begins with `#`: `# {word}`"
    return Diagnostic(f"`// {word}` divides by an input `{word}`", node.span, hint=hint, severity="warning")
