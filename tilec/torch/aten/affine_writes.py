"""Writes to positions that are sums of indices, read from the other side: an element knows which writes it gets.

    y[h, r] = x[h, r] + sum[b, i](v[b, h, i, i - r + c] if 0 <= i - r + c < N)        of v[b, h, i, j] at h and i - j + c

So are the gradients of a bias that is read at positions, of a slope for each head, and of a table of distances.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from tilec.torch import indices as ix
from tilec.torch.aten.table import Call
from tilec.torch.indices import Index
from tilec.torch.program import Tensor, reduction

Value = Callable[[Sequence[Index], Sequence[Index]], str]
MOST_READS = 4
"""How many times as many values as there are writes elements may look at."""


def solved(call: Call, x: Tensor, given: Mapping[int, Tensor], together: Sequence[int], before: Callable[[Sequence[Index]], str],
           value: Value) -> Tensor | None:  # fmt: skip
    """The tensor after `value(i, t)` was added at the positions `given` for each dimension; None where these are no sums of
    indices, or do not tell which writes an element gets."""
    found = _equations([given[d].index_at(*given[d].aligned(_names(together), together)) for d in given], together)
    if found is None or any(at.range[0] < 0 or at.range[1] >= x.shape[d] for d, (at, _) in zip(given, found)):
        return None
    chosen = {unknown: (d, at) for d, (at, unknown) in zip(given, found) if unknown is not None}
    fixed = {d: at.constant for d, (at, unknown) in zip(given, found) if unknown is None}
    summed = [t for t, n in enumerate(together) if t not in chosen and n > 1]
    looked = prod(x.shape[d] for d, _ in chosen.values()) * prod(together[t] for t in summed)
    if looked > MOST_READS * prod(together):
        return None

    def expression(i: list[Index]) -> str:
        def body(k: Sequence[Index]) -> str:
            t, tests = [ix.number(0) for _ in together], []
            for d, index in zip(summed, k):
                t[d] = index
            for unknown, (d, at) in chosen.items():
                (rest, by), extent = _solution(at, unknown, i[d], t), together[unknown]
                write = rest // by
                tests += [f"{(rest % by).sum_text()} == 0"] if by > 1 else []
                tests += [f"{rest.sum_text()} >= 0"] if rest.range[0] < 0 else []
                tests += [f"{rest.sum_text()} < {extent * by}"] if rest.range[1] >= extent * by else []
                t[unknown] = ix.within(write, extent)
            text = value(i, t)
            return f"({text} if {' and '.join(tests)} else 0)" if tests else text

        added = f"{before(i)} + {reduction('sum', [together[d] for d in summed], body) if summed else body([])}"
        here = [f"{i[d].sum_text()} == {at}" for d, at in fixed.items() if x.shape[d] > 1]
        return f"{added} if {' and '.join(here)} else {before(i)}" if here else added

    return call.emit(call.shape, call.dtype, expression)


def _names(together: Sequence[int]) -> list[Index]:
    return [Index(((ix.Atom(f"t{d}", (0, n - 1)), 1),)) if n > 1 else ix.number(0) for d, n in enumerate(together)]


def _equations(positions: Sequence[Index | None], together: Sequence[int]) -> list[tuple[Index, int | None]] | None:
    """Each position, with the index of a write that it decides: one that no other position has."""
    known = {index.terms[0][0]: d for d, index in enumerate(_names(together)) if index.terms}
    if any(at is None or any(atom not in known for atom, _ in at.terms) for at in positions):
        return None
    found: list[tuple[Index, int | None]] = []
    for k, at in enumerate(positions):
        assert at is not None
        others = {atom for n, other in enumerate(positions) if n != k and other is not None for atom, _ in other.terms}
        own = sorted((-abs(factor), known[atom]) for atom, factor in at.terms if atom not in others)
        if at.terms and not own:
            return None
        found.append((at, own[-1][1] if own else None))
    return found


def _solution(at: Index, unknown: int, position: Index, t: Sequence[Index]) -> tuple[Index, int]:
    """The index `unknown` of the write whose position this is, by the write's other indices: a sum, and what it is divided by."""
    rest, factor = position - at.constant, 1
    for atom, step in at.terms:
        d = int(atom.text[1:])
        if d == unknown:
            factor = step
        else:
            rest = rest - t[d] * step
    return (rest, factor) if factor > 0 else (-rest, -factor)
