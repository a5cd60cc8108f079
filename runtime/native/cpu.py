"""Machine code between Python and kernels: it checks a call's arrays, runs the program's steps, and returns the results.

A call is then a single call of a built-in function for Python. A few functions serve all programs; tables hold the
differences (`runtime/native/tables.py`). `runtime/native/cuda.py` has the steps on a GPU. NumPy arrays are read by
NumPy's ABI, PyTorch tensors through DLPack's exchange API.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from tilec.runtime.native import copy, tensors
from tilec.runtime.native import cuda as cuda_native
from tilec.runtime.native.tables import NODE, Call, Pool, Program, Spec, Step
from tilec.runtime.native.writer import I8, I32, I64, NULL, Writer

HEAD = object.__basicsize__  # bytes before an object's own fields; the last word of them is its type
DATA, RANK, SHAPE, DESCR, FLAGS = (HEAD + n for n in (0, 8, 16, 40, 48))  # of NumPy's arrays
ORDER, TYPE = HEAD + 10, HEAD + 12  # of NumPy's dtypes: byte order and number


def module() -> ir.Module:
    """Defines `tilec_launch`, `tilec_call` and `tilec_prepared`, built-in functions of Python's, the values of `Call.execute`,
    and `tilec_copy`. Other names are in the process."""
    module = ir.Module("tilec_native")
    copy.copy(module)
    execute = _execute(module, _run(module))
    cuda_native.execute(module)
    _launch(module, execute)
    _call(module, _fits(module))
    tensors.prepared(module)
    return module


def _run(module: ir.Module) -> ir.Function:
    """(program, memory, workspace) -> 0, or step << 32 | number of the check that failed. `memory` holds the addresses of
    inputs and outputs, and has room for those of temporaries. Uses nothing of Python's."""
    f = Writer(module, "tilec_run", 3)
    b, (program, memory, workspace) = f.builder, f.args
    args, data = f.words(f.add(f.field(program, Program.parameters), 1)), f.words(2)
    f.store(args, data)
    pool, arrays, offsets = (f.field(program, n) for n in (Program.pool, Program.arrays, Program.offsets))
    temporaries, begins = f.add(memory, f.mul(arrays, 8)), f.field(program, Program.begins)
    with f.times(f.field(program, Program.temporaries)) as n:
        temporary = f.add(temporaries, f.mul(n, 8))
        f.store(workspace, temporary)
        f.store(f.add(f.item(memory, f.item(begins, n)), f.item(offsets, n)), temporary)
    with f.times(f.field(program, Program.steps)) as n:
        step = f.item(f.field(program, Program.step_list), n)
        loop, parameters, slots, bytes_ = (f.field(step, s) for s in (Step.loop, Step.parameters, Step.slots, Step.bytes))
        with f.times(parameters) as p:
            f.store(f.item(memory, f.item(slots, p)), f.add(args, f.mul(p, 8)))
        sizes, behind = f.field(step, Step.sizes), f.add(args, f.mul(parameters, 8))
        with f.times(sizes) as s:
            f.store(f.item(f.field(step, Step.size_list), s), f.add(behind, f.mul(s, 8)))
        failed = f.add(behind, f.mul(sizes, 8))
        f.store(NULL, failed)
        with b.if_else(f.is_("==", loop, 0)) as (copied, launched):
            with copied:
                f.call("memmove", f.load(args, 8), f.load(args), bytes_)
            with launched:
                f.store(bytes_, data, 8)
                scratch = f.add(workspace, f.field(step, Step.scratch))
                grid, stride = f.field(step, Step.grid), f.field(step, Step.stride)
                f.call(f.field(pool, Pool.run), pool, loop, grid, data, scratch, stride)
        number = f.load(failed)
        with f.when(f.is_("!=", number, 0)):
            f.done(b.or_(b.shl(n, I64(32)), number))
    f.done()
    return f.function


