"""Plain Triton kernels, as its tutorials write them: one program a row that fits a block, or a block of elements."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

LONGEST = 65536  # elements of a row that one program holds


@triton.jit
def _points(x, y, n, KIND: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    v = tl.load(x + at, inside).to(tl.float32)
    if KIND == "gelu":
        inner = 0.7978845608028654 * (v + 0.044715 * v * v * v)
        v = v * tl.sigmoid(2 * inner)  # 0.5 * (1 + tanh(z)) is sigmoid(2 z)
    else:
        v = tl.maximum(v, 0)
    tl.store(y + at, v.to(y.dtype.element_ty), inside)


@triton.jit
def _softmax(x, y, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64) * n, tl.arange(0, BLOCK)
    v = tl.load(x + row + at, at < n, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + row + at, (e / tl.sum(e, 0)).to(y.dtype.element_ty), at < n)


@triton.jit
def _norm(x, y, gain, bias, n, eps, CENTRED: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64) * n, tl.arange(0, BLOCK)
    inside = at < n
    v = tl.load(x + row + at, inside, other=0).to(tl.float32)
    if CENTRED:
        v = tl.where(inside, v - tl.sum(v, 0) / n, 0)
    v = v / tl.sqrt(tl.sum(v * v, 0) / n + eps) * tl.load(gain + at, inside, other=0).to(tl.float32)
    if CENTRED:
        v += tl.load(bias + at, inside, other=0).to(tl.float32)
    tl.store(y + row + at, v.to(y.dtype.element_ty), inside)


@triton.jit
def _sum(x, y, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    v = tl.load(x + row * n + at, at < n, other=0).to(tl.float32)
    tl.store(y + row, tl.sum(v, 0).to(y.dtype.element_ty))


def points(kind: str):
    def call(x):
        y = torch.empty_like(x)
        _points[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), kind, 1024)
        return y

    return call


def _shape(x) -> dict[str, int]:
    block = triton.next_power_of_2(x.shape[1])
    return {"BLOCK": block, "num_warps": max(1, min(32, block // 512))}


def softmax(x):
    y = torch.empty_like(x)
    _softmax[(x.shape[0],)](x, y, x.shape[1], **_shape(x))
    return y


def layernorm(x, gain, bias):
    y = torch.empty_like(x)
    _norm[(x.shape[0],)](x, y, gain, bias, x.shape[1], 1e-5, True, **_shape(x))
    return y


def rmsnorm(x, gain):
    y = torch.empty_like(x)
    _norm[(x.shape[0],)](x, y, gain, gain, x.shape[1], 1e-6, False, **_shape(x))
    return y


def row_sum(x):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    _sum[(x.shape[0],)](x, y, x.shape[1], **_shape(x))
    return y


KERNELS = {
    "relu": points("relu"), "gelu": points("gelu"), "softmax": softmax, "layernorm": layernorm, "rmsnorm": rmsnorm,
    "sum": row_sum,
}  # fmt: skip


def peer(name: str, width: int):
    """The kernel called `name`, or None where a plain one is not fair: rows that one program cannot hold."""
    if name in ("relu", "gelu") or width <= LONGEST:
        return KERNELS.get(name)
    return None
