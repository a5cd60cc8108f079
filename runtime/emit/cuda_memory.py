"""emit, for CUDA: memory, and the names of device functions: the part of the printer that printers of single operations use.

Global and workgroup memory are addresses: `load_f32(x + 4 * i)`, `shared_load_f32(tile + 4 * i)`. Registers are arrays,
arrays of words with two elements of 16 bits each (`tilec.halves`), or variables.

Addresses of global memory are sums that end with what loops over a thread's steps count (`runtime/emit/addresses.py`).
"""

from __future__ import annotations

from dataclasses import replace

from tilec.analysis.traffic import element_bytes
from tilec.core import locations, mlir
from tilec.core.mlir import ir
from tilec.runtime.cuda.device.define import NUMBA
from tilec.runtime.emit.addresses import Address, address_of, is_part_of_addresses
from tilec.runtime.emit.comments import Comments
from tilec.runtime.emit.cuda_shared import SharedMemory
from tilec.runtime.emit.cuda_unroll import UnrollPrinter
from tilec.runtime.emit.index import Memory, plus, times
from tilec.runtime.emit.names import Names
from tilec.runtime.program import TensorMap

NAMES = {"i1": "bool", "index": "i64", "f8E4M3FN": "f8e4m3", "f8E5M2": "f8e5m2"}


class MemoryPrinter(UnrollPrinter):
    """The text of a kernel, its memory and the device functions that it calls."""

    def __init__(self, names: Names, comments: Comments) -> None:
        super().__init__(names, comments)
        self.shared = SharedMemory(self.names)
        self.pending: list[ir.Operation] = []
        self.vectors: dict[ir.Value, tuple[Memory, str | int]] = {}
        self.written: set[str] = set()
        self.others: set[str] = set()  # written by kernels before this one, while its blocks may wait already
        self.maps: dict[str, TensorMap] = {}
        self.parameters: list[str] = []
        self.guard: str | None = None  # under which loads are printed
        self.phases: dict[str, str] = {}  # of each tag, the variable with the parity of its rounds
        self.steps_last = False  # whether addresses end with what loops over steps count

    def use(self, name: str) -> str:
        return super().use(NUMBA.get(NAMES.get(name, name), name))

    def define(self, name: str, maker: str, arguments: str) -> str:
        """A device function that the module makes for its own numbers: `name = maker(...)`."""
        call = f"{self.use(maker)}{arguments}"
        name = self.names.definition(name, call)
        self.definitions[name] = call
        return name

    def dtype(self, element: str) -> str:
        """The name of an element type in the names of intrinsics."""
        return NAMES.get(element, element)

    def bytes(self, memory: Memory, index: str | int) -> str:
        """The address of an element."""
        size = element_bytes(mlir.type_of(memory.element))
        if isinstance(index, Address):
            return index.bytes(memory.base, size)
        return str(plus(memory.base, times(index, size)))

    def address(self, value: ir.Value, indices: list[ir.Value]) -> tuple[Memory, str | int]:
        memory, index = super().address(value, indices)
        if self.steps_last and memory.space == "global" and isinstance(index, str):
            index = address_of(memory, indices, self.index, index)
        return memory, index

    def pure(self, op: ir.Operation) -> None:
        if self.steps_last and is_part_of_addresses(op):
            self.text[op.results[0]] = f"({self.expression(op)})"
        elif any("tilec.both" in user.attributes for user in mlir.uses(op.results[0])):
            self.bind(op.results[0], self.expression(op), self.variable(op))
        else:
            super().pure(op)

    # ---- memory ------------------------------------------------------------------------------------------------------

    def reserve(self, op: ir.Operation, size: int, what: str, overlay: bool = False) -> str:
        """The address of further bytes of shared memory; with `overlay` of the first, whose tiles are no longer in use."""
        own, tensor = locations.variables(op), (locations.statement(op.location) or "").split(",")[-1]
        letters = (own[0] if own else None) or (f"{tensor}_tile" if tensor else "tile")
        return self.shared.reserve(letters, size, what, overlay)

    def load(self, memory: Memory, index: str | int) -> str:
        match memory.space:
            case "variable":
                return memory.base
            case "array":
                element = f"{memory.base}[{index}]"
                return f"({element} != 0)" if memory.element == "i1" else element
            case "halves":
                return f"{self.use(f'unpack_{self.dtype(memory.element)}')}({memory.base}, {index})"
        prefix = "shared_" if memory.space in ("shared", "cluster") else ""
        return f"{self.use(f'{prefix}load_{self.dtype(memory.element)}')}({self.bytes(memory, index)})"

    def store(self, memory: Memory, index: str | int, value: str) -> None:
        match memory.space:
            case "variable":
                self.line(f"{memory.base} = {value}")
            case "array":
                value = f"{self.use('u8')}({value})" if memory.element == "i1" else value
                self.line(f"{memory.base}[{index}] = {value}")
            case "halves":
                self.line(f"{self.use(f'put_{self.dtype(memory.element)}')}({memory.base}, {index}, {value})")
            case _:
                prefix = "shared_" if memory.space == "shared" else ""
                name = self.use(f"{prefix}store_{self.dtype(memory.element)}")
                self.line(f"{name}({self.bytes(memory, index)}, {value})")

    def choose(self, op: ir.Operation) -> None:
        """One of two tensors of one shape, by its address."""
        one, other = (self.memory[v] for v in list(op.operands)[1:])
        name = self.names.temporary("chosen")
        self.line(f"{name} = {one.base} if {self.expr(op.operands[0])} else {other.base}")
        self.memory[op.results[0]] = replace(one, base=name)
        self.others |= {name} if any(m.base in self.written | self.others for m in (one, other)) else set()

    def constancy(self, memory: Memory) -> str:
        """How vectors are loaded: nobody writes the memory while the kernel is there, its blocks that wait included."""
        return "" if memory.base in self.written or memory.base in self.others else "_nc"
