"""Machine code that launches a program's kernels on a GPU: what `tilec_call` (`runtime/cpu_native.py`) executes there.

For kernels whose parameters are addresses of arrays. Everything lies on the stack, so that threads need no lock.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from tilec.runtime.native_tables import DeviceProgram, DeviceStep
from tilec.runtime.native_writer import I32, I64, NULL, Writer

REFUSED = 2
CONFIG_WORDS, STREAM = 7, 4  # of a CUlaunchConfig
_POINTER, _SIZE, _END = 1, 2, 0  # CU_LAUNCH_PARAM_BUFFER_POINTER, ...


def execute(module: ir.Module) -> ir.Function:
    """(program, memory, stream) -> 1; 0 with an error set; or REFUSED, where the program's GPU is not this thread's current
    one. `memory` holds the addresses of inputs and outputs. Other Python threads go on meanwhile."""
    run = _run(module)
    f = Writer(module, "tilec_cuda_execute", 3)
    program, memory, stream = f.args
    thread = f.call("PyEval_SaveThread")
    failed = f.call(run, program, memory, stream)
    f.call("PyEval_RestoreThread", thread)
    with f.when(f.is_("==", failed, 0)):
        f.done(1)
    with f.when(f.is_("==", failed, -1)):
        f.done(REFUSED)
    f.call("Py_DecRef", f.call_one(f.field(program, DeviceProgram.fail), f.call("PyLong_FromLongLong", failed)))
    f.done(0)
    return f.function


def _run(module: ir.Module) -> ir.Function:
    """(program, memory, stream) -> 0, -1 where another GPU is current, or step << 32 | the driver's code. Uses nothing of
    Python's."""
    f = Writer(module, "tilec_cuda_run", 3)
    b, (program, memory, stream) = f.builder, f.args
    device = f.words(1)
    f.store(NULL, device)
    code = f.narrow(f.call(f.field(program, DeviceProgram.current), device))
    current = b.and_(f.is_("==", code, 0), f.is_("==", f.load(device, 0, I32), f.field(program, DeviceProgram.device)))
    with f.when(b.not_(current)):
        f.done(-1)
    config, extra, size = f.words(CONFIG_WORDS), f.words(5), f.words(1)
    args = f.words(f.field(program, DeviceProgram.parameters))
    with f.times(f.field(program, DeviceProgram.steps)) as n:
        step = f.item(f.field(program, DeviceProgram.step_list), n)
        template, parameters, slots = (
            f.field(step, s) for s in (DeviceStep.config, DeviceStep.parameters, DeviceStep.slots)
        )
        with f.times(parameters) as p:
            f.store(f.item(memory, f.item(slots, p)), f.add(args, f.mul(p, 8)))
        for word in range(CONFIG_WORDS):
            f.store(stream if word == STREAM else f.load(template, 8 * word), config, 8 * word)
        f.store(f.mul(parameters, 8), size)
        entries: tuple[Any, ...] = (I64(_POINTER), args, I64(_SIZE), size, I64(_END))
        for word, value in enumerate(entries):
            f.store(value, extra, 8 * word)
        launch = f.field(program, DeviceProgram.launch)
        code = f.narrow(f.call(launch, config, f.field(step, DeviceStep.kernel), 0, extra))
        with f.when(f.is_("!=", code, 0)):
            f.done(b.or_(b.shl(n, I64(32)), code))
    f.done()
    return f.function
