"""Numbers that blocks of one kernel leave for each other in global memory, in words of 64 bits.

Half of a word is a number's 32 bits, the other half a mark that it has arrived, so that no fence is needed. A word may also be a
flag that other memory has been written: then a `fence` is before it is published, and after it is received. The program clears the
words before the launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from tilec.core import mlir
from tilec.core.extents import Extent, argument_attributes, emitted, memory_type, sizes_of
from tilec.core.mlir import arith, func, ir, memref, nvvm, scf
from tilec.kernels.attributes import carry_over

Shape = tuple[Sequence[Extent], ir.Type]
"""Extents of memory, and the type of its elements."""
MARK = 1 << 32  # in a word: the lower half is a number's bits


def add_words(module: ir.Operation, function: ir.Operation, shape: list[int], name: str) -> None:
    """Gives a kernel cleared words as its last argument."""
    assert prod(shape) > 0
    add_memory([function], {name: (shape, _i64())}, cleared=name)


def add_flags(function: ir.Operation, shape: list[int], name: str) -> None:
    """The same of words that the kernel takes back (`take_back`): it finds and leaves them cleared, so that the program clears them
    only once."""
    add_memory([function], {name: (shape, _i64())}, cleared=name, stays_clear=True)


def add_memory(
    kernels: Sequence[ir.Operation], shapes: Mapping[str, Shape], cleared: str = "", stays_clear: bool = False
) -> None:
    """Gives kernels memory of such shapes and elements as their last arguments. Where the program calls one of them, it calls one
    after another, with that one's arguments. `cleared`: that of this name is zero before; `stays_clear`: and after the calls."""
    types = {name: memory_type(*shape) for name, shape in shapes.items()}
    sizes = sizes_of(kernels[0])
    names = [argument_attributes(name, shape, sizes) for name, (shape, _) in shapes.items()]
    symbols = [mlir.symbol(kernel) for kernel in kernels]
    for kernel in kernels:
        block = mlir.entry(kernel)
        for type_ in types.values():
            block.add_argument(type_, kernel.location)
        arguments = [a.type for a in block.arguments]
        kernel.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(arguments, []))
        kernel.attributes["arg_attrs"] = ir.ArrayAttr.get([*ir.ArrayAttr(kernel.attributes["arg_attrs"]), *names])
    (program,) = [f for f in mlir.functions(kernels[0].parent) if "tilec.kernel" not in f.attributes]
    for call in [view.operation for view in mlir.entry(program).operations]:
        if call.name == "func.call" and (callee := mlir.callee(call)) in symbols:
            with ir.InsertionPoint(call), call.location:
                given = list(call.operands)
                ends = {name: [emitted(n, given) for n in shape if not isinstance(n, int)] for name, (shape, _) in shapes.items()}
                memory = {name: memref.AllocOp(type_, ends[name], []) for name, type_ in types.items()}
                if cleared:
                    mlir.fill(mlir.constant(0, _i64()), memory[cleared].result)
                if stays_clear:
                    memory[cleared].operation.attributes["tilec.stays_clear"] = ir.UnitAttr.get()
                for symbol in symbols:
                    new = func.CallOp([], symbol, [*call.operands, *(m.result for m in memory.values())])
                    carry_over(call, new)
                    if launch := mlir.get_string(call, "tilec.launch"):
                        new.attributes["tilec.launch"] = mlir.string(launch + symbol.removeprefix(callee))
            call.erase()


def publish(bits: ir.Value, memory: ir.Value, at: list[ir.Value]) -> None:
    """Leaves a number's 32 bits."""
    word = arith.ori(arith.extui(_i64(), bits), mark())
    memref.AtomicRMWOp(_kind("assign"), word, memory, at)


def take_back(memory: ir.Value, at: list[ir.Value]) -> None:
    """Clears a word, after its only reader has seen it."""
    memref.AtomicRMWOp(_kind("assign"), mlir.constant(0, _i64()), memory, at)


def fence() -> None:
    """Between a thread's accesses of memory and words that tell of them: those before are performed before those after, as other
    blocks see them."""
    nvvm.MembarOp(ir.Attribute.parse("#nvvm.mem_scope<gpu>"))


def observe(memory: ir.Value, at: list[ir.Value]) -> ir.Value:
    """Reads a word as it is now: that is to or it with 0."""
    return memref.AtomicRMWOp(_kind("ori"), mlir.constant(0, _i64()), memory, at).result


def wait(word: ir.Value, reread: Callable[[], ir.Value]) -> ir.Value:
    """A word that was read, once it is marked; `reread` reads it anew."""
    missing = arith.cmpi(arith.CmpIPredicate.slt, word, mark())
    return choose(missing, lambda: _poll(reread), lambda: word)


def received(word: ir.Value) -> ir.Value:
    """The 32 bits that a word brought."""
    return arith.trunci(ir.IntegerType.get_signless(32), word)


def mark() -> ir.Value:
    return mlir.constant(MARK, _i64())


def choose(condition: ir.Value, then: Callable[[], ir.Value], otherwise: Callable[[], ir.Value]) -> ir.Value:
    """One word or the other."""
    made = scf.IfOp(condition, [_i64()], has_else=True)
    for block, make in ((made.then_block, then), (made.else_block, otherwise)):
        with ir.InsertionPoint(block):
            scf.YieldOp([make()])
    return made.results[0]


def _poll(reread: Callable[[], ir.Value]) -> ir.Value:
    made = scf.WhileOp([_i64()], [])
    before, after = made.regions[0].blocks.append(), made.regions[1].blocks.append(_i64())
    with ir.InsertionPoint(before):
        word = reread()
        scf.ConditionOp(arith.cmpi(arith.CmpIPredicate.slt, word, mark()), [word])
    with ir.InsertionPoint(after):
        scf.YieldOp([])
    return made.results[0]


def _kind(name: str) -> ir.Attribute:
    return ir.IntegerAttr.get(_i64(), int(getattr(arith.AtomicRMWKind, name)))


def _i64() -> ir.Type:
    return ir.IntegerType.get_signless(64)
