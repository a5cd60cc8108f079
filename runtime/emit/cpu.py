"""emit, for the CPU: every kernel becomes a Python function that Numba compiles, one call of it a block.

    def softmax_y(block, args, scratch):
        x = f32_pointer(args[0])
        y = f32_pointer(args[1])
        ...

`args` holds addresses, `scratch` is memory of the calling thread. Threads share out the blocks
(`runtime/cpu/compile.py`, `runtime/cpu/launch.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from math import prod
from operator import mul

import numpy as np

from tilec.analysis.traffic import element_bytes
from tilec.core import extents, mlir
from tilec.core.extents import Extent
from tilec.core.mlir import ir
from tilec.core.varying import Varying
from tilec.runtime.emit.comments import Comments
from tilec.runtime.emit.cpu_loops import is_short
from tilec.runtime.emit.index import Memory, Text, group, plus, product, row_major
from tilec.runtime.emit.kernels import print_kernels
from tilec.runtime.emit.names import Names
from tilec.runtime.emit.printer import Printer
from tilec.runtime.emit.steps import read_steps
from tilec.runtime.emit.tables import NARROW
from tilec.runtime.program import Amount, Emitted, KernelSource

STORAGE = {"i1": "u8", "bf16": "u16", "f16": "u16", "f8E4M3FN": "u8", "f8E5M2": "u8", "index": "i64"}
ALIGN = 64
USES_THRESHOLD = 4  # uses of a subview from which on its start is worth a variable


def emit_cpu(module: ir.Module) -> Emitted:
    name, steps, temporaries = read_steps(module)
    printed = print_kernels(module, _CpuPrinter, lambda printer, function: printer.kernel(function))
    kernels, used = [p.source for p in printed], {name for p in printed for name in p.used}
    header = [f'"""Kernels of {kernels[0].name if kernels else "an empty program"}, printed by tilec."""', ""]
    if used:
        header += ["from tilec.runtime.cpu.support import (", *(f"    {n}," for n in sorted(used)), ")", "", ""]
    text = "\n".join(header) + "\n\n\n".join(k.text for k in kernels) + "\n"
    return Emitted(name, text, tuple(kernels), steps, temporaries)


class _CpuPrinter(Printer):
    def __init__(self, names: Names, comments: Comments) -> None:
        super().__init__(names, comments)
        self.scratch: Extent = 0
        self.parameters = 0

    def kernel(self, function: ir.Operation) -> KernelSource:
        name = mlir.symbol(function)
        block = mlir.entry(function)
        sizes = extents.names_of(function)
        self.parameters = len(block.arguments) + len(sizes)
        for n, size in enumerate(sizes, len(block.arguments)):
            self.line(f"{self.size(size)} = args[{n}]")
        self.arguments(function, block)
        grid: Amount = 1
        for op in block.operations:
            if op.operation.name == "scf.forall":
                grid = self.forall(op.operation)
            else:
                self.mark_line(op.operation)
                self.operation(op.operation)
        if "contract_pairs" in self.used:
            self.lines.insert(0, f"    {self.use('configure_tiles')}()")
            self.line(f"{self.use('release_tiles')}()")
        head = [f"def {name}(block, args, scratch):"]
        text = "\n".join(head + (self.lines or ["    pass"]))
        scratch = extents.amount(self.scratch, extents.sizes_of(function))
        return KernelSource(
            name, text, grid, len(block.arguments), scratch=scratch, sites=tuple(self.sites), sizes=len(sizes)
        )

    def arguments(self, function: ir.Operation, block: ir.Block) -> None:
        names = list(ir.ArrayAttr(function.attributes["arg_attrs"]))
        for n, (argument, attributes) in enumerate(zip(block.arguments, names)):
            hint = ir.StringAttr(ir.DictAttr(attributes)["tilec.name"]).value
            element = str(ir.ShapedType(argument.type).element_type)
            base = self.names.source(hint)
            self.held[base] = hint
            shape = self.shape(function, argument)
            sizes = "x".join(map(str, shape)) or "scalar"
            self.line(f"{base} = {self.use(_storage(element) + '_pointer')}(args[{n}])  # {element} {sizes}")
            self.memory[argument] = Memory(base, 0, row_major(shape), element, shape)

    def forall(self, op: ir.Operation) -> Amount:
        counts, ends = list(ir.DenseI64ArrayAttr(op.attributes["staticUpperBound"])), list(op.operands)
        texts: list[str | int] = [self.expr(ends.pop(0)) if n == mlir.DYNAMIC else n for n in counts]
        variables = list(op.regions[0].blocks[0].arguments)[: len(counts)]
        rest = "block"
        for n, (count, variable) in enumerate(zip(counts, variables)):
            below = product(texts[n + 1 :])
            if count == 1:
                self.text[variable] = "0"
            elif below == 1:
                self.bind(variable, rest, self.variable(op, n))
            else:
                self.bind(variable, f"{rest} // {group(below)}", self.variable(op, n))
                rest = f"(block % {group(below)})"
        self.block(op.regions[0].blocks[0])
        return extents.blocks_of(op)

    # ---- memory ------------------------------------------------------------------------------------------------------

    def load(self, memory: Memory, index: str | int) -> str:
        text = f"{memory.base}[{index}]"
        return f"({text} != 0)" if memory.element == "i1" else text

    def store(self, memory: Memory, index: str | int, value: str) -> None:
        value = f"{self.use('u8')}({value})" if memory.element == "i1" else value
        self.line(f"{memory.base}[{index}] = {value}")

    def backend_operation(self, op: ir.Operation) -> None:
        match op.name:
            case "memref.alloc" | "memref.alloca":
                self.allocate(op)
            case "cf.assert":
                self.check(op)
            case name if name.startswith("vector."):
                self.tile(op)
            case _:
                super().backend_operation(op)

    def allocate(self, op: ir.Operation) -> None:
        """Block-local memory is a piece of the thread's scratch: its place is known now."""
        type_, known = op.results[0].type, extents.sizes_of(op)
        element, own = str(type_.element_type), extents.shape_of(op.results[0])
        shape = tuple(self.text_of(n, known) for n in own)
        base = self.array(op)
        address = plus("scratch", self.text_of(self.scratch, known))
        sizes = "x".join(map(str, shape)) or "scalar"
        self.line(f"{base} = {self.use(_storage(element) + '_pointer')}({address})  # {element} {sizes}")
        self.memory[op.results[0]] = Memory(base, 0, row_major(shape), element, shape, "scratch")
        size = reduce(mul, own, element_bytes(type_.element_type))
        self.scratch = self.scratch + (size + (ALIGN - 1)) // ALIGN * ALIGN

    def text_of(self, extent: Extent, sizes: Mapping[str, Varying]) -> Text:
        """A number, or a text over the kernel's variables."""
        amount = extents.amount(extent, sizes)
        return amount if isinstance(amount, int) else self.extent(amount)

    def check(self, op: ir.Operation) -> None:
        """A failed check leaves its number in the word behind the arguments; the launch raises the error."""
        self.sites.append(ir.StringAttr(op.attributes["msg"]).value)
        self.line(f"if not {self.expr(op.operands[0])}:")
        self.line(f"    args[{self.parameters}] = {len(self.sites)}")

    # ---- tiles of vectors --------------------------------------------------------------------------------------------

    def subview(self, op: ir.Operation) -> None:
        """Where a view starts gets a variable if much is read there: Numba's time goes with the operators it sees."""
        super().subview(op)
        view = self.memory[op.results[0]]
        if isinstance(view.offset, str) and not view.offset.isidentifier() and len(mlir.uses(op.results[0])) >= USES_THRESHOLD:
            name = self.variable(op, 0, "at")
            self.line(f"{name} = {view.offset}")
            self.memory[op.results[0]] = replace(view, offset=name)

    def tile(self, op: ir.Operation) -> None:
        """The operations of `runtime/cpu/tile.py`, by its names."""
        texts = [self.text.get(v, "") for v in op.operands]
        match op.name:
            case "vector.load" if _is_of_unit(op.results[0]):  # which loads by itself
                memory, offset = self.address(op.operands[0], list(op.operands)[1:])
                self.text[op.results[0]] = f"{memory.base}, {offset}, {memory.strides[-3]}"
            case "vector.load" if _is_state(op.results[0]):
                memory, offset = self.address(op.operands[0], list(op.operands)[1:])
                zeros = f"{self.use('zero_sums')}({_shape(op.results[0])})"
                text = f"{self.use('load_sums')}({memory.base}, {offset}, {_row_stride(memory, op.results[0])}, {zeros})"
                self.bind(op.results[0], text, self.variable(op, 0, "sums"))
            case "vector.load":
                memory, offset = self.address(op.operands[0], list(op.operands)[1:])
                where = f"{memory.base}, {offset}, {_row_stride(memory, op.results[0])}"
                text = f"{self.use('load_tile')}({where}, {_shape(op.results[0])})"
                self.bind(
                    op.results[0], text, self.variable(op, 0, "square") if _is_square(op) else self.loaded(memory.base)
                )
            case "vector.store":
                memory, offset = self.address(op.operands[1], list(op.operands)[2:])
                where = f"{memory.base}, {offset}, {_row_stride(memory, op.operands[0])}"
                self.line(f"{self.use('store_tile')}({where}, {texts[0]})")
            case "vector.broadcast":
                self.bind(op.results[0], self.splat(texts[0], op.results[0]), self.variable(op, 0, "all"))
            case "vector.transpose":
                self.bind(op.results[0], f"{self.use('transpose')}({texts[0]})", self.variable(op, 0, "transposed"))
            case "vector.bitcast" if _is_of_unit(op.results[0]):
                self.text[op.results[0]] = texts[0]
            case "vector.bitcast":
                wide = ir.VectorType(op.results[0].type).element_type.width
                self.bind(op.results[0], f"{self.use(f'words_of_{wide}')}({texts[0]})", self.variable(op, 0, "words"))
            case "vector.interleave":
                self.bind(op.results[0], f"{self.use('interleave')}({', '.join(texts)})", self.variable(op, 0, "pairs"))
            case "vector.contract":
                name = texts[2] if _continues(op) else self.variable(op)
                if _is_by_unit(op):
                    texts.append(str(_kept(op)))
                by_vectors = "add_pairs" if ir.VectorType(op.operands[0].type).rank == 3 else "contract"
                function = "contract_pairs" if _is_by_unit(op) else by_vectors
                self.bind(op.results[0], f"{self.use(function)}({', '.join(texts)})", name)
            case _:
                super().backend_operation(op)

    def splat(self, text: str, value: ir.Value) -> str:
        return f"{self.use('splat_tile')}({text}, {_shape(value)})"

    # ---- operations --------------------------------------------------------------------------------------------------

    def constant(self, op: ir.Operation) -> str:
        type_ = op.results[0].type
        if not isinstance(type_, ir.VectorType):
            return super().constant(op)
        if _is_state(op.results[0]):
            return f"{self.use('zero_sums')}({_shape(op.results[0])})"
        number = ir.FloatAttr(ir.DenseElementsAttr(op.attributes["value"]).get_splat_value()).value
        return self.splat(self.float_constant(number, str(type_.element_type)), op.results[0])

    def iterations(self, loop: ir.Operation, bounds: str) -> str:
        return f"{self.use('short_range')}({bounds})" if is_short(loop) else super().iterations(loop, bounds)

    def operand(self, op: ir.Operation, value: ir.Value) -> str:
        """A selected operand of an extreme is opaque: of max(m, x if c else -inf) LLVM makes max(m, x) if c else m, which it then
        does not take for a reduction."""
        text, made = super().operand(op, value), mlir.definition(value)
        if op.name in ("arith.maximumf", "arith.minimumf") and made is not None and made.name == "arith.select":
            return f"{self.use('opaque')}({text})"
        return text

    def extremum(self, name: str, texts: list[str]) -> str:
        """Of more than two: pairs of pairs, as `runtime/cpu/builtins.py` has them."""
        return reduce(lambda a, b: f"{name}({a}, {b})", texts)

    def expression(self, op: ir.Operation) -> str:
        if op.name == "arith.addf" and isinstance(op.results[0].type, ir.VectorType):
            return f"{self.use('add_tiles')}({', '.join(map(self.expr, op.operands))})"
        if op.name == "arith.bitcast" and str(op.operands[0].type) in NARROW:  # which is its bits
            return f"{self.use(str(op.results[0].type))}({self.expr(op.operands[0])})"
        if op.name == "arith.bitcast":
            kinds = op.operands[0].type, op.results[0].type
            function = f"{kinds[1]}_from_bits" if isinstance(kinds[0], ir.IntegerType) else f"bits_{kinds[0]}"
            return f"{self.use(function)}({self.expr(op.operands[0])})"
        if op.name == "arith.truncf" and str(op.results[0].type) == "bf16" and _is_bf16(op.operands[0]):
            return f"{self.use('bf16_from_exact')}({self.expr(op.operands[0])})"
        return super().expression(op)

    def function(self, name: str, arguments: list[str], element: str) -> str:
        if name in ("max", "min", "ipow") and element not in ("f32", "f64"):  # they give 64 bits
            text = f"{self.use(name) if name == 'ipow' else name}({', '.join(arguments)})"
            return text if element in ("index", "i64") else f"{self.use(element)}({text})"
        return f"{self.use(name)}({', '.join(arguments)})"

    def reassociable(self, op: ir.Operation, name: str, texts: list[str]) -> str:
        state, term = texts
        if not _is_loaded_in_block(op, op.operands[1]):
            term = f"{self.use('opaque')}({term})"
        return f"{self.use('reassoc_' + name)}({state}, {term})"


