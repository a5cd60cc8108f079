"""The tests of `tilec verify`: sizes near those at which kernels change, and inputs of every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import prod

import numpy as np

from tilec.core.dtypes import DType
from tilec.core.varying import Varying
from tilec.dsl import ast
from tilec.dsl.specialise import Specialised
from tilec.plan.model import Plan
from tilec.semantics.inputs import Arrays, random_inputs, subscript_limits

KINDS = ("ordinary", "huge", "tiny", "nan", "infinity", "ties")
PRIMES = (5, 7, 3, 11, 2, 13)
LARGEST = 64  # a tile around which sizes are chosen
WORK = 60_000  # steps of a program's loops that are run: more take too long at the last stages

# ---- sizes -----------------------------------------------------------------------------------------------


def first_sizes(names: Sequence[str], given: dict[str, int]) -> list[dict[str, int]]:
    """Primes, ones, and each size 0 in turn. Given sizes stay."""
    free = [n for n in names if n not in given]
    chosen = [primes(free), dict.fromkeys(free, 1), *({**primes(free), n: 0} for n in free)]
    return distinct({**c, **given} for c in chosen)


def sizes_around_tiles(names: Sequence[str], given: dict[str, int], plan: Plan) -> list[dict[str, int]]:
    """Two neighbouring sizes at a time one more and one less than a tile of the plan, the others 2."""
    free = [n for n in names if n not in given]
    tiles = {t for k in plan.kernels for t in (*k.tile, *getattr(k.options, "block", ()))}
    found = []
    for tile in sorted(t for t in tiles if 1 < t <= LARGEST):
        for first, second in zip(free, free[1:] or free):
            found.append(dict.fromkeys(free, 2) | {second: tile - 1, first: tile + 1} | given)
    return distinct(found)


def sizes_in_class(ranges: Mapping[str, Varying], plan: Plan, count: int, seed: int) -> list[dict[str, int]]:
    """So many sizes of a class that a plan serves: its ends and what is next to them, then those that the plan was made at, sizes
    around its tiles, and drawn ones."""
    tiles = sorted({t for k in plan.kernels for t in k.tile if t > 1})
    picks: list[Callable[[Varying], int]] = [
        lambda v: v.low, lambda v: v.high, lambda v: v.low + v.multiple, lambda v: v.high - v.multiple,
        *(partial(_multiple_of, t, more) for t in tiles for more in (0, 1)), lambda v: v.middle,
    ]  # fmt: skip
    chosen = [{name: pick(v) for name, v in ranges.items()} for pick in picks]
    chosen.insert(4, dict(plan.sizes))
    rng = np.random.default_rng(seed)
    for _ in range(count):
        chosen.append({n: int(rng.integers(v.low // v.multiple, v.high // v.multiple + 1)) * v.multiple for n, v in ranges.items()})
    return distinct(c for c in chosen if all(ranges[name].has(n) for name, n in c.items()))[:count]


def _multiple_of(tile: int, more: int, v: Varying) -> int:
    """A few of a tile, the least that a range has, or some more than that."""
    return (-(-v.low // tile) * tile // v.multiple + more) * v.multiple


def steps_of(specialised: Specialised) -> int:
    """How many steps the loops of a program take, as it is written."""
    found = 0
    for equation in specialised.equations:
        nodes = list(ast.traverse(equation.value))
        inner = [prod(map(_length, n.ranges)) for n in nodes if isinstance(n, ast.Reduce)]
        inner += [_length(n.range) for n in nodes if isinstance(n, ast.Scan)]
        found += prod(ast.extents_of(equation)) * max(1, sum(inner))
    return found


def _length(range_: ast.Range) -> int:
    low, high = map(ast.number_of, ast.ends_of(range_))
    return high - low


def primes(names: Sequence[str]) -> dict[str, int]:
    return {n: PRIMES[k % len(PRIMES)] for k, n in enumerate(names)}


def steps(plan: Plan) -> int:
    """How many steps the loops of a plan's kernels take."""
    return sum(prod(k.extents.values()) for k in plan.kernels)


def distinct(chosen: Iterable[dict[str, int]]) -> list[dict[str, int]]:
    return list({tuple(c.items()): c for c in chosen}.values())


# ---- inputs ----------------------------------------------------------------------------------------------


def inputs_of(specialised: Specialised, kind: str, seed: int) -> Arrays:
    """Inputs of one of `KINDS`. Integers that subscript a tensor stay inside it."""
    arrays = random_inputs(specialised, seed, {})
    limited = subscript_limits(specialised)
    for number, tensor in enumerate(specialised.inputs):
        rng = np.random.default_rng([seed, number, KINDS.index(kind)])
        if tensor.name not in limited and kind != "ordinary":
            arrays[tensor.name] = _of_kind(kind, arrays[tensor.name], ast.dtype_of(tensor), rng)
    return arrays


def _of_kind(kind: str, array: np.ndarray, dtype: DType, rng: np.random.Generator) -> np.ndarray:
    if dtype.kind == "bool":
        return array
    if dtype.is_integer:
        return _integers(kind, array, rng)
    import ml_dtypes

    limits = ml_dtypes.finfo(dtype.numpy)
    wide = array.astype(np.float64)
    with np.errstate(all="ignore"):
        match kind:
            case "huge":
                wide = np.clip(wide, -3, 3) * float(limits.max) / 4
            case "tiny":
                wide = wide * float(limits.smallest_normal)
            case "nan":
                wide = np.where(rng.integers(0, 4, wide.shape) == 0, np.nan, wide)
            case "infinity":
                wide = np.where(rng.integers(0, 4, wide.shape) == 0, np.copysign(np.inf, wide), wide)
            case "ties":
                wide = rng.choice([-1.0, -0.5, 0.0, 0.5, 1.0], wide.shape)
        return np.asarray(wide).astype(dtype.numpy)


def _integers(kind: str, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    limits = np.iinfo(array.dtype)
    match kind:
        case "huge":
            values = [limits.min, limits.max, limits.min + 1, limits.max - 1, limits.max // 2]
        case "ties":
            values = [0, 1]
        case _:
            return array
    return np.asarray(rng.choice(np.array(values, array.dtype), array.shape))
