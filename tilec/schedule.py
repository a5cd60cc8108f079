"""The schedule file: a plan's decisions as TOML that a person reads, diffs and edits, and that the compiler
obeys.

    version = 2

    [[plan]]
    program = "softmax(x: f32[512, 512])"   # M = 512, N = 512
    target = "cpu"
    inline = []                             # operations computed again inside each of their readers

    [plan.kernels.softmax_y]                # 64.1 us, bound by memory
    operations = ["m", "e", "s", "y"]
    tile = [8]                              # i = 512: 64 blocks

A file holds any number of plans, each for one program with its shapes and one target. `write_schedule` prints
a plan, `merge_schedule` puts it into a file's text, `read_schedule` (in `schedule_read`) makes a plan obey a
file.
"""

# mypy: no-strict-optional

from __future__ import annotations

import re
import tomllib
from typing import Any

import tomlkit
from tomlkit.items import Array, Table

from tilec.dsl.specialise import Specialised
from tilec.plan_model import KernelPlan, Plan
from tilec.provenance import Provenance, short_place
from tilec.schedule_read import VERSION, read_schedule

__all__ = ["merge_schedule", "read_schedule", "write_schedule"]

HEADER = """\
A schedule: how programs are compiled, for one target and one set of shapes each. Written by `tilec plan`,
and yours to edit: the compiler does what stands here, or says why it cannot. Times are predictions.
  operations  share the kernel; move a name to another kernel, or to a new one (OP_...), to fuse otherwise
  inline      operations that are computed again inside each of their readers, never stored
  tile        a block's part of each dimension of the grid
  loops       each operation's own dimensions, by number, outermost loop first
A kernel's last table is named for the way in which it is built, and holds the options of that.
What is left out of a kernel's tables is the compiler's choice.
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
    """A file's text with this plan in it, and whether it takes the place of a different one.

    Other plans keep every byte, which editing the parsed document would not promise.
    """
    head, *sections = re.split(r"^(?=[ \t]*\[\[[ \t]*plan[ \t]*\]\])", text, flags=re.MULTILINE)
    new = "[[plan]]\n" + tomlkit.dumps(_document(plan, specialised, measured)).partition("[[plan]]\n")[2]
    (wanted,) = tomllib.loads(new)["plan"]
    for number, section in enumerate(sections):
        (old,) = tomllib.loads(section)["plan"]
        if (old["program"], old["target"]) == (wanted["program"], wanted["target"]):
            if old == wanted:
                return text, False
            sections[number] = new + "\n" * (number + 1 < len(sections))
            return head + "".join(sections), True
    return text.rstrip("\n") + "\n\n" + new, False


def _plan(plan: Plan, specialised: Specialised, measured: Times | None) -> Table:
    where = Provenance(specialised)
    table = tomlkit.table()
    sizes = ", ".join(f"{name} = {value}" for name, value in specialised.sizes.items())
    _add(table, "program", plan.signature, sizes)
    times = f"{plan.time_us:.1f} us predicted in all"
    if measured:
        times += f", {measured[0]:.1f} us measured, {measured[1]:.1f} us as the compiler chooses"
    _add(table, "target", plan.target.name, times)
    _add(table, "inline", _array(plan.inlined), "")
    kernels = tomlkit.table(is_super_table=True)
    for kernel in plan.kernels:
        kernels.add(kernel.name, _kernel(kernel, plan, where))
    table.add("kernels", kernels)
    return table


def _kernel(kernel: KernelPlan, plan: Plan, where: Provenance) -> Table:
    names = where.dimensions(kernel)
    table = tomlkit.table()
    table.comment(f"{kernel.prediction.time_us:.1f} us, bound by {kernel.prediction.bound}")
    for remark in plan.remarks:
        if remark.verb in ("fused", "refused", "tiled") and _about(remark.subject, kernel):
            place = f"{short_place(remark.line)}: " if remark.line else ""
            table.add(tomlkit.comment(" ".join(f"{place}{remark}".split())))  # a file name may hold anything
    _add(table, "operations", _array(kernel.nodes), "")
    grid = ", ".join(f"{names[d]} = {kernel.extents[d]}" for d in kernel.grid)
    blocks = f"{kernel.blocks} block{'s' * (kernel.blocks != 1)}"
    _add(table, "tile", _array(kernel.tile), f"of {grid}: {blocks}" if grid else blocks)
    if kernel.loops:
        table.add("loops", _loops(kernel, names))
    options = tomlkit.table()
    for key, value in kernel.options.editable():
        options.add(key, _array(value) if isinstance(value, tuple) else value)
    if len(options):
        table.add(kernel.options.name, options)
    return table


def _loops(kernel: KernelPlan, names: dict[int, str]) -> Table:
    table = tomlkit.table()
    for operation, order in kernel.loops.items():
        dims = kernel.dims[operation]
        _add(table, operation, _array(order), ", ".join(names[dims[d]] for d in order))
    return table


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
