"""Faults that `python -m tests.mutations` plants."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import mutations

SOURCE = '''
LIMIT = 3

def f(x: "a + 1", y=None):
    """1 + 1"""
    assert x > 0, "never"
    if y:
        return -x if not y else x * 2
    return f"é {x + 1}" + "é", x < LIMIT and y is None
'''


def test_what_may_be_planted():
    message = [fault.message(SOURCE) for fault in mutations.faults(SOURCE)]
    assert message == [
        "line 7: `y` becomes `not (y)`",
        "line 8: `not y` becomes `(y)`",
        "line 8: `x * 2` becomes `(x) + (2)`",
        "line 8: `2` becomes `3`",
        "line 9: `x < LIMIT` becomes `(x) <= (LIMIT)`",
        "line 9: `x < LIMIT and y is None` becomes `(x < LIMIT) or (y is None)`",
        "line 9: `y is None` becomes `(y) is not (None)`",
    ]


@pytest.mark.parametrize("name", mutations.FILES)
def test_a_file_with_a_fault_is_another_program(name):
    source = (mutations.ROOT / name).read_text(encoding="utf-8")
    found = mutations.faults(source)
    assert len(found) > 10
    assert ast.dump(ast.parse(found[len(found) // 2].planted(source))) != ast.dump(ast.parse(source))
    assert all((mutations.ROOT / "tests" / test).exists() for test in mutations.FILES[name].split())


def test_a_fault_is_caught_by_the_test_that_sees_it(tmp_path: Path):
    (tmp_path / "seen.py").write_text("def f(x):\n    return x < 1\n")
    (tmp_path / "test_seen.py").write_text("import seen\n\ndef test_least():\n    assert seen.f(0) and not seen.f(1)\n")
    assert mutations.caught(tmp_path, ["test_seen.py"]) == ""
    source = (tmp_path / "seen.py").read_text()
    (tmp_path / "seen.py").write_text(mutations.faults(source)[0].planted(source))
    assert mutations.caught(tmp_path, ["test_seen.py"]) == "test_seen.py::test_least"
