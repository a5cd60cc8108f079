"""The combination of two partial states of a reduction, read from the body that adds one element to a state.

body: (x, s) -> s + f(x)                          combine: (a, b) -> a + b
body: (x, s, p) -> (better ? f(x) : s, ...)       combine: (a, b) -> better of the two (value, index) pairs
"""

from __future__ import annotations

from tilec.core import mlir
from tilec.core.diagnostics import InternalError
from tilec.core.mlir import arith, ir

BINARY = {
    "arith.addf", "arith.mulf", "arith.addi", "arith.muli", "arith.maximumf", "arith.minimumf", "arith.maxnumf",
    "arith.minnumf", "arith.maxsi", "arith.minsi", "arith.maxui", "arith.minui", "arith.ori", "arith.andi",
}  # fmt: skip
INVERSE = {"arith.subf": "arith.addf", "arith.subi": "arith.addi"}  # s - f(x) sums the terms that it subtracts


class Combiner:
    """Combines partial states of the outputs `states` (positions among the block's arguments) of a generic. Outputs whose
    updates read each other's states (a value and its index) form one group, and are combined together."""

    def __init__(self, op: ir.Operation, states: list[int]):
        block = mlir.body_of(op)
        count = len(mlir.inputs_of(op))
        results = list(list(block.operations)[-1].operands)
        arguments = list(block.arguments)
        self.block, self.name, self.count = block, mlir.get_string(op, "tilec.name"), count
        self.state = {n: arguments[n] for n in states}
        self.update = {n: results[n - count] for n in states}

    def tensor(self, n: int) -> str | None:
        """The source's name of a state."""
        names = self.name.split(",") if self.name else [None]
        return names[min(n - self.count, len(names) - 1)]

    def groups(self) -> list[list[int]]:
        """The states in sets that are combined together."""
        groups: list[set[int]] = []
        for n in self.state:
            mine = {n} | {m for m, s in self.state.items() if mlir.depends(self.block, self.update[n], s)}
            for group in [g for g in groups if g & mine]:
                groups.remove(group)
                mine |= group
            groups.append(mine)
        return [sorted(g) for g in groups]

    def combine(self, group: list[int], a: list[ir.Value], b: list[ir.Value]) -> list[ir.Value]:
        """Builds the combination of the states `a` and `b` of one group at the insertion point."""
        if len(group) == 1:
            return [self._binary(group[0], a[0], b[0])]
        mapping = {self.state[n]: v for n, v in zip(group, a)}
        for n, v in zip(group, b):
            if self.update[n] != self.state[n]:
                mapping.setdefault(self._element(n), v)
        return [self._build(self.update[n], mapping) for n in group]

    def _binary(self, n: int, a: ir.Value, b: ir.Value) -> ir.Value:
        if self.update[n] == self.state[n]:  # elements that change nothing: every partial state is the first one
            return a
        op = mlir.definition(self.update[n])
        if op is not None and op.name == "arith.constant" and isinstance(a.type, ir.IntegerType):
            return self._absorbed(op, a, b)
        if self._absorbs(n, op):
            return self._build(self.update[n], {self.state[n]: a, self._element(n): b})
        name = INVERSE.get(op.name, op.name)
        if name not in BINARY or self.state[n] not in list(op.operands):
            raise self._error(n)
        combined = ir.Operation.create(name, results=[a.type], operands=[a, b])
        return combined.results[0]

    def _absorbed(self, constant: ir.Operation, a: ir.Value, b: ir.Value) -> ir.Value:
        """Any element makes the state this constant (`any` of true, a product with 0): a state is it, or has seen none."""
        value = constant.clone().results[0]
        return arith.select(arith.cmpi(arith.CmpIPredicate.eq, a, value), a, b)

    def _absorbs(self, n: int, op: ir.Operation) -> bool:
        """Whether an element is taken unless the state says otherwise: partial states that were combined by `_absorbed`, whose
        combination is combined again."""
        if isinstance(op, ir.Block) or op.name != "arith.select" or self.state[n] not in list(op.operands)[1:]:
            return False
        return mlir.depends(self.block, op.operands[0], self.state[n]) and not any(
            mlir.depends(self.block, op.operands[0], a) for a in self.block.arguments if a != self.state[n]
        )

    def _element(self, n: int) -> ir.Value:
        """The part of an element's own state that output `n` may take."""
        select = self.update[n].owner
        if isinstance(select, ir.Block) or select.name != "arith.select":
            raise self._error(n)
        _, taken, kept = select.operands
        return taken if kept == self.state[n] else kept

    def _build(self, value: ir.Value, mapping: dict[ir.Value, ir.Value]) -> ir.Value:
        if value in mapping:
            return mapping[value]
        owner = value.owner
        if isinstance(owner, ir.Block):
            if owner == self.block:
                raise InternalError(f"the update of {self.name} is no combination of states", "map")
            return value
        if owner.operation.block != self.block:
            return value
        for operand in owner.operands:
            self._build(operand, mapping)
        mlir.clone_op(owner.operation, mapping)
        return mapping[value]

    def _error(self, n: int) -> InternalError:
        return InternalError(f"no way to combine partial states of {self.name}: {self.update[n].owner}", "map")
