"""Long compilations tell on a terminal what they do."""

from __future__ import annotations

import io
import sys
import threading
import time

import pytest

import tilec
from tilec.process import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(progress, "FIRST", 0.0005)
    monkeypatch.setattr(progress, "REPEATED", 0.0005)
    monkeypatch.delenv(progress.VARIABLE, raising=False)


def reported(monkeypatch, stream) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.reported("compiling f"):
        progress.at("in stage 'plan'")
        deadline = time.monotonic() + 5
        while not stream.getvalue() and time.monotonic() < deadline and stream.isatty():
            time.sleep(0.001)
    return stream.getvalue()


def test_on_a_terminal(soon, monkeypatch):
    first, *_ = reported(monkeypatch, Terminal()).splitlines()
    assert first == "tilec is still compiling f, in stage 'plan', 0 s so far; Ctrl-C stops it"


def test_not_in_a_pipe(soon, monkeypatch):
    assert reported(monkeypatch, io.StringIO()) == ""


class Writer:
    """What programs put into the place of the standard error: it can write, and nothing else."""

    def write(self, text):
        return len(text)


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [None, Writer(), closed()], ids=["none", "one that only writes", "closed"])
def test_a_standard_error_that_does_not_know_its_kind(soon, monkeypatch, tmp_path, stream):
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "stderr", stream)
    tilec.compile("op f(x: f32[N]) -> (y: f32[N]) { y[i] = 2 * x[i] }", target="cpu").build(N=8)


@pytest.mark.parametrize("error", [OSError, ValueError, AttributeError])
def test_a_terminal_that_is_closed_meanwhile(soon, monkeypatch, error):
    tried, failed = threading.Event(), []

    class Lost(Terminal):
        def write(self, text):
            tried.set()
            raise error

    monkeypatch.setattr(sys, "stderr", Lost())
    monkeypatch.setattr(threading, "excepthook", failed.append)
    with progress.reported("compiling f"):
        progress.at("in stage 'plan'")
        assert tried.wait(5)
        time.sleep(0.005)
    assert failed == []


def test_not_where_it_is_switched_off(soon, monkeypatch):
    monkeypatch.setenv(progress.VARIABLE, "0")
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.reported("compiling f"):
        progress.at("in stage 'plan'")
        time.sleep(0.01)
    assert stream.getvalue() == ""


def test_once(soon, monkeypatch):
    """Where the command line shows it, a compilation within does not."""
    stream, seen = Terminal(), []
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.shown(seen.append), progress.reported("compiling f"):
        progress.at("in stage 'plan'")
        time.sleep(0.01)
    assert stream.getvalue() == ""
    with progress.shown(seen.append):
        pass
    assert not progress._shown


def test_compile(soon, monkeypatch, tmp_path):
    """A call that compiles, and its name."""
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path))
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    tilec.compile("op doubled(x: f32[N]) -> (y: f32[N]) { y[i] = 2 * x[i] }", target="cpu").build(N=8)
    assert "tilec is still compiling doubled, " in stream.getvalue()
