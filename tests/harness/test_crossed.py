"""Which cases of crossed parameters run when (`tools/crossed.py`)."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from tools.crossed import covering, thin

pytest_plugins = ["pytester"]
GRIDS = [(2, 2, 2, 2), (3, 2, 4), (5, 3), (4,), (3, 3, 3, 3)]


@pytest.mark.parametrize("sizes", GRIDS)
@pytest.mark.parametrize("strength", [1, 2])
def test_every_combination_of_so_many_parameters_is_there(sizes, strength):
    rows = list(product(*map(range, sizes)))
    found = covering(rows, strength)
    for columns in combinations(range(len(sizes)), min(strength, len(sizes))):
        assert {tuple(rows[n][c] for c in columns) for n in found} == {tuple(r[c] for c in columns) for r in rows}
    assert len(set(found)) == len(found) and found == covering(rows, strength)
    if strength == 1:
        assert len(found) == max(sizes)


def test_pairs_are_fewer_than_all():
    assert len(covering(list(product(range(2), repeat=6)), 2)) <= 8
    assert len(covering(list(product(range(3), repeat=4)), 2)) <= 14


def test_what_is_chosen_already_counts():
    rows = list(product(range(3), range(4)))
    now = covering(rows, 1)
    assert set(now) < set(covering(rows, 2, now)) == set(range(12))


def test_no_rows_and_rows_that_are_not_a_grid():
    assert covering([], 2) == []
    assert covering([(0, 0), (0, 1), (1, 1)], 2) == [0, 1, 2]


TEXT = """
import pytest

@pytest.mark.crossed
@pytest.mark.parametrize("a", ["x", "y", pytest.param("z", marks=pytest.mark.slow)])
@pytest.mark.parametrize("b, c", [(0, 1), (0, 2)])
@pytest.mark.parametrize("d", [True, False])
def test_crossed(a, b, c, d): pass

@pytest.mark.parametrize("a", [1, 2])
@pytest.mark.parametrize("b", [1, 2])
def test_other(a, b): pass

@pytest.mark.some(3)
@pytest.mark.parametrize("a", [0, 1, pytest.param(2, marks=pytest.mark.slow), 3, 4, 5, 6, 7])
def test_some(a): pass

@pytest.mark.crossed
@pytest.mark.parametrize("a", [1, 2])
def test_of_one(a): pass
"""


def test_tests_that_are_marked(pytester):
    """Values that are slow by themselves stay slow."""
    *items, one, _ = pytester.getitems(TEXT)
    thin(items)
    when: dict[str, set[tuple]] = {"now": set(), "slow": set(), "whole": set()}
    for item in items:
        mark = next((m for m in ("whole", "slow") if item.get_closest_marker(m)), "now")
        if item.originalname == "test_other":
            assert mark == "now"
        elif item.originalname == "test_some":
            assert mark == ("now" if item.callspec.params["a"] in (0, 4, 7) else "slow")
        else:
            given = item.callspec.params
            when[mark].add((given["a"], (given["b"], given["c"]), given["d"]))
    both = when["now"] | when["slow"]
    every = list(product("xyz", [(0, 1), (0, 2)], [True, False]))
    assert sorted(both | when["whole"]) == sorted(every) and when["whole"]
    assert not any("z" in case for case in when["now"])
    for k in range(3):
        assert {case[k] for case in when["now"]} == {case[k] for case in every} - {"z"}
        assert {case[:k] + case[k + 1 :] for case in both} == {case[:k] + case[k + 1 :] for case in every}
    with pytest.raises(AssertionError, match=r"test_of_one.* crosses no parameters"):
        thin([one])
