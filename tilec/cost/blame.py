"""Which amount of the cost model explains a measured time: each is scaled alone until the predicted time is the measured one.

Amounts are known with different certainty. Bytes of memory and products of the matrix units follow from the program, and their
rates are measured; operations are counted before the compiler sees them, and waits are estimates. The cause is the amount whose
factor is the most likely: the least |log(factor)| by the amount's own scale.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import exp, log
from types import MappingProxyType

from tilec.core.target import Target
from tilec.cost.model import Work, predict

ARITHMETIC = ("fma", "special", "int")  # units of which a function takes several
UNSURE = {"dram": 0.25, "l2": 0.25, "shared": 0.2, "tensor": 0.2, "arithmetic": 0.6, "waits": 0.5, "launch": 0.5}
"""By amount: the usual |log(factor)| by which it is off."""
COUNTED = 0.3  # the same of arithmetic over what the compiled kernel has
MOST = 1e4  # a factor, or one over it
STEPS = 50  # of halving between them


@dataclass(frozen=True)
class Cause:
    """An amount, and the factor by which it was off. `name` is that of a term of the cost model, "arithmetic" for those of
    `ARITHMETIC`, or "waits". `counted`: by which the compiled kernel has more of it, where that is known."""

    name: str
    factor: float
    counted: float | None = None

    @property
    def doubt(self) -> float:
        """How unlikely it is that the amount was so far off."""
        if self.counted is not None:
            return abs(log(self.factor / self.counted)) / COUNTED
        return abs(log(self.factor)) / UNSURE[self.name]


def causes(
    work: Work, target: Target, measured_us: float, counted: Mapping[str, float] = MappingProxyType({})
) -> list[Cause]:
    """The amounts that alone explain a measured time, the likeliest first. `counted`: operations of the compiled kernel, by unit,
    where they are known: the factor of arithmetic should be theirs."""
    known = {"arithmetic": times(counted, target) / own} if (own := times(_units(work), target)) and counted else {}
    found = [(name, _factor(name, work, target, measured_us)) for name in UNSURE]
    return sorted((Cause(name, f, known.get(name)) for name, f in found if f is not None), key=lambda c: c.doubt)


def _units(work: Work) -> dict[str, float]:
    """Operations by unit of `ARITHMETIC`, of all types."""
    return {u: sum(n for unit, n in work.flops.items() if unit.partition(".")[0] == u) for u in ARITHMETIC}


def times(operations: Mapping[str, float], target: Target) -> float:
    """The time of the unit that takes longest."""
    return max(n / target.peak("fma.f32" if u == "fma" else u) for u, n in operations.items())


def _factor(name: str, work: Work, target: Target, measured_us: float) -> float | None:
    """By which the amount has to be scaled; None where no factor gives that time."""

    def time(factor: float) -> float:
        return predict(*scaled(name, work, target, factor)).time_us

    low, high = -log(MOST), log(MOST)
    if not time(1 / MOST) <= measured_us <= time(MOST):
        return None
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if time(exp(middle)) < measured_us else (low, middle)
    return exp(high)


def scaled(name: str, work: Work, target: Target, factor: float) -> tuple[Work, Target]:
    """The work, or the target, with one amount scaled."""
    match name:
        case "dram":
            return replace(work, dram_read=factor * work.dram_read, dram_write=factor * work.dram_write), target
        case "l2":
            return replace(work, l2_bytes=factor * work.l2_bytes), target
        case "shared":
            return replace(work, shared_bytes=factor * work.shared_bytes), target
        case "launch":
            launch = target.launch
            slower = replace(launch, ramp_us=factor * launch.ramp_us, overhead_us=factor * launch.overhead_us)
            return work, replace(target, launch=slower)
        case "waits":
            work = replace(work, serial_us=factor * work.serial_us, stall_ns=factor * work.stall_ns)
            return _times(("waits",), replace(work, bytes_in_flight=work.bytes_in_flight / factor), factor), target
    units = ARITHMETIC if name == "arithmetic" else (name,)
    flops = {unit: n * (factor if unit.partition(".")[0] in units else 1) for unit, n in work.flops.items()}
    loops = work.loops_us * (factor if name == "arithmetic" else 1)
    return _times(units, replace(work, flops=flops, loops_us=loops), factor), target


def _times(names: Collection[str], work: Work, factor: float) -> Work:
    """The work with the times of these causes scaled."""
    idle, exposed = ({c: us * (factor if c in names else 1) for c, us in t.items()} for t in (work.idle_us, work.exposed_us))
    return replace(work, idle_us=idle, exposed_us=exposed)
