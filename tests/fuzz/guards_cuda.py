"""Canary bytes on a GPU: around arguments, results and temporaries.

Everything is queued on the caller's stream: work on another one may go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fuzz.guards import MARGIN, Overrun, apart, canary
from tilec.core.dtypes import from_numpy
from tilec.driver.cuda_executable import CudaExecutable
from tilec.driver.devices import Gpu, Outputs
from tilec.runtime.buffers import Buffer
from tilec.runtime.cuda import driver
from tilec.runtime.cuda.arena import Arena
from tilec.runtime.cuda.program import DeviceProgram


class DeviceGuarded:
    """Memory of a device with canaries around it, as `guards.Guarded` has it on the host."""

    def __init__(self, device: int = 0, stream: int = 0):
        driver.use_device(device)
        self.stream, self.memory = stream, []
        self._around: list[tuple[str, int, int, int]] = []  # names, addresses and bytes of canaries, and what they are

    def __enter__(self) -> DeviceGuarded:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for pointer in self.memory:
            driver.release(pointer)
        self.memory, self._around = [], []

    def empty(self, name: str, count: int) -> int:
        """The address of `count` bytes of canaries."""
        most = -(-count // 16) * 16 + 2 * MARGIN
        pointer = self.own(driver.allocate(most))
        begin = pointer + MARGIN
        own = self._fill(pointer, most)
        self._around.append((f"before {name}", pointer, MARGIN, own))
        self._around.append((f"behind {name}", begin + count, most - MARGIN - count, own))
        return begin

    def copy(self, name: str, source: int, count: int) -> int:
        """The address of a copy of bytes of the device."""
        made = self.empty(name, count)
        if count:
            driver.call("cuMemcpyDtoDAsync", made, source, count, self.stream)
        return made

    def own(self, pointer: int) -> int:
        """Memory of the driver's, to be freed with the rest."""
        self.memory.append(pointer)
        return pointer

    def watch(self, name: str, pointer: int, count: int) -> None:
        """Bytes that become canaries, and are to stay so."""
        self._around.append((name, pointer, count, self._fill(pointer, count)))

    def _fill(self, pointer: int, count: int) -> int:
        own = canary(len(self._around))
        driver.call("cuMemsetD8Async", pointer, own, count, self.stream)
        return own

    def read(self, pointer: int, count: int) -> np.ndarray:
        """Bytes, after all that was queued."""
        found = np.empty(count, np.uint8)
        driver.synchronize_stream(self.stream)
        if count:
            driver.call("cuMemcpyDtoH", found.ctypes.data, pointer, count)
        return found

    def check(self) -> None:
        for name, pointer, count, own in self._around:
            found = self.read(pointer, count)
            if len(wrong := np.flatnonzero(found != own)):
                where = f"{count - wrong[-1]} bytes before" if name.startswith("before") else f"{wrong[0]} bytes on"
                raise Overrun(f"{len(wrong)} bytes were written {name}, {where}")


class GuardedDeviceProgram(DeviceProgram):
    """A program whose temporaries lie apart. The host waits for its run-time checks."""

    def __init__(self, executable: CudaExecutable, device: int, guarded: DeviceGuarded):
        self._guarded, self._emitted = guarded, apart(executable.emitted, MARGIN, MARGIN)
        super().__init__(self._emitted, executable.cubins, executable.steps, device)

    def _arena(self, stream: int, capture: int) -> Arena:
        return GuardedArena(self._guarded)

    def _memory(self, size: int) -> int:
        address = self._guarded.empty("what stays clear", size)
        driver.synchronize_stream(self._guarded.stream)  # it is cleared by another one
        return address

    def _addresses(self, memory: Arena) -> list[int]:
        addresses, guarded, free = super()._addresses(memory), self._guarded, 0
        shared = [n for n, t in enumerate(self._emitted.temporaries) if not t.stays_clear]
        if len(shared) > 1:  # the last is behind all that the program uses
            *used, last = shared
            begin = addresses[last] - self._emitted.temporaries[last].offset
            for number in used:
                t, name = self._emitted.temporaries[number], f"behind temporary {number - 1}" if free else "before the temporaries"
                guarded.watch(name, begin + free, t.offset - free)
                free = t.end
            guarded.watch(f"behind temporary {used[-1]}", begin + free, self._emitted.workspace - free)
        return addresses


class GuardedArena(Arena):
    """For one call of a program."""

    def __init__(self, guarded: DeviceGuarded):
        super().__init__(0)
        self._guarded = guarded

    def take(self, size: int) -> int:
        return self._guarded.empty("temporaries", size)


def run_guarded(
    executable: CudaExecutable, inputs: Sequence[Buffer], device: int = 0, stream: int = 0
) -> dict[str, np.ndarray]:
    """The bytes of the results by name, of row-major arrays on a device. Raises Overrun, and CheckError for what a run-time
    check found."""
    with DeviceGuarded(device, stream) as guarded:
        names = [f"argument {name}" for name, _, _ in executable.compiled.inputs]
        given = [guarded.copy(n, b.pointer, b.nbytes) for n, b in zip(names, inputs, strict=True)]
        sizes = {n: int(np.prod(shape, dtype=np.int64)) * dtype.bytes for n, dtype, shape in executable.outputs}
        made = {name: guarded.empty(f"result {name}", count) for name, count in sizes.items()}
        try:
            GuardedDeviceProgram(executable, device, guarded).launch(given, list(made.values()), stream)
        finally:
            guarded.check()
        for name, pointer, buffer in zip(names, given, inputs):
            if not np.array_equal(guarded.read(pointer, buffer.nbytes), guarded.read(buffer.pointer, buffer.nbytes)):
                raise Overrun(f"{name} was written")
        return {name: guarded.read(pointer, sizes[name]) for name, pointer in made.items()}


class GuardedGpu(Gpu):
    """Memory of device 0 with canaries on both sides of every array, and in results before they are written."""

    def __init__(self, inputs: dict[str, np.ndarray], outputs: Outputs):
        self._guarded, self._given = DeviceGuarded(), list(inputs.values())
        super().__init__(inputs, outputs)

    def allocate(self, array: np.ndarray) -> Buffer:
        begin = self._guarded.empty(f"array {len(self._guarded.memory)}", array.nbytes)
        strides = tuple(s // array.itemsize for s in array.strides)
        return Buffer(begin, array.shape, strides, from_numpy(array.dtype), 0, False, None)

    def run(self, executable: CudaExecutable) -> None:
        """Raises Overrun."""
        program = GuardedDeviceProgram(executable, 0, self._guarded)
        try:
            program.launch([b.pointer for b in self.inputs], [b.pointer for b in self.outputs], 0)
        finally:
            self._guarded.check()
        for number, (array, buffer) in enumerate(zip(self._given, self.inputs)):
            if self._guarded.read(buffer.pointer, array.nbytes).tobytes() != array.tobytes():
                raise Overrun(f"argument {number} was written")

    def close(self) -> None:
        self._guarded.close()
