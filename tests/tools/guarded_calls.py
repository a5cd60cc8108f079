"""Every op that a test calls runs once more among canary bytes, with the kernels that it has.

The first call of every executable goes through `Executable.run`, whatever made it: a test, a command, a graph. `install` puts
a run before it on copies of the arguments: with canaries around these, the results, temporaries and scratch memory. None of
them may change, no argument either, and the results' bits are to be those of the call.

A test marked `unguarded` is left alone, since it counts what runs do, or stops them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from fuzz.guards import run_guarded

from tilec.core.diagnostics import CallError
from tilec.driver.cpu_executable import CpuExecutable
from tilec.driver.cuda_executable import CudaExecutable, _copy, _direct
from tilec.driver.executable import Executable
from tilec.runtime.buffers import Buffer, wrap

MOST = {"cpu": 1 << 25, "cuda": 1 << 28}
"""Bytes of arguments, results and temporaries, of which there is one more copy. Beyond them, a run is not repeated."""

active = False
"""Whether the test that runs is one whose calls are guarded."""


def install() -> None:
    for kind, again in ((CpuExecutable, _again_on_cpu), (CudaExecutable, _again_on_gpu)):
        kind.run = _guarded(kind.run, again)


def _guarded(run: Any, again: Any) -> Any:
    def guarded_run(executable: Executable, inputs: list[Buffer], outputs: list[Buffer], stream: Any) -> None:
        if not active or not _wanted(executable, inputs, outputs):
            run(executable, inputs, outputs, stream)
            return
        refused, compare = None, None
        try:
            compare = again(executable, inputs, outputs, stream)
        except CallError as error:
            refused = error
        run(executable, inputs, outputs, stream)
        assert refused is None or executable.deferred_checks, f"among canaries only: {refused}"
        if compare is not None:
            compare()
            executable._guarded = True

    return guarded_run


def _wanted(executable: Executable, inputs: list[Buffer], outputs: list[Buffer]) -> bool:
    """The first run of a whole program, or of one that somebody has not changed, on no more memory than is quick."""
    used = sum(b.nbytes for b in (*inputs, *outputs)) + executable.emitted.workspace
    whole = executable.emitted is executable.compiled.emitted
    return whole and used <= MOST[executable.target.kind] and not getattr(executable, "_guarded", False)


def _again_on_cpu(executable: CpuExecutable, inputs: list[Buffer], outputs: list[Buffer], stream: Any) -> Any:
    given = {name: wrap(b) for (name, _, _), b in zip(executable.compiled.inputs, inputs, strict=True)}
    shapes = {name: (dtype.numpy, shape) for name, dtype, shape in executable.outputs}
    found = run_guarded(executable.emitted, executable.loops, given, shapes)

    def compare() -> None:
        for (name, array), buffer in zip(found.items(), outputs, strict=True):
            assert array.tobytes() == wrap(buffer).tobytes(), f"{name} is another one among canaries"

    return compare


def _again_on_gpu(executable: CudaExecutable, inputs: list[Buffer], outputs: list[Buffer], stream: Any) -> Any:
    from fuzz import guards_cuda

    from tilec.runtime.cuda import driver as cuda_driver
    from tilec.runtime.cuda.launch import stream_handle
    from tilec.runtime.cuda.program import _capture

    program, ready, _ = executable._ready(inputs, outputs)
    handle = executable._stream(program.device, ready) if stream is None else stream_handle(stream)
    if _capture(handle):  # nobody may wait for it
        return None
    found = guards_cuda.run_guarded(executable, ready, program.device, handle)

    def compare() -> None:
        with guards_cuda.DeviceGuarded(program.device, handle) as memory:
            for (name, array), buffer in zip(found.items(), outputs, strict=True):
                same = buffer if _direct(buffer) else _copy(buffer)
                cuda_driver.call("cuCtxSynchronize")  # the copy is made on a stream of its library's choice
                assert np.array_equal(array, memory.read(same.pointer, same.nbytes)), (
                    f"{name} is another one among canaries"
                )

    return compare
