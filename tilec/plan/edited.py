"""Dumped IR whose plan a person edited: read as a schedule file is, so that every check of a schedule is a check of a dump.

`annotate` writes a digest of the plan's attributes with the plan. If the digest of the IR that is read differs, the attributes
are taken as a schedule file, by which the program is planned again. All attributes of the new plan must then equal those read:

    tilec.kernels = {f_y = {tile = [4], ...}}   ->   [plan.kernels.f_y] tile = [4] ...   ->   the same attributes, or a reason

That takes the tensors that `plan` reads. In IR after a later stage, the plan must be as it was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tilec.core import mlir
from tilec.core.diagnostics import CallError, Source
from tilec.core.mlir import ir
from tilec.core.target import Target
from tilec.core.toml import Toml
from tilec.kernels import FAMILIES
from tilec.plan.digest import ASSIGNED, DIGEST, assigned_operations, attributes_of_plan, digests, program_of, sign


def check_edited(module: ir.Operation, target: Target, begin: str, at: Mapping[str, int] | None = None) -> None:
    """Raises CallError if the plan in a module, which continues with stage `begin`, was edited and cannot be carried out, or if it
    was edited in IR after a later stage than `plan`."""
    signed = (mlir.get_string(module, DIGEST) or "").split()
    kernels, operations, steps = digests(module)
    if signed[2:] not in ([], [steps]):
        why = "the steps in this IR (`tilec.rewrites`) are not those that stage 'plan' wrote, which has applied them"
        raise CallError(why, hint="write other steps under `rewrites` in a schedule file")
    if signed[:1] == [kernels] and (begin != "fuse" or signed[1:2] == [operations]):
        return
    if begin != "fuse":
        why = "the plan in this IR (`tilec.kernels`) is not the one that stage 'plan' wrote, which later stages have obeyed"
        raise CallError(why, hint="edit the plan in IR that was dumped after stage 'plan', or in a schedule file")
    replanned = _replanned(module, target, at)
    for name, now, then in _differences(module, replanned):
        raise CallError(
            f"the plan in this IR cannot be carried out: {name} is {now}, and follows from the program: {then}"
        )
    sign(module)


def _replanned(module: ir.Operation, target: Target, at: Mapping[str, int] | None) -> ir.Operation:
    """A copy of the module, planned again in obedience to its own attributes. Raises CallError."""
    import tomlkit

    from tilec.plan.planner import annotate, make_plan
    from tilec.plan.schedule.read import VERSION, parse_schedule
    from tilec.plan.search import NONE
    from tilec.plan.varying import plan_at

    copy = module.clone()
    function = program_of(copy)
    for op in assigned_operations(function):
        for key in ASSIGNED:
            if f"tilec.{key}" in op.attributes:
                del op.attributes[f"tilec.{key}"]
    # the steps of rewrites have been applied
    plan = make_plan(function, target, demands=NONE) if at is None else plan_at(function, target, at, NONE)
    ranges = {"sizes": {name: str(v) for name, v in plan.varies.items()}} if plan.varies else {}
    table = {"program": plan.signature, "target": target.name} | ranges | _schedule(module)
    text = tomlkit.dumps({"version": VERSION, "plan": [table]})
    try:
        obeyed = parse_schedule(Source("the plan in this IR", text))(plan)
    except CallError as error:
        (problem,) = error.diagnostics
        raise CallError(f"the plan in this IR cannot be carried out: {problem.message}", hint=problem.hint) from None
    annotate(copy, function, obeyed)
    return copy


def _schedule(module: ir.Operation) -> dict[str, Toml]:
    """The attributes as a schedule file's table."""
    operations: dict[str, list[str]] = {}
    loops: dict[str, dict[str, Any]] = {}
    inline = []
    for op in assigned_operations(program_of(module)):
        name = mlir.get_string(op, "tilec.name")
        if name is None:
            continue
        if "tilec.inline" in op.attributes:
            inline.append(name)
        if "tilec.kernel" in op.attributes:
            kernel = _value(op.attributes["tilec.kernel"])
            operations.setdefault(kernel, []).append(name)
            if "tilec.loops" in op.attributes:
                loops.setdefault(kernel, {})[name] = _value(op.attributes["tilec.loops"])
    table = ir.DictAttr(module.attributes["tilec.kernels"])
    entries = {a.name: ir.DictAttr(a.attr) for a in table if isinstance(a.attr, ir.DictAttr)}
    kernels: dict[str, Any] = {}
    for kernel, names in operations.items():
        if kernel not in entries:
            raise CallError(f"`tilec.kernels` has no kernel `{kernel}`, which operations are in")
        entry = {a.name: _value(a.attr) for a in entries[kernel] if a.name in ("tile", *FAMILIES)}
        kernels[kernel] = {"operations": names, **entry, "loops": loops.get(kernel, {})}
    found: dict[str, Any] = {"inline": inline, "kernels": kernels}
    if mlir.get_string(module, "tilec.backend") == "cuda":
        launches = ir.DictAttr(module.attributes["tilec.launches"]) if "tilec.launches" in module.attributes else ()
        found["launches"] = {a.name: [_value(name) for name in ir.ArrayAttr(a.attr)] for a in launches}
    return found


def _value(attribute: ir.Attribute) -> Any:
    """An attribute as a schedule file has it. Raises CallError for one of another kind."""
    if isinstance(attribute, ir.DictAttr):
        return {a.name: _value(a.attr) for a in ir.DictAttr(attribute)}
    for kind in (ir.BoolAttr, ir.IntegerAttr, ir.StringAttr):
        if isinstance(attribute, kind):
            return kind(attribute).value
    if isinstance(attribute, ir.DenseI64ArrayAttr):
        return list(ir.DenseI64ArrayAttr(attribute))
    raise CallError(f"the plan in this IR has `{attribute}`, which is no value of an option")


def _differences(module: ir.Operation, replanned: ir.Operation) -> Iterator[tuple[str, str, str]]:
    """A decision in which the plans of two modules differ: its name and both texts."""
    mine, theirs = (dict(part) for part in (attributes_of_plan(module), attributes_of_plan(replanned)))
    for key in dict.fromkeys((*mine, *theirs)):
        if mine.get(key) != theirs.get(key):
            yield f"`{key}`", mine.get(key, "absent"), theirs.get(key, "absent")
