"""Square tiles in vector registers for printed CPU kernels, to transpose memory.

    t = load_tile_16(x, at, 4096)         # sixteen vectors of sixteen elements, 4096 apart
    store_tile(y, to, 64, transpose(t))

A loop that walks down a column uses one element of each cache line that it touches, and no vector load. A tile uses
whole lines in both directions, and the shuffles between cost less than the lines.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

LANES = (2, 4, 8, 16)


class Tile(types.Type):
    """`lanes` vectors of `lanes` elements."""

    def __init__(self, element: types.Type, lanes: int):
        self.element, self.lanes = element, lanes
        super().__init__(f"{element}x{lanes}x{lanes}")


@register_model(Tile)
class _TileModel(models.PrimitiveModel):
    def __init__(self, manager, type_: Tile) -> None:
        row = ir.VectorType(manager[type_.element].get_data_type(), type_.lanes)
        super().__init__(manager, type_, ir.ArrayType(row, type_.lanes))


def _rows(context, builder, type_: Tile, pointer, at, stride):
    """Pointers to the vectors of a tile, and the alignment of one element."""
    row = context.get_value_type(type_).element
    for n in range(type_.lanes):
        offset = builder.add(at, builder.mul(stride, ir.Constant(stride.type, n)))
        yield builder.bitcast(builder.gep(pointer, [offset]), row.as_pointer())


def _load(lanes: int) -> Callable:
    def load(typingctx, pointer, at, stride):
        type_ = Tile(pointer.dtype, lanes)

        def generate(context, builder, signature, arguments):
            tile = ir.Constant(context.get_value_type(type_), ir.Undefined)
            for n, row in enumerate(_rows(context, builder, type_, *arguments)):
                vector = builder.load(row)
                vector.align = type_.element.bitwidth // 8
                tile = builder.insert_value(tile, vector, n)
            return tile

        return type_(pointer, types.intp, types.intp), generate

    return load


@intrinsic
def store_tile(typingctx, pointer, at, stride, tile):
    """Stores the vectors of a tile at `at`, `at + stride`, ..."""

    def generate(context, builder, signature, arguments):
        *address, value = arguments
        for n, row in enumerate(_rows(context, builder, tile, *address)):
            builder.store(builder.extract_value(value, n), row).align = tile.element.bitwidth // 8
        return context.get_dummy_value()

    return types.void(pointer, types.intp, types.intp, tile), generate


@intrinsic
def transpose(typingctx, tile):
    """Element [i, j] goes to [j, i]: blocks of 1, then 2, 4, ... swap places across the diagonal (Eklundh, "A fast
    computer method for matrix transposing", IEEE Transactions on Computers, 1972).
    """

    def generate(context, builder, signature, arguments):
        n = tile.lanes
        mask = ir.VectorType(ir.IntType(32), n)
        rows = [builder.extract_value(arguments[0], r) for r in range(n)]
        step = 1
        while step < n:
            upper = ir.Constant(mask, [n + lane - step if lane & step else lane for lane in range(n)])
            lower = ir.Constant(mask, [n + lane if lane & step else lane + step for lane in range(n)])
            for r in (r for r in range(n) if not r & step):
                pair = rows[r], rows[r + step]
                rows[r], rows[r + step] = (builder.shuffle_vector(*pair, m) for m in (upper, lower))
            step *= 2
        transposed = ir.Constant(context.get_value_type(tile), ir.Undefined)
        for r, row in enumerate(rows):
            transposed = builder.insert_value(transposed, row, r)
        return transposed

    return tile(tile), generate


LOADS = {f"load_tile_{lanes}": intrinsic(_load(lanes)) for lanes in LANES}
globals().update(LOADS)

__all__ = [*LOADS, "store_tile", "transpose"]
