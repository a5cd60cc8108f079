"""PyTorch's tensors as machine code reads them, and `tilec_prepared`: calls of a program between fixed neighbours.

DLPack's exchange API describes a tensor without making anything.
"""

from __future__ import annotations

from llvmlite import ir

from tilec.runtime.native.tables import Prepared, Spec
from tilec.runtime.native.writer import I32, I64, NULL, Writer

TYPE_OF = object.__basicsize__ - 8  # where an object has its type
TENSOR = {"data": 0, "device": 8, "rank": 16, "dtype": 20, "shape": 24, "strides": 32, "offset": 40}  # DLTensor
TENSOR_WORDS = 6
REFUSED = 2
"""What a program's `execute` returns if it did nothing, and Python is to do it."""


def address(
    f: Writer, describe: ir.Value, device: ir.Value, spec: ir.Value, tensor: ir.Value, other: ir.Block, failed: ir.Block
) -> ir.Value:
    """The address of a tensor's first element. Goes on at `other` if the tensor is not where and what `spec` says, and at `failed`
    with an error set if PyTorch does not describe it. `describe` is the exchange API's function."""
    found, rank = f.words(TENSOR_WORDS), f.field(spec, Spec.rank)
    f.demand(f.is_("==", f.narrow(f.call(describe, tensor, found)), 0), failed)
    same = [(f.load(found, TENSOR["device"]), device), (f.load(found, TENSOR["rank"], I32), rank)]
    same.append((f.load(found, TENSOR["dtype"], I32), f.field(spec, Spec.dtype)))
    for a, b in same:
        f.demand(f.is_("==", a, b), other)
    sizes, strides = f.load(found, TENSOR["shape"]), f.load(found, TENSOR["strides"])
    shape, steps = f.field(spec, Spec.shape), f.field(spec, Spec.strides)
    with f.times(rank) as n:
        size = f.item(sizes, n)
        f.demand(f.is_("==", size, f.item(shape, n)), other)
        with f.when(f.builder.and_(f.is_("!=", size, 1), f.is_("!=", strides, 0))):
            f.demand(f.is_("==", f.item(strides, n), f.item(steps, n)), other)
    return f.add(f.load(found, TENSOR["data"]), f.load(found, TENSOR["offset"]))


def is_like(f: Writer, tensor: ir.Value, kind: ir.Value, like: ir.Value) -> ir.Value:
    """Whether a tensor's type is one of two."""
    own = f.load(tensor, TYPE_OF)
    return f.builder.or_(f.is_("==", own, kind), f.is_("==", own, like))


def prepared(module: ir.Module) -> None:
    """A built-in function of Python's: of the values that a partition of a PyTorch graph is given, to its results, a tensor or a
    tuple of several. Whoever calls it records no gradients, and has tensors that are no negatives of others."""
    lies = _lies(module)
    f = Writer(module, "tilec_prepared", 3)
    b = f.builder
    table = f.call("PyLong_AsVoidPtr", f.call("PyTuple_GetItem", f.args[0], 0))
    values, inputs, outputs, specs = (
        f.field(table, n) for n in (Prepared.values, Prepared.inputs, Prepared.outputs, Prepared.specs)
    )
    results, queue, current = f.words(1), f.words(1), f.field(table, Prepared.current)
    other, failed = f.block(), f.block()
    with f.at(other):
        f.call("Py_DecRef", f.load(results))  # an object or 0
        f.done(f.call("PyObject_Vectorcall", f.field(table, Prepared.otherwise), f.args[1], f.args[2], 0))
    with f.at(failed):
        f.call("Py_DecRef", f.load(results))
        f.done(0)
    f.store(NULL, results)
    f.demand(f.is_("==", f.args[2], values), other)
    f.store(NULL, queue)
    with f.when(f.is_("!=", current, 0)):
        device = f.field(table, Prepared.device)
        asked = f.call(current, f.narrow(device), b.lshr(device, I64(32)), queue)
        f.demand(f.is_("==", f.narrow(asked), 0), other)
    memory = f.words(f.field(table, Prepared.words))

    def check(tensor: ir.Value, number: ir.Value) -> None:
        slot = f.add(memory, f.mul(number, 8))
        f.demand(f.is_("==", f.call(lies, table, f.item(specs, number), tensor, slot), 1), other)

    with f.times(inputs) as n:
        check(f.item(f.args[1], f.item(f.field(table, Prepared.takes), n)), n)
    made = f.call("PyTuple_New", outputs)
    f.demand(f.is_("!=", made, 0), failed)
    f.store(made, results)
    with f.times(outputs) as n:
        into, held = f.item(f.field(table, Prepared.into), n), f.words(1)
        with b.if_else(f.is_("<", into, 0)) as (allocated, given):
            with allocated:
                f.store(f.call("PyObject_CallNoArgs", f.item(f.field(table, Prepared.new), n)), held)
                f.demand(f.is_("!=", f.load(held), 0), failed)
            with given:
                f.store(f.item(f.args[1], into), held)
                f.call("Py_IncRef", f.load(held))
        tensor = f.load(held)
        f.call("PyTuple_SetItem", made, n, tensor)
        check(tensor, f.add(n, inputs))
    done = f.call(f.field(table, Prepared.execute), f.field(table, Prepared.program), memory, f.load(queue))
    f.demand(f.is_("!=", done, 0), failed)
    f.demand(f.is_("!=", done, REFUSED), other)
    with f.when(f.is_("!=", outputs, 1)):
        f.done(made)
    result = f.call("PyTuple_GetItem", made, 0)
    f.call("Py_IncRef", result)
    f.call("Py_DecRef", made)
    f.done(result)


def _lies(module: ir.Module) -> ir.Function:
    """(table, spec, object, slot) -> whether the object is a tensor like `spec`, whose address then goes to `slot`."""
    f = Writer(module, "tilec_lies", 4)
    table, spec, tensor, slot = f.args
    other, failed = f.refusals()
    f.demand(is_like(f, tensor, f.field(table, Prepared.kind), f.field(table, Prepared.like)), other)
    describe, device = f.field(table, Prepared.describe), f.field(table, Prepared.device)
    found = address(f, describe, device, spec, tensor, other, failed)
    f.demand(f.is_("==", f.builder.and_(found, f.field(spec, Spec.mask)), 0), other)
    f.store(found, slot)
    f.done(1)
    return f.function
