"""Checks of a call's arguments: arrays and numbers by the names of their parameters, `out=` arrays, and options.

Every message names the argument. Repeated calls take a fast path (`tilec/driver/fast_call.py`), which accepts only arguments of the
kind, types and shapes that passed these checks before, row-major.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, SupportsIndex

from tilec.core.diagnostics import CallError
from tilec.core.quantities import count
from tilec.core.varying import Varying

if TYPE_CHECKING:
    from tilec.core.dtypes import DType
    from tilec.runtime.buffers import Buffer, Device

MOST_NUMBERS = 1 << 16  # of a size, that `Op.warm` is given
Parameters = Sequence[tuple[str, "DType | None"]]
Results = Sequence[tuple[str, "DType", tuple[int, ...]]]


# ---- options ---------------------------------------------------------------------------------------------------------


def ranges(varies: Mapping[str, tuple[int, ...] | Varying]) -> dict[str, Varying]:
    """The sizes that vary, with their ranges."""
    found: dict[str, Varying] = {}
    for name, given in varies.items():
        try:
            found[name] = v = given if isinstance(given, Varying) else Varying(*map(operator.index, given))
        except TypeError:
            raise CallError(f"varies[{name!r}] must be the least and the greatest number, not {given!r}") from None
        if v.empty:
            raise CallError(f"varies[{name!r}] has no number: {v}", hint="write (least, greatest), or (least, greatest, multiple)")
    return found


def sizes_listed(option: str, given: Collection[str]) -> Collection[str]:
    """The names of sizes of an option that is a list of them."""
    if isinstance(given, str):
        raise CallError(f"`{option}` is a list of sizes, not {given!r}", hint=f"write `{option}=[{given!r}]`")
    return given


def calls_before(given: object, varies: Mapping[str, Varying]) -> int:
    """The option `specialise_after`: how many calls; 0 for None."""
    if given is None:
        return 0
    number = operator.index(given) if isinstance(given, SupportsIndex) and not isinstance(given, bool) else 0
    if number < 1:
        raise CallError(f"`specialise_after` is a number of calls, from 1 on, not {given!r:.40}")
    if not varies:
        raise CallError("`specialise_after` is for sizes that vary", hint="give `varies`; other sizes are compiled as they are")
    if invariant := [name for name, v in varies.items() if v.invariant]:
        why = f"what is compiled for one number of `{invariant[0]}` may have other bits"
        raise CallError(f"`specialise_after` and `invariant` exclude each other: {why}")
    return number


# ---- inputs ----------------------------------------------------------------------------------------------------------


def in_order(op: str, parameters: Parameters, arrays: Sequence[object], named: Mapping[str, object]) -> tuple[object, ...]:
    """All arguments of a call in the order of the parameters. `named` has those given by name."""
    names = [name for name, _ in parameters]
    for name in named:
        if name not in names:
            hint = f"its parameters are {', '.join(names)}" if names else "it has none"
            raise CallError(f"{op} has no parameter '{name}'", hint=hint)
        if name in names[: len(arrays)]:
            raise CallError(f"{op} was given '{name}' twice: by position and by name")
    rest = names[len(arrays) :] if named else []
    if missing := [name for name in rest if name not in named]:
        raise CallError(f"the argument '{missing[0]}' of {op} is missing", hint=f"pass {missing[0]}=...")
    return (*arrays, *(named[name] for name in rest))


def views(parameters: Parameters, arrays: Sequence[object]) -> list[Buffer]:
    """The arguments' memory. A Python number takes the type that its parameter declares, if that has the number."""
    from tilec.runtime import buffers

    found: list[Buffer] = []
    for position, array in enumerate(arrays):
        name, dtype = parameters[position] if position < len(parameters) else (f"argument {position + 1}", None)
        try:
            found.append(buffers.view(array if dtype is None else as_declared(array, dtype)))
        except CallError as error:
            raise _about(f"`{name}`", error) from None
    return found


def as_declared(value: object, dtype: DType | None) -> object:
    """A Python number as an array of its parameter's type; everything else is an array already."""
    if dtype is None or not isinstance(value, (bool, int, float)):
        return value
    from tilec.runtime.buffers import number

    return number(value, dtype)


def _about(what: str, error: CallError, hint: str | None = None) -> CallError:
    """The same error with the name of its argument."""
    (problem,) = error.diagnostics
    return CallError(f"{what}: {problem.message}", problem.span, problem.notes, hint or problem.hint)


def one_device(found: Sequence[Buffer]) -> Device:
    """The device that all arguments are on; numbers go along with arrays on a GPU."""
    devices = {v.device for v in found}
    if len(devices) == 2 and all(v.shape == () for v in found if v.device == "cpu"):
        devices.remove("cpu")
    if len(devices) > 1:
        raise CallError(f"the arguments are on different devices: {', '.join(sorted(map(str, devices)))}")
    return next(iter(devices), "cpu")


# ---- results ---------------------------------------------------------------------------------------------------------


def example(arrays: Sequence[object], found: Sequence[Buffer], device: str | int) -> object:
    """The argument whose kind the results have: the first array. A number is none, NumPy's neither."""
    import numpy as np

    number = (bool, int, float, np.generic)
    return next((a for a, v in zip(arrays, found) if v.device == device and not isinstance(a, number)), None)


