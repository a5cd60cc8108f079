"""Assignments of many variables at once, as statements that Numba reads."""

from __future__ import annotations

import random
from itertools import count
from types import SimpleNamespace

import pytest

from tilec.runtime.emit.assignments import MOST, assignments


def written(pairs):
    numbers = count()
    return assignments(pairs, lambda letters: f"{letters}_{next(numbers)}")


def test_up_to_thirty_are_one_statement():
    assert written([]) == []
    assert written([("m", "max(m, x)"), ("s", "s + m")]) == ["m, s = max(m, x), s + m"]
    assert len(written([(f"s{k}", f"s{k} + x") for k in range(MOST)])) == 1
    assert len(written([(f"s{k}", f"s{k} + x") for k in range(MOST + 1)])) == 2


def test_a_circle_needs_one_temporary():
    pairs = [(f"s{k}", f"s{(k + 1) % 40}") for k in range(40)]
    lines = written(pairs)
    assert lines[0] == "before_0 = s0" and len(lines) == 3


@pytest.mark.parametrize("size", [2, MOST, MOST + 1, 64, 255, 256])
@pytest.mark.parametrize("others", [0, 1, 2, 5])
def test_variables_get_the_values_of_before(size, others):
    """Texts name other variables, attributes of these names, and numbers whose digits end with letters."""
    draw = random.Random(size * others)
    names = [f"e{k}" for k in range(size)]
    terms = [[f"{draw.choice(names)} * {draw.randrange(1, 9)}" for _ in range(others)] for _ in names]
    pairs = [(name, " + ".join([f"of.{draw.choice(names)} * 1e0", *own])) for name, own in zip(names, terms)]
    before = {name: draw.randrange(100) for name in names} | {"of": SimpleNamespace(**dict.fromkeys(names, 7))}
    expected, found = {name: eval(text, {}, before) for name, text in pairs}, dict(before)
    for line in written(pairs):
        assert line.partition(" = ")[0].count(",") < MOST
        exec(line, {}, found)
    assert {name: found[name] for name in names} == expected
