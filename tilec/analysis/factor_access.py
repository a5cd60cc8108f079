"""How a factor of a contraction is addressed: where the elements of its tiles lie in a tensor, by kernel dimensions.

    x[n, 2 * h + r - 1, c]      a tile along h and c is a box of x: it lies along the last two dimensions, and skips every other h
    k[b, h // 4, j, d]          a tile along j and d lies along the last two; h is the same in all of it
    k[t[b, j // 16], j % 16, d] the same tile lies in pages of 16 elements, each at a place of its own

Contractions (`tilec/plan/cuda/operands.py`) and chains of them (`tilec/analysis/chain.py`) ask the same questions: whether a tile
is a box, whether TMA copies it, along which dimension neighbours are adjacent, and what follows the last element of a dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd, prod

from tilec.analysis import bf16_split
from tilec.analysis.access import Access, Subscript, access_of_element
from tilec.analysis.bf16_split import parted
from tilec.analysis.expression import Expr, Unreadable
from tilec.analysis.products import stored
from tilec.core.hardware import BOX, RANK, ROWS, WIDE
from tilec.core.quantities import count
from tilec.index import questions
from tilec.index.terms import Monomial, Term

LINES = 8  # of 128 bytes, by which swizzled tiles are exchanged
SKIPPED = BOX // (2 * ROWS)
"""The largest step of a box along a dimension: all rows of a block may lie along it."""


@dataclass(frozen=True)
class FactorAccess:
    """An element of a tensor of this `shape`, as far as its dimensions count: an operand's dimensions of one element do not.
    `bytes`: of an element. `own`: the kernel dimensions of those that the subscripts speak of. `extents`: of kernel dimensions;
    those of one element do not count, those that are not known do. `trails`: dimensions that do not count follow the others.
    `zeros`: how many each row of the tensor has behind the elements that the program knows of. `evens_first`: memory has a
    further, first dimension, of the elements of even number along the last one and of the others (`passes/tensor/pack.py`).

    `along`, of a tile: for each dimension of the tensor the kernel dimension of which a block reads a tile there; None where it
    reads one place. `page`: elements along `paged` lie in pages of so many, each at a place of its own; 0: they do not."""

    access: Access
    shape: tuple[int, ...]
    subscripts: tuple[Subscript, ...]
    own: tuple[int, ...]
    extents: Mapping[int, int]
    bytes: int
    trails: bool = False
    zeros: int = 0
    evens_first: bool = False
    along: tuple[int | None, ...] = ()
    page: int = 0
    paged: int = -1
    further: tuple[Access, ...] = ()
    """Elements of further tensors at the same place, where a factor is the sum of its stored parts."""

    @property
    def stored(self) -> str:
        """The type of its elements in memory."""
        return bf16_split.KIND if self.further else str(self.access.element)

    @property
    def parts(self) -> tuple[FactorAccess, ...]:
        """Each of its stored parts; itself where there is one."""
        return self, *(replace(self, access=access, further=()) for access in self.further)

    @property
    def expression(self) -> Expr:
        """What reads it in a chain."""
        assert self.access.expression is not None
        return self.access.expression

    # ---- how subscripts depend on indices ------------------------------------------------------------------

    def _counts(self, d: int) -> bool:
        return self.extents.get(d, 2) > 1

    @cached_property
    def factors(self) -> tuple[dict[int, int], ...]:
        """Of each subscript, by kernel dimension."""
        return tuple({self.own[d]: f for d, f in s.factors.items() if self._counts(self.own[d])} for s in self.subscripts)

    @cached_property
    def opaque(self) -> tuple[frozenset[int], ...]:
        """The dimensions that the other parts of each subscript depend on."""
        return tuple(frozenset(self.own[d] for d in s.opaque if self._counts(self.own[d])) for s in self.subscripts)

    @property
    def constants(self) -> tuple[int, ...]:
        return tuple(s.constant for s in self.subscripts)

    def _moving(self, p: int) -> frozenset[int]:
        """The dimensions that a subscript depends on."""
        return self.opaque[p] | self.factors[p].keys()

    def _step(self, p: int, d: int) -> int:
        """By how much a subscript grows from one element of a dimension to the next; 0 where that varies."""
        return 0 if d in self.opaque[p] else self.factors[p].get(d, 0)

    @cached_property
    def contiguous(self) -> int | None:
        """The dimension along which neighbours are adjacent in memory: of a tile, that of its lines; else the longest. An opaque
        part of the last subscript may jump between some of them."""
        if self.along:
            return self.along[-1]
        if not self.subscripts:
            return None
        moved = frozenset[int]().union(*(self._moving(p) for p in range(len(self.subscripts) - 1)))
        ones = [d for d, factor in self.factors[-1].items() if factor == 1 and d not in moved]
        return max(ones, key=self.extents.__getitem__, default=None)

    def stride(self, d: int) -> int:
        """The bytes from an element to the next along a dimension; 0 where that varies."""
        every = range(len(self.shape))
        if any(d in self.opaque[p] for p in every):
            return 0
        return self.bytes * sum(self._step(p, d) * prod(self.shape[p + 1 :]) for p in every)

    def offset(self, line: int) -> int:
        """A number that divides the places in a row of the tensor where lines along a dimension begin; 0 where all begin there."""
        last = self.subscripts[-1]
        indices: dict[Monomial, int] = {(index.symbol,): d for d, index in zip(self.own, last.dims)}
        return gcd(*(f for m, f in last.term.parts.items() if (d := indices.get(m)) is None or (d != line and self._counts(d))))

    # ---- tiles ---------------------------------------------------------------------------------------------

    def tile(
        self, own: Set[int], tiled: Set[int], most: int = 1, paged: int | None = None, single: Set[int] = frozenset()
    ) -> FactorAccess:  # fmt: skip
        """The same for tiles along the kernel dimensions `own`, of all those `tiled` of which a block has several elements. Steps
        are of at most `most` elements, and of 1 along the last dimension. Raises Unreadable where tiles are no boxes.

        `paged`: the dimension along which elements may lie in pages. `single`: a dimension of which a block has one element, at
        whatever place: what lies beside it along another dimension of the tensor then takes the place of the box's other rows."""
        every = range(len(self.subscripts))
        size = 0 if paged is None else self._page(paged)
        if size and paged in self._moving(len(self.subscripts) - 1):
            raise Unreadable("a factor is contiguous along an index whose elements lie at places that data tell")
        along: list[int | None] = []
        for p in every:
            moving = self._moving(p) & tiled
            if not size or paged not in self._moving(p) or moving - {paged}:
                bare = moving == single and all(self._step(p, d) == 1 for d in single)
                along.append(self._along(p, moving if bare else moving - single, 1 if p == every[-1] else most))
            else:  # within a page; of pages of one element, the first subscript that tells one
                mine = paged not in along and paged is not None and (size == 1 or self._page_at(p, paged) > 0)
                along.append(paged if mine else None)
        for d in single - {*along}:
            free = [n for n, other in enumerate(along[:-1]) if other is None]
            own = own - {d}
            if free:
                along[free[-1]], own = d, own | {d}
        if sorted(d for d in along if d is not None) != sorted(own):
            raise Unreadable("a factor is read twice along an index, or not along every index of its tiles")
        return replace(self, along=tuple(along), page=size, paged=paged if size and paged is not None else -1)

    def _along(self, p: int, moving: Set[int], most: int) -> int | None:
        """The dimension of tiles that a subscript runs along."""
        if not moving:
            return None
        (d, *others) = moving
        if others or not 1 <= self._step(p, d) <= most:
            raise Unreadable("a factor is read at places that are no box of its tensor")
        return d

    def _page(self, d: int) -> int:
        """How many neighbours along a dimension lie side by side, and each next so many at a place of their own; 0 where all do."""
        moving = [p for p in range(len(self.subscripts)) if d in self._moving(p)]
        sizes = {self._page_at(p, d) for p in moving} - {0}
        if not moving or any(self._step(p, d) == 1 for p in moving):
            return 0
        (size, *more) = sizes or {1}
        uniform = not more and all(self._period(p, d) % size == 0 for p in moving if not self._page_at(p, d))
        return size if uniform else 1

    def _page_at(self, p: int, d: int) -> int:
        """n where a subscript is the remainder of an index by n; 0 where it is not."""
        found = questions.page(self.subscripts[p].term, self._index(p, d))
        return 0 if found is None else found.constant or 0

    def _period(self, p: int, d: int) -> int:
        return questions.period(self._index(p, d), self.subscripts[p].term).constant or 0

    def _index(self, p: int, d: int) -> Term:
        return self.subscripts[p].dims[self.own.index(d)]

    # ---- copies --------------------------------------------------------------------------------------------

    def refuse_box(self, steps: Mapping[int, tuple[int, int]]) -> str | None:
        """Why TMA cannot copy its tiles, of so many elements of so many along the dimensions that are summed over (`steps`): boxes
        have 5 dimensions, begin at words of 16 bytes, and bring what follows the last element."""
        line, size = self.contiguous, self.bytes
        if len(self.shape) > RANK:
            return f"a factor has {len(self.shape)} dimensions, and TMA takes {RANK}"
        if self.page % LINES:
            return f"{count(self.page, 'element')} of a factor lie side by side, and TMA copies a multiple of {LINES}"
        if self.shape[-1] * size % WIDE:
            return f"rows of {self.shape[-1]} elements do not all begin at a multiple of {WIDE} bytes, as TMA demands"
        if line is None or self.offset(line) * size % WIDE:
            return f"tiles of a factor do not all begin at a multiple of {WIDE} bytes in its rows, as TMA demands"
        for d, (step, extent) in steps.items():
            if extent % step and not self.ends(d, extent):
                return f"steps of {step} elements go on beyond {extent} of a dimension, and what follows them is not 0"
        return None

    def ends(self, d: int, extent: int) -> bool:
        """Whether a dimension of a tile ends where the tensor does: beyond, all elements are 0, and nothing that is no number is
        met."""
        p = self.along.index(d)
        length = self.shape[p]
        if self.page and d == self.paged:
            return self.page == 1 or (length == self.page and extent % self.page == 0)
        if p in self.access.guarded and (self.factors[p] != {d: 1} or self.constants[p]):
            return False
        return length - (self.zeros if p == len(self.shape) - 1 else 0) <= extent <= length

    def is_box(self, order: Iterable[int], steps: Mapping[int, int]) -> bool:
        """Whether TMA copies tiles along these dimensions, the outermost first, of so many elements (`steps`) along those that are
        summed over: the box lies in their order, and each moves a subscript of its own."""
        dims = tuple(order)
        try:
            tile = self.tile({*dims}, {*dims}, SKIPPED)
        except Unreadable:
            return False
        if tuple(d for d in tile.along if d is not None) != dims or tile.along[-1] is None:
            return False
        return tile.refuse_box({d: (size, self.extents[d]) for d, size in steps.items()}) is None

    def is_pieces(self, line: int, inner: tuple[int, ...] | None, wide: int) -> bool:
        """Whether aligned pieces of `wide` elements along lines are of one kind: all inside, or all outside. Where `inner` is
        given, a piece may go on from one line of k to the next."""
        whole = len(self.shape) == len(self.access.shape)
        dims = [d for at in self.factors for d in at] if whole and self.access.operand is not None else []
        if inner and line == inner[-1] and self.contiguous in inner and _is_flat(dims, inner):
            return prod(self.extents[d] for d in inner) % wide == 0
        if self.trails or self.contiguous != line or len(self.shape) - 1 in self.access.guarded:
            return False
        if not self.access.subscripts[-1].is_affine or any(line in dims for dims in self.opaque):
            return False
        return not any(n % wide for n in (self.extents[line], self.shape[-1], self.offset(line)))


