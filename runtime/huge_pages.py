"""Huge pages of Linux for large results on the CPU.

The first write to a page of new memory is a page fault: for results of some megabytes the faults of 4 KiB pages take longer than
the kernel. NumPy asks for huge pages, of 2 MiB, from 4 MiB on; PyTorch does not, so it is asked for here.
Source: Linux, Documentation/admin-guide/mm/transhuge.rst; madvise(2).
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

LEAST_BYTES = 1 << 22  # NumPy's threshold


@cache
def _madvise() -> Callable[[int, int, int], int] | None:
    """The function of the C library, or None where the system has no such pages."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    return function


def advised(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor; on the CPU its whole pages are to be huge ones. A system that has none ignores it."""
    advise, size = _madvise(), tensor.nbytes
    if advise is not None and size >= LEAST_BYTES and tensor.is_cpu:
        pointer = tensor.data_ptr()
        start = -(-pointer // mmap.PAGESIZE) * mmap.PAGESIZE
        advise(start, (pointer + size - start) // mmap.PAGESIZE * mmap.PAGESIZE, mmap.MADV_HUGEPAGE)
    return tensor


def allocator(new: Callable[[], torch.Tensor], nbytes: int) -> Callable[[], torch.Tensor]:
    """`new`, which allocates tensors of so many bytes on the CPU, with huge pages for large ones."""
    if nbytes < LEAST_BYTES or _madvise() is None:
        return new
    return lambda: advised(new())


__all__ = ["LEAST_BYTES", "advised", "allocator"]
