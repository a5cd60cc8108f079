"""Errors of interpreted IR, with source line, threads and address."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

from tilec.core import mlir
from tilec.core.diagnostics import InternalError
from tilec.core.mlir import ir

Kind = Literal["outside", "unwritten", "race", "diverged", "stuck", "misaligned", "invalid"]


class Fault(InternalError):
    """IR that has no meaning: a compiler pass made it wrong, or a person who edited it.

    `kind`: "outside" of a buffer, memory that is "unwritten" when it is read, a "race" between threads or blocks, "diverged"
    threads at an operation for all of them, "stuck" threads that wait for ever, a "misaligned" vector, "invalid" for the
    rest. `line` is file and line of the program, `threads` are (block, thread) pairs.
    """

    def __init__(self, kind: Kind, op: ir.Operation, what: str, threads: Sequence[tuple[int, int]] = ()):
        self.kind, self.operation, self.threads = kind, op.name, tuple(threads)
        self.line = mlir.source_line(op)
        self.reason = what
        where = f"{self.line[0]}:{self.line[1]}: " if self.line else ""
        by = f"; {_threads(self.threads)}" if self.threads else ""
        super().__init__(f"{where}{kind}: {what}{by}\n  in {_text(op)}")


class Unsupported(InternalError):
    """IR that the interpreter has no meaning for. `operation` is its name."""

    def __init__(self, op: ir.Operation, why: str = ""):
        self.operation = op.name
        super().__init__(f"cannot interpret '{op.name}'{': ' + why if why else ''}\n  in {_text(op)}")


def _text(op: ir.Operation) -> str:
    """An operation's first line, without its location."""
    line = op.get_asm(enable_debug_info=False).strip().split("\n", 1)[0]
    return re.sub(r"\s+", " ", line)[:200]


def _threads(threads: Sequence[tuple[int, int]]) -> str:
    """`threads 3, 4 and 29 more of block 0`."""
    block = threads[0][0]
    mine = [t for b, t in threads if b == block]
    shown = ", ".join(map(str, mine[:4])) + (f" and {len(mine) - 4} more" if len(mine) > 4 else "")
    others = len({b for b, _ in threads}) - 1
    more = f", and of {others} more blocks" if others else ""
    return f"thread{'s' * (len(mine) > 1)} {shown} of block {block}{more}"


def first(wrong: np.ndarray) -> int:
    """The first lane that is wrong."""
    return int(np.argmax(wrong))
