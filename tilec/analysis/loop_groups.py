"""Which operations of a loop nest share one loop. `plan` counts with it, and `fuse` merges them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class GroupedOp:
    """The facts of an operation that decide about a shared loop: its loop nest, its kernel dimensions, the dimensions that
    it reduces, whether it is a scan."""

    loop_group: int
    dims: tuple[int, ...]
    reduced: frozenset[int]
    scans: bool


def loop_nests(operations: Sequence[GroupedOp], backend: str) -> list[int]:
    """A number for each operation of a kernel, in order; operations of one number become one."""
    numbers: list[int] = []
    latest: dict[tuple[int, frozenset[int]], tuple[int, GroupedOp]] = {}
    for count, op in enumerate(operations):
        key = op.loop_group, frozenset(op.dims)
        number, first = latest.get(key, (count, op))
        if first is not op and _needs_own_nest(first, op, backend):
            number, first = count, op
        latest[key] = number, replace(first, reduced=first.reduced | op.reduced)
        numbers.append(number)
    return numbers


def _needs_own_nest(first: GroupedOp, second: GroupedOp, backend: str) -> bool:
    """Whether two operations of one loop group need a loop nest each: scans, and on a GPU reductions of different dimensions.

    There a thread adds up the elements that it reads, and the threads of all reduced dimensions combine their sums in
    the end: of one dimension for one sum, of another for the other, they are not the same threads.
    """
    if first.scans or second.scans:
        return True
    return backend == "cuda" and bool(first.reduced and second.reduced) and first.reduced != second.reduced
