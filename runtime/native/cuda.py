"""Machine code for the steps of a program on a GPU, which `tilec_call` (`runtime/native/cpu.py`) runs.

Data of one call are on the stack. Data of a stream are in its space (`runtime/cuda/program.py`), which is locked during a
call.
"""

from __future__ import annotations

from llvmlite import ir

from tilec.runtime.native.tables import (
    CALL,
    CAPTURING,
    ENCODE,
    QUEUE,
    STEP,
    WAIT,
    DeviceMap,
    DeviceProgram,
    DeviceSpace,
    DeviceStep,
)
from tilec.runtime.native.tensors import REFUSED
from tilec.runtime.native.writer import I32, I64, NULL, Writer

CONFIG_WORDS, STREAM = 7, 4  # of a CUlaunchConfig
MAP_WORDS = 16  # of a CUtensorMap, which lies on a multiple of 64 bytes
_POINTER, _SIZE, _END = 1, 2, 0  # CU_LAUNCH_PARAM_BUFFER_POINTER, ...
FOUND = -1  # a run-time check failed


def execute(module: ir.Module) -> ir.Function:
    """(program, memory, stream) -> 1; 0 with an error set; or REFUSED, where the program's GPU is not this thread's current
    one. `memory` holds the addresses of inputs and outputs, and has room for those of temporaries. Other Python threads go
    on meanwhile."""
    run = _run(module)
    f = Writer(module, "tilec_cuda_execute", 3)
    b, (program, memory, stream) = f.builder, f.args
    found, space = f.words(1), f.words(1)
    f.store(NULL, found)
    code = f.narrow(f.call(f.field(program, DeviceProgram.current), found))
    current = b.and_(f.is_("==", code, 0), f.is_("==", f.load(found, 0, I32), f.field(program, DeviceProgram.device)))
    with f.when(b.not_(current)):
        f.done(REFUSED)
    f.store(NULL, space)
    with f.when(f.is_("!=", f.field(program, DeviceProgram.spaced), 0)):
        _find_space(f, program, stream, space)
        _demand_call(f, f.field(f.load(space), DeviceSpace.acquire))
    node, failed = f.load(space), f.words(1)
    f.store(NULL, failed)
    deferred, checks = f.field(program, DeviceProgram.deferred_checks), f.field(program, DeviceProgram.checks)
    with f.when(f.is_("!=", deferred, 0)), f.times(checks) as n:
        word = f.load(f.add(f.field(node, DeviceSpace.errors), f.mul(n, 4)), 0, I32)
        with f.when(f.is_("!=", word, 0)):
            f.store(I64(FOUND), failed)
    with f.when(f.is_("==", f.load(failed), 0)):
        thread = f.call("PyEval_SaveThread")
        f.store(f.call(run, program, memory, stream, node), failed)
        f.call("PyEval_RestoreThread", thread)
    _raise(f, program, node, f.load(failed))
    error = f.words(3)
    with f.when(f.is_("!=", node, 0)):  # nothing may be called while an error is set
        f.call("PyErr_Fetch", error, f.add(error, 8), f.add(error, 16))
        _demand_call(f, f.field(node, DeviceSpace.release))
        f.call("PyErr_Restore", *(f.load(error, 8 * n) for n in range(3)))
    f.done(b.zext(f.is_("==", f.load(failed), 0), I64))
    return f.function


def _find_space(f: Writer, program: ir.Value, stream: ir.Value, space: ir.Value) -> None:
    """Stores the stream's, or a new one where it has none or is being captured."""
    b, status = f.builder, f.words(1)
    f.store(NULL, status)
    code = f.narrow(f.call(f.field(program, DeviceProgram.capturing), stream, status))
    with f.when(f.is_("!=", code, 0)):
        _raise(f, program, NULL, b.or_(code, I64(CAPTURING << CALL)))
        f.done(0)
    with f.when(f.is_("==", f.load(status, 0, I32), 0)):
        head, body, done = (f.block() for _ in range(3))
        f.store(f.load(f.field(program, DeviceProgram.spaces)), space)
        b.branch(head)
        b.position_at_end(head)
        node = f.load(space)
        b.cbranch(f.is_("==", node, 0), done, body)
        b.position_at_end(body)
        f.demand(f.is_("!=", f.field(node, DeviceSpace.stream), stream), done)
        f.store(f.field(node, DeviceSpace.next), space)
        b.branch(head)
        b.position_at_end(done)
    with f.when(f.is_("==", f.load(space), 0)):
        made = f.call_object(f.field(program, DeviceProgram.space), f.call("PyLong_FromVoidPtr", stream))
        with f.when(f.is_("==", made, 0)):
            f.done(0)
        f.store(f.call("PyLong_AsVoidPtr", made), space)
        f.call("Py_DecRef", made)


def _demand_call(f: Writer, function: ir.Value) -> None:
    """Calls what Python can call; an error of it is the function's."""
    made = f.call("PyObject_CallNoArgs", function)
    with f.when(f.is_("==", made, 0)):
        f.done(0)
    f.call("Py_DecRef", made)


