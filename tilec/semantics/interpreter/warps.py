"""Operations of a warp: shuffles, and matrix operations on fragments in its lanes.

A fragment consists of words of 32 bits, each with one, two or four elements that are neighbours along k. Fragments: PTX ISA,
"Matrix Fragments for mma.m16n8k16" (and k8 of tf32, k32 of 8 bits), and "ldmatrix". Products are exact, and their sum with
the accumulator is rounded once.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.semantics.interpreter.code import Code, Mask, Step, Values, dtype_of, operation
from tilec.semantics.interpreter.elementary import fused_multiply_add
from tilec.semantics.interpreter.faults import Fault, Unsupported
from tilec.semantics.interpreter.memory import read

LANE = np.arange(32)
ROW, COLUMN = LANE // 4, LANE % 4  # a lane's row in a matrix of 8 rows, and which of its four words
CUT = ~np.int32(0x1FFF)  # the bits of an f32 that matrix units take as tf32


@operation("gpu.shuffle")
def _shuffle(code: Code, op: ir.Operation) -> Step:
    value, distance, width = code.operands(op)
    result, valid = code.results(op)
    mode = str(op.attributes["mode"]).split()[-1].strip(">")

    def step(values: Values, mask: Mask) -> None:
        context = values[0]
        context.whole_groups(op, mask, 32, "the warp")
        if np.any(np.asarray(values[width]) != 32):
            raise Unsupported(op, "within less than a warp")
        lane, by = context.thread_of % 32, values[distance]
        source = {
            "xor": lambda: lane ^ by,
            "up": lambda: lane - by,
            "down": lambda: lane + by,
            "idx": lambda: lane * 0 + by,
        }
        wanted = source[mode]()
        inside = (wanted >= 0) & (wanted < 32)
        wanted = np.where(inside, wanted, lane)
        held = np.broadcast_to(values[value], context.lanes)
        values[result], values[valid] = held[np.arange(context.lanes) - lane + wanted], inside

    return step


@operation("nvgpu.ldmatrix")
def _ldmatrix(code: Code, op: ir.Operation) -> Step:
    """Lane l names row l % 8, of 16 bytes, of matrix l / 8; every lane gets a word of each matrix."""
    (source, *subscripts), (r,) = code.operands(op), code.results(op)
    count = ir.IntegerAttr(op.attributes["numTiles"]).value
    transposed = ir.BoolAttr(op.attributes["transpose"]).value
    size = dtype_of(op.results[0].type).itemsize
    row, word = 16 // size, 4 // size
    if size > 4 or (transposed and size != 2):
        raise Unsupported(op, f"of elements of {8 * size} bits{', transposed' * transposed}")

    def step(values: Values, mask: Mask) -> None:
        context, view = values[0], values[source]
        context.whole_groups(op, mask, 32, "the warp")
        naming = context.thread_of % 32 < 8 * count
        naming = naming if mask is None else naming & mask
        at = [np.broadcast_to(values[s], context.lanes) for s in subscripts]
        start = np.broadcast_to(view.offset_of(at, op, context, naming, (row,)), context.lanes)
        wrong = ((start * size + view.buffer.start) % 16 != 0) & naming
        if wrong.any():
            raise Fault("misaligned", op, "a row of 16 bytes", context.names(np.flatnonzero(wrong)))
        rows = read(view, start[:, None] + np.arange(row), op, context, naming)
        matrices = rows.reshape(-1, 32, row)[:, : 8 * count].reshape(-1, count, 8, row)
        if transposed:
            matrices = matrices.swapaxes(2, 3)
        words = np.stack([matrices[:, :, ROW, word * COLUMN + n] for n in range(word)], axis=-1)  # warp, matrix, lane
        values[r] = words.swapaxes(1, 2).reshape(context.lanes, count, word)

    return step


def left_matrix(words: np.ndarray) -> np.ndarray:
    """[..., 16, k] of fragments [..., 32 lanes, 4 words, elements of a word]."""
    n = words.shape[-1]
    made = np.zeros((*words.shape[:-3], 16, 8 * n), words.dtype)
    for j, e in product(range(4), range(n)):
        made[..., ROW + 8 * (j % 2), n * COLUMN + 4 * n * (j // 2) + e] = words[..., :, j, e]
    return made


def right_matrix(words: np.ndarray) -> np.ndarray:
    """[..., k, 8] of fragments [..., 32 lanes, 2 words, elements of a word]."""
    n = words.shape[-1]
    made = np.zeros((*words.shape[:-3], 8 * n, 8), words.dtype)
    for j, e in product(range(2), range(n)):
        made[..., n * COLUMN + 4 * n * j + e, ROW] = words[..., :, j, e]
    return made


def multiplicands(values: np.ndarray, kind: str) -> np.ndarray:
    """What matrix units multiply, exactly: of an f32 the bits that tf32 has, and bytes as u8 where that is the kind."""
    if kind == "u8":
        values = np.ascontiguousarray(values).view(np.uint8)
    if kind == "tf32":
        values = (np.ascontiguousarray(values, np.float32).view(np.int32) & CUT).view(np.float32)
    return values.astype(np.float64)


def rounded(sums: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Exact sums in the type of the accumulators; whole numbers wrap around."""
    return sums.astype(np.int64).astype(dtype) if dtype.kind == "i" else sums.astype(dtype)


