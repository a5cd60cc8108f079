"""The base of kernel families. A family is a frozen dataclass: one way to build a kernel.

The fields of a family are its options. The same fields are the plan's decision, the table of a schedule file, the attribute in
the IR, the rows of the documentation, and the values that are checked:

    @dataclass(frozen=True)
    class Scan(Threaded):
        blocks_per_row: int | None = option("blocks that share a row", default=None)

    tilec.kernels = {f_y = {grid = ..., tile = ..., scan = {blocks_per_row = 4 : i64, ...}}}     [plan.kernels.f_y.scan]
                                                                                                  blocks_per_row = 4

The type of a field is int, bool, str or a tuple of int. A field that is None is no option of this kernel, since its operations
rule it out. A `fixed` field follows from the program, and schedule files do not have it.
"""

# mypy: no-strict-optional
# mypy: disable-error-code="arg-type, assignment, attr-defined"

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from math import prod
from typing import Any, ClassVar, Self

from tilec.core import mlir, records
from tilec.core.mlir import ir
from tilec.core.quantities import by_sizes
from tilec.core.records import Malformed, Value, fields_of, kind_of
from tilec.core.target import Target
from tilec.cost.model import Prediction, Work, predict


def option(
    meaning: str, default: Any = MISSING, *, dims: bool = False, by_dim: bool = False, fixed: bool = False,
    off: Any = MISSING, shown: str = "{}", modelled: bool = True, orders: bool = True,
) -> Any:  # fmt: skip
    """A field of a family. `meaning` is its text in the documentation.

    `dims`: the value lists kernel dimensions. `by_dim`: the value has one number for each kernel dimension. `fixed`: the value
    follows from the program. `off`: the value of an option that is not in use, which `explain` leaves out; the default where
    there is one. `shown`: how `explain` prints the value. `modelled`: whether the predicted time depends on the value; `explain`
    names the options whose value it does not depend on. `orders`: whether the order of sums may depend on the value.
    """
    off = default if off is MISSING else off
    metadata = {
        "meaning": meaning, "dims": dims, "by_dim": by_dim, "fixed": fixed, "off": off, "shown": shown, "modelled": modelled,
        "orders": orders,
    }  # fmt: skip
    return field(default=default, kw_only=True, metadata=metadata)


Sides = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Refusal:
    """The option with a wrong value (or `tile`, or None for no single option), and the reason."""

    option: str | None
    why: str


FAMILIES: dict[str, type[Family]] = {}
"""All families, by the names of their tables in schedule files."""


