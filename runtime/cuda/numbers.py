"""Numbers in printed kernels, in Numba's types and by Numba's rules, as MLIR's text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tilec.runtime.cuda.device.define import NUMBA


class Unknown(Exception):
    """What is no part of the language of printed kernels."""


@dataclass(frozen=True)
class Value:
    """A value of a type ("i64", "u32", "f32", "bool", ...) by its name in MLIR, or a number that is known."""

    type: str
    name: str = ""
    number: int | float | bool | None = None


TYPES = {numba: name for name, numba in NUMBA.items()} | {"bool": "bool"}  # by Numba's names
BITS = {name: int(name[1:]) for name in NUMBA if name != "bool"} | {"bool": 1}


def number_value(number: bool | int | float | np.number) -> Value:
    """A number of the program's text, in Numba's type of it."""
    if isinstance(number, np.number):
        known: Any = number.item()
        return Value(TYPES[number.dtype.name], number=known)
    if isinstance(number, bool | float):
        return Value("bool" if isinstance(number, bool) else "f64", number=number)
    if not -(1 << 63) <= number < 1 << 64:
        raise Unknown(f"{number} has more than 64 bits")
    return Value("i64" if number < 1 << 63 else "u64", number=number)


def number_as(number: bool | int | float, type: str) -> bool | int | float:
    """The number in a type; integers wrap."""
    if type == "bool":
        return bool(number)
    if type[0] == "f":
        return np.dtype(NUMBA[type]).type(number).item()
    if isinstance(number, float) and not abs(number) < 1 << 31:  # beyond some types, where hardware decides
        raise Unknown(f"{number} as {type}")
    bits, value = BITS[type], int(number) % (1 << BITS[type])
    return value - (1 << bits) if type[0] == "i" and value >> (bits - 1) else value


def number_text(number: bool | int | float, type: str) -> str:
    """As MLIR reads it: floats by their bits."""
    if type == "bool":
        return str(bool(number)).lower()
    if type[0] != "f":
        return str(number)
    made = np.dtype(NUMBA[type]).type(number)
    return f"0x{int.from_bytes(made.tobytes(), 'little'):0{2 * made.itemsize}X}"


@cache
def signature(function: Callable[..., object], *types: str) -> tuple[str, tuple[str, ...]]:
    """The type of the result of an operator or function of values of these types, and the types that it takes: by Numba's rules."""
    from tilec.runtime.cuda.frontend import signature as numba_signature

    found = numba_signature(function, [NUMBA[t] for t in types if t in NUMBA])
    if found is None or any(str(t) not in TYPES for t in (found.return_type, *found.args)):
        raise Unknown(f"{function.__name__} of {', '.join(types)}")
    return TYPES[str(found.return_type)], tuple(TYPES[str(t)] for t in found.args)
