"""A program that serves all sizes of a class, at some of them: its amounts become numbers, and its kernels stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.core.varying import number
from tilec.runtime.program import Emitted, KernelSource
from tilec.runtime.temporaries import allocate


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
