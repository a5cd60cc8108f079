"""What an online reduction carries along a dimension: states, references that sums are relative to, and the values that follow."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from tilec.analysis.expression import POSITION, Dims, Expr, Total, constant
from tilec.analysis.linear_factor import linear_factor

IDENTITY = {"arith.addf": 0.0, "arith.maximumf": -inf, "arith.minimumf": inf, POSITION: 2**31 - 1}


@dataclass(frozen=True)
class Rescale:
    """An exponent that a state is relative to: `row`, of complete reductions so far, of the exponential `op`. `extreme`
    is the number of the maximum that it takes away; while that has seen nothing, the state is 0."""

    number: int
    row: Expr
    op: str
    extreme: int


@dataclass(frozen=True)
class Carried:
    """One reduction as it is carried: `term` is combined with the state for every element.

    In `term`, the leaf "reference" is the reference of a rescale. In `final`, the value that the reduction has, there
    is also "state", the carried one. A state with a `rescale` is multiplied by op(new - old), to the `power`, when its
    reference moves.
    One that is `about` another sum is of distances from the mean of what that adds up, or of their squares: the leaf "mean" (its
    `key` is that sum's number) is this mean so far, rounded; "count" how many elements there were; both also stand in `final`.
    `rest` is the number of the sum of the distances, which is what the mean was rounded by, times the count; its own is that.
    """

    total: Total
    term: Expr
    final: Expr
    rescale: Rescale | None
    about: int | None = None
    power: int = 1
    rest: int | None = None

    @property
    def locates(self) -> int | None:
        """The number of the extreme whose position this is, in 32 bits."""
        return self.total.extreme

    @property
    def identity(self) -> float:
        return IDENTITY[self.total.combine]


@dataclass(frozen=True)
class Online:
    """The states of an online reduction along dimensions, in the order in which they are updated."""

    dims: Dims
    carried: tuple[Carried, ...]
    rescales: tuple[Rescale, ...]
    shared: tuple[tuple[int, Expr], ...] = ()
    """Reductions without a state of their own, and their values by the states of others."""

    @property
    def dim(self) -> int:
        """The only dimension."""
        (dim,) = self.dims
        return dim

    def final(self, expression: Expr) -> Expr:
        """An expression of complete reductions, in terms of states and references."""
        finals = {c.total.number: c.final for c in self.carried} | dict(self.shared)
        return expression.replace(lambda x: finals.get(x.key) if x.op == "total" else None)

    def reference(self, rescale: Rescale) -> Expr:
        """What sums of a rescale are relative to, in terms of states: the row's value but for rounding, as a single product in
        place of the program's quotients and products. `final` makes up for the difference."""
        row = self.final(rescale.row)
        leaf, factor = linear_factor(row)
        return row if factor == 1 else Expr("arith.mulf", (leaf, constant(factor)))
