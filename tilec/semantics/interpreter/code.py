"""A function's operations as Python closures over a list of values.

Every SSA value has a slot in the list; slot 0 holds the `Context`. A step is called with the list and a mask of the lanes
that take part (None: all). A value is a number where it is the same for all lanes, else an array with one element a lane;
vectors have further axes behind. The elements of lanes that take no part are never used.

Steps that may have to wait for another thread are generators: they yield while they wait (`Waiting`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias, TypeGuard

import ml_dtypes
import numpy as np

from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.core.opcodes import NamedBarrier, opcode_of
from tilec.semantics.interpreter.faults import Unsupported

Values = list
Mask = np.ndarray | None
Index: TypeAlias = int | np.ndarray
"""A whole number, or one for each lane."""
Scalar: TypeAlias = bool | int | float | np.generic | np.ndarray
"""A number, or one for each lane."""
Step = Callable[[Values, Mask], None]


class Waiting:
    """A step that is a generator."""

    def __init__(self, resume: Callable[[Values, Mask], Iterator[None]]):
        self.resume = resume


class Shared:
    """A step that the ranks of a cluster may take together, whose values `for_ranks` gets."""

    def __init__(self, alone: Step, for_ranks: Callable[[list[Values]], None]):
        self.alone, self.for_ranks = alone, for_ranks

    def __call__(self, values: Values, mask: Mask) -> None:
        self.alone(values, mask)


Maker: TypeAlias = "Callable[[Code, ir.Operation], Step | Waiting | None]"
OPERATIONS: dict[str, Maker] = {}
"""Functions that make the step of an operation, by its name."""

ENDS = ("func.return", "scf.yield", "scf.condition", "linalg.yield", "scf.forall.in_parallel")


def operation(*names: str) -> Callable[[Maker], Maker]:
    """Enters a maker of steps into the table."""

    def enter(make: Maker) -> Maker:
        OPERATIONS.update(dict.fromkeys(names, make))
        return make

    return enter


class Context:
    """The context of steps. `lanes`: the elements of a value that differs from lane to lane; None: no value differs."""

    row_of: np.ndarray  # this and what follows: of `flight.Threads` alone
    thread_of: np.ndarray
    block_of: np.ndarray
    completed: np.ndarray
    kernel: Any
    flight: Any

    def __init__(self, lanes: int | None = None):
        self.lanes = lanes
        self.block, self.launches = 0, 0  # of blocks that run one after another; they count on over launches
        self.first_block = 0
        self.rank: int | None = None  # in a cluster, of a block whose threads are not mapped yet

    def launch(self) -> None:
        """What ran before is over for every block that follows."""
        self.first_block = self.block + 1

    def names(self, lanes: np.ndarray) -> list[tuple[int, int]]:
        """(block, thread) of lanes, for messages; lanes of a context without threads have no names."""
        return []

    def agent_name(self, number: int) -> str:
        """One that accesses memory, for messages."""
        raise NotImplementedError

    def reach(self, op: ir.Operation, rows: np.ndarray, lanes: np.ndarray) -> None:
        """These lanes use memory of the flight's blocks `rows`."""
        raise NotImplementedError


class Block:
    """A block's steps, and the slots of its arguments and of its terminator's operands."""

    def __init__(self, code: Code, block: ir.Block):
        self.arguments = [code.slot(a) for a in block.arguments]
        made: list[Step | Waiting | None] = []
        self.ends: list[int] = []
        for view in block.operations:
            op = view.operation
            if op.name in ENDS:
                self.ends = [code.slot(v) for v in op.operands]
                made += [code.step(inner) for inner in mlir.traverse(op)]
            else:
                made.append(code.step(op))
        self.steps = [s for s in made if s is not None]
        self.waits = any(isinstance(s, Waiting) for s in self.steps)

    def run(self, values: Values, mask: Mask) -> None:
        for step in self.steps:
            assert not isinstance(step, Waiting), "`waits` says so"
            step(values, mask)

    def resume(self, values: Values, mask: Mask) -> Iterator[None]:
        """As `run`, where a step may wait."""
        for step in self.steps:
            if isinstance(step, Waiting):
                yield from step.resume(values, mask)
            else:
                step(values, mask)


