"""launches: kernels that share a launch become one function, whose first blocks do the work of the first, and so on.

    tilec.launches = {f_y_launch = ["f_y", "f_z"]}

    func @f_y(%x, %y) { %b = gpu.block_id  ... }             func @f_y_launch(%x, %y, %u, %z) {
    func @f_z(%u, %z) { %b = gpu.block_id  ... }               %b = gpu.block_id
                                                     ->        if %b < 4 { ... } else { %c = %b - 4  ... }
    call @f_y(%x, %y)                                        }
    call @f_z(%u, %z)                                        call @f_y_launch(%x, %y, %u, %z)

The kernels have no clusters and no loop over tiles, and none reads or overwrites what another uses. What stands between their calls
is moved before or behind. A block has the threads of the largest; in a smaller kernel's blocks, those beyond its own have nothing
to do, and barriers count its own. Launches of equal kernels call one function, as kernels that are equal do.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from tilec.core import extents, locations, mlir, opcodes
from tilec.core.diagnostics import InternalError
from tilec.core.extents import Extent
from tilec.core.mlir import arith, func, gpu, ir, scf
from tilec.core.opcodes import NamedBarrier
from tilec.core.order import topological
from tilec.core.varying import Varies, Varying
from tilec.passes.cuda.memory_spaces import root
from tilec.passes.loops import below, when
from tilec.passes.tensor.outline import name_launch, renaming

LAUNCHES = "tilec.launches"
_LOCAL = ("memref.alloc", "memref.alloca")
_STORES = ("memref.store", "vector.store", "memref.atomic_rmw")
_BOX = "nvgpu.tma.async.store"
_SEEN = ("memref.expand_shape", "memref.collapse_shape")


def share_launches(module: ir.Operation) -> None:
    if LAUNCHES not in module.attributes:
        return
    launches = {
        entry.name: [ir.StringAttr(name).value for name in ir.ArrayAttr(entry.attr)]
        for entry in ir.DictAttr(module.attributes[LAUNCHES])
    }
    (program,) = [f for f in mlir.functions(module) if "tilec.kernel" not in f.attributes]
    functions = {mlir.symbol(f): f for f in mlir.functions(module)}
    calls = {_planned(op): op for op in _operations(program) if op.name == "func.call"}
    groups = {name: [calls[kernel] for kernel in kernels] for name, kernels in launches.items()}
    _gather(program, list(groups.values()), functions)
    made: dict[tuple[str, ...], list[_Launch]] = {}
    for name, members in groups.items():
        callees = [functions[mlir.callee(call)] for call in members]
        isomorphic = made.setdefault(tuple(map(mlir.symbol, callees)), [])
        checks = [message for call, f in zip(members, callees) for message in _messages(call, f)]
        launch = next((known for known in isomorphic if renaming(known.checks, checks) is not None), None)
        if launch is None:
            launch = _Launch(name, checks)
            isomorphic.append(launch)
            _function(name, members, callees)
        _call(name, launch, checks, members)
    used = {mlir.callee(op) for op in _operations(program) if op.name == "func.call"}
    for name in {mlir.symbol(f) for isomorphic in made for f in map(functions.__getitem__, isomorphic)} - used:
        functions[name].erase()


@dataclass(frozen=True)
class _Launch:
    """A function that was made, and the messages of its checks in their order."""

    name: str
    checks: list[str]


# ---- the order of the program --------------------------------------------------------------------------------------------


def _gather(
    program: ir.Operation, groups: Sequence[Sequence[ir.Operation]], functions: dict[str, ir.Operation]
) -> None:
    """Brings the calls of each group together, all else staying in order as far as memory demands no other."""
    (*operations, end) = _operations(program)
    views = [op for op in operations if op.name in (*_LOCAL, *_SEEN, "arith.constant") or _is_extent(op)]
    steps = [op for op in operations if op not in views]
    unit = {op: n for n, op in enumerate(steps)}
    for group in groups:
        unit.update(dict.fromkeys(group, min(unit[op] for op in group)))
    needs: list[set[int]] = [set() for _ in steps]
    writer: dict[ir.Value, ir.Operation] = {}
    readers: dict[ir.Value, list[ir.Operation]] = {}
    written = {name: _written(f) for name, f in functions.items() if f != program}
    for op in steps:
        reads, writes = _touched(op, written)
        before = [writer[m] for m in (*reads, *writes) if m in writer] + [o for m in writes for o in readers.get(m, [])]
        for other in before:
            if unit[other] == unit[op]:
                raise InternalError(f"{_planned(other)} and {_planned(op)} cannot run at once", "map", str(program))
            needs[unit[op]].add(unit[other])
        for memory in reads - writes:
            readers.setdefault(memory, []).append(op)
        for memory in writes:
            writer[memory], readers[memory] = op, []
    members: list[list[ir.Operation]] = [[] for _ in steps]
    for op in steps:
        members[unit[op]].append(op)
    try:
        order = topological(needs)
    except ValueError:
        raise InternalError("a kernel must run between others that share a launch", "map", str(program)) from None
    for op in (*views, *(op for n in order for op in members[n])):
        op.move_before(end)


def _is_extent(op: ir.Operation) -> bool:
    return len(op.results) == 1 and isinstance(op.results[0].type, ir.IndexType)


def _written(function: ir.Operation) -> list[int]:
    """The numbers of the arguments that a kernel writes."""
    found: set[ir.Value] = set()
    for op in mlir.traverse(function):
        if (name := op.name) in _STORES:
            found.add(root(op.operands[1]))
        elif name == _BOX:
            found.add(root(mlir.definition(op.operands[1]).operands[0]))
    return [n for n, argument in enumerate(mlir.entry(function).arguments) if argument in found]


def _touched(op: ir.Operation, written: dict[str, list[int]]) -> tuple[set[ir.Value], set[ir.Value]]:
    """The memory that an operation of the program reads, and that it writes. `written`: see `_written`, by kernel."""
    memory = [_shown(v) for v in op.operands]
    if op.name == "func.call":
        return set(memory), {memory[n] for n in written[mlir.callee(op)]}
    return ({memory[0]}, {memory[1]}) if op.name == "memref.copy" else (set(), set(memory))


def _shown(value: ir.Value) -> ir.Value:
    """The memory that a value of the program shows."""
    while (owner := mlir.definition(value)) is not None and owner.name in _SEEN:
        value = owner.operands[0]
    return value


# ---- the function ----------------------------------------------------------------------------------------------------


def _function(name: str, calls: Sequence[ir.Operation], kernels: Sequence[ir.Operation]) -> None:
    blocks, threads = sum(map(extents.block_count, kernels)), [mlir.get_integer(f, "tilec.threads") for f in kernels]
    sizes = {n: v for call, f in zip(calls, kernels) for n, v in _sizes(call, f).items()}
    if not all(map(_ends_alone, kernels)):
        raise InternalError(f"the kernels of {name} cannot share a launch", "map")
    arguments = [a for f in kernels for a in mlir.entry(f).arguments]
    with ir.InsertionPoint(kernels[0]), mlir.fused_location(kernels):
        made = func.FuncOp(name, ([a.type for a in arguments], []))
    attributes = made.operation.attributes
    attributes["tilec.kernel"] = ir.UnitAttr.get()
    attributes["arg_attrs"] = ir.ArrayAttr.get([a for f in kernels for a in ir.ArrayAttr(f.attributes["arg_attrs"])])
    if sizes:
        extents.set_sizes(made.operation, sizes)
    extents.set_blocks(made.operation, extents.amount(blocks, sizes))
    attributes["tilec.threads"] = mlir.integer(max(threads))
    attributes["tilec.cluster"] = mlir.integer(1)
    if any("tilec.overlap" in f.attributes for f in kernels):
        attributes["tilec.overlap"] = ir.UnitAttr.get()
    if pairs := _inplace(kernels):
        attributes["tilec.inplace"] = mlir.integers(pairs)
    locations.set_indices(made.operation, list(dict.fromkeys(i for f in kernels for i in locations.indices(f))))
    block = made.add_entry_block()
    given = iter(block.arguments)  # one function may be there twice, for several calls: each part has values of its own
    mappings = [{a: next(given) for a in mlir.entry(f).arguments} for f in kernels]
    with ir.InsertionPoint(block), mlir.fused_location(kernels):
        for f, mapping in zip(kernels, mappings):
            for op in (op for op in _operations(f) if op.name in _LOCAL):
                for needed in mlir.slice_of(mlir.entry(f), op.results[0], mapping):  # what has no elements has sizes that vary
                    mlir.clone_op(needed, mapping)
        number = gpu.BlockIdOp(gpu.Dimension.x).result
        thread = gpu.ThreadIdOp(gpu.Dimension.x).result if len(set(threads)) > 1 else None
        _branches(made.operation, number, thread, list(zip(calls, kernels, mappings)))
        func.ReturnOp([])


def _sizes(call: ir.Operation, kernel: ir.Operation) -> dict[str, Varying]:
    """The sizes of a kernel, which are the program's: one of that name would else be another in each part."""
    for operand, argument in zip(call.operands, mlir.entry(kernel).arguments):
        if extents.shape_of(operand) != extents.shape_of(argument):
            raise Varies("whether kernels that share a launch have the same sizes")
    return extents.sizes_of(kernel)


