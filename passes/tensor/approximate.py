"""approximate: functions marked `tilec.approximate` become fast approximations of a few operations.

`tilec/analysis/rules.py` has the approximations, and `tilec/analysis/precision.py` decides.
"""

from __future__ import annotations

from tilec.analysis.rules import replacement
from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.passes.emit import substitute


def approximate(module: ir.Operation) -> None:
    marked = [o for o in mlir.traverse(module) if "tilec.approximate" in o.attributes]
    for op in reversed(marked):  # readers first: the form of an argument is unknown once it is approximated
        substitute(op, replacement(mlir.get_string(op, "tilec.approximate"), op.results[0]))
