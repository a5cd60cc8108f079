from __future__ import annotations
from dataclasses import replace
from tilec.passes.layout import make, options
def choose(kernel, g, graph, target):
    n=len(kernel.extents)
    tile={d:1 for d in kernel.grid}
    ext=[tile.get(d, kernel.extents[d]) for d in range(n)]
    last=n-1
    threads=[1]*n; vectors=[1]*n; steps=[4]*n
    threads[last]=256 if kernel.extents[last]>256 else 32
    if last in tile: tile[last]=ext[last]=min(kernel.extents[last],threads[last]*4)
    lay=make(ext,[last],threads,vectors,steps)
    return replace(kernel, tile=tuple(tile[d] for d in kernel.grid), options=options(lay)|{"keep":1}), []