@dataclass(frozen=True)
class Family:
    """One way to build a kernel. The docstring of a family is its summary in the documentation."""

    name: ClassVar[str]
    backend: ClassVar[str]
    weighs_loops: ClassVar[bool] = False
    """Whether the predicted time depends on the orders of loops (`loops`)."""
    orders_by_loops: ClassVar[bool] = True
    """Whether the order of sums does."""

    @property
    def steps_last(self) -> bool:
        """Whether addresses of global memory end with what loops over a thread's steps count (`runtime/emit/addresses.py`)."""
        return False

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

    def tiles(self, counts: Mapping[int, int]) -> int:
        """Tiles of a grid with so many along each of its dimensions."""
        return prod(counts.values())

    def room(self, kernel: KernelPlan, d: int) -> int | None:
        """The elements that a block has room for along a dimension of the grid of which it has all that there are; None where that
        may be any number."""
        return None

    def sides_of(self, dims: Collection[int], inner: Collection[int]) -> Sides:
        """The dimensions of rows, and of columns, of its contraction with these dimensions, which sums over `inner`."""
        return (), ()

    @property
    def blocks_per_tile(self) -> int:
        """Blocks that share one tile of the grid, not counting the blocks of `cluster`."""
        return 1

    def at_any_size(self, varying: Collection[int]) -> Family:
        """These options without those that hold at some extents of the dimensions alone that vary."""
        return self

    def by_row(self) -> Family:
        """These options without those that let the bits of an element depend on what other elements are."""
        return self

    def order(self) -> tuple[object, ...]:
        """What the order of sums depends on: kernels of one program in which it is equal compute the same bits of an element,
        whatever their tiles are."""
        return self.name, *((f.name, value) for f, value in self.fields() if f.metadata["orders"])

    def ordered_as(self, other: Family) -> Family:
        """These options, with those that the order of sums depends on as another kernel of the family has them."""
        kept = (f.name for f in fields(self) if f.metadata["orders"] and not f.metadata["fixed"])
        return replace(self, **{name: getattr(other, name) for name in kept})

    def fields(self) -> Iterator[tuple[Field, Value]]:
        """The options of this kernel, each with its value."""
        for f in fields(self):
            if (value := getattr(self, f.name)) is not None:
                yield f, value

    def options(self) -> Iterator[tuple[str, Value]]:
        return records.items(self)

    def described(self, names: Mapping[int, str]) -> Iterator[tuple[str, str]]:
        """Label and text of every option that is in use, for `explain`. `names`: the index of each kernel dimension."""
        if self.block_threads:
            yield "threads", f"{self.block_threads} a block"
        yield from self.options_in_use(names)

    def options_in_use(self, names: Mapping[int, str], without: Container[str] = ()) -> Iterator[tuple[str, str]]:
        """Name and text of every option but those of `without` whose value is not the option's `off`."""
        for f, value in self.fields():
            if f.name not in without and value != f.metadata["off"] and (text := _shown(f, value, names)):
                yield f.name, text

    def refuse(self, kernel: KernelPlan, planned: KernelPlan, target: Target) -> Refusal | None:
        """Why the kernel `planned` cannot be built with these options instead; None where it can."""
        raise NotImplementedError

    def in_whole_steps(self, varying: Container[int]) -> Self:
        """These options with steps that may be cut short anywhere along dimensions that vary."""
        return self

    def edited(self, table: Mapping[str, Any]) -> Family:
        """These options with the values of a schedule file's table. Raises `Refused`."""
        changes: dict[str, Value] = {}
        for key, value in table.items():
            found = fields_of(type(self)).get(key)
            own = getattr(self, key, None)
            if found is None:
                raise Refused(Refusal(key, f"the kernel family `{self.name}` has no option `{key}`"))
            if own is None:
                raise Refused(Refusal(key, f"`{key}` cannot be given here: the operations of this kernel rule it out"))
            value = tuple(value) if isinstance(value, list) else value
            kind = kind_of(type(self), key)
            if type(value) is not kind or (kind is tuple and any(type(v) is not int for v in value)):
                raise Refused(Refusal(key, f"`{key}` must be {records.NOUNS[kind]}, such as {_text(own)}"))
            if found.metadata["fixed"] and value != own:
                raise Refused(Refusal(key, f"`{key}` follows from the program, and must be {_text(own)}"))
            changes[key] = value
        return replace(self, **changes)

    def not_modelled(self, loops: bool = True) -> Iterator[str]:
        """What stands in a schedule file, and the predicted time does not depend on. `loops`: whether orders of loops do."""
        if loops and not self.weighs_loops:
            yield "loops"
        yield from (f.name for f, _ in self.fields() if not f.metadata["modelled"] and not f.metadata["fixed"])

    def editable(self) -> Iterator[tuple[str, Value]]:
        """The options that stand in a schedule file."""
        return ((f.name, value) for f, value in self.fields() if not f.metadata["fixed"])


class Refused(Exception):
    """A table of a schedule file does not fit its family. The argument is the Refusal."""

    def __init__(self, refusal: Refusal):
        super().__init__(refusal.why)
        self.refusal = refusal


@dataclass(frozen=True)
class Planned:
    """The plan of a kernel as the IR holds it: the dimensions of the grid, a block's tile along each of them, the options."""

    grid: tuple[int, ...]
    tile: tuple[int, ...]
    options: Family

    @property
    def tiles(self) -> dict[int, int]:
        """A block's tile, by kernel dimension."""
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


