"""Holds every pass to the table of attributes (`attributes.py`)."""

from __future__ import annotations

from dataclasses import dataclass

from tilec.core.diagnostics import InternalError
from tilec.core.mlir import ir
from tilec.kernels.attributes import PREFIX, STAGES, TABLE, Attribute
from tilec.process.interrupts import uninterrupted


@dataclass(frozen=True)
class Fault:
    """The mistake of an attribute of an operation, if there is one."""

    attribute: str
    operation: str
    why: str

    def __str__(self) -> str:
        return f"`{self.attribute}` on {self.operation} {self.why}"


_ROWS: dict[str, list[Attribute]] = {}
for _entry in TABLE:
    _ROWS.setdefault(PREFIX + _entry.name, []).append(_entry)
_AT = {name: n for n, name in enumerate(STAGES)}
_BY_DIM = {PREFIX + row.name for row in TABLE if row.type.by_dim}
_OF_ARGUMENTS = ("arg_attrs", "res_attrs")


class Verifier:
    """Looks at all attributes of a module, again and again while its context lives; those that it has seen, it knows."""

    def __init__(self) -> None:
        self.known: dict[tuple, tuple[int, int]] = {}
        """From which stage to which an attribute may be on an operation, of those that are of their type."""

    def fault(self, module: ir.Operation, stage: str, ended: bool) -> Fault | None:
        """The first attribute that may not be there within a stage or, if it has `ended`, after it."""
        at, known, found = _AT[stage] + (0.5 if ended else 0), self.known, []

        def visit(op: ir.Operation) -> ir.WalkResult:
            attributes = op.attributes
            for name in attributes:
                if name.startswith(PREFIX) or name in _OF_ARGUMENTS:
                    attribute = attributes[name]
                    key = (name, attribute, op.name, attributes.get("iterator_types") if name in _BY_DIM else None)
                    stages = known.get(key)
                    if stages is None or not stages[0] <= at <= stages[1]:
                        made = _stages(op, name, attribute, at)
                        if isinstance(made, Fault):
                            found.append(made)
                            return ir.WalkResult.INTERRUPT
                        known[key] = made
            return ir.WalkResult.ADVANCE

        with uninterrupted():  # MLIR makes an error of its own of an exception in `visit`
            module.walk(visit, ir.WalkOrder.PRE_ORDER)
        return found[0] if found else None

    def demand(self, module: ir.Operation, step: str, stage: str, ended: bool) -> None:
        """Raises InternalError with the mistake of a pass."""
        if (fault := self.fault(module, stage, ended)) is not None:
            raise InternalError(f"after pass '{step}' of stage '{stage}', {fault}", stage)


def _stages(op: ir.Operation, name: str, attribute: ir.Attribute, at: float) -> tuple[int, int] | Fault:
    """From which stage to which an attribute may be there."""
    if name not in _OF_ARGUMENTS:
        found = _row(op, name, attribute, _names(op), at)
        return Fault(name, _named(op), found) if isinstance(found, str) else (_AT[found.first], _AT[found.last])
    for entry in (e for entries in ir.ArrayAttr(attribute) for e in ir.DictAttr(entries) if e.name.startswith(PREFIX)):
        if isinstance(found := _row(op, entry.name, entry.attr, ("argument",), at), str):
            return Fault(entry.name, f"an argument of {_named(op)}", found)
    return 0, len(STAGES)


def _row(
    op: ir.Operation, name: str, attribute: ir.Attribute, kinds: tuple[str, ...], at: float
) -> Attribute | str:  # fmt: skip
    """An attribute's row of the table, or the mistake."""
    rows = _ROWS.get(name)
    if rows is None:
        return "is not declared in tilec/kernels/attributes.py"
    row = next((r for r in rows if any(p in r.on for p in kinds)), None)
    if row is None:
        return f"belongs on {' or '.join(o for r in rows for o in r.on)}"
    if at < _AT[row.first]:
        return f"is written by stage '{row.first}', and not before"
    if at > _AT[row.last]:
        return f"outlives stage '{row.last}', which carries it out"
    wanted = row.type.wrong(op, attribute)
    return row if wanted is None else f"should be {wanted}; it is {attribute}"


def _names(op: ir.Operation) -> tuple[str, ...]:
    """The names that a row may use for an operation."""
    match name := op.name:
        case "func.func":
            return name, "kernel" if PREFIX + "kernel" in op.attributes else "program"
        case "builtin.module":
            return (name, "module")
        case _ if name.startswith(("arith.", "math.")):
            return (name, "scalar")
    return (name,)


def _named(op: ir.Operation) -> str:
    """An operation as a message calls it."""
    own = next((op.attributes[k] for k in (PREFIX + "name", "sym_name") if k in op.attributes), None)
    return op.name if own is None else f"{op.name} {own}"
