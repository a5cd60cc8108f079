"""Canary bytes on a GPU: around arguments, results and temporaries."""

from __future__ import annotations

import ctypes

import numpy as np

from fuzz.guards import CANARY, MARGIN, Overrun, apart
from tilec.cuda_executable import CudaExecutable
from tilec.dtypes import from_numpy
from tilec.run_device import Gpu, Outputs
from tilec.runtime.buffers import Buffer


class GuardedGpu(Gpu):
    """Memory of device 0 with canaries on both sides of every array, and in results before they are written."""

    def __init__(self, inputs: dict[str, np.ndarray], outputs: Outputs):
        self._watched: list[tuple[int, int]] = []  # addresses and bytes of canaries
        super().__init__(inputs, outputs)

    def allocate(self, array: np.ndarray) -> Buffer:
        inner = -(-array.nbytes // 16) * 16
        raw = super().allocate(np.empty(inner + 2 * MARGIN, np.uint8))
        self.fill(raw.pointer, inner + 2 * MARGIN)
        begin, strides = raw.pointer + MARGIN, tuple(s // array.itemsize for s in array.strides)
        self._watched += [(raw.pointer, MARGIN), (begin + array.nbytes, MARGIN + inner - array.nbytes)]
        return Buffer(begin, array.shape, strides, from_numpy(array.dtype), 0, False, None)

    def run(self, executable: CudaExecutable) -> None:
        """On temporaries that lie apart. Raises Overrun."""
        executable.emitted = apart(executable.emitted, MARGIN, MARGIN)
        executable.__dict__.pop("steps", None)
        program, emitted = executable.on(0), executable.emitted
        if not emitted.temporaries:
            super().run(executable)
            self.check()
            return
        memory = program._space(0).memory
        self.fill(memory, emitted.workspace)
        free = 0
        for t in emitted.temporaries[:-1]:
            self._watched.append((memory + free, t.offset - free))
            free = t.end
        self._watched.append((memory + free, emitted.workspace - free))
        try:
            super().run(executable)
            self.check()
        finally:
            self.driver.library().cuMemFree_v2(ctypes.c_uint64(memory))

    def fill(self, pointer: int, count: int) -> None:
        self.driver.call("cuMemsetD8_v2", ctypes.c_uint64(pointer), ctypes.c_ubyte(CANARY), ctypes.c_size_t(count))

    def check(self) -> None:
        self.driver.synchronize_stream(0)
        for number, (pointer, count) in enumerate(self._watched):
            found = np.empty(count, np.uint8)
            host = ctypes.c_void_p(found.ctypes.data)
            self.driver.call("cuMemcpyDtoH_v2", host, ctypes.c_uint64(pointer), ctypes.c_size_t(count))
            if len(wrong := np.flatnonzero(found != CANARY)):
                raise Overrun(
                    f"{len(wrong)} bytes were written beside array {number // 2}, {wrong[0]} bytes into the gap"
                )
