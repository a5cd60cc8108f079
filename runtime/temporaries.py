"""Where a program's temporaries lie in its workspace."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from tilec.runtime.program import Step, Temporary

ALIGN = 256  # bytes


def allocate(sizes: Sequence[int], steps: Sequence[Step], lasting: Collection[int] = ()) -> tuple[Temporary, ...]:
    """Where each temporary lies in one workspace: two that are never needed at the same step may share memory. `lasting`: those
    that stay clear from call to call, and share none.

    The largest first, each at the lowest offset that is free for as long as it lives.
    """
    lives: dict[int, tuple[int, int]] = {}
    for position, step in enumerate(steps):
        for slot in step.slots:
            if slot.kind == "temporary" and slot.number not in lasting:
                lives[slot.number] = (lives.get(slot.number, (position, position))[0], position)
    spans = np.array([lives.get(n, (0, len(steps))) for n in range(len(sizes))], np.int64).reshape(-1, 2)
    first, last = spans.T
    offsets, ends = np.zeros(len(sizes), np.int64), np.full(len(sizes), -1, np.int64)  # -1: has no place yet
    for n in sorted(range(len(sizes)), key=lambda n: (-sizes[n], n)):
        (others,) = np.nonzero((ends >= 0) & (first <= last[n]) & (first[n] <= last))
        others = others[np.argsort(offsets[others], kind="stable")]
        free = np.maximum.accumulate(np.append(0, -(-ends[others] // ALIGN) * ALIGN))  # above the first so many of the others
        (fits,) = np.nonzero(free[:-1] + sizes[n] <= offsets[others])
        offsets[n] = free[fits[0] if len(fits) else -1]
        ends[n] = offsets[n] + sizes[n]
    return tuple(Temporary(size, int(offset), n in lasting) for n, (size, offset) in enumerate(zip(sizes, offsets)))
