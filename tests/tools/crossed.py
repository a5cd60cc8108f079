"""Which cases of tests that take long run when: `make test` has some, `make test-all` more, and `make test-whole` all."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from itertools import combinations

import pytest


def covering(rows: Sequence[tuple[Hashable, ...]], strength: int, chosen: Sequence[int] = ()) -> list[int]:
    """The numbers of rows that have every combination of `strength` columns' values that any row has, the `chosen` ones among them.

    The row that adds most comes next, the first of several: the same on every run.
    """
    width = len(rows[0]) if rows else 0
    columns = list(combinations(range(width), min(strength, width)))
    parts = [{(c, tuple(row[k] for k in c)) for c in columns} for row in rows]
    found = list(chosen)
    missing = set().union(*parts) - set().union(*(parts[n] for n in found))
    while missing:
        best = max(range(len(rows)), key=lambda n: (len(parts[n] & missing), -n))
        found.append(best)
        missing -= parts[best]
    return sorted(found)


def thin(items: Sequence[pytest.Item]) -> None:
    """Which cases of a test stay as they are, by its marks; of those that are slow by themselves, none changes.

    `crossed`: cases with every value of each parameter stay, those that add pairs of values become slow, and the rest are marked
    `whole`. `some(n)`: every n-th case of those that are left stays, the others become slow.
    """
    groups: dict[str, list] = {}
    for item in items:
        if item.get_closest_marker("crossed") or item.get_closest_marker("some"):
            groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in groups.values():
        if cases[0].get_closest_marker("crossed"):
            _cross(cases)
        if (some := cases[0].get_closest_marker("some")) is not None:
            left = [case for case in cases if not case.get_closest_marker("slow") and not case.get_closest_marker("whole")]
            for n, case in enumerate(left):
                if n % some.args[0]:
                    case.add_marker("slow")


def _cross(cases: list) -> None:
    given = [m.args[0] for m in cases[0].iter_markers("parametrize")]
    names = [re.split(r",\s*", g) if isinstance(g, str) else g for g in given]
    assert len(names) > 1, f"{cases[0].nodeid} crosses no parameters"
    rows = [tuple(tuple(id(c.callspec.params[n]) for n in each) for each in names) for c in cases]  # the lists' own values
    quick = [n for n, case in enumerate(cases) if not case.get_closest_marker("slow")]
    now = [quick[n] for n in covering([rows[n] for n in quick], 1)]
    pairs = covering(rows, 2, now)
    for n, case in enumerate(cases):
        if n not in pairs:
            case.add_marker("whole")
        elif n not in now:
            case.add_marker("slow")
