"""Comparison of results with the intervals that error bounds allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilec.dsl.specialise import Specialised
from tilec.semantics import intervals as on
from tilec.semantics.error_bounds import Kind, enclose
from tilec.semantics.intervals import Enclosure


@dataclass(frozen=True)
class Comparison:
    """One output at its worst element: `error` is the distance from the middle of the allowed interval, `allowed` the
    largest allowed distance. `unbounded` counts the elements that may have any value of their type, about which the
    comparison says nothing."""

    within: bool
    error: float = 0.0
    allowed: float = 0.0
    index: tuple[int, ...] = ()
    found: float = 0.0
    low: float = 0.0
    high: float = 0.0
    wrong: int = 0
    unbounded: int = 0

    def __str__(self) -> str:
        verdict = "within the bound" if self.within else f"OUT OF BOUNDS, {self.wrong} elements"
        at = f"{self.found!r} at {list(self.index)}, between {self.low!r} and {self.high!r} allowed"
        if self.within and not np.isfinite(self.allowed):
            text = f"{verdict}: every element is infinite, NaN or unbounded"
        else:
            text = f"{self.error:.2g} of {self.allowed:.2g} allowed, {verdict}" + ("" if self.within else f": {at}")
        return text + (f"; {self.unbounded} of its elements are unbounded" if self.unbounded else "")


def compare(
    special: Specialised, inputs: Mapping[str, np.ndarray], results: Mapping[str, np.ndarray], kind: Kind = None
) -> dict[str, Comparison]:
    """Compares the outputs of a compiled op with its error bounds for these inputs."""
    allowed = enclose(special, inputs, kind)
    return {t.name: compare_array(results[t.name], allowed[t.name]) for t in special.outputs}


def compare_array(found: np.ndarray, allowed: Enclosure) -> Comparison:
    """Raises ValueError where the shapes differ."""
    if found.shape != allowed.low.shape:
        raise ValueError(f"a result of shape {found.shape} where {allowed.low.shape} was expected")
    if found.size == 0:
        return Comparison(True)
    with np.errstate(all="ignore"):
        if found.dtype.kind not in "iub":
            found = found.astype(np.float64)
        low, high = (np.asarray(end).astype(found.dtype) for end in allowed)
        inside = (found >= low) & (found <= high)
        unbounded = _is_unbounded(low, high)
        if found.dtype.kind == "f":
            wrong_sign = (low == 0) & (high == 0) & (np.signbit(low) == np.signbit(high))
            wrong_sign &= np.signbit(found) != np.signbit(low)
            inside = (inside & ~wrong_sign) | unbounded | (np.isnan(found) & np.isnan(low))
        wide = [array.astype(np.float64) for array in (found, low, high)]
        middle = (wide[1] + wide[2]) / 2
        error, radius = np.abs(wide[0] - middle), (wide[2] - wide[1]) / 2
        error = np.where(inside & ~np.isfinite(error), 0, error)
        radius = np.where(np.isnan(radius), 0, radius)  # of a NaN, or of an infinity, that is certain
        share = np.where(inside, np.where(radius > 0, error / radius, 0), np.inf)
        share = np.where(np.isfinite(share) | ~inside, share, 0)
        share = np.where(inside & ~np.isfinite(radius), -1, share)  # an element without a bound is not the worst
    worst = np.unravel_index(np.argmax(share), found.shape)
    return Comparison(
        bool(inside.all()), float(error[worst]), float(radius[worst]), tuple(map(int, worst)), found[worst].item(),
        low[worst].item(), high[worst].item(), int(np.count_nonzero(~inside)), int(np.count_nonzero(unbounded)),
    )  # fmt: skip


def _is_unbounded(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Where every value of the type is allowed."""
    if low.dtype.kind == "f":
        return on.is_anything(Enclosure(low, high))
    if low.dtype.kind == "b":
        return ~low & high
    limits = np.iinfo(low.dtype)
    return (low == limits.min) & (high == limits.max)