def _ends_alone(kernel: ir.Operation) -> bool:
    """Whether no block of a kernel waits for another, and each has one tile."""
    counts = any(op.name == "memref.atomic_rmw" for op in mlir.traverse(kernel))
    return mlir.get_integer(kernel, "tilec.cluster") == 1 and "tilec.persistent" not in kernel.attributes and not counts


def _branches(
    function: ir.Operation, number: ir.Value, thread: ir.Value | None,
    parts: list[tuple[ir.Operation, ir.Operation, dict[ir.Value, ir.Value]]], start: Extent = 0,
) -> None:  # fmt: skip
    """The work of all parts, of blocks from `start` on: the call of each, its kernel, and the kernel's values here."""
    (call, kernel, mapping), *others = parts
    if not others:
        _part(function, number, start, thread, call, kernel, mapping)
        return
    end = start + extents.block_count(kernel)
    branch = scf.IfOp(arith.cmpi(arith.CmpIPredicate.ult, number, extents.value_at(end)), has_else=True)
    branch.operation.attributes["tilec.returns"] = ir.UnitAttr.get()
    with ir.InsertionPoint(branch.then_block):
        _part(function, number, start, thread, call, kernel, mapping)
        scf.YieldOp([])
    with ir.InsertionPoint(branch.else_block):
        _branches(function, number, thread, others, end)
        scf.YieldOp([])


