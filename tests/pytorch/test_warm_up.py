"""The processes that compile start with a trace, and end with it where nobody asks them."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

from tilec.process import compile_server  # noqa: E402
from tilec.process.collection import OBJECTS_THRESHOLD as LEAST  # noqa: E402
from tilec.torch import backend, warm_up  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")


@pytest.fixture
def events(monkeypatch):
    found = []
    monkeypatch.setattr(warm_up, "load_compilers", lambda kind: found.append(f"{kind} start"))
    monkeypatch.setattr(warm_up, "end_unused_compilers", lambda kind: found.append(f"{kind} end"))
    monkeypatch.setattr(backend, "load_compilers", lambda kind: found.append("graph"))
    warm_up.expect()
    return found


def traced(name="tilec"):
    function = eval("lambda x: x * 2 + 1")  # of code of its own, which Dynamo has not traced
    torch.compile(function, backend=name)(torch.randn(3))


def test_they_start_before_there_is_a_graph(events):
    traced()
    traced()
    assert events == ["cpu start", "graph", "cpu end"] * 2


def test_they_start_for_another_back_end_once(events):
    traced()
    traced("eager")
    traced("eager")
    assert events == ["cpu start", "graph", "cpu end", "cpu start", "cpu end"]
    traced()
    traced()
    assert events[5:] == ["graph", "cpu start", "graph", "cpu end"]


def test_a_reset_is_survived(events):
    traced()
    torch._dynamo.reset()
    traced()
    traced()
    assert events[3:] == ["graph", "cpu start", "graph", "cpu end"]


@pytest.fixture
def nothing_is_left_out():
    """The tests' own process leaves out what it has collected (conftest.py)."""
    gc.unfreeze()
    yield
    gc.freeze()


def test_garbage_collections_leave_out_what_is_there_before(monkeypatch, nothing_is_left_out):
    """While Dynamo traces, and while this back end compiles a backward graph, after that."""
    found = []

    def noted(module, name):
        function = getattr(module, name)

        def call(*given):
            found.append((name, next((g for g in given if g in ("forward", "backward")), ""), gc.get_freeze_count() >= LEAST))
            return function(*given)

        monkeypatch.setattr(module, name, call)

    noted(backend, "compile_graph")
    noted(backend, "compile_aten")
    warm_up.expect()
    x = torch.randn(3, requires_grad=True)
    torch.compile(lambda x: (x * 2).sin(), backend="tilec")(x).sum().backward()
    assert found == [("compile_graph", "", True), ("compile_aten", "forward", True), ("compile_aten", "backward", True)]
    assert gc.get_freeze_count() < LEAST


@pytest.mark.skipif(not compile_server._POSSIBLE, reason="processes of their own are for Linux")
def test_none_is_left_where_none_was_asked(monkeypatch):
    monkeypatch.setattr(compile_server, "_running", {})
    warm_up.expect()
    traced("eager")
    assert compile_server._running == {}
