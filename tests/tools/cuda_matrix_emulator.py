"""The emulator's stand-ins for asynchronous copies and matrix units.

Copies are late on purpose: `cp.async` data lands when the thread waits for its group, so that a missing wait
shows. Shared memory begins as garbage, which a product that reads too early turns into a wrong result.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache, partial

import numpy as np

from tilec.core.dtypes import DTYPES
from tilec.runtime.cuda.device.matrix import matrix_descriptor
from tilec.semantics.interpreter.boxes import nearest_tf32
from tools.cuda_emulator import SHARED, Intrinsics
from tools.cuda_threads import Turns

WORDS = {f"mma_{t}": DTYPES[t].numpy for t in ("bf16", "f16", "i8", "u8")} | {"mma_tf32": np.float32}


class MatrixIntrinsics(Intrinsics):
    def __init__(self) -> None:
        super().__init__()
        self.cp_async_commit = lambda: self._mine("groups").append(self._take("copies"))
        self.cp_async_wait = lambda count: lambda: self._land(count)
        for width in (4, 8, 16):
            setattr(self, f"cp_async_{width}", partial(self._copy, width))
        for count in (1, 2, 4):
            setattr(self, f"load_words_{count}", partial(self._load_words, count))
        for dtype in ("bf16", "f16"):
            setattr(self, f"unpack_{dtype}", partial(self._unpack, DTYPES[dtype].numpy))
            setattr(self, f"put_{dtype}", partial(self._put, DTYPES[dtype].numpy))
        self.contract, self.matrix_descriptor = _contract, matrix_descriptor
        self.warp_barrier = lambda: self._meet(self.state.block.warps[self.state.thread // 32])
        self.mbarrier_fence = lambda: None
        self.set_registers = lambda count, more: lambda: None
        self.tma_load = lambda rank, multicast=False: self._tma_multicast if multicast else self._tma_load
        self.tma_store = lambda rank: self._tma_store
        self.bulk_commit = lambda: self._mine("boxes_done").append(self._take("boxes"))
        self.bulk_wait = lambda groups, read: lambda: self._leave(groups)
        self.fence_async_shared = lambda: None
        self.wgmma = lambda dtype, n, **options: (
            lambda sums, at, *operands: self._wgmma(dtype, n, options, sums, at, *operands)
        )
        self.shared_words = lambda step: lambda *line: self._line(*line, step, DTYPES["bf16"].numpy, DTYPES["bf16"].numpy)
        self.widen = lambda source, target, step: (
            lambda *line: self._line(*line, step, DTYPES[source].numpy, DTYPES[target].numpy)
        )
        self.wgmma_wait = lambda *_, **__: lambda *registers: None
        self.named_barrier_arrive = lambda number, threads: self._named(number, threads).arrive(self.state.turns)
        self.exp2_approx = lambda x: np.float32(np.exp2(np.float64(x)))
        self.bits_f32 = lambda x: np.float32(x).view(np.int32)
        self.from_bits_f32 = lambda x: np.int32(x).view(np.float32)

    def __getattr__(self, name: str):
        if name.startswith("ldmatrix_x4"):
            return lambda array, at, address: self._ldmatrix(array, at, address, name.endswith("trans"))
        if name in ("pack_bf16", "pack_f16"):
            dtype = DTYPES[name[5:]].numpy
            return lambda low, high: np.array([low, high], np.float32).astype(dtype).view(np.int32)[0]
        if name in WORDS:
            return lambda *operands: self._mma(WORDS[name], *operands)
        return super().__getattr__(name)

    def _load_words(self, count: int, words, at, address) -> None:
        words[at : at + count] = self.state.block.access(np.dtype(np.uint32), count, int(address))

    @staticmethod
    def _unpack(dtype, words, at):
        return np.float32(words.view(dtype)[at])

    @staticmethod
    def _put(dtype, words, at, value) -> None:
        words.view(dtype)[at] = value

    # ---- cp.async ------------------------------------------------------------------------------------------

    def _mine(self, name: str) -> list:
        """A list of this thread's own, which begins empty in every block."""
        if getattr(self.state, "owner", None) is not self.state.block:
            self.state.owner, self.state.lists = self.state.block, defaultdict(list)
        return self.state.lists[name]

    def _copy(self, width: int, target, source, size) -> None:
        self._mine("copies").append((width, int(target), int(source), int(size)))

    def _take(self, name: str) -> list:
        taken = list(self._mine(name))
        self._mine(name).clear()
        return taken

    def _land(self, count: int) -> None:
        groups = self._mine("groups")
        while len(groups) > count:
            self._land_all(self.state.block, groups.pop(0))

    @staticmethod
    def _land_all(block, copies: list) -> None:
        for width, target, source, size in copies:
            assert (target % width == 0 and source % width == 0) or size == 0
            cells = block.bytes_at(target, width)
            cells[:] = 0
            if size:
                cells[:size] = block.bytes_at(source, size)

    # ---- warps ---------------------------------------------------------------------------------------------

    def _ldmatrix(self, array, at, address, transposed: bool) -> None:
        def load(addresses):
            block, words = self.state.block, np.dtype(np.uint16)
            rows = np.stack([block.access(words, 8, a) for a in addresses]).reshape(4, 8, 8)
            return rows.transpose(0, 2, 1) if transposed else rows

        lane = self.state.thread % 32
        matrices = self._fused(32, int(address), load)
        for j in range(4):
            pair = matrices[j, lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2]
            array[at + j] = np.ascontiguousarray(pair).view(array.dtype)[0]

    def _line(self, array, at, address, step, source, target) -> None:
        """16 bytes into words of a fragment."""
        assert int(address) % 16 == 0
        numbers = self.state.block.bytes_at(int(address), 16).copy().view(source).astype(np.float32).astype(target)
        words = numbers.view(array.dtype)
        array[at : at + step * len(words) : step] = words

    def round_tf32_x4(self, array, at) -> None:
        """To 10 bits of mantissa, ties away from zero."""
        bits = array[at : at + 4].view(np.int32)
        bits[:] = (bits + 0x1000) & ~0x1FFF

    def _mma(self, dtype, sums, at, a, a_at, b, b_at) -> None:
        """A word of a fragment holds neighbours along k; the second half of k comes 16 bytes later."""
        count = 4 // np.dtype(dtype).itemsize
        wide = np.int32 if np.dtype(dtype).kind in "iu" else np.float32

        def multiply(words):
            lefts, rights = (np.stack(given).view(dtype).astype(wide) for given in zip(*words))
            # by lane / 4 and lane % 4, then halves of k and, on the left, of rows
            left = lefts.reshape(8, 4, 2, 2, count).transpose(3, 0, 2, 1, 4).reshape(16, 8 * count)
            right = rights.reshape(8, 4, 2, count).transpose(2, 1, 3, 0).reshape(8 * count, 8)
            if dtype is np.float32:
                assert not (np.concatenate([left.ravel(), right.ravel()]).view(np.int32) & 0x1FFF).any(), "not rounded"
            return left @ right

        result = self._fused(32, (a[a_at : a_at + 4].copy(), b[b_at : b_at + 2].copy()), multiply)
        lane = self.state.thread % 32
        sums[at : at + 4] += result[lane // 4 :: 8, 2 * (lane % 4) : 2 * (lane % 4) + 2].ravel()

    # ---- barriers and TMA ----------------------------------------------------------------------------------

    def _barrier(self, address: int) -> _Barrier:
        return self.state.block.__dict__.setdefault("barriers", {}).setdefault(int(address), _Barrier())

    def mbarrier_init(self, address, count) -> None:
        self._barrier(address).expected = self._barrier(address).left = int(count)

    def mbarrier_expect(self, address, size) -> None:
        self._barrier(address).change(1, int(size), self.state.turns)

    def mbarrier_arrive(self, address) -> None:
        self._barrier(address).change(1, 0, self.state.turns)

    def cp_async_arrive(self, address) -> None:
        """The copies land when the barrier is waited for, so that one that nothing waits for shows."""
        barrier, copies = self._barrier(address), self._take("copies")
        barrier.landing.append(partial(self._land_all, self.state.block, copies))
        barrier.change(1, 0, self.state.turns)

    def mbarrier_wait(self, address, parity) -> None:
        self._barrier(address).wait(int(parity), self.state.turns)

    def _tma_load(self, target, tensor, barrier, *coordinates, blocks=()) -> None:
        description, pointer = tensor
        tf32 = description.dtype == "tf32"
        dtype = DTYPES["f32" if tf32 else description.dtype].numpy
        count = int(np.prod(description.shape)) * dtype.itemsize
        whole = self.state.block.bytes_at(pointer, count).view(dtype).reshape(description.shape)
        box, start = np.zeros(description.box, dtype), [int(c) for c in reversed(coordinates)]
        steps = description.steps or [1] * len(start)
        along = [s + step * np.arange(n) for s, n, step in zip(start, description.box, steps)]
        inside = [(at >= 0) & (at < extent) for at, extent in zip(along, description.shape)]
        box[np.ix_(*inside)] = whole[np.ix_(*(at[i] for at, i in zip(along, inside)))]
        box = nearest_tf32(box) if tf32 else box
        assert int(target) % 1024 == 0
        assert int(coordinates[0]) * dtype.itemsize % 16 == 0, "TMA copies boxes that begin at multiples of 16 bytes in a line"
        for block in blocks or [self.state.block]:
            for line, values in enumerate(box.reshape(-1, description.box[-1]).view(np.uint8).reshape(-1, 8, 16)):
                for piece, data in enumerate(values):
                    block.bytes_at(_swizzled(int(target) + 128 * line + 16 * piece), 16)[:] = data
            block.__dict__["barriers"][int(barrier)].change(0, -box.nbytes, self.state.turns)

    def _tma_multicast(self, target, tensor, barrier, *coordinates) -> None:
        *coordinates, mask = coordinates
        blocks = [b for n, b in enumerate(self.state.blocks) if int(mask) >> n & 1]
        self._tma_load(target, tensor, barrier, *coordinates, blocks=blocks)

    def _tma_store(self, tensor, source, *coordinates) -> None:
        """Shared memory is read as late as the wait for the copy allows."""
        self._mine("boxes").append((tensor, int(source), [int(c) for c in reversed(coordinates)]))

    def _leave(self, count: int) -> None:
        groups = self._mine("boxes_done")
        while len(groups) > count:
            for (description, pointer), source, start in groups.pop(0):
                dtype = DTYPES[description.dtype].numpy
                shape = description.shape
                apart = description.strides or [int(np.prod(shape[n + 1 :])) for n in range(len(shape))]
                size = (1 + sum((n - 1) * s for n, s in zip(shape, apart))) * dtype.itemsize
                flat = self.state.block.bytes_at(pointer, size).view(dtype)
                whole = np.lib.stride_tricks.as_strided(flat, shape, [s * dtype.itemsize for s in apart])
                count_bytes, line = int(np.prod(description.box)) * dtype.itemsize, description.swizzle
                assert source % max(128, 8 * line) == 0 and description.box[-1] * dtype.itemsize == line, (source, description)
                pieces = [
                    self.state.block.bytes_at(at ^ (at >> 7 & line // 16 - 1) << 4, 16)
                    for at in range(source, source + count_bytes, 16)
                ]
                box = np.concatenate(pieces).view(dtype).reshape(description.box)
                inside = tuple(slice(s, max(s, min(s + b, e))) for s, b, e in zip(start, description.box, description.shape))
                part = whole[inside]
                part[...] = box[tuple(slice(0, n) for n in part.shape)]

    def _wgmma(self, dtype, n, options, sums, at, *operands) -> None:
        kind = np.float32 if dtype == "tf32" else DTYPES[dtype].numpy
        *a, b, keep = operands
        words = None
        if options.get("registers"):
            array, first = a
            words = np.array(array[first : first + 4 * options["steps"]])

        def advance(step: int, side: str) -> int:
            within, slab = options[f"step_{side}"], options.get(f"slab_{side}", 0)
            return step // 4 * slab + step % 4 * within if slab else step * within

        wide = np.int32 if np.dtype(kind).kind in "iu" else np.float32

        def multiplied(values):
            if dtype == "tf32":  # the units ignore the last 13 bits
                values = (np.ascontiguousarray(values).view(np.int32) & ~0x1FFF).view(np.float32)
            return values.astype(wide)

        def multiply(fragments):
            total = np.zeros((64, n), wide)
            for step in range(options["steps"]):
                if words is not None:
                    left = _left([f[4 * step : 4 * step + 4].view(kind) for f in fragments])
                else:
                    left = self._operand(a[0] + advance(step, "a"), 64, kind, options["transpose_a"])
                right = self._operand(b + advance(step, "b"), n, kind, options["transpose_b"])
                total += multiplied(left) @ multiplied(right).T
            return total

        total = self._fused(128, words, multiply)
        warp, lane = self.state.thread % 128 // 32, self.state.thread % 32
        rows = total[[16 * warp + lane // 4, 16 * warp + lane // 4 + 8]].reshape(2, n // 8, 8)
        values = rows[:, :, 2 * (lane % 4) : 2 * (lane % 4) + 2].transpose(1, 0, 2).reshape(-1)
        place = slice(at, at + n // 2)
        sums[place] = values if int(keep) == 0 else sums[place] + values

    def _operand(self, descriptor: int, rows: int, dtype, transposed: bool) -> np.ndarray:
        """Rows of 32 bytes of k by a matrix descriptor, as PTX defines it for 128 bytes of swizzle."""
        assert len(self.state.blocks) == 1 or not int(descriptor) & SHARED >> 4, "upper bits are the number of a block"
        descriptor = int(descriptor) & ~(SHARED >> 4)
        assert descriptor >> 62 == 1
        start, leading, stride = ((descriptor >> bits & 0x3FFF) << 4 for bits in (0, 16, 32))
        size, block = np.dtype(dtype).itemsize, self.state.block
        at, end = _places(start, leading, stride, rows, size, transposed)
        assert end <= len(block.shared), f"{end} bytes of shared memory"
        return block.shared[: len(block.shared) // size * size].view(dtype)[at]


@lru_cache(maxsize=1024)
def _places(start: int, leading: int, stride: int, rows: int, size: int, transposed: bool) -> tuple[np.ndarray, int]:
    """Where the elements of an operand lie in shared memory, in elements of `size` bytes, and the byte where the last one ends."""
    line, (r, k) = 128 // size, np.indices((rows, 32 // size))
    across, along = (k, r) if transposed else (r, k)
    at = across // 8 * stride + across % 8 * 128 + along % line * size + along // line * leading
    at = _swizzled(SHARED + start + at) - SHARED
    assert at.min() >= 0 and not (at % size).any()
    return at // size, int(at.max()) + size


class _Barrier:
    """An mbarrier: a phase ends when all have arrived and all announced bytes have."""

    def __init__(self) -> None:
        self.expected = self.left = self.bytes = self.phase = 0
        self.others: list = []
        self.landing: list = []  # copies of the phase, which land at its end

    def change(self, arrivals: int, size: int, turns: Turns) -> None:
        self.left -= arrivals
        self.bytes += size
        if self.left == 0 and self.bytes == 0:
            for land in self.landing:
                land()
            self.landing.clear()
            self.phase += 1
            self.left = self.expected
            turns.wake(self.others)

    def wait(self, parity: int, turns: Turns) -> None:
        """Until the phase of this parity is over; the phase before the first counts as one of parity 1."""
        while self.phase % 2 == parity:
            turns.wait(self.others)


def _left(fragments: list[np.ndarray]) -> np.ndarray:
    """64 rows of 32 bytes of the 128 threads' words: row lane / 4 and eight below, the word lane % 4 and four further."""
    each = fragments[0].size // 4
    result = np.zeros((64, 8 * each), fragments[0].dtype)
    for thread, values in enumerate(fragments):
        row, column = 16 * (thread // 32) + thread % 32 // 4, each * (thread % 4)
        for word, held in enumerate(values.reshape(4, each)):
            at = column + 4 * each * (word // 2)
            result[row + 8 * (word % 2), at : at + each] = held
    return result


def _swizzled(address: int) -> int:
    return address ^ (address >> 7 & 7) << 4


def _contract(dtype: str, m: int, n: int, k: int, left_major: int, right_major: int):
    def multiply(sums, left, right) -> None:
        a = left.reshape(m, k) if left_major else left.reshape(k, m).T
        b = right.reshape(n, k) if right_major else right.reshape(k, n).T
        sums += (a @ b.T).reshape(-1)

    return multiply