class Program(Protocol):
    """A module's functions by name."""

    def is_declared(self, name: str) -> bool: ...

    def call(self, name: str, context: Context, arguments: list) -> list: ...


class Code:
    """One function. `program` is asked for the functions that it calls."""

    def __init__(self, program: Program, function: ir.Operation):
        self.program, self.function = program, function
        self.slots: dict[ir.Value, int] = {}
        self.template: Values = [None]
        self.dims: dict[ir.Operation, list[int]] = {}  # slots of a generic's coordinates
        self.targets: dict[int, int] = {}  # where slices go that are inserted into a forall's shared result
        self.uses: set[str] = {function.name}
        self.shared, self.cell, self.barriers = 0, 8, 0  # bytes of workgroup memory, its smallest element, mbarriers
        self.divergent = any(
            _waits(op) for op in mlir.traverse(function)
        )  # whether groups of threads go on at their own pace
        self.body = Block(self, mlir.entry(function))

    def slot(self, value: ir.Value) -> int:
        found = self.slots.get(value)
        if found is None:
            found = self.slots[value] = self.fresh()
        return found

    def fresh(self) -> int:
        self.template.append(None)
        return len(self.template) - 1

    def operands(self, op: ir.Operation) -> list[int]:
        return [self.slot(v) for v in op.operands]

    def results(self, op: ir.Operation) -> list[int]:
        return [self.slot(v) for v in op.results]

    def block(self, block: ir.Block) -> Block:
        return Block(self, block)

    def step(self, op: ir.Operation) -> Step | Waiting | None:
        maker = OPERATIONS.get(op.name)
        if maker is None:
            raise Unsupported(op)
        self.uses.add(op.name)
        return maker(self, op)

    def frame(self, context: Context, arguments: list) -> Values:
        values = list(self.template)
        values[0] = context
        for slot, value in zip(self.body.arguments, arguments):
            values[slot] = value
        return values

    def call(self, context: Context, arguments: list) -> list:
        """Runs the function for one thread. Returns its results."""
        values = self.frame(context, arguments)
        self.body.run(values, None)
        return [values[s] for s in self.body.ends]


def _waits(op: ir.Operation) -> bool:
    """Whether some threads of a block may have to wait here for others elsewhere."""
    if op.name == "func.call":
        return opcode_of(op) == NamedBarrier(waits=True)
    return op.name == "nvgpu.mbarrier.try_wait.parity"


# ---- types -----------------------------------------------------------------------------------------------------------

_DTYPES = {
    "index": np.int64, "i1": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "f16": np.float16, "f32": np.float32, "f64": np.float64, "tf32": np.float32, "bf16": ml_dtypes.bfloat16,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E5M2": ml_dtypes.float8_e5m2,
}  # fmt: skip


def dtype_of(type_: ir.Type) -> np.dtype:
    """The NumPy type of a scalar type, or of a shaped type's elements. Signless integers are kept as signed."""
    element = type_.element_type if isinstance(type_, ir.ShapedType) else type_
    return np.dtype(_DTYPES[str(element)])


def shape_of(type_: ir.Type) -> tuple[int, ...]:
    return tuple(ir.ShapedType(type_).shape)


# ---- values by lanes -------------------------------------------------------------------------------------------------


def differs(value: object) -> TypeGuard[np.ndarray]:
    """Whether a scalar value is one a lane."""
    return isinstance(value, np.ndarray) and value.ndim > 0


def among(condition: np.ndarray, like: object) -> np.ndarray:
    """A condition of lanes with further axes for those of a vector."""
    extra = getattr(like, "ndim", 0) - condition.ndim
    return condition.reshape(condition.shape + (1,) * extra) if extra > 0 else condition


def merge(condition: np.ndarray, then: Scalar, otherwise: Scalar) -> Scalar:
    """By lane, one value or the other."""
    if then is otherwise:
        return then
    like = then if getattr(then, "ndim", 0) >= getattr(otherwise, "ndim", 0) else otherwise
    return np.where(among(condition, like), then, otherwise)
