"""fuse: one function per kernel, as the plan groups the operations.

    func @softmax(x) {                       func @softmax(x, y) {            // tilec.kernel
      m = generic max(x)  {group 0}            m = generic max(x)
      e = generic exp(x - m)  {group 1}   ->   e, s = generic { exp(x - m); add }
      s = generic sum(e)  {group 1}            y = generic e / s
      y = generic e / s   {group 2}            return y
    }                                        }

Producers marked `tilec.inline` are computed inside their readers. Operations of one loop nest over the same dimensions become one.
Then each kernel's operations move into a function, which takes its inputs and the tensors to write (destination style), and returns
the written tensors. Equal kernels share one (`outline.py`). The program's function keeps the calls in their order.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from tilec.analysis.loop_groups import GroupedOp, loop_nests
from tilec.core import mlir
from tilec.core.diagnostics import InternalError
from tilec.core.mlir import ir
from tilec.passes.tensor.inline import inline_all
from tilec.passes.tensor.merge import merge
from tilec.passes.tensor.outline import Outliner
from tilec.passes.tensor.slice_updates import SLAB


def fuse(module: ir.Operation) -> None:
    (function,) = [f for f in mlir.functions(module) if "tilec.kernel" not in f.attributes]
    inline_all(function)
    order = _in_dependence(_kernels(function))
    for ops in order.values():
        _merge_loop_groups(ops)
    for whole in [o for o in mlir.traverse(function) if o.name == "tensor.insert_slice" and len(o.operands) == 2]:
        begins = list(ir.DenseI64ArrayAttr(whole.attributes["static_offsets"]))
        mlir.definition(whole.operands[0]).attributes[SLAB] = mlir.integers([*begins, *ir.ShapedType(whole.results[0].type).shape])
    merged, outliner = _kernels(function), Outliner(function)
    for name in order:
        outliner.outline(name, merged[name])


def _generics(function: ir.Operation) -> list[ir.Operation]:
    return [op.operation for op in mlir.entry(function).operations if mlir.is_generic(op.operation)]


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
        name: {made[v] for op in ops for o in mlir.operands_of(op) for v in mlir.sources_of(o) if v in made} - {name}
        for name, ops in members.items()
    }
    level: dict[str, int] = {}
    try:
        for name in TopologicalSorter(needs).static_order():
            level[name] = 1 + max((level[n] for n in needs[name]), default=0)
    except CycleError as error:
        raise InternalError(f"kernels {sorted(error.args[1])} read from each other", "fuse") from None
    return {name: members[name] for name in sorted(members, key=level.__getitem__)}


def _merge_loop_groups(ops: list[ir.Operation]) -> None:
    """Merges the operations of a kernel that are of one loop nest and have the same kernel dimensions."""
    module = ops[0].parent.operation.parent.operation
    nests: dict[int, list[ir.Operation]] = {}
    for op, number in zip(ops, loop_nests([_grouped(op) for op in ops], mlir.get_string(module, "tilec.backend"))):
        nests.setdefault(number, []).append(op)
    for nest in nests.values():
        if len(nest) > 1:
            _merged(nest)


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
