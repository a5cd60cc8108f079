"""Looking for failures: cases are drawn until the time is up, and each kind of failure is reduced and kept."""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fuzz.compare import check
from fuzz.programs import Case, cases
from fuzz.schedules import TARGETS, schedules
from tilec.diagnostics import InternalError, TileError

REDUCING = 60
"""Seconds that may go into reducing one failure."""


@dataclass
class Found:
    """A reduced case that fails, and how."""

    case: Case
    schedule: str | None
    way: str
    error: Exception
    kind: str


def kind_of(error: Exception) -> str:
    """What failures of one defect have in common: the error's type, the place that raised it, its words."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
        frames += traceback.extract_tb(cause.__traceback__)
    words = re.sub(r"[\d.]+|`[^`]*`|\[.*?\]|\b[xyn]\d+\b|e[+-]\d+", "", str(cause).partition("\n")[0])
    place = frames[-1].name if frames and "<kernels>" not in frames[-1].filename else "kernel"
    return f"{type(cause).__name__} in {place}: {words.strip()[-80:]}"


class _TimeIsUp(BaseException):
    """Hypothesis does not take it for a failure, and draws no more."""


@st.composite
def drawn(draw, way: str, scheduled: bool = True, **options) -> tuple[Case, str | None]:
    """A case, and sometimes a schedule file for it."""
    case = draw(cases(**options))
    if not scheduled or way == "stages" or not draw(st.booleans()):
        return case, None
    try:
        return case, draw(schedules(case, TARGETS[way]))
    except (TileError, InternalError):
        return case, None  # that is found without a schedule, too


def hunt(way: str, start: int, minutes: float, tell: Callable[[Found], None], examples: int = 100, **options) -> int:
    """Draws cases for so many minutes, from `start` on; returns how many ran. `tell` is called for each kind of failure as it
    is found, and once more with a reduced case. The same `start` draws the same cases.
    """
    end, kinds, ran = time.monotonic() + 60 * minutes, set(), 0
    latest: list[Found] = []
    since: list[float] = []
    while time.monotonic() < end:
        latest.clear()

        @seed(start)
        @settings(
            max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink], report_multiple_bugs=False,
        )  # fmt: skip
        @given(drawn(way, **options))
        def draw(pair):
            nonlocal ran
            case, schedule = pair
            if not latest and time.monotonic() > end:
                raise _TimeIsUp
            if latest and time.monotonic() > since[0] + REDUCING:
                raise _TimeIsUp
            ran += 1
            try:
                check(case, way, schedule)
            except Exception as error:
                kind = kind_of(error)
                if kind in kinds or (latest and latest[-1].kind != kind):
                    return
                if not latest:
                    since[:] = [time.monotonic()]
                    tell(Found(case, schedule, way, error, kind))
                latest.append(Found(case, schedule, way, error, kind))
                raise

        try:
            draw()
        except _TimeIsUp:
            if not latest:
                break
        except Exception:
            if not latest:
                raise
        if latest:
            kinds.add(latest[-1].kind)
            tell(latest[-1])
        start += 1
    return ran
