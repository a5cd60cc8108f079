"""The cost of a contraction on a CPU by its blocks for caches. Problems `p` are those of `tilec/cost/contraction.py`."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from tilec.core.target import Target
from tilec.cost.contraction import Contraction
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


def cpu_contraction(target: Target, p: Contraction, tile: CacheTile) -> Work:
    """A goes to L2 once per panel of B, C in and out once per kc; a load, even of a scalar, is a vector's."""
    core = target.core
    assert core is not None
    vectors = ceil(tile.nr * max(4, p.bytes) / core.simd_bytes)
    m, n = round_up(p.m, tile.mc), round_up(p.n, tile.nr)  # others wait for whole blocks
    flops = 2.0 * p.batch * m * n * p.k
    a, b, c = p.m * p.k * p.bytes, p.k * p.n * p.bytes, p.m * p.n * p.out_bytes
    steps = p.batch * ceil(m / tile.mr) * (n // tile.nr) * p.k
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
