"""Products of matrices, as sums of products."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilec.core.dtypes import DTYPES
from tilec.torch.aten.table import ONE, ROUNDED, Call, expresses, rounded_to
from tilec.torch.indices import Index
from tilec.torch.program import Tensor, literal, reduction


def product(call: Call, x: Tensor, y: Tensor, access: Callable[[Tensor, Tensor, Index], tuple[str, str]]) -> str:
    """The sum of products over k. Factors that are multiples are read without their number, which multiplies the sum; factors
    that are kept wider than PyTorch's type, or are products of a result that is rounded at once, may be rounded for the product."""
    depth = x.shape[-1]
    if x.dtype == "bool":
        return reduction("any", [depth], lambda k: " and ".join(access(x, y, k[0])))
    (x, one), (y, other) = (t.origin or (t, 1.0) for t in (x, y))
    narrow = next((t.torch_dtype for t in (x, y) if t.dtype != t.torch_dtype), "")
    if (
        not narrow
        and "f32" in (x.dtype, y.dtype)
        and x.dtype != y.dtype
        and rounded_to(call.node) in (x.dtype, y.dtype)
    ):
        narrow = rounded_to(call.node)
    if not narrow and x.dtype == y.dtype == "f32":
        narrow = call.node.meta.get(ROUNDED, "")
    text = reduction("sum", [depth], lambda k: " * ".join(access(x, y, k[0])))
    text = f"({text} using {narrow})" if narrow else text
    return text if one * other == 1 else f"{literal(_short(one * other, call.dtype))} * {text}"


def _short(value: float, dtype: str) -> float:
    """A number without the digits that the type does not have: 0.125 of 0.12500000000000003."""
    short = float(f"{value:.9g}")
    return short if dtype != "f64" and np.float32(short) == np.float32(value) else value


def _accessed(kind: str, x: Tensor, y: Tensor, i: list[Index], k: Index) -> tuple[str, str]:
    """The factors of a matrix product at these subscripts."""
    lead, inner = ([i[0]], i[1:]) if kind in ("bmm", "baddbmm") else ([], i)
    rows = inner[:1] if len(x.shape) - len(lead) == 2 else []
    return x.at(*lead, *rows, k), y.at(*lead, k, *inner[len(rows) :])


def _sum(call: Call, x: Tensor, y: Tensor, i: list[Index]) -> str:
    return product(call, x, y, lambda x, y, k: _accessed(call.name, x, y, i, k))


@expresses("mm bmm", product=True, switch="matmul")
@expresses("mv dot", whole=ONE)
def matmul(call: Call) -> Tensor:
    x, y = (call[n] for n in list(call.named)[:2])
    return call.emit(call.shape, call.dtype, lambda i: _sum(call, x, y, i))


@expresses("addmm", product=True, switch="matmul")
@expresses("baddbmm", product=True, switch="matmul", whole=ONE)
@expresses("addmv", whole=ONE)
@expresses("addr")
@expresses("addbmm", switch="matmul")
def with_addend(call: Call) -> Tensor:
    first, x, y = (call[n] for n in list(call.named)[:3])
    shape, beta, alpha = call.shape, call["beta"], call["alpha"]
    integers = not DTYPES[call.dtype].is_float
    scale = lambda v, text: text if v == 1 else f"{literal(int(v) if integers else float(v))} * {text}"  # noqa: E731

    def expression(i: list[Index]) -> str:
        if call.name == "addr":
            total = f"{x.at(i[0])} * {y.at(i[1])}"
        elif call.name == "addbmm":  # over the batch as well
            inside = lambda k: f"{x.at(k[0], i[0], k[1])} * {y.at(k[0], k[1], i[1])}"  # noqa: E731
            total = reduction("sum", [x.shape[0], x.shape[2]], inside)
            total = f"({total} using {narrow})" if (narrow := call.node.meta.get(ROUNDED)) else total
        else:
            total = _sum(call, x, y, i)
        if beta == 0:
            return scale(alpha, total)
        return f"{scale(alpha, total)} + {scale(beta, first.along(i, shape))}"

    return call.emit(shape, call.dtype, expression)


@expresses("_int_mm")
def integer_product(call: Call) -> Tensor:
    x, y = call["self"], call["mat2"]
    text = lambda i: f"sum[k in 0:{x.shape[1]}](i32({x.at(i[0], 'k')}) * i32({y.at('k', i[1])}))"  # noqa: E731
    return call.emit(call.shape, call.dtype, text)
