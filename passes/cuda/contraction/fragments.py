"""The product of two staged tiles, by thread: on the vector units, or by `mma.sync` on the matrix units.

`multiply` adds the product of one staged tile of k to a thread's sums. `chunks` yields the sums in pieces: a piece is
a few rows and columns of C that one warp holds. The warp writes it to shared memory in one order, and reads it in
another.

    fma:       a[8 x 2] = 8 loads of 2 k  b[2 x 16] = 8 loads of 4 columns  c[8 x 16] += a b  (vector.contract)
    mma.sync:  a = ldmatrix of 16x16      b = ldmatrix of 16x16            c[16 x 8] += a b  (nvgpu.mma.sync)

Fragments of mma.sync: PTX ISA, "Matrix Fragments for mma.m16n8k16", and "ldmatrix" for which lane names which
row.
"""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tilec.core import locations, mlir
from tilec.core.hardware import WIDE
from tilec.core.mlir import arith, ir, memref, nvgpu, vector
from tilec.kernels.contraction import fma_group, widest
from tilec.passes.cuda.contraction.operands import Stage
from tilec.passes.cuda.contraction.problem import PRIVATE, Problem, Side, Thread, local
from tilec.passes.loops import delinearise, loop, sum_of

PARTS = ("now", "next")
"""Of the two parts of registers that a factor has: what is multiplied, and what is loaded meanwhile, by turns."""


@dataclass(frozen=True)
class Sums:
    """So many neighbours in a thread's registers."""

    memory: ir.Value
    at: list[ir.Value]
    count: int
    further: tuple[Sums, ...] = ()
    """Those of the same elements in further products of the left factor."""

    def element(self, number: ir.Value) -> ir.Value:
        return memref.LoadOp(self.memory, [*self.at[:-1], sum_of([(self.at[-1], 1), (number, 1)])]).result

    def all(self) -> ir.Value:
        """As one vector, or a scalar where there is one."""
        if self.count == 1:
            return memref.LoadOp(self.memory, self.at).result
        type_ = ir.VectorType.get([self.count], ir.MemRefType(self.memory.type).element_type)
        return vector.LoadOp(type_, self.memory, self.at).result


@dataclass(frozen=True)
class Chunks:
    """C as a warp holds it: `count` times some rows and columns. `spill(number, put)` calls `put(sums, row, column)` with the
    places of a thread's part of one, neighbours along columns; `coordinates(number, row, column)` is where that is in the
    block's tile. Columns are neighbours in groups of 8.
    """

    count: int
    rows: int
    columns: int
    spill: Callable[[ir.Value, Callable[[Sums, ir.Value, ir.Value], None]], None]
    coordinates: Callable[[ir.Value, ir.Value, ir.Value], tuple[ir.Value, ir.Value]]


