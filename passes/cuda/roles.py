"""Who does what where warps divide the work (Hopper): a warpgroup copies, others multiply, together or by turns (ping-pong)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from tilec.core import locations, mlir, opcodes
from tilec.core.hardware import WARP, WARPGROUP
from tilec.core.mlir import arith, gpu, ir, nvvm, scf
from tilec.core.opcodes import NamedBarrier, WarpgroupWait
from tilec.passes.cuda.contraction.problem import Thread
from tilec.passes.loops import below, sum_of, when

REGISTERS = 1 << 16  # of an SM


class Roles:
    """Warpgroup 0 is the producer, of which the first `loaders` threads work; those from 1 on are the consumers."""

    def __init__(self, thread: Thread, consumers: int, loaders: int = 1):
        self.thread, self.consumers, self.loaders = thread, consumers, loaders
        i32 = ir.IntegerType.get_signless(32)
        number = arith.index_cast(i32, arith.shrui(thread.number, mlir.index(WARPGROUP.bit_length() - 1)))
        # of one lane, so that ptxas sees that it is the same for a warp, and computes addresses of tiles once for all lanes
        uniform = gpu.ShuffleOp(number, mlir.constant(0, i32), mlir.constant(WARP, i32), gpu.ShuffleMode.IDX).results[0]
        self.warpgroup = locations.named(arith.index_cast(ir.IndexType.get(), uniform), "warpgroup")

    @property
    def consumer(self) -> ir.Value:
        """The number of this warpgroup among the consumers."""
        return mlir.index(0) if self.consumers == 1 else sum_of([(self.warpgroup, 1)], -1)

    def divide(self, registers: int, produce: Callable[[], None], consume: Callable[[], None]) -> None:
        """Builds both sides: `produce` for the producer, `consume` for all of the consumers. A thread of the producer keeps so many
        of its registers; the consumers get the others, but for a single one, which has enough."""
        at_launch = REGISTERS // (WARPGROUP * (self.consumers + 1)) // 8 * 8
        others = (at_launch * (self.consumers + 1) - registers) // self.consumers // 8 * 8
        producer = arith.cmpi(arith.CmpIPredicate.eq, self.warpgroup, mlir.index(0))
        choice = scf.IfOp(locations.named(producer, "is_producer"), has_else=True)
        with ir.InsertionPoint(choice.then_block):
            self._move(registers, "decrease")
            with nullcontext() if self.loaders == WARPGROUP else when(below(self.thread.number, self.loaders)):
                produce()
            scf.YieldOp([])
        with ir.InsertionPoint(choice.else_block):
            self._move(others, "increase")
            consume()
            scf.YieldOp([])

    def one(self) -> AbstractContextManager[object]:
        """What one of the threads that load does alone."""
        if self.loaders == 1:
            return nullcontext()
        return when(arith.cmpi(arith.CmpIPredicate.eq, self.thread.number, mlir.index(0)))

    def _move(self, count: int, action: str) -> None:
        if self.consumers > 1:
            nvvm.SetMaxRegisterOp(count, ir.Attribute.parse(f"#nvvm<action {action}>"))


def wait_for_products(function: ir.Operation, running: int, *registers: ir.Value) -> None:
    """Until at most so many asynchronous products run. `registers`: those that the others write, and read."""
    opcodes.call(function, WarpgroupWait(running), list(registers))


def ping_pong(function: ir.Operation, roles: Roles, action: str) -> None:
    """Ping-pong: waits until this warpgroup may multiply, or lets the next one: barriers 1 and up, one for each.

    A call, since upstream's `nvvm.barrier` with a number does not parse again with locations.
    """
    i32 = ir.IntegerType.get_signless(32)
    both = mlir.constant(2 * 128, i32)
    number = roles.warpgroup
    if action == "arrive":
        number = sum_of([(number, -1)], 3) if roles.consumers == 2 else _following(number, roles.consumers)
    number = arith.index_cast(i32, number)
    opcodes.call(function, NamedBarrier(waits=action == "sync"), [number, both])


def begin_ping_pong(function: ir.Operation, roles: Roles) -> None:
    """Ping-pong: once, before all others. The first warpgroup multiplies first."""
    with when(arith.cmpi(arith.CmpIPredicate.eq, roles.warpgroup, mlir.index(roles.consumers))):
        ping_pong(function, roles, "arrive")


def _following(number: ir.Value, count: int) -> ir.Value:
    """Of numbers from 1 to `count`, the one after this, in turn."""
    return sum_of([(arith.remui(number, mlir.index(count)), 1)], 1)
