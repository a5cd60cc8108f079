"""forward: removes results that a kernel returns unchanged, and kernels without results.

    func @k(%x, %s, %y) { s = ...; return s, %x }        func @k(%x, %s) { s = ...; return s }
    s, y = call @k(%x, %s0, %y0); return s, y      ->    s = call @k(%x, %s0);                 return s, %x

`elements` finds almost all of these before anything is planned. This pass finds those that `elements` misses, since that
follows an element through a limited number of operations, and those in IR that a person wrote. A copy remains where a
result of the program needs it; the list of launches makes it.
"""

from __future__ import annotations

from tilec.core import mlir
from tilec.core.mlir import func, ir
from tilec.kernels.attributes import carry_over


def forward(module: ir.Operation) -> None:
    functions: dict[bool, list[ir.Operation]] = {True: [], False: []}
    for function in mlir.functions(module):
        functions["tilec.kernel" in function.attributes].append(function)
    kernels, (program,) = functions[True], functions[False]
    calls: dict[str, list[ir.Operation]] = {}
    for op in [o.operation for o in mlir.entry(program).operations]:
        if op.name == "func.call":
            calls.setdefault(mlir.callee(op), []).append(op)
    for kernel in kernels:
        _forward(kernel, calls[mlir.symbol(kernel)])


def _forward(kernel: ir.Operation, calls: list[ir.Operation]) -> None:
    """Removes the results that a kernel need not write, and the kernel if no result remains."""
    block = mlir.entry(kernel)
    end = list(block.operations)[-1].operation
    results, arguments = list(end.operands), list(block.arguments)
    inputs = len(arguments) - len(results)
    kept: list[int] = []
    for n, value in enumerate(results):
        if value in arguments:
            for call in calls:
                call.results[n].replace_all_uses_with(call.operands[arguments.index(value)])
        elif value in results[:n]:
            for call in calls:
                call.results[n].replace_all_uses_with(call.results[results.index(value)])
        else:
            kept.append(n)
    if len(kept) == len(results) and (results or any(mlir.is_generic(o.operation) for o in block.operations)):
        return
    if kept:
        _rebuild(kernel, calls, [*range(inputs), *(inputs + n for n in kept)], kept)
    for call in calls:
        call.erase()
    kernel.erase()


def _rebuild(kernel: ir.Operation, calls: list[ir.Operation], arguments: list[int], results: list[int]) -> None:
    """The kernel and its calls with some of their arguments and results."""
    block, name = mlir.entry(kernel), mlir.symbol(kernel)
    types = [block.arguments[n].type for n in arguments]
    names = list(ir.ArrayAttr(kernel.attributes["arg_attrs"]))
    end = list(block.operations)[-1].operation
    with ir.InsertionPoint(kernel), kernel.location:
        made = func.FuncOp(name, (types, [end.operands[n].type for n in results]))
        carry_over(kernel, made)
        made.attributes["arg_attrs"] = ir.ArrayAttr.get([names[n] for n in arguments])
        mapping = dict(zip((block.arguments[n] for n in arguments), made.add_entry_block().arguments))
        with ir.InsertionPoint(mlir.entry(made)):
            for op in list(block.operations)[:-1]:
                mlir.clone_op(op.operation, mapping)
            func.ReturnOp([mapping[end.operands[n]] for n in results])
    for call in calls:
        with ir.InsertionPoint(call), call.location:
            new = func.CallOp([call.results[n].type for n in results], name, [call.operands[n] for n in arguments])
        carry_over(call, new)
        for n, result in zip(results, new.results):
            call.results[n].replace_all_uses_with(result)
