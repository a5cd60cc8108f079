"""The statements of the source as comments beside the lines that serve them.

    # softmax.tile:3: m[i] = max[j](x[i, j])
    m_1 = float32(-inf)
    for ...

A comment stands before the first operation of a statement, and again after lines of other statements. An operation that serves
several statements, because passes have merged them, has all of them, in the source's order.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilec.core import locations
from tilec.core.locations import Position
from tilec.core.mlir import ir

LONGEST = 100
_SILENT = (
    "arith.", "math.", "affine.", "memref.alloc", "memref.subview", "memref.cast", "memref.dim", "memref.collapse_shape",
    "memref.expand_shape", "scf.yield", "scf.condition", "scf.forall.in_parallel", "func.return", "gpu.thread_id",
    "gpu.block_id", "gpu.cluster", "gpu.grid", "nvgpu.tma.create", "nvgpu.mbarrier.create", "vector.load", "memref.assume",
)  # fmt: skip


class Comments:
    """The comments of one kernel. `whole` is the location of the whole kernel, which has no comment of its own."""

    def __init__(self, statements: Mapping[Position, str], whole: ir.Location):
        self.statements = statements
        self.shown: dict[tuple[Position, str | None], str] = {}
        self.lines: dict[ir.Location, tuple[str, ...]] = {}
        known = self._lines(whole)
        self.whole = known if len(known) > 1 else ()
        self.now: tuple[str, ...] = ()

    def before(self, op: ir.Operation) -> list[str]:
        """The lines that stand before an operation: none where its statements are those of the lines before."""
        if op.name.startswith(_SILENT):
            return []
        lines = self._lines(op.location)
        if set(lines) <= set(self.now) or lines == self.whole:
            return []
        self.now = lines
        return [f"# {line}" for line in lines]

    def _lines(self, location: ir.Location) -> tuple[str, ...]:
        if (known := self.lines.get(location)) is not None:
            return known
        name = locations.statement(location)
        found = dict.fromkeys(self._shown(position, name) for position in locations.positions(location))
        self.lines[location] = made = tuple(reversed(found))
        return made

    def _shown(self, position: Position, name: str | None) -> str:
        key = position, name
        if key not in self.shown:
            self.shown[key] = self._line(position, name)
        return self.shown[key]

    def _line(self, position: Position, name: str | None) -> str:
        """File, line and text; where the text is unknown, the name that the statement defines."""
        text = self.statements.get(position) or name or ""
        if len(text) > LONGEST:
            text = text[: LONGEST - 4].rstrip() + " ..."
        return plain(f"{position[0].rsplit('/', 1)[-1]}:{position[1]}" + (f": {text}" if text else ""))


def plain(text: str) -> str:
    """A text that ends with its line, whatever the source calls its files."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "_" for c in text)
