"""Calls of a GPU program by machine code (`runtime/cuda_native.py`): its tables."""

from __future__ import annotations

import ctypes
from typing import Any, NoReturn

from tilec.runtime import cpu_call
from tilec.runtime import cuda_driver as driver
from tilec.runtime.cpu_call import Runner
from tilec.runtime.cuda_dlpack import CUDA
from tilec.runtime.cuda_launch import stream_handle
from tilec.runtime.cuda_program import DeviceProgram
from tilec.runtime.native_tables import DeviceProgram as Table
from tilec.runtime.native_tables import DeviceStep, Keep


def runner(program: DeviceProgram, kind: type, arrays: int) -> Runner | None:
    """What runs a program on `arrays` tensors. None where machine code cannot: of this kind, or by this PyTorch; programs
    with memory between kernels, with tensor maps or run-time checks."""
    launches = program.launches(arrays)
    if launches is None or not cpu_call.possible(kind) or not (current := cpu_call.exchange(cpu_call.CURRENT_STREAM)):
        return None
    keep = Keep()

    def fail(code: int) -> NoReturn:
        launcher, _ = launches[code >> 32]
        raise driver.failure(f"launch of {launcher.kernel.entry}", code & 0xFFFFFFFF)

    steps = [
        keep.table(
            DeviceStep, config=launcher.config, kernel=launcher.kernel.handle.value or 0, parameters=len(slots),
            slots=keep.words(slots),
        )
        for launcher, slots in launches
    ]  # fmt: skip
    table = keep.table(
        Table, device=program.device, current=_address("cuCtxGetDevice"), launch=_address("cuLaunchKernelEx"),
        steps=len(steps), step_list=keep.words(steps), parameters=max((len(s) for _, s in launches), default=0),
        fail=keep.object(fail),
    )  # fmt: skip
    owner: Any = keep, program
    return Runner(owner, table, "tilec_cuda_execute", arrays, 16, (CUDA, program.device), current, stream_handle)


def _address(name: str) -> int:
    return ctypes.cast(getattr(driver.library(), name), ctypes.c_void_p).value or 0