def _raise(f: Writer, program: ir.Value, node: ir.Value, failed: ir.Value) -> None:
    """Sets the error that a number of `_run` stands for."""
    raised = f.words(1)
    with f.when(f.is_("!=", failed, 0)):
        with f.builder.if_else(f.is_("==", failed, FOUND)) as (check, call):
            with check:
                f.store(f.call("PyObject_CallNoArgs", f.field(node, DeviceSpace.report)), raised)
            with call:
                code = f.call("PyLong_FromLongLong", failed)
                f.store(f.call_object(f.field(program, DeviceProgram.fail), code), raised)
        f.call("Py_DecRef", f.load(raised))


def _run(module: ir.Module) -> ir.Function:
    """(program, memory, stream, space) -> 0, FOUND, or what failed: a step << STEP | a function << CALL | the driver's code.
    Uses nothing of Python's."""
    f = Writer(module, "tilec_cuda_run", 4)
    b, (program, memory, stream, space) = f.builder, f.args
    config, extra, size = f.words(CONFIG_WORDS), f.words(5), f.words(1)
    args, encoded = f.words(f.field(program, DeviceProgram.parameters)), f.words(MAP_WORDS + 8)
    encoded = b.and_(f.add(encoded, 63), I64(-64))
    first = f.add(memory, f.mul(f.field(program, DeviceProgram.arrays), 8))
    with f.times(f.field(program, DeviceProgram.temporaries)) as n:
        temporary = f.add(first, f.mul(n, 8))
        f.store(NULL, temporary)
        begin = f.item(memory, f.item(f.field(program, DeviceProgram.begins), n))
        f.store(f.add(begin, f.item(f.field(space, DeviceSpace.temporaries), n)), temporary)
    with f.times(f.field(program, DeviceProgram.steps)) as n:
        step = f.item(f.field(program, DeviceProgram.step_list), n)

        def demand(code: ir.Value, function: int) -> None:
            code = f.narrow(code)
            with f.when(f.is_("!=", code, 0)):
                f.done(b.or_(b.or_(b.shl(n, I64(STEP)), code), I64(function << CALL)))

        addresses, slots, count = (f.field(step, s) for s in (DeviceStep.addresses, DeviceStep.slots, DeviceStep.bytes))
        with f.times(addresses) as a:
            f.store(f.item(memory, f.item(slots, a)), f.add(args, f.mul(a, 8)))
        kernel = f.field(step, DeviceStep.kernel)
        with b.if_else(f.is_("==", kernel, 0)) as (moves, launches):
            with moves, b.if_else(f.is_("==", addresses, 1)) as (clears, copies):
                with clears:
                    demand(f.call(f.field(program, DeviceProgram.clear), f.load(args), 0, count, stream), QUEUE)
                with copies:
                    copy = f.field(program, DeviceProgram.copy)
                    demand(f.call(copy, f.load(args, 8), f.load(args), count, stream), QUEUE)
            with launches:
                with f.times(f.field(step, DeviceStep.maps)) as m:
                    described = f.item(f.field(step, DeviceStep.map_list), m)
                    demand(_encode(f, program, described, args, encoded), ENCODE)
                    target = f.add(args, f.field(described, DeviceMap.offset))
                    with f.times(I64(MAP_WORDS)) as w:
                        f.store(f.item(encoded, w), f.add(target, f.mul(w, 8)))
                sized = f.add(args, f.field(step, DeviceStep.sized))
                with f.times(f.field(step, DeviceStep.sizes)) as s:
                    f.store(f.item(f.field(step, DeviceStep.size_list), s), f.add(sized, f.mul(s, 8)))
                check = f.field(step, DeviceStep.check)
                with f.when(f.is_("!=", check, 0)):
                    f.store(_error(f, space, step), f.add(args, check))
                template = f.field(step, DeviceStep.config)
                for word in range(CONFIG_WORDS):
                    f.store(stream if word == STREAM else f.load(template, 8 * word), config, 8 * word)
                f.store(count, size)
                entries: tuple[ir.Value, ...] = (I64(_POINTER), args, I64(_SIZE), size, I64(_END))
                for word, value in enumerate(entries):
                    f.store(value, extra, 8 * word)
                demand(f.call(f.field(program, DeviceProgram.launch), config, kernel, 0, extra), QUEUE)
                now = f.is_("==", f.field(program, DeviceProgram.deferred_checks), 0)
                with f.when(b.and_(now, f.is_("!=", check, 0))):
                    demand(f.call(f.field(program, DeviceProgram.wait), stream), WAIT)
                    with f.when(f.is_("!=", f.load(_error(f, space, step), 0, I32), 0)):
                        f.done(FOUND)
    f.done()
    return f.function


def _encode(f: Writer, program: ir.Value, described: ir.Value, args: ir.Value, encoded: ir.Value) -> ir.Value:
    """Writes a tensor map for the tensor at one of the addresses `args`; the driver's code."""
    pointer = f.item(args, f.field(described, DeviceMap.parameter))
    dtype, rank, *rest = (f.field(described, n) for n in DeviceMap if n >= DeviceMap.dtype)
    return f.call(f.field(program, DeviceProgram.encode), encoded, dtype, rank, pointer, *rest)


def _error(f: Writer, space: ir.Value, step: ir.Value) -> ir.Value:
    """The address of the word that failed checks of a step are left in."""
    return f.add(f.field(space, DeviceSpace.errors), f.mul(f.field(step, DeviceStep.word), 4))
