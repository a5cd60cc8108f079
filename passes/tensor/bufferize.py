"""bufferize: tensors become memory.

Every function takes its inputs and then the memory of its results; kernels write in place. Upstream's one-shot
bufferization places the rest: intermediates of the program become `memref.alloc` in its function, those of a block
`memref.alloc` in the block.

    func @k(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32>   ->   func @k(%x: memref<4xf32>, %y: memref<4xf32>)
"""

from __future__ import annotations

from math import prod
from operator import mul

from tilec.core import mlir
from tilec.core.extents import emitted, shape_of
from tilec.core.mlir import bufferization, func, ir, memref
from tilec.kernels.attributes import carry_over
from tilec.passes.tensor.slice_updates import POSITION, SLAB


def bufferize(module: ir.Operation) -> None:
    functions = mlir.functions(module)
    (program,) = [f for f in functions if "tilec.kernel" not in f.attributes]
    insertions = _insertions(program)
    for function in functions:
        if function != program:
            _kernel(function, insertions.get(mlir.symbol(function)))
    _program(program)


def drop_copies(module: ir.Operation) -> None:
    """Copies of memory onto itself go. Upstream makes them where a block has all of a result whose sizes vary: it does not see that
    a slice of as many elements as there are is the whole.

    %1 = memref.subview %0[0] [%dim] [1] : memref<?xf32>   →
    memref.copy %0, %1
    """
    for op in [o for o in mlir.traverse(module) if o.name == "memref.copy"]:
        source, target = op.operands
        part = mlir.definition(target)
        if part is None or part.name != "memref.subview" or part.operands[0] != source:
            continue
        if shape_of(source) == shape_of(target):
            op.erase()


def _insertions(program: ir.Operation) -> dict[str, tuple[ir.Operation, ir.Operation]]:
    """By kernel, a call whose result is a slab of another tensor, and the insertion there."""
    found: dict[str, tuple[ir.Operation, ir.Operation]] = {}
    for whole in [op.operation for op in mlir.entry(program).operations if op.operation.name == "tensor.insert_slice"]:
        call = mlir.definition(whole.operands[0])
        found.setdefault(mlir.callee(call), (call, whole))
    return found


def memory_type(type_: ir.Type) -> ir.MemRefType:
    shaped = ir.ShapedType(type_)
    return ir.MemRefType.get(list(shaped.shape), shaped.element_type)


def _signature(function: ir.Operation, types: list[ir.Type], names: list[ir.Attribute]) -> tuple[ir.OpView, ir.Block]:
    """An empty function over memory in place of `function`, with its attributes."""
    new = func.FuncOp(mlir.symbol(function), ([memory_type(t) for t in types], []))
    carry_over(function, new)
    new.attributes["arg_attrs"] = ir.ArrayAttr.get(names)
    return new, new.add_entry_block()


def _kernel(function: ir.Operation, insertion: tuple[ir.Operation, ir.Operation] | None) -> None:
    """A kernel's last arguments are its outputs already: they become memory that it may write. Where its result is
    a slab, it gets the memory of the tensor that a call's result is inserted into, and writes the slab there: `insertion` has the
    call and that."""
    old = mlir.entry(function)
    results = list(list(old.operations)[-1].operation.operands)
    inputs = len(old.arguments) - len(results)
    with ir.InsertionPoint(function), function.location:
        types = [a.type for a in old.arguments]
        if insertion is not None:
            types[-1] = insertion[1].results[0].type
        _, block = _signature(function, types, list(ir.ArrayAttr(function.attributes["arg_attrs"])))
        with ir.InsertionPoint(block):
            mapping: dict[ir.Value, ir.Value] = {}
            memory = list(block.arguments)
            if insertion is not None:
                memory[-1] = _slab(*insertion, block)
            for n, (before, now) in enumerate(zip(old.arguments, memory)):
                mapping[before] = bufferization.ToTensorOp(before.type, now, restrict=True, writable=n >= inputs).result
            for op in list(old.operations)[:-1]:
                mlir.clone_op(op.operation, mapping)
            for mark in (POSITION, SLAB):
                for marked in [o for o in mlir.traverse(block.owner) if mark in o.attributes]:
                    del marked.attributes[mark]
            for value, out in zip(results, memory[inputs:]):
                bufferization.MaterializeInDestinationOp(None, mapping[value], out, restrict=True, writable=True)
            func.ReturnOp([])
    function.erase()


