"""emit: what an expression computes at a place, as operations at the insertion point.

    y[i] = exp(x[i] * 2)  at i = 7    ->    %x = memref.load x[7];  %p = arith.mulf %x, 2.0;  math.exp %p

An expression is a value of an operation's body, or an `Expr`, which is read through the bodies of several operations. An
environment says what its leaves are at the place: elements of operands, indices, states.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from tilec.analysis.expression import Expr, operation
from tilec.core import mlir
from tilec.core.mlir import ir

Scalar = TypeVar("Scalar", ir.Value, Expr)


class Environment(ABC, Generic[Scalar]):
    """What is known at a place: `known` has the value of each part that has been computed there, or was given."""

    known: dict[Scalar, ir.Value]

    @abstractmethod
    def leaf(self, x: Scalar) -> ir.Value | None:
        """The value of a part that is not computed of its own parts."""

    @abstractmethod
    def parts(self, x: Scalar) -> Sequence[Scalar] | None:
        """The parts that another one is computed of; None of a leaf that is not known yet."""

    @abstractmethod
    def compute(self, x: Scalar) -> None:
        """Has `known` a part all of whose own parts it has."""


def emit(x: Scalar, environment: Environment[Scalar]) -> ir.Value | None:
    """The value of an expression. Each of its parts is computed once, after those that it is made of. The result is None if a leaf
    is not known yet: then all that does not depend on that leaf is computed."""
    known, waiting, entered, pending = environment.known, set[Scalar](), set[Scalar](), [x]
    while pending:
        part = pending[-1]
        if part in known or part in waiting:
            pending.pop()
            continue
        if part not in entered:
            entered.add(part)
            if (value := environment.leaf(part)) is not None:
                known[part] = value
                continue
        parts = environment.parts(part)
        if parts is not None and (missing := [p for p in parts if p not in known and p not in waiting]):
            pending += reversed(missing)
        elif parts is None or not waiting.isdisjoint(parts):
            waiting.add(part)
        else:
            environment.compute(part)
    return known.get(x)


Leaf = Callable[[int], ir.Value | None]


def _unknown(_: int) -> None:
    return None


class Body(Environment[ir.Value]):
    """The values of an operation's body. `element` says what an operand's element is, by its number, and `index` the index of one
    of the operation's dimensions; None while that is not known. They are asked where it is needed first, and not again."""

    def __init__(
        self, block: ir.Block, element: Leaf | None = None, index: Leaf | None = None,
        known: dict[ir.Value, ir.Value] | None = None,
    ):  # fmt: skip
        self.block, self.element, self.index = block, element or _unknown, index or _unknown
        self.known = {} if known is None else known

    def leaf(self, x: ir.Value) -> ir.Value | None:
        if isinstance(x.owner, ir.Block):
            return self.element(ir.BlockArgument(x).arg_number) if x.owner == self.block else x
        owner = x.owner.operation
        if owner.name == "linalg.index":  # also one inside of a branch, of whose condition it is independent
            return self.index(mlir.index_dim(owner))
        return None if owner.block == self.block else x

    def parts(self, x: ir.Value) -> list[ir.Value] | None:
        owner = mlir.definition(x)
        return None if owner is None or owner.name == "linalg.index" else mlir.operands_of(owner)

    def compute(self, x: ir.Value) -> None:
        mlir.clone_op(x.owner.operation, self.known)

    def value(self, x: ir.Value) -> ir.Value:
        """What a value of the body is at a place where all leaves are known."""
        found = emit(x, self)
        assert found is not None, "a leaf is not known"
        return found

    def values(self) -> list[ir.Value]:
        """All of the body: its checks, and what it yields; indices first."""
        *operations, end = [o.operation for o in self.block.operations]
        for op in sorted(operations, key=lambda o: o.name != "linalg.index"):
            self.copy(op)
        return [self.value(v) for v in end.operands]

    def needed(self) -> list[ir.Value]:
        """What it yields, and its checks, without what neither takes: parts of what is known may not be there."""
        *operations, end = [o.operation for o in self.block.operations]
        for op in operations:
            if not len(op.results):
                self.copy(op)
        return [self.value(v) for v in end.operands]

    def copy(self, op: ir.Operation) -> None:
        """Has the value of one of the body's operations, or makes its check."""
        if len(op.results):
            self.value(op.results[0])
            return
        for v in mlir.operands_of(op):
            self.value(v)
        mlir.clone_op(op, self.known)


def substitute(op: ir.Operation, x: Expr) -> ir.Value:
    """Has an expression take the place of an operation's result; its leaves are numbers and values that stand before it."""
    with ir.InsertionPoint(op), op.location:
        value = emit(x, Expressions(given, {}))
    assert value is not None, "numbers and values are known"
    op.results[0].replace_all_uses_with(value)
    op.erase()
    return value


def given(x: Expr) -> ir.Value | None:
    """A number, or a value from outside."""
    return mlir.constant(x.key, mlir.type_of(x.type)) if x.op == "constant" else x.key if x.op == "outer" else None


class Expressions(Environment[Expr]):
    """Expressions that are read through several bodies."""

    def __init__(self, leaf: Callable[[Expr], ir.Value | None], known: dict[Expr, ir.Value]):
        self._leaf, self.known = leaf, known

    def leaf(self, x: Expr) -> ir.Value | None:
        return self._leaf(x)

    def parts(self, x: Expr) -> tuple[Expr, ...]:
        return x.args

    def compute(self, x: Expr) -> None:
        self.known[x] = operation(x, [self.known[a] for a in x.args])
