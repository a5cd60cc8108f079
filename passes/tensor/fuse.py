"""fuse: one function per kernel, as the plan groups the operations.

    func @softmax(x) {                       func @softmax(x, y) {            // tilec.kernel
      m = generic max(x)  {sweep 0}            m = generic max(x)
      e = generic exp(x - m)  {sweep 1}   ->   e, s = generic { exp(x - m); add }
      s = generic sum(e)  {sweep 1}            y = generic e / s
      y = generic e / s   {sweep 2}            return y
    }                                        }

Reads marked `tilec.recompute` are computed anew. Reductions marked `tilec.split` become two. Factors of contractions marked
`tilec.pack_left` or `tilec.pack_right` are stored by an operation of their own. Producers marked `tilec.inline` are computed
inside their readers. Operations of one loop nest over the same dimensions become one. Then each kernel's operations move into
a function, which takes its inputs and the tensors to write (destination style), and returns the written tensors. The program's
function keeps the calls in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

from tilec.analysis.loop_groups import GroupedOp, loop_nests
from tilec.core import locations, mlir, records
from tilec.core.diagnostics import InternalError
from tilec.core.mlir import func, ir, tensor
from tilec.kernels.attributes import Parts, Placement, StoredFactor
from tilec.passes.tensor.gathered import compute_anew
from tilec.passes.tensor.inline import inline_all
from tilec.passes.tensor.merge import merge
from tilec.passes.tensor.pack import SIDES, pack
from tilec.passes.tensor.split import split


def fuse(module: ir.Operation) -> None:
    (function,) = [f for f in mlir.functions(module) if "tilec.kernel" not in f.attributes]
    _recompute_all(function)
    inline_all(function)
    _split_all(function)
    _pack_all(function)
    order = _in_dependence(_kernels(function))
    for ops in order.values():
        _merge_loop_groups(ops)
    merged = _kernels(function)
    (*_, terminator) = mlir.entry(function).operations
    outlined: dict[str, ir.Operation] = {}
    for name in order:
        outlined[name] = _outline(function, name, merged[name], terminator, outlined)


def _generics(function: ir.Operation) -> list[ir.Operation]:
    return [op.operation for op in mlir.entry(function).operations if mlir.is_generic(op.operation)]


def _recompute_all(function: ir.Operation) -> None:
    for op in _generics(function):
        if "tilec.recompute" in op.attributes:
            placement = records.from_attribute(Placement, op.attributes["tilec.recompute"])
            del op.attributes["tilec.recompute"]
            placement.write(compute_anew(op))


def _split_all(function: ir.Operation) -> None:
    for op in _generics(function):
        if "tilec.split" in op.attributes:
            parts, placement = records.from_attribute(Parts, op.attributes["tilec.split"]), Placement.of(op)
            partial, combine = split(op, parts.dim, parts.parts)
            parts.write(partial)
            placement.write(combine)


def _pack_all(function: ir.Operation) -> None:
    for op in _generics(function):
        for side, name in enumerate(SIDES):
            if (key := f"tilec.pack_{name}") not in op.attributes:
                continue
            factor = records.from_attribute(StoredFactor, op.attributes[key])
            del op.attributes[key]
            stored, op = pack(op, side, factor.factor_dims, factor.kind, factor.stored_extents)
            factor.write(stored)


def _kernels(function: ir.Operation) -> dict[str, list[ir.Operation]]:
    """The operations of every kernel."""
    members: dict[str, list[ir.Operation]] = {}
    for op in _generics(function):
        members.setdefault(mlir.get_string(op, "tilec.kernel"), []).append(op)
    return members


def _in_dependence(members: dict[str, list[ir.Operation]]) -> dict[str, list[ir.Operation]]:
    """The kernels in an order in which each comes after the kernels that it reads from."""
    made = {r: name for name, ops in members.items() for op in ops for r in op.results}
    needs = {
        name: {made[v] for op in ops for v in map(mlir.source_of, _read(op)) if v in made} - {name}
        for name, ops in members.items()
    }
    level: dict[str, int] = {}
    try:
        for name in TopologicalSorter(needs).static_order():
            level[name] = 1 + max((level[n] for n in needs[name]), default=0)
    except CycleError as error:
        raise InternalError(f"kernels {sorted(error.args[1])} read from each other", "fuse") from None
    return {name: members[name] for name in sorted(members, key=level.__getitem__)}


def _read(op: ir.Operation) -> list[ir.Value]:
    """All values that an operation reads from outside: its operands, and values that its body captures."""
    return [*op.operands, *mlir.captured(op)]


def _merge_loop_groups(ops: list[ir.Operation]) -> None:
    """Merges the operations of a kernel that are of one loop nest and have the same kernel dimensions."""
    module = ops[0].parent.operation.parent.operation
    nests: dict[int, list[ir.Operation]] = {}
    for op, number in zip(ops, loop_nests([_grouped(op) for op in ops], mlir.get_string(module, "tilec.backend"))):
        nests.setdefault(number, []).append(op)
    for together in nests.values():
        if len(together) > 1:
            _merged(together)


def _grouped(op: ir.Operation) -> GroupedOp:
    dims = tuple(mlir.get_integers(op, "tilec.dims"))
    reduced = frozenset(k for k, kind in zip(dims, mlir.iterators_of(op)) if kind == "reduction")
    return GroupedOp(mlir.get_integer(op, "tilec.loop_group"), dims, reduced, "tilec.scan" in op.attributes)


def _merged(ops: list[ir.Operation]) -> None:
    position = {k: d for d, k in enumerate(mlir.get_integers(ops[0], "tilec.dims"))}
    kinds = [kind for o in ops if (kind := mlir.get_string(o, "tilec.reduce"))]
    names = [mlir.get_string(o, "tilec.name") for o in ops for _ in o.results]
    joined = merge(ops, [{d: position[k] for d, k in enumerate(mlir.get_integers(o, "tilec.dims"))} for o in ops])
    joined.attributes["tilec.name"] = mlir.string(",".join(names))
    if kinds:
        joined.attributes["tilec.reduce"] = mlir.string(",".join(kinds))


def _outline(
    function: ir.Operation, name: str, ops: list[ir.Operation], terminator: ir.OpView, outlined: Mapping[str, ir.Operation]
) -> ir.Operation:  # fmt: skip
    """Moves the operations of a kernel into a function, which it returns, and calls that. `outlined`: those before it, by name."""
    ops = _in_order(ops)
    made = [r for op in ops for r in op.results]
    inner, own = set(made), set(ops)
    needed = [v for v in dict.fromkeys(v for op in ops for v in _read(op)) if v not in inner]
    local = [v for v in needed if _is_local(v)]
    inputs = [v for v in needed if not _is_local(v)]
    outputs = [r for r in made if any(_outermost(user) not in own for user in mlir.uses(r))]
    with mlir.fused_location(ops):
        with ir.InsertionPoint(function):
            types = [v.type for v in (*inputs, *outputs)]
            kernel = func.FuncOp(name, (types, [v.type for v in outputs]))
        kernel.attributes["tilec.kernel"] = ir.UnitAttr.get()
        kernel.attributes["arg_attrs"] = ir.ArrayAttr.get([_names(v, function, outlined) for v in (*inputs, *outputs)])
        block = kernel.add_entry_block()
        mapping = dict(zip(inputs, block.arguments))
        with ir.InsertionPoint(block):
            for value in local:
                _clone_local(value, mapping)
            for op in ops:
                copy = mlir.clone_op(op, mapping)
                for key in ("tilec.kernel", "tilec.loop_group", "tilec.multiplicand"):
                    if key in copy.attributes:
                        del copy.attributes[key]
                _name_dims(kernel.operation, copy)
            func.ReturnOp([mapping[v] for v in outputs])
        for value in inputs:  # shapes of what earlier calls returned
            if (shape := mlir.definition(value)) is not None and shape.name == "tensor.expand_shape":
                shape.move_before(terminator.operation)
        with ir.InsertionPoint(terminator):
            fresh = [tensor.EmptyOp(list(v.type.shape), v.type.element_type).result for v in outputs]
            call = func.CallOp([v.type for v in outputs], name, [*inputs, *fresh])
    for old, new in zip(outputs, call.results):
        old.replace_all_uses_with(new)
    for op in reversed(ops):
        op.erase()
    return kernel.operation


def _name_dims(kernel: ir.Operation, op: ir.Operation) -> None:
    """The kernel calls its dimensions as the first operation does that has them, a second of one name with a number."""
    names = locations.indices(kernel)
    for d, name in zip(mlir.get_integers(op, "tilec.dims"), locations.indices(op)):
        names += [""] * (d + 1 - len(names))
        if not names[d]:
            free = (name, *(f"{name}_{n}" for n in range(2, len(names) + 2)))
            names[d] = next(n for n in free if n not in names)
    if locations.INDICES in op.attributes:
        del op.attributes[locations.INDICES]
    locations.set_indices(kernel, names)


def _in_order(ops: list[ir.Operation]) -> list[ir.Operation]:
    """Restores the order after merging: each operation after those that it reads from, else unchanged."""
    made = {r: op for op in ops for r in op.results}
    ordered: dict[ir.Operation, None] = {}
    pending = [(op, False) for op in reversed(ops)]
    while pending:
        op, entered = pending.pop()
        if op in ordered:
            continue
        if entered:
            ordered[op] = None
            continue
        before = [made[v] for v in _read(op) if v in made and made[v] != op]
        pending += [(op, True), *((o, False) for o in reversed(before))]
    return list(ordered)


def _outermost(op: ir.Operation) -> ir.Operation:
    """The operation of the function's own block that holds `op`."""
    while op.parent is not None and op.parent.operation.name != "func.func":
        op = op.parent.operation
    return op


