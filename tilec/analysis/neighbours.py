"""Parts of an expression that four adjacent elements share: those that depend on the element's number n through n // 4 alone.

    n = row * 4096 + j                        rand(seed, n) < 0.9        worth computing for four elements at a time:
    word[n // 4] ... chosen by n % 4          shared: the four words     one run of the generator gives all four

`tilec/analysis/lane_invariance.py` finds the same in the body of one operation.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.analysis.expression import Expr
from tilec.analysis.index_terms import BITS, ExprTerms
from tilec.index.questions import is_shared, lane_numbers

SIZE = 4  # adjacent elements
WORTH = 16  # operations that four elements share, from which an exchange between threads pays


class Neighbours:
    """Elements along `dim` whose first one is at a multiple of `SIZE`."""

    def __init__(self, dim: int):
        self.dim = dim
        self._terms = ExprTerms()

    def shares(self, x: Expr) -> bool:
        """Whether it is the same for all of them."""
        return is_shared(self._terms.of(x), self._terms.dim(self.dim), SIZE)

    def numbers(self, x: Expr) -> tuple[int, ...] | None:
        """An integer's value for each of them, where these are numbers and not the same."""
        return lane_numbers(self._terms.of(x), self._terms.dim(self.dim), SIZE) if x.type in BITS else None

    def worthwhile(self, x: Expr) -> Iterator[Expr]:
        """The largest parts of an expression that indices and rows decide, and of which much is shared."""
        if self._by_indices(x):
            if sum(bool(p.args) for p in self._parts(x) if self.shares(p) and self.dim in p.dims) >= WORTH:
                yield x
            return
        for a in dict.fromkeys(x.args):
            yield from self.worthwhile(a)

    def _by_indices(self, x: Expr) -> bool:
        running = ("total", "state", "reference", "element")
        return x.type in ("i1", "i32", "f32") and self.dim in x.dims and not any(
            p.op in running and (p.op != "element" or self.dim in p.dims) for p in self._parts(x)
        )  # fmt: skip

    def _parts(self, x: Expr) -> set[Expr]:
        found: set[Expr] = set()
        pending = [x]
        while pending:
            if (part := pending.pop()) not in found:
                found.add(part)
                pending += part.args
        return found

