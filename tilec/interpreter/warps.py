"""What the threads of a warp do together: shuffles, and matrix operations on fragments that its lanes hold.

Fragments: PTX ISA, "Matrix Fragments for mma.m16n8k16", and "ldmatrix". Products are exact, and their sum with the
accumulator is rounded once.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from tilec import mlir
from tilec.interpreter.code import Code, Mask, Step, Values, dtype_of, operation
from tilec.interpreter.elementary import fused_multiply_add
from tilec.interpreter.faults import Fault, Unsupported
from tilec.interpreter.memory import read
from tilec.mlir import ir

LANE = np.arange(32)
HALF_ROW, PAIR = LANE // 4, 2 * (LANE % 4)  # a lane's row in a fragment of 8 x 8, and the first of its two columns


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
    """Lane l names row l % 8 of matrix l / 8; every lane gets two elements of each matrix."""
    (source, *subscripts), (r,) = code.operands(op), code.results(op)
    count = ir.IntegerAttr(op.attributes["numTiles"]).value
    turned = ir.BoolAttr(op.attributes["transpose"]).value
    if dtype_of(op.results[0].type).itemsize != 2:
        raise Unsupported(op, "of elements that have not 16 bits")

    def step(values: Values, mask: Mask) -> None:
        context, view = values[0], values[source]
        context.whole_groups(op, mask, 32, "the warp")
        naming = context.thread_of % 32 < 8 * count
        naming = naming if mask is None else naming & mask
        at = [np.broadcast_to(values[s], context.lanes) for s in subscripts]
        start = np.broadcast_to(view.place(at, op, context, naming, (8,)), context.lanes)
        if np.any((start * 2 + view.buffer.start) % 16 * naming):
            lanes = np.flatnonzero((start * 2 + view.buffer.start) % 16 * naming)
            raise Fault("misaligned", op, "a row of 16 bytes", context.names(lanes))
        rows = read(view, start[:, None] + np.arange(8), op, context, naming)
        matrices = rows.reshape(-1, 32, 8)[:, : 8 * count].reshape(-1, count, 8, 8)
        if turned:
            matrices = matrices.swapaxes(2, 3)
        pairs = np.stack([matrices[:, :, HALF_ROW, PAIR + n] for n in range(2)], axis=-1)  # warp, matrix, lane, pair
        values[r] = pairs.swapaxes(1, 2).reshape(context.lanes, count, 2)

    return step


@operation("nvgpu.mma.sync")
def _mma(code: Code, op: ir.Operation) -> Step:
    (a, b, c), (r,) = code.operands(op), code.results(op)
    shape = [ir.IntegerAttr(n).value for n in ir.ArrayAttr(op.attributes["mmaShape"])]
    dtype = dtype_of(op.results[0].type)
    if shape != [16, 8, 16] or dtype_of(op.operands[0].type).itemsize != 2:
        raise Unsupported(op, f"of shape {shape} and elements of {ir.VectorType(op.operands[0].type).element_type}")

    def step(values: Values, mask: Mask) -> None:
        context = values[0]
        context.whole_groups(op, mask, 32, "the warp")
        x, y, z = (
            np.broadcast_to(values[s], (context.lanes, *np.shape(values[s])[1:]))
            .reshape(-1, 32, n, 2)
            .astype(np.float64)
            for s, n in ((a, 4), (b, 2), (c, 2))
        )
        left, right = np.zeros((len(x), 16, 16)), np.zeros((len(x), 16, 8))
        for j, n in product(range(4), range(2)):
            left[:, HALF_ROW + 8 * (j % 2), PAIR + 8 * (j // 2) + n] = x[:, :, j, n]
        for j, n in product(range(2), range(2)):
            right[:, PAIR + 8 * j + n, HALF_ROW] = y[:, :, j, n]
        sums = left @ right
        for half, n in product(range(2), range(2)):
            z[:, :, half, n] += sums[:, HALF_ROW + 8 * half, PAIR + n]
        values[r] = z.reshape(context.lanes, 2, 2).astype(dtype)

    return step


@operation("vector.contract")
def _contract(code: Code, op: ir.Operation) -> Step:
    """c[i, j] += sum of a[i, k] * b[j, k], each product added with one rounding, in the order of k."""
    (a, b, c), (r,) = code.operands(op), code.results(op)
    maps = [mlir.map_dims(ir.AffineMapAttr(m).value) for m in ir.ArrayAttr(op.attributes["indexing_maps"])]
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
