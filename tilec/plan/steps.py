"""Steps of rewrites: what a plan changes in the program before kernels are made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from tilec.analysis import bf16_split
from tilec.core.extents import Extent
from tilec.core.hardware import LINE, WIDE
from tilec.kernels.matrix import BYTES
from tilec.passes.tensor.pack import SIDES


@dataclass(frozen=True)
class Step:
    """One use of a rewrite, at an operation of the program. Fields of derived classes are options."""

    operation: str

    def opened(self, extents: Sequence[Extent], instance: Sequence[int]) -> Step:
        """The step for a program whose sizes vary, of one for an instance of it; the extents of its operation in both."""
        return self


@dataclass(frozen=True)
class Split(Step):
    """Dimension `dim` of a reduction becomes `parts` parts. A sum of distances from what depends on another sum, or of their
    squares, has parts `about` those of the latter; `rest` is the sum of the same distances, where these are squared and the program
    has it."""

    dim: int
    parts: int
    about: str = ""
    rest: str = ""

    @property
    def partial(self) -> str:
        """The operation that makes the parts."""
        return f"{self.operation}.partial"


@dataclass(frozen=True)
class Pack(Step):
    """The factor `side` of a sum of products is stored over dimensions `dims` of its operation, as `kind`. `extents`: along them,
    with the zeros that follow; empty where none do. Without `dims`, the tensor that it is an element of is stored, in aligned
    rows: its dimensions in this `order`, as `kind`, or as they are. `evens_first`: a further, first dimension has the
    elements of even number along the last one, then the others."""

    side: str
    dims: tuple[int, ...]
    kind: str
    extents: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    evens_first: bool = False

    @property
    def number(self) -> int:
        """Of the side, among those of a product."""
        return SIDES.index(self.side)

    def opened(self, extents: Sequence[Extent], instance: Sequence[int]) -> Pack:
        each = (WIDE if self.kind == bf16_split.KIND else LINE) // BYTES[self.kind]  # a line's elements are a multiple of
        found = [
            n if isinstance(e := extents[d], int) else e if n == instance[d] else (e + each - 1) // each * each
            for d, n in zip(self.dims, self.extents)
        ]
        return replace(self, extents=cast("tuple[int, ...]", tuple(found)))  # of terms, which nothing but `apply` reads

    @property
    def stored(self) -> str:
        """The operation that stores it."""
        return f"{self.operation}.{self.side}"


@dataclass(frozen=True)
class Applied:
    """A step of a plan. `reason` has the times that were weighed, `line` is the source position."""

    rewrite: str
    step: Step
    reason: str = field(default="", compare=False)
    line: tuple[str, int] | None = field(default=None, compare=False)
