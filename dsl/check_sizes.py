"""Sizes and shapes from an op's text: names of sizes, declared shapes, ranks of the short form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from tilec.core.diagnostics import Note, Span
from tilec.dsl import ast
from tilec.dsl.check_scope import Report
from tilec.dsl.index_terms import in_sizes, size_term
from tilec.dsl.notation import written_ranges
from tilec.index.facts import NONE
from tilec.index.terms import Term


def size_names(op: ast.Op) -> dict[str, Span]:
    """The names of sizes that an op mentions, in its types and in bounds, with where they stand first."""
    names: dict[str, Span] = {}
    for tensor in (*op.inputs, *op.outputs):
        for size in tensor.shape or ():
            _add_names(size, names)
    bounds: dict[str, Span] = {}
    taken = {t.name for t in (*op.inputs, *op.outputs)}
    for statement in op.body:
        if not isinstance(statement, ast.Equation):
            continue
        taken |= {statement.name, *statement.indices}
        for range_ in (*statement.ranges, *written_ranges(statement.value)):
            taken.add(range_.index)
            for bound in (range_.low, range_.high):
                if bound is not None:
                    _add_names(bound, bounds)
    return names | {name: span for name, span in bounds.items() if name not in taken and name not in names}


def declared_ranges(op: ast.Op, report: Report) -> dict[str, ast.SizeRange]:
    """The ranges that an op's text gives to its sizes."""
    found: dict[str, ast.SizeRange] = {}
    for size in (size for t in (*op.inputs, *op.outputs) for size in t.shape or ()):
        if isinstance(size, ast.SizeName) and (own := size.range) is not None:
            first = found.setdefault(size.name, own)
            if first.numbers != own.numbers:
                note = Note(f"it is {first.numbers} here", first.span)
                report.error(f"`{size.name}` has another range, {own.numbers}", own.span, [note], "write it once")
    return found


def _add_names(size: ast.Size, names: dict[str, Span]) -> None:
    for found in ast.names_of(size):
        names.setdefault(found.name, found.span)


def declared_shape(
    tensor: ast.Tensor, sizes: Mapping[str, Term], report: Report, decided: bool
) -> tuple[Term, ...] | None:  # fmt: skip
    """`decided`: sizes have numbers, or vary in known ranges."""
    shape: list[Term] = []
    for size in tensor.shape or ():
        try:
            extent = size_term(size, sizes)
        except ZeroDivisionError:
            report.error("division by zero in a size", size.span)
            return None
        if (value := extent.constant) is not None and value < 0:
            report.error(f"the size is {value}", size.span)
            return None
        if decided and not NONE.proves(extent):
            report.error(f"the size is {in_sizes(extent)}, which may be less than 0", size.span)
            return None
        shape.append(extent)
    return tuple(shape)


def subscript_ranks(op: ast.Op) -> dict[str, int]:
    """Ranks of the short form's tensors, from their subscripts."""
    ranks: dict[str, int] = {}
    called: set[str] = set()
    for statement in op.body:
        match statement:
            case ast.Equation(value=value):
                if isinstance(value, ast.Call):
                    called |= {a.name for a in value.arguments if isinstance(a, ast.Name)}
                for node in ast.traverse(value):
                    if isinstance(node, ast.Access):
                        ranks.setdefault(node.tensor, len(node.subscripts))
                    elif isinstance(node, ast.Name) and node.name not in called:
                        ranks.setdefault(node.name, 0)
            case ast.OpCall() | ast.Expect():
                pass
            case _:
                assert_never(statement)
    return ranks
