"""The order in which a compiled module launches its kernels, and the memory that it hands them."""

from __future__ import annotations

from tilec.analysis.traffic import element_bytes
from tilec.core import mlir
from tilec.core.diagnostics import InternalError
from tilec.core.mlir import ir
from tilec.runtime.program import Slot, Step, Temporary
from tilec.runtime.temporaries import allocate


def read_steps(module: ir.Module) -> tuple[str, tuple[Step, ...], tuple[Temporary, ...]]:
    """The program's name, its launches and its temporaries, from the function that only calls kernels."""
    (program,) = [f for f in mlir.functions(module) if "tilec.kernel" not in f.attributes]
    names = list(ir.ArrayAttr(program.attributes["arg_attrs"])) if "arg_attrs" in program.attributes else []
    inputs = mlir.get_integer(program, "tilec.inputs")
    block = mlir.entry(program)
    inputs = len(names) if inputs is None else inputs
    slots = {a: Slot("input", n) if n < inputs else Slot("output", n - inputs) for n, a in enumerate(block.arguments)}
    steps: list[Step] = []
    temporaries: list[int] = []
    lasting: list[int] = []
    for view in block.operations:
        op = view.operation
        match op.name:
            case "memref.alloc":
                shaped = ir.ShapedType(op.results[0].type)
                slots[op.results[0]] = Slot("temporary", len(temporaries))
                lasting += [len(temporaries)] * ("tilec.stays_clear" in op.attributes)
                temporaries.append(_bytes(shaped))
            case "memref.expand_shape" | "memref.collapse_shape":  # the same memory, seen with another shape
                slots[op.results[0]] = slots[op.operands[0]]
            case "func.call":
                steps.append(_launch(op, tuple(slots[v] for v in op.operands)))
            case "memref.copy":
                steps.append(
                    Step(None, tuple(slots[v] for v in op.operands), _bytes(ir.ShapedType(op.operands[0].type)))
                )
            case "linalg.fill" if slots[op.operands[1]] in [Slot("temporary", n) for n in lasting]:
                pass
            case "linalg.fill" if mlir.constant_value(op.operands[0]) == 0:
                steps.append(Step(None, (slots[op.operands[1]],), _bytes(ir.ShapedType(op.operands[1].type))))
            case "func.return" | "memref.dealloc" | "arith.constant":
                pass
            case other:
                raise InternalError(f"'{other}' cannot stand between kernels", "emit", str(module))
    return mlir.symbol(program), tuple(steps), allocate(temporaries, steps, lasting)


def _launch(call: ir.Operation, slots: tuple[Slot, ...]) -> Step:
    renamed = ir.DictAttr(call.attributes["tilec.checks"]) if "tilec.checks" in call.attributes else ()
    checks = tuple((entry.name, ir.StringAttr(entry.attr).value) for entry in renamed)
    callee = mlir.callee(call)
    return Step(callee, slots, name=mlir.get_string(call, "tilec.launch") or "", renamed=checks)


def _bytes(shaped: ir.ShapedType) -> int:
    count = 1
    for extent in shaped.shape:
        count *= extent
    return count * element_bytes(shaped.element_type)
