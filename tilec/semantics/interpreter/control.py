"""`scf`, `func` and `cf`. Where lanes disagree, both branches run, each with a mask of its lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from tilec.core import mlir
from tilec.core.diagnostics import CheckError
from tilec.core.mlir import ir
from tilec.core.opcodes import opcode_of
from tilec.semantics.interpreter import ranks
from tilec.semantics.interpreter.code import (
    Block,
    Code,
    Context,
    Mask,
    Shared,
    Step,
    Values,
    Waiting,
    differs,
    merge,
    operation,
)
from tilec.semantics.interpreter.faults import Fault, Unsupported
from tilec.semantics.interpreter.memory import copy_of


def _step_of(resume: Callable[[Values, Mask], Iterator[None]], waits: bool) -> Step | Waiting:
    """A generator as a step: one that never yields runs to its end at once."""
    if waits:
        return Waiting(resume)

    def step(values: Values, mask: Mask) -> None:
        for _ in resume(values, mask):
            pass

    return step


def _go(block: Block, values: Values, mask: Mask) -> Iterator[None]:
    if block.waits:
        yield from block.resume(values, mask)
    else:
        block.run(values, mask)


def within(condition: np.ndarray, mask: Mask) -> np.ndarray:
    return condition if mask is None else condition & mask


# ---- loops -----------------------------------------------------------------------------------------------------------


@operation("scf.for")
def _for(code: Code, op: ir.Operation) -> Step | Waiting:
    low, high, step_, *initial = code.operands(op)
    results, block = code.results(op), code.block(op.regions[0].blocks[0])
    variable, *states = block.arguments

    def uniform(values: Values, mask: Mask) -> Iterator[None]:
        """All lanes take the same turns."""
        held = [values[s] for s in initial]
        for number in range(int(values[low]), int(values[high]), int(values[step_])):
            values[variable] = number
            for slot, value in zip(states, held):
                values[slot] = value
            yield from _go(block, values, mask)
            held = [values[s] for s in block.ends]
        for slot, value in zip(results, held):
            values[slot] = value

    def divergent(values: Values, mask: Mask) -> Iterator[None]:
        """Lanes leave the loop one after another."""
        lanes = values[0].lanes
        number, held = np.broadcast_to(values[low], lanes), [values[s] for s in initial]
        while (active := within(number < values[high], mask)).any():
            values[variable] = number
            for slot, value in zip(states, held):
                values[slot] = value
            yield from _go(block, values, None if active.all() else active)
            held = [merge(active, values[s], old) for s, old in zip(block.ends, held)]
            number = number + values[step_]
        for slot, value in zip(results, held):
            values[slot] = value

    def resume(values: Values, mask: Mask) -> Iterator[None]:
        if np.any(np.asarray(values[step_]) <= 0):
            raise Fault("invalid", op, f"a loop's step is {values[step_]}")
        bounds = any(differs(values[s]) for s in (low, high, step_))
        return divergent(values, mask) if bounds else uniform(values, mask)

    return _step_of(resume, block.waits)


@operation("scf.while")
def _while(code: Code, op: ir.Operation) -> Step:
    """A loop that carries nothing and only reads. All threads run it together, so the value that they wait for has been written
    when they look first, or will never be."""
    if len(op.operands) or len(op.regions[1].blocks[0].operations) > 1:
        raise Unsupported(op, "the values that it carries between iterations")
    block, results = code.block(op.regions[0].blocks[0]), code.results(op)

    def step(values: Values, mask: Mask) -> None:
        block.run(values, mask)
        condition, *found = block.ends
        running = np.logical_and(values[condition], True if mask is None else mask)
        if np.any(running):
            context = values[0]
            lanes = np.flatnonzero(np.broadcast_to(running, context.lanes or 1))
            raise Fault("stuck", op, "the value that the loop waits for is never written", context.names(lanes))
        for slot, value in zip(results, found):
            values[slot] = values[value]

    return step


@operation("scf.if")
def _if(code: Code, op: ir.Operation) -> Step | Waiting:
    (condition,), results = code.operands(op), code.results(op)
    blocks = [code.block(r.blocks[0]) if len(r.blocks) else None for r in op.regions]
    waits = any(b is not None and b.waits for b in blocks)

    def resume(values: Values, mask: Mask) -> Iterator[None]:
        taken = values[condition]
        if not differs(taken):
            ways = [(blocks[0 if taken else 1], mask)]
        else:
            then = within(taken, mask)
            other = within(~taken, mask)
            if not other.any():
                ways = [(blocks[0], mask)]
            elif not then.any():
                ways = [(blocks[1], mask)]
            else:
                ways = [(blocks[0], then), (blocks[1], other)]
        taken_ways = [(b, m) for b, m in ways if b is not None]
        if len(taken_ways) == 2 and waits:
            yield from interleaved([_go(b, values, m) for b, m in taken_ways])
        else:
            for block, lanes in taken_ways:
                yield from _go(block, values, lanes)
        for n, result in enumerate(results):
            found = [values[b.ends[n]] for b, _ in taken_ways]
            values[result] = merge(then, *found) if len(found) == 2 else found[0]

    return _step_of(resume, waits)


def interleaved(tasks: list[Iterator[None]]) -> Iterator[None]:
    """Runs tasks in turn, each until it waits."""
    while tasks:
        for task in list(tasks):
            try:
                next(task)
            except StopIteration:
                tasks.remove(task)
        if tasks:
            yield


@operation("scf.forall")
def _forall(code: Code, op: ir.Operation) -> Step:
    """Blocks one after another; each sees the shared results as they were before the loop."""
    given, bounds = iter(code.operands(op)), []
    for name in ("staticLowerBound", "staticUpperBound", "staticStep"):
        numbers = list(ir.DenseI64ArrayAttr(op.attributes[name]))
        bounds.append([(next(given), None) if n == mlir.DYNAMIC else (None, n) for n in numbers])
    shared, results = list(given), code.results(op)
    inner = op.regions[0].blocks[0]
    states = [code.slot(a) for a in list(inner.arguments)[len(bounds[0]) :]]
    targets = [code.targets.setdefault(s, code.fresh()) for s in states]
    block = code.block(inner)
    variables = block.arguments[: len(bounds[0])]

    def blocks(frames: list[Values], context: Context) -> None:
        for frame in frames:
            frame[0].launch()
        ends = ([int(frames[0][s]) if s is not None else n for s, n in part] for part in bounds)
        for point in product(*map(range, *ends)):
            for frame in frames:
                frame[0].block += 1
                for slot, index in zip(variables, point):
                    frame[slot] = index
            if context.rank is None:
                block.run(frames[0], None)
            else:
                ranks.run(block, frames)
        for frame in frames:
            frame[0].launch()

    def step(values: Values, mask: Mask) -> None:
        made = [copy_of(values[s]) for s in shared]
        for state, target, slot, view in zip(states, targets, shared, made):
            values[state], values[target] = values[slot], view
        blocks([values], values[0])
        for slot, view in zip(results, made):
            values[slot] = view

    return Shared(step, lambda frames: blocks(frames, frames[0][0]))  # of a loop in memory: nothing is shared


# ---- functions and checks --------------------------------------------------------------------------------------------


@operation("func.call")
def _call(code: Code, op: ir.Operation) -> Step | Waiting:
    name = mlir.callee(op)
    if code.program.is_declared(name):
        from tilec.semantics.interpreter.wgmma import device_function

        return device_function(code, op, opcode_of(op))
    arguments, results = code.operands(op), code.results(op)
    checks = ir.DictAttr(op.attributes["tilec.checks"]) if "tilec.checks" in op.attributes else ()
    own = {entry.name: ir.StringAttr(entry.attr).value for entry in checks}

    def step(values: Values, mask: Mask) -> None:
        if values[0].lanes is not None:
            raise Unsupported(op, "a call by threads")
        try:
            found = code.program.call(name, values[0], [values[s] for s in arguments])
        except CheckError as error:
            raise CheckError(own.get(str(error), str(error))) from None
        for slot, value in zip(results, found):
            values[slot] = value

    return step


@operation("cf.assert")
def _assert(code: Code, op: ir.Operation) -> Step:
    """A run-time check of the program's own: its message is the user's mistake."""
    (condition,) = code.operands(op)
    message = ir.StringAttr(op.attributes["msg"]).value

    def step(values: Values, mask: Mask) -> None:
        failed = np.logical_not(values[condition])
        if np.any(failed if mask is None else failed & mask):
            raise CheckError(message)

    return step
