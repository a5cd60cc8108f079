"""Which small kernels share a launch: the blocks of one follow those of another (`passes/cuda/launches.py`).

A launch takes time of its own, however little it does, and a few blocks leave most multiprocessors idle. Kernels of which none is
computed from another can run at once, if all their blocks fit the machine. Each block has the threads, the registers and the shared
memory that any of them needs. A kernel that waits for another keeps what it reads for as long: no launch is shared that makes the
program need more memory for its temporaries at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count

import numpy as np

from tilec.analysis.graph import Graph, Node
from tilec.analysis.lifetimes import Lifetimes
from tilec.core import mlir
from tilec.core.hardware import WARP
from tilec.core.mlir import ir
from tilec.core.quantities import amount, duration
from tilec.core.target import Target
from tilec.cost.launches import launch_time
from tilec.cost.model import Prediction, Work
from tilec.kernels import KernelPlan, Threaded
from tilec.plan.groups import Group, Remark

LOOKED = 16  # launches that a kernel might join
MOST = 8  # kernels of a launch
TRIED = 4  # launches that a kernel might join, the best first, until one needs no more memory
LAUNCHES_THRESHOLD = 5  # launches that a kernel takes at most: a longer one gains less by sharing than its prediction may be off
WIDEST = 512  # threads of a block, of which some kernels have fewer: each may have 128 registers
WEIGHED = "with their tiles"


@dataclass
class _Launch:
    """Kernels by number, in order."""

    kernels: dict[int, KernelPlan]
    time_us: float


@dataclass
class Order:
    """Which kernels each kernel is computed from, as sets of bits; those of a launch count as one."""

    before: list[int] = field(default_factory=list)

    @staticmethod
    def of(groups: Sequence[Group], graph: Graph) -> Order:
        """`groups` come after those that they are computed from. Parts of one memory may be made in any order, and are made in that
        of the program's kernels: by how many kernels, one from another, they are computed from (`passes/tensor/fuse.py`)."""
        number = {node: k for k, g in enumerate(groups) for node in g.nodes}
        position = {node: n for n, node in enumerate(graph.nodes)}
        needs, level, parts = [0 for _ in groups], [0 for _ in groups], set[tuple[int, int]]()
        for k, group in enumerate(groups):
            for node in group.nodes:
                for other in {number[o] for o in (*graph.producers(node), *_given(node, graph)) if o in number} - {k}:
                    if any(o in graph.producers(node) or o in _made(node.op.operands, graph) for o in groups[other].nodes):
                        needs[k] |= 1 << other
                        level[k] = max(level[k], level[other] + 1)
                    else:
                        parts.add((k, other))
        rank = [(n, min(position[node] for node in g.nodes)) for n, g in zip(level, groups)]
        for pair in parts:
            first, second = sorted(pair, key=rank.__getitem__)
            needs[second] |= 1 << first
        before = [0 for _ in groups]
        for k in sorted(range(len(groups)), key=rank.__getitem__):
            before[k] = bits = needs[k]
            while bits:
                other = bits.bit_length() - 1
                before[k] |= before[other]
                bits &= ~(1 << other)
        return Order(before)

    def copy(self) -> Order:
        return Order(list(self.before))

    def independent(self, first: int, second: int) -> bool:
        """Whether neither kernel is computed from the other."""
        return not (self.before[first] >> second | self.before[second] >> first) & 1

    def join(self, kernels: Sequence[int]) -> None:
        inside = sum(1 << k for k in kernels)
        needed = 0
        for k in kernels:
            needed |= self.before[k]
        for k, bits in enumerate(self.before):
            if inside >> k & 1:
                self.before[k] |= needed & ~inside
            elif bits & inside:
                self.before[k] |= needed | inside


def _given(node: Node, graph: Graph) -> Iterator[Node]:
    """The operations that make what a kernel is given besides what it reads: operands that no element needs, what the position
    is computed from at which a slab is stored, and the parts that are in the same memory."""
    stored = [v for r in node.results for o in mlir.uses(r.value) if o.name == "tensor.insert_slice" for v in o.operands]
    yield from _made([*stored, *node.op.operands], graph, {r.value for r in node.results})


def _made(values: Iterable[ir.Value], graph: Graph, seen: Collection[ir.Value] = ()) -> Iterator[Node]:
    """The operations that make some values, or what these are computed from outside of operations."""
    pending, known = [*values], {*seen}
    while pending:
        value = pending.pop()
        if value in known:
            continue
        known.add(value)
        if (maker := graph.producer.get(value)) is not None:
            yield maker
        elif (owner := mlir.definition(value)) is not None:
            pending += owner.operands


Predict = Callable[[tuple[Work, ...]], Prediction]
"""Of kernels in one launch. Raises ValueError where no block of theirs fits."""


