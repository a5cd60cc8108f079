"""A kernel's operations become a function, and its place a call; kernels that are equal call one function.

    y = generic exp(x) {kernel "f_y"}             func @f_y(x, out) { return generic exp(x) }
    v = generic exp(u) {kernel "f_v"}      ->     y = call @f_y(x, empty)
                                                  v = call @f_y(u, empty) {tilec.launch = "f_v"}

Equal kernels have the same operations, types and plan; names, places in the source, tensors and messages of checks may differ.
Each later pass, the printer and the compilers then see one kernel for all layers of a model. The call has what is its own: its
place, `tilec.launch`, the plan's name of it, and `tilec.checks`, its messages by those of the function.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from tilec.core import extents, locations, mlir
from tilec.core.extents import Extent
from tilec.core.mlir import func, ir, tensor
from tilec.core.structure import NAMES, structure_of

_OF_THE_PLAN = ("tilec.kernel", "tilec.loop_group", "tilec.multiplicand", "tilec.part", "tilec.stored")
"""What operations of a kernel do not keep."""
_DIFFERENT = (*NAMES, *_OF_THE_PLAN, "msg")  # in which the operations of equal kernels may differ


@dataclass(frozen=True)
class _Kernel:
    """A function that was made, and the messages of its checks in their order."""

    name: str
    checks: list[str]


class Outliner:
    """Makes kernels of a program, each after those that it reads from."""

    def __init__(self, function: ir.Operation):
        self.function = function
        (*_, self.end) = mlir.entry(function).operations
        module = function.parent.attributes
        self.plan: ir.DictAttr | dict[str, ir.Attribute] = ir.DictAttr(module["tilec.kernels"]) if "tilec.kernels" in module else {}
        self.made: dict[Hashable, list[_Kernel]] = {}
        self.names: dict[ir.Value, ir.Attribute] = {}  # of the results of calls
        self.moved = set[ir.Value]()
        self.varies = extents.sizes_of(function)

    def outline(self, name: str, ops: list[ir.Operation]) -> None:
        """Has a call make the results of a kernel's operations, and takes these away."""
        ops = _in_order(ops)
        made = [r for op in ops for r in op.results]
        inside = [inner for op in ops for inner in (op, *mlir.traverse(op))]
        local = _locals(inside)
        own = set(ops)
        outputs = [n for n, r in enumerate(made) if any(_outermost(user) not in own for user in mlir.uses(r))]
        structure, inputs = structure_of(*local, *ops, names=_DIFFERENT)
        checks = [ir.StringAttr(op.attributes["msg"]).value for op in inside if op.name == "cf.assert"]
        results = [made[n] for n in outputs]
        computed = {v: extents.value_of(v) for v in inputs if isinstance(v.type, ir.IndexType)}
        inputs = tuple(v for v in inputs if v not in computed)
        given = list(mlir.entry(self.function).arguments)
        for leaf in extents.lacking(computed.values(), [*inputs, *results]):  # a tensor of which the kernel has the extents alone
            inputs = tuple(dict.fromkeys((*inputs, extents.teller(leaf, given))))
        shapes = tuple(extents.shape_of(v) for v in (*inputs, *results)) if self.varies else ()
        isomorphic = self.made.setdefault((structure, tuple(outputs), self._planned(name), shapes, (*computed.values(),)), [])
        with mlir.fused_location(ops):
            kernel = next((k for k in isomorphic if renaming(k.checks, checks) is not None), None)
            if kernel is None:
                kernel = _Kernel(name, checks)
                isomorphic.append(kernel)
                self._function(name, [*local, *ops], inputs, results, computed)
            call = self._call(kernel.name, inputs, results)
        if kernel.name != name:
            name_launch(call, name, kernel.checks, checks)
        for old, new in zip(results, call.results):
            self._compute_extents_of(old, given)
            self.names[new] = self._name(old)
            old.replace_all_uses_with(new)
            whole = next((user for user in mlir.uses(new) if user.name == "tensor.insert_slice"), None)
            while whole is not None:  # and what has further parts
                whole.move_before(self.end.operation)
                further = (user for user in mlir.uses(whole.results[0]) if user.name == "tensor.insert_slice")
                whole = next(further, None)
        for op in reversed(ops):
            op.erase()

    def _compute_extents_of(self, result: ir.Value, given: list[ir.Value]) -> None:
        """Has the program compute extents that it asks a result for: it may do so where the call, which is at the end, has yet to
        come."""
        for user in [u for u in mlir.uses(result) if u.name == "tensor.dim" and u.parent == self.function]:
            with ir.InsertionPoint(user), user.location:
                found = extents.emitted(extents.value_of(user.results[0]), given)
            user.results[0].replace_all_uses_with(found)
            user.erase()

    def _planned(self, name: str) -> Hashable:
        """What the plan says of a kernel. Its predicted time follows from the rest."""
        if name not in self.plan:
            return None
        return tuple((entry.name, entry.attr) for entry in ir.DictAttr(self.plan[name]) if entry.name != "predicted_us")

    def _function(
        self, name: str, ops: list[ir.Operation], inputs: tuple[ir.Value, ...], results: list[ir.Value],
        computed: Mapping[ir.Value, Extent],
    ) -> None:  # fmt: skip
        """`computed`: the indices from outside that operations use, which the kernel computes of the extents that it is given."""
        with ir.InsertionPoint(self.function):
            types = [v.type for v in (*inputs, *results)]
            kernel = func.FuncOp(name, (types, [v.type for v in results]))
        kernel.attributes["tilec.kernel"] = ir.UnitAttr.get()
        if self.varies:
            kernel.attributes[extents.SIZES] = self.function.attributes[extents.SIZES]
        kernel.attributes["arg_attrs"] = ir.ArrayAttr.get([self._described(v) for v in (*inputs, *results)])
        block = kernel.add_entry_block()
        mapping = dict(zip(inputs, block.arguments))
        with ir.InsertionPoint(block):
            mapping |= {v: extents.emitted(x, list(block.arguments)) for v, x in computed.items()}
            for op in ops:
                copy = mlir.clone_op(op, mapping)
                if not mlir.is_generic(op):
                    continue
                for key in _OF_THE_PLAN:
                    if key in copy.attributes:
                        del copy.attributes[key]
                _name_dims(kernel.operation, copy)
            func.ReturnOp([mapping[v] for v in results])

    def _call(self, name: str, inputs: tuple[ir.Value, ...], results: list[ir.Value]) -> func.CallOp:
        for value in inputs:
            self._move_shapes(value)
        with ir.InsertionPoint(self.end):
            given = list(mlir.entry(self.function).arguments)
            shapes = [[n if isinstance(n, int) else extents.emitted(n, given) for n in extents.shape_of(v)] for v in results]
            fresh = [tensor.empty(shape, v.type.element_type) for shape, v in zip(shapes, results)]
            return func.CallOp([v.type for v in results], name, [*inputs, *fresh])

    def _move_shapes(self, value: ir.Value) -> None:
        """Moves the shapes that a value is seen through behind the call that returned what they show; one may show another."""
        shape = mlir.definition(value)
        if shape is not None and shape.name in mlir.SHOWN and value not in self.moved:
            self._move_shapes(shape.operands[0])
            shape.move_before(self.end.operation)
            self.moved.add(value)  # further calls come after it

    def _described(self, value: ir.Value) -> ir.Attribute:
        """The source's name of a tensor, and what it says of its extents where they vary."""
        if not self.varies or mlir.DYNAMIC not in value.type.shape:
            return self._name(value)
        words = [mlir.string(extents.text_of(n, self.varies)) for n in extents.shape_of(value)]
        own = {e.name: e.attr for e in ir.DictAttr(self._name(value))}
        return ir.DictAttr.get({**own, extents.EXTENTS: ir.ArrayAttr.get(words)})

    def _name(self, value: ir.Value) -> ir.Attribute:
        """The source's name of a tensor: `%0` says little in a kernel that a person reads."""
        owner = mlir.definition(value)
        if owner is None:
            return ir.ArrayAttr(self.function.attributes["arg_attrs"])[ir.BlockArgument(value).arg_number]
        if owner.name in mlir.SHOWN:
            return self._name(owner.operands[0])
        if value in self.names:
            return self.names[value]
        names = (mlir.get_string(owner, "tilec.name") or "t").split(",")
        position = list(owner.results).index(value)
        return ir.DictAttr.get({"tilec.name": mlir.string(names[min(position, len(names) - 1)])})


