"""Tiles of a matrix in vector registers, for printed CPU kernels: to transpose memory, and for sums of products.

    t = load_tile(x, at, 4096, 16, 16)                  # sixteen vectors of sixteen elements, 4096 apart
    store_tile(y, to, 64, transpose(t))

    sums = splat_tile(f32(0), 14, 32)                   # for each step along k: a column times a row
    sums = contract(load_tile(left, p, 256, 14, 1), load_tile(right, 32 * p, 32, 1, 32), sums)

A loop down a column uses one element of each cache line that it touches, and no vector load. A tile uses
whole lines in both directions, and the shuffles between cost less than the lines.

Numba has no vectors of its own, and what its loops become is up to LLVM's vectoriser, which will not keep a tile of sums
in registers. A variable of these types is an LLVM array of vectors, which LLVM splits into values, so that a loop over
them is the loop that the processor runs.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from tilec.runtime.cpu.matrix import MatrixSums, store_sums


class Tile(types.Type):
    """`rows` vectors of `lanes` elements."""

    def __init__(self, element: types.Type, rows: int, lanes: int):
        self.element, self.rows, self.lanes = element, rows, lanes
        super().__init__(f"{element}x{rows}x{lanes}")

    @property
    def piece(self) -> int:
        """Lanes of an LLVM vector: a power of two, since LLVM takes others apart, and no more than a register's."""
        return min(self.lanes & -self.lanes, 512 // self.element.bitwidth)

    @property
    def pieces(self) -> int:
        """Vectors of a row."""
        return self.lanes // self.piece


@register_model(Tile)
class _TileModel(models.PrimitiveModel):
    def __init__(self, manager, type_: Tile) -> None:
        piece = ir.VectorType(manager[type_.element].get_data_type(), type_.piece)
        super().__init__(manager, type_, ir.ArrayType(piece, type_.rows * type_.pieces))


def _addresses(context, builder, type_: Tile, pointer, at, stride):
    """Pointers to the vectors of a tile."""
    piece = context.get_value_type(type_).element
    for row in range(type_.rows):
        start = builder.add(at, builder.mul(stride, ir.Constant(stride.type, row)))
        for n in range(type_.pieces):
            offset = builder.add(start, ir.Constant(start.type, n * type_.piece))
            yield builder.bitcast(builder.gep(pointer, [offset]), piece.as_pointer())


def _vectors(builder, tile) -> list:
    return [builder.extract_value(tile, n) for n in range(tile.type.count)]


def _tile(context, builder, type_: Tile, vectors):
    made = ir.Constant(context.get_value_type(type_), ir.Undefined)
    for n, vector in enumerate(vectors):
        made = builder.insert_value(made, vector, n)
    return made


def _splat(builder, one, lanes: int):
    """All lanes the first one of a vector."""
    return builder.shuffle_vector(one, ir.Constant(one.type, ir.Undefined), _mask([0] * lanes))


def _mask(lanes: list[int]) -> ir.Constant:
    return ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)


@intrinsic(prefer_literal=True)
def load_tile(typingctx, pointer, at, stride, rows, lanes):
    """`rows` vectors of `lanes` elements from `at`, `at + stride`, ... on; both are numbers in the text."""
    type_ = Tile(pointer.dtype, rows.literal_value, lanes.literal_value)

    def generate(context, builder, signature, arguments):
        def load(address):
            vector = builder.load(address)
            vector.align = type_.element.bitwidth // 8
            return vector

        addresses = _addresses(context, builder, type_, *arguments[:3])
        return _tile(context, builder, type_, map(load, addresses))

    return type_(pointer, types.intp, types.intp, rows, lanes), generate


@intrinsic
def store_tile(typingctx, pointer, at, stride, tile):
    """Stores the vectors of a tile at `at`, `at + stride`, ..."""

    def generate(context, builder, signature, arguments):
        *where, value = arguments
        if isinstance(tile, MatrixSums):
            store_sums(builder, tile, *where)
            return context.get_dummy_value()
        for address, vector in zip(_addresses(context, builder, tile, *where), _vectors(builder, value)):
            builder.store(vector, address).align = tile.element.bitwidth // 8
        return context.get_dummy_value()

    return types.void(pointer, types.intp, types.intp, tile), generate


@intrinsic(prefer_literal=True)
def splat_tile(typingctx, x, rows, lanes):
    """A tile of equal elements."""
    element = types.unliteral(x)
    type_ = Tile(element, rows.literal_value, lanes.literal_value)

    def generate(context, builder, signature, arguments):
        whole = context.get_value_type(type_)
        first = ir.Constant(ir.VectorType(whole.element.element, 1), ir.Undefined)
        vector = _splat(builder, builder.insert_element(first, arguments[0], ir.IntType(32)(0)), type_.piece)
        return _tile(context, builder, type_, [vector] * whole.count)

    return type_(element, rows, lanes), generate