def _execute(module: ir.Module, run: ir.Function) -> ir.Function:
    """(program, memory, stream) -> 1, or 0 with an error set. Other Python threads go on meanwhile.

    A workspace belongs to the call while it lasts. All free ones are taken at a time and the rest put back, so that two
    threads never meet at one, even without the global lock.
    """
    f = Writer(module, "tilec_execute", 3)
    b, (program, memory, _) = f.builder, f.args
    free, wanted = f.field(program, Program.free), f.field(program, Program.workspace)
    workspace = f.words(1)

    def give(node: ir.Value) -> None:
        """Puts a workspace at the head of the list, if need be after others that do so."""
        with f.repeat() as given:
            head = f.peek(free)
            f.store(head, node)
            f.demand(b.not_(f.swap(free, head, node)), given)

    f.store(NULL, workspace)
    with f.when(f.is_("!=", wanted, 0)):
        f.store(f.exchange(free, NULL), workspace)
        found, bytes_ = f.load(workspace), f.words(1)
        f.store(NULL, bytes_)
        with f.when(f.is_("!=", found, 0)):
            f.store(f.load(found, 8), bytes_)
            rest = f.words(1)
            f.store(f.load(found), rest)
            with f.repeat() as done:
                node = f.load(rest)
                f.demand(f.is_("!=", node, 0), done)
                f.store(f.load(node), rest)
                give(node)
        with f.when(f.is_("<", f.load(bytes_), wanted)):  # of another program of the same class
            numbers = (f.call("PyLong_FromLongLong", n) for n in (found, wanted))
            made = f.call_object(f.field(program, Program.allocate), *numbers)
            with f.when(f.is_("==", made, 0)):
                f.done(0)
            f.store(f.call("PyLong_AsVoidPtr", made), workspace)
            f.call("Py_DecRef", made)
    node = f.load(workspace)
    thread = f.call("PyEval_SaveThread")
    failed = f.call(run, program, memory, f.add(node, NODE))
    f.call("PyEval_RestoreThread", thread)
    with f.when(f.is_("!=", node, 0)):
        give(node)
    with f.when(f.is_("!=", failed, 0)):
        f.call("Py_DecRef", f.call_object(f.field(program, Program.fail), f.call("PyLong_FromLongLong", failed)))
        f.done(0)
    f.done(1)
    return f.function


def _launch(module: ir.Module, execute: ir.Function) -> ir.Function:
    """A built-in function of Python: runs the program on the memory at some addresses, those of inputs and outputs."""
    f = Writer(module, "tilec_launch", 3)
    program = f.call("PyLong_AsVoidPtr", f.call("PyTuple_GetItem", f.args[0], 0))
    args, arrays = f.args[1], f.field(program, Program.arrays)
    with f.when(f.is_("!=", f.args[2], arrays)):
        f.call("PyErr_BadArgument")
        f.done(0)
    memory = f.words(f.add(arrays, f.field(program, Program.temporaries)))
    with f.times(arrays) as n:
        f.store(f.call("PyLong_AsVoidPtr", f.item(args, n)), f.add(memory, f.mul(n, 8)))
    with f.when(f.is_("==", f.call(execute, program, memory, 0), 0)):
        f.done(0)
    f.done(f.call("PyLong_FromLongLong", 0))
    return f.function


def _fits(module: ir.Module) -> ir.Function:
    """(call, spec, object, slot) -> whether the object is an array like `spec`, whose address then goes to `slot`."""
    f = Writer(module, "tilec_fits", 4)
    b, (call, spec, object_, slot) = f.builder, f.args
    rank, shape = f.field(spec, Spec.rank), f.field(spec, Spec.shape)
    other, failed = f.refusals()

    def demand(condition: ir.Value) -> None:
        f.demand(condition, other)

    def same(a: ir.Value, field: Spec) -> None:
        demand(f.is_("==", a, f.field(spec, field)))

    def known(answer: ir.Value) -> ir.Value:
        """A bool that Python gives a reference to, which nobody needs."""
        f.demand(f.is_("!=", answer, 0), failed)
        f.call("Py_DecRef", answer)
        return answer

    demand(tensors.is_like(f, object_, f.field(call, Call.kind), f.field(call, Call.like)))
    describe, address = f.field(call, Call.describe), f.words(1)
    with b.if_else(f.is_("==", describe, 0)) as (numpy, dlpack):
        with numpy:
            flags = f.field(spec, Spec.flags)
            demand(f.is_("==", b.and_(f.load(object_, FLAGS, I32), flags), flags))
            same(f.load(object_, RANK, I32), Spec.rank)
            descr = f.load(object_, DESCR)
            same(f.load(descr, TYPE, I32), Spec.dtype)
            same(f.load(descr, ORDER, I8), Spec.order)
            sizes = f.load(object_, SHAPE)
            with f.times(rank) as n:
                demand(f.is_("==", f.item(sizes, n), f.item(shape, n)))
            f.store(f.load(object_, DATA), address)
        with dlpack:
            found = tensors.address(f, describe, f.field(call, Call.device), spec, object_, other, failed)
            receiver = f.words(1)
            f.store(object_, receiver)
            false = f.field(call, Call.false)
            negated = known(f.call("PyObject_VectorcallMethod", f.field(call, Call.is_neg), receiver, 1, 0))
            demand(f.is_("==", negated, false))
            requires = known(f.call("PyObject_GetAttr", object_, f.field(call, Call.requires_grad)))
            with f.when(f.is_("!=", requires, false)):
                records = known(f.call("PyObject_CallNoArgs", f.field(call, Call.records)))
                demand(f.is_("==", records, false))
            f.store(found, address)
    found = f.load(address)
    demand(f.is_("==", b.and_(found, f.field(spec, Spec.mask)), 0))
    f.store(found, slot)
    f.done(1)
    return f.function


