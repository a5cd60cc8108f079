"""Objects that garbage collections leave out."""

from __future__ import annotations

import gc
import weakref

import pytest

from tilec.process.collection import frozen, uncollected


class Ring:
    def __init__(self):
        self.own = self


@pytest.fixture(autouse=True)
def nothing_is_left_out():
    """The tests' own process leaves out what it has collected (conftest.py)."""
    gc.unfreeze()
    yield
    gc.freeze()


def test_what_is_there_is_left_out_and_what_comes_is_not():
    before = Ring()
    found = weakref.ref(before)
    with frozen():
        del before
        made = weakref.ref(Ring())
        gc.collect()
        assert found() is not None and made() is None
        with frozen():  # within another, it ends nothing
            pass
        assert gc.get_freeze_count()
    assert not gc.get_freeze_count()
    gc.collect()
    assert found() is None


def test_some_that_the_interpreter_leaves_out_change_nothing(monkeypatch):
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 375)
    before = Ring()
    found = weakref.ref(before)
    with frozen():
        del before
        gc.collect()
        assert found() is not None
    gc.collect()
    assert found() is None


def test_what_a_caller_has_left_out_stays_so():
    gc.freeze()
    try:
        count = gc.get_freeze_count()  # some of which may end meanwhile
        with frozen():
            assert count // 2 < gc.get_freeze_count() <= count
        assert count // 2 < gc.get_freeze_count() <= count
    finally:
        gc.unfreeze()


def test_the_collector_is_as_before():
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