def _slab(call: ir.Operation, whole: ir.Operation, block: ir.Block) -> ir.Value:
    """The part of a kernel's last argument that is a slab: where the program inserts it, by what the kernel is given."""
    given = {v: block.arguments[n] for n, v in enumerate(call.operands)}

    def scalar(value: ir.Value) -> ir.Value:
        op = mlir.definition(value)
        if op.name == "tensor.extract":
            return memref.LoadOp(given[op.operands[0]], [scalar(v) for v in list(op.operands)[1:]]).result
        return mlir.clone_op(op, {v: scalar(v) for v in op.operands}).results[0]

    at = [scalar(v) for v in list(whole.operands)[2:]]  # one, or none of a part that lies where the program says
    offsets, sizes = (list(ir.DenseI64ArrayAttr(whole.attributes[f"static_{n}"])) for n in ("offsets", "sizes"))
    steps = [prod(list(ir.ShapedType(whole.results[0].type).shape)[d + 1 :]) for d in range(len(sizes))]
    own = ir.ShapedType(whole.operands[0].type)
    begin = mlir.DYNAMIC if at else sum(map(mul, offsets, steps))
    layout = ir.StridedLayoutAttr.get(begin, [s for s, offset in zip(steps, offsets) if offset != mlir.DYNAMIC])
    type_ = ir.MemRefType.get(list(own.shape), own.element_type, layout)
    return memref.SubViewOp(type_, block.arguments[-1], at, [], [], offsets, sizes, [1] * len(sizes)).result


def _program(function: ir.Operation) -> None:
    """The rest of the program becomes a list of kernel calls: each result is an output's memory or a buffer of its own."""
    old = mlir.entry(function)
    results = list(list(old.operations)[-1].operation.operands)
    names = [
        a
        for key in ("arg_attrs", "res_attrs")
        if key in function.attributes
        for a in ir.ArrayAttr(function.attributes[key])
    ]
    with ir.InsertionPoint(function), function.location:
        new, block = _signature(function, [*(a.type for a in old.arguments), *(r.type for r in results)], names)
        new.attributes["tilec.inputs"] = mlir.integer(len(old.arguments))
        memory = dict(zip(old.arguments, block.arguments))
        outs = list(block.arguments)[len(old.arguments) :]
        with ir.InsertionPoint(block):
            for value, out in zip(results, outs):
                memory.setdefault(value, out)
            for insertion in reversed([o.operation for o in old.operations if o.operation.name == "tensor.insert_slice"]):
                (whole,) = insertion.results  # what a kernel stores a slab of
                if whole not in memory:
                    memory[whole] = memref.AllocOp(memory_type(whole.type), [], []).result
                memory[insertion.operands[0]] = memory[whole]
                memory.setdefault(insertion.operands[1], memory[whole])
            for op in old.operations:
                if op.operation.name == "func.call":
                    _call(op.operation, memory)
                elif op.operation.name in ("tensor.expand_shape", "tensor.collapse_shape"):
                    memory[op.results[0]] = _in_shape(op, memory[op.operands[0]])
            for value, out in zip(results, outs):
                if memory[value] != out:  # an input, or a result that is returned twice
                    memref.CopyOp(memory[value], out)
            func.ReturnOp([])
    function.erase()


def _in_shape(op: ir.OpView, source: ir.Value) -> ir.Value:
    """One dimension written as two, or two as one: the same memory."""
    type_, groups = memory_type(op.results[0].type), op.attributes["reassociation"]
    if op.operation.name == "tensor.collapse_shape":
        return memref.CollapseShapeOp(type_, source, groups).result
    return memref.ExpandShapeOp(type_, source, groups, _varying(op.results[0]), list(type_.shape)).result


def _varying(result: ir.Value) -> list[ir.Value]:
    """The extents of a result that vary, computed of those of the program's arguments."""
    given = list(ir.InsertionPoint.current.block.arguments)
    return [emitted(n, given) for n in shape_of(result) if not isinstance(n, int)]


def _call(call: ir.Operation, memory: dict[ir.Value, ir.Value]) -> None:
    inputs = list(call.operands)[: len(call.operands) - len(call.results)]
    for result in call.results:
        if result not in memory:
            memory[result] = memref.AllocOp(memory_type(result.type), _varying(result), []).result
    with call.location:
        callee = mlir.callee(call)
        carry_over(call, func.CallOp([], callee, [memory[v] for v in (*inputs, *call.results)]))