def _call(module: ir.Module, fits: ir.Function) -> ir.Function:
    """A built-in function of Python: (arrays, out, stream) -> the call's results, or `no` where the arrays do not fit."""
    f = Writer(module, "tilec_call", 3)
    b = f.builder
    call = f.call("PyLong_AsVoidPtr", f.call("PyTuple_GetItem", f.args[0], 0))
    arrays, out, stream = (f.load(f.args[1], 8 * n) for n in range(3))
    program, inputs, outputs, specs = (
        f.field(call, n) for n in (Call.program, Call.inputs, Call.outputs, Call.specs)
    )  # fmt: skip
    results = f.words(1)
    f.store(NULL, results)

    left, refused, failed = f.words(1), f.block(), f.block()
    leave = f.block()
    with f.at(refused):
        no = f.field(call, Call.no)
        f.call("Py_IncRef", no)
        f.store(no, left)
        b.branch(leave)
    with f.at(failed):
        f.store(NULL, left)
        b.branch(leave)
    with f.at(leave):
        f.call("Py_DecRef", f.load(results))  # an object or 0
        f.done(f.load(left))

    def demand(condition: ir.Value) -> None:
        f.demand(condition, refused)

    demand(f.is_("==", f.call("PyTuple_Size", arrays), inputs))
    queue, current, memory = f.words(1), f.field(call, Call.current), f.words(f.field(call, Call.words))
    f.store(NULL, queue)
    with b.if_else(f.is_("==", stream, f.field(call, Call.none))) as (default, named):
        with default, f.when(f.is_("!=", current, 0)):
            device = f.field(call, Call.device)
            asked = f.call(current, f.narrow(device), b.lshr(device, I64(32)), queue)
            demand(f.is_("==", f.narrow(asked), 0))
        with named:
            demand(f.is_("!=", current, 0))
            f.call("Py_IncRef", stream)
            handle = f.call_object(f.field(call, Call.handle), stream)
            f.demand(f.is_("!=", handle, 0), failed)
            f.store(f.call("PyLong_AsVoidPtr", handle), queue)
            f.call("Py_DecRef", handle)

    def check(array: ir.Value, number: ir.Value) -> None:
        slot = f.add(memory, f.mul(number, 8))
        demand(f.is_("==", f.call(fits, call, f.item(specs, number), array, slot), 1))

    with f.times(inputs) as n:
        check(f.call("PyTuple_GetItem", arrays, n), n)
    made = f.call("PyTuple_New", outputs)
    f.demand(f.is_("!=", made, 0), failed)
    f.store(made, results)

    def put(n: ir.Value, array: ir.Value) -> None:
        """The `n`-th result; takes the reference."""
        f.demand(f.is_("!=", array, 0), failed)
        f.call("PyTuple_SetItem", made, n, array)
        check(array, f.add(n, inputs))

    with b.if_else(f.is_("==", out, f.field(call, Call.none))) as (allocated, given):
        with allocated, f.times(outputs) as n:
            put(n, f.call("PyObject_CallNoArgs", f.item(f.field(call, Call.new), n)))
        with given:
            kind = f.load(out, HEAD - 8)
            with b.if_else(f.is_("==", kind, f.field(call, Call.kind))) as (one, several):
                with one:
                    demand(f.is_("==", outputs, 1))
                    f.call("Py_IncRef", out)
                    put(I64(0), out)
                with several:
                    tuples = f.narrow(f.call("PyType_IsSubtype", kind, f.field(call, Call.tuple)))  # a call's results, too
                    demand(b.or_(f.is_("!=", tuples, 0), f.is_("==", kind, f.field(call, Call.list))))
                    demand(f.is_("==", f.call("PySequence_Size", out), outputs))
                    with f.times(outputs) as n:
                        put(n, f.call("PySequence_GetItem", out, n))
            _demand_disjoint(f, memory, specs, inputs, outputs, demand)
    done = f.call(f.field(call, Call.execute), program, memory, f.load(queue))
    f.demand(f.is_("!=", done, 0), failed)
    demand(f.is_("!=", done, tensors.REFUSED))
    wrap = f.field(call, Call.wrap)
    with f.when(f.is_("!=", wrap, 0)):
        f.done(f.call_object(wrap, made))
    result = f.call("PyTuple_GetItem", made, 0)
    f.call("Py_IncRef", result)
    f.store(result, left)
    b.branch(leave)
    return f.function


def _demand_disjoint(
    f: Writer, memory: ir.Value, specs: ir.Value, inputs: ir.Value, outputs: ir.Value, demand: Callable[[ir.Value], None]
) -> None:
    """No result shares an address with an input or with a result before it."""
    with f.times(outputs) as n:
        number = f.add(inputs, n)
        begin = f.item(memory, number)
        end = f.add(begin, f.field(f.item(specs, number), Spec.bytes))
        with f.times(number) as other:
            start = f.item(memory, other)
            stop = f.add(start, f.field(f.item(specs, other), Spec.bytes))
            demand(f.builder.or_(f.is_("<=", stop, begin), f.is_("<=", end, start)))
