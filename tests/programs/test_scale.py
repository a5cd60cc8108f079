"""Programs of hundreds and thousands of statements: the work grows with them, no faster, and says what it is at."""

from __future__ import annotations

import logging
import re
import signal
import sys
import threading
import time

import numpy as np
import pytest
from tools import lowering
from tools.commands import examples_folder, tilec_command  # noqa: F401

import tilec
from tilec.core import mlir
from tilec.driver.lowering import Lowered
from tilec.plan import fusion
from tilec.process import compile_server, progress
from tilec.process.workers import workers


def chain(count: int) -> str:
    steps = (f"a{k}[i] = a{k - 1}[i] * 1.0001 + {k}" for k in range(1, count))
    return _program(count, "a0[i] = x[i]", *steps)


def means(count: int) -> str:
    steps = (f"a{k}[i] = a{k - 1}[i] - mean[i](a{k - 1}[i]) + {k}" for k in range(1, count))
    return _program(count, "a0[i] = x[i]", *steps)


def _program(count: int, *statements: str) -> str:
    return "\n".join([f"op f(x: f32[N]) -> (a{count - 1}: f32[N]) {{", *statements, "}"])


def results(count: int) -> str:
    names = ", ".join(f"a{k}: f32[N]" for k in range(count))
    return "\n".join([f"op f(x: f32[N]) -> ({names}) {{", *(f"a{k}[i] = x[i] * {k}" for k in range(count)), "}"])


def transposed(count: int) -> str:
    """Each statement reads the one before at two places."""
    steps = "\n".join(f"a{k}[i, j] = a{k - 1}[i, j] + a{k - 1}[j, i]" for k in range(1, count))
    return f"op f(x: f32[N, N]) -> (a{count - 1}: f32[N, N]) {{\na0[i, j] = x[i, j]\n{steps}\n}}"


def lowered(program: str, target: str = "cpu", n: int = 40) -> Lowered:
    return lowering.lowered(program, None, {"N": n}, target=target, locations=True)[1]


def calls(monkeypatch, module, name: str, of=lambda *args: 1) -> list[int]:
    """Counts how much work a function does from now on; `of` says how much a call is."""
    total, function = [0], getattr(module, name)

    def counted(*args, **named):
        total[0] += of(*args)
        return function(*args, **named)

    monkeypatch.setattr(module, name, counted)
    return total


@pytest.mark.parametrize("target", ["cpu", "h200"])
@pytest.mark.parametrize(("program", "few"), [(chain, 25), (means, 6), (results, 20)])
def test_work_grows_with_the_program(program, few, target, monkeypatch):
    """Operations that are copied, and those that grouping looks at, where a kernel is full before the program ends."""
    monkeypatch.setattr(fusion, "MOST", 60)
    copied = calls(monkeypatch, mlir, "clone_op")
    looked_at = calls(monkeypatch, fusion, "refuse", lambda nodes, *_: len(nodes))
    took = []
    for count in (few, 4 * few):
        copied[0] = looked_at[0] = 0
        lowered(program(count), target)
        took.append((copied[0], looked_at[0]))
    (copies, looks), (more_copies, more_looks) = took
    assert more_copies <= 6 * copies + 50 and more_looks <= 6 * looks + 50


def test_inlining_copies_an_operation_once(monkeypatch):
    copied = calls(monkeypatch, mlir, "clone_op")
    lowered(chain(100))
    assert copied[0] < 2000  # 300 operations, by several passes; each reader's whole body again were 15,000


@pytest.mark.parametrize("program", [chain, means, results])
def test_a_kernel_that_would_take_long_to_compile_is_cut(program, monkeypatch, tmp_path):
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(fusion, "MOST", 40)
    text = program(24)
    plan = lowered(text).plan
    assert len(plan.kernels) > 1
    assert any("would take long to compile" in r.reason for r in plan.remarks)
    x = np.linspace(-1, 1, 8, dtype=np.float32)
    found = tilec.compile(text, target="cpu")(x)
    for y, expected in zip(found if program is results else [found], _expected(program, x, 24), strict=True):
        np.testing.assert_allclose(y, expected, rtol=1e-5)


def _expected(program, x: np.ndarray, count: int) -> list[np.ndarray]:
    if program is results:
        return [x * np.float32(k) for k in range(count)]
    a = x.astype(np.float64)
    for k in range(1, count):
        a = (a * 1.0001 if program is chain else a - a.mean()) + k
    return [a]


def test_what_is_read_at_two_places_is_not_computed_more_and_more_often(monkeypatch):
    """Each statement read the one before twice, so that all before it were copied 2^n times."""
    copied = calls(monkeypatch, mlir, "clone_op")
    plan = lowered(transposed(16), n=3).plan
    assert copied[0] < 2000
    assert any("operations 2 times for each element" in r.reason for r in plan.remarks)


def test_a_long_chain_on_a_gpu_is_no_deep_recursion():
    assert lowered(chain(250), "h200").emitted.kernels


@pytest.mark.slow
@pytest.mark.parametrize(("program", "count"), [(chain, 5000), (means, 300), (results, 200)])
def test_thousands_of_statements(program, count, monkeypatch, tmp_path):
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path))
    x = np.arange(4, dtype=np.float32)
    found = tilec.compile(program(count), target="cpu")(x)
    for y, expected in zip(found if program is results else [found], _expected(program, x, count), strict=True):
        np.testing.assert_allclose(y, expected, rtol=1e-3)


# ---- Ctrl-C, and what is said meanwhile ------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["inline_all", "_merge_loop_groups"])
def test_an_interrupt_within_a_pass(step, monkeypatch, tmp_path):
    """MLIR calls our passes: what they raise goes through it."""
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path))
    op = tilec.compile("y[i] = exp(x[i]) + 1", target="cpu")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(sys.modules["tilec.passes.tensor.fuse"], step, lambda *_: signal.raise_signal(signal.SIGINT))
        op(np.zeros(3, np.float32))
    np.testing.assert_array_equal(op(np.zeros(3, np.float32)), np.full(3, 2, np.float32))


def test_an_interrupt_does_not_wait_for_threads():
    """What has not begun is dropped; what waits for a process of the compiler's own gets None."""
    begun, ended = threading.Event(), []

    def wait():
        begun.set()
        time.sleep(0.5)
        ended.append(1)

    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt), workers(1, "test") as pool:
        for _ in range(100):
            pool.submit(wait)
        begun.wait()
        signal.raise_signal(signal.SIGINT)
    assert time.monotonic() - begin < 0.5 or not ended
    assert not compile_server._running


def test_what_takes_long_says_what_it_is_at(tilec, folder, monkeypatch):
    from tilec.driver import lowering as driver

    (folder / "a.tile").write_text("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + 1 }\n")
    planned = driver.make_plan
    monkeypatch.setattr(driver, "make_plan", lambda *args: [time.sleep(0.4), planned(*args)][1])
    status, _, quiet = tilec("emit", "--as", "mlir", "a.tile", "-D", "N=4")
    assert status == 0 and "still" not in quiet
    monkeypatch.setattr(progress, "FIRST", 0.2)
    status, _, reported = tilec("emit", "--as", "mlir", "a.tile", "-D", "N=4")
    assert status == 0 and re.search(r"still: compiling f, in stage 'plan', \d+ s so far; Ctrl-C stops it", reported)


def test_a_program_finds_it_in_the_log(caplog):
    with caplog.at_level(logging.INFO, logger="tilec"):
        lowered("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + 1 }")
    assert [r.message for r in caplog.records][:2] == ["in stage 'simplify'", "in stage 'plan'"]
