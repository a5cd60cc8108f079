"""SIMD vectors for emitted CPU kernels: a Numba type for each LLVM vector type, and the four operations tiles
are made of.

    b = load_f32x16(panel, at)              # sixteen elements, of any alignment
    a = splat_f32x16(x)                     # one element in every lane
    c = fma_f32x16(a, b, c)                 # a * b + c, rounded once
    store_f32x16(tile, at, c)

Numba has no vectors of its own, and LLVM's vectoriser decides about its loops. It will not keep a
tile of sums in registers. A variable of these types is one LLVM value, so that a loop over them is the loop
that the processor runs.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

ELEMENTS = {"f32": (types.float32, ir.FloatType()), "f64": (types.float64, ir.DoubleType())}
BYTES = {"f32": 4, "f64": 8}
WIDTHS = (16, 32, 64)  # bytes of a vector register


class Vector(types.Type):
    """`lanes` elements; opaque to Numba but for the operations below."""

    def __init__(self, element: str, lanes: int):
        self.element, self.lanes = element, lanes
        super().__init__(f"{element}x{lanes}")

    @property
    def llvm(self) -> ir.Type:
        return ir.VectorType(ELEMENTS[self.element][1], self.lanes)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, type_) -> None:
        super().__init__(manager, type_, type_.llvm)


def _at(builder, type_: Vector, pointer, index):
    return builder.bitcast(builder.gep(pointer, [index]), type_.llvm.as_pointer())


def _load(type_: Vector) -> Callable:
    def load(typingctx, pointer, index):
        def generate(context, builder, signature, arguments):
            value = builder.load(_at(builder, type_, *arguments))
            value.align = BYTES[type_.element]
            return value

        return type_(types.CPointer(ELEMENTS[type_.element][0]), types.intp), generate

    return load


def _store(type_: Vector) -> Callable:
    def store(typingctx, pointer, index, value):
        def generate(context, builder, signature, arguments):
            pointer, index, value = arguments
            builder.store(value, _at(builder, type_, pointer, index)).align = BYTES[type_.element]
            return context.get_dummy_value()

        return types.void(types.CPointer(ELEMENTS[type_.element][0]), types.intp, type_), generate

    return store


def _splat(type_: Vector) -> Callable:
    def splat(typingctx, x):
        def generate(context, builder, signature, arguments):
            undefined, word = ir.Constant(type_.llvm, ir.Undefined), ir.IntType(32)
            one = builder.insert_element(undefined, arguments[0], word(0))
            return builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(word, type_.lanes), None))

        return type_(ELEMENTS[type_.element][0]), generate

    return splat


def _fma(type_: Vector) -> Callable:
    def fma(typingctx, a, b, c):
        def generate(context, builder, signature, arguments):
            name = f"llvm.fma.v{type_.lanes}{type_.element}"
            signature = ir.FunctionType(type_.llvm, [type_.llvm] * 3)
            known = builder.module.globals.get(name)
            return builder.call(known or ir.Function(builder.module, signature, name), arguments)

        return type_(type_, type_, type_), generate

    return fma


def _operations() -> dict[str, Callable]:
    found = {}
    for element, width in ((e, w) for e in ELEMENTS for w in WIDTHS):
        type_ = Vector(element, width // BYTES[element])
        for operation in (_load(type_), _store(type_), _splat(type_), _fma(type_)):
            found[f"{operation.__name__}_{type_.name}"] = intrinsic(operation)
    return found


OPERATIONS = _operations()
globals().update(OPERATIONS)

__all__ = list(OPERATIONS)
