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
from tilec.core.diagnostics import CallError
from tilec.core.dtypes import from_numpy
from tilec.dsl.einsum import fit, program, result_type, spelling
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


def translate(subscripts: str, operands: tuple[np.ndarray, ...]) -> Program:
    if any(a.dtype.kind in "cO" for a in operands):
        raise Unsupported("complex numbers or objects")
    if any(from_numpy(a.dtype) is None for a in operands):
        raise Unsupported(f"no type like {next(a.dtype for a in operands if from_numpy(a.dtype) is None)}")
    operands = tuple(np.ascontiguousarray(a) if a.ndim else a for a in operands)
    shapes, dtypes = [a.shape for a in operands], [from_numpy(a.dtype) for a in operands]
    try:
        of = spelling(subscripts)
    except CallError as error:
        raise Unsupported(str(error)) from None
    fitted = fit(of, shapes)
    result = np.einsum(subscripts, *operands, optimize=True)
    wide = np.einsum(subscripts, *(a.astype(np.float64) for a in operands), optimize=True)
    accumulator = result_type(dtypes)
    inner = [i for i in fitted.extents if i not in fitted.result]
    text = program(of, dtypes, shapes)
    expected = (wide if accumulator.is_float else np.asarray(result)).astype(accumulator.numpy)
    unit = 2.0**-accumulator.mantissa if accumulator.is_float else 0
    sizes = np.einsum(subscripts, *(np.abs(a.astype(np.float64)) for a in operands), optimize=True)
    steps = len(operands) + prod(fitted.extents[i] for i in inner)  # roundings of each of the two sums
    return Program(
        text, list(operands), [np.asarray(expected)], 4 * unit, 2 * steps * unit * float(sizes.max(initial=0))
    )
