"""The short form: names that are read and never defined are inputs, names that are defined and never read are outputs."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.core.diagnostics import Span
from tilec.dsl import ast
from tilec.dsl.notation import CONSTANTS


def main_op(statements: list[ast.Statement], span: Span) -> ast.Op:
    """The op `main` of a short-form program; types and sizes of its tensors stay open until a call. A name such as `pi` is the
    constant, if it is never defined and never has subscripts."""
    reads: dict[str, ast.Tensor] = {}
    defined: dict[str, ast.Tensor] = {}
    for statement in statements:
        match statement:
            case ast.Equation(name=name, dtype=dtype, span=where):
                for read, span in _reads(statement):
                    reads.setdefault(read, ast.Tensor(read, None, None, span))
                defined.setdefault(name, ast.Tensor(name, dtype, None, where))
            case ast.OpCall(names=names, arguments=arguments, span=where):
                for argument in arguments:
                    reads.setdefault(argument, ast.Tensor(argument, None, None, where))
                for name in names:
                    defined.setdefault(name, ast.Tensor(name, None, None, where))
            case ast.Expect():
                pass
    tensors = _with_subscripts(statements)
    inputs = tuple(
        tensor for name, tensor in reads.items() if name not in defined and (name not in CONSTANTS or name in tensors)
    )
    outputs = tuple(tensor for name, tensor in defined.items() if name not in reads)
    return ast.Op("main", inputs, outputs, tuple(statements), span)


def _with_subscripts(statements: list[ast.Statement]) -> set[str]:
    """The names that are read with subscripts, or given to ops as whole tensors."""
    found: set[str] = set()
    for statement in statements:
        match statement:
            case ast.Equation(value=value):
                found |= {node.tensor for node in ast.traverse(value) if isinstance(node, ast.Access)}
            case ast.OpCall(arguments=arguments):
                found |= set(arguments)
    return found


def _reads(equation: ast.Equation) -> Iterator[tuple[str, Span]]:
    """The tensors that an equation reads, in source order: accesses, and bare names that are neither index nor size."""
    own = {*equation.indices, *(r.index for r in equation.ranges), *_sizes(equation.ranges)}
    for node in ast.traverse(equation.value):
        match node:
            case ast.Reduce(ranges=ranges) | ast.Call(indices=ranges):
                own |= {r.index for r in ranges} | _sizes(ranges)
            case ast.Scan(range=range_):
                own |= {range_.index} | _sizes((range_,))
    for node in ast.traverse(equation.value):
        match node:
            case ast.Access(tensor=name, span=span):
                yield name, span
            case ast.Name(name=name, span=span) if name not in own:
                yield name, span


def _sizes(ranges: tuple[ast.Range, ...]) -> set[str]:
    """The names in bounds: those are sizes."""
    names: set[str] = set()
    stack = [bound for r in ranges for bound in (r.low, r.high) if bound is not None]
    while stack:
        match stack.pop():
            case ast.SizeName(name=name):
                names.add(name)
            case ast.SizeBinary(left=left, right=right):
                stack += [left, right]
    return names
