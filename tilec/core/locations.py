"""Locations carry statements and names of variables from the source to the printed kernel.

    loc("m"("softmax.tile":3:1))                     the operation belongs to the statement `m`, on line 3
    loc("%j"("m"("softmax.tile":3:1)))               and its result is printed as `j`
    loc("%step,%stage,%phase"("y"("a.tile":1:1)))    of a loop: its variable, then the carried values

Passes, upstream's too, keep the locations of operations that they change, and no operation differs from another by its location. So
names reach the printed kernel and change nothing on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from tilec.core.mlir import ir

_Named = TypeVar("_Named", bound=ir.Operation | ir.OpView | ir.Value)


def named(what: _Named, *names: str | None) -> _Named:
    """Gives names to the variables that an operation defines (a loop: its own, then those that it carries); returns it.
    A None among the names leaves that variable to the printer; `.j` is the program's index `j`, and `@m` something that a thread
    holds of its tensor `m`. Constants and arguments of blocks have no names."""
    op = what if isinstance(what, (ir.Operation, ir.OpView)) else what.owner
    if isinstance(op, ir.Block) or not any(names):
        return what
    op = op.operation
    if op.name != "arith.constant":
        op.location = ir.Location.name(",".join(f"%{n or ''}" for n in names), _unnamed(op.location))
    return what


def variables(op: ir.Operation) -> list[str | None]:
    """The names that `named` gave."""
    location = op.location
    if not isinstance(location, ir.NameLoc) or not location.name_str.startswith("%"):
        return []
    return [n.removeprefix("%") or None for n in location.name_str.split(",")]


def _unnamed(location: ir.Location) -> ir.Location:
    return location.child_loc if isinstance(location, ir.NameLoc) and location.name_str.startswith("%") else location


def statement(location: ir.Location) -> str | None:
    """The name of the tensor that the statement of a location defines, or several, with commas between them."""
    location = _unnamed(location)
    return location.name_str if isinstance(location, ir.NameLoc) else None


Position = tuple[str, int, int]


def positions(location: ir.Location) -> Iterator[Position]:
    """File, line and column of every position in the source that a location names."""
    match location:
        case ir.FileLineColLoc():
            yield location.filename, location.start_line, location.start_col
        case ir.NameLoc():
            yield from positions(location.child_loc)
        case ir.FusedLoc():
            for inner in location.locations:
                yield from positions(inner)


# ---- texts and names of the program, which the module has as attributes ----------------------------------------------

STATEMENTS = "tilec.statements"
INDICES = "tilec.indices"


def set_statements(module: ir.Operation, texts: dict[Position, str]) -> None:
    """The source's text of every statement, by its position."""
    entries: dict[str, ir.Attribute] = {
        f"{file}:{line}:{column}": ir.StringAttr.get(text) for (file, line, column), text in texts.items()
    }
    module.attributes[STATEMENTS] = ir.DictAttr.get(entries)


def statements(module: ir.Operation) -> dict[Position, str]:
    """What `set_statements` has set."""
    found = {}
    for entry in ir.DictAttr(module.attributes[STATEMENTS]) if STATEMENTS in module.attributes else ():
        file, line, column = entry.name.rsplit(":", 2)
        found[file, int(line), int(column)] = ir.StringAttr(entry.attr).value
    return found


def set_indices(op: ir.Operation | ir.OpView, names: list[str]) -> None:
    """The source's names of an operation's dimensions, or of a kernel's."""
    op.attributes[INDICES] = ir.ArrayAttr.get([ir.StringAttr.get(n) for n in names])


def indices(op: ir.Operation) -> list[str]:
    """What `set_indices` has set; an empty list where nobody has."""
    return [ir.StringAttr(a).value for a in ir.ArrayAttr(op.attributes[INDICES])] if INDICES in op.attributes else []


CUT = "tilec.cut"


def index_names(op: ir.Operation) -> dict[int, str]:
    """The source's name of each dimension of the kernel around `op`, as `named` takes it: `.j`."""
    return {d: f".{name}" for d, name in enumerate(indices(_kernel(op))) if name}


def joined(names: Iterable[str]) -> str:
    """The names of several dimensions that are gone through as one."""
    first, *others = names
    return "_".join([first, *(n.removeprefix(".") for n in others)])


def loop_names(op: ir.Operation) -> dict[int, str]:
    """The name of a loop over each dimension: the index, or `i_inner` of `i` where a block has a part of its values."""
    kernel = _kernel(op)
    cut = list(ir.DenseI64ArrayAttr(kernel.attributes[CUT])) if CUT in kernel.attributes else []
    return {d: f"{name}_inner" if d in cut else name for d, name in index_names(op).items()}


def _kernel(op: ir.Operation) -> ir.Operation:
    while op.name != "func.func":
        op = op.parent.operation
    return op


def argument(value: ir.Value) -> str | None:
    """The source's name of the tensor that is an argument of a kernel."""
    if not isinstance(value.owner, ir.Block):
        return None
    function = value.owner.owner
    names = ir.DictAttr(ir.ArrayAttr(function.attributes["arg_attrs"])[ir.BlockArgument(value).arg_number])
    return ir.StringAttr(names["tilec.name"]).value if "tilec.name" in names else None
