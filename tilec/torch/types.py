"""Types of what PyTorch's graphs and their functions compute with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias, TypedDict

import torch
from torch import fx
from torch._ops import OpOverload

Symbol: TypeAlias = torch.SymInt | torch.SymFloat | torch.SymBool
"""A number that a graph is traced without."""
Number = bool | int | float
Size: TypeAlias = int | torch.SymInt
Value: TypeAlias = torch.Tensor | Number | Symbol | None
"""What a graph's placeholder stands for, and what its function is given."""
Results: TypeAlias = torch.Tensor | Sequence[torch.Tensor]
Call: TypeAlias = Callable[..., Results]
"""A graph of one partition, or a program, as a function of its values: it returns a tensor, or several."""
Input: TypeAlias = torch.Tensor | int | torch.SymInt | None
Run: TypeAlias = Callable[[list[Input]], list[torch.Tensor | int | None]]
"""A whole graph as AOTAutograd calls it: it empties the list of its values."""
Attribute: TypeAlias = Callable[[str], torch.Tensor | torch.nn.Module | None]
"""A graph's constants by name."""
Decomposition: TypeAlias = Callable[..., torch.Tensor | Sequence[torch.Tensor]]
"""What an operation is made of. It may return NotImplemented: the operation then stays."""


class Context(Protocol):
    """What PyTorch keeps of a forward call for its backward call (`torch.autograd.function.FunctionCtx`)."""

    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[torch.Tensor, ...]
    sizes: Mapping[str, Size]
    devices: Mapping[int, torch.device]

    def save_for_backward(self, *tensors: torch.Tensor) -> None: ...

    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None: ...


class Compiler(Protocol):
    """What AOTAutograd calls for each of its graphs."""

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Input]) -> Run: ...


class Compilers(TypedDict):
    """What AOTAutograd is called with (`aot_module_simplified`)."""

    fw_compiler: Compiler
    bw_compiler: Compiler
    inference_compiler: Compiler
    decompositions: dict[OpOverload, Decomposition]
    partition_fn: Callable[..., tuple[fx.GraphModule, fx.GraphModule]]
    keep_inference_input_mutations: bool


class Joint(TypedDict):
    """What AOTAutograd says of a joint graph that is to be cut in two: how many of its outputs are forward's."""

    num_fwd_outputs: int
    static_lifetime_input_indices: list[int] | None
