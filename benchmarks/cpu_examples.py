"""Every example on the CPU, with its own inputs, at sizes that take milliseconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.torch_peers import error_share, on_host
from benchmarks.workloads import EXAMPLES, Workload, share_of_bound
from tilec.core.source import read_source
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise

if TYPE_CHECKING:
    from expectations import Example

BYTES = 1 << 25  # of inputs and results, at most


@dataclass(frozen=True)
class Drawn(Workload):
    """An example at `at`."""

    example: Example | None = None
    at: tuple[tuple[str, int], ...] = ()

    @property
    def sizes(self) -> str:
        return " ".join(f"{name}={size}" for name, size in self.at)

    def draw(self, rng: np.random.Generator) -> list[np.ndarray]:
        assert self.example is not None
        return [*self.example.inputs(rng, dict(self.at)).values()]

    def error_share(self, arrays: list[np.ndarray], results: list[np.ndarray]) -> float:
        """The largest share of the allowed error: by the program's error bounds at the example's small sizes, and beside PyTorch in
        wider types at `at`, if PyTorch draws no numbers of its own."""
        import tilec

        e = self.example
        assert e is not None
        inputs = [*e.inputs(np.random.default_rng(0)).values()]
        made = tilec.compile(e.path, op=e.op, target="cpu")(*inputs)
        share = share_of_bound(e.path, e.op, inputs, list(made) if isinstance(made, tuple) else [made], "cpu")
        if e.torch_draws:
            return share
        return max(share, error_share(self.torch, [*map(on_host, arrays)], [*map(on_host, results)], self.bound))


def examples() -> Iterator[Drawn]:
    for name, e in EXAMPLES.items():
        sizes = fitting(e)
        numpy = None if e.torch_draws else partial(_results, e.numpy)  # which makes such numbers in Python, one by one
        yield Drawn(
            f"example {name}", e.path, (), e.torch_eager, e.bound(sizes), numpy, op=e.op, example=e, at=tuple(sizes.items())
        )


def _results(numpy: Callable, *arrays: np.ndarray) -> list[np.ndarray]:
    """In memory of their own: a transpose alone is a view."""
    found = numpy(*arrays)
    return [*map(np.ascontiguousarray, found if isinstance(found, tuple) else (found,))]


def fitting(e: Example) -> dict[str, int]:
    """The sizes for a GPU, the largest of which is halved until inputs and results are no more than BYTES."""
    sizes, tree = dict(e.bench_sizes), parse(read_source(e.path))
    while True:
        special = specialise(tree, e.op, None, sizes, checked=True)
        tensors = (*special.inputs, *special.outputs)
        if sum(t.dtype.bytes * math.prod(n.value for n in t.shape) for t in tensors) <= BYTES:
            return sizes
        sizes[max(sizes, key=lambda name: sizes[name])] //= 2


__all__ = ["Drawn", "examples", "fitting"]
