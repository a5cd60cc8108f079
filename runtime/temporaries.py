"""Where a program's temporaries lie: in its workspace, or in memory of results that are not written yet."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilec.runtime.program import Emitted, Slot, Step, Temporary

ALIGN = 256  # bytes


@dataclass(frozen=True)
class Host:
    """An array in whose `bytes` temporaries may lie that no step needs from the step `until` on."""

    slot: Slot
    bytes: int
    until: int


def uses_of(steps: Sequence[Step]) -> dict[Slot, tuple[int, int]]:
    """The first and the last step of each array."""
    found: dict[Slot, tuple[int, int]] = {}
    for position, step in enumerate(steps):
        for slot in step.slots:
            found[slot] = found.get(slot, (position, position))[0], position
    return found


def allocate(
    sizes: Sequence[int], steps: Sequence[Step], lasting: Collection[int] = (), hosts: Sequence[Host] = ()
) -> tuple[Temporary, ...]:
    """Where each temporary lies: two that are never needed at the same step may share memory. `lasting`: those that stay clear from
    call to call, and share none.

    The largest first, each at the lowest offset that is free for as long as it lives. One that would make the workspace larger lies
    in the smallest of the `hosts` that has room for it.
    """
    uses, always = uses_of(steps), (0, len(steps))
    lives = [always if n in lasting else uses.get(Slot("temporary", n), always) for n in range(len(sizes))]
    first, last = np.array(lives, np.int64).reshape(-1, 2).T
    offsets, ends = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.int64)
    areas = np.full(len(sizes), -1)  # 0 is the workspace, the others are hosts; -1 none yet
    workspace, by_size = 0, sorted(enumerate(hosts, 1), key=lambda host: host[1].bytes)

    def lowest(n: int, area: int) -> int:
        """The lowest offset in an area that is free for a temporary."""
        (others,) = np.nonzero((areas == area) & (first <= last[n]) & (first[n] <= last))
        others = others[np.argsort(offsets[others], kind="stable")]
        free = np.maximum.accumulate(np.append(0, -(-ends[others] // ALIGN) * ALIGN))  # above the first so many of the others
        (fits,) = np.nonzero(free[:-1] + sizes[n] <= offsets[others])
        return int(free[fits[0] if len(fits) else -1])

    def area_of(n: int) -> tuple[int, int]:
        """The area of a temporary, and its offset there."""
        offset = lowest(n, 0)
        if offset + sizes[n] > workspace:
            for area, host in by_size:
                if sizes[n] <= host.bytes and last[n] < host.until and lowest(n, area) + sizes[n] <= host.bytes:
                    return area, lowest(n, area)
        return 0, offset

    for n in sorted(range(len(sizes)), key=lambda n: (-sizes[n], n)):
        areas[n], offsets[n] = area, offset = area_of(n)
        ends[n] = offset + sizes[n]
        workspace = max(workspace, int(ends[n])) if area == 0 else workspace
    within = [hosts[area - 1].slot if area else None for area in areas]
    return tuple(Temporary(size, int(offsets[n]), n in lasting, within[n]) for n, size in enumerate(sizes))


def results_as_scratch(emitted: Emitted, outputs: Mapping[int, int]) -> Emitted:
    """The program with temporaries in memory of its results, too, as long as these are not written. `outputs`: numbers of those
    that are no input's memory, and how many bytes each has."""
    uses = uses_of(emitted.steps)
    results = ((Slot("output", number), size) for number, size in outputs.items())
    hosts = [Host(slot, size, uses[slot][0]) for slot, size in results if slot in uses]
    lasting = [n for n, t in enumerate(emitted.temporaries) if t.stays_clear]
    return replace(emitted, temporaries=allocate([t.bytes for t in emitted.temporaries], emitted.steps, lasting, hosts))
