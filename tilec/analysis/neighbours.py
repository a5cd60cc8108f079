"""Parts of an expression that four adjacent elements share: those that depend on the element's number n through n // 4 alone.

    n = row * 4096 + j                        rand(seed, n) < 0.9        worth computing for four elements at a time:
    word[n // 4] ... chosen by n % 4          shared: the four words     one run of the generator gives all four

`tilec/analysis/lane_invariance.py` finds the same in the body of one operation.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.analysis.affine_conditions import linear
from tilec.analysis.expression import Expr

SIZE = 4  # adjacent elements
WORTH = 16  # operations that four elements share, from which an exchange between threads pays
_QUOTIENTS = ("arith.divui", "arith.divsi", "arith.floordivsi")


class Neighbours:
    """Elements along `dim` whose first one is at a multiple of `SIZE`."""

    def __init__(self, dim: int):
        self.dim = dim
        self._shared: dict[Expr, bool] = {}

    def shares(self, x: Expr) -> bool:
        """Whether it is the same for all of them."""
        if x not in self._shared:
            inside = bool(x.args) and x.op != "element" and all(map(self.shares, x.args))
            self._shared[x] = self.dim not in x.dims or self._is_quotient(x) or inside
        return self._shared[x]

    def number(self, x: Expr) -> int | None:
        """The mask of an element's number among them, where `x` is that number."""
        mask = x.args[1].number if x.op == "arith.andi" and x.args[1].op == "constant" else None
        return int(mask) if mask is not None and 0 <= mask < SIZE and self._counts(x.args[0]) else None

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

    def _is_quotient(self, x: Expr) -> bool:
        if len(x.args) != 2 or x.args[1].op != "constant":
            return False
        by = int(x.args[1].key)
        divisor = 1 << by if x.op in ("arith.shrui", "arith.shrsi") and 0 <= by < 63 else by if x.op in _QUOTIENTS else 0
        return divisor > 0 and divisor % SIZE == 0 and self._counts(x.args[0])

    def _counts(self, x: Expr) -> bool:
        """Whether an integer grows by one from each to the next, from a multiple of `SIZE` on."""
        if (form := linear(x)) is None:
            return False
        leaves, number = form
        along = [f for leaf, f in leaves.items() if self.dim in leaf.dims]
        others = [f for leaf, f in leaves.items() if self.dim not in leaf.dims]
        return along == [1] and not any(f % SIZE for f in (*others, number))
