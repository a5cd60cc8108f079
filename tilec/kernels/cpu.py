"""CPU kernels: loop nests, loop nests that transpose operands in registers, and contractions from packed panels."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

from tilec.core.quantities import by_sizes
from tilec.core.target import Target
from tilec.cost.panels import AMX_SIDE, AMX_STEP, MOST_PARTS
from tilec.kernels.base import Family, KernelPlan, Refusal, Sides, listed, option

LANES = (2, 4, 8, 16)  # of a tile that is transposed in registers: `runtime/cpu/tile.py`
VECTORS = (16, 32, 64)  # bytes of a vector
BYTES = {"f32": 4, "f64": 8}
INSTRUCTIONS = ("fma", "amx", "dot")
MOST_SUMS = 64  # vectors of sums: each is written out in a kernel


@dataclass(frozen=True)
class LoopNest(Family, name="loop_nest", backend="cpu"):
    """Loops over a block's tile; `loops` gives their order for each operation."""

    weighs_loops = True

    def refuse(self, kernel: KernelPlan, planned: KernelPlan, target: Target) -> Refusal | None:
        return None


@dataclass(frozen=True)
class RegisterTranspose(Family, name="register_transpose", backend="cpu"):
    """A loop nest with operands that are contiguous along another dimension than the innermost loop: registers transpose them."""

    weighs_loops = True

    transposed: tuple[int, ...] = option(
        "the dimensions along which these operands are contiguous", dims=True, shown="operands that are contiguous along {}"
    )  # fmt: skip
    lanes: int = option(
        "the side of the square that registers transpose at once: 2, 4, 8 or 16 elements", shown="squares of {0} x {0}"
    )  # fmt: skip

    def refuse(self, kernel: KernelPlan, planned: KernelPlan, target: Target) -> Refusal | None:
        if self.lanes not in LANES:
            why = f"`lanes` (the side of a transposed square) must be {_listed(LANES)}, not {self.lanes}"
            return Refusal("lanes", why)
        allowed = planned.options.transposed if isinstance(planned.options, RegisterTranspose) else ()
        if not set(self.transposed) <= set(allowed):
            return Refusal("transposed", f"`transposed` must be {list(allowed)}, or a part of this list")
        return None