@dataclass(frozen=True)
class KernelPlan:
    """One kernel.

    `grid` lists kernel dimensions, `tile` a block's size along each of them. `options` is the kernel's family with its options, and
    None before the backend's choice. `ruled_out` has the reasons why the operations rule out some options. `sram` returns the
    bytes of shared memory that a block takes, for any tile and options of these operations (CUDA). `weigh` returns the work of
    these operations with any tile, loops and options of the family; of several isomorphic kernels it is one function,
    which knows operations by their place in `nodes`. `longest`: the greatest extents of dimensions that vary; `extents` are then
    those that the kernel is planned at, beyond which its tile may reach.
    """

    name: str
    nodes: tuple[str, ...]
    dims: dict[str, tuple[int, ...]]
    extents: dict[int, int]
    grid: tuple[int, ...]
    tile: tuple[int, ...]
    loop_groups: dict[str, int]
    loops: dict[str, tuple[int, ...]]
    options: Family | None
    outputs: tuple[str, ...]
    work: Work
    prediction: Prediction
    lines: tuple[tuple[str, int], ...] = ()
    sram: Callable[[KernelPlan], int] | None = field(default=None, compare=False, repr=False)
    weigh: Callable[[KernelPlan], Work] | None = field(default=None, compare=False, repr=False)
    ruled_out: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    longest: dict[int, int] = field(default_factory=dict)

    @property
    def planned_at(self) -> KernelPlan:
        """The kernel at the extents that it is planned at: where these vary, its tile is no larger than they are."""
        tile = (min(t, max(1, self.extents[d])) if d in self.longest else t for d, t in zip(self.grid, self.tile))
        return replace(self, tile=tuple(tile))

    @property
    def family(self) -> Family:
        """`options`, once the backend has chosen."""
        assert self.options is not None, self.name
        return self.options

    @property
    def blocks(self) -> int:
        counts = {d: -(-self.extents[d] // max(1, t)) for d, t in zip(self.grid, self.tile)}
        return prod(counts.values()) if self.options is None else self.options.tiles(counts)

    def weighed(self, target: Target) -> KernelPlan:
        """The kernel with the work and the predicted time of its own tile, loops and options. Raises ValueError where a block does
        not fit the target."""
        assert self.weigh is not None, "a kernel is weighed once its family is chosen"
        overlaps = bool(getattr(self.options, "overlap_launch", False))
        work = replace(self.weigh(self), overlaps=overlaps)
        return replace(self, work=work, prediction=predict(work, target))


def planned_kernels(module: ir.Operation) -> Iterator[tuple[ir.Operation, Planned]]:
    """Each planned kernel's function with its plan; nothing for a module without kernels. A kernel that `map` adds has no plan."""
    if "tilec.kernels" not in module.attributes:
        return
    table = ir.DictAttr(module.attributes["tilec.kernels"])
    for function in mlir.functions(module):
        name = mlir.symbol(function)
        if "tilec.kernel" in function.attributes and name in table:
            yield function, Planned.from_attribute(ir.DictAttr(table[name]))


def _shown(f: Field, value: Value, names: Mapping[int, str]) -> str:
    """An option's value, with the names of indices in place of dimensions' numbers; empty where no dimension counts."""
    if f.metadata["by_dim"] and isinstance(value, tuple):
        numbers = ", ".join(f"{n} along {names[d]}" for d, n in enumerate(value) if n > 1)
        return f.metadata["shown"].format(numbers) if numbers else ""
    if f.metadata["dims"]:
        return f.metadata["shown"].format(listed([value] if isinstance(value, int) else value, names))
    if isinstance(value, tuple):
        return f.metadata["shown"].format(by_sizes(value))
    return f.metadata["shown"].format("yes" if value is True else "no" if value is False else value)


def listed(dims: Iterable[int], names: Mapping[int, str]) -> str:
    """`i, j`."""
    return ", ".join(names[d] for d in dims)


def _text(value: Value) -> str:
    return (
        str(list(value)) if isinstance(value, tuple) else repr(value).replace("True", "true").replace("False", "false")
    )
