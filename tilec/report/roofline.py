"""The roofline of a plan as a figure: each kernel's speed over its intensity, below the rates of its memory and its unit.

Williams, Waterman and Patterson, "Roofline" (CACM 2009).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil, floor, inf, log10

from tilec.core.quantities import amount
from tilec.cost.model import Roofline, roofline
from tilec.kernels import KernelPlan
from tilec.plan.model import Plan
from tilec.plan.report.explain import RESOURCES, unit_name

Scale = Callable[[float], float]
"""From a value to a pixel."""
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 660, 400, 88, 16, 22, 44  # pixels of the figure, and of its margins


@dataclass(frozen=True)
class Point:
    """A kernel in the figure: operations a byte, their rate, the peak of their unit, and the memory that the bytes come from.
    `measured`: where its measured speed lies."""

    number: int
    name: str
    intensity: str
    speed: str
    peak: str
    memory: str
    x: float
    y: float
    measured: float | None


@dataclass(frozen=True)
class Roof:
    """A ceiling of a unit, or the slope of a memory."""

    label: str
    path: str
    x: float
    y: float
    anchor: str


@dataclass(frozen=True)
class Tick:
    label: str
    at: float


@dataclass(frozen=True)
class Figure:
    """`beyond`: kernels without operations or without traffic, which have no intensity."""

    points: list[Point]
    roofs: list[Roof]
    columns: list[Tick]
    rows: list[Tick]
    beyond: list[str]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


def figure(plan: Plan, measured: Mapping[str, float]) -> Figure | None:
    """All kernels under their roofs, on logarithmic axes; None where no kernel has an intensity."""
    found = [(number, k, roofline(k.work, plan.target)) for number, k in enumerate(plan.kernels, 1)]
    shown = [(n, k, r) for n, k, r in found if 0 < r.intensity < inf]
    beyond = [k.name for n, k, r in found if not 0 < r.intensity < inf]
    if not shown:
        return None
    rates = {r.level: getattr(plan.target, r.level).rate(plan.target.units) for _, _, r in shown}
    peaks: dict[str, float] = {}
    for _, _, r in shown:  # the rate of a unit depends on what a kernel has it do
        peaks[r.unit] = max(peaks.get(r.unit, 0.0), r.ridge * rates[r.level])
    speeds = [1e6 * k.work.flops[r.unit] / us for _, k, r in shown for us in (k.prediction.time_us, measured.get(k.name)) if us]
    low_x, high_x = _decades([n for _, _, r in shown for n in (r.intensity, peaks[r.unit] / rates[r.level])])
    low_y, high_y = _decades([*speeds, *peaks.values()])

    def x(value: float) -> float:
        return round(LEFT + (log10(value) - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - (log10(value) - low_y) / (high_y - low_y) * (HEIGHT - TOP - BOTTOM), 1)

    points = []
    for number, kernel, r in shown:
        speed = 1e6 * kernel.work.flops[r.unit] / kernel.prediction.time_us
        us = measured.get(kernel.name)
        reached = y(1e6 * kernel.work.flops[r.unit] / us) if us else None
        peak = f"{amount(r.ridge * rates[r.level])}op/s of {unit_name(r.unit)}"
        texts = f"{r.intensity:.3g}", f"{amount(speed)}op/s", peak, RESOURCES[r.level]
        points.append(Point(number, kernel.name, *texts, x(r.intensity), y(speed), reached))
    roofs = list(_roofs(shown, rates, peaks, 10**low_x, 10**high_x, 10**low_y, x, y))
    columns = [Tick(_power(n), x(10**n)) for n in range(low_x, high_x + 1)]
    rows = [Tick(f"{amount(10**n).replace('.00', '')}op/s", y(10**n)) for n in range(low_y, high_y + 1)]
    return Figure(points, roofs, columns, rows, beyond)


def _roofs(
    shown: list[tuple[int, KernelPlan, Roofline]], rates: Mapping[str, float], peaks: Mapping[str, float], low: float, high: float,
    bottom: float, x: Scale, y: Scale,
) -> Iterator[Roof]:  # fmt: skip
    """A slope for each memory up to the highest ceiling that its kernels meet, and a ceiling for each unit from its first ridge."""
    for level, rate in rates.items():
        start, end = max(low, bottom / rate), max(peaks[r.unit] / rate for _, _, r in shown if r.level == level)
        label = f"{RESOURCES[level]} {amount(rate)}B/s"
        points = x(start), y(start * rate), x(end), y(end * rate)
        middle = (points[0] + points[2]) / 2 + 10, (points[1] + points[3]) / 2 + 10
        yield Roof(label, "M{} {}L{} {}".format(*points), *middle, "start")
    for unit, peak in peaks.items():
        start = min(peak / rates[r.level] for _, _, r in shown if r.unit == unit)
        path = f"M{x(start)} {y(peak)}L{x(high)} {y(peak)}"
        yield Roof(f"{unit_name(unit)} {amount(peak)}op/s", path, x(high), y(peak) - 5, "end")


def _decades(values: list[float]) -> tuple[int, int]:
    """The powers of ten around some values."""
    low, high = floor(log10(min(values) / 1.3)), ceil(log10(max(values) * 1.5))
    return low, max(high, low + 1)


def _power(n: int) -> str:
    return f"{10**n:g}" if -3 <= n <= 4 else f"1e{n}"