def _is_loaded_in_block(op: ir.Operation, value: ir.Value) -> bool:
    """Whether it is an element of memory, and another one in each step of the loop."""
    made = mlir.definition(value)
    if made is not None and made.name == "arith.extf":
        made = mlir.definition(made.operands[0])
    return made is not None and made.name == "memref.load" and made.block == op.block


def _is_bf16(value: ir.Value) -> bool:
    """Whether an f32 is known to be a number that a bf16 is, so that no rounding is due."""
    known, op = mlir.constant_value(value), mlir.definition(value)
    if str(value.type) != "f32":
        return False
    if known is not None:
        return not int(np.float32(known).view(np.uint32)) & 0xFFFF
    if op is None:
        return False
    match op.name:
        case "arith.extf":
            return str(op.operands[0].type) == "bf16"
        case "arith.negf" | "math.absf" | "arith.maximumf" | "arith.minimumf":
            return all(_is_bf16(v) for v in op.operands)
        case "arith.select":
            return all(_is_bf16(v) for v in list(op.operands)[1:])
        case "arith.bitcast":
            bits = mlir.definition(op.operands[0])
            return bits is not None and bits.name == "arith.andi" and mlir.constant_value(bits.operands[1]) == -0x10000
    return False


def _shape(tile: ir.Value) -> str:
    """Rows and lanes; a row of pairs is one of so many numbers."""
    rows, *lanes = (1, *shape) if len(shape := ir.VectorType(tile.type).shape) == 1 else shape
    return f"{rows}, {prod(lanes)}"


