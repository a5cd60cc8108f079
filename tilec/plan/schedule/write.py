"""Schedule files: a plan's decisions as TOML. People read, compare and edit them, and the compiler obeys them.

    version = 2

    [[plan]]
    program = "softmax(x: f32[512, 512])"   # M = 512, N = 512
    target = "cpu"
    inline = []                             # operations computed again inside each of their readers

    [plan.kernels.softmax_y]                # 64.1 us, bound by memory
    operations = ["m", "e", "s", "y"]
    tile = [8]                              # i = 512: 64 blocks

A file holds any number of plans, each for one program with its shapes and one target. `write_schedule` prints a plan.
`merge_schedule` puts it into a file's text. `read_schedule` (in `tilec/plan/schedule/read.py`) applies a file to the
compiler's plan.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

import tomlkit
from tomlkit.items import Array, Table

from tilec.dsl.specialise import Specialised
from tilec.kernels import KernelPlan
from tilec.kernels.base import listed
from tilec.plan.model import Plan
from tilec.plan.report.provenance import Provenance, short_location
from tilec.plan.schedule.read import VERSION, is_of, read_schedule
from tilec.plan.search import written

__all__ = ["merge_schedule", "read_schedule", "write_schedule"]

HEADER = """\
A schedule file: it says how a program is compiled, for one target and one set of shapes in each plan.
`tilec plan` wrote it, and you may edit it: the compiler obeys each line, or says why it cannot.
Times are predictions.
  sizes       the range of each size that varies: the plan is for a class of sizes, as `tilec explain` lists them
  operations  the operations of the kernel; move a name to another kernel, or to a new one (OP_...)
  inline      operations that are computed again inside each of their readers, and never stored
  rewrites    steps that change the program before its kernels are made, by their kind; `KIND = []` takes none,
              `KIND = true` all that apply, whatever they cost (kinds: concatenation, parts, toeplitz, recompute, copies, split,
              pack)
  launches    kernels that share a launch, by its name (OP_...), on a GPU; an empty table forbids it
  tile        a block's part of each dimension of the grid
  loops       for each operation, the numbers of its own dimensions, outermost loop first
