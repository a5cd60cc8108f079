"""The registers that a kernel is compiled with: the planned limit, or what it takes not to spill.

A multiprocessor's registers and those of a thread: CUDA C++ programming guide, technical specifications by compute capability.
"""

from __future__ import annotations

REGISTERS = 65536  # of a multiprocessor; a thread gets a multiple of 8, at most MOST
MOST = 248


def limits(registers: int, threads: int) -> list[int | None]:
    """Limits to try in order: each is the largest limit with which a given number of blocks fits a multiprocessor. None: as many as
    it takes."""
    tried = [registers]
    for more in (8, 16, 32):
        blocks = REGISTERS // (threads * (registers + more))
        if blocks and (most := min(REGISTERS // (threads * blocks) // 8 * 8, MOST)) > tried[-1]:
            tried.append(most)
    return [*tried, None]


def compiled(limit: int | None, threads: int, least: int, wanted: int) -> int:
    """Of a thread that spills with fewer than `least`, and has no use for more than `wanted`."""
    most = min(MOST, REGISTERS // threads // 8 * 8)
    tried = limits(limit, threads) if limit else [None]
    enough = next(n for n in tried if n is None or n >= least)
    return max(16, min(max(least, wanted), most if enough is None else enough))
