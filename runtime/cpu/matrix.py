"""Matrix units of CPUs for printed kernels: Intel's AMX, which multiplies tiles of bf16 and adds to tiles of f32.

    configure_tiles()                       # once in a call of a kernel
    sums = zero_sums(32, 32)
    sums = contract_pairs(left, at, 1024, right, to, 64, sums, 0) # 16 pairs along k
    store_tile(edge, 0, 32, sums)
    release_tiles()

The sums are in tile registers, of which there are eight: sums of up to 2 x 2 tiles, and the factors' tiles. A variable of
sums holds nothing; only one can live at a time.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

SIDE = 16  # rows of a tile, and words of 32 bits in a row
ROW = 64  # bytes
_BYTE, _I64 = ir.IntType(8), ir.IntType(64)


class MatrixSums(types.Type):
    """`rows` x `lanes` sums in the first tile registers."""

    def __init__(self, rows: int, lanes: int):
        self.rows, self.lanes = rows, lanes
        super().__init__(f"sums{rows}x{lanes}")

    @property
    def tiles(self) -> list[tuple[int, int, int]]:
        """(register, row, column) of each tile, in tiles."""
        columns = self.lanes // SIDE
        return [(r * columns + c, r, c) for r in range(self.rows // SIDE) for c in range(columns)]


@register_model(MatrixSums)
class _SumsModel(models.PrimitiveModel):
    def __init__(self, manager, type_: MatrixSums) -> None:
        super().__init__(manager, type_, _BYTE)


def _call(builder, name: str, *arguments) -> None:
    kind = ir.FunctionType(ir.VoidType(), [a.type for a in arguments])
    name = f"llvm.x86.{name}"
    builder.call(builder.module.globals.get(name) or ir.Function(builder.module, kind, name), arguments)


def _bytes_at(builder, pointer, index):
    return builder.bitcast(builder.gep(pointer, [index]), _BYTE.as_pointer())


def _stride(builder, stride, element: types.Type):
    return builder.mul(stride, _I64(element.bitwidth // 8))


@intrinsic
def configure_tiles(typingctx):
    """Eight tile registers of 16 rows of 64 bytes."""

    def generate(context, builder, signature, arguments):
        words = [1, *[0] * 15, *[b for _ in range(8) for b in (ROW, 0)], *[0] * 16, *[SIDE] * 8, *[0] * 8]
        kind = ir.ArrayType(_BYTE, len(words))
        name = "tilec_tiles"
        memory = builder.module.globals.get(name)
        if memory is None:
            memory = ir.GlobalVariable(builder.module, kind, name)
            memory.global_constant, memory.linkage = True, "internal"
            memory.initializer = ir.Constant(kind, words)
        _call(builder, "ldtilecfg", builder.bitcast(memory, _BYTE.as_pointer()))
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def release_tiles(typingctx):
    """Leaves nothing that the system must save when it switches threads."""

    def generate(context, builder, signature, arguments):
        _call(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic(prefer_literal=True)
def zero_sums(typingctx, rows, lanes):
    type_ = MatrixSums(rows.literal_value, lanes.literal_value)

    def generate(context, builder, signature, arguments):
        for register, _, _ in type_.tiles:
            _call(builder, "tilezero", _BYTE(register))
        return _BYTE(0)

    return type_(rows, lanes), generate


@intrinsic
def load_sums(typingctx, pointer, at, stride, like):
    """Sums from memory; `like` are others of as many rows and columns."""

    def generate(context, builder, signature, arguments):
        pointer_, at_, stride_, _ = arguments
        for register, address in _addresses(builder, like, pointer_, at_, stride_):
            _call(builder, "tileloadd64", _BYTE(register), address, builder.mul(stride_, _I64(4)))
        return _BYTE(0)

    return like(pointer, types.intp, types.intp, like), generate


@intrinsic(prefer_literal=True)
def contract_pairs(typingctx, left, at, stride, right, to, step, sums, kept):
    """sums + left * right over 16 pairs of bf16 along k: rows of `left` are `stride` elements apart, and hold their pairs one
    after another; rows of `right` are `step` apart, and hold a pair of each column. The `kept` factor, 1 for the left and 2 for
    the right one, is that of the product before."""

    def generate(context, builder, signature, arguments):
        left_, at_, stride_, right_, to_, step_, *_ = arguments
        strides = _stride(builder, stride_, left.dtype), _stride(builder, step_, right.dtype)
        first = len(sums.tiles)
        rows, columns = sums.rows // SIDE, sums.lanes // SIDE
        a, b = [_BYTE(first + r) for r in range(rows)], [_BYTE(first + rows + c) for c in range(columns)]
        for c in range(columns if kept.literal_value != 2 else 0):
            start = builder.add(to_, _I64(c * 8 * ROW // right.dtype.bitwidth))
            _call(builder, "tileloadd64", b[c], _bytes_at(builder, right_, start), strides[1])
        for r in range(rows):
            if kept.literal_value != 1:
                start = builder.add(at_, builder.mul(stride_, _I64(r * SIDE)))
                _call(builder, "tileloadd64", a[r], _bytes_at(builder, left_, start), strides[0])
            for c in range(columns):
                _call(builder, "tdpbf16ps", _BYTE(r * columns + c), a[r], b[c])
        return _BYTE(0)

    return sums(left, types.intp, types.intp, right, types.intp, types.intp, sums, kept), generate


def _addresses(builder, sums: MatrixSums, pointer, at, stride):
    """The register and the address of each tile."""
    for register, r, c in sums.tiles:
        start = builder.add(at, builder.add(builder.mul(stride, _I64(r * SIDE)), _I64(c * SIDE)))
        yield register, _bytes_at(builder, pointer, start)


def store_sums(builder, sums: MatrixSums, pointer, at, stride) -> None:
    """For `store_tile` of `runtime/cpu/tile.py`."""
    for register, address in _addresses(builder, sums, pointer, at, stride):
        _call(builder, "tilestored64", _BYTE(register), address, builder.mul(stride, _I64(4)))


__all__ = ["configure_tiles", "contract_pairs", "load_sums", "release_tiles", "zero_sums"]
