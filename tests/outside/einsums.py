"""Einsum strings: every call of `np.einsum` in NumPy's own tests, and the equations of opt_einsum's tests."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from math import prod

import numpy as np

from tests.outside.common import Program
from tilec.core.dtypes import from_numpy
from tilec.torch.program import Unsupported

Recorded = tuple[str, tuple[np.ndarray, ...]]


def cases() -> Iterator[tuple[str, Callable[[], Program]]]:
    for origin, calls in (("numpy", numpy_calls()), ("opt_einsum", opt_einsum_calls())):
        seen = set()
        for subscripts, operands in calls:
            key = (subscripts, tuple((a.shape, a.dtype) for a in operands))
            if key in seen:
                continue
            seen.add(key)
            shapes = " ".join(f"{a.dtype}{list(a.shape)}" for a in operands)
            yield f"{origin} {subscripts!r} {shapes}", lambda s=subscripts, o=operands: translate(s, o)


# ---- what they call --------------------------------------------------------------------------------------------------


def numpy_calls() -> list[Recorded]:
    """The operands of every call that NumPy's test class makes; its tests run, with `np.einsum` listened to."""
    tests = importlib.import_module("numpy._core.tests.test_einsum")
    calls: list[Recorded] = []
    original = np.einsum

    def listening(*arguments, **options):
        with_output = "out" in options or "casting" in options
        if isinstance(arguments[0], str) and not with_output:
            try:
                result = original(*arguments, **options)
            finally:
                calls.append((arguments[0], tuple(np.array(a) for a in arguments[1:])))
            return result
        return original(*arguments, **options)

    np.einsum = listening
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            for kind in (tests.TestEinsum, tests.TestEinsumPath):
                for name, test in inspect.getmembers(kind, inspect.isfunction):
                    if name.startswith("test") and "error" not in name:
                        _run(kind, test)
    finally:
        np.einsum = original
    good = []
    for subscripts, operands in calls:
        try:
            original(subscripts, *operands)
        except (ValueError, TypeError):
            continue  # a test of an error
        good.append((subscripts, operands))
    return good


def _run(kind: type, test: Callable) -> None:
    """A test for every value of its parameters; what it asserts is no concern here."""
    marks = [m for m in getattr(test, "pytestmark", []) if m.name == "parametrize"]
    names = [n.strip() for m in marks for n in m.args[0].split(",")]
    for values in product(*(m.args[1] for m in marks)):
        flat = [v for m, value in zip(marks, values) for v in (value if "," in m.args[0] else [value])]
        try:
            test(kind(), **dict(zip(names, flat)))
        except Exception:
            continue


def opt_einsum_calls() -> list[Recorded]:
    """Their lists of equations, of the sizes that their own `build_views` gives."""
    from opt_einsum.testing import build_views

    random = np.random.default_rng(0)
    calls = []
    for module in ("test_contract", "test_edge_cases", "test_input", "test_paths"):
        found = importlib.import_module(f"opt_einsum.tests.{module}")
        for value in vars(found).values():
            listed = value if isinstance(value, list) else []
            for item in listed:
                equation = item[0] if isinstance(item, (list, tuple)) and item else item
                if isinstance(equation, str) and "," in equation + "," and "->" in equation and "..." not in equation:
                    try:
                        views = build_views(equation, array_function=lambda *s: random.standard_normal(s))
                        np.einsum(equation, *views, optimize=True)
                    except (KeyError, ValueError):
                        continue  # not an equation, or with sizes that stand elsewhere
                    calls.append((equation, tuple(np.asarray(v) for v in views)))
    return calls


# ---- as a program ----------------------------------------------------------------------------------------------------


