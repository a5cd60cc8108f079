"""What rounding does to exact results: inputs move by their last bits, and operators at f64 round to fewer, up or down at random.

Two computations in f32 differ in how they round. How far that moves a result depends on the program: sums cancel, a norm divides
by the spread of a few elements, and a value beside an activation's bound falls on either side. Eager mode is one draw, and
its error may be small by luck, or where a kernel adds in f64. More draws are random arithmetic: Parker, "Monte Carlo Arithmetic",
1997; Vignes, "A stochastic arithmetic for reliable scientific computation", 1993.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import get_decompositions
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

BITS = 24  # of f32
aten = torch.ops.aten
# Operators that add up terms. Adding them one by one in f32 has errors of about half a last bit of the sum of their magnitudes,
# however many there are, if their signs vary (a walk whose steps are rounded): much, where they cancel.
SUMS = [
    aten.sum, aten.mean, aten.var_mean, aten.mm, aten.bmm, aten.addmm, aten.baddbmm, aten.dot, aten.mv, aten.convolution,
    aten.convolution_backward,
]  # fmt: skip
# Operators that are several: sums and the steps between them.
NORMS = get_decompositions(
    [
        aten.native_batch_norm, aten.native_batch_norm_backward, aten.native_layer_norm, aten.native_layer_norm_backward,
        aten.native_group_norm, aten.native_group_norm_backward,
    ]
)  # fmt: skip


class RoundedAtRandom(TorchDispatchMode):
    """Operators at f64 round their results to `bits`. Those that only move, choose or compare numbers change none of them, so that
    a maximum is one of the elements that it is the maximum of."""

    def __init__(self, generator: torch.Generator, bits: int = BITS):
        super().__init__()
        self.generator, self.bits = generator, bits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in NORMS and any(map(_wide, pytree.arg_tree_leaves(args))):
            with self:
                return NORMS[func](*args, **kwargs)
        results = func(*args, **kwargs)
        if func.overloadpacket in SUMS:
            sizes = func(*pytree.tree_map(_size, args), **pytree.tree_map(_size, kwargs))
            for value, size in zip(pytree.arg_tree_leaves(results), pytree.arg_tree_leaves(sizes)):
                if _wide(value):
                    value.add_(size.abs() * (torch.rand(size.shape, generator=self.generator) - 0.5) * last(self.bits))
        for value, described in zip(pytree.arg_tree_leaves(results), _described(func, results)):
            if _wide(value) and (described is None or described.is_write):
                value.copy_(at_random(value, self.generator, self.bits))
        return results


def _wide(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.float64


def _size(value: Any) -> Any:
    return value.abs() if _wide(value) else value


def last(bits: int) -> float:
    """The last of the bits of 1."""
    return 2.0 ** (1 - bits)


def at_random(value: torch.Tensor, generator: torch.Generator, bits: int = BITS) -> torch.Tensor:
    """The number of so many bits below or above each element, as likely; what they hold stays."""
    mantissa, exponent = torch.frexp(value)
    whole = torch.ldexp(mantissa, torch.tensor(bits))
    up = torch.rand(value.shape, generator=generator) < 0.5
    rounded = torch.ldexp(torch.where(up, whole.ceil(), whole.floor()), exponent - bits)
    return torch.where(rounded.isfinite(), rounded, value)


def moved(value: torch.Tensor, generator: torch.Generator, bits: int = BITS) -> torch.Tensor:
    """Each element times 1 plus or minus the last bit of 1."""
    signs = torch.randint(0, 2, value.shape, generator=generator, dtype=value.dtype) * 2 - 1
    return at_random(value * (1 + last(bits) * signs), generator, bits)


def drawn(
    module: torch.nn.Module,
    inputs: dict[str, torch.Tensor],
    run: Callable[..., dict[str, torch.Tensor]],
    seed: int,
    bits: int = BITS,
) -> dict[str, torch.Tensor]:
    """The results of one draw: `run(module, module, inputs)` of a module and inputs at f64, whose parameters are changed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if _wide(parameter):
                parameter.copy_(moved(parameter, generator, bits))
    inputs = {k: moved(v, generator, bits) if _wide(v) else v for k, v in inputs.items()}
    with RoundedAtRandom(generator, bits):
        return run(module, module, inputs)


def _described(func: Any, results: Any) -> list[Any]:
    """For each tensor of an operator's results, whether and how it shares an argument's memory."""
    found = []
    returned = results if isinstance(results, tuple) else (results,)
    for value, kind in zip(returned, func._schema.returns):
        found += [kind.alias_info] * len(pytree.arg_tree_leaves(value))
    return found
