"""Sizes that are met often are compiled for their numbers alone, beside the calls."""

import pickle
import threading
import time

import numpy as np
import pytest

import tilec
from tilec.driver import background
from tilec.driver.recipe import Recipe

TEXT = "op f(x: f32[M, N]) -> (s: f32[M]) { s[i] = sum[j](x[i, j]) }"


def op_after(calls: int) -> tilec.Op:
    return tilec.compile(TEXT, varies={"M": (1, 4000)}, target="cpu", specialise_after=calls)


def ones(m: int) -> np.ndarray:
    return np.ones((m, 5), np.float32)


def called(op: tilec.Op, *arrays: np.ndarray) -> list[bool]:
    """Whether each was run by what was compiled for its sizes alone."""
    found = []
    for x in arrays:
        np.testing.assert_array_equal(op(x), np.full(len(x), 5))
        found.append(op._last.recipe.of is None)
    return found


def wait_for(op: tilec.Op, count: int) -> list[str]:
    """What `classes` tells, once there are so many."""
    end = time.monotonic() + 60
    while len(op.classes()) < count and time.monotonic() < end:
        time.sleep(0.01)
    return [str(served) for served in op.classes()]


@pytest.fixture
def gate(monkeypatch):
    """Nothing is compiled in the background until it is set."""
    gate = threading.Event()
    monkeypatch.setattr(Recipe, "compile_by", lambda self, compiler: gate.wait(60))
    yield gate
    gate.set()


def test_calls_go_on_until_it_is_there(gate):
    op = op_after(3)
    assert called(op, *[ones(20), ones(21)] * 10, ones(22)) == [False] * 21
    assert len(op.classes()) == 1
    gate.set()
    class_, *own = wait_for(op, 3)
    assert class_ == "M = 17..128: 1 kernel"
    assert [text.split("\n")[0] for text in own] == ["M = 20: 1 kernel", "M = 21: 1 kernel"]
    assert "compiled for these numbers alone, after 3 calls (2 of at most 32 in the background)" in own[1]
    assert called(op, *[ones(20), ones(22), ones(21)] * 2) == [True, False, True] * 2


def test_calls_by_the_general_path_count(gate):
    """Such as those with arrays that are not row-major."""
    gate.set()
    op, x = op_after(3), np.asfortranarray(ones(20))
    assert called(op, x, x, x)[0] is False
    wait_for(op, 2)
    assert called(op, x, ones(20), ones(19), x) == [True, True, False, True]


def test_errors_are_reported_and_not_raised(monkeypatch):
    def fail(*_):
        raise OSError("no room")

    monkeypatch.setattr(Recipe, "compile_by", fail)
    op = op_after(1)
    assert called(op, ones(20)) == [False]
    assert "not compiled for these numbers alone: no room" in wait_for(op, 2)[1]
    assert called(op, *[ones(20)] * 3) == [False] * 3 and len(op.classes()) == 2


def test_so_many_are_compiled_and_no_more(monkeypatch):
    monkeypatch.setattr(background, "MOST", 2)
    monkeypatch.setattr(Recipe, "compile_by", lambda self, compiler: None)
    op = op_after(1)
    called(op, *(ones(m) for m in (20, 21, 22, 23)))
    wait_for(op, 3)
    assert called(op, *(ones(m) for m in (23, 22, 21, 20))) == [False, False, True, True]
    assert len(op.classes()) == 3


def test_what_is_no_class_is_not_compiled_once_more(gate):
    """A class of one number."""
    op = op_after(1)
    assert called(op, ones(1), ones(1)) == [True, True]
    gate.set()
    assert len(op.classes()) == 1


def test_a_pickled_op_goes_on_so(gate):
    gate.set()
    op = pickle.loads(pickle.dumps(op_after(1)))
    called(op, ones(20))
    wait_for(op, 2)
    assert called(op, ones(20)) == [True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"varies": {"M": (1, 9)}, "specialise_after": 0}, "a number of calls, from 1 on"),
        ({"varies": {"M": (1, 9)}, "specialise_after": True}, "a number of calls, from 1 on"),
        ({"varies": {"M": (1, 9)}, "specialise_after": "often"}, "a number of calls, from 1 on"),
        ({"specialise_after": 3}, "is for sizes that vary"),
        ({"varies": {"M": (1, 9)}, "invariant": ["M"], "specialise_after": 3}, "exclude each other"),
    ],
)  # fmt: skip
def test_the_option_is_checked(options, message):
    with pytest.raises(tilec.CallError, match=message):
        tilec.compile(TEXT, **options)


@pytest.mark.slow
def test_another_process_compiles(monkeypatch):
    """Machine code, too: this process finds all of it."""
    op, made = op_after(2), []
    run = Recipe.compiled_here
    monkeypatch.setattr(Recipe, "compiled_here", lambda self, *given: made.append(self) or run(self, *given))
    called(op, ones(33), ones(33), ones(33))
    assert "alone, after 2 calls" in wait_for(op, 2)[1]
    assert called(op, ones(33)) == [True] and all(recipe.of is not None for recipe in made)