def _is_flat(dims: list[int], inner: tuple[int, ...]) -> bool:
    """Whether all reduced dimensions are adjacent in a tensor, in order: k is one dimension of its memory."""
    first = dims.index(inner[0]) if inner[0] in dims else len(dims)
    return tuple(dims[first : first + len(inner)]) == inner


def elements_of(x: Expr) -> tuple[Expr, ...]:
    """The stored elements that a factor of a chain is: one, or its parts; none of what is computed."""
    found = parted(x)
    elements = tuple(stored(p) for p in (found.parts if found else (x,)))
    coordinates = {(e.op, e.args, e.own_dims) for e in elements}
    return elements if elements[0].op == "element" and len(coordinates) == 1 else ()


def factor_of_element(x: Expr, weighted: bool = False) -> FactorAccess:
    """A factor of a chain, as its expressions tell it; `weighted`: of the product of weights."""
    access, *further = map(access_of_element, elements_of(x))
    dims = access.subscripts[0].dims if access.subscripts else ()
    own, size = tuple(range(len(dims))), max(1, access.element.width // 8)
    shape, at = tuple(access.shape), access.subscripts
    if evens_first := weighted and _has_evens_first(shape, at):
        whole = next(d for d in dims if d // 2 is at[-1].term)
        shape, at = (*shape[1:-1], 2 * shape[-1]), (*at[1:-1], Subscript(whole, dims))
    return FactorAccess(access, shape, at, own, {}, size, evens_first=evens_first, further=tuple(further))


def _has_evens_first(shape: tuple[int, ...], at: tuple[Subscript, ...]) -> bool:
    """Whether the first and the last subscript tell one index so."""
    return len(shape) > 1 and shape[0] == 2 and any(d % 2 is at[0].term and d // 2 is at[-1].term for d in at[-1].dims)