def overlapped(count: int, parts: list, fetch: Callable, multiply: Callable) -> None:
    """`fetch(part, number)` and `multiply(part)` for each of `count` groups of k, in turns in two parts of registers: the
    next group is loaded while one is multiplied.
    """
    now, following = parts
    fetch(now, mlir.index(0))
    if (pairs := (count - 1) // 2) > 0:
        with loop(pairs, always=True, name="pair") as pair:
            for part, other, ahead in ((now, following, 1), (following, now, 2)):
                fetch(other, sum_of([(pair, 2)], ahead))
                multiply(part)
    if count % 2 == 0:
        fetch(following, mlir.index(count - 1))
    multiply(now)
    if count % 2 == 0:
        multiply(following)


class FmaTile:
    """A thread holds `high` x `wide` elements; 4 x 8 threads are a warp's, so that few of them share a bank.

    Where a factor is staged in lines of rows, a thread has pieces of 4 adjacent ones, else every so manieth
    row. What it multiplies comes in groups of k: the next group is loaded while one is multiplied.
    """

    def __init__(self, problem: Problem, thread: Thread):
        self.problem, self.thread = problem, thread
        warps_m, warps_n = problem.options.warps
        self.tall, self.broad = 4 * warps_m, 8 * warps_n  # threads along rows and columns
        self.high, self.wide = problem.left.size // self.tall, problem.right.size // self.broad
        self.piece = min(4, 16 // (problem.element.width // 8))  # elements of a shared load
        self.group = fma_group(self.high, self.wide, problem.element.width)
        self.warp_row = arith.divui(thread.warp, mlir.index(warps_n))
        self.warp_column = arith.remui(thread.warp, mlir.index(warps_n))
        self.row = sum_of([(self.warp_row, 4), (arith.divui(thread.lane, mlir.index(8)), 1)])
        self.column = sum_of([(self.warp_column, 8), (arith.remui(thread.lane, mlir.index(8)), 1)])
        self.sums = memref.AllocaOp(local([self.high, self.wide], problem.accumulator, PRIVATE), [], []).result
        locations.named(self.sums, "sums")
        self.parts = [
            (self._part(problem.left, self.high, which), self._part(problem.right, self.wide, which)) for which in PARTS
        ]
        self.vector = 1 if problem.right.major else self.piece

    def _part(self, side: Side, count: int, which: str) -> ir.Value:
        shape = [count, self.group] if side.major else [self.group, count]
        made = memref.AllocaOp(local(shape, self.problem.element, PRIVATE), [], []).result
        return locations.named(made, f"{self.problem.tensor(side)}_{which}")

    def clear(self, value: ir.Value) -> None:
        with loop(self.high, name="row") as i, loop(self.wide, name="column") as j:
            memref.StoreOp(value, self.sums, [i, j])

    def multiply(self, left: Stage, right: Stage, slot: ir.Value) -> None:
        def fetch(parts: Any, number: ir.Value) -> None:
            self._fetch(parts, left, right, slot, arith.muli(number, mlir.index(self.group)))

        overlapped(self.problem.depth // self.group, self.parts, fetch, self._contract)

    def _fetch(self, parts: tuple[ir.Value, ir.Value], left: Stage, right: Stage, slot: ir.Value, k: ir.Value) -> None:
        self._load(parts[0], left, self.row, self.tall, self.high, slot, k)
        self._load(parts[1], right, self.column, self.broad, self.wide, slot, k)

    def _load(
        self, part: ir.Value, stage: Stage, mine: ir.Value, threads: int, count: int, slot: ir.Value, k: ir.Value
    ) -> None:
        zero = mlir.index(0)
        if stage.side.major:
            type_ = ir.VectorType.get([self.group], self.problem.element)
            with loop(count, name="element") as i:
                line = sum_of([(i, threads), (mine, 1)])
                vector.StoreOp(vector.LoadOp(type_, stage.tile, [slot, line, k]).result, part, [i, zero])
            return
        type_ = ir.VectorType.get([self.piece], self.problem.element)
        with (
            loop(self.group, name=f"{self.problem.inner_name}_inner") as i,
            loop(count // self.piece, name="piece") as j,
        ):
            at = sum_of([(j, threads * self.piece), (mine, self.piece)])
            loaded = vector.LoadOp(type_, stage.tile, [slot, sum_of([(k, 1), (i, 1)]), at]).result
            vector.StoreOp(loaded, part, [i, arith.muli(j, mlir.index(self.piece))])

    def _contract(self, parts: tuple[ir.Value, ir.Value]) -> None:
        """sums[i, j] += sum of left[i, k] * right[j, k] over the group's k."""
        i, j, k = (ir.AffineDimExpr.get(n) for n in range(3))
        left = (i, k) if self.problem.left.major else (k, i)
        right = (j, k) if self.problem.right.major else (k, j)
        maps = [ir.AffineMapAttr.get(ir.AffineMap.get(3, 0, list(e))) for e in (left, right, (i, j))]
        kinds = [ir.Attribute.parse(f"#vector.iterator_type<{t}>") for t in ("parallel", "parallel", "reduction")]
        a, b, c = (whole(v) for v in (*parts, self.sums))
        total = vector.ContractionOp(c.type, a, b, c, ir.ArrayAttr.get(maps), ir.ArrayAttr.get(kinds)).result
        vector.StoreOp(total, self.sums, [mlir.index(0)] * 2)

    def chunks(self) -> Chunks:
        """One for each of a thread's rows: a warp's 4 threads along rows, all of its columns."""
        return Chunks(self.high, 4, 8 * self.wide, self._spill, self._coordinates)

    def _spill(self, i: ir.Value, put: Callable[..., None]) -> None:
        row = arith.divui(self.thread.lane, mlir.index(8))
        mine = arith.remui(self.thread.lane, mlir.index(8))
        with loop(self.wide // self.vector, name="piece") as j:
            at = [i, arith.muli(j, mlir.index(self.vector))]
            put(Sums(self.sums, at, self.vector), row, sum_of([(j, 8 * self.vector), (mine, self.vector)]))

    def _coordinates(self, i: ir.Value, row: ir.Value, column: ir.Value) -> tuple[ir.Value, ir.Value]:
        group = 1 if self.problem.left.major else self.piece
        first, rest = (i, mlir.index(0)) if group == 1 else delinearise(i, [self.high // group, group])
        mine = sum_of([(rest, 1), (first, group * self.tall), (self.warp_row, 4 * group), (row, group)])
        width = 8 * self.vector
        j, rest = arith.divui(column, mlir.index(width)), arith.remui(column, mlir.index(width))
        return mine, sum_of([(j, self.broad * self.vector), (self.warp_column, width), (rest, 1)])


class MmaTile:
    """A warp holds `high` x `wide` fragments of 16 x 8; a thread two columns of each, in two rows.

    One instruction multiplies 32 bytes of k: 16 numbers of 16 bits, 8 of tf32, 32 of 8 bits.
    """

    def __init__(self, problem: Problem, thread: Thread):
        self.half = 16 * 8 // problem.element.width  # elements in 16 bytes
        self.problem, self.thread = problem, thread
        warps_m, warps_n = problem.options.warps
        self.rows, self.columns = problem.left.size // warps_m, problem.right.size // warps_n
        self.high, self.wide = self.rows // 16, self.columns // 8
        self.row = arith.muli(arith.divui(thread.warp, mlir.index(warps_n)), mlir.index(self.rows))
        self.column = arith.muli(arith.remui(thread.warp, mlir.index(warps_n)), mlir.index(self.columns))
        self.sums = memref.AllocaOp(local([self.high, self.wide, 2, 2], problem.accumulator, PRIVATE), [], []).result
        locations.named(self.sums, "sums")
        self.parts = [
            (self._part(problem.left, 4 * self.high, which), self._part(problem.right, 2 * self.wide, which))
            for which in PARTS
        ]

    def _words(self, count: int) -> ir.VectorType:
        """So many 32-bit words of a fragment."""
        return ir.VectorType.get([count, 32 // self.problem.element.width], self.problem.element)

    def _part(self, side: Side, words: int, which: str) -> ir.Value:
        part = memref.AllocaOp(local(self._words(words).shape, self.problem.element, PRIVATE), [], [])
        if self.problem.element.width < 32:
            part.operation.attributes["tilec.words"] = ir.UnitAttr.get()
        return locations.named(part.result, f"{self.problem.tensor(side)}_{which}")

    def clear(self, value: ir.Value) -> None:
        with (
            loop(self.high, name="row") as i, loop(self.wide, name="column") as j,
            loop(2, name="half") as half, loop(2, name="pair") as lane,
        ):  # fmt: skip
            memref.StoreOp(value, self.sums, [i, j, half, lane])

    def multiply(self, left: Stage, right: Stage, slot: ir.Value) -> None:
        def fetch(parts: Any, number: ir.Value) -> None:
            k = arith.muli(number, mlir.index(2 * self.half))
            self._load(parts[0], left, self.row, self.high, slot, k, rows_first=True)
            self._load(parts[1], right, self.column, self.wide // 2, slot, k, rows_first=False)

        def multiply(parts: Any) -> None:
            with loop(self.high, name="row") as i, loop(self.wide, name="column") as j:
                self._multiply(parts, i, j)

        overlapped(self.problem.depth // (2 * self.half), self.parts, fetch, multiply)

    def _load(
        self, part: ir.Value, stage: Stage, start: ir.Value, count: int, slot: ir.Value, k: ir.Value, rows_first: bool
    ) -> None:
        """Four matrices of 8 rows by 16 bytes of k at a time; for the left factor the rows' halves follow one
        another first.
        """
        with loop(count, name="fragment") as i:
            first = sum_of([(start, 1), (i, 16)])
            if stage.side.narrow:
                self._load_narrow(part, stage, first, slot, k, i, rows_first)
            elif stage.side.major or self.problem.element.width == 16:
                self._load_matrices(part, stage, first, slot, k, i, rows_first)
            else:
                self._load_words(part, stage, first, slot, k, i, rows_first)
            if self.problem.options.multiplicand == "tf32":
                self._round(part, i)

    def _load_matrices(self, part: Any, stage: Stage, first: Any, slot: Any, k: int, i: int, rows_first: bool) -> None:
        load_matrices(stage, slot, first, k, part, arith.muli(i, mlir.index(4)), self.thread, stage.side.major, rows_first)

    def _load_narrow(self, part: Any, stage: Stage, first: Any, slot: Any, k: int, i: int, rows_first: bool) -> None:
        """8-bit integers, converted: lane l has row l / 4 of the two numbers from 2 (l % 4) of k on."""
        pair = ir.VectorType.get([2], stage.side.element)
        convert = arith.uitofp if stage.unsigned else arith.sitofp
        group, member = arith.shrui(self.thread.lane, mlir.index(2)), arith.andi(self.thread.lane, mlir.index(3))
        with loop(2, name="high") as high, loop(2, name="low") as low:
            row_half, k_half = (low, high) if rows_first else (high, low)
            row = sum_of([(first, 1), (row_half, 8), (group, 1)])
            at = [slot, row, stage.column(row, sum_of([(k, 1), (k_half, self.half), (member, 2)]))]
            loaded = vector.LoadOp(pair, stage.tile, at).result
            made = convert(ir.VectorType.get([2], self.problem.element), loaded)
            vector.StoreOp(made, part, [sum_of([(i, 4), (high, 2), (low, 1)]), mlir.index(0)])

    def _load_words(self, part: Any, stage: Stage, first: Any, slot: Any, k: int, i: int, rows_first: bool) -> None:
        """32-bit elements in lines of rows, one by one: lane l has row l / 4 of the place l % 4 of k."""
        group, member = arith.shrui(self.thread.lane, mlir.index(2)), arith.andi(self.thread.lane, mlir.index(3))
        with loop(2, name="high") as high, loop(2, name="low") as low:
            row_half, k_half = (low, high) if rows_first else (high, low)
            line = sum_of([(k, 1), (k_half, self.half), (member, 1)])
            row = sum_of([(first, 1), (row_half, 8), (group, 1)])
            value = memref.LoadOp(stage.tile, [slot, line, stage.column(line, row)]).result
            memref.StoreOp(value, part, [sum_of([(i, 4), (high, 2), (low, 1)]), mlir.index(0)])

    def _round(self, part: ir.Value, i: ir.Value) -> None:
        """To the nearest tf32, ties away from zero: the units would cut the last bits off."""
        subscripts = [arith.muli(i, mlir.index(4)), mlir.index(0)]
        narrow = ir.VectorType.get(self._words(4).shape, ir.FloatTF32Type.get())
        away = ir.Attribute.parse("4 : i32")  # arith's to_nearest_away
        cut = arith.TruncFOp(narrow, vector.LoadOp(self._words(4), part, subscripts).result, roundingmode=away)
        vector.StoreOp(arith.extf(self._words(4), cut.result), part, subscripts)

    def _multiply(self, parts: Any, i: ir.Value, j: ir.Value) -> None:
        left, right = ((part, arith.muli(n, mlir.index(words))) for part, n, words in zip(parts, (i, j), (4, 2)))
        at = [i, j, mlir.index(0), mlir.index(0)]
        multiply_fragments(self.sums, at, left, right, tf32=self.problem.options.multiplicand == "tf32")

    def chunks(self) -> Chunks:
        """16 rows and up to 64 columns each."""
        columns = widest(self.columns, 64)
        count = self.high * (self.columns // columns)
        return Chunks(count, 16, columns, partial(self._spill, columns), partial(self._coordinates, columns))

    def _which(self, columns: int, number: ir.Value) -> tuple[ir.Value, ir.Value]:
        """A chunk's rows and columns, by their numbers."""
        i, part = delinearise(number, [self.high, self.columns // columns])
        return i, part

    def _spill(self, columns: int, number: ir.Value, put: Callable[..., None]) -> None:
        i, part = self._which(columns, number)
        with loop(2, name="half") as half, loop(columns // 8, name="fragment") as j:
            at = [i, sum_of([(part, columns // 8), (j, 1)]), half, mlir.index(0)]
            put(Sums(self.sums, at, 2), *fragment_coordinates(self.thread, half, j))

    def _coordinates(
        self, columns: int, number: ir.Value, row: ir.Value, column: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        i, part = self._which(columns, number)
        return sum_of([(i, 16), (self.row, 1), (row, 1)]), sum_of([(part, columns), (self.column, 1), (column, 1)])


def load_matrices(
    tiles: Any, slot: ir.Value, first: ir.Value, k: ir.Value, part: ir.Value, word: ir.Value, thread: Thread, k_major: bool,
    rows_first: bool,
) -> None:  # fmt: skip
    """A fragment of 16 rows and 32 bytes of k into four words of `part`: 8 rows and 16 bytes are a matrix. `tiles`: the memory
    `tile`, in lines of k (`k_major`) or of rows, and `column`, where in its line an element lies. Matrices follow one another
    by rows or by k first, as a left or a right factor has them.

    Lane l names row l % 8 of matrix l / 8. A tile that lies in lines of rows is transposed on the way."""
    element = ir.MemRefType(tiles.tile.type).element_type
    inner = arith.andi(thread.lane, mlir.index(7))
    low = arith.andi(arith.shrui(thread.lane, mlir.index(3)), mlir.index(1))
    high = arith.shrui(thread.lane, mlir.index(4))
    row_half, k_half = (low, high) if rows_first else (high, low)
    row = sum_of([(first, 1), (row_half, 8)] + ([(inner, 1)] if k_major else []))
    depth = sum_of([(k, 1), (k_half, WIDE * 8 // element.width)] + ([] if k_major else [(inner, 1)]))
    line, column = (row, depth) if k_major else (depth, row)
    words = ir.VectorType.get([4, 32 // element.width], element)
    loaded = nvgpu.LdMatrixOp(words, tiles.tile, [slot, line, tiles.column(line, column)], not k_major, 4).result
    vector.StoreOp(loaded, part, [word, mlir.index(0)])


def multiply_fragments(
    sums: ir.Value, at: list[ir.Value], left: tuple[ir.Value, ir.Value], right: tuple[ir.Value, ir.Value], tf32: bool = False
) -> None:  # fmt: skip
    """Adds the product of two fragments, each in words of its registers from a number on, to the fragment `at` of the sums."""
    operands, element = [], ir.MemRefType(left[0].type).element_type
    for words, (part, word) in zip((4, 2), (left, right)):
        type_ = ir.VectorType.get([words, 32 // element.width], element)
        operands.append(vector.LoadOp(type_, part, [word, mlir.index(0)]).result)
    type_ = ir.VectorType.get([2, 2], ir.MemRefType(sums.type).element_type)
    c = vector.LoadOp(type_, sums, at).result
    shape = ir.ArrayAttr.get([mlir.integer(n) for n in (16, 8, WIDE * 16 // element.width)])
    total = nvgpu.MmaSyncOp(type_, *operands, c, shape, tf32Enabled=tf32 or None).result
    vector.StoreOp(total, sums, at)


def fragment_coordinates(thread: Thread, half: ir.Value, j: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Row and first column of a thread's two elements in fragment `j` of 16 x 8, of which it has the upper
    and lower half.
    """
    row = locations.named(sum_of([(half, 8), (arith.shrui(thread.lane, mlir.index(2)), 1)]), "row")
    return row, sum_of([(j, 8), (arith.andi(thread.lane, mlir.index(3)), 2)])


def whole(memory: ir.Value) -> ir.Value:
    """All of private memory as one vector."""
    type_ = ir.MemRefType(memory.type)
    vector_type = ir.VectorType.get(type_.shape, type_.element_type)
    return vector.LoadOp(vector_type, memory, [mlir.index(0)] * len(type_.shape)).result
