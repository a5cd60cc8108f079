"""Answers that are remembered: of functions of terms and facts, which depend on their arguments alone.

All threads share them, and they may be forgotten: the same question has the same answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

MOST = 1 << 16
"""Answers, of all questions: some 30 MB. At more of them, all are forgotten."""

P = ParamSpec("P")
T = TypeVar("T")
_ANSWERS: dict[tuple[object, ...], object] = {}


def remembered(question: Callable[P, T]) -> Callable[P, T]:
    """A function whose answers are remembered. Its arguments are hashable, and are given by position."""

    @wraps(question)
    def asked(*args: P.args, **named: P.kwargs) -> T:
        if named:
            raise TypeError(f"{question.__name__} takes its arguments by position")
        key = (question, *args)
        if (found := _ANSWERS.get(key, _ANSWERS)) is _ANSWERS:
            found = question(*args, **named)
            if len(_ANSWERS) >= MOST:
                _ANSWERS.clear()
            _ANSWERS[key] = found
        return found  # type: ignore[return-value]

    return asked
