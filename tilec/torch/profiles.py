"""Ranges of partitions for `torch.profiler`, which sees operators of PyTorch, and none of a partition's machine code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import torch
from torch import fx
from torch.profiler import record_function

from tilec.torch.segments import Segmented
from tilec.torch.types import Call

P = ParamSpec("P")
T = TypeVar("T")

ENABLED: Callable[[], bool] = torch._C._autograd._profiler_enabled
"""Whether a profiler is active: some tens of nanoseconds."""
NAMED = 3  # operations of a label


def label_of(name: str, nodes: Sequence[fx.Node]) -> str:
    """What a profiler shows for a partition: its name, and its operations if they are few, or the first and the last."""
    names = [n.name for n in nodes]
    shown = ", ".join(names) if len(names) <= NAMED else f"{names[0]} to {names[-1]}, {len(names)} operations"
    return f"tilec {name}: {shown}"


def profiled(call: Call | Segmented, label: str) -> object:
    """A partition's call, or its `Segmented`, within a range of that label."""
    if isinstance(call, Segmented):
        return _Run(_within(call.run, label))
    return _within(call, label)


def _within(run: Callable[P, T], label: str) -> Callable[P, T]:
    def within(*values: P.args, **named: P.kwargs) -> T:
        with record_function(label):
            return run(*values, **named)

    return within


class _Run:
    """What a graph's function asks of a `Segmented`."""

    def __init__(self, run: Callable[..., object]):
        self.run = run
