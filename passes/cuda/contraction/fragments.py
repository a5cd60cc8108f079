"""The product of two staged tiles by `mma.sync` on the matrix units; `fma.py` has that on the vector units.

`multiply` adds the product of one staged tile of k to a thread's sums. `chunks` yields the sums in pieces: a piece is
a few rows and columns of C that one warp holds. The warp writes it to shared memory in one order, and reads it in
another.

    a = ldmatrix of 16x16      b = ldmatrix of 16x16            c[16 x 8] += a b  (nvgpu.mma.sync)

Fragments of mma.sync: PTX ISA, "Matrix Fragments for mma.m16n8k16", and "ldmatrix" for which lane names which
row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Protocol

from tilec.core import locations, mlir
from tilec.core.hardware import WARP, WIDE
from tilec.core.mlir import arith, gpu, ir, memref, nvgpu, vector
from tilec.kernels import Contraction
from tilec.kernels.contraction import widest
from tilec.passes.cuda.contraction.operands import Stage
from tilec.passes.cuda.contraction.problem import Problem, Side, Thread, element_of
from tilec.passes.cuda.memory_spaces import SHARED, local, registers
from tilec.passes.loops import delinearise, loop, sum_of, when

LINES = 4  # instructions for 16 numbers of a thread
PARTS = ("now", "next")
"""Of the two parts of registers that a factor has: what is multiplied, and what is loaded meanwhile, by turns."""


class StagedTiles(Protocol):
    """A factor in shared memory: tiles in lines of k or of rows, and where an element lies in its line."""

    tile: ir.Value

    def column(self, line: ir.Value, column: ir.Value) -> ir.Value: ...


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


class MmaTile:
    """A warp holds `high` x `wide` fragments of 16 x 8; a thread two columns of each, in two rows.

    One instruction multiplies 32 bytes of k: 16 numbers of 16 bits, 8 of tf32, 32 of 8 bits. Numbers of 8 bits that are converted
    on the way come 16 at a time for a thread, those of a row that follow one another, and four instructions multiply them with
    as many of the other factor: any order of k is right that both factors have. A right factor of such numbers is the
    instruction's first operand (`transposed`: fragments have 8 rows and 16 columns), since the first one takes words of two rows by
    turns, which a thread makes in any registers but cannot load so. Fragments of further products of the left factor follow
    those of the first.
    """

    def __init__(self, problem: Problem, thread: Thread):
        self.half = 16 * 8 // problem.element.width  # elements in 16 bytes
        self.problem, self.thread = problem, thread
        assert isinstance(problem.options, Contraction)
        (warps_m, warps_n), self.shares = problem.options.warps, problem.options.inner_warps
        self.rows, self.columns = problem.left.size // warps_m, problem.right.size // warps_n
        self.products, self.own = problem.options.products, self.columns // 8  # fragments of a product
        self.high, self.wide = self.rows // 16, self.products * self.own
        warp, self.share = thread.warp, mlir.index(0)
        if self.shares > 1:
            warp, self.share = (op(warp, mlir.index(warps_m * warps_n)) for op in (arith.remui, arith.divui))
        self.row = arith.muli(arith.divui(warp, mlir.index(warps_n)), mlir.index(self.rows))
        self.column = arith.muli(arith.remui(warp, mlir.index(warps_n)), mlir.index(self.columns))
        self.by_lines = problem.left.narrow or problem.right.narrow
        self.transposed = problem.right.narrow and not problem.left.narrow
        self.fragments = (2 * self.high, self.wide // 2) if self.transposed else (self.high, self.wide)
        self.sums = registers([*self.fragments, 2, 2], "%sums", problem.accumulator)
        self.lines = LINES if self.by_lines else 1
        words = 4 * self.high * self.lines, 2 * self.wide * self.lines
        self.parts = [
            (self._part(problem.left, words[0], which), self._part(problem.right, words[1], which)) for which in PARTS
        ]

    def _part(self, side: Side, words: int, which: str) -> ir.Value:
        return word_registers(words, f"%{self.problem.tensor(side)}_{which}", self.problem.options.multiplicand)

    def clear(self, value: ir.Value) -> None:
        with self._each_sum() as (at, _):
            memref.StoreOp(value, self.sums, at)

    def multiply(self, slot: ir.Value, left: Stage, *rights: Stage) -> None:
        depth, share = 2 * self.half * self.lines, self.problem.depth // self.shares

        def fetch(parts: Sequence[ir.Value], number: ir.Value) -> None:
            k = sum_of([(self.share, share), (number, depth)])
            load = self._load_lines if self.by_lines else self._load
            load(parts[0], left, self.row, self.high, slot, k, not self.transposed)
            for product, right in enumerate(rights):
                load(parts[1], right, self.column, self.own // 2, slot, k, self.transposed, product * self.own // 2)

        def multiply(parts: Sequence[ir.Value]) -> None:
            high, wide = self.fragments
            with loop(self.lines, name="line") as q, loop(high, name="row") as i, loop(wide, name="column") as j:
                self._multiply(parts, sum_of([(i, self.lines), (q, 1)]), sum_of([(j, self.lines), (q, 1)]), i, j)

        overlapped(share // depth, self.parts, fetch, multiply)

    def add_shares(self) -> None:
        """Where several warps have the same rows and columns: the first one gets the sums of all, in their order. All threads of
        the block take part, and have read the staged tiles for the last time, whose memory this is."""
        if self.shares == 1:
            return
        assert isinstance(self.problem.options, Contraction)
        warps = prod(self.problem.options.warps)
        type_ = local([(self.shares - 1) * warps, 4 * prod(self.fragments), WARP], self.problem.accumulator, SHARED)
        made = memref.AllocOp(type_, [], [])
        made.operation.attributes["tilec.overlay"] = ir.UnitAttr.get()
        memory = locations.named(made.result, "shares")

        def each(row: ir.Value, act: Callable[[list[ir.Value], list[ir.Value]], None]) -> None:
            with self._each_sum() as (at, number):
                act(at, [row, number, self.thread.lane])

        def store(at: list[ir.Value], at_share: list[ir.Value]) -> None:
            memref.StoreOp(memref.LoadOp(self.sums, at).result, memory, at_share)

        def add(at: list[ir.Value], at_share: list[ir.Value]) -> None:
            plus = arith.addi if isinstance(self.problem.accumulator, ir.IntegerType) else arith.addf
            total = plus(memref.LoadOp(self.sums, at).result, memref.LoadOp(memory, at_share).result)
            memref.StoreOp(total, self.sums, at)

        with when(arith.cmpi(arith.CmpIPredicate.ne, self.share, mlir.index(0))):
            each(sum_of([(self.thread.warp, 1)], -warps), store)
        gpu.BarrierOp()
        with self.once():
            for share in range(self.shares - 1):
                each(sum_of([(self.thread.warp, 1)], share * warps), add)
        gpu.BarrierOp()  # the epilogue's memory is the same

    @contextmanager
    def once(self) -> Iterator[None]:
        """For the warps that have complete sums."""
        with nullcontext() if self.shares == 1 else when(arith.cmpi(arith.CmpIPredicate.eq, self.share, mlir.index(0))):
            yield

    @contextmanager
    def _each_sum(self) -> Iterator[tuple[list[ir.Value], ir.Value]]:
        """Its subscripts, and its number."""
        high, wide = self.fragments
        with (
            loop(high, name="row") as i, loop(wide, name="column") as j, loop(2, name="half") as half, loop(2, name="pair") as lane,
        ):  # fmt: skip
            yield [i, j, half, lane], sum_of([(i, 4 * wide), (j, 4), (half, 2), (lane, 1)])

    def _load_lines(
        self, part: ir.Value, stage: Stage, start: ir.Value, count: int, slot: ir.Value, k: ir.Value, rows_first: bool,
        before: int = 0,
    ) -> None:  # fmt: skip
        """Lane l has row l / 4 of 8, and 16 adjacent numbers from 16 (l % 4) of k on: two words for an instruction. The left factor
        has words of two rows by turns. `before`: groups of rows that `part` has already."""
        group, member = self.thread.group, self.thread.member
        words, step = 2 * LINES, 2 if rows_first else 1
        numbers = 16 if stage.side.narrow else self.half  # of 16 bytes
        with loop(count, name="fragment") as number, loop(2, name="half") as half:
            row, i = sum_of([(start, 1), (number, 16), (half, 8), (group, 1)]), sum_of([(number, 1)], before)
            for piece in range(16 // numbers):
                first = sum_of([(i, 2 * words), (half, 1 if rows_first else words)], piece * step * numbers // 2)
                at = [slot, row, stage.column(row, sum_of([(k, 1), (member, 16)], piece * numbers))]
                value = vector.LoadOp(ir.VectorType.get([numbers], stage.side.element), stage.tile, at).result
                value = self._converted(value, stage)
                shaped = ir.VectorType.get([numbers // 2, 2], self.problem.element)
                self._store_words(vector.ShapeCastOp(shaped, value).result, part, first, numbers // 2, step)

    def _converted(self, value: ir.Value, stage: Stage) -> ir.Value:
        if not stage.side.narrow:
            return value
        type_ = ir.VectorType.get(ir.VectorType(value.type).shape, self.problem.element)
        if not isinstance(stage.side.element, ir.IntegerType):
            return arith.extf(type_, value)
        return arith.uitofp(type_, value) if stage.unsigned else arith.sitofp(type_, value)

    @staticmethod
    def _store_words(value: ir.Value, part: ir.Value, first: ir.Value, count: int, step: int) -> None:
        """Words of a fragment, `step` apart."""
        zero, type_ = mlir.index(0), ir.MemRefType(part.type)
        layout = ir.StridedLayoutAttr.get(mlir.DYNAMIC, [2 * step, 1])
        view = ir.MemRefType.get([count, 2], type_.element_type, layout, type_.memory_space)
        known = mlir.constant_value(first)
        offsets = [mlir.DYNAMIC if known is None else int(known), 0]
        where = memref.SubViewOp(view, part, [first] if known is None else [], [], [], offsets, [count, 2], [step, 1]).result
        vector.StoreOp(value, where, [zero, zero])

    def _load(
        self, part: ir.Value, stage: Stage, start: ir.Value, count: int, slot: ir.Value, k: ir.Value, rows_first: bool,
        before: int = 0,
    ) -> None:  # fmt: skip
        """Four matrices of 8 rows by 16 bytes of k at a time; for the left factor the rows' halves follow one
        another first. `before`: groups of rows that `part` has already.
        """
        with loop(count, name="fragment") as number:
            first, i = sum_of([(start, 1), (number, 16)]), sum_of([(number, 1)], before)
            word = arith.muli(i, mlir.index(4))
            load_fragment(stage, slot, first, k, part, word, self.thread, stage.side.major, rows_first)

    def _multiply(self, parts: Sequence[ir.Value], row: ir.Value, column: ir.Value, i: ir.Value, j: ir.Value) -> None:
        """Adds the product of two fragments, by their numbers, to the sums `i`, `j`."""
        words = (2, 4) if self.transposed else (4, 2)
        left, right = ((part, arith.muli(n, mlir.index(count))) for part, n, count in zip(parts, (row, column), words))
        left, right = (right, left) if self.transposed else (left, right)
        at = [i, j, mlir.index(0), mlir.index(0)]
        multiply_fragments(self.sums, at, left, right)

    def chunks(self) -> Chunks:
        """16 rows and up to 64 columns each."""
        columns = widest(self.columns, 64 // self.products)
        count = self.high * (self.columns // columns)
        return Chunks(count, 16, columns, partial(self._spill, columns), partial(self._coordinates, columns))

    def _which(self, columns: int, number: ir.Value) -> tuple[ir.Value, ir.Value]:
        """A chunk's rows and columns, by their numbers."""
        i, part = delinearise(number, [self.high, self.columns // columns])
        return i, part

    def _spill(self, columns: int, number: ir.Value, put: Callable[..., None]) -> None:
        i, part = self._which(columns, number)
        if self.transposed:
            self._spill_transposed(columns, i, part, put)
            return
        starts = [self.own * p for p in range(self.products)]
        spill_pairs(self.sums, [i], starts, part, columns // 8, self.thread, put)

    def _spill_transposed(self, columns: int, i: ir.Value, part: ir.Value, put: Callable[..., None]) -> None:
        """A thread has two rows of two columns of each fragment."""
        group, member = self.thread.group, self.thread.member
        with (
            loop(2, name="rows") as rows, loop(columns // 16, name="fragment") as j, loop(2, name="half") as half,
            loop(2, name="pair") as lane,
        ):  # fmt: skip
            each = [sum_of([(part, columns // 16), (j, 1)], self.own // 2 * p) for p in range(self.products)]
            of_first, *further = (Sums(self.sums, [sum_of([(i, 2), (rows, 1)]), at, half, lane], 1) for at in each)
            row = locations.named(sum_of([(rows, 8), (member, 2), (lane, 1)]), "row")
            put(replace(of_first, further=tuple(further)), row, sum_of([(j, 16), (half, 8), (group, 1)]))

    def _coordinates(
        self, columns: int, number: ir.Value, row: ir.Value, column: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        i, part = self._which(columns, number)
        return sum_of([(i, 16), (self.row, 1), (row, 1)]), sum_of([(part, columns), (self.column, 1), (column, 1)])


def spill_pairs(
    sums: ir.Value, row: list[ir.Value], starts: Sequence[int], number: ir.Value, count: int, thread: Thread,
    put: Callable[..., None],
) -> None:  # fmt: skip
    """Has `put` the two adjacent sums that a thread has in each half of the fragments of a row: of every `count` of them those of
    this number. `starts`: where the fragments of each product begin."""
    with loop(2, name="half") as half, loop(count, name="fragment") as j:
        each = [sum_of([(number, count), (j, 1)], start) for start in starts]
        of_first, *further = (Sums(sums, [*row, at, half, mlir.index(0)], 2) for at in each)
        put(replace(of_first, further=tuple(further)), *fragment_coordinates(thread, half, j))


def word_registers(count: int, name: str, multiplicand: str) -> ir.Value:
    """So many 32-bit words of a factor's fragments."""
    element = element_of(multiplicand)
    return registers([count, 32 // element.width], name, element, words=element.width < 32)


def load_fragment(
    tiles: StagedTiles, slot: ir.Value, first: ir.Value, k: ir.Value, part: ir.Value, word: ir.Value, thread: Thread, k_major: bool,
    rows_first: bool, by_columns: bool = False,
) -> None:  # fmt: skip
    """A fragment of 16 rows and 32 bytes of k into four words of `part`, as `load_matrices` has them; f32 is rounded to tf32.
    `by_columns`: in the order of k in which a thread has the columns of a result that is the left factor."""
    width = ir.MemRefType(tiles.tile.type).element_type.width
    if k_major or width == 16:  # a result's columns are in the order of words of 16 bits
        load_matrices(tiles, slot, first, k, part, word, thread, k_major, rows_first)
    else:
        _load_words(tiles, slot, first, k, part, word, thread, rows_first, by_columns)
    if width == 32:
        round_words(part, word)


def _load_words(
    tiles: StagedTiles, slot: ir.Value, first: ir.Value, k: ir.Value, part: ir.Value, word: ir.Value, thread: Thread,
    rows_first: bool, by_columns: bool,
) -> None:  # fmt: skip
    """32-bit elements in lines of rows, one by one: lane l has row l / 4 of the place l % 4 of k; or of the places of the columns
    that it has of a result, 2 (l % 4) and the next."""
    of_half, of_member = (1, 2) if by_columns else (4, 1)
    with loop(2, name="high") as high, loop(2, name="low") as low:
        row_half, k_half = (low, high) if rows_first else (high, low)
        line = sum_of([(k, 1), (k_half, of_half), (thread.member, of_member)])
        row = sum_of([(first, 1), (row_half, 8), (thread.group, 1)])
        value = memref.LoadOp(tiles.tile, [slot, line, tiles.column(line, row)]).result
        memref.StoreOp(value, part, [sum_of([(word, 1), (high, 2), (low, 1)]), mlir.index(0)])


def round_words(part: ir.Value, word: ir.Value) -> None:
    """Four words to the nearest tf32, ties away from zero: the units would cut the last bits off."""
    at, f32, shape = [word, mlir.index(0)], ir.F32Type.get(), [4, 1]
    words, narrow = ir.VectorType.get(shape, f32), ir.VectorType.get(shape, ir.FloatTF32Type.get())
    away = ir.Attribute.parse("4 : i32")  # arith's to_nearest_away
    cut = arith.TruncFOp(narrow, vector.LoadOp(words, part, at).result, roundingmode=away)
    vector.StoreOp(arith.extf(words, cut.result), part, at)


def load_matrices(
    tiles: StagedTiles, slot: ir.Value, first: ir.Value, k: ir.Value, part: ir.Value, word: ir.Value, thread: Thread, k_major: bool,
    rows_first: bool,
) -> None:  # fmt: skip
    """A fragment of 16 rows and 32 bytes of k into four words of `part`: 8 rows and 16 bytes are a matrix. `tiles` are in lines of
    k (`k_major`) or of rows. Matrices follow one another by rows or by k first, as a left or a right factor has them.

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
    sums: ir.Value, at: list[ir.Value], left: tuple[ir.Value, ir.Value], right: tuple[ir.Value, ir.Value]
) -> None:
    """Adds the product of two fragments, each in words of its registers from a number on, to the fragment `at` of the sums."""
    element = ir.MemRefType(left[0].type).element_type

    def load(words: int, part: ir.Value, word: ir.Value) -> ir.Value:
        type_ = ir.VectorType.get([words, 32 // element.width], element)
        return vector.LoadOp(type_, part, [word, mlir.index(0)]).result

    a, b = load(4, *left), load(2, *right)
    type_ = ir.VectorType.get([2, 2], ir.MemRefType(sums.type).element_type)
    c = vector.LoadOp(type_, sums, at).result
    shape = ir.ArrayAttr.get([mlir.integer(n) for n in (16, 8, WIDE * 16 // element.width)])
    total = nvgpu.MmaSyncOp(type_, a, b, c, shape, tf32Enabled=element.width == 32 or None).result
    vector.StoreOp(total, sums, at)


def fragment_coordinates(thread: Thread, half: ir.Value, j: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Row and first column of a thread's two elements in fragment `j` of 16 x 8, of which it has the upper
    and lower half.
    """
    return locations.named(sum_of([(half, 8), (thread.group, 1)]), "row"), sum_of([(j, 8), (thread.member, 2)])


def whole(memory: ir.Value) -> ir.Value:
    """All of private memory as one vector."""
    type_ = ir.MemRefType(memory.type)
    vector_type = ir.VectorType.get(type_.shape, type_.element_type)
    return vector.LoadOp(vector_type, memory, [mlir.index(0)] * len(type_.shape)).result
