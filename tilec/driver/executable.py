"""A compiled op that can run: its machine code, and the launch of its backend."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from tilec.core.diagnostics import CallError
from tilec.core.dtypes import U8
from tilec.driver.kernel import Kernel
from tilec.driver.recipe import Compiled, Recipe
from tilec.runtime.program import Emitted, Step

if TYPE_CHECKING:
    from tilec.runtime.buffers import Buffer
    from tilec.runtime.cpu.launch import CpuProgram
    from tilec.runtime.cuda.program import DeviceProgram, Graph
    from tilec.runtime.segments import Cut, Segment

T = TypeVar("T")
Pick = Callable[[Sequence[int]], Sequence[int]]
"""From addresses of inputs, outputs and temporaries to those of a step."""


class Executable:
    """The parts that both backends share: names and shapes of results, and the kernels as `Op.kernels` shows them."""

    def __init__(self, recipe: Recipe):
        self.recipe, self.target = recipe, recipe.target
        self._parts: dict[Hashable, Any] = {}
        self.deferred_checks = False  # whether a later call raises a GPU's failed run-time check
        self.compiled = recipe.compiled()
        self.emitted, self.outputs = self.compiled.emitted, self.compiled.outputs

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        predicted = self.compiled.predicted_us
        return tuple(
            Kernel(name, k.text, k.grid, k.threads, k.shared, predicted.get(name, 0.0))
            for name, k in self.emitted.launched.items()
        )

    @property
    def registers(self) -> dict[str, int]:
        """The registers that a thread of each kernel takes, by the plan's name of it, of those that were compiled for a GPU."""
        return {}

    @property
    def runs(self) -> int:
        """Calls on a GPU so far, at any size."""
        return 0

    whole: Executable | None = None
    """What serves all sizes of a class, of which this is what it is at some `sizes`."""
    sizes: Mapping[str, int] | None = None

    @cached_property
    def program(self) -> CpuProgram:
        """What runs on the CPU."""
        raise NotImplementedError

    def on(self, device: int) -> DeviceProgram:
        """What runs on the GPU of this number."""
        raise NotImplementedError

    def load(self) -> None:
        """Loads the machine code; `run` does it otherwise."""

    def complete(self) -> None:
        """Waits until all machine code is compiled; `run` does it otherwise."""

    def run(self, inputs: list[Buffer], outputs: list[Buffer], stream: object) -> None:
        """Runs on any buffers. Copies those that kernels cannot read or write as they are."""
        raise NotImplementedError

    def check(self) -> None:
        """Raises CallError for a failed run-time check that no call has raised. On the CPU every call raises its own."""

    def graph(self, inputs: list[Buffer], outputs: list[Buffer], result: object) -> Graph:
        raise CallError("graphs are for arrays on the GPU")

    def first(self, count: int) -> Executable:
        """The same executable with its first `count` steps only, to measure one kernel after another."""
        return self._part(replace(self.emitted, steps=self.emitted.steps[:count]))

    def with_scratch_results(self, outputs: Collection[int]) -> Executable:
        """This, with temporaries in memory of results, too (`runtime/temporaries.py`): of those of these numbers, which are dense
        and no input's memory."""
        from tilec.runtime.temporaries import results_as_scratch

        def part() -> Executable:
            sizes = {n: dtype.bytes * prod(shape) for n, (_, dtype, shape) in enumerate(self.outputs) if n in outputs}
            found = results_as_scratch(self.emitted, sizes)
            return self if found == self.emitted else self._part(found)

        return self._memoised(("scratch results", *outputs), part)

    def cut(self, freed: Collection[int]) -> tuple[Cut, list[Executable]]:
        """The program's segments (`runtime/segments.py`), each as an executable. `freed`: inputs that are freed when the caller
        lets them go."""
        from tilec.runtime.segments import cut

        arrays, inputs = [*self.compiled.inputs, *self.outputs], len(self.compiled.inputs)
        sizes = [dtype.bytes * prod(shape) for _, dtype, shape in arrays]
        arrays += [(f"temporary {n}", U8, (t.bytes,)) for n, t in enumerate(self.emitted.temporaries)]

        def part(segment: Segment) -> Executable:
            named = [*arrays, ("workspace", U8, (segment.workspace,))]
            given, made = (tuple(named[n] for n in numbers) for numbers in (segment.inputs, segment.outputs))
            return self._part(segment.emitted, replace(self.compiled, inputs=given, outputs=made))

        def parts() -> tuple[Cut, list[Executable]]:
            found = cut(self.emitted, sizes[:inputs], sizes[inputs:], freed)
            return found, [part(s) for s in found.segments]

        return self._memoised(("cut", *freed), parts)

    def at(self, sizes: Mapping[str, int]) -> Executable:
        """What a class of sizes has been compiled to, at some of them."""
        if self.recipe.of is None:
            return self
        compiled = self.compiled.at(sizes)
        part = self._part(compiled.emitted, compiled)
        part.whole, part.sizes = self, dict(sizes)
        return part

    def _memoised(self, key: Hashable, make: Callable[[], T]) -> T:
        """What was made for the key before, or is now: partitions of equal text have one executable, and load its kernels once."""
        if (found := self._parts.get(key)) is None:
            found = self._parts.setdefault(key, make())
        return found

    def _part(self, emitted: Emitted, compiled: Compiled | None = None) -> Executable:
        """An executable of some of the launches, or of other temporaries; `compiled` names its inputs and outputs."""
        part = copy.copy(self)
        part.__dict__.pop("steps", None)
        part._parts = {}
        part.emitted, part.compiled = emitted, compiled or self.compiled
        part.outputs = part.compiled.outputs
        return part

    @cached_property
    def steps(self) -> tuple[tuple[Step, Pick], ...]:
        """Every step, and a function that picks its addresses from those of inputs, outputs and temporaries."""
        begin = {"input": 0, "output": len(self.compiled.inputs)}
        begin["temporary"] = begin["output"] + len(self.outputs)
        picks = ([begin[s.kind] + s.number for s in step.slots] for step in self.emitted.steps)
        return tuple((step, _picker(numbers)) for step, numbers in zip(self.emitted.steps, picks))


def _picker(numbers: list[int]) -> Pick:
    if len(numbers) > 1:
        return itemgetter(*numbers)
    return lambda memory: [memory[n] for n in numbers]


