"""The sizes of a function whose extents vary, from the shapes that it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilec.core.diagnostics import CallError
from tilec.core.extents import sizes_of, terms_of, texts_of
from tilec.core.mlir import ir
from tilec.core.varying import evaluated, names_in
from tilec.dsl.varying_sizes import solved_sizes
from tilec.index.facts import NONE
from tilec.index.terms import term

Shape = tuple[int, ...]


def sizes_at(
    function: ir.Operation, shapes: Sequence[Shape], written: Sequence[Sequence[int | str] | None] = ()
) -> dict[str, int]:  # fmt: skip
    """The sizes that vary, where the first arguments have these shapes. `written`: shapes of the source, in place
    of those of the IR.
    Raises CallError where a shape is that of no sizes, or leaves a range."""
    varies, terms, found = sizes_of(function), terms_of(function), dict[str, int]()
    if not varies:
        return found
    others = [*written, *[None] * (len(shapes) - len(written))]
    texts = [list(map(str, w or texts_of(function, n) or s)) for n, (s, w) in enumerate(zip(shapes, others))]
    for size in solved_sizes([tuple(term(evaluated(t, terms)) for t in words) for words in texts], varies):
        known = {leaf: term(found[name] // varies[name].multiple) for name in found for leaf in terms[name].free}
        rest = shapes[size.number][size.dim] - NONE.rebuilt(size.rest, known).number
        found[size.name] = rest // size.factor * varies[size.name].multiple
        if not varies[size.name].has(found[size.name]):
            raise CallError(f"the size `{size.name}` is {found[size.name]}, and varies in {varies[size.name]}")
    for n, (shape, words) in enumerate(zip(shapes, texts)):
        if all(name in found for text in words for name in names_in(text)) and shape_at(words, found) != shape:
            raise CallError(f"argument {n} has the shape {list(shape)}, which is not [{', '.join(words)}] at the sizes {found}")
    return found


def shape_at(words: Sequence[str], sizes: Mapping[str, int]) -> Shape:
    """A shape from the texts of its extents."""
    return tuple(evaluated(text, sizes) for text in words)