@intrinsic
def add_tiles(typingctx, a, b):
    def generate(context, builder, signature, arguments):
        pairs = zip(*(_vectors(builder, tile) for tile in arguments))
        return _tile(context, builder, a, (builder.fadd(*pair) for pair in pairs))

    return a(a, b), generate


@intrinsic
def contract(typingctx, a, b, sums):
    """sums + a * b, each product added with one rounding, of a column `a` and a row `b`: tiles of 1 lane and of 1 row."""

    def generate(context, builder, signature, arguments):
        column, row, before = (_vectors(builder, tile) for tile in arguments)
        vector = row[0].type
        name = f"llvm.fma.v{vector.count}f{sums.element.bitwidth}"
        fma = builder.module.globals.get(name)
        fma = fma or ir.Function(builder.module, ir.FunctionType(vector, [vector] * 3), name)
        after = []
        for n, element in enumerate(column):
            factor = _splat(builder, element, vector.count)
            after += [builder.call(fma, [factor, b, before[n * len(row) + j]]) for j, b in enumerate(row)]
        return _tile(context, builder, sums, after)

    return sums(a, b, sums), generate


class _BFloat(ir.Type):
    """LLVM's type, which llvmlite does not have."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


@intrinsic
def add_pairs(typingctx, a, b, sums):
    """sums + a * b of pairs of bf16, the second of each first: a column `a` of one pair, a row `b` of a pair of each column."""

    def generate(context, builder, signature, arguments):
        column, row, before = (_vectors(builder, tile) for tile in arguments)
        vector, words = before[0].type, ir.VectorType(ir.IntType(32), before[0].type.count)
        pairs, one = ir.VectorType(_BFloat(), 2 * vector.count), ir.VectorType(ir.IntType(32), 1)
        name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * vector.count}"
        add = builder.module.globals.get(name)
        add = add or ir.Function(builder.module, ir.FunctionType(vector, [vector, pairs, pairs]), name)
        row, after = [builder.bitcast(b, pairs) for b in row], []
        for n, pair in enumerate(column):
            splat = builder.bitcast(_splat(builder, builder.bitcast(pair, one), words.count), pairs)
            after += [builder.call(add, [before[n * len(row) + j], splat, b]) for j, b in enumerate(row)]
        return _tile(context, builder, sums, after)

    return sums(a, b, sums), generate


def _words(element: types.Type):
    """The bits of a tile as elements of another width; each vector of it is one vector."""

    def words(typingctx, tile):
        type_ = Tile(element, tile.rows, tile.lanes * tile.element.bitwidth // element.bitwidth)

        def generate(context, builder, signature, arguments):
            vector = context.get_value_type(type_).element
            return _tile(context, builder, type_, (builder.bitcast(v, vector) for v in _vectors(builder, arguments[0])))

        return type_(tile), generate

    return intrinsic(words)


words_of_16, words_of_32 = _words(types.uint16), _words(types.int32)


@intrinsic
def interleave(typingctx, a, b):
    """The elements of two rows in turns: a[0], b[0], a[1], ..."""
    type_ = Tile(a.element, 1, 2 * a.lanes)

    def generate(context, builder, signature, arguments):
        rows, half = [_vectors(builder, tile) for tile in arguments], type_.piece // 2
        found = []
        for n in range(type_.pieces):
            piece, start = divmod(n * half, a.piece)
            order = _mask([lane for k in range(start, start + half) for lane in (k, a.piece + k)])
            found.append(builder.shuffle_vector(rows[0][piece], rows[1][piece], order))
        return _tile(context, builder, type_, found)

    return type_(a, b), generate


@intrinsic
def transpose(typingctx, tile):
    """Element [i, j] goes to [j, i]: blocks of 1, then 2, 4, ... swap addresses across the diagonal (Eklundh, "A fast
    computer method for matrix transposing", IEEE Transactions on Computers, 1972).
    """

    def generate(context, builder, signature, arguments):
        n = tile.lanes
        rows = _vectors(builder, arguments[0])
        step = 1
        while step < n:
            upper = _mask([n + lane - step if lane & step else lane for lane in range(n)])
            lower = _mask([n + lane if lane & step else lane + step for lane in range(n)])
            for r in (r for r in range(n) if not r & step):
                pair = rows[r], rows[r + step]
                rows[r], rows[r + step] = (builder.shuffle_vector(*pair, m) for m in (upper, lower))
            step *= 2
        return _tile(context, builder, tile, rows)

    return tile(tile), generate


__all__ = [
    "add_pairs", "add_tiles", "contract", "interleave", "load_tile", "splat_tile", "store_tile", "transpose", "words_of_16",
    "words_of_32",
]  # fmt: skip
