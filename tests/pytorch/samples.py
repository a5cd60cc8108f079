"""PyTorch's samples of operators and modules (`op_db`, `module_db`) as cases: each a function of tensors, and the tensors.

The operators' errors (`error_inputs`) are cases too: what eager mode refuses is to be refused.
"""

from __future__ import annotations

import contextlib
import copy
import io
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch.utils import _pytree as pytree

UNDEFINED = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "empty_permuted", "resize_", "resize_as_")
"""Operators whose elements have no promised value."""
WIDER = {
    torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64, torch.complex64: torch.complex128
}  # fmt: skip


@dataclass
class Case:
    """`call(*values)` of values that are tensors among others. `refused`: whether eager mode raises an error."""

    name: str
    call: Callable[..., Any]
    values: list[Any]
    refused: bool = False

    @property
    def undefined(self) -> bool:
        return self.name.split()[0] in UNDEFINED

    def given(self) -> list[Any]:
        """The values, their tensors in memory of their own that lies alike."""
        return _with_tensors(self.values, _copied)

    def without_gradients(self) -> Case:
        return replace(self, values=_with_tensors(self.values, torch.Tensor.detach))

    def wide(self) -> list[Any]:
        """The values at f64."""
        return [WIDER.get(v, v) if isinstance(v, torch.dtype) else v for v in _with_tensors(self.values, _widened)]


def _with_tensors(values: list[Any], change: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
    made: dict[int, torch.Tensor] = {}  # one tensor twice is one tensor twice
    return [made.setdefault(id(v), change(v)) if isinstance(v, torch.Tensor) else v for v in values]


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach()
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized:
        made = plain.clone()
    elif any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape)):
        made = plain
    else:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(plain)
    return made.requires_grad_(tensor.requires_grad)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return _copied(tensor).detach().to(WIDER.get(tensor.dtype, tensor.dtype)).requires_grad_(tensor.requires_grad)


# ---- operators -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """Which samples: of each operator every `every`-th, from the `seed`-th on, one at least; of this `dtype`; `strided`: with
    tensors that have gaps; `inplace`: the operator's variant that changes its first tensor."""

    every: int = 1
    seed: int = 0
    dtype: str = "float32"
    strided: bool = False
    inplace: bool = False

    def of(self, found: list) -> list[tuple[int, Any]]:
        chosen = list(enumerate(found))
        return chosen[self.seed % self.every :: self.every] or chosen[-1:]


@cache
def operators() -> dict[str, Any]:
    """`OpInfo`s by a name of their own."""
    from torch.testing._internal import common_methods_invocations as invocations

    # Some set the generator's seed within the operator, which a compiled graph does when it is traced.
    invocations.wrapper_set_seed = lambda function, *args, **kwargs: function(*args, **kwargs)
    found: dict[str, Any] = {}
    for info in invocations.op_db:
        name = f"{info.name}{'.' if info.variant_test_name else ''}{info.variant_test_name}"
        found[f"{name}_{len(found)}" if name in found else name] = info
    return found


def of_operator(name: str, choice: Choice) -> Iterator[Case]:
    info, dtype = operators()[name], getattr(torch, choice.dtype)
    function = info.get_inplace() if choice.inplace else info.op
    if dtype not in info.dtypes or function is None:
        return
    gradients = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu") and not choice.inplace
    torch.manual_seed(choice.seed)
    with _silent():
        samples = list(info.sample_inputs("cpu", dtype, requires_grad=gradients))
        for number, sample in choice.of(samples):
            if choice.strided and all(v.layout is torch.strided for v in _tensors(sample)):
                sample = sample.noncontiguous()
            if not (choice.inplace and sample.broadcasts_input):
                yield _case(f"{name} {number}", function, sample)
        if info.error_inputs_func is not None and not choice.inplace and choice.dtype == "float32":
            for number, error in choice.of(list(info.error_inputs("cpu"))):
                yield _case(f"{name} error {number}", function, error.sample_input, refused=True)


def _tensors(sample: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return [v for v in leaves if isinstance(v, torch.Tensor)]


def _case(name: str, function: Callable[..., Any], sample: Any, refused: bool = False) -> Case:
    values, tree = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))

    def call(*values: Any) -> Any:
        first, rest, named = pytree.tree_unflatten(values, tree)
        return function(first, *rest, **named)

    return Case(name, call, values, refused)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


# ---- modules ---------------------------------------------------------------------------------------------------------


@cache
def modules() -> dict[str, Any]:
    """`ModuleInfo`s by name."""
    from torch.testing._internal.common_modules import module_db

    return {info.name: info for info in module_db if not info.is_lazy}


def of_module(name: str, choice: Choice) -> Iterator[Case]:
    """Parameters and buffers are tensors of the case beside the module's inputs."""
    info, dtype = modules()[name], getattr(torch, choice.dtype)
    for training in (True, False) if info.train_and_eval_differ else (True,):
        torch.manual_seed(choice.seed)
        with _silent():
            found = list(info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training))
        for number, given in choice.of([g for g in found if g.forward_input is not None]):
            made = given.constructor_input
            module = info.module_cls(*made.args, **made.kwargs).to(dtype).train(training)
            yield _module_case(f"{name} {'training' if training else 'evaluation'} {number}", module, given.forward_input)


def _module_case(name: str, module: torch.nn.Module, given: Any) -> Case:
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    values, tree = pytree.tree_flatten((list(state.values()), given.args, given.kwargs))
    names = list(state)

    def call(*values: Any) -> Any:
        own, args, kwargs = pytree.tree_unflatten(values, tree)
        return torch.func.functional_call(copy.copy(module), dict(zip(names, own)), args, kwargs)

    return Case(name, call, values)
