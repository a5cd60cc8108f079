"""Branches that do the same with other memory are printed once."""

from itertools import count
from textwrap import dedent

import pytest

from tilec.runtime.emit.merged_branches import merged, without_unused_arrays

ARRAYS = "    s = cuda.local.array(2, float32)\n    t = cuda.local.array(2, float32)\n"


def merged_text(text: str, before: str = "") -> str | None:
    numbers = count(1)
    lines = [f"    {line}" for line in dedent(text).strip().splitlines()]
    found = merged(lines, before.splitlines(), lambda name: f"{name}_{next(numbers)}")
    return None if found is None else dedent("\n".join(found))


def test_memory_is_chosen_before():
    found = merged_text("""
        if tile < 8:
            a = tile + 1
            store(x + a, load(p))
        else:
            b = tile + 1
            store(y + b, load(p))
    """)
    expected = "is_own_1 = tile < 8\nx_2 = x if is_own_1 else y\na = tile + 1\nstore(x_2 + a, load(p))"
    assert found == expected


def test_a_name_that_is_several_is_chosen_by_place():
    found = merged_text("""
        if c:
            f(x, x)
        else:
            f(x, y)
    """)
    assert found == "x_1 = x if c else y\nf(x, x_1)"


def test_what_one_branch_computes_first_moves_out():
    found = merged_text("""
        if within_u31(n) < 8:
            f(x, n)
        else:
            # of the rest
            m = int64(max(within_i32(n - 8), 0))
            f(y, m)
    """)
    moved, own, *rest = found.splitlines()[1:]
    assert (moved, own) == ("m = int64(max(within_i32(n - 8), 0))", "is_own_1 = within_u31(n) < 8")
    assert rest == ["x_2 = x if is_own_1 else y", "n_3 = n if is_own_1 else m", "f(x_2, n_3)"]


def test_ranges_are_what_both_branches_have():
    found = merged_text("""
        if c:
            f(within_u31(n) // 3)
        else:
            f(within_i32(n) // 3)
    """)
    assert found == "f(within_i32(n) // 3)"


def test_arrays_of_registers_become_one():
    text = """
        if c:
            load_f32x2(s, 0, x)
            f(s[1])
        else:
            load_f32x2(t, 0, y)
            f(t[1])
    """
    assert merged_text(text, ARRAYS) == "x_1 = x if c else y\nload_f32x2(s, 0, x_1)\nf(s[1])"
    assert without_unused_arrays([*ARRAYS.splitlines(), "    f(s[1])"]) == [ARRAYS.splitlines()[0], "    f(s[1])"]


def test_comments_of_both_stay():
    found = merged_text("""
        if c:
            # q = x
            for i in range(3):
                f(x, i)
        else:
            # k = y
            for j in range(3):
                f(y, j)
    """)
    assert found == "x_1 = x if c else y\n# q = x\n# k = y\nfor i in range(3):\n    f(x_1, i)"


@pytest.mark.parametrize(
    "then, otherwise, before",
    [
        ("f(x)", "g(x)", ""),  # another function
        ("f(x + 1)", "f(x + 2)", ""),  # another number
        ("f(x, key=1)", "f(x, other=1)", ""),
        ("f(x.a)", "f(x.b)", ""),
        ("f(x < 1)", "f(x <= 1)", ""),
        ("f(x)", "f(x); f(y)", ""),  # more, and not arithmetic alone
        ("a = 1; b = 2; f(a)", "c = 1; d = 2; f(d)", ""),  # another of its variables
        ("a = 1; b = 2; f(b)", "c = 1; c = 2; f(c)", ""),  # one variable for two
        ("a = 1; f(a)", "b = 1; f(b)", "    b = 0\n"),  # what comes after may read it
        ("f(x, m)", "m = n - 8; f(x, m)", "    m = 0\n"),  # a variable that is another one's before
        ("f(x)", "m = load(n); f(x)", ""),  # read where it may not be
        ("f(s[0])", "f(t[0])", ARRAYS),  # what earlier iterations left
        ("s[0] = 1; f(s[0])", "t[0] = 1; f(t[0])", ARRAYS.replace("2", "4", 1)),  # of another size
        ("s[0] = 1; f(s[0])", "t[0] = 1; f(t[0])", ARRAYS + "    f(t[0])\n"),  # used elsewhere
    ],
)
def test_other_branches_stay(then, otherwise, before):
    bodies = ["\n".join(f"    {s}" for s in text.split("; ")) for text in (then, otherwise)]
    assert merged_text(f"if c:\n{bodies[0]}\nelse:\n{bodies[1]}", before) is None
