"""Which branches of the planner and the passes a program takes: (file, line, next line), for hunts that look for new ones.

From Python 3.12 on `sys.monitoring` tells each branch once, at no cost after; before, a trace function tells lines, which is slow,
so that only one in SAMPLE programs is watched.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
WATCHED = (str(ROOT / "passes"), str(ROOT / "tilec" / "plan"), str(ROOT / "runtime" / "emit"))
SAMPLE = 1 if sys.version_info >= (3, 12) else 16
Branch = tuple[str, int, int]


class Branches:
    """The branches that were taken until now."""

    def __init__(self) -> None:
        self.taken: set[Branch] = set()
        self._new: set[Branch] = set()
        self._ways: dict[tuple[str, int], set[int]] = {}

    @contextmanager
    def watched(self) -> Iterator[set[Branch]]:
        """Those that are taken inside for the first time; the set is filled at the end."""
        found: set[Branch] = set()
        self._new = set()
        start, stop = (self._monitor, self._leave) if sys.version_info >= (3, 12) else (self._trace, _untrace)
        start()
        try:
            yield found
        finally:
            stop()
            found |= self._new - self.taken
            self.taken |= found

    # ---- sys.settrace --------------------------------------------------------------------------------------------------

    def _trace(self) -> None:
        sys.settrace(self._called)

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(WATCHED):
            return None
        before = frame.f_lineno

        def line(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal before
            if event == "line":
                self._new.add((name, before, frame.f_lineno))
                before = frame.f_lineno
            return line

        return line

    # ---- sys.monitoring ------------------------------------------------------------------------------------------------

    def _monitor(self) -> None:
        monitoring = sys.monitoring
        tool = monitoring.COVERAGE_ID
        if monitoring.get_tool(tool) is None:
            monitoring.use_tool_id(tool, "tilec-fuzz")
            monitoring.register_callback(tool, monitoring.events.BRANCH, self._branched)
        monitoring.set_events(tool, monitoring.events.BRANCH)

    def _leave(self) -> None:
        sys.monitoring.set_events(sys.monitoring.COVERAGE_ID, 0)

    def _branched(self, code: CodeType, at: int, to: int) -> Any:
        if not code.co_filename.startswith(WATCHED):
            return sys.monitoring.DISABLE
        place = code.co_firstlineno * 100_000 + at
        self._new.add((code.co_filename, place, to))
        ways = self._ways.setdefault((code.co_filename, place), set())
        ways.add(to)
        return sys.monitoring.DISABLE if len(ways) > 1 else None  # both are known


def _untrace() -> None:
    sys.settrace(None)
