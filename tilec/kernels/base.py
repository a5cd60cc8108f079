"""What all kernel families share: one frozen dataclass for each way to build a kernel.

A family is the plan's decision, the table of a schedule file, the attribute in the IR, the rows of the documentation and the
check, all by its fields:

    @dataclass(frozen=True)
    class Scan(Threaded):
        blocks_per_row: int | None = option("blocks that share a row", default=None)

    tilec.kernels = {f_y = {grid = ..., tile = ..., scan = {blocks_per_row = 4 : i64, ...}}}     [plan.kernels.f_y.scan]
                                                                                                  blocks_per_row = 4

A field is a whole number, true or false, a word, or several whole numbers. One that may be None is then no option of this
kernel: its operations rule it out. A `fixed` one follows from the program: schedule files do not have it.
"""

# mypy: no-strict-optional
# mypy: disable-error-code="arg-type, assignment, attr-defined"

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from tilec import mlir, records
from tilec.mlir import ir
from tilec.records import Malformed, Value, fields_of, kind_of

if TYPE_CHECKING:
    from tilec.plan_model import KernelPlan
    from tilec.target import Target


def option(
    meaning: str, default: Any = MISSING, *, dims: bool = False, by_dim: bool = False, fixed: bool = False
) -> Any:  # fmt: skip
    """A field of a family. `dims`: its numbers are kernel dimensions. `by_dim`: it has a number for each of them. `fixed`: it
    follows from the program."""
    metadata = {"meaning": meaning, "dims": dims, "by_dim": by_dim, "fixed": fixed}
    return field(default=default, kw_only=True, metadata=metadata)


@dataclass(frozen=True)
class Refusal:
    """An option (or `tile`, or none in particular) that cannot be as it is, and why."""

    option: str | None
    why: str


FAMILIES: dict[str, type[Family]] = {}
"""By the name of their tables."""


@dataclass(frozen=True)
class Family:
    """One way to build a kernel. Docstrings of families are their summaries in the documentation."""

    name: ClassVar[str]
    backend: ClassVar[str]

    def __init_subclass__(cls, name: str = "", backend: str = "", **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if backend:
            cls.backend = backend
        if name:
            cls.name = name
            FAMILIES[name] = cls

    @property
    def block_threads(self) -> int | None:
        """Threads of a block (CUDA)."""
        return None

    @property
    def blocks_per_tile(self) -> int:
        """Blocks that work on one tile of the grid, beside those that `cluster` counts."""
        return 1

    def fields(self) -> Iterator[tuple[Field, Value]]:
        """All options that this kernel has."""
        for f in fields(self):
            if (value := getattr(self, f.name)) is not None:
                yield f, value

    def options(self) -> Iterator[tuple[str, Value]]:
        return records.items(self)

    def refuse(self, kernel: KernelPlan, planned: KernelPlan, target: Target) -> Refusal | None:
        """Why a kernel that was `planned` otherwise cannot be built so; None where it can."""
        raise NotImplementedError

    def edited(self, table: Mapping[str, Any]) -> Family:
        """With a schedule file's values. Raises `Refused`."""
        changes: dict[str, Value] = {}
        for key, value in table.items():
            found = fields_of(type(self)).get(key)
            own = getattr(self, key, None)
            if found is None:
                raise Refused(Refusal(key, f"a kernel by `{self.name}` has no option `{key}`"))
            if own is None:
                raise Refused(Refusal(key, f"`{key}` is no option of this kernel: its operations rule it out"))
            value = tuple(value) if isinstance(value, list) else value
            kind = kind_of(type(self), key)
            if type(value) is not kind or (kind is tuple and any(type(v) is not int for v in value)):
                raise Refused(Refusal(key, f"`{key}` is {records.NOUNS[kind]}, such as {_text(own)}"))
            if found.metadata["fixed"] and value != own:
                raise Refused(Refusal(key, f"`{key}` follows from the program: {_text(own)}"))
            changes[key] = value
        return replace(self, **changes)

    def editable(self) -> Iterator[tuple[str, Value]]:
        """What a schedule file says of it."""
        return ((f.name, value) for f, value in self.fields() if not f.metadata["fixed"])


class Refused(Exception):
    """A table that does not fit its family; the argument is the Refusal."""

    def __init__(self, refusal: Refusal):
        super().__init__(refusal.why)
        self.refusal = refusal


@dataclass(frozen=True)
class Planned:
    """What the IR says of a kernel: dimensions of the grid, a block's part of each, and how it is built."""

    grid: tuple[int, ...]
    tile: tuple[int, ...]
    options: Family

    @property
    def tiles(self) -> dict[int, int]:
        """A block's part, by kernel dimension."""
        return dict(zip(self.grid, self.tile))

    def to_attribute(self, predicted_us: float) -> ir.DictAttr:
        return ir.DictAttr.get({
            "grid": mlir.integers(self.grid),
            "tile": mlir.integers(self.tile),
            "predicted_us": ir.FloatAttr.get(ir.F64Type.get(), round(predicted_us, 3)),
            self.options.name: records.to_attribute(self.options),
        })  # fmt: skip

    @staticmethod
    def from_attribute(entry: ir.DictAttr) -> Planned:
        """Raises Malformed."""
        names = [n for n in FAMILIES if n in entry]
        if len(names) != 1 or {e.name for e in entry} != {"grid", "tile", "predicted_us", *names}:
            raise Malformed(f"`grid`, `tile`, `predicted_us` and one of {', '.join(FAMILIES)}, not {entry}")
        grid, tile = (records.read(entry[key], tuple) for key in ("grid", "tile"))
        if grid is None or tile is None or len(grid) != len(tile):
            raise Malformed(f"a `grid` and a `tile` with as many numbers, not {entry['grid']} and {entry['tile']}")
        return Planned(grid, tile, records.from_attribute(FAMILIES[names[0]], entry[names[0]]))


def planned_kernels(module: ir.Operation) -> Iterator[tuple[ir.Operation, Planned]]:
    """Each kernel's function with what `plan` decided for it; none of a module without kernels."""
    if "tilec.kernels" not in module.attributes:
        return
    table = ir.DictAttr(module.attributes["tilec.kernels"])
    for function in mlir.functions(module):
        if "tilec.kernel" in function.attributes:
            yield (
                function,
                Planned.from_attribute(ir.DictAttr(table[ir.StringAttr(function.attributes["sym_name"]).value])),
            )


def _text(value: Value) -> str:
    return (
        str(list(value)) if isinstance(value, tuple) else repr(value).replace("True", "true").replace("False", "false")
    )
