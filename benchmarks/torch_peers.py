"""PyTorch on the GPU: inputs drawn there, the compiled form of a peer, and tilec's results held against wider types."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.workloads import Input, torch

NAMES = {
    "f8e4m3": "float8_e4m3fn", "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "i8": "int8",
    "i32": "int32", "i64": "int64",
}  # fmt: skip


def dtype_of(name: str):
    return getattr(torch, NAMES[name])


def draw(described: Input, generator, device: str = "cuda"):
    """What `workloads.draw` does in NumPy, made on the device."""
    shape, dtype = described.shape, dtype_of(described.dtype)
    if described.below:
        found = torch.randint(0, described.below, shape, dtype=dtype, device=device, generator=generator)
        return found.sort(-1).values if described.ascend else found
    if described.scale == 0:
        return torch.full(shape, described.mean, dtype=dtype, device=device)
    values = torch.randn(shape, dtype=torch.float32, device=device, generator=generator)
    return values.mul_(described.scale).add_(described.mean).to(dtype)


def on_host(array: np.ndarray):
    """The same memory for PyTorch, which does not know the narrow floats of NumPy."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    if array.dtype.name == "float8_e4m3fn":
        return torch.from_numpy(array.view(np.uint8)).view(torch.float8_e4m3fn)
    return torch.from_numpy(array)


def to_device(array: np.ndarray):
    return on_host(array).cuda()


def compiled(peer: Callable, tensors: list) -> Callable:
    """`peer` by torch.compile, which has run once."""
    torch._dynamo.reset()  # or the eighth row is refused, and runs eagerly
    fast = torch.compile(peer, dynamic=False)
    fast(*tensors)
    torch.cuda.synchronize()
    return fast


def error_share(peer: Callable, tensors: list, results: list, bound) -> float:
    """The error's largest share of what is allowed, against PyTorch in wider types: 16-bit inputs as f32, beside which f32 stays,
    and f32 alone as f64."""
    return share_of(expected(peer, tensors), results, bound)


def expected(peer: Callable, tensors: list) -> list:
    wider = dict.fromkeys((torch.bfloat16, torch.float16, torch.float8_e4m3fn), torch.float32)
    if not any(t.dtype in wider for t in tensors):
        wider[torch.float32] = torch.float64
    found = peer(*(t.to(wider.get(t.dtype, t.dtype)) for t in tensors))
    return list(found) if isinstance(found, (tuple, list)) else [found]


def share_of(wide: list, results: list, bound) -> float:
    """`error_share` where the wider results are there already."""
    worst = 0.0
    for result, value in zip(results, wide, strict=True):
        if result.shape != value.shape:
            return float("inf")
        if not result.dtype.is_floating_point:
            worst = max(worst, 0.0 if torch.equal(result, value.to(result.dtype)) else float("inf"))
            continue
        for a, b in zip(_pieces(result), _pieces(value)):
            # PyTorch's f32 is itself off by as much again
            slack = 2 if value.dtype == torch.float32 else 1
            allowed = slack * (bound.rtol * b.double().abs() + bound.atol)
            share = torch.where(a == b, 0.0, (a.double() - b.double()).abs() / allowed)
            worst = max(worst, float(torch.nan_to_num(share, nan=float("inf")).max()) if share.numel() else 0.0)
    return worst


def _pieces(tensor, size: int = 2**26):
    return tensor.reshape(-1).split(size) if tensor.ndim else (tensor,)
