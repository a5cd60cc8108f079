"""What each kernel costs, for the page: terms, the regimes, what would make a kernel faster, a block's shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilec.core.quantities import duration
from tilec.core.target import Target
from tilec.cost.blame import UNSURE, scaled
from tilec.cost.model import predict
from tilec.kernels import KernelPlan
from tilec.plan.report.explain import RESOURCES
from tilec.plan.report.what_if import AMOUNTS
from tilec.runtime.emit.cuda_shared import printed_map

REGIMES = {
    "memory": (
        "Moving bytes takes longest.",
        "Fewer bytes: fusion of a kernel with its reader, narrower types, larger tiles that load less often.",
    ),
    "compute": (
        "Arithmetic takes longest.",
        "Fewer or cheaper operations: a type with faster matrix units, a result that is stored and not computed again.",
    ),
    "overhead": (
        "Launches, starts of blocks or waits take longest.",
        "Fewer launches (fusion, a graph), larger problems, or longer work for each block.",
    ),
}
"""What each limit means, and what changes the time of a kernel with it."""

@dataclass(frozen=True)
class Term:
    """`share`: of the longest term."""

    label: str
    time: str
    share: float


@dataclass(frozen=True)
class Lever:
    """Half of an amount, and the time that the kernel would then take."""

    label: str
    time: str
    saved: str
    share: float


def terms(times: Mapping[str, float]) -> list[Term]:
    """The terms of a prediction, longest first."""
    found = sorted(((name, us) for name, us in times.items() if us > 0), key=lambda t: -t[1])
    return [Term(RESOURCES.get(name, name), duration(us), us / found[0][1]) for name, us in found]


def levers(kernel: KernelPlan, target: Target) -> list[Lever]:
    """What would make a kernel faster: each amount of the cost model alone is halved, and the kernel predicted anew."""
    found = []
    for name in UNSURE:
        try:
            less = predict(*scaled(name, kernel.work, target, 0.5)).time_us
        except ValueError:  # a block that does not fit
            continue
        if less < 0.995 * kernel.prediction.time_us:
            found.append((less, name))
    now = kernel.prediction.time_us
    return [Lever(AMOUNTS[name], duration(us), duration(now - us), 1 - us / now) for us, name in sorted(found)]


# ---- a block's shared memory -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Span:
    """A piece of a block's shared memory, in percent of what a block may have, on one of several rows where pieces overlap."""

    name: str
    bytes: int
    what: str
    start: float
    width: float
    row: int


@dataclass(frozen=True)
class SharedMemory:
    """`bytes` of a block; `room`: the most that a block may have."""

    bytes: int
    room: int
    spans: list[Span]

    @property
    def rows(self) -> int:
        return 1 + max((s.row for s in self.spans), default=0)


def shared_memory(text: str, target: Target) -> SharedMemory | None:
    """The map of a printed kernel's shared memory; None where it has none."""
    total, pieces = printed_map(text)
    if not total:
        return None
    room, ends, spans = target.multiprocessor.shared_per_block, list[int](), []
    for piece in pieces:
        row = next((k for k, end in enumerate(ends) if end <= piece.offset), len(ends))
        ends[row:] = [piece.offset + piece.size, *ends[row + 1 :]]
        start, width = 100 * piece.offset / room, 100 * piece.size / room
        spans.append(Span(piece.name, piece.size, piece.what, start, width, row))
    return SharedMemory(total, room, spans)
