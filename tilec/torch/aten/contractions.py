"""Products of matrices, as sums of products."""

from __future__ import annotations

from tilec.core.dtypes import DTYPES
from tilec.torch.aten.table import Call, expresses
from tilec.torch.indices import name
from tilec.torch.program import Tensor, literal


def product(a: str, b: str, depth: int, x: Tensor, y: Tensor) -> str:
    """The sum of products over k. A factor that is kept wider than its type may be rounded to it for the product."""
    narrow = next((t.torch_dtype for t in (x, y) if t.dtype != t.torch_dtype), "")
    using = f" using {narrow}" if narrow else ""
    if x.dtype == "bool":
        return f"any[k in 0:{depth}]({a} and {b})"
    if depth == 1:
        return f"{a} * {b}"
    return f"sum[k in 0:{depth}]({a} * {b}){using}"


@expresses("mm bmm mv dot vdot")
def matmul(call: Call) -> Tensor:
    x, y = (call[n] for n in list(call.named)[:2])
    return call.emit(call.shape, call.dtype, lambda i: _sum(call.name, x, y, i))


def _sum(kind: str, x: Tensor, y: Tensor, i: list) -> str:
    depth = x.shape[-1]
    k = name("k", depth)
    lead, inner = ([i[0]], i[1:]) if kind in ("bmm", "baddbmm") else ([], i)
    rows = inner[:1] if len(x.shape) - len(lead) == 2 else []
    columns = inner[len(rows) :]
    return product(x.at(*lead, *rows, k), y.at(*lead, k, *columns), depth, x, y)


@expresses("addmm baddbmm addmv addr")
def with_addend(call: Call) -> Tensor:
    first, x, y = (call[n] for n in list(call.named)[:3])
    shape, beta, alpha = call.shape, call["beta"], call["alpha"]
    integers = not DTYPES[call.dtype].is_float
    scale = lambda v, text: text if v == 1 else f"{literal(int(v) if integers else float(v))} * {text}"  # noqa: E731

    def expression(i: list) -> str:
        if call.name == "addr":
            total = f"{x.at(i[0])} * {y.at(i[1])}"
        else:
            total = _sum(call.name, x, y, i)
            total = f"({total})" if "using" in total or not total.startswith("sum[") else total
        if beta == 0:
            return scale(alpha, total)
        return f"{scale(alpha, total)} + {scale(beta, first.along(i, shape))}"

    return call.emit(shape, call.dtype, expression)


@expresses("_int_mm")
def integer_product(call: Call) -> Tensor:
    x, y = call["self"], call["mat2"]
    text = lambda i: f"sum[k in 0:{x.shape[1]}](i32({x.at(i[0], 'k')}) * i32({y.at('k', i[1])}))"  # noqa: E731
    return call.emit(call.shape, call.dtype, text)
