"""The order in which a compiled module launches its kernels, and the memory that it hands them."""

from __future__ import annotations

from collections.abc import Mapping

from tilec.analysis.traffic import element_bytes
from tilec.core import extents, mlir
from tilec.core.diagnostics import InternalError
from tilec.core.mlir import ir
from tilec.core.varying import Varying
from tilec.runtime.program import Amount, Slot, Step, Temporary
from tilec.runtime.temporaries import allocate


def read_steps(module: ir.Module) -> tuple[str, tuple[Step, ...], tuple[Temporary, ...]]:
    """The program's name, its launches and its temporaries, from the function that only calls kernels."""
    (program,) = [f for f in mlir.functions(module) if "tilec.kernel" not in f.attributes]
    names = list(ir.ArrayAttr(program.attributes["arg_attrs"])) if "arg_attrs" in program.attributes else []
    inputs = mlir.get_integer(program, "tilec.inputs")
    block = mlir.entry(program)
    inputs = len(names) if inputs is None else inputs
    slots = {a: Slot("input", n) if n < inputs else Slot("output", n - inputs) for n, a in enumerate(block.arguments)}
    steps, varies = list[Step](), extents.sizes_of(program)
    temporaries: list[Amount] = []
    lasting: list[int] = []
    for view in block.operations:
        op = view.operation
        match op.name:
            case "memref.alloc":
                slots[op.results[0]] = Slot("temporary", len(temporaries))
                lasting += [len(temporaries)] * ("tilec.stays_clear" in op.attributes)
                temporaries.append(_bytes(op.results[0], varies))
            case "memref.expand_shape" | "memref.collapse_shape":  # the same memory, seen with another shape
                slots[op.results[0]] = slots[op.operands[0]]
            case "func.call":
                steps.append(_launch(op, tuple(slots[v] for v in op.operands)))
            case "memref.copy":
                steps.append(Step(None, tuple(slots[v] for v in op.operands), _bytes(op.operands[0], varies)))
            case "linalg.fill" if slots[op.operands[1]] in [Slot("temporary", n) for n in lasting]:
                pass
            case "linalg.fill" if mlir.constant_value(op.operands[0]) == 0:
                steps.append(Step(None, (slots[op.operands[1]],), _bytes(op.operands[1], varies)))
            case "func.return" | "memref.dealloc" | "arith.constant":
                pass
            case _ if len(op.results) == 1 and isinstance(op.results[0].type, ir.IndexType):
                pass  # computes an extent
            case other:
                raise InternalError(f"'{other}' cannot stand between kernels", "emit", str(module))
    numbers = [n for n in temporaries if isinstance(n, int)]
    if len(numbers) < len(temporaries):  # where they lie depends on sizes
        return mlir.symbol(program), tuple(steps), tuple(Temporary(n, 0, k in lasting) for k, n in enumerate(temporaries))
    return mlir.symbol(program), tuple(steps), allocate(numbers, steps, lasting)


def _launch(call: ir.Operation, slots: tuple[Slot, ...]) -> Step:
    renamed = ir.DictAttr(call.attributes["tilec.checks"]) if "tilec.checks" in call.attributes else ()
    checks = tuple((entry.name, ir.StringAttr(entry.attr).value) for entry in renamed)
    callee = mlir.callee(call)
    (kernel,) = [f for f in mlir.functions(call.parent.operation.parent.operation) if mlir.symbol(f) == callee]
    sizes = tuple(extents.names_of(kernel))
    return Step(callee, slots, sizes=sizes, name=mlir.get_string(call, "tilec.launch") or "", renamed=checks)


def _bytes(memory: ir.Value, sizes: Mapping[str, Varying]) -> Amount:
    count: extents.Extent = element_bytes(ir.ShapedType(memory.type).element_type)
    for extent in extents.shape_of(memory):
        count = extent * count
    return extents.amount(count, sizes)
