"""The kernels that an operator registers with PyTorch's dispatcher: for tensors, for fake ones, for autograd and for autocast.

A call of small tensors is all host time. So the kernel for autograd, which PyTorch asks first, itself runs the program where the
dispatch keys say that nothing else takes part: no transform of `torch.func`, no mode, no tensor of another kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeAlias

import torch
from torch.autograd import forward_ad

from tilec.api import Op
from tilec.dsl.batched_op import Unbatched
from tilec.runtime import buffers
from tilec.torch.failures import short, warn
from tilec.torch.gradient import Gradient
from tilec.torch.signature import Signature
from tilec.torch.sized import SizedCalls
from tilec.torch.types import Call, Context, Results, Size

if TYPE_CHECKING:
    from torch._functorch.autograd_function import VmapInfo
    from torch._ops import OpOverload

Keys: TypeAlias = torch._C.DispatchKeySet | None
"""None where nothing takes part in a call but autograd."""
DEVICES = "CPU", "CUDA"


class Batched(Protocol):
    """An operator with one more dimension, and which of its results have it."""

    @property
    def operator(self) -> Operator: ...

    @property
    def results(self) -> tuple[bool, ...]: ...


class Operator(Protocol):
    """What kernels need of an operator (`tilec/torch/operators.py`)."""

    name: str
    signature: Signature
    compiled: Op
    overload: OpOverload
    gradient: Gradient | None

    @property
    def backward(self) -> Operator | None: ...

    def compiled_for(self, sizes: Mapping[str, int]) -> Op: ...

    def batched(self, inputs: tuple[bool, ...]) -> Batched: ...


_grad_enabled, _any_requires_grad = torch._C.is_grad_enabled, torch._C._any_requires_grad


def _plain() -> frozenset[int]:
    """Dispatch keys of calls in which nothing takes part but tensors in memory, and autograd."""
    key, keys = torch._C.DispatchKey, torch._C.DispatchKeySet
    each = [keys(getattr(key, d)) | keys(getattr(key, f"Autograd{d}")) for d in DEVICES]
    return frozenset(k.raw_repr() for k in (*each, reduce(or_, each)))


def register(operator: Operator, library: torch.library.Library, name: str) -> None:
    calls = SizedCalls(operator.compiled)
    run = calls.run if not operator.signature.keywords else _with_sizes(operator)
    for device in DEVICES:
        library.impl(name, run, device)
        library.impl(name, _autocast(operator, device), f"Autocast{device}")
    library.impl(name, _autograd(operator, run), "Autograd", with_keyset=True)
    torch.library.register_fake(operator.name, _fake(operator), lib=library)
    torch.library.register_vmap(operator.name, _vmap(operator), lib=library)


def _with_sizes(operator: Operator) -> Call:
    """The program for the sizes that a call gives."""
    calls: dict[tuple[int, ...], SizedCalls] = {}

    def run(*arguments: torch.Tensor, **sizes: int) -> Results:
        key = tuple(int(sizes[n]) for n in operator.signature.keywords)
        if (found := calls.get(key)) is None:
            found = calls.setdefault(
                key, SizedCalls(operator.compiled_for(dict(zip(operator.signature.keywords, key))))
            )
        return found.run(*arguments)

    return run


def _fake(operator: Operator) -> Call:
    signature = operator.signature
    single = len(signature.results) == 1

    def fake(*arguments: torch.Tensor, **sizes: Size) -> Results:
        device = next((a.device for a in arguments if a.device.type != "cpu"), arguments[0].device)
        made = [
            torch.empty(shape, dtype=buffers.to_torch(dtype.name), device=device)
            for dtype, shape in signature.made(arguments, sizes)
        ]
        return made[0] if single else tuple(made)

    return fake


# ---- gradients -------------------------------------------------------------------------------------------------------


def _autograd(operator: Operator, run: Call) -> Call:
    plain = _plain()
    recorded = _apply(_function(operator, run))

    def autograd(keys: torch._C.DispatchKeySet, *arguments: torch.Tensor, **sizes: Size) -> Results:
        here = keys.raw_repr() in plain
        if forward_ad._current_level >= 0 or (_grad_enabled() and _any_requires_grad(*arguments)):
            return recorded(None if here else keys, sizes, *arguments)
        return run(*arguments, **sizes) if here else _below(operator, keys, arguments, sizes)

    return autograd


def _below(
    operator: Operator, keys: torch._C.DispatchKeySet, arguments: Sequence[torch.Tensor], sizes: Mapping[str, Size]
) -> Results:
    """The call without gradients, by whatever comes after autograd."""
    with torch._C._AutoDispatchBelowAutograd():
        return operator.overload.redispatch(keys & torch._C._after_autograd_keyset, *arguments, **sizes)


def _apply(function: type[torch.autograd.Function]) -> Call:
    """`function.apply` for the innermost level of `torch.func`: PyTorch comes here for each of them in turn, as it does to its own
    operators' gradients. (`torch.autograd.Function.apply` begins with the outermost.)"""
    from torch._functorch.autograd_function import enable_single_level_autograd_function

    apply: Call = getattr(super(torch.autograd.Function, function), "apply")  # noqa: B009 - PyTorch's stubs do not have it

    def recorded(keys: Keys, sizes: Mapping[str, Size], *arguments: torch.Tensor) -> Results:
        if keys is None:
            return apply(keys, sizes, *arguments)
        with enable_single_level_autograd_function():
            return apply(keys, sizes, *arguments)

    return recorded


