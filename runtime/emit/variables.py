"""Names of a kernel's variables: from locations (`tilec/core/locations.py`), or from the tensor that
they are of."""

from __future__ import annotations

import re

from tilec.core import locations, mlir
from tilec.core.mlir import ir
from tilec.runtime.emit.names import Names


class Variables:
    """New names for results of operations, and for loaded values."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.held: dict[str, str] = {}  # of a variable or an array, the tensor of the program that it is of

    def hold(self, tensor: str) -> str:
        """A new name for something of a tensor of the program."""
        name = self.names.held(tensor)
        self.held[name] = tensor
        return name

    def loaded(self, base: str) -> str:
        """A new name for an element of memory."""
        return self.hold(self.held[base]) if base in self.held else self.names.temporary(re.sub(r"_\d+$|_panels$", "", base))

    def array(self, op: ir.Operation) -> str:
        """A new name for memory of the block or of the thread: the pass's name for it, or the name of its statement."""
        own, statement = locations.variables(op), mlir.get_string(op, "tilec.name") or locations.statement(op.location)
        return self.variable(op) if own or not statement else self.hold(statement.split(",")[-1])

    def state(self, loop: ir.Operation, number: int) -> str:
        """A new name for a value that a loop carries."""
        own, statement = locations.variables(loop), locations.statement(loop.location)
        known = number < len(own) and own[number]
        return self.variable(loop, number) if known or not statement else self.hold(statement.split(",")[-1])

    def variable(self, op: ir.Operation, number: int = 0, letters: str = "tmp") -> str:
        """A new name for an operation's result: the pass's name for it, or these letters with a number."""
        names = locations.variables(op)
        own = names[number] if number < len(names) else None
        if own is None:
            return self.names.temporary(letters)
        if own.startswith("@"):
            return self.hold(own[1:])
        results = [r.type for r in op.results]
        kind = str(results[number - (op.name == "scf.for")]) if results else None
        return self.names.variable(own, kind if kind in ("index", "i1") else None)
