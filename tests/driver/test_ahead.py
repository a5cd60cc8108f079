"""Classes beside the one that a call needs are compiled ahead: they are found later, are the same, and no call waits for others."""

import threading

import pytest

import tilec
from tilec.core import targets
from tilec.core.varying import Varies, Varying
from tilec.driver import ahead
from tilec.driver.ahead import VARIABLE, Ahead
from tilec.driver.classes import Classes
from tilec.driver.frontend import PROGRAMS
from tilec.process import compile_server
from tilec.runtime import cache

needs_processes = pytest.mark.skipif(not compile_server._POSSIBLE, reason="processes of their own are for Linux")
TEXT = "op f(x: f32[M, 64]) -> (s: f32[M]) { s[i] = sum[j](x[i, j] ** 2) }"
H200 = targets.load("h200")


def op() -> tilec.Op:
    return tilec.compile(TEXT, varies={"M": (1, 100000)}, target="h200")


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """With an empty cache, many processors, and a process that compiles programs. The classes that it was asked for."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(ahead, "available_cores", lambda: ahead.PROCESSORS)
    compile_server.start(PROGRAMS)
    found, ask = [], compile_server.ask

    def noted(kind, request, *hear):
        if kind == PROGRAMS and "op" in request:
            found.append(request["of"]["ranges"][0][1]["low"])
        return ask(kind, request, *hear)

    monkeypatch.setattr(compile_server, "ask", noted)
    yield found
    compile_server.give_up()


def ended(op: tilec.Op) -> None:
    """Waits for all that is compiled ahead."""
    for future in list(op._by_class._compiled_ahead._started.values()):
        future.exception()


@pytest.mark.slow
@needs_processes
def test_neighbours_are_found_later(asked):
    mine = op()
    assert str(mine.build(M=300).classes()[0]).startswith("M = 257..")
    ended(mine)
    assert len(asked) == len(set(asked)) == 3  # its own, and one on each side
    sizes = [2, 99000]
    for m in sizes:
        mine.build(M=m)
    ended(mine)
    assert len(asked) == len(set(asked))  # no class twice
    assert len(mine.classes()) == 3  # those that were asked for
    other, alone = tilec.compile(TEXT, varies={"M": (1, 100000)}, target="h200"), []
    for m in sizes:
        alone.append(other.build(M=m).kernels[0].source)
    assert [mine.build(M=m).kernels[0].source for m in sizes] == alone


@needs_processes
def test_where_it_pays(asked, monkeypatch):
    assert Ahead().pays(H200)
    assert not Ahead().pays(targets.load("cpu"))
    monkeypatch.setenv(VARIABLE, "0")
    assert not Ahead().pays(H200)
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(ahead, "available_cores", lambda: ahead.PROCESSORS - 1)
    assert not Ahead().pays(H200)
    compile_server.give_up()
    assert not Ahead().pays(H200)


class Made:
    def complete(self) -> None:
        self.completed = True


def test_a_call_takes_what_is_started_and_does_not_wait_for_what_is_not():
    classes, gate, made = Ahead(), threading.Event(), Made()

    def waits() -> Made:
        assert gate.wait(60)
        return made

    for n in range(ahead.AT_ONCE + 1):
        classes.begin(n, waits)
    while classes._started[0].running() is False:
        pass
    assert classes.take("unknown") is None
    assert classes.take(ahead.AT_ONCE) is None  # all threads are at work: the call compiles it itself
    gate.set()
    assert classes.take(0) is made and made.completed
    assert classes.take(0) is made


def test_a_class_that_cannot_vary_says_so_to_the_call():
    def fails() -> Made:
        raise Varies("a number")

    classes = Ahead()
    classes.begin(0, fails)
    while not classes._started[0].done():
        pass
    with pytest.raises(Varies, match="a number"):
        classes.take(0)


def test_no_more_than_so_many_are_started():
    classes = Ahead(most=2)
    for n in (0, 0, 1, 2):
        classes.begin(n, Made)
    assert list(classes._started) == [0, 1]


@pytest.mark.parametrize("sizes, want", [
    ({"M": 100, "N": 5}, [{"M": 251, "N": 5}, {"M": 13, "N": 5}, {"M": 100, "N": 127}]),
    ({"M": 2, "N": 100}, [{"M": 127, "N": 100}, {"M": 2, "N": 251}, {"M": 2, "N": 13}]),
    ({"M": 1, "N": 300}, [{"M": 1, "N": 251}]),  # one row is a program of its own
])  # fmt: skip
def test_which_classes_are_neighbours(sizes, want):
    classes = Classes({"M": Varying(1, 5000), "N": Varying(2, 500)}, {})
    found = list(classes.neighbours(sizes))
    assert found == want
    for neighbour in found:
        (name,) = [n for n in sizes if neighbour[n] != sizes[n]]
        a, b = classes.of(sizes).own[name], classes.of(neighbour).own[name]
        assert a.high + 1 == b.low or b.high + 1 == a.low


def test_neighbours_are_joined_classes_and_multiples():
    classes = Classes({"M": Varying(2, 5000)}, {"M": 8}, joined=lambda name, v: v.high <= 256)
    found = list(classes.neighbours({"M": 512}))
    assert [n["M"] % 8 for n in found] == [0, 0]
    assert classes.of(found[1]).own["M"] == Varying(8, 256, 8)
