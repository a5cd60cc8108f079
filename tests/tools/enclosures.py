"""What tests ask of intervals."""

import numpy as np

from tilec.semantics.intervals import Enclosure, is_anything


def holds(x: Enclosure, value) -> np.ndarray:
    """Where a value is within, zeros with their sign, NaN where that is the value."""
    value = np.asarray(value, np.float64)
    zero = (x.low == 0) & (x.high == 0) & (np.signbit(x.low) == np.signbit(x.high))
    inside = (value >= x.low) & (value <= x.high) & ~(zero & (np.signbit(value) != np.signbit(x.low)))
    return inside | np.isnan(x.low) & np.isnan(value) | is_anything(x)