def _function(operator: Operator, run: Call) -> type[torch.autograd.Function]:
    """The operator, recorded for its gradient."""
    signature, gradient, backward = operator.signature, operator.gradient, operator.backward
    scalars = [k for k, shape in enumerate(signature.shapes) if not shape]
    dtypes = [t.dtype for t in signature.op.outputs]
    undifferentiable = [
        k
        for k, dtype in enumerate(dtypes)
        if (dtype is not None and not dtype.is_float) or (gradient is not None and k not in gradient.read)
    ]
    determined = [n for n in gradient.sizes if n not in signature.keywords] if gradient is not None else []

    def forward(ctx: Context, keys: Keys, sizes: Mapping[str, Size], *arguments: torch.Tensor) -> Results:
        made = run(*arguments, **sizes) if keys is None else _below(operator, keys, arguments, sizes)
        results = (made,) if isinstance(made, torch.Tensor) else made
        if undifferentiable:
            ctx.mark_non_differentiable(*(results[k] for k in undifferentiable))
        if gradient is not None:
            values = {"input": arguments, "result": results}
            ctx.save_for_backward(*(values[s.kind][s.number] for s in gradient.sources if s.kind in values))
            all_sizes = signature.solve([tuple(a.shape) for a in arguments], sizes) if determined else sizes
            ctx.sizes = {n: all_sizes[n] for n in gradient.sizes} if gradient.sizes else {}
            ctx.devices = {k: arguments[k].device for k in scalars} if scalars else {}
        return made

    def back(ctx: Context, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if gradient is None or backward is None:
            raise RuntimeError(f"{operator.name} has no gradient: it was made without backward=")
        found: list[torch.Tensor | None] = [None] * (2 + len(signature.inputs))
        for k, needed in enumerate(ctx.needs_input_grad[2:]):
            if needed and k not in gradient.targets:
                name = signature.inputs[k]
                why = f"its backward= has no result `{name}_grad`"
                raise RuntimeError(f"{operator.name} has no gradient of `{name}`: {why}")
        saved = iter(ctx.saved_tensors)
        given = [grads[s.number] if s.kind == "gradient" else next(saved) for s in gradient.sources]
        made = backward.overload(*given, **ctx.sizes)
        for n, (k, value) in enumerate(zip(gradient.targets, (made,) if len(gradient.targets) == 1 else made)):
            if ctx.needs_input_grad[k + 2]:
                if gradient.summed and gradient.summed[n]:
                    value = value.sum(gradient.summed[n])
                found[k + 2] = value if k not in ctx.devices else value.to(ctx.devices[k])
        return tuple(found)

    def jvp(ctx: Context, *tangents: torch.Tensor) -> NoReturn:
        raise RuntimeError(f"{operator.name} has no forward-mode gradient: backward= is of reverse mode")

    methods = {"forward": staticmethod(forward), "backward": staticmethod(back), "jvp": staticmethod(jvp)}
    return type(f"{signature.name}_recorded", (torch.autograd.Function,), methods)


# ---- vmap ------------------------------------------------------------------------------------------------------------


def _vmap(operator: Operator) -> Callable[..., tuple[Results, int | tuple[int | None, ...] | None]]:
    """One call of the operator with one more dimension; where there is no such operator, a call for each of its indices, which is
    reported, as PyTorch does for its own operators."""
    single = len(operator.signature.results) == 1

    def vmap(
        info: VmapInfo, dims: Sequence[int | None], *arguments: torch.Tensor, **sizes: Size
    ) -> tuple[Results, int | tuple[int | None, ...] | None]:
        given = [a if d is None else a.movedim(d, 0) for a, d in zip(arguments, dims)]
        try:
            found = operator.batched(tuple(d is not None for d in dims))
        except Unbatched as why:
            warn(f"tilec: vmap calls {operator.name} once for each index, since {short(str(why))}")
            made = [
                operator.overload(*(a if d is None else a[n] for a, d in zip(given, dims)), **sizes)
                for n in range(info.batch_size)
            ]
            if single:
                return torch.stack(made), 0
            return tuple(map(torch.stack, zip(*made))), (0,) * len(operator.signature.results)
        made = found.operator.overload(*given, **sizes)
        where = tuple(0 if more else None for more in found.results)
        return (made, where[0]) if single else (made, where)

    return vmap


# ---- autocast --------------------------------------------------------------------------------------------------------


def _autocast(operator: Operator, device: str) -> Call:
    """Has floats converted to the types that the program declares: it says itself what is computed in which type."""
    types = [buffers.to_torch(t.name) if t is not None and t.is_float else None for t in operator.signature.types]
    keys = reduce(or_, (torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{d}")) for d in DEVICES))

    def autocast(*arguments: torch.Tensor, **sizes: Size) -> Results:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            given = [
                a.to(t) if t is not None and a.dtype is not t and a.dtype.is_floating_point else a
                for a, t in zip(arguments, types)
            ]
            return operator.overload(*given, **sizes)

    return autocast
