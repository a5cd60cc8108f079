"""Fast calls of a GPU program: the tables of its machine code (`runtime/native/cuda.py`)."""

from __future__ import annotations

import ctypes
from typing import Any, NoReturn

from tilec.runtime.cpu import call as cpu_call
from tilec.runtime.cpu.call import Runner
from tilec.runtime.cuda import driver
from tilec.runtime.cuda.dlpack import CUDA
from tilec.runtime.cuda.launch import TiledMap, stream_handle
from tilec.runtime.cuda.program import DeviceProgram, Run
from tilec.runtime.native.tables import CALL, CAPTURING, ENCODE, STEP, WAIT, DeviceMap, DeviceStep, KeepAlive
from tilec.runtime.native.tables import DeviceProgram as Table

_COPY, _CLEAR = "cuMemcpyDtoDAsync", "cuMemsetD8Async"
_CALLS = {ENCODE: "cuTensorMapEncodeTiled", WAIT: "cuStreamSynchronize", CAPTURING: "cuStreamIsCapturing"}
_FUNCTIONS = {
    "current": "cuCtxGetDevice", "launch": "cuLaunchKernelEx", "copy": _COPY, "clear": _CLEAR, "encode": _CALLS[ENCODE],
    "wait": _CALLS[WAIT], "capturing": _CALLS[CAPTURING],
}  # fmt: skip


def runner(program: DeviceProgram, kind: type, arrays: int) -> Runner | None:
    """The machine-code call for `arrays` tensors. None if there is none for this kind of array, or for this version of
    PyTorch."""
    if not cpu_call.possible(kind) or not (current := cpu_call.exchange(cpu_call.CURRENT_STREAM)):
        return None
    alive, words, runs = KeepAlive(), arrays + program.temporaries, program.steps

    def fail(code: int) -> NoReturn:
        status, function = code % (1 << CALL), code % (1 << STEP) >> CALL
        raise driver.failure(_CALLS.get(function) or _queued(runs[code >> STEP], words), status)

    steps = [_step(alive, run, words) for run in runs]
    table = alive.table(
        Table, device=program.device, fail=alive.object(fail), steps=len(steps), step_list=alive.words(steps),
        parameters=max((-(-r.launcher.offsets[-1] // 8) if r.launcher else 2 for r in runs), default=0), arrays=arrays,
        temporaries=program.temporaries, begins=alive.words(program.begins or range(arrays, words)),
        spaced=not program.plain, spaces=program.spaces,
        space=alive.object(program.space), checks=program.checks, deferred_checks=program.deferred_checks,
        **{field: driver.address(name) for field, name in _FUNCTIONS.items()},
    )  # fmt: skip
    owner: Any = alive, program
    return Runner(owner, table, "tilec_cuda_execute", words, 16, (CUDA, program.device), current, stream_handle)


def _step(alive: KeepAlive, run: Run, words: int) -> int:
    slots = run.pick(range(words))
    common = {"addresses": len(slots), "slots": alive.words(slots)}
    if run.launcher is None:
        return alive.table(DeviceStep, bytes=run.bytes, **common)
    offsets = run.launcher.offsets
    maps = [_map(alive, m, offset) for m, offset in zip(run.maps, offsets[len(slots) :])]
    sized = len(slots) + len(maps)
    sizes = {"sized": offsets[sized], "sizes": len(run.sizes), "size_list": alive.words(run.sizes)} if run.sizes else {}
    return alive.table(
        DeviceStep, config=run.launcher.config, kernel=run.launcher.kernel.handle, bytes=offsets[-1],
        maps=len(maps), map_list=alive.words(maps), check=offsets[-2] if run.sites else 0, word=run.word, **common, **sizes,
    )  # fmt: skip


def _map(alive: KeepAlive, m: TiledMap, offset: int) -> int:
    rows = {name: ctypes.addressof(getattr(m, name)) for name in ("sizes", "pitches", "boxes", "steps")}
    return alive.table(
        DeviceMap, parameter=m.parameter, offset=offset, dtype=m.dtype, rank=m.rank, interleave=m.interleave,
        swizzle=m.swizzle, promotion=m.promotion, fill=m.fill, **rows,
    )  # fmt: skip


def _queued(run: Run, words: int) -> str:
    """The description of a step in error messages."""
    if run.launcher is not None:
        return f"launch of {run.launcher.kernel.entry}"
    return _CLEAR if len(run.pick(range(words))) == 1 else _COPY