def plan(subscripts: str, shapes: list[tuple[int, ...]]) -> tuple[list[list[str]], dict[str, int], list[str]]:
    """The indices of each operand, the extent of each index, and the indices of the result."""
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    terms = left.split(",")
    rank = max((len(s) - len(t.replace("...", "")) for t, s in zip(terms, shapes) if "..." in t), default=0)
    free = [f"e{n}" for n in range(rank)]
    named, extents = [], {}
    for term, shape in zip(terms, shapes):
        before, dots, after = term.partition("...")
        count = len(shape) - len(before) - len(after)
        names = [*map(_index, before), *(free[rank - count :] if dots else []), *map(_index, after)]
        named.append(names)
        for index, extent in zip(names, shape):
            extents[index] = extent if extents.get(index, 1) == 1 else extents[index]
    if arrow:
        before, dots, after = right.partition("...")
        outer = [*map(_index, before), *(free if dots else []), *map(_index, after)]
    else:
        letters = left.replace(".", "").replace(",", "")
        outer = [*free, *(_index(i) for i in sorted(set(letters)) if letters.count(i) == 1)]
    return named, extents, outer


def translate(subscripts: str, operands: tuple[np.ndarray, ...]) -> Program:
    if any(a.dtype.kind in "cO" for a in operands):
        raise Unsupported("complex numbers or objects")
    if any(from_numpy(a.dtype) is None for a in operands):
        raise Unsupported(f"no type like {next(a.dtype for a in operands if from_numpy(a.dtype) is None)}")
    operands = tuple(np.ascontiguousarray(a) if a.ndim else a for a in operands)
    named, extents, outer = plan(subscripts, [a.shape for a in operands])
    if len(set(outer)) < len(outer):
        raise Unsupported("an index twice in the result")
    result = np.einsum(subscripts, *operands, optimize=True)
    wide = np.einsum(subscripts, *(a.astype(np.float64) for a in operands), optimize=True)
    accumulator = from_numpy(np.asarray(result).dtype)
    factors = []
    for n, (indices, array) in enumerate(zip(named, operands)):
        subscript = [i if array.shape[d] == extents[i] else "0" for d, i in enumerate(indices)]
        factors.append(f"{accumulator}(a{n}{_brackets(subscript)})")
    inner = [i for i in dict.fromkeys(i for indices in named for i in indices) if i not in outer]
    body = " * ".join(factors)
    if inner:
        ranges = ", ".join(f"{i} in 0:{extents[i]}" for i in inner)
        kind = f"any[{ranges}]({body.replace('*', 'and')})" if accumulator.name == "bool" else ""
        narrow = accumulator.is_float and accumulator.bits < 32
        kind = kind or f"sum[{ranges}]({body}) in {'f32' if narrow else accumulator}"
    else:
        kind = body.replace("*", "and") if accumulator.name == "bool" else body
    where = " where " + ", ".join(f"{i} in 0:{extents[i]}" for i in outer) if outer else ""
    inputs = ", ".join(f"a{n}: {from_numpy(a.dtype)}{_brackets(map(str, a.shape))}" for n, a in enumerate(operands))
    shape = _brackets(str(extents[i]) for i in outer)
    text = f"op f({inputs}) -> (y: {accumulator}{shape}) {{\n y{_brackets(outer)} = {kind}{where}\n}}"
    expected = wide.astype(np.asarray(result).dtype) if accumulator.is_float else np.asarray(result)
    unit = 2.0**-accumulator.mantissa if accumulator.is_float else 0
    sizes = np.einsum(subscripts, *(np.abs(a.astype(np.float64)) for a in operands), optimize=True)
    steps = len(operands) + prod(extents[i] for i in inner)  # roundings of each of the two sums
    return Program(
        text, list(operands), [np.asarray(expected)], 4 * unit, 2 * steps * unit * float(sizes.max(initial=0))
    )


def _index(letter: str) -> str:
    return f"i_{letter}" if letter.islower() else f"j_{letter.lower()}"


def _brackets(parts) -> str:
    joined = ", ".join(parts)
    return f"[{joined}]" if joined else ""
