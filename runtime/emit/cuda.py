"""emit, for CUDA: every kernel becomes a Python function that Numba-CUDA compiles, run by every thread.

    def softmax_y(x, y):                                    # addresses, int64
        block = int64(cuda.blockIdx.x)
        thread = int64(cuda.threadIdx.x)
        ...

Global and workgroup memory are addresses; a thread's private tiles are `cuda.local.array`s at indices that are constant
once loops are unrolled, which puts them in registers, or plain variables where they have one slot. Floats narrower than
32 bits are float32 in registers: loads widen them, stores round them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod

from tilec.analysis.traffic import element_bytes
from tilec.core import extents, mlir
from tilec.core.functions import FUNCTIONS
from tilec.core.mlir import ir
from tilec.kernels import planned_kernels
from tilec.passes.cuda.launches import LAUNCHES
from tilec.runtime.emit.cpu import strides_of
from tilec.runtime.emit.cuda_contraction import contract_operation, packed, store_made
from tilec.runtime.emit.cuda_memory import MemoryPrinter
from tilec.runtime.emit.cuda_messages import async_operation
from tilec.runtime.emit.cuda_overlap import Overlap, overlaps
from tilec.runtime.emit.cuda_packed import half, store_word, word_operation
from tilec.runtime.emit.cuda_predicates import guarded_load, guarded_loads
from tilec.runtime.emit.cuda_threads import thread_operation
from tilec.runtime.emit.cuda_uses import is_read_as_scalar, is_unchanged, stored_arguments
from tilec.runtime.emit.index import Memory, row_major
from tilec.runtime.emit.kernels import Printed, print_kernels
from tilec.runtime.emit.merged_branches import merged as merged_branches
from tilec.runtime.emit.merged_branches import without_unused_arrays
from tilec.runtime.emit.printer import has_flag
from tilec.runtime.emit.steps import read_steps
from tilec.runtime.emit.tables import NARROW
from tilec.runtime.program import Emitted, KernelSource

CUDA_FUNCTION = {row.cpu: row.cuda for row in FUNCTIONS.values() if row.cpu and row.cuda}


def emit_cuda(module: ir.Module, on_kernel: Callable[[str, KernelSource], None] | None = None) -> Emitted:
    """`on_kernel` is given each kernel, with the text of a module of its own, while others are still printed."""
    name, steps, temporaries = read_steps(module)
    overlapped = overlaps(module, steps)
    steps_last = {f for f, planned in planned_kernels(module.operation) if planned.options.steps_last}
    attributes = module.operation.attributes
    launches = {entry.name for entry in ir.DictAttr(attributes[LAUNCHES])} if LAUNCHES in attributes else set()

    def print_kernel(printer: _CudaPrinter, function: ir.Operation) -> KernelSource:
        printer.steps_last = function in steps_last or mlir.get_string(function, "sym_name") in launches
        return printer.kernel(function, overlapped)

    def print_alone(printed: Printed) -> None:
        if on_kernel is not None:
            on_kernel(_text([printed]), printed.source)

    made = print_kernels(module, _CudaPrinter, print_kernel, print_alone)
    return Emitted(name, _text(made), tuple(p.source for p in made), steps, temporaries)


def _text(made: Sequence[Printed]) -> str:
    """The text of the module."""
    kernels, used = [p.source for p in made], {name for p in made for name in p.used}
    definitions = {name: call for p in made for name, call in p.definitions.items()}
    header = [f'"""Kernels of {kernels[0].name if kernels else "an empty program"}, printed by tilec."""', ""]
    constants = sorted(used & {"inf", "nan"})
    if constants:
        header.append(f"from math import {', '.join(constants)}")
    printed = set(re.findall(r"\w+", " ".join([*(k.text for k in kernels), *definitions.values()])))
    names = sorted(n for n in used - {"inf", "nan"} if n.split()[-1] in printed)
    if names:
        header += ["from tilec.runtime.cuda.intrinsics import (", *(f"    {n}," for n in names), ")"]
    header += ["", *(f"{n} = {call}" for n, call in definitions.items())] if definitions else []
    return "\n".join([*header, "", ""]) + "\n\n\n".join(k.text for k in kernels) + "\n"


def _does_something(lines: list[str]) -> bool:
    """Whether there is more than comments: Python wants a statement in every function."""
    return any(not line.lstrip().startswith("#") for line in lines)


class _CudaPrinter(MemoryPrinter):
    part = 1  # of a launch that several kernels share

    def kernel(self, function: ir.Operation, overlapped: dict[str, Overlap]) -> KernelSource:
        name = mlir.symbol(function)
        block = mlir.entry(function)
        parameters = self.parameters = self.arguments(function, block)
        described, self.lines = self.lines, []
        threads, blocks = mlir.get_integer(function, "tilec.threads"), extents.blocks(function)
        cluster = mlir.get_integer(function, "tilec.cluster") or 1
        self.numbers(threads, extents.most(blocks, extents.sizes_of(function)), cluster)
        count = len(parameters)
        self.written = {self.memory[v].base for v in stored_arguments(function) if v in self.memory}
        overlap = overlapped.get(name, Overlap())
        self.others = {parameters[n] for n in overlap.made}
        for call in overlap.calls():
            self.line(f"{self.use(call)}()")
        for view in block.operations:
            op = view.operation
            self.declare(op)
            self.mark_line(op)
            self.operation(op)
        sizes = [self.size(name) for name in extents.names_of(function)]
        parameters = [*parameters, *self.maps, *sizes]
        if self.sites:
            parameters.append("errors")
        body = without_unused_arrays(self.lines)
        if self.shared.bytes:
            array = f"{self.use('cuda')}.shared.array(0, {self.use('i8')})"
            body = [*self.shared.lines(f"{self.use('shared_address')}({array})"), *body]
        end = [] if _does_something(body) else ["    pass"]
        text = "\n".join([f"def {name}({', '.join(parameters)}):", *described, *body, *end])
        maps = tuple(self.maps.values())
        return KernelSource(
            name, text, blocks, count, threads, shared=self.shared.bytes, sites=tuple(self.sites), maps=maps, cluster=cluster,
            persistent=mlir.get_integer(function, "tilec.persistent") or 0, overlap=overlap.waits, sizes=len(sizes),
        )  # fmt: skip

    def arguments(self, function: ir.Operation, block: ir.Block) -> list[str]:
        names = list(ir.ArrayAttr(function.attributes["arg_attrs"]))
        bases = []
        for argument, attributes in zip(block.arguments, names):
            name = ir.StringAttr(ir.DictAttr(attributes)["tilec.name"]).value
            base = self.names.source(name)
            self.held[base] = name
            element, shape = str(ir.ShapedType(argument.type).element_type), self.shape(function, argument)
            self.memory[argument] = Memory(base, 0, row_major(shape), element, shape)
            bases.append(base)
            self.line(f"# {base}: {element} {'x'.join(map(str, shape)) or 'scalar'}")
        return bases

    # ---- operations --------------------------------------------------------------------------------------------------

    def operation(self, op: ir.Operation) -> None:
        match op.name:
            case "memref.load" if self.guard is not None or self.load_inline(op):
                pass
            case "memref.store" if self.guard is not None:
                guarded_load(self, op)
            case "arith.select" if isinstance(op.results[0].type, ir.MemRefType):
                self.choose(op)
            case "arith.truncf" | "arith.extf" | "arith.sitofp" | "arith.uitofp" if isinstance(op.results[0].type, ir.VectorType):
                pass  # printed by the store of the fragment
            case "memref.load" if self.memory[op.operands[0]].space in ("shared", "cluster"):
                memory, offset = self.address(op.operands[0], list(op.operands)[1:])
                self.bind(op.results[0], self.load(memory, offset), self.names.temporary("part"))
            case _:
                super().operation(op)

    def backend_operation(self, op: ir.Operation) -> None:
        match op.name:
            case _ if thread_operation(self, op) or async_operation(self, op):
                pass
            case "memref.alloca":
                self.pending.append(op)
            case "memref.alloc":
                self.allocate_shared(op)
            case "vector.load":
                self.vectors[op.results[0]] = self.address(op.operands[0], list(op.operands)[1:])
            case "vector.bitcast" | "vector.broadcast" | "vector.extract":
                word_operation(self, op)
            case "vector.store":
                self.vector_store(op)
            case "cf.assert":
                self.check(op)
            case _ if contract_operation(self, op):
                pass
            case _:
                super().backend_operation(op)

    def branch(self, op: ir.Operation) -> None:
        if "tilec.returns" in op.attributes and len(op.regions[1].blocks):  # else the last part does nothing
            self.returning(op)
        elif not guarded_loads(self, op):
            start = len(self.lines)
            super().branch(op)
            if "tilec.mergeable" in op.attributes:
                found = merged_branches(self.lines[start:], self.lines[:start], self.names.variable)
                self.lines[start:] = self.lines[start:] if found is None else found

    def returning(self, op: ir.Operation) -> None:
        """The first branch returns, and the second stands behind it. NVVM would make one end of two that are alike before it makes
        registers of variables, which then stay in memory; assembly that differs stays apart."""
        first, second = (region.blocks[0] for region in op.regions)
        self.line(f"if {self.expr(op.operands[0])}:")
        with self.names.branch():
            self.indent(first, [])
            self.line(f"    {self.use(f'part_end_{self.part}')}()")
            self.part += 1
            self.line("    return")
        with self.names.branch():
            self.block(second)

    def check(self, op: ir.Operation) -> None:
        """A failed check leaves its number in the word at `errors`; the launch raises the error."""
        self.sites.append(ir.StringAttr(op.attributes["msg"]).value)
        self.line(f"if not {self.expr(op.operands[0])}:")
        self.line(f"    {self.use('store_i32')}(errors, {self.use('i32')}({len(self.sites)}))")

    # ---- memory ------------------------------------------------------------------------------------------------------

    def declare(self, op: ir.Operation) -> None:
        """Private tiles, just before the first operation of the kernel that touches them."""
        if not self.pending:
            return
        touched = {v for inner in (op, *mlir.traverse(op)) for v in inner.operands}
        for alloca in [a for a in self.pending if a.results[0] in touched]:
            self.pending.remove(alloca)
            value = alloca.results[0]
            type_ = ir.MemRefType(value.type)
            element, slots = str(type_.element_type), prod(type_.shape)
            base = self.array(alloca)
            if "tilec.words" in alloca.attributes:
                self.memory[value] = packed(self, alloca, base)
                continue
            kind = "f32" if element in NARROW else element
            if "tilec.halves" in alloca.attributes:
                self.line(f"{base} = {self.use('cuda')}.local.array({slots // 2}, {self.use('u32')})")
                self.memory[value] = Memory(base, 0, strides_of(type_), element, tuple(type_.shape), "halves")
                continue
            if slots > 1:
                kind = "u8" if element == "i1" else kind
                self.line(f"{base} = {self.use('cuda')}.local.array({slots}, {self.use(kind)})")
            elif not (op.name == "memref.store" and op.operands[1] == value):
                self.line(f"{base} = {'False' if kind == 'i1' else f'{self.use(kind)}(0)'}")
            space = "array" if slots > 1 else "variable"
            self.memory[value] = Memory(base, 0, strides_of(type_), element, tuple(type_.shape), space)

    def allocate_shared(self, op: ir.Operation) -> None:
        """Where extents vary, as much as the most that they may be."""
        type_ = ir.MemRefType(op.results[0].type)
        shape = tuple(map(extents.highest, extents.shape_of(op.results[0])))
        size, element = prod(shape) * element_bytes(type_.element_type), str(type_.element_type)
        what = f"{element} {'x'.join(map(str, shape))}"
        base = self.reserve(op, size, what, overlay="tilec.overlay" in op.attributes)
        strides = row_major(shape) if mlir.DYNAMIC in type_.shape else strides_of(type_)
        self.memory[op.results[0]] = Memory(base, 0, strides, element, shape, "shared")

    def load_inline(self, op: ir.Operation) -> bool:
        """A register is named where it is used, if nothing writes it before the last use."""
        value = op.operands[0]
        memory, offset = self.address(value, list(op.operands)[1:])
        merged = memory.space == "variable" or (
            memory.space in ("array", "halves") and len(mlir.uses(op.results[0])) == 1
        )
        if merged and is_unchanged(op, value):
            self.text[op.results[0]] = self.load(memory, offset)
            return True
        return False

    def vector_store(self, op: ir.Operation) -> None:
        """A vector moves between a private tile and memory, never through variables."""
        if store_made(self, op) or store_word(self, op):
            return
        source = self.vectors[op.operands[0]]
        target = self.address(op.operands[1], list(op.operands)[2:])
        loads = target[0].space in ("array", "halves")
        (array, slot), (memory, at) = (target, source) if loads else (source, target)
        action, hint = "load" if loads else "store", ""
        if memory.space == "shared":
            action = f"shared_{action}"
        elif loads:
            hint = self.constancy(memory)
            if hint and "tilec.read" in (made := op.operands[0].owner.attributes):
                hint += f"_{ir.StringAttr(made['tilec.read']).value}"
        count = prod(ir.VectorType(op.operands[0].type).shape)
        kind = f"{self.dtype(array.element)}x{count}"
        if array.space == "halves":
            kind, slot = f"u32x{count // 2}", half(slot)
        if loads and array.space == "halves" and memory.space == "shared":
            self.line(f"{self.use(f'load_words_{count // 2}')}({array.base}, {slot}, {self.bytes(memory, at)})")
            return
        where, condition = ("", "") if self.guard is None else ("_where", f", {self.guard}")
        self.line(
            f"{self.use(f'{action}_{kind}{hint}{where}')}({array.base}, {slot}, {self.bytes(memory, at)}{condition})"
        )

    # ---- expressions -------------------------------------------------------------------------------------------------

    def constant(self, op: ir.Operation) -> str:
        value, type_ = op.attributes["value"], str(op.results[0].type)
        if type_ in NARROW:
            return self.float_constant(ir.FloatAttr(value).value, "f32")
        return super().constant(op)

    def expression(self, op: ir.Operation) -> str:
        match op.name:
            case "arith.cmpf":
                predicate = ir.IntegerAttr(op.attributes["predicate"]).value
                a, b = (self.expr(v) for v in op.operands)
                element = str(op.operands[0].type)
                if predicate == 13:  # Numba's own != is false for a NaN
                    return f"{self.use(f'not_equal_{element}')}({a}, {b})"
                if predicate == 14:
                    return " | ".join(f"{self.use(f'is_nan_{element}')}({t})" for t in dict.fromkeys((a, b)))
            case "arith.sitofp" | "arith.uitofp" if str(op.operands[0].type) in ("i8", "i16"):
                source = f"{'iu'[op.name == 'arith.uitofp']}{str(op.operands[0].type)[1:]}"
                text = f"{self.use(f'f32_from_{source}')}({self.operand(op, op.operands[0])})"
                target = str(op.results[0].type)
                return text if target == "f32" else self.narrow(text, "f32", target)
            case "arith.extui" | "arith.uitofp" if str(op.operands[0].type) not in ("i1", "index"):
                source = str(op.operands[0].type)
                text = f"{self.use(f'unsigned_u{source[1:]}')}({self.operand(op, op.operands[0])})"
                return self.convert(text, source, str(op.results[0].type))
            case "arith.truncf" if self.rounded_later(op):
                return self.single(self.expr(op.operands[0]), str(op.operands[0].type))
            case "arith.bitcast":
                narrow = str(op.results[0].type)[0] == "i"
                kind = str(op.operands[0].type if narrow else op.results[0].type)
                return f"{self.use(f'bits_{kind}' if narrow else f'from_bits_{kind}')}({self.expr(op.operands[0])})"
        return super().expression(op)

    def rounded_later(self, op: ir.Operation) -> bool:
        """Whether a conversion to a narrow float only feeds stores that round by themselves."""
        if str(op.results[0].type) not in NARROW:
            return False
        return all(u.name == "memref.store" and not is_read_as_scalar(u.operands[1]) for u in mlir.uses(op.results[0]))

    def binary(self, op: ir.Operation, name: str, texts: list[str], type_: str) -> str:
        if name == "arith.divf" and has_flag(op, "arcp"):
            return f"{texts[0]} * {self.use('reciprocal_approx_f32')}({texts[1]})"
        if name == "arith.divf" and has_flag(op, "afn"):
            return f"{self.use('divide_approx_f32')}({', '.join(texts)})"
        if name == "arith.divf" and (form := mlir.get_string(op, "tilec.form")):
            return f"{self.use(f'divide_{form}_f32')}({', '.join(texts)})"
        return super().binary(op, name, texts, type_)

    def select(self, condition: str, then: str, otherwise: str, type_: str) -> str:
        return f"({then} if {condition} else {otherwise})"

    def narrow(self, text: str, source: str, target: str) -> str:
        """Narrow floats are float32 that happen to be representable."""
        if target in NARROW:
            return f"{self.use(f'round_{self.dtype(target)}')}({self.single(text, source)})"
        return f"{self.use(target)}({text})" if "f64" in (source, target) else text

    def function(self, name: str, arguments: list[str], element: str) -> str:
        inner = ", ".join(arguments)
        if element in ("f32", "f64"):
            return f"{self.use(f'{CUDA_FUNCTION.get(name, name)}_{element}')}({inner})"
        if name == "ipow":
            return f"{self.use(element)}({arguments[0]} ** {arguments[1]})"
        if element.startswith("u"):  # Numba-CUDA's min and max compare as if there were a sign
            return f"{self.use(f'{name}_{element}')}({inner})"
        return f"{self.use(element)}({name}({inner}))" if element != "i1" else f"{name}({inner})"
