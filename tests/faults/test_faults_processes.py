"""Processes that are killed, interrupted, forked, or all compile the same thing: right results, or a clear error."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from conftest import assert_within
from tools import TESTS

import tilec
from tilec.process.forking import llvm_lock
from tilec.process.interrupts import uninterrupted
from tilec.process.workers import workers
from tilec.runtime import cache

ONE = """
import numpy as np, tilec
x = np.arange(40, dtype=np.float32).reshape(5, 8)
y = tilec.compile("m[i] = max[j](x[i, j])  y[i, j] = x[i, j] - m[i]", target="cpu")(x)
np.testing.assert_array_equal(y, x - x.max(1, keepdims=True))
"""


def faults(what: str, times: int, seed: int, folder: Path) -> dict:
    command = [sys.executable, str(TESTS / "tools" / "faults.py"), what, str(times), str(seed), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1]) | {"told": done.stderr[-3000:]}


def times(few: int, many: int):
    return pytest.mark.parametrize("times", [few, pytest.param(many, marks=pytest.mark.slow)])


@times(8, 500)
def test_killed_while_compiling_and_caching(times, tmp_path):
    found = faults("kill", times, times, tmp_path)
    assert found["wrong"] == [], found["told"]
    assert found["struck"] >= times // 4, "the strikes came too late to mean anything"


@times(12, 100)
def test_killed_while_writing_a_file(times, tmp_path):
    found = faults("fmt", times, times, tmp_path)
    assert found["wrong"] == [], found["told"]
    assert found["struck"] > 0


@times(6, 200)
def test_interrupted_in_the_first_call(times, tmp_path):
    """KeyboardInterrupt comes out, and the same op computes the right thing when it is called again."""
    found = faults("interrupt", times, times, tmp_path)
    assert found["wrong"] == [], found["told"]
    assert found["struck"] >= times // 4


def test_an_interrupt_leaves_llvms_lock_free():
    """It may strike when llvmlite has taken its lock and no `with` knows of it yet, in workers' time or before."""
    import llvmlite.binding  # noqa: F401

    lock = llvm_lock()
    with pytest.raises(KeyboardInterrupt), workers(1, "interrupted"):
        lock.acquire()
        raise KeyboardInterrupt
    assert not lock._is_owned()
    lock.acquire()
    with workers(1, "later") as pool:
        assert pool.submit(lock.acquire, timeout=5).result() and pool.submit(lock.release).result() is None


