"""The memory of `tilec run` without an array package: NumPy's on the CPU, the driver's on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from tilec.core.diagnostics import CallError
from tilec.core.dtypes import DType, from_numpy
from tilec.runtime.buffers import Buffer, view

if TYPE_CHECKING:
    from tilec.driver.executable import Executable

Outputs = Sequence[tuple[str, DType, tuple[int, ...]]]


@contextmanager
def open_device(kind: str, inputs: dict[str, np.ndarray], outputs: Outputs) -> Iterator[Host]:
    """Inputs on the device, and room for the outputs."""
    device = Host(inputs, outputs) if kind == "cpu" else Gpu(inputs, outputs)
    try:
        yield device
    finally:
        device.close()


class Host:
    """Arrays in this process."""

    def __init__(self, inputs: dict[str, np.ndarray], outputs: Outputs):
        self.arrays = {name: np.empty(shape, dtype.numpy) for name, dtype, shape in outputs}
        self.inputs = [view(a) for a in inputs.values()]
        self.outputs = [view(a) for a in self.arrays.values()]

    def run(self, executable: Executable) -> None:
        executable.run(self.inputs, self.outputs, None)

    def time(self, executable: Executable, repeats: int) -> list[float]:
        seconds = []
        for _ in range(repeats):
            start = perf_counter()
            self.run(executable)
            seconds.append(perf_counter() - start)
        return seconds

    def results(self) -> dict[str, np.ndarray]:
        return self.arrays

    def close(self) -> None:
        pass


class Gpu(Host):
    """Memory of device 0. Failures raise the driver's own errors."""

    def __init__(self, inputs: dict[str, np.ndarray], outputs: Outputs):
        from tilec.runtime.cuda import driver as cuda_driver

        self.driver = cuda_driver
        self.memory: list[int] = []
        self.driver.use_device(0)
        self.arrays = {name: np.empty(shape, dtype.numpy) for name, dtype, shape in outputs}
        try:
            self.inputs = [self.upload(np.ascontiguousarray(a)) for a in inputs.values()]
            self.outputs = [self.allocate(a) for a in self.arrays.values()]
        except BaseException:
            self.close()
            raise

    def allocate(self, array: np.ndarray) -> Buffer:
        try:
            pointer = self.driver.allocate(max(1, array.nbytes))
        except self.driver.OutOfMemory:
            what = f"the GPU's memory is full: {array.nbytes} bytes more are too many"
            raise CallError(what, hint="give smaller sizes with -D") from None
        self.memory.append(pointer)
        strides = tuple(s // array.itemsize for s in array.strides)
        dtype = from_numpy(array.dtype)
        assert dtype is not None, "a type of the language"
        return Buffer(pointer, array.shape, strides, dtype, 0, False, None)

    def upload(self, array: np.ndarray) -> Buffer:
        buffer = self.allocate(array)
        self.driver.call("cuMemcpyHtoD", buffer.pointer, array.ctypes.data, array.nbytes)
        return buffer

    def run(self, executable: Executable) -> None:
        executable.run(self.inputs, self.outputs, 0)

    def time(self, executable: Executable, repeats: int) -> list[float]:
        from tilec.runtime.cuda.launch import time_kernel

        return time_kernel(lambda stream: executable.run(self.inputs, self.outputs, stream), repeats=repeats)

    def results(self) -> dict[str, np.ndarray]:
        self.driver.synchronize_stream(0)
        for array, buffer in zip(self.arrays.values(), self.outputs):
            self.driver.call("cuMemcpyDtoH", array.ctypes.data, buffer.pointer, array.nbytes)
        return self.arrays

    def close(self) -> None:
        for pointer in self.memory:
            self.driver.release(pointer)
        self.memory = []
