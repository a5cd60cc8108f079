"""Contractions on a CPU: blocks for its caches, and their cost. Problems `p` are those of `tilec/cost/contraction.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

from tilec.core.target import Target
from tilec.cost.model import Work, round_up


@dataclass(frozen=True)
class CacheTile:
    """CPU blocking in Goto's terms: an `mr` x `nr` tile of C in registers, a `kc` x `nr` panel of B in L1, an
    `mc` x `kc` block of A in L2, a `kc` x `nc` panel of B in L3 (or memory).
    """

    mc: int
    kc: int
    nc: int
    mr: int
    nr: int


def cache_tiles(target: Target, p: Any) -> Iterator[CacheTile]:
    """Low et al. 2016: mr x nr fills the registers and hides the FMA latency, kc fits L1, mc L2, nc L3.

    L1 holds a panel of B and two of A (one in use, one coming); L2 gives two of its ways, L3 half, to what
    streams by.
    """
    core, l1, l2 = target.core, target.l1, target.l2
    assert core is not None and l1 is not None
    size, lanes = max(4, p.bytes), core.simd_bytes // max(4, p.bytes)
    outer = target.l3.bytes // 2 if target.l3 else 1 << 23
    for v in (1, 2, 3, 4):
        highest = (core.vector_registers - 1 - v) // v
        nr = v * lanes
        for mr in {highest, highest - highest % 2, highest - highest % 4, min(highest, p.m)} - {0}:
            deepest = l1.bytes // ((nr + 2 * mr) * size)
            for kc in {min(p.k, max(32, deepest // part // 8 * 8)) for part in (1, 2)}:
                most = max(mr, l2.bytes * max(1, l2.ways - 2) // l2.ways // (kc * size) // mr * mr)
                nc = max(nr, min(round_up(p.n, nr), outer // (kc * size) // nr * nr))
                even = (round_up(ceil(p.m / (target.units * part)), mr) for part in (1, 2, 4, 8))
                for mc in {min(most, round_up(p.m, mr)), *(min(most, rows) for rows in even)}:
                    yield CacheTile(mc, kc, nc, mr, nr)


def cpu_contraction(target: Target, p: Any, tile: CacheTile) -> Work:
    """A goes to L2 once per panel of B, C in and out once per kc; a load, even of a scalar, is a vector's."""
    core = target.core
    assert core is not None
    vectors = tile.nr * max(4, p.bytes) // core.simd_bytes
    m, n = round_up(p.m, tile.mc), round_up(p.n, tile.nr)  # others wait for whole blocks
    flops = 2.0 * p.batch * m * n * p.k
    a, b, c = p.m * p.k * p.bytes, p.k * p.n * p.bytes, p.m * p.n * p.out_bytes
    steps = p.batch * (m // tile.mr) * (n // tile.nr) * p.k
    passes = ceil(p.k / tile.kc)
    other = {u: v * p.batch * p.m * p.n for u, v in p.epilogue.items()}
    return Work(
        dram_read=p.batch * (a * ceil(p.n / tile.nc) + 2 * b + c * (passes - 1 + p.reads / p.out_bytes)),
        dram_write=p.batch * (b + c * passes),
        l2_bytes=p.batch * a * (n // tile.nr),
        shared_bytes=steps * (vectors + tile.mr) * core.simd_bytes,
        flops={
            p.vector_unit: flops,
            **{u: v + (flops if u == p.vector_unit else 0) for u, v in other.items()},
        },
        blocks=p.batch * ceil(p.m / tile.mc) * ceil(p.n / tile.nc),
        lanes=min(1.0, tile.mr * vectors / (core.fma_units * core.fma_latency)),
        working_set=p.batch * (a + 2 * b + c),
    )