The last table of a kernel is named for the kernel's family, and holds the family's options.
The compiler chooses whatever is left out of a kernel's tables.
"""


Times = tuple[float, float]  # microseconds measured: of the plan, and of the compiler's choice


def write_schedule(plan: Plan, specialised: Specialised, measured: Times | None = None) -> str:
    """The text of a schedule file with this one plan."""
    return tomlkit.dumps(_document(plan, specialised, measured))


def _document(plan: Plan, specialised: Specialised, measured: Times | None) -> tomlkit.TOMLDocument:
    document = tomlkit.document()
    for line in HEADER.splitlines():
        document.add(tomlkit.comment(line))
    document.add(tomlkit.nl())
    document.add("version", VERSION)
    plans = tomlkit.aot()
    plans.append(_plan(plan, specialised, measured))
    document.add("plan", plans)
    return document


def merge_schedule(text: str, plan: Plan, specialised: Specialised, measured: Times | None = None) -> tuple[str, bool]:
    """A file's text with this plan in it, and whether it replaces a different plan.

    The text of other plans stays unchanged, byte for byte.
    """
    head, *sections = re.split(r"^(?=[ \t]*\[\[[ \t]*plan[ \t]*\]\])", text, flags=re.MULTILINE)
    new = "[[plan]]\n" + tomlkit.dumps(_document(plan, specialised, measured)).partition("[[plan]]\n")[2]
    (wanted,) = tomllib.loads(new)["plan"]
    for number, section in enumerate(sections):
        (old,) = tomllib.loads(section)["plan"]
        if is_of(old, plan.signature, plan.varies) and old["target"] == wanted["target"]:
            if old == wanted:
                return text, False
            sections[number] = new + "\n" * (number + 1 < len(sections))
            return head + "".join(sections), True
    return text.rstrip("\n") + "\n\n" + new, False


def _plan(plan: Plan, specialised: Specialised, measured: Times | None) -> Table:
    where = Provenance(specialised, plan)
    table = tomlkit.table()
    sizes = ", ".join(f"{name} = {value}" for name, value in specialised.sizes.items())
    _add(table, "program", plan.signature, sizes)
    if plan.varies:
        ranges = tomlkit.inline_table()
        ranges.update({name: str(v) for name, v in plan.varies.items()})
        _add(table, "sizes", ranges, f"planned at {', '.join(f'{name} = {n}' for name, n in plan.sizes.items())}")
    times = f"{plan.time_us:.1f} us predicted in all"
    if measured:
        times += f", {measured[0]:.1f} us measured, {measured[1]:.1f} us for the compiler's own plan"
    _add(table, "target", plan.target.name, times)
    _add(table, "inline", _array(plan.inlined), "")
    if plan.rewrites or plan.unscheduled:
        table.add("rewrites", _rewrites(plan))
    if plan.target.kind == "cuda" and len(plan.kernels) > 1:
        launches = tomlkit.table()
        for name, names in plan.launches.items():
            _add(launches, name, _array(names), f"{plan.predictions[name].time_us:.1f} us")
        table.add("launches", launches)
    kernels = tomlkit.table(is_super_table=True)
    for kernel in plan.kernels:
        kernels.add(kernel.name, _kernel(kernel, plan, where))
    table.add("kernels", kernels)
    return table


def _rewrites(plan: Plan) -> Table:
    """The steps by their rewrites, with their reasons; none for a rewrite that the compiler would take and the plan does not."""
    table = tomlkit.table()
    for name in dict.fromkeys(a.rewrite for a in (*plan.rewrites, *plan.unscheduled)):
        steps = [a for a in plan.rewrites if a.rewrite == name]
        for applied in steps:
            location = f"{short_location(applied.line)}: " if applied.line else ""
            table.add(tomlkit.comment(" ".join(f"{location}{name} {applied.step.operation}: {applied.reason}".split())))
        table.add(name, tomlkit.value(f"[{', '.join(map(written, steps))}]"))
    return table


def _kernel(kernel: KernelPlan, plan: Plan, where: Provenance) -> Table:
    names = where.dimensions(kernel)
    table = tomlkit.table()
    table.comment(f"{kernel.prediction.time_us:.1f} us, bound by {kernel.prediction.bound}")
    for remark in plan.remarks:
        if remark.verb in ("fused", "refused", "tiled") and _about(remark.subject, kernel):
            location = f"{short_location(remark.line)}: " if remark.line else ""
            table.add(tomlkit.comment(" ".join(f"{location}{remark}".split())))  # a file name may hold anything
    _add(table, "operations", _array(kernel.nodes), "")
    grid = ", ".join(f"{names[d]} = {kernel.extents[d]}" for d in kernel.grid)
    blocks = f"{kernel.blocks} block{'s' * (kernel.blocks != 1)}"
    _add(table, "tile", _array(kernel.tile), f"of {grid}: {blocks}" if grid else blocks)
    if kernel.loops:
        table.add("loops", _loops(kernel, names))
    options = tomlkit.table()
    for key, value in kernel.family.editable():
        _add(options, key, _array(value) if isinstance(value, tuple) else value, _dims(kernel, key, names))
    table.add(kernel.family.name, options)
    return table


def _loops(kernel: KernelPlan, names: dict[int, str]) -> Table:
    table = tomlkit.table()
    for operation, order in kernel.loops.items():
        dims = kernel.dims[operation]
        _add(table, operation, _array(order), ", ".join(names[dims[d]] for d in order))
    return table


def _dims(kernel: KernelPlan, option: str, names: dict[int, str]) -> str:
    """The indices of an option that lists kernel dimensions, or has a number for each of them."""
    (field,) = [f for f, _ in kernel.family.fields() if f.name == option]
    if field.metadata["dims"]:
        value = getattr(kernel.options, option)
        return listed([value] if isinstance(value, int) else value, names)
    return f"along {', '.join(names[d] for d in sorted(names))}" if field.metadata["by_dim"] else ""


def _about(subject: str, kernel: KernelPlan) -> bool:
    """Whether a remark's subject ("m with e", or a kernel's name) is of this kernel."""
    return subject == kernel.name or subject.rpartition(" ")[2] in kernel.nodes


def _array(values: tuple[Any, ...]) -> Array:
    array = tomlkit.array()
    array.extend(values)
    return array


def _add(table: Table, key: str, value: Any, comment: str) -> None:
    item = tomlkit.item(value)
    if comment:
        item.comment(comment)
    table.add(key, item)