def _row_stride(memory: Memory, tile: ir.Value) -> str | int:
    """Elements from one row of a tile to the next in memory."""
    rank = ir.VectorType(tile.type).rank
    return memory.strides[-rank] if rank > 1 else 0


def _is_square(op: ir.Operation) -> bool:
    shape = ir.VectorType(op.results[0].type).shape
    return len(shape) == 2 and len(set(shape)) == 1


def _is_of_unit(tile: ir.Value) -> bool:
    """Whether it is a factor of a matrix unit's product: many pairs along k. Vectors take one at a time."""
    type_ = ir.VectorType(tile.type)
    return bool(type_.rank == 3 and 1 not in type_.shape[:2])


def _is_by_unit(op: ir.Operation) -> bool:
    return op.name == "vector.contract" and _is_of_unit(op.operands[0])


def _is_state(value: ir.Value) -> bool:
    """Whether a matrix unit adds to it."""
    return any(_is_by_unit(user) for use in value.uses for user in mlir.uses(_state(use)))


def _kept(op: ir.Operation) -> int:
    """The factor that the product before has had: 1 for the left one, 2 for the right one, 0 for none."""
    before = mlir.definition(op.operands[2])
    if before is None or before.name != op.name or before.block != op.block:
        return 0
    return next((n for n in (1, 2) if before.operands[n - 1] == op.operands[n - 1]), 0)


def _state(use: ir.OpOperand) -> ir.Value:
    """The state of the loop that begins with a value, or the value."""
    loop = use.owner.operation if hasattr(use.owner, "operation") else use.owner
    if loop.name != "scf.for":
        return loop.operands[use.operand_number]
    return loop.regions[0].blocks[0].arguments[use.operand_number - 2]


def _continues(op: ir.Operation) -> bool:
    """Whether sums are their loop's state and become the next: then their variable is assigned in place."""
    state, users = op.operands[2], mlir.uses(op.results[0])
    if not isinstance(state.owner, ir.Block) or state.owner != op.block or len(mlir.uses(state)) != 1:
        return False
    if len(users) != 1 or users[0].name != "scf.yield" or users[0].block != op.block:
        return False
    return list(users[0].operands).index(op.results[0]) == ir.BlockArgument(state).arg_number - 1


def _storage(element: str) -> str:
    return STORAGE.get(element, element)


def strides_of(type_: ir.Type) -> tuple[int, ...]:
    """Row-major strides in elements, or those that the type names."""
    strides, _ = ir.MemRefType(type_).get_strides_and_offset()
    return tuple(strides)


__all__ = ["NARROW", "emit_cpu", "strides_of"]
