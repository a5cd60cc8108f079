"""What the emitters make of a compiled module: kernel sources, and the order in which the program launches them."""

from __future__ import annotations

from dataclasses import dataclass

from tilec import mlir
from tilec.diagnostics import InternalError
from tilec.grouping import element_bytes
from tilec.mlir import ir


@dataclass(frozen=True)
class Slot:
    """Memory that a step uses: the program's input or output `number`, or one of its temporaries."""

    kind: str  # "input" | "output" | "temporary"
    number: int


@dataclass(frozen=True)
class Step:
    """One launch: kernel and the memory of its parameters in order. `kernel` None copies the first slot to the second."""

    kernel: str | None
    slots: tuple[Slot, ...]
    bytes: int = 0


@dataclass(frozen=True)
class TensorMap:
    """A tensor that TMA loads boxes of (CUDA): the kernel's parameter that it starts at, its shape, and the box's."""

    parameter: int
    dtype: str
    item_bytes: int
    shape: tuple[int, ...]
    box: tuple[int, ...]


@dataclass(frozen=True)
class KernelSource:
    """A kernel as Python text. `grid` blocks; `scratch` bytes of private memory a block needs (CPU); `shared` bytes of
    dynamic SRAM and `threads` a block has (CUDA); `sites` are the messages of its run-time checks, by number from 1; `maps`
    are further parameters, behind the pointers."""

    name: str
    text: str
    grid: int
    parameters: int
    threads: int = 1
    scratch: int = 0
    shared: int = 0
    sites: tuple[str, ...] = ()
    maps: tuple[TensorMap, ...] = ()


@dataclass(frozen=True)
class Emitted:
    """A whole program: `module` is the text of one Python module with all kernels; `temporaries` are sizes in bytes."""

    name: str
    module: str
    kernels: tuple[KernelSource, ...]
    steps: tuple[Step, ...]
    temporaries: tuple[int, ...]


def read_steps(module: ir.Module) -> tuple[str, tuple[Step, ...], tuple[int, ...]]:
    """The program's name, its launches and its temporaries, from the function that only calls kernels."""
    (program,) = [f for f in mlir.functions(module) if "tilec.kernel" not in f.attributes]
    names = list(ir.ArrayAttr(program.attributes["arg_attrs"])) if "arg_attrs" in program.attributes else []
    inputs = mlir.get_integer(program, "tilec.inputs")
    block = mlir.entry(program)
    inputs = len(names) if inputs is None else inputs
    slots = {a: Slot("input", n) if n < inputs else Slot("output", n - inputs) for n, a in enumerate(block.arguments)}
    steps: list[Step] = []
    temporaries: list[int] = []
    for view in block.operations:
        op = view.operation
        match op.name:
            case "memref.alloc":
                shaped = ir.ShapedType(op.results[0].type)
                slots[op.results[0]] = Slot("temporary", len(temporaries))
                temporaries.append(_bytes(shaped))
            case "memref.expand_shape":  # the same memory, seen with another shape
                slots[op.results[0]] = slots[op.operands[0]]
            case "func.call":
                callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
                steps.append(Step(callee, tuple(slots[v] for v in op.operands)))
            case "memref.copy":
                steps.append(
                    Step(None, tuple(slots[v] for v in op.operands), _bytes(ir.ShapedType(op.operands[0].type)))
                )
            case "func.return" | "memref.dealloc":
                pass
            case other:
                raise InternalError(f"'{other}' cannot stand between kernels", "emit", str(module))
    return ir.StringAttr(program.attributes["sym_name"]).value, tuple(steps), tuple(temporaries)


def _bytes(shaped: ir.ShapedType) -> int:
    count = 1
    for extent in shaped.shape:
        count *= extent
    return count * element_bytes(shaped.element_type)