def refuse(kernels: Sequence[KernelPlan], predict: Predict) -> str | None:
    """Why kernels cannot share a launch, whatever they are computed from."""
    for kernel in kernels:
        options = kernel.options
        if not isinstance(options, Threaded):
            return f"`{kernel.name}` multiplies by matrix units, and its blocks wait for one another in other ways"
        if not kernel.blocks:
            return f"`{kernel.name}` has no blocks, and takes no launch"
        if options.cluster_blocks > 1 or options.blocks_per_tile > 1 or options.rows_at_work:
            return f"blocks of `{kernel.name}` share rows, or go from row to row"
        if options.residency == "smem":
            return (
                f"the rows of `{kernel.name}` are copied to shared memory, which the launch would hold for all blocks"
            )
        if options.block_threads % WARP:
            return f"a block of `{kernel.name}` has {options.block_threads} threads, which are no whole warps"
    threads = {kernel.work.threads for kernel in kernels}
    if len(threads) > 1 and max(threads) > WIDEST:
        return f"blocks of {max(threads)} threads would leave each of another kernel's few registers"
    if len(kernels) > MOST:
        return f"a launch has at most {MOST} kernels"
    try:
        waves = predict(tuple(k.work for k in kernels)).waves
    except ValueError:
        return "a block with the threads, the registers and the shared memory that any of them needs does not fit"
    return f"their blocks do not fit the machine at once: {waves:.1f} waves" if waves > 1 else None


def refuse_launches(
    kernels: Sequence[KernelPlan], launches: Mapping[str, Sequence[str]], order: Order, target: Target
) -> tuple[str, str] | None:
    """The first launch that cannot be, and why. All names are those of kernels, each in one launch at most."""
    number, order, predict = {k.name: n for n, k in enumerate(kernels)}, order.copy(), _predictions(target)
    for name, names in launches.items():
        if why := refuse([kernels[number[k]] for k in names], predict):
            return name, why
        for n, second in enumerate(names):
            for first in names[:n]:
                if not order.independent(number[first], number[second]):
                    return name, f"`{first}` and `{second}` cannot run at once: one has to come before the other"
        order.join([number[k] for k in names])
    return None


def choose_launches(
    kernels: Sequence[KernelPlan], order: Order, lifetimes: Lifetimes, target: Target
) -> tuple[dict[str, tuple[str, ...]], list[Remark]]:
    """The names of the kernels in each launch of several, and why."""
    launches: list[_Launch] = []
    remarks: list[Remark] = []
    predict, positions = _predictions(target), np.arange(len(kernels))
    most, small = lifetimes.peak(positions), LAUNCHES_THRESHOLD * (target.launch.overlap_us or target.launch.ramp_us)
    for n, kernel in enumerate(kernels):
        if kernel.prediction.time_us > small or refuse([kernel], predict) is not None:
            continue
        alone = _Launch({n: kernel}, kernel.prediction.time_us)
        near = [launch for launch in launches[-LOOKED:] if all(order.independent(n, k) for k in launch.kernels)]
        found = [(launch, made) for launch in near if (made := _joined(launch, alone, predict)) is not None]
        found.sort(key=lambda pair: pair[1].time_us - pair[0].time_us)
        joined = False
        for launch, made in found[:TRIED]:
            separate, first = launch.time_us + alone.time_us, next(iter(launch.kernels.values()))
            reason = f"{duration(made.time_us)} as one launch, {duration(separate)} as 2"
            better, alternatives = made.time_us < separate, (("one launch", made.time_us), ("2 launches", separate))
            moved = _moved(positions, [*made.kernels], order)
            if better and (needed := lifetimes.peak(moved)) > most:
                reason += f", but temporaries would take {amount(needed)}B, and take {amount(most)}B"
            elif better:
                joined, positions = True, moved
                launches[launches.index(launch)] = made
                order.join([*made.kernels])
            subject, line = f"{kernel.name} with {first.name}", kernel.lines[-1] if kernel.lines else None
            remarks.append(Remark("launched" if joined else "refused", subject, reason, line, alternatives, WEIGHED))
            if joined or not better:
                break
        if not joined:
            launches.append(alone)
    names = {k.name for k in kernels}
    named: dict[str, tuple[str, ...]] = {}
    for several in launches:
        if len(several.kernels) > 1:
            launch_names = tuple(k.name for k in several.kernels.values())
            named[_name(launch_names[0], names)] = launch_names
    return named, remarks


def _moved(positions: np.ndarray, launch: Sequence[int], order: Order) -> np.ndarray:
    """Where kernels run if some share a launch, which begins as soon as all that they are computed from is there; those that are
    computed from any of them come later."""
    inside = sum(1 << k for k in launch)
    before = 0
    for k in launch:
        before |= order.before[k]
    found, earlier = positions.astype(np.float64), _numbers(before & ~inside, len(positions))
    at = found[launch].min() if not len(earlier) else max(found[launch].min(), found[earlier].max() + 0.5)
    later = [k for k, bits in enumerate(order.before) if bits & inside and found[k] <= at]
    found[launch] = at
    found[later] = at + 0.25 * (1 + found[later]) / (2 + found.max())
    return np.unique(found, return_inverse=True)[1]


def _numbers(bits: int, most: int) -> np.ndarray:
    """Which bits are set, of the first `most`."""
    octets = np.frombuffer(bits.to_bytes(-(-most // 8), "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(octets, bitorder="little"))


def _joined(first: _Launch, second: _Launch, predict: Predict) -> _Launch | None:
    """Both as one; None where they cannot be."""
    kernels = first.kernels | second.kernels
    if refuse([*kernels.values()], predict) is not None:
        return None
    return _Launch(kernels, predict(tuple(k.work for k in kernels.values())).time_us)


def _name(first: str, taken: set[str]) -> str:
    names = (f"{first}_launch{f'__{n}' if n > 1 else ''}" for n in count(1))
    found = next(name for name in names if name not in taken)
    taken.add(found)
    return found


def _predictions(target: Target) -> Predict:
    """Each is made once: the layers of a model ask for the same."""
    return cache(lambda works: launch_time(works, target))
