"""A partition's program as several calls, between which values are freed: that of a training step, which holds all activations.

A value is freed once nobody has it. Whoever runs a graph therefore hands a partition's values over in a list that is emptied.
Temporaries lie in memory of PyTorch's, which other programs and operations have before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import torch

from tilec.core.dtypes import U8
from tilec.driver import fast_call
from tilec.driver.executable import Executable
from tilec.runtime.segments import Cut
from tilec.torch.types import Call, Results

if TYPE_CHECKING:
    from tilec.runtime.cpu.call import Strided

New = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class _Call:
    """A segment: what it is called with, what it makes, and what is not needed after it, by numbers of arrays. The first one is
    called with the partition's values, of which it takes those of the numbers `takes`."""

    function: Call
    takes: tuple[int, ...]
    makes: tuple[int, ...]
    done: tuple[int, ...]


class Segmented:
    """`run(values)` computes a partition from the list of its values, which it empties. `whole` does so for values that lie
    otherwise than they did when the graph was traced. `arrays`: how many there are. `cut` has the bytes that they need."""

    def __init__(self, calls: Sequence[_Call], arrays: int, results: Sequence[int], whole: Call, cut: Cut):
        self.calls, self._arrays, self._results, self._whole, self.cut = calls, arrays, results, whole, cut

    def __call__(self, *values: torch.Tensor) -> Results:
        return self.run(list(values))

    def run(self, values: list[torch.Tensor]) -> Results:
        first, *others = self.calls
        memory: list[torch.Tensor | None] = [None] * self._arrays
        for number, k in enumerate(first.takes):
            memory[number] = values[k]
        try:
            self._after(memory, first.function(*values), first)
        except _Misfit:
            return self._whole(*values)
        values.clear()
        for call in others:  # nothing but `memory` has what calls make
            self._after(memory, call.function(*[memory[n] for n in call.takes]), call)
        results = [found for n in self._results if (found := memory[n]) is not None]
        return results[0] if len(results) == 1 else results

    @staticmethod
    def _after(memory: list[torch.Tensor | None], made: Results, call: _Call) -> None:
        for n, tensor in zip(call.makes, (made,) if isinstance(made, torch.Tensor) else made):
            memory[n] = tensor
        for n in call.done:
            memory[n] = None


class _Misfit(Exception):
    """Values do not lie as a program expects them."""


def _misfit(*values: torch.Tensor) -> NoReturn:
    raise _Misfit


def prepare(
    built: Executable, device: str | int, values: int, takes: Sequence[int], inputs: Sequence[Strided], outputs: Sequence[Strided],
    new: Sequence[New], empty: Callable[..., New], freed: Collection[int], whole: Call,
) -> Segmented | None:  # fmt: skip
    """A program's segments as a function of so many values; all else is as in `fast_call.prepare`. `empty` makes
    functions like those of `new` from a shape, strides, a type and a device. `freed`: inputs that are freed when they are let go.
    None where machine code cannot call them, or where there is one segment without a workspace, which is the program itself."""
    cut, parts = built.cut(freed)
    if len(parts) == 1 and not cut.segments[0].workspace:
        return None
    lies, count = [*inputs, *outputs], len(inputs)
    calls: list[_Call] = []
    for segment, part in zip(cut.segments, parts):
        named = [*zip(segment.inputs, part.compiled.inputs), *zip(segment.outputs, part.outputs)]
        how = [lies[n] if n < len(lies) else (U8, shape, (1,)) for n, (_, _, shape) in named]
        made = [
            new[n - count] if n < len(lies) else empty(shape, (1,), torch.uint8, device)
            for n, (_, _, shape) in zip(segment.outputs, part.outputs)
        ]
        given = len(segment.inputs)
        number, numbers = (given, range(given)) if calls else (values, takes)
        function = fast_call.prepare(part, device, number, numbers, how[:given], how[given:], made, _misfit)
        if function is None:
            return None
        calls.append(_Call(function, segment.inputs if calls else tuple(takes), segment.outputs, segment.done))
    arrays = 1 + max(n for segment in cut.segments for n in (*segment.inputs, *segment.outputs))
    return Segmented(calls, arrays, range(count, len(lies)), whole, cut)
