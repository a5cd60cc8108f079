"""Host arrays in the form that CPU kernels take: contiguous, row-major."""

from __future__ import annotations

import numpy as np

from tilec.runtime.buffers import Buffer, view, wrap


def contiguous(buffer: Buffer) -> Buffer:
    """The buffer itself, or a row-major copy of it."""
    return buffer if buffer.contiguous else view(np.ascontiguousarray(wrap(buffer)))


def scratch_like(buffer: Buffer) -> Buffer:
    return view(np.empty(buffer.shape, buffer.dtype.numpy))


def assign(target: Buffer, source: Buffer) -> None:
    wrap(target)[...] = wrap(source)


def allocate(count: int) -> tuple[np.ndarray, int]:
    """Bytes that start on a cache line, and their address."""
    raw = np.empty(count + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw, raw.ctypes.data + start