def _part(
    function: ir.Operation, number: ir.Value, start: Extent, thread: ir.Value | None, call: ir.Operation, kernel: ir.Operation,
    mapping: dict[ir.Value, ir.Value],
) -> None:  # fmt: skip
    """The work of a kernel, by its threads of the blocks from `start` on. What its checks say is what this launch's do."""
    threads, renamed = mlir.get_integer(kernel, "tilec.threads"), _renamed(call)
    fewer = threads < mlir.get_integer(function, "tilec.threads")
    own = _own_block(number, start, extents.block_count(kernel))
    with when(below(thread, threads)) if thread is not None and fewer else nullcontext() as guard:
        if guard is not None:
            guard.operation.attributes["tilec.branch"] = ir.UnitAttr.get()
        for op in (op for op in _operations(kernel) if op.name not in (*_LOCAL, "func.return")):
            copy = mlir.clone_op(op, mapping)
            for inner in [copy, *mlir.traverse(copy)]:
                match inner.name:
                    case "gpu.block_id":
                        inner.results[0].replace_all_uses_with(own)
                        mapping |= {op.results[0]: own} if inner == copy else {}
                    case "cf.assert":
                        message = ir.StringAttr(inner.attributes["msg"]).value
                        inner.attributes["msg"] = mlir.string(renamed.get(message, message))
                    case "gpu.barrier" if fewer:
                        with ir.InsertionPoint(inner), inner.location:
                            i32 = ir.IntegerType.get_signless(32)
                            opcodes.call(
                                function, NamedBarrier(waits=True), [mlir.constant(n, i32) for n in (1, threads)]
                            )
                        inner.erase()


def _own_block(number: ir.Value, start: Extent, blocks: Extent) -> ir.Value:
    """A block's number among a kernel's, of which the text says in what range it is."""
    if isinstance(blocks, int) and blocks < 2:
        return mlir.index(0)
    if start != 0:
        number = arith.maxsi(arith.subi(number, extents.value_at(start)), mlir.index(0))
    return locations.named(arith.minsi(number, extents.value_at(blocks - 1)), "own_block")


def _inplace(kernels: Sequence[ir.Operation]) -> list[int]:
    """The kernels' pairs of arguments, by their numbers among all arguments."""
    pairs, first = [], 0
    for kernel in kernels:
        pairs += [first + n for n in mlir.get_integers(kernel, "tilec.inplace") or []]
        first += len(list(mlir.entry(kernel).arguments))
    return pairs


# ---- calls -----------------------------------------------------------------------------------------------------------


def _call(name: str, launch: _Launch, checks: list[str], calls: Sequence[ir.Operation]) -> None:
    with ir.InsertionPoint(calls[0]), mlir.fused_location(calls):
        call = func.CallOp([], launch.name, [v for old in calls for v in old.operands])
    if launch.name != name:
        name_launch(call, name, launch.checks, checks)
    for old in calls:
        old.erase()


def _messages(call: ir.Operation, function: ir.Operation) -> list[str]:
    """What the checks of a kernel's launch say, in their order."""
    renamed = _renamed(call)
    found = [ir.StringAttr(op.attributes["msg"]).value for op in mlir.traverse(function) if op.name == "cf.assert"]
    return [renamed.get(message, message) for message in found]


def _renamed(call: ir.Operation) -> dict[str, str]:
    entries = ir.DictAttr(call.attributes["tilec.checks"]) if "tilec.checks" in call.attributes else ()
    return {entry.name: ir.StringAttr(entry.attr).value for entry in entries}


def _operations(function: ir.Operation) -> list[ir.Operation]:
    return [op.operation for op in mlir.entry(function).operations]


def _planned(op: ir.Operation) -> str:
    """The plan's name of a call's kernel."""
    return (mlir.get_string(op, "tilec.launch") or mlir.callee(op)) if op.name == "func.call" else op.name