@dataclass(frozen=True)
class Panels(Family, name="panels", backend="cpu"):
    """A contraction from packed panels of its factors (Goto's algorithm): the sums of a small tile stay in registers."""

    orders_by_loops = False

    rows: tuple[int, ...] = option(
        "the dimensions of the result's rows, the vectorised one last", dims=True, fixed=True, orders=False
    )
    columns: tuple[int, ...] = option(
        "the dimensions of the result's columns, the vectorised one last", dims=True, fixed=True, orders=False
    )
    inner: tuple[int, ...] = option("the dimensions that are summed over", dims=True, fixed=True)
    along: tuple[int, ...] = option(
        "the dimensions along which the left and the right factor are contiguous", dims=True, fixed=True, orders=False
    )
    element: str = option("the type of the sums", fixed=True)
    multiplicand: str = option("the type that both factors are stored in, or rounded to", fixed=True)
    instruction: str = option(
        '"fma": the sums are vectors; "amx": tiles of a matrix unit, to which it adds products of bf16; "dot": vectors, to which '
        "AVX512-BF16 adds pairs of such products",
        off="fma",
    )
    parts: tuple[int, ...] = option(
        "of how many bf16 a matrix unit takes each number of the left and of the right factor as the sum", (0, 0), fixed=True
    )
    register_tile: tuple[int, ...] = option("rows and columns of the tile whose sums stay in registers", orders=False)
    lanes: int = option("columns of one vector", modelled=False, orders=False)
    depths: tuple[int, ...] = option("elements along each of the `inner` dimensions that are packed at a time")
    columns_outer: bool = option(
        "each panel of columns is packed and used before the next one, not each panel of rows", False, orders=False
    )

    def described(self, names: Mapping[int, str]) -> Iterator[tuple[str, str]]:
        rows, columns, inner = (listed(dims, names) for dims in (self.rows, self.columns, self.inner))
        yield "product", f"C[{rows}; {columns}] += left[{rows}; {inner}] * right[{inner}; {columns}]"
        yield "contiguous", " and ".join(f"{f} along {names[d]}" for f, d in zip(("left", "right"), self.along))
        if self.instruction != "fma":
            parts = "" if max(self.parts) == 1 else f", factors as sums of {self.parts[0]} and {self.parts[1]} bf16"
            yield "instruction", self.instruction + parts
        yield "register_tile", f"{by_sizes(self.register_tile)} (rows x columns), in vectors of {self.lanes}"
        yield "depths", ", ".join(f"{n} of {names[d]}" for n, d in zip(self.depths, self.inner)) + " packed at a time"
        if self.columns_outer:
            yield "columns_outer", "true"

    def sides_of(self, dims: Collection[int], inner: Collection[int]) -> Sides:
        return self.rows, self.columns

    def refuse(self, kernel: KernelPlan, planned: KernelPlan, target: Target) -> Refusal | None:
        tile, lanes = self.register_tile, self.lanes
        allowed = tuple(n // BYTES[self.element] for n in VECTORS)
        if lanes not in allowed:
            why = f"`lanes` must be {_listed(allowed)}, not {lanes}: the {self.element} elements of a vector"
            return Refusal("lanes", why)
        if len(tile) != 2 or min(tile) < 1 or tile[1] % lanes:
            why = f"`register_tile` must be rows and columns, with columns that are a multiple of `lanes` ({lanes})"
            return Refusal("register_tile", why)
        if tile[0] * tile[1] // lanes > MOST_SUMS:
            return Refusal("register_tile", f"`register_tile` must have at most {MOST_SUMS} vectors of sums")
        instructions = ("fma", *matrix_instructions(self.parts, target))
        if self.instruction not in instructions:
            known = " or ".join(f'"{i}"' for i in instructions)
            return Refusal("instruction", f"`instruction` must be {known}, not {self.instruction}")
        if self.instruction == "amx" and (tile[0] % AMX_SIDE or tile[1] % AMX_SIDE or max(tile) > 2 * AMX_SIDE):
            why = f"`register_tile` must have {AMX_SIDE} or {2 * AMX_SIDE} rows and columns for `instruction = \"amx\"`"
            return Refusal("register_tile", why)
        if self.instruction == "dot" and tile[1] % AMX_SIDE:
            why = f"`register_tile` must have a multiple of {AMX_SIDE} columns for `instruction = \"dot\"`"
            return Refusal("register_tile", why)
        if self.instruction != "fma" and self.depths and self.depths[-1] % 2 and any(d > 1 for d in self.depths[:-1]):
            return Refusal("depths", f"the last of `depths` must be even: {self.instruction} takes pairs")
        if len(self.depths) != len(self.inner) or min(self.depths, default=1) < 1:
            why = f"`depths` must have {len(self.inner)} numbers of at least 1, one for each inner dimension"
            return Refusal("depths", why)
        return self._refuse_gaps([kernel.extents[d] for d in self.inner])

    def in_whole_steps(self, varying: Container[int]) -> Self:
        """A step along a dimension that varies may be cut short: it has whole pairs, and one element along dimensions before."""
        cut = [n for n, d in enumerate(self.inner) if d in varying]
        if not cut:
            return self
        *_, last = cut
        step = self.depths[last]
        if step > 1 or len(cut) == len(self.inner):
            step = -(-step // AMX_STEP) * AMX_STEP
        return replace(self, depths=(*(1 for _ in range(last)), step, *self.depths[last + 1 :]))

    def _refuse_gaps(self, extents: list[int]) -> Refusal | None:
        """A panel has the elements of one step next to each other. A step that is cut short along one dimension must
        therefore have one element along the dimensions before it."""
        for n, (depth, extent) in enumerate(zip(self.depths, extents)):
            if depth > max(1, extent):
                return Refusal("depths", f"`depths` has {depth} for a dimension of {extent} elements")
            if extent % depth and any(d > 1 for d in self.depths[:n]):
                why = f"`depths` has {depth}, which does not divide a dimension of {extent}: the numbers before it must be 1"
                return Refusal("depths", why)
        return None


@dataclass(frozen=True)
class PanelChain(Family, name="panel_chain", backend="cpu"):
    """Contractions and reductions of a block's rows, whose intermediates stay in a core's cache: panels for each contraction."""

    rows: tuple[int, ...] = option("the dimension of each contraction's rows", dims=True, fixed=True)
    columns: tuple[int, ...] = option("the dimension of each contraction's columns", dims=True, fixed=True)
    inner: tuple[int, ...] = option("the dimension that each contraction sums over", dims=True, fixed=True)
    along: tuple[int, ...] = option(
        "the dimensions along which the left and the right factor of each contraction are contiguous", dims=True, fixed=True
    )
    element: str = option("the type of the sums", fixed=True)
    bounds: tuple[int, ...] = option(
        "masks: (d, r, a, b, n) where elements of the dimension d with a * r + b * d + n < 0 add nothing to rows r", fixed=True
    )
    register_tiles: tuple[int, ...] = option(
        "rows and columns of the tile whose sums stay in registers, of each contraction", orders=False
    )
    lanes: int = option("columns of one vector", modelled=False)
    depths: tuple[int, ...] = option("elements along each contraction's inner dimension that are packed at a time")
    matrix: tuple[int, ...] = option(
        'for each contraction the number of its `instruction`: 0 for "fma", 1 for "amx", 2 for "dot" (see `panels`)'
    )
    parts: tuple[int, ...] = option(
        "of how many bf16 `matrix` takes each number of the left and of the right factor of each contraction as the sum", fixed=True
    )
    columns_outer: tuple[int, ...] = option("for each contraction, 1 for the option `columns_outer` of `panels`, 0 without it")

    def contraction(self, n: int) -> Panels:
        """The options of one contraction."""
        pair = slice(2 * n, 2 * n + 2)
        return Panels(
            rows=self.rows[n : n + 1], columns=self.columns[n : n + 1], inner=self.inner[n : n + 1], along=self.along[pair],
            element=self.element, multiplicand=self.element, parts=self.parts[pair],
            instruction=INSTRUCTIONS[self.matrix[n]], register_tile=self.register_tiles[pair],
            lanes=self.lanes, depths=self.depths[n : n + 1], columns_outer=bool(self.columns_outer[n]),
        )  # fmt: skip

    def number_of(self, dims: Collection[int], inner: Collection[int]) -> int | None:
        """Which of its contractions has these dimensions, and sums over `inner`."""
        own = (n for n, (d, column) in enumerate(zip(self.inner, self.columns)) if {d} == {*inner} and column in dims)
        return next(own, None)

    def sides_of(self, dims: Collection[int], inner: Collection[int]) -> Sides:
        number = self.number_of(dims, inner)
        return ((), ()) if number is None else self.contraction(number).sides_of(dims, inner)

    def described(self, names: Mapping[int, str]) -> Iterator[tuple[str, str]]:
        for n in range(len(self.rows)):
            yield from list(self.contraction(n).described(names))[:2]
        yield "register_tiles", " and ".join(by_sizes(self.contraction(n).register_tile) for n in range(len(self.rows)))
        yield "depths", " and ".join(f"{n} of {names[d]}" for n, d in zip(self.depths, self.inner)) + " packed at a time"
        products = zip((INSTRUCTIONS[n] for n in self.matrix), self.parts[::2], self.parts[1::2])
        units = (name if name == "fma" else f"{name}, of {x} and {y} bf16" for name, x, y in products)
        yield "matrix", " and ".join(units)
        yield "columns_outer", " and ".join("true" if n else "false" for n in self.columns_outer)
        for between, row, a, b, number in self.masks():
            yield "mask", f"{names[between]} only where {a} * {names[row]} + {b} * {names[between]} + {number} >= 0"

    def in_whole_steps(self, varying: Container[int]) -> Self:
        parts = (self.contraction(n).in_whole_steps(varying) for n in range(len(self.rows)))
        return replace(self, depths=tuple(depth for part in parts for depth in part.depths))

    def masks(self) -> Iterator[tuple[int, int, int, int, int]]:
        """(dimension, the rows' dimension, and the factors of both and the number of a sum that is negative where all elements
        are masked)."""
        for n in range(0, len(self.bounds), 5):
            between, row, a, b, number = self.bounds[n : n + 5]
            yield between, row, a, b, number

    def refuse(self, kernel: KernelPlan, planned: KernelPlan, target: Target) -> Refusal | None:
        count = len(self.rows)
        for name, each in (("register_tiles", 2), ("depths", 1), ("columns_outer", 1), ("matrix", 1)):
            if len(getattr(self, name)) != each * count:
                return Refusal(name, f"`{name}` must have {each * count} numbers")
        for name, most in (("columns_outer", 1), ("matrix", len(INSTRUCTIONS) - 1)):
            if not set(getattr(self, name)) <= {*range(most + 1)}:
                return Refusal(name, f"`{name}` must have {_listed(tuple(range(most + 1)))} for each contraction")
        for n in range(count):
            if found := self.contraction(n).refuse(kernel, planned, target):
                own = {"register_tile": "register_tiles", "instruction": "matrix"}
                return replace(found, option=own.get(found.option, found.option)) if found.option else found
        return None


def matrix_instructions(parts: tuple[int, ...], target: Target) -> tuple[str, ...]:
    """The instructions that multiply factors of so many bf16, none where there are no such numbers, and add up f32. Vectors of
    pairs are no faster than those of f32 for several."""
    most = {"amx": MOST_PARTS, "dot": 1}
    return tuple(i for i in target.instructions("bf16") if min(parts) and max(parts) <= most.get(i, 0))


def _listed(numbers: tuple[int, ...]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}"