@operation("nvgpu.mma.sync")
def _mma(code: Code, op: ir.Operation) -> Step:
    (a, b, c), (r,) = code.operands(op), code.results(op)
    shape = [ir.IntegerAttr(n).value for n in ir.ArrayAttr(op.attributes["mmaShape"])]
    dtype, tf32 = dtype_of(op.results[0].type), "tf32Enabled" in op.attributes
    factor = dtype_of(op.operands[0].type)
    word = 4 // factor.itemsize
    if shape != [16, 8, 8 * word] or dtype != (np.int32 if factor.kind == "i" else np.float32) or (word == 1) != tf32:
        raise Unsupported(op, f"of shape {shape} and elements of {ir.VectorType(op.operands[0].type).element_type}")

    def fragment(values: Values, slot: int, words: int, elements: int) -> np.ndarray:
        given = values[slot]
        return np.broadcast_to(given, (values[0].lanes, words, elements)).reshape(-1, 32, words, elements)

    def step(values: Values, mask: Mask) -> None:
        context = values[0]
        context.whole_groups(op, mask, 32, "the warp")
        kind = "tf32" if tf32 else ""
        left = left_matrix(multiplicands(fragment(values, a, 4, word), kind))
        sums = left @ right_matrix(multiplicands(fragment(values, b, 2, word), kind))
        total = fragment(values, c, 2, 2).astype(np.float64)
        for half, n in product(range(2), range(2)):
            total[:, :, half, n] += sums[:, ROW + 8 * half, 2 * COLUMN + n]
        values[r] = rounded(total, dtype).reshape(context.lanes, 2, 2)

    return step


def _contract_pairs(code: Code, op: ir.Operation) -> Step:
    """c[i, j] += sum of a[i, k, p] * b[k, j, p], of factors that are widened."""
    (a, b, c), (r,) = code.operands(op), code.results(op)
    dtype = dtype_of(op.results[0].type)

    def step(values: Values, mask: Mask) -> None:
        left, right, total = values[a].astype(dtype), values[b].astype(dtype), values[c]
        for k, p in product(range(left.shape[-2]), range(left.shape[-1])):
            total = fused_multiply_add(left[..., :, None, k, p], right[..., k, None, :, p], total, dtype)
        values[r] = total

    return step


@operation("vector.contract")
def _contract(code: Code, op: ir.Operation) -> Step:
    """c[i, j] += sum of a[i, k] * b[j, k], each product added with one rounding, in the order of k, which may be pairs."""
    (a, b, c), (r,) = code.operands(op), code.results(op)
    maps = [mlir.map_dims(ir.AffineMapAttr(m).value) for m in ir.ArrayAttr(op.attributes["indexing_maps"])]
    if maps == [[0, 2, 3], [2, 1, 3], [0, 1]]:
        return _contract_pairs(code, op)
    if [sorted(m) for m in maps] != [[0, 2], [1, 2], [0, 1]] or maps[2] != [0, 1]:
        raise Unsupported(op, "of other dimensions than those of a matrix product")
    dtype = dtype_of(op.results[0].type)

    def step(values: Values, mask: Mask) -> None:
        left, right, total = values[a], values[b], values[c]
        left = left if maps[0] == [0, 2] else left.swapaxes(-1, -2)
        right = right if maps[1] == [1, 2] else right.swapaxes(-1, -2)
        for k in range(left.shape[-1]):
            total = fused_multiply_add(left[..., :, None, k], right[..., None, :, k], total, dtype)
        values[r] = total

    return step
