"""A program that serves all sizes of a class, at some of them: its amounts become numbers, and its kernels stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.core.amounts import largest, rounded_up
from tilec.core.varying import number
from tilec.runtime.program import Amount, Emitted, KernelSource, Slot
from tilec.runtime.temporaries import ALIGN, allocate, uses_of


def at(emitted: Emitted, sizes: Mapping[str, int]) -> Emitted:
    """The program at these sizes."""

    def kernel(k: KernelSource) -> KernelSource:
        maps = tuple(replace(m, shape=tuple(number(n, sizes) for n in m.shape)) for m in k.maps)
        return replace(k, grid=number(k.grid, sizes), scratch=number(k.scratch, sizes), maps=maps)

    steps = tuple(
        replace(s, bytes=number(s.bytes, sizes), sizes=tuple(number(n, sizes) for n in s.sizes)) for s in emitted.steps
    )
    lasting = [n for n, t in enumerate(emitted.temporaries) if t.stays_clear]
    temporaries = allocate([number(t.bytes, sizes) for t in emitted.temporaries], steps, lasting)
    return replace(emitted, kernels=tuple(map(kernel, emitted.kernels)), steps=steps, temporaries=temporaries)


def with_offsets(emitted: Emitted, typical: Mapping[str, int]) -> tuple[Emitted, dict[str, Amount]]:
    """The program with names for where its temporaries lie, and what these are: each depends on those before it.

    Of two that are needed at one step, one lies above the other at typical sizes, and so it does at all sizes.
    """
    count = len(emitted.temporaries)
    uses, always = uses_of(emitted.steps), (0, len(emitted.steps))
    lives = [always if t.stays_clear else uses.get(Slot("temporary", n), always) for n, t in enumerate(emitted.temporaries)]
    low = [t.offset for t in at(emitted, typical).temporaries]
    found: dict[int, Amount] = {}
    for n in sorted(range(count), key=lambda n: (low[n], n)):
        below = (k for k in found if lives[k][0] <= lives[n][1] and lives[n][0] <= lives[k][1])
        found[n] = largest(0, *(rounded_up(f"offset_{k} + ({emitted.temporaries[k].bytes})", ALIGN) for k in below))
    temporaries = tuple(replace(t, offset=f"offset_{n}") for n, t in enumerate(emitted.temporaries))
    return replace(emitted, temporaries=temporaries), {f"offset_{n}": amount for n, amount in found.items()}
