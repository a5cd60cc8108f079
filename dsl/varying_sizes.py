"""Sizes that vary: how the shapes of a call's arguments determine them.

    x: f32[M, 8], y: f32[2 * N + 1]      ->      M is dimension 0 of `x`, N is (dimension 0 of `y` - 1) // 2
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilec.core.varying import Varying
from tilec.dsl import ast
from tilec.dsl.index_terms import size_term
from tilec.index.facts import NONE
from tilec.index.terms import Term, term

Shape = tuple[Term, ...]


@dataclass(frozen=True)
class Solved:
    """The size `name` is (extent - rest) / factor * multiple. The extent is that of dimension `dim` of input `number`, and the
    multiple is the size's. `rest` is a term of sizes that come before it."""

    name: str
    number: int
    dim: int
    factor: int
    rest: Term


def solved_sizes(shapes: Sequence[Shape], varies: Mapping[str, Varying]) -> list[Solved]:
    """How the shapes of the inputs tell each size that varies; those that they do not tell are left out. A dimension that is the
    size alone comes before all others."""
    dims = [(number, dim, x) for number, shape in enumerate(shapes) for dim, x in enumerate(shape)]
    found: dict[str, Solved] = {}
    for name, v in varies.items():
        first = next(((number, dim) for number, dim, x in dims if x is v.term(name)), None)
        if first is not None:
            found[name] = Solved(name, *first, v.multiple, term(0))
    while more := next(_solved(dims, varies, found), None):
        found[more.name] = more
    return list(found.values())


def determining(written: Sequence[Shape], shapes: Sequence[Shape], varies: Mapping[str, Varying]) -> list[int]:
    """The numbers of inputs without whose shapes in the source, in place of others in the IR, some size would not be determined."""
    found: list[int] = []

    def known(changed: Iterable[int]) -> int:
        return len(solved_sizes([written[n] if n in changed else shape for n, shape in enumerate(shapes)], varies))

    while known(found) < len(varies):
        changed = [n for n, (own, shape) in enumerate(zip(written, shapes)) if own != shape and n not in found]
        found.append(max(changed, key=lambda n: known([*found, n])))
    return found


def _solved(
    dims: Sequence[tuple[int, int, Term]], varies: Mapping[str, Varying], found: Mapping[str, Solved]
) -> Iterator[Solved]:  # fmt: skip
    """Sizes of which a dimension is a multiple, and a sum of sizes that are known."""
    known = {leaf for name in found for leaf in varies[name].term(name).free}
    for name, v in varies.items():
        if name in found:
            continue
        (leaf,) = v.term(name).free
        for number, dim, x in dims:
            factor, rest = x.collect(leaf)
            if (by := factor.constant) and by > 0 and rest.free <= known:
                yield Solved(name, number, dim, by, rest)


def shape_terms(of: ast.Tensor) -> Shape:
    """The shape of a tensor of a specialised op."""
    return tuple(size_term(size, {}) for size in of.shape or ())


def highest(x: Term) -> int:
    """The greatest value of an extent. Raises OverflowError where it has none."""
    return int(NONE.bounds(x)[1])