def given_results(op: str, results: Results, out: object, inputs: Sequence[Buffer]) -> tuple[list[object], list[Buffer]]:
    """The arrays in `out`, and their memory: one for each result, of its type and shape, apart from all else."""
    import numpy as np

    from tilec.runtime import buffers

    arrays = [out] if len(results) == 1 and not isinstance(out, (list, tuple)) else out
    if not isinstance(arrays, (list, tuple)):
        names = ", ".join(f"`{name}`" for name, _, _ in results)
        raise CallError(f"out= must be a list or a tuple of {len(results)} arrays, not {_a(out)}", hint=f"for {names}")
    if len(arrays) != len(results):
        raise CallError(f"{op} has {count(len(results), 'result')}, but out= has {count(len(arrays), 'array')}")
    found: list[Buffer] = []
    for (name, dtype, shape), array in zip(results, arrays):
        hint = f"pass a new array of the type {dtype} and the shape {list(shape)}"
        try:
            if isinstance(array, (bool, int, float, np.generic)):
                raise CallError(f"expected an array, got {_a(array)}")
            if buffers.is_jax(array):
                raise CallError("JAX's arrays do not change", hint="leave out=: results of JAX's arrays are JAX's")
            buffer = buffers.view(array)
        except CallError as error:
            raise _about(f"out= for `{name}`", error, hint) from None
        if buffer.dtype != dtype or tuple(buffer.shape) != shape:
            raise CallError(f"out= for `{name}` must be {dtype}{list(shape)}, got {buffer.dtype}{list(buffer.shape)}")
        if buffer.readonly:
            raise CallError(f"out= for `{name}` is read-only", hint=hint)
        if buffers.overlaps_itself(buffer):
            raise CallError(f"out= for `{name}` overlaps itself: several of its elements share memory", hint=hint)
        if any(buffers.overlaps(buffer, v) for v in inputs):
            raise CallError(
                f"out= for `{name}` overlaps an input; results are written while inputs are read", hint=hint
            )
        if any(buffers.overlaps(buffer, other) for other in found):
            raise CallError("the arrays in out= overlap each other", hint=hint)
        found.append(buffer)
    return list(arrays), found


def _a(value: object) -> str:
    kind = type(value).__name__
    return "None" if value is None else f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


# ---- options ---------------------------------------------------------------------------------------------------------


def sizes(given: object) -> dict[str, int]:
    """Sizes by name, as Python's own integers."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise CallError(f"sizes= must be a dict of sizes by name, not {_a(given)}", hint='sizes={"N": 1024}')
    return {name: _size(name, value) for name, value in given.items()}


def _size(name: object, value: object) -> int:
    if not isinstance(name, str):
        raise CallError(f"the name of a size must be a str, not {_a(name)}", hint='sizes={"N": 1024}')
    try:
        number = operator.index(value) if isinstance(value, SupportsIndex) and not isinstance(value, bool) else -1
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 63:
        raise CallError(f"the size {name} must be a whole number from 0 to 2^63 - 1, got {value!r:.40}")
    return number


def several(given: Mapping[str, object]) -> dict[str, Sequence[int]]:
    """One or more numbers of each size, by name: a number, a list, a range."""
    found: dict[str, Sequence[int]] = {}
    for name, value in given.items():
        many = isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))
        numbers: Iterable[object] = value if many else [value]  # type: ignore[assignment]
        if not (row := [_size(name, n) for n in islice(numbers, MOST_NUMBERS + 1)]):
            raise CallError(f"no number of the size {name} is given", hint=f"{name}=[1, 8, 64]")
        if len(row) > MOST_NUMBERS:
            raise CallError(f"more than {MOST_NUMBERS:,} numbers of the size {name} are given")
        found[name] = list(dict.fromkeys(row))
    return found


RENAMED = {"late": "deferred_checks"}  # options that had another name before


def no_unknown(function: str, options: Mapping[str, object]) -> None:
    """Raises TypeError for a keyword that a function does not take, with the new name of one that was renamed."""
    for name in options:
        new = f"; `{name}` was renamed to `{RENAMED[name]}`" if name in RENAMED else ""
        raise TypeError(f"{function}() got an unexpected keyword argument '{name}'{new}")


def folders(value: object) -> tuple[str, ...]:
    """The folders of `path=`: a path, or several. Raises CallError for anything else."""
    several = (value,) if isinstance(value, str | os.PathLike) else value
    if not isinstance(several, Sequence) or not all(isinstance(f, str | os.PathLike) for f in several):
        raise CallError(f"path= must be a folder or a list of folders, not {_a(value)}")
    return tuple(os.fspath(f) for f in several if isinstance(f, str | os.PathLike))


def text_option(option: str, value: object, path: bool = False) -> None:
    """Raises CallError if the value is neither None nor a str (nor, with `path`, a path)."""
    if value is not None and not isinstance(value, (str, os.PathLike) if path else str):
        raise CallError(f"{option}= must be a {'path' if path else 'str'}, not {_a(value)}")
