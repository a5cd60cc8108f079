"""One kernel of a schedule file: its table, applied to the kernel that the compiler would build.

A kernel whose sizes vary is checked at the sizes that it is planned at, and may have no option that holds at some sizes alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NoReturn

from tilec.kernels import FAMILIES, Family, KernelPlan, Refusal, Refused
from tilec.plan.check import refuse
from tilec.plan.model import Plan

RENAMED = {"register_chunks": "hybrid_chunks", "pieces": "concatenation", "diagonals": "toeplitz"}
"""Words of schedule files that had another name before."""
Fail = Callable[..., NoReturn]
"""Raises an error: its message, the keys below the kernel's table that it is about, and a hint."""


class Edit:
    """`fail` says where the table stands; `plan` is that of which the kernel is one."""

    def __init__(self, fail: Fail, table: dict[str, Any], plan: Plan):
        self.fail, self.table, self.plan = fail, table, plan

    def apply(self, kernel: KernelPlan) -> KernelPlan:
        """The kernel as the table has it, with a new prediction."""
        kernel = self.family(kernel)
        edited = replace(kernel, tile=self.tile(kernel), loops=self.loops(kernel), options=self.options(kernel))
        if edited == kernel:
            return kernel
        refusal = refuse(edited.planned_at, kernel.planned_at, self.plan.target)
        if refusal is None and kernel.longest and not self._has_room(edited):  # a tile may be larger than what is there
            refusal = refuse(edited, kernel, self.plan.target)
        if refusal is not None:
            self.fail_at(edited.family, refusal)
        self._at_any_size(edited)
        try:
            return replace(edited.planned_at.weighed(self.plan.target), tile=edited.tile)
        except ValueError as error:
            self.fail(str(error), "tile")

    def _at_any_size(self, edited: KernelPlan) -> None:
        """Refuses what does not hold at all sizes, where these vary."""
        if self.plan.general is None:
            return
        general = self.plan.general(edited.planned_at)
        for (f, value), (_, other) in zip(edited.family.fields(), general.family.fields()):
            if value != other:
                why = f"`{f.name}` of {shown(value)} does not hold at all sizes, where these vary"
                self.fail(why, edited.family.name, f.name, hint=f"write {shown(other)}")
        for n, (d, size) in enumerate(zip(edited.grid, edited.tile)):
            if d in edited.longest and general.family.room(general, d) is not None and general.tile[n] != size:
                self.fail(f"a block has {general.tile[n]} of this dimension, which varies, not {size}", "tile")

    @staticmethod
    def _has_room(kernel: KernelPlan) -> bool:
        """Whether the family says what a block has of dimensions that vary, however long they are."""
        return any(kernel.family.room(kernel, d) is not None for d in kernel.grid if d in kernel.longest)

    def fail_at(self, options: Family, refusal: Refusal) -> NoReturn:
        self.fail(refusal.why, *(["tile"] if refusal.option == "tile" else [options.name, refusal.option or ""]))

    def family(self, kernel: KernelPlan) -> KernelPlan:
        """The kernel built in the way that the table has: the compiler's choice, or the best of another family."""
        asked = next((key for key in self.table if key in FAMILIES), kernel.family.name)
        if asked == kernel.family.name:
            return kernel
        assert self.plan.candidates is not None, "a schedule is read while the stage of its plan runs"
        ranked = next(found for found in self.plan.candidates().values() if found[0].nodes == kernel.nodes)
        others = {k.family.name: replace(k, name=kernel.name) for k in reversed(ranked)}
        if asked not in others:
            ways = ", ".join(f"`{name}`" for name in sorted({kernel.family.name, *others}))
            self.fail(f"this kernel cannot be built as `{asked}`, only as {ways}", asked)
        return others[asked]

    def tile(self, kernel: KernelPlan) -> tuple[int, ...]:
        tile = tuple(self.table.get("tile", kernel.tile))
        extents = tuple(kernel.longest.get(d, kernel.extents[d]) for d in kernel.grid)
        if len(tile) != len(extents):
            what = f"`tile` must have one number for each dimension of the grid {list(extents)}, but it has {len(tile)}"
            self.fail(what, "tile")
        for size, extent, own in zip(tile, extents, kernel.tile):
            if not 1 <= size <= max(1, extent, own):  # threads of the planner's own tile may reach beyond
                self.fail(f"a tile of {size} does not fit a dimension of {extent}", "tile")
        return tile

    def loops(self, kernel: KernelPlan) -> dict[str, tuple[int, ...]]:
        loops = dict(kernel.loops)
        for operation, order in self.table.get("loops", {}).items():
            if operation not in kernel.dims:
                hint = suggest(operation, kernel.nodes)
                self.fail(f"`{operation}` is not an operation of this kernel", "loops", operation, hint=hint)
            dims = range(len(kernel.dims[operation]))
            if sorted(order) != list(dims):
                self.fail(f"the loops of `{operation}` must be {list(dims)} in some order", "loops", operation)
            loops[operation] = tuple(order)
        return loops

    def options(self, kernel: KernelPlan) -> Family:
        try:
            return kernel.family.edited(self.table.get(kernel.family.name, {}))
        except Refused as error:
            known = dict(kernel.family.editable())
            option = error.refusal.option
            hint = suggest(option, known) if option is not None and option not in known else None
            self.fail(str(error), kernel.family.name, option, hint=hint)
            raise


def suggest(name: str, known: Iterable[str]) -> str | None:
    """What may have been meant by a name, for a hint."""
    if name in RENAMED:
        return f"it was renamed to `{RENAMED[name]}`"
    known = list(known)
    close = difflib.get_close_matches(name, known, 1)
    if close:
        return f"did you mean `{close[0]}`?"
    return f"known: {', '.join(known)}" if known else None


def shown(value: object) -> str:
    """An option's value as a schedule file has it."""
    if isinstance(value, tuple):
        return str(list(value))
    return str(value).lower() if isinstance(value, bool) else repr(value)
