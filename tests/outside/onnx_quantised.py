"""ONNX operators on quantised numbers: integers that stand for multiples of a scale."""

from __future__ import annotations

from tests.outside.onnx_layers import convolved, matmul
from tests.outside.onnx_table import Node, expressed
from tilec.torch.program import Graph, Tensor, Unsupported

LIMITS = {"u8": (0, 255), "i8": (-128, 127), "u16": (0, 65535), "i16": (-32768, 32767)}
LARGEST = {"f8e4m3": 448, "f8e5m2": 57344}


def _at(t: Tensor, n: Node, x: Tensor) -> str:
    """The scale or the zero point of an element: one for all, one along an axis, or one for each block along it."""
    if t.shape in ((), (1,)):
        return t.at(*("0" for _ in t.shape))
    axis, block = n.attribute("axis", 1) % len(x.shape), n.attribute("block_size", 0)
    if block:
        return t.at(*(f"i{d} // {block}" if d == axis else f"i{d}" for d in range(len(x.shape))))
    return t.at(f"i{axis}")


@expressed("DequantizeLinear")
def dequantised(g: Graph, n: Node) -> Tensor:
    x, scale = n.x(0), n.x(1)
    zero = f" - f32({_at(n.x(2), n, x)})" if 2 in n else ""
    return g.emit(x.shape, n.dtype(), lambda i: f"(f32({x.at(*i)}){zero}) * f32({_at(scale, n, x)})")


@expressed("QuantizeLinear")
def quantised(g: Graph, n: Node) -> Tensor:
    x, scale, to = n.x(0), n.x(1), n.dtype()
    zero = f" + f32({_at(n.x(2), n, x)})" if 2 in n else ""
    ratio = f"f32({x.at(*(f'i{d}' for d in range(len(x.shape))))}) / f32({_at(scale, n, x)})"
    if to in LARGEST:
        top = LARGEST[to]
        return g.emit(x.shape, to, lambda i: f"{to}(clamp({ratio}{zero}, -{top}, {top}))")
    low, high = LIMITS[to]
    return g.emit(x.shape, to, lambda i: f"{to}(clamp(round({ratio}){zero}, {low}, {high}))")


def _centred(g: Graph, x: Tensor, zero: Tensor | None, along: int) -> Tensor:
    """Integers without their zero point, of which there is one for all, or one for each position along a dimension."""
    if zero is None:
        return g.map("i32({0})", x, dtype="i32")
    if zero.shape in ((), (1,)) or len(zero.shape) > 1:
        return g.map("i32({0}) - i32({1})", x, zero, dtype="i32")
    return g.emit(x.shape, "i32", lambda i: f"i32({x.at(*i)}) - i32({zero.at(i[along])})")


def _rounded(g: Graph, n: Node, sums: Tensor, scales: list[Tensor], zero: Tensor, along: int) -> Tensor:
    """Sums of products of integers as multiples of the result's scale."""
    to = n.dtype()
    low, high = LIMITS[to]
    of = lambda t: f"f32({t.at(f'i{along}' if t.shape != (1,) else '0') if t.shape else t.at()})"  # noqa: E731
    a, b, c = map(of, scales)
    text = lambda i: f"round(f32({sums.at(*i)}) * ({a} * {b} / {c}) + {of(zero)})"  # noqa: E731
    return g.emit(sums.shape, to, lambda i: f"{to}(clamp({text(i)}, {low}, {high}))")


@expressed("MatMulInteger")
def matmul_integer(g: Graph, n: Node) -> Tensor:
    a = _centred(g, n.x(0), n.x(2) if 2 in n else None, len(n.x(0).shape) - 2)
    b = _centred(g, n.x(1), n.x(3) if 3 in n else None, len(n.x(1).shape) - 1)
    return matmul(g, a, b, "i32")


@expressed("QLinearMatMul")
def quantised_matmul(g: Graph, n: Node) -> Tensor:
    a, b = _centred(g, n.x(0), n.x(2), len(n.x(0).shape) - 2), _centred(g, n.x(3), n.x(5), len(n.x(3).shape) - 1)
    sums = matmul(g, a, b, "i32")
    if any(t.shape not in ((), (1,)) for t in (n.x(1), n.x(4), n.x(6), n.x(7))):
        raise Unsupported("QLinearMatMul: scales by row have no case")
    return _rounded(g, n, sums, [n.x(1), n.x(4), n.x(6)], n.x(7), 0)


@expressed("ConvInteger")
def convolution_integer(g: Graph, n: Node) -> Tensor:
    x, w = _centred(g, n.x(0), n.x(2) if 2 in n else None, 1), _centred(g, n.x(1), n.x(3) if 3 in n else None, 0)
    return convolved(g, n, x, w, None, "i32")


@expressed("QLinearConv")
def quantised_convolution(g: Graph, n: Node) -> Tensor:
    x, w = _centred(g, n.x(0), n.x(2), 1), _centred(g, n.x(3), n.x(5), 0)
    sums = convolved(g, n, x, w, n.x(8) if 8 in n else None, "i32")
    return _rounded(g, n, sums, [n.x(1), n.x(4), n.x(6)], n.x(7), 1)