def _is_local(value: ir.Value) -> bool:
    """Constants, empty tensors and their fills are cheaper to make again than to pass."""
    owner = value.owner
    return not isinstance(owner, ir.Block) and owner.name in ("arith.constant", "tensor.empty", "linalg.fill")


def _clone_local(value: ir.Value, mapping: dict[ir.Value, ir.Value]) -> None:
    if value in mapping:
        return
    owner = value.owner.operation if hasattr(value.owner, "operation") else value.owner
    for operand in owner.operands:
        _clone_local(operand, mapping)
    mlir.clone_op(owner, mapping)


def _names(value: ir.Value, function: ir.Operation, outlined: Mapping[str, ir.Operation]) -> ir.Attribute:
    """The source's name of a tensor: `%0` says little in a kernel that a person reads."""
    owner = mlir.definition(value)
    if owner is None:
        return ir.ArrayAttr(function.attributes["arg_attrs"])[value.arg_number]
    if owner.name == "tensor.expand_shape":
        return _names(owner.operands[0], function, outlined)
    if owner.name == "func.call":
        kernel = outlined[ir.FlatSymbolRefAttr(owner.attributes["callee"]).value]
        (*_, end) = mlir.entry(kernel).operations
        return _names(end.operands[ir.OpResult(value).result_number], kernel, outlined)
    names = (mlir.get_string(owner, "tilec.name") or "t").split(",")
    position = ir.OpResult(value).result_number
    return ir.DictAttr.get({"tilec.name": mlir.string(names[min(position, len(names) - 1)])})