def test_an_interrupt_waits_for_what_cannot_be_done_by_halves():
    done = []
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        signal.raise_signal(signal.SIGINT)
        done.append("whole")
    assert done == ["whole"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_the_command_line_says_that_it_was_interrupted(tmp_path, monkeypatch):
    from tilec.cli import command as cli
    from tilec.cli import run

    def stop(_):
        raise KeyboardInterrupt

    (tmp_path / "a.tile").write_text("y[i] = x[i]")
    monkeypatch.setattr(run, "_prepare", stop)
    assert cli.main(["run", str(tmp_path / "a.tile")]) == 130


def test_an_interrupt_while_a_class_is_made_is_one(tmp_path, monkeypatch):
    """Python 3.11 raises another error then, as in an import within a call."""
    from tilec.cli import command as cli
    from tilec.driver import lowering

    class Struck:
        def __set_name__(self, owner, name):
            raise KeyboardInterrupt

    def importing(*given):
        type("Made", (), {"field": Struck()})

    (tmp_path / "a.tile").write_text("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] }")
    monkeypatch.setenv(cache.VARIABLE, "")
    op, x = tilec.compile("y[i] = 3 * x[i]", target="cpu"), np.ones(3, np.float32)
    for name in ("stages", "_emit"):
        with monkeypatch.context() as patch:
            patch.setattr(lowering, name, importing)
            assert cli.main(["run", str(tmp_path / "a.tile"), "-D", "N=5"]) == 130
            with pytest.raises(KeyboardInterrupt):
                op(x)
    assert (op(x) == 3).all()


@pytest.mark.parametrize("processes", [2, pytest.param(32, marks=pytest.mark.slow)])
def test_processes_that_compile_the_same_thing(processes, tmp_path):
    environment = os.environ | {cache.VARIABLE: str(tmp_path / "cache")}
    started = [
        subprocess.Popen([sys.executable, "-c", ONE], env=environment, stderr=subprocess.PIPE) for _ in range(processes)
    ]
    for process in started:
        _, reported = process.communicate()
        assert process.returncode == 0, reported.decode()[-2000:]
    assert not list(tmp_path.rglob("*.tmp"))


def test_threads_that_meet_in_the_first_call():
    """One compiles, the others wait for it; two ops of the same program may compile at once."""
    x = np.arange(300, dtype=np.float32)
    program = "y[i] = cumsum[i](x[i] * 7.25)"
    ops = [tilec.compile(program, target="cpu") for _ in range(2)]
    found, start = [], threading.Barrier(8)

    def call(op):
        start.wait()
        found.append(op(x))

    threads = [threading.Thread(target=call, args=(ops[n % 2],)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len({y.tobytes() for y in found}) == 1
    assert_within(program, [x], found[0], kind="cpu", expected=np.cumsum(x.astype(np.float64) * 7.25))


FORKED = """
import os, signal, numpy as np, tilec
signal.alarm(100)
x = np.arange(3000, dtype=np.float32).reshape(30, 100)
op = tilec.compile("y[i] = sum[j](x[i, j])", target="cpu")
expected = op(x)
child = os.fork()
if child == 0:
    same = np.array_equal(op(x), expected)
    other = tilec.compile("y[i] = max[j](x[i, j] + 1)", target="cpu")(x)
    os._exit(0 if same and np.array_equal(other, x.max(1) + 1) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert np.array_equal(op(x), expected)
"""


INHERITED = """
import gc, os, sys
from tilec.core import mlir
from tilec.core.mlir import PassManager, ir
made = mlir.context()
text = "".join(f"func.func @f{n}(%a: i32) -> i32 {{ return %a : i32 }}\\n" for n in range(16))
with made, ir.Location.unknown():
    module = ir.Module.parse(text)
    PassManager.parse("builtin.module(func.func(canonicalize,cse))").run(module.operation)
child = os.fork()
if child == 0:
    del module, made
    gc.collect()
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_collects_a_context_that_it_inherits():
    """MLIR's threads do not come along; a context that had some would wait for them in the child."""
    with subprocess.Popen([sys.executable, "-c", INHERITED], start_new_session=True) as process:
        try:
            assert process.wait(60) == 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_fork_after_use(tmp_path):
    """A child of a process that has run kernels runs them, and compiles others."""
    environment = os.environ | {cache.VARIABLE: str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", FORKED], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, (
        f"{signal.Signals(-done.returncode).name if done.returncode < 0 else done.stderr[-2000:]}"
    )


STRIKES = """
import signal
from tilec.core import mlir
import numba_cuda_mlir.mlir.dialect_exts.arith  # whose operators are taken back
from tilec.core.mlir import arith, ir
def strike(number, frame): raise KeyboardInterrupt
signal.signal(signal.SIGALRM, strike)
struck = 0
with mlir.context(), ir.Location.unknown():
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        kind = ir.IntegerType.get_signless(64)
        for n in range(200):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002 + n % 13 * 1e-5)
                while True:
                    arith.ConstantOp(kind, n).result
            except KeyboardInterrupt:
                struck += 1
assert struck == 200
"""


def test_interrupted_inside_the_bindings():
    """KeyboardInterrupt comes out: where C++ calls Python, and cannot pass on what that raises, nothing is raised."""
    done = subprocess.run([sys.executable, "-c", STRIKES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
