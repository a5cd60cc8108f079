"""Which cases of crossed parameters run when: some have every value, more have every pair of values, all have every combination."""

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
    """Of a test marked `crossed`, cases with every value of each parameter stay as they are, those that add pairs of values become
    slow, and the rest are marked `whole`."""
    groups: dict[str, list] = {}
    for item in items:
        if item.get_closest_marker("crossed"):
            groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in groups.values():
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
