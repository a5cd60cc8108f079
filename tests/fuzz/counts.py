"""What came of cases, in numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Counts:
    """What happened to cases: `refused` are schedules and texts; `unbounded` are compared results some of whose elements may be
    anything; `branches` are those of the passes that a program was the first of its process to take, which is then `mutated`;
    `constructs` are programs by what they contain; `reasons` are compiled classes of sizes by why not all sizes vary, "" for none.
    """

    tried: int = 0
    failed: int = 0
    scheduled: int = 0
    refused: int = 0
    statements: int = 0
    compared: int = 0
    unbounded: int = 0
    branches: int = 0
    mutated: int = 0
    seconds: float = 0.0
    constructs: Counter = field(default_factory=Counter)
    reasons: Counter = field(default_factory=Counter)

    def add(self, other: dict) -> None:
        for name, value in other.items():
            if isinstance(known := getattr(self, name), Counter):
                known.update(value)
            else:
                setattr(self, name, getattr(self, name) + value)
