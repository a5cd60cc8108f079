"""The sizes of a function whose extents vary, from the shapes that it is given."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.core.diagnostics import CallError
from tilec.core.extents import sizes_of, terms_of, texts_of
from tilec.core.mlir import ir
from tilec.core.varying import evaluated, names_in
from tilec.dsl.varying_sizes import solved_sizes
from tilec.index.facts import NONE
from tilec.index.terms import term

Shape = tuple[int, ...]


def sizes_at(function: ir.Operation, shapes: Sequence[Shape]) -> dict[str, int]:
    """The sizes that vary, where the first arguments have these shapes. Raises CallError where a shape is that of no sizes, or
    leaves a range."""
    varies, terms, found = sizes_of(function), terms_of(function), dict[str, int]()
    if not varies:
        return found
    texts = [texts_of(function, n) or list(map(str, shape)) for n, shape in enumerate(shapes)]
    for size in solved_sizes([tuple(term(evaluated(t, terms)) for t in words) for words in texts], varies):
        known = {leaf: term(found[name] // varies[name].multiple) for name in found for leaf in terms[name].free}
        rest = shapes[size.number][size.dim] - NONE.rebuilt(size.rest, known).number
        found[size.name] = rest // size.factor * varies[size.name].multiple
        if not varies[size.name].has(found[size.name]):
            raise CallError(f"the size `{size.name}` is {found[size.name]}, and varies in {varies[size.name]}")
    for n, (shape, words) in enumerate(zip(shapes, texts)):
        wanted = shape_at(words, found)
        if wanted is not None and wanted != shape:
            raise CallError(f"argument {n} has the shape {list(shape)}, which is not [{', '.join(words)}] at the sizes {found}")
    return found


def shape_at(words: Sequence[str], sizes: dict[str, int]) -> Shape | None:
    """A shape from the texts of its extents; None where these have other sizes."""
    if not all(name in sizes for text in words for name in names_in(text)):
        return None
    return tuple(evaluated(text, sizes) for text in words)
