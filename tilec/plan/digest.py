"""A digest of the plan's attributes, written with them: it tells a plan that a person edited in dumped IR."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from tilec.core import mlir
from tilec.core.diagnostics import CallError
from tilec.core.mlir import ir

DIGEST = "tilec.plan_digest"
ASSIGNED = ("kernel", "loop_group", "dims", "loops", "left", "inline")
"""Attributes of operations."""


def sign(module: ir.Operation) -> None:
    """Writes the digests of a plan that was just written."""
    module.attributes[DIGEST] = mlir.string(" ".join(digests(module)))


def digests(module: ir.Operation) -> tuple[str, str, str]:
    """The digest of the kernels, of the operations' attributes, and of the steps that were applied."""
    found: list[list[str]] = [[], [], []]
    for key, text in attributes_of_plan(module):
        found[not key.startswith(("tilec.kernels ", "tilec.launches "))].append(f"{key} = {text}")
    if "tilec.rewrites" in module.attributes:
        found[2].append(str(module.attributes["tilec.rewrites"]))
    kernels, operations, steps = (hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16] for lines in found)
    return kernels, operations, steps


def attributes_of_plan(module: ir.Operation) -> Iterator[tuple[str, str]]:
    """Names and texts of the plan's decisions, without predictions."""
    if "tilec.kernels" in module.attributes and isinstance(module.attributes["tilec.kernels"], ir.DictAttr):
        for kernel in ir.DictAttr(module.attributes["tilec.kernels"]):
            if not isinstance(kernel.attr, ir.DictAttr):
                yield f"tilec.kernels {kernel.name}", str(kernel.attr)
                continue
            for entry in ir.DictAttr(kernel.attr):
                if entry.name != "predicted_us":
                    yield f"tilec.kernels {kernel.name}.{entry.name}", str(entry.attr)
    if "tilec.launches" in module.attributes:
        for launch in ir.DictAttr(module.attributes["tilec.launches"]):
            yield f"tilec.launches {launch.name}", str(launch.attr)
    for op in assigned_operations(program_of(module)):
        for key in (f"tilec.{k}" for k in ASSIGNED):
            if key in op.attributes:
                yield f"{key} of {mlir.get_string(op, 'tilec.name')}", str(op.attributes[key])


def program_of(module: ir.Operation) -> ir.Operation:
    """The function that is no kernel."""
    found = [f for f in mlir.functions(module) if "tilec.kernel" not in f.attributes]
    if len(found) != 1:
        raise CallError("this IR must have one function that is not a kernel: the program")
    return found[0]


def assigned_operations(function: ir.Operation) -> Iterator[ir.Operation]:
    return (op for op in mlir.traverse(function) if mlir.is_generic(op))
