"""Writes to positions that are sums of indices, read from the other side: an element knows which writes it gets.

    y[h, r] = x[h, r] + sum[b, i](v[b, h, i, i - r + c] if 0 <= i - r + c < N)        of v[b, h, i, j] at h and i - j + c

So are the gradients of a bias that is read at positions, of a slope for each head, and of a table of distances.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilec.index.questions import factor
from tilec.index.terms import term
from tilec.torch import indices as ix
from tilec.torch.aten.table import Call
from tilec.torch.indices import Index
from tilec.torch.program import Tensor, reduction

Value = Callable[[Sequence[Index], Sequence[Index]], str]
MOST_READS = 4
"""How many times as many values as there are writes elements may look at."""


def solved(call: Call, x: Tensor, given: Mapping[int, Tensor], index_shape: Sequence[int], before: Callable[[Sequence[Index]], str],
           value: Value) -> Tensor | None:  # fmt: skip
    """The tensor after `value(i, t)` was added at the positions `given` for each dimension; None where these are no sums of
    indices, or do not tell which writes an element gets."""
    positions = [given[d].index_at(*given[d].aligned(_names(index_shape), index_shape)) for d in given]
    found = _equations(positions, index_shape)
    if found is None or any(not at.at_least(0) or not at.below(x.shape[d]) for d, at in zip(given, positions) if at is not None):
        return None
    chosen = {e.unknown: (d, e) for d, e in zip(given, found) if e.unknown is not None}
    fixed = {d: e.at for d, e in zip(given, found) if e.unknown is None}
    summed = [t for t, n in enumerate(index_shape) if t not in chosen and n > 1]
    looked = prod(x.shape[d] for d, _ in chosen.values()) * prod(index_shape[t] for t in summed)
    if looked > MOST_READS * prod(index_shape):
        return None

    def expression(i: list[Index]) -> str:
        def body(k: Sequence[Index]) -> str:
            t, tests = [ix.number(0) for _ in index_shape], []
            for d, index in zip(summed, k):
                t[d] = index
            for unknown, (d, equation) in chosen.items():
                (rest, by), extent = equation.solution(i[d], t), index_shape[unknown]
                write = rest // by
                tests += [f"{(rest % by).sum_text()} == 0"] if by > 1 else []
                tests += [f"{rest.sum_text()} >= 0"] if not rest.at_least(0) else []
                tests += [f"{rest.sum_text()} < {extent * by}"] if not rest.below(extent * by) else []
                t[unknown] = ix.within(write, extent)
            text = value(i, t)
            return f"({text} if {' and '.join(tests)} else 0)" if tests else text

        added = f"{before(i)} + {reduction('sum', [index_shape[d] for d in summed], body) if summed else body([])}"
        here = [f"{i[d].sum_text()} == {at}" for d, at in fixed.items() if x.shape[d] > 1]
        return f"{added} if {' and '.join(here)} else {before(i)}" if here else added

    return call.emit(call.shape, call.dtype, expression)


def _names(index_shape: Sequence[int]) -> list[Index]:
    return [ix.name(f"t{d}", n) if n > 1 else ix.number(0) for d, n in enumerate(index_shape)]


@dataclass(frozen=True)
class _Equation:
    """A position that is `at` plus `steps` times indices of a write, of which it decides the one that is `unknown`."""

    at: int
    steps: Mapping[int, int]
    unknown: int | None

    def solution(self, position: Index, t: Sequence[Index]) -> tuple[Index, int]:
        """The unknown index of the write whose position this is, by its other indices: a sum, and what it is divided by."""
        rest = position - self.at
        for d, by in self.steps.items():
            if d != self.unknown:
                rest = rest - t[d] * by
        by = 1 if self.unknown is None else self.steps[self.unknown]
        return (rest, by) if by > 0 else (-rest, -by)


def _equations(positions: Sequence[Index | None], index_shape: Sequence[int]) -> list[_Equation] | None:
    """Each position, with the index of a write that it decides: one that no other position has."""
    steps = [_steps(at, index_shape) for at in positions if at is not None]
    if len(steps) < len(positions):
        return None
    found: list[_Equation] = []
    for k, (at, own) in enumerate(zip(positions, steps)):
        if at is None or own is None:
            return None
        others = {d for n, other in enumerate(steps) if n != k and other is not None for d in other}
        free = sorted((-abs(by), d) for d, by in own.items() if d not in others)
        if own and not free:
            return None
        found.append(_Equation(at.term.number, own, free[-1][1] if free else None))
    return found


def _steps(at: Index, index_shape: Sequence[int]) -> dict[int, int] | None:
    """By how much a position grows with each index of a write; None where it is no sum of these."""
    steps, rest = dict[int, int](), at.term
    for d, name in enumerate(_names(index_shape)):
        by = factor(rest, name.term) if name.constant is None else term(0)
        if by is None or by.constant is None:
            return None
        if by.constant:
            steps[d], rest = by.constant, rest - by * name.term
    return steps if rest.constant is not None else None