def renaming(first: list[str], second: list[str]) -> dict[str, str] | None:
    """Each message of the second kernel's checks by that of the first; None where one of the first's would be two."""
    found: dict[str, str] = {}
    same = all(found.setdefault(old, new) == new for old, new in zip(first, second, strict=True))
    return found if same else None


def name_launch(call: ir.OpView, name: str, known: list[str], checks: list[str]) -> None:
    """A call of a kernel that is isomorphic has the name and the messages of its own."""
    call.attributes["tilec.launch"] = mlir.string(name)
    if renamed := {old: new for old, new in (renaming(known, checks) or {}).items() if old != new}:
        call.attributes["tilec.checks"] = ir.DictAttr.get({old: mlir.string(new) for old, new in renamed.items()})


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
        before = [made[v] for v in mlir.operands_of(op) if v in made and made[v] != op]
        pending += [(op, True), *((o, False) for o in reversed(before))]
    return list(ordered)


def _outermost(op: ir.Operation) -> ir.Operation:
    """The operation of the function's own block that holds `op`."""
    while op.parent is not None and op.parent.operation.name != "func.func":
        op = op.parent.operation
    return op


def _locals(ops: list[ir.Operation]) -> list[ir.Operation]:
    """Constants, empty tensors and their fills that operations read from outside: cheaper to make again than to pass."""
    found: dict[ir.Operation, None] = {}

    def add(value: ir.Value) -> None:
        owner = mlir.definition(value)
        if owner is not None and owner.name in ("arith.constant", "tensor.empty", "linalg.fill") and owner not in inside:
            for operand in owner.operands:
                add(operand)
            found.setdefault(owner)

    inside = set(ops)
    for op in ops:
        for value in op.operands:
            add(value)
    return list(found)
