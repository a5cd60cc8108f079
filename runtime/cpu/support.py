"""The names that printed CPU kernels import: types, pointers, conversions and scalar functions, all compiled by Numba."""

from math import inf, nan

from numba import boolean as i1
from numba import float32 as f32
from numba import float64 as f64
from numba import int8 as i8
from numba import int16 as i16
from numba import int32 as i32
from numba import int64 as i64
from numba import uint8 as u8
from numba import uint16 as u16
from numba import uint32 as u32
from numba import uint64 as u64

from tilec.core.coefficients import NAMED
from tilec.runtime.cpu.builtins import short_range
from tilec.runtime.cpu.intrinsics import *  # noqa: F403
from tilec.runtime.cpu.math import *  # noqa: F403
from tilec.runtime.cpu.matrix import *  # noqa: F403
from tilec.runtime.cpu.tile import *  # noqa: F403

globals().update(NAMED)

__all__ = ["f32", "f64", "i1", "i8", "i16", "i32", "i64", "inf", "nan", "short_range", "u8", "u16", "u32", "u64"]
