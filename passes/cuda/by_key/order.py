"""The kernel that sorts keys: which elements have each key, in the order in which they lie.

    order  = the numbers t of elements whose key counts, by key, and those of one key by t
    sorted = their keys
    starts = for each key, how many smaller ones there are: where its elements begin in `order`

A block sorts the keys of a part of their range. It reads all keys, so that it knows how many smaller ones there are, and waits for
no other block. It sorts by digits, the lowest first (a radix sort), tile after tile. In a tile each thread has some neighbours: it
counts their digits, a scan of all threads' counts tells where each thread's elements go, and elements of one digit stay in order.
So what is made does not depend on time. The first digit's pass takes the block's keys out of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilec.core import locations, mlir
from tilec.core.hardware import WARP
from tilec.core.mlir import arith, gpu, ir, memref, scf
from tilec.cost.by_key import OWN, digits_of
from tilec.passes.cuda.memory_spaces import SHARED, local, registers
from tilec.passes.cuda.messages import Shape
from tilec.passes.loops import below, loop, sum_of, when

AHEAD = 8  # keys that a thread loads before it looks at them


@dataclass(frozen=True)
class Sorted:
    """Memory for what is made, and for keys and numbers between two digits."""

    order: ir.Value
    keys: ir.Value
    starts: ir.Value
    other_order: ir.Value
    other_keys: ir.Value


class Sort:
    """A block's sort of the keys from `first` to before `end`. `key_at` gives the key of each of `count` elements, as an index."""

    def __init__(
        self, key_at: Callable[[ir.Value], ir.Value], count: int, keys: int, each: int, threads: int, memory: Sorted
    ):
        self.key_at, self.count, self.number, self.memory, self.threads = key_at, count, keys, memory, threads
        self.digits, self.bits = digits_of(each)
        self.base, self.tile = 1 << self.bits, OWN * threads
        self.thread = gpu.ThreadIdOp(gpu.Dimension.x).result
        self.warp, self.lane = arith.shrui(self.thread, mlir.index(5)), arith.andi(self.thread, mlir.index(WARP - 1))
        block = gpu.BlockIdOp(gpu.Dimension.x).result
        self.first = locations.named(sum_of([(block, each)]), "first_key")
        self.end = locations.named(arith.minsi(sum_of([(self.first, 1)], each), mlir.index(keys)), "end_key")

    def build(self) -> None:
        rows = self.digits * self.base + 1
        self.positions = self._shared(rows, "positions")  # of each digit's next element; behind them, those of the block's first
        self._count(rows)
        total = self._begin()
        self.held = self._shared(_padded(self.tile), "held_keys")
        self.numbers = self._shared(_padded(self.tile), "held_numbers") if self.digits > 1 else self.held
        self.moved, self.moved_numbers = (self._shared(_padded(self.tile), f"moved_{name}") for name in ("keys", "numbers"))
        self.counts = self._shared(_padded(self.base * self.threads), "counts")
        self.warps = self._shared(self.threads // WARP, "warp_counts")
        self.firsts = self._shared(self.base + 1, "digit_starts")
        for digit in range(self.digits):
            self._distribute(digit, total)
        self._store_starts(total)

    # ---- how many ----------------------------------------------------------------------------------------------------

    def _count(self, rows: int) -> None:
        """How many keys of the block have each digit, and how many keys are smaller than the block's."""
        columns = self._shared(rows * self.threads, "digit_counts")
        with loop(rows, rolled=True, name="row") as row:
            memref.StoreOp(_i32(0), columns, [self._column(row)])
        rounds = -(-self.count // (AHEAD * self.threads))
        made = locations.named(
            scf.ForOp(mlir.index(0), mlir.index(rounds), mlir.index(1), [mlir.index(0)]), "round", "smaller"
        )
        with ir.InsertionPoint(made.body):
            ahead = registers([AHEAD], "ahead", ir.IndexType.get())
            with loop(AHEAD, unroll=True, name="step") as step:
                t = sum_of([(made.induction_variable, AHEAD * self.threads), (step, self.threads), (self.thread, 1)])
                memref.StoreOp(self._key(t, self.count), ahead, [step])
            smaller = made.inner_iter_args[0]
            counted = registers([1], "smaller_keys", ir.IndexType.get())
            memref.StoreOp(smaller, counted, [mlir.index(0)])
            with loop(AHEAD, unroll=True, name="step") as step:
                key = memref.LoadOp(ahead, [step]).result
                before = arith.andi(_least(key, mlir.index(0)), below(key, self.first))
                one = arith.select(before, mlir.index(1), mlir.index(0))
                now = memref.LoadOp(counted, [mlir.index(0)]).result
                memref.StoreOp(arith.addi(now, one), counted, [mlir.index(0)])
                with when(self._inside(key)):
                    for digit in range(self.digits):
                        row = sum_of([(self._digit(arith.subi(key, self.first), digit), 1)], digit * self.base)
                        _add(columns, self._column(row), 1)
            scf.YieldOp([memref.LoadOp(counted, [mlir.index(0)]).result])
        memref.StoreOp(_to_i32(made.results[0]), columns, [self._column(mlir.index(rows - 1))])
        gpu.BarrierOp()
        warps = self.threads // WARP
        with loop(-(-rows // warps), name="round") as number:  # a warp adds up the counts of all threads, row after row
            row = sum_of([(number, warps), (self.warp, 1)])
            inside = arith.minsi(row, mlir.index(rows - 1))
            total = _i32(0)
            for k in range(warps):
                at = sum_of([(inside, self.threads), (self.lane, 1)], k * WARP)
                total = arith.addi(total, memref.LoadOp(columns, [at]).result)
            for n in range(WARP.bit_length() - 1):
                total = arith.addi(total, _shuffled(total, _i32(1 << n), gpu.ShuffleMode.XOR))
            with when(arith.andi(below(row, rows), self._is(self.lane, 0))):
                memref.StoreOp(total, self.positions, [inside])
        gpu.BarrierOp()

    def _begin(self) -> ir.Value:
        """Counts become places: where the first element of each digit goes. Returns how many keys the block has."""
        last, total = self.digits * self.base, _i32(0)
        self.start = _index(memref.LoadOp(self.positions, [mlir.index(last)]).result)
        for d in range(self.base):
            total = arith.addi(total, memref.LoadOp(self.positions, [mlir.index(d)]).result)
        gpu.BarrierOp()
        with when(below(self.thread, self.digits)):
            position = _to_i32(self.start)
            for d in range(self.base):
                at = sum_of([(self.thread, self.base)], d)
                count = memref.LoadOp(self.positions, [at]).result
                memref.StoreOp(position, self.positions, [at])
                position = arith.addi(position, count)
        return locations.named(_index(total), "keys_here")

    # ---- one digit ---------------------------------------------------------------------------------------------------

    def _distribute(self, digit: int, total: ir.Value) -> None:
        """All elements, or those that the digit before has left, to their places by this digit."""
        memory, last = self.memory, digit == self.digits - 1
        behind = (memory.keys, memory.order), (memory.other_keys, memory.other_order)
        into, source = behind[(self.digits - 1 - digit) % 2], behind[(self.digits - digit) % 2]
        count = mlir.index(self.count) if digit == 0 else total
        tiles = pieces_of(count, self.tile)
        made = locations.named(scf.ForOp(mlir.index(0), tiles, mlir.index(1)), "tile")
        with ir.InsertionPoint(made.body):
            begin = sum_of([(made.induction_variable, self.tile)])
            gpu.BarrierOp()
            self._hold(digit, begin, count, source)
            gpu.BarrierOp()
            self._count_digits(digit)
            gpu.BarrierOp()
            self._scan_counts()
            gpu.BarrierOp()
            with when(below(self.thread, self.base)):
                at = _pad(sum_of([(self.thread, self.threads)]))
                memref.StoreOp(memref.LoadOp(self.counts, [at]).result, self.firsts, [self.thread])
            gpu.BarrierOp()
            self._move(digit, begin, into, last)
            gpu.BarrierOp()
            with when(below(self.thread, self.base)):
                after = memref.LoadOp(self.firsts, [sum_of([(self.thread, 1)], 1)]).result
                more = arith.subi(after, memref.LoadOp(self.firsts, [self.thread]).result)
                at = sum_of([(self.thread, 1)], digit * self.base)
                memref.StoreOp(arith.addi(memref.LoadOp(self.positions, [at]).result, more), self.positions, [at])
            scf.YieldOp([])
        gpu.BarrierOp()

    def _hold(self, digit: int, begin: ir.Value, count: ir.Value, source: tuple[ir.Value, ir.Value]) -> None:
        """A tile's keys less the block's first into shared memory, with -1 for what is none of its keys."""
        for half in range(0, OWN, AHEAD):
            ahead = registers([AHEAD], "ahead", _type())
            numbers = registers([AHEAD], "ahead_numbers", _type())
            with loop(AHEAD, unroll=True, name="step") as step:
                t = sum_of([(begin, 1), (step, self.threads), (self.thread, 1)], half * self.threads)
                if digit == 0:
                    key = self._key(t, self.count)
                    own = arith.select(self._inside(key), arith.subi(key, self.first), mlir.index(-1))
                    memref.StoreOp(_to_i32(own), ahead, [step])
                else:
                    at = sum_of([(self.start, 1), (arith.minsi(t, sum_of([(count, 1)], -1)), 1)])
                    key = memref.LoadOp(source[0], [at]).result
                    memref.StoreOp(arith.select(below(t, count), key, _i32(-1)), ahead, [step])
                    memref.StoreOp(memref.LoadOp(source[1], [at]).result, numbers, [step])
            with loop(AHEAD, unroll=True, name="step") as step:
                at = _pad(sum_of([(step, self.threads), (self.thread, 1)], half * self.threads))
                memref.StoreOp(memref.LoadOp(ahead, [step]).result, self.held, [at])
                if digit:
                    memref.StoreOp(memref.LoadOp(numbers, [step]).result, self.numbers, [at])

    def _count_digits(self, digit: int) -> None:
        with loop(self.base, rolled=True, name="digit") as d:
            memref.StoreOp(_i32(0), self.counts, [_pad(self._column(d))])
        with loop(OWN, rolled=True, name="own") as own:
            key = memref.LoadOp(self.held, [_pad(sum_of([(self.thread, OWN), (own, 1)]))]).result
            with when(arith.cmpi(arith.CmpIPredicate.sge, key, _i32(0))):
                _add(self.counts, _pad(self._column(self._digit(_index(key), digit))), 1)

    def _scan_counts(self) -> None:
        """Counts become how many elements of the tile have a smaller digit, or this digit and an earlier thread."""
        mine = sum_of([(self.thread, self.base)])
        total = _i32(0)
        for d in range(self.base):
            total = arith.addi(total, memref.LoadOp(self.counts, [_pad(sum_of([(mine, 1)], d))]).result)
        inclusive = self._scanned(total, WARP)
        with when(self._is(self.lane, WARP - 1)):
            memref.StoreOp(inclusive, self.warps, [self.warp])
        gpu.BarrierOp()
        before = arith.subi(inclusive, total)
        if (warps := self.threads // WARP) > 1:
            theirs = memref.LoadOp(self.warps, [arith.minsi(self.lane, mlir.index(warps - 1))]).result
            last = arith.maxsi(sum_of([(self.warp, 1)], -1), mlir.index(0))
            others = _shuffled(self._scanned(theirs, warps), _to_i32(last), gpu.ShuffleMode.IDX)
            before = arith.addi(before, arith.select(self._is(self.warp, 0), _i32(0), others))
        for d in range(self.base):
            at = _pad(sum_of([(mine, 1)], d))
            count = memref.LoadOp(self.counts, [at]).result
            memref.StoreOp(before, self.counts, [at])
            before = arith.addi(before, count)
        with when(self._is(self.thread, self.threads - 1)):
            memref.StoreOp(before, self.firsts, [mlir.index(self.base)])

    def _scanned(self, value: ir.Value, lanes: int) -> ir.Value:
        """The sum of a lane's value and of those of the lanes before it."""
        for n in range((lanes - 1).bit_length()):
            other = _shuffled(value, _i32(1 << n), gpu.ShuffleMode.UP)
            value = arith.addi(value, arith.select(_least(self.lane, mlir.index(1 << n)), other, _i32(0)))
        return value

    def _move(self, digit: int, begin: ir.Value, into: tuple[ir.Value, ir.Value], last: bool) -> None:
        """The tile's keys and their numbers are sorted in shared memory first, so that neighbours store neighbours."""
        with loop(OWN, rolled=True, name="own") as own:
            number = sum_of([(self.thread, OWN), (own, 1)])
            key = memref.LoadOp(self.held, [_pad(number)]).result
            with when(arith.cmpi(arith.CmpIPredicate.sge, key, _i32(0))):
                at = _pad(self._column(self._digit(_index(key), digit)))
                within = memref.LoadOp(self.counts, [at]).result
                memref.StoreOp(arith.addi(within, _i32(1)), self.counts, [at])
                if digit == 0:
                    element = _to_i32(arith.addi(begin, number))
                else:
                    element = memref.LoadOp(self.numbers, [_pad(number)]).result
                memref.StoreOp(key, self.moved, [_pad(_index(within))])
                memref.StoreOp(element, self.moved_numbers, [_pad(_index(within))])
        gpu.BarrierOp()
        found = _index(memref.LoadOp(self.firsts, [mlir.index(self.base)]).result)
        made = locations.named(scf.ForOp(self.thread, found, mlir.index(self.threads)), "number")
        with ir.InsertionPoint(made.body):
            n = made.induction_variable
            key = memref.LoadOp(self.moved, [_pad(n)]).result
            d = self._digit(_index(key), digit)
            first = memref.LoadOp(self.positions, [sum_of([(d, 1)], digit * self.base)]).result
            offset = arith.subi(_to_i32(n), memref.LoadOp(self.firsts, [d]).result)
            target = _index(arith.addi(first, offset))
            memref.StoreOp(arith.addi(key, _to_i32(self.first)) if last else key, into[0], [target])
            memref.StoreOp(memref.LoadOp(self.moved_numbers, [_pad(n)]).result, into[1], [target])
            scf.YieldOp([])

    # ---- where keys begin --------------------------------------------------------------------------------------------

    def _store_starts(self, total: ir.Value) -> None:
        """Between two neighbours among the sorted keys, all keys that are larger than the first begin at the second."""
        memory = self.memory
        made = locations.named(
            scf.ForOp(self.thread, sum_of([(total, 1)], 1), mlir.index(self.threads)), "neighbour"
        )
        with ir.InsertionPoint(made.body):
            n = made.induction_variable
            position = arith.addi(self.start, n)
            key = self._sorted(position, below(n, total), sum_of([(self.end, 1)], -1))
            before = self._sorted(sum_of([(position, 1)], -1), _least(n, mlir.index(1)), sum_of([(self.first, 1)], -1))
            keys = scf.ForOp(sum_of([(before, 1)], 1), sum_of([(key, 1)], 1), mlir.index(1))
            with ir.InsertionPoint(locations.named(keys, "key").body):
                memref.StoreOp(_to_i32(position), memory.starts, [keys.induction_variable])
                scf.YieldOp([])
            scf.YieldOp([])
        ends = arith.andi(self._is(self.end, self.number), self._is(self.thread, 0))
        with when(ends):
            memref.StoreOp(_to_i32(arith.addi(self.start, total)), memory.starts, [mlir.index(self.number)])

    def _sorted(self, position: ir.Value, there: ir.Value, otherwise: ir.Value) -> ir.Value:
        """The block's key at a position, where there is one."""
        found = registers([1], "neighbour_key", ir.IndexType.get())
        memref.StoreOp(otherwise, found, [mlir.index(0)])
        with when(there):
            memref.StoreOp(_index(memref.LoadOp(self.memory.keys, [position]).result), found, [mlir.index(0)])
        return memref.LoadOp(found, [mlir.index(0)]).result

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _key(self, t: ir.Value, count: int) -> ir.Value:
        """The key of an element; -1 behind the last one."""
        key = self.key_at(arith.minsi(t, mlir.index(count - 1)))
        return arith.select(below(t, count), key, mlir.index(-1))

    def _inside(self, key: ir.Value) -> ir.Value:
        return arith.andi(_least(key, self.first), below(key, self.end))

    def _digit(self, key: ir.Value, digit: int) -> ir.Value:
        quotient = arith.shrui(key, mlir.index(digit * self.bits)) if digit else key
        return arith.andi(quotient, mlir.index(self.base - 1))

    def _column(self, row: ir.Value) -> ir.Value:
        return sum_of([(row, self.threads), (self.thread, 1)])

    def _is(self, value: ir.Value, number: int) -> ir.Value:
        return arith.cmpi(arith.CmpIPredicate.eq, value, mlir.index(number))

    def _shared(self, slots: int, name: str) -> ir.Value:
        return locations.named(memref.AllocOp(local([slots], _type(), SHARED), [], []).result, name)


def pieces_of(count: ir.Value, size: int) -> ir.Value:
    """The number of pieces of `size` that so many elements take."""
    return arith.divui(sum_of([(count, 1)], size - 1), mlir.index(size))


def _type() -> ir.Type:
    return ir.IntegerType.get_signless(32)


def _i32(value: int) -> ir.Value:
    return mlir.constant(value, _type())


def _to_i32(value: ir.Value) -> ir.Value:
    return arith.index_cast(_type(), value)


def _index(value: ir.Value) -> ir.Value:
    return arith.index_cast(ir.IndexType.get(), value)


def _least(value: ir.Value, least: ir.Value) -> ir.Value:
    return arith.cmpi(arith.CmpIPredicate.sge, value, least)


def _padded(slots: int) -> int:
    return slots + slots // WARP


def _pad(at: ir.Value) -> ir.Value:
    """Places a power of two apart lie in different banks of shared memory."""
    return arith.addi(at, arith.shrui(at, mlir.index(WARP.bit_length() - 1)))


def _add(memory: ir.Value, at: ir.Value, more: int) -> None:
    memref.StoreOp(arith.addi(memref.LoadOp(memory, [at]).result, _i32(more)), memory, [at])


def _shuffled(value: ir.Value, lane: ir.Value, mode: gpu.ShuffleMode) -> ir.Value:
    return gpu.ShuffleOp(value, lane, mlir.constant(WARP, _type()), mode).operation.results[0]


def sorted_memory(count: int, keys: int) -> dict[str, Shape]:
    """The memory of `Sorted`, by the names of its fields."""
    sizes: Sequence[tuple[str, int]] = (
        ("order", count), ("keys", count), ("starts", keys + 1), ("other_order", count), ("other_keys", count)
    )  # fmt: skip
    return {name: ([size], _type()) for name, size in sizes}
