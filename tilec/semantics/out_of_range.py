"""The index of a failed run-time check: found in the arguments of the call, after the failure.

A kernel leaves only the number of the check. This module evaluates the check's subscripts, and the conditions around it,
again as the reference does (`tilec/semantics/reference.py`). It evaluates nothing else of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tilec.core.diagnostics import CallError, CheckError
from tilec.dsl import ast
from tilec.dsl.specialise import Specialised
from tilec.semantics.reference import (
    EVERYWHERE,
    OutOfRangeError,
    Space,
    Tensors,
    blocks,
    evaluate,
    extents_of,
    is_inside,
    stored,
)

MOST = 1 << 28  # elements to evaluate, about a second's work: the answer is not worth more
HINT = "`pad(access, value)` gives a value outside"


def explained(error: CheckError, specialised: Specialised, inputs: Mapping[str, Callable[[], np.ndarray]]) -> CallError:
    """The error with the index and its position, if these can be found. `inputs` are functions that return an input as a
    NumPy array."""
    (problem,) = error.diagnostics
    for equation in specialised.equations:
        for node in ast.traverse(equation.value):
            if isinstance(node, ast.Access) and problem.message.startswith(f"{node.span}: "):
                try:
                    _evaluate(specialised, equation, node, inputs)
                except OutOfRangeError as found:
                    detail = found.diagnostics[0].message
                    return CheckError(f"{problem.message}: {detail}", hint=HINT)
                except Exception:  # no memory, an array that is gone: the failure itself must still be reported
                    break
    return CheckError(problem.message, hint=HINT)


def on_host(buffer: Any) -> Callable[[], np.ndarray]:
    """A function that returns an argument as a NumPy array, from any device."""

    def copy() -> np.ndarray:
        from tilec.runtime import buffers

        owner = buffer.owner
        if buffer.device == "cpu":
            return buffers.wrap(buffer)
        fetch = getattr(owner, "cpu", None) or getattr(owner, "get", None)
        if fetch is None:
            raise CallError("an array of this kind stays on its GPU")
        return buffers.wrap(buffers.view(fetch()))

    return copy


def _evaluate(
    specialised: Specialised, equation: ast.Equation, target: ast.Access, inputs: Mapping[str, Callable[[], np.ndarray]]
) -> None:
    """Raises OutOfRangeError if an index of the access is outside."""
    makers = {e.name: e for e in specialised.equations}
    needed, fresh = set(), set(_reads(equation.value, target))
    while fresh:
        needed |= fresh
        values = [makers[name].value for name in fresh if name in makers]
        fresh = {n.tensor for value in values for n in ast.traverse(value) if isinstance(n, ast.Access)} - needed
    made = tuple(e for e in specialised.equations if e.name in needed)
    if sum(prod(high - low for low, high in extents_of(e).values()) for e in made) > MOST:
        return
    arrays: Tensors = {t.name: inputs[t.name]() for t in specialised.inputs if t.name in needed}
    tensors = evaluate(replace(specialised, equations=made), arrays)
    for name, dtype, shape in _shapes(specialised):
        if name not in tensors:
            tensors[name] = np.broadcast_to(np.zeros((), stored(dtype)), shape)  # only its shape takes part
    extents = extents_of(equation)
    space = Space(tensors, specialised.sizes, {name: axis for axis, name in enumerate(extents)}, extents, False)
    with np.errstate(all="ignore"):
        for part in blocks(equation, space):
            _descend(part, equation.value, target, EVERYWHERE)


def _shapes(specialised: Specialised) -> Iterator[tuple[str, Any, tuple[int, ...]]]:
    yield from ((t.name, t.dtype, ast.extents_of(t)) for t in specialised.inputs)
    yield from ((e.name, e.dtype, ast.extents_of(e)) for e in specialised.equations)


def _path(expr: ast.Expr, target: ast.Access) -> ast.Expr:
    """The child that the access is in."""
    return next(child for child in ast.children(expr) if any(n is target for n in ast.traverse(child)))


def _reads(expr: ast.Expr, target: ast.Access) -> Iterator[str]:
    """The tensors that `_descend` reads."""
    while True:
        others: tuple[ast.Expr, ...] = ()
        match expr:
            case _ if expr is target:
                others = target.subscripts
            case ast.Conditional(condition=condition):
                others = (condition,)
            case ast.Pad(access=access):
                others = access.subscripts
        yield from (n.tensor for e in others for n in ast.traverse(e) if isinstance(n, ast.Access))
        if expr is target:
            return
        expr = _path(expr, target)


def _descend(space: Space, expr: ast.Expr, target: ast.Access, mask: np.ndarray) -> None:
    """Evaluates the access as `Space.value` of the whole expression does: for the same indices, where it is used."""
    while expr is not target:
        child = _path(expr, target)
        match expr:
            case ast.Conditional(condition=condition, then=then) if child is not condition:
                taken = space.value(condition, mask)
                mask = mask & (taken if child is then else ~taken)
            case ast.Pad(access=access, value=value) if child is value:
                inside = is_inside(space.subscripts(access, mask), space.tensors[access.tensor].shape)
                mask = mask & ~inside
            case ast.Reduce(ranges=ranges):
                mask = space.anywhere(mask, [space.axes[r.index] for r in ranges])
                mask = mask & (space.volume({r.index for r in ranges}) > 0)
            case ast.Scan(range=range_):
                axis = space.axes[range_.index]
                mask = space.spread(np.any(space.spread(mask, [axis]), axis, keepdims=True), [axis])
        expr = child
    space.access(target, mask)
