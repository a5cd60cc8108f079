"""Tables of 64-bit words that Python fills in and the machine code of `runtime/cpu_native.py` reads."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from enum import IntEnum, auto
from typing import Any

NODE = 128  # bytes of a workspace's head, whose first word links it to the next free one


class _Fields(IntEnum):
    @staticmethod
    def _generate_next_value_(name, start, count, last_values) -> int:  # type: ignore[override]
        return count


class Program(_Fields):
    """`offsets` of temporaries, in the workspace of `workspace` bytes; `free` heads the list of workspaces, `allocate()` makes
    one; `fail(code)` raises the error of a run-time check."""

    steps = auto()
    step_list = auto()
    arrays = auto()
    temporaries = auto()
    offsets = auto()
    parameters = auto()  # the most that a step has
    workspace = auto()
    free = auto()
    allocate = auto()
    fail = auto()
    pool = auto()


class Step(_Fields):
    """`loop` 0 copies `bytes` from the first slot to the second. `scratch` is an offset in the workspace."""

    loop = auto()
    bytes = auto()
    parameters = auto()
    slots = auto()
    grid = auto()
    scratch = auto()
    stride = auto()


class DeviceProgram(_Fields):
    """Kernels on GPU number `device`; the driver's functions `current` (cuCtxGetDevice) and `launch` (cuLaunchKernelEx);
    `fail(code)` raises the driver's error."""

    device = auto()
    current = auto()
    launch = auto()
    steps = auto()
    step_list = auto()
    parameters = auto()  # the most that a step has
    fail = auto()


class DeviceStep(_Fields):
    """`config`: a CUlaunchConfig that lacks the stream. All parameters are addresses."""

    config = auto()
    kernel = auto()
    parameters = auto()
    slots = auto()


class Pool(_Fields):
    """Numba's threads: `parallel_for` is 0 before they start; `lost()` after a fork."""

    parallel_for = auto()
    threads = auto()
    lock = auto()
    lost = auto()


class Call(_Fields):
    """`execute(program, memory, stream)` runs the program on `words` words, of which the first are addresses of inputs and
    outputs. `kind`: the arrays' type; `describe` 0 for NumPy, else the exchange API's function. `device`: DLPack's type and
    number. `current`: 0, or the exchange API's function that tells the stream; `handle(stream)` gives that of an object.
    `new`: what allocates each result, `wrap` makes of several one; `no` is returned where the arrays do not fit."""

    execute = auto()
    program = auto()
    words = auto()
    device = auto()
    current = auto()
    handle = auto()
    kind = auto()
    describe = auto()
    inputs = auto()
    outputs = auto()
    specs = auto()
    new = auto()
    wrap = auto()
    no = auto()
    requires_grad = auto()  # names of attributes
    is_neg = auto()
    records = auto()  # whether gradients are recorded
    none = auto()  # objects of Python's
    false = auto()
    tuple = auto()
    list = auto()


class Spec(_Fields):
    """An array that fits: `dtype` as its kind writes it, `mask` of the address' low bits, needed `flags` of NumPy's."""

    dtype = auto()
    order = auto()
    mask = auto()
    bytes = auto()
    flags = auto()
    rank = auto()
    shape = auto()


class Keep:
    """Tables and what they hold addresses of, which live as long as this."""

    def __init__(self) -> None:
        self._all: list[Any] = []

    def object(self, value: Any) -> int:
        """A Python object's address."""
        self._all.append(value)
        return id(value)

    def words(self, values: Sequence[int]) -> int:
        """The address of a row of words."""
        row = (ctypes.c_int64 * max(1, len(values)))(*values)
        self._all.append(row)
        return ctypes.addressof(row)

    def table(self, fields: type[_Fields], /, **values: int) -> int:
        """The address of a table of this kind; what is not named is 0."""
        return self.words([values.get(field.name, 0) for field in fields])
