"""Right shifts of masked numbers in unrolled loops, which NVVM's LLVM 7 drops (`docs/upstream/nvvm-dropped-shift.md`).

A shift is dropped where its operand

- becomes a constant late: it is computed from a variable that is assigned more than once, such as a loop's;
- and was masked on its way: by an `and`, an extension without a sign, a remainder, or a right shift and then a left one.

A division by a power of two is a shift, too, and a 32-bit shift becomes a 64-bit one if its result is extended. The
operands of such shifts pass through a `mov` that NVVM does not look into. Other operands stay as they are: NVVM must see
the constant index of an array in registers, or it puts the array into local memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from numba_cuda_mlir._mlir import ir

_SHIFTS = ("arith.shrui", "arith.shrsi")
_DIVISIONS = ("arith.divui", "arith.divsi", "arith.floordivsi", "arith.ceildivsi", "arith.ceildivui")
_MASKS = ("arith.andi", "arith.extui", "arith.remui", "arith.remsi")
_PRODUCTS = ("arith.muli", "arith.shli")
_UNSIGNED = ("arith.divui", "arith.remui", "arith.shrui")
_LETTERS = {32: "r", 64: "l"}  # constraints of inline assembly


def keep_right_shifts(module: ir.Module) -> None:
    """Hides the operands of shifts that NVVM may drop."""
    _narrow_unsigned(module)
    flow = _Flow(module)
    varying = flow.reached(flow.variables)
    shifts = [op for op in flow.named(*_SHIFTS, *_DIVISIONS) if hash(op.operands[0]) in varying and _moves(op)]
    if not shifts:
        return
    shifted = flow.reached(op.results[0] for op in shifts)
    masks = [op for op in flow.named(*_MASKS) if hash(op.operands[0]) in varying and _width(op.operands[0]) > 1]
    masks += [op for op in flow.named("func.call") if _callee(op) in flow.masking and _any_of(op.operands, varying)]
    masks += [op for op in flow.named(*_PRODUCTS) if _any_of(op.operands, shifted)]
    masked = flow.reached(v for op in masks for v in op.results)
    for op in shifts:
        if hash(op.operands[0]) in masked:
            with ir.InsertionPoint(op), op.location:
                op.operands[0] = _hidden(op.operands[0])


class _Flow:
    """Where integers go: through arithmetic, variables in memory, and functions that are called, whose results are taken to
    depend on their arguments."""

    def __init__(self, module: ir.Module):
        self.operations: defaultdict[str, list[ir.Operation]] = defaultdict(list)  # by name
        self.variables: list[ir.Value] = []  # loads of variables that are assigned more than once
        self.loads: defaultdict[int, list[tuple[int | None, ir.Value]]] = defaultdict(list)
        """For each variable or array: the place, where that is known, and the value read there."""
        self.parameters: dict[str, list[ir.Value]] = {}
        self.masking: set[str] = set()  # functions that mask something

        def visit(op: ir.Operation) -> ir.WalkResult:
            if op.name.startswith("arith.") or op.name == "func.call":
                self.operations[op.name].append(op)
            if op.name in _MASKS and op.parent.name == "func.func":
                self.masking.add(ir.StringAttr(op.parent.attributes["sym_name"]).value)
            elif op.name == "memref.load" and _width(op.results[0]):
                subscript = _subscript(op, 1)
                self.loads[hash(op.operands[0])].append((subscript, op.results[0]))
                if subscript is not None and _is_made_by(op.operands[0], "memref.alloca"):
                    self.variables.append(op.results[0])
            elif op.name == "func.func" and len(op.regions[0].blocks):
                name = ir.StringAttr(op.attributes["sym_name"]).value
                self.parameters[name] = list(op.regions[0].blocks[0].arguments)
            return ir.WalkResult.ADVANCE

        module.operation.walk(visit)

    def named(self, *names: str) -> list[ir.Operation]:
        return [op for name in names for op in self.operations[name]]

    def reached(self, values: Iterable[ir.Value]) -> set[int]:
        """Hashes of these values and of all that is computed from them."""
        found: set[int] = set()
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            if hash(value) not in found:
                found.add(hash(value))
                for use in value.uses:
                    waiting += self._next(use.owner.operation, use.operand_number)
        return found

    def _next(self, op: ir.Operation, position: int) -> Iterator[ir.Value]:
        if op.name == "memref.store":
            subscript = _subscript(op, 2)
            for at, loaded in self.loads[hash(op.operands[1])] if position == 0 else ():
                if at is None or subscript is None or at == subscript:
                    yield loaded
        elif op.name == "func.call":
            yield from self.parameters.get(_callee(op), [])[position : position + 1]
            yield from (v for v in op.results if _width(v) > 1)
        elif op.name == "scf.yield":
            yield from list(op.parent.results)[position : position + 1]
        elif op.name.startswith("arith."):
            yield from (v for v in op.results if _width(v) > 1)


def _any_of(values: Iterable[ir.Value], hashes: set[int]) -> bool:
    return any(hash(v) in hashes for v in values)


def _callee(call: ir.Operation) -> str:
    return ir.FlatSymbolRefAttr(call.attributes["callee"]).value


def _subscript(op: ir.Operation, position: int) -> int | None:
    """Which element of its memory is read or written, where that is known."""
    return _number(op.operands[position]) if len(op.operands) == position + 1 else None


def _width(value: ir.Value) -> int:
    """The bits of an integer; 64 of an index; 0 of anything else."""
    if isinstance(value.type, ir.IndexType):
        return 64
    return ir.IntegerType(value.type).width if isinstance(value.type, ir.IntegerType) else 0


def _is_made_by(value: ir.Value, name: str) -> bool:
    return isinstance(value.owner, ir.Operation | ir.OpView) and value.owner.operation.name == name


def _moves(op: ir.Operation) -> bool:
    """Whether this is a shift as NVVM sees it, or may become one."""
    if _width(op.results[0]) not in _LETTERS or isinstance(op.results[0].type, ir.IndexType):
        return False
    known = _number(op.operands[1])
    return known is None or (known > 0 if op.name in _SHIFTS else known > 1 and known & (known - 1) == 0)


def _hidden(value: ir.Value) -> ir.Value:
    width = _width(value)
    text = ir.StringAttr.get(f"mov.b{width} $0, $1;")
    constraints = ir.StringAttr.get(f"={_LETTERS[width]},{_LETTERS[width]}")
    attributes: dict[str, ir.Attribute] = {"asm_string": text, "constraints": constraints}
    return ir.Operation.create("llvm.inline_asm", results=[value.type], operands=[value], attributes=attributes).result


def _narrow_unsigned(module: ir.Module) -> None:
    """Numba takes all unsigned arithmetic to 64 bits. Values that fit 32 are shifted and divided in 32, which is cheaper."""
    found = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name in _UNSIGNED and str(op.results[0].type) == "i64":
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in found:
        known, shift = _number(op.operands[1]), op.name == "arith.shrui"
        if shift and (known is None or known >= 32):
            continue
        with ir.InsertionPoint.after(op), op.location:
            word, wide = ir.IntegerType.get_signless(32), op.results[0].type
            operands = [v for v in (_in_word(v, word) for v in op.operands) if v is not None]
            if len(operands) < len(op.operands):
                continue
            small = ir.Operation.create(op.name, results=[word], operands=operands)
            made = ir.Operation.create("arith.extui", results=[wide], operands=[small.result]).result
            op.result.replace_all_uses_with(made)
            op.erase()


def _in_word(value: ir.Value, word: ir.Type) -> ir.Value | None:
    """The value in 32 bits, where it is known to fit them without a sign."""
    known, maker = _number(value), value.owner
    if known is not None:
        attribute = ir.IntegerAttr.get(word, known - (known >> 31 << 32)) if 0 <= known < 1 << 32 else None
        if attribute is None:
            return None
        return ir.Operation.create("arith.constant", results=[word], attributes={"value": attribute}).result
    if not _is_made_by(value, "arith.extui"):
        return None
    narrow = maker.operation.operands[0]
    bits = ir.IntegerType(narrow.type).width
    if bits == 32:
        return narrow
    extended = ir.Operation.create("arith.extui", results=[word], operands=[narrow]) if bits < 32 else None
    return None if extended is None else extended.result


def _number(value: ir.Value) -> int | None:
    """Of a constant, which may have been extended."""
    maker = value.owner
    if not isinstance(maker, ir.Operation | ir.OpView):
        return None
    op = maker.operation
    if op.name == "arith.constant":
        return ir.IntegerAttr(op.attributes["value"]).value
    known = _number(op.operands[0]) if op.name == "arith.extui" else None
    return None if known is None else known % (1 << ir.IntegerType(op.operands[0].type).width)
