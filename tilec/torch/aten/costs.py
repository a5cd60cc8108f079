"""What some operations take as comparisons of all pairs, beside what PyTorch's own kernels take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from math import log2
from typing import TYPE_CHECKING

from tilec.core import targets
from tilec.core.dtypes import DTYPES
from tilec.core.fitted import SelectionTimes
from tilec.core.target import Target
from tilec.cost.by_key import sort_us
from tilec.torch.extents import of_numbers

if TYPE_CHECKING:
    import torch

LAUNCHES = 4
"""What an operation of PyTorch's between two partitions costs at least, in launches: its own, those of the partition that it cuts
in two, and the loads and stores of what crosses the cut."""
PAIR = 3
"""Operations for a pair of an element and a place: a comparison, a choice and a sum."""
DIGIT_BITS = 8  # of a pass of a radix sort
SELECT_BITS = 2  # of a pass of a radix select

LANES = 8  # of f32 that PyTorch's kernels for CPUs compute at once

PATIENCE = 16
"""How many times longer an operation may take where a partition has it already: sizes that come later may be larger, and PyTorch
would run all of the partition."""
_cutting: ContextVar[bool] = ContextVar("cutting", default=False)


@contextmanager
def cutting() -> Iterator[None]:
    """While it is decided which operations partitions have."""
    token = _cutting.set(True)
    try:
        yield
    finally:
        _cutting.reset(token)


def pays(own_us: float, other_us: float) -> bool:
    """Whether an operation is no slower as a program, or not so slow that its partition is better left to PyTorch."""
    return own_us <= other_us * (1 if _cutting.get() else PATIENCE)


@cache
def machine(kind: str) -> Target:
    """The CPU, or the GPU here."""
    return targets.load(kind)


def time_us(device: torch.device, operations: float, independent: int) -> float:
    """Of integer operations, shared by the units that so many independent results keep busy."""
    target = machine(device.type)
    return 1e6 * operations / target.peak("int") * target.units / max(1, min(target.units, independent))


def launches_us(device: torch.device) -> float:
    return LAUNCHES * machine(device.type).launch.overhead_us


def moved_us(device: torch.device, count: float) -> float:
    """Of so many bytes between memory and the device."""
    target = machine(device.type)
    return 1e6 * count / target.dram.rate(target.units)


@of_numbers
def scatter_pays(device: torch.device, pairs: int, moved: int) -> bool:
    """Whether so many pairs of an element and a place are looked at sooner than PyTorch's kernel writes to computed positions,
    between so many bytes that it moves."""
    return pays(time_us(device, PAIR * pairs, pairs), launches_us(device) + moved_us(device, moved))


@of_numbers
def sum_by_key_pays(device: torch.device, count: int, keys: int, pairs: int, moved: int) -> bool:
    """The same of sums of rows by keys, which a GPU may sort first (`tilec/analysis/by_key.py`). PyTorch's kernels sort, too."""
    target = machine(device.type)
    if target.sm is None or pairs == 0:
        return scatter_pays(device, pairs, moved)
    other = launches_us(device) + _sort_us(device, 1, count, "i64")
    return scatter_pays(device, pairs, moved) or pays(sort_us(target, count, keys, 8), other + launches_us(device))


@of_numbers
def reads_pay(device: torch.device, reads: int) -> bool:
    """Whether so many elements are read at positions that are computed for each, or one after the other, sooner than by PyTorch's
    kernel. On the CPU that one reads vectors of them; on a GPU every thread reads its own, there as here."""
    if device.type != "cpu":
        return True
    target = machine("cpu")
    own = 1e-3 * target.fit(SelectionTimes).visit_ns * reads / target.units
    return pays(own, launches_us(device) + own / LANES)


@of_numbers
def sort_pays(device: torch.device, rows: int, length: int, dtype: str) -> bool:
    """Whether the elements of each row are compared with each other sooner than PyTorch sorts them."""
    compared = 8 if DTYPES[dtype].is_float else 3  # floats have NaN
    own = time_us(device, (compared + PAIR) * rows * length**2, rows * length)
    return pays(own, launches_us(device) + _sort_us(device, rows, length, dtype))


def _sort_us(device: torch.device, rows: int, length: int, dtype: str) -> float:
    """Of PyTorch's sort: on the CPU by comparisons, on a GPU by passes over digits of the keys, which move keys and indices."""
    target, count = machine(device.type), rows * length
    if device.type == "cpu":
        return 1e-3 * target.fit(SelectionTimes).swap_ns * count * log2(max(2, length)) / min(target.units, rows)
    bits = DTYPES[dtype].bits
    return moved_us(device, 2 * count * (bits // 8 + 8) * max(1, bits // DIGIT_BITS))


@of_numbers
def choice_pays(device: torch.device, rows: int, length: int, count: int, dtype: str) -> bool:
    """Whether so many elements are found one after the other sooner than PyTorch selects them: each takes two reductions of its
    row, which look at the positions of those before. PyTorch's top-k is a partial sort on the CPU; on a GPU it passes over the rows
    for digits of the least key."""
    if device.type == "cpu":
        target = machine("cpu")
        times, busy = target.fit(SelectionTimes), min(target.units, rows)
        own = 1e-3 * times.visit_ns * rows * length * count / busy
        other = 1e-3 * rows * (times.select_ns * length + times.chosen_ns * count) / busy
    else:
        own, bits = time_us(device, rows * length * count * (2 * PAIR + count / 2), rows), DTYPES[dtype].bits
        other = moved_us(device, rows * length * bits // 8 * (bits // SELECT_BITS))
    return pays(own, launches_us(device) + other)
