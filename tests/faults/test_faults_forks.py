"""Threads that compile at once, and children that are forked beside them."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
import types

import numpy as np
import pytest
from conftest import assert_within
from tools import fault_children as faults
from tools.fault_children import SOURCE, Child, results_are_right

import tilec

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(scope="module", autouse=True)
def loaded():
    faults.preload()


@pytest.mark.parametrize("different", [False, True])
def test_threads_in_the_first_compile(tmp_path, different):
    def body():
        texts = [SOURCE.replace("3.0", f"{3 + n * different * 1e-9:.9f}") for n in range(3)]
        op, wrong = tilec.compile(texts[0]), []
        x = np.ones((600, 70), np.float32)

        def work(text: str):
            try:
                assert_within(text, [x], (tilec.compile(text) if different else op)(x), kind="cpu")
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(t,)) for t in texts]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not wrong

    assert Child(body, tmp_path / "cache").wait() == 0


def test_a_child_made_after_use(tmp_path):
    """Threads do not come along into a forked child."""

    def body():
        results_are_right()
        for again in (SOURCE, SOURCE.replace("3.0", "3.00000001")):  # compiled before, and in the child
            assert Child(lambda text=again: results_are_right(text), tmp_path / "cache").wait() == 0
        results_are_right()

    assert Child(body, tmp_path / "cache").wait() == 0


def test_a_child_made_while_another_thread_compiles(tmp_path):
    def body():
        op, x = tilec.compile(SOURCE), np.ones((600, 70), np.float32)
        thread = threading.Thread(target=op, args=(x,))
        thread.start()
        time.sleep(0.1)

        def use():
            assert_within(SOURCE, [x], op(x), kind="cpu")

        status = Child(use, tmp_path / "cache").wait()
        thread.join()
        return status

    assert Child(body, tmp_path / "cache").wait() == 0


@pytest.mark.parametrize("held", ["program", "llvmlite", "import"])
def test_a_child_made_while_another_thread_holds_a_lock(tmp_path, held):
    """Right behind compilation, where a fork that waited for it goes on: a program is made ready, garbage of LLVM's is
    collected, a module is imported. Another program's compilation comes first in `tilec.compile`."""
    from llvmlite.binding import ffi

    from tilec import api
    from tilec.runtime.cpu import launch

    def body():
        op, x, entered = tilec.compile(SOURCE), np.ones((600, 70), np.float32), threading.Event()

        def slow(do):
            def act(*arguments, **named):
                if not entered.is_set():
                    entered.set()
                    time.sleep(0.3)
                return do(*arguments, **named)

            return act

        def hold():
            with ffi.lib._lock:
                slow(int)()

        match held:
            case "program":
                launch.CpuProgram.__init__ = slow(launch.CpuProgram.__init__)
                work = lambda: op(x)  # noqa: E731
            case "llvmlite":
                work = hold
            case "import":
                (tmp_path / "slow_module.py").write_text("import slow_steps\nslow_steps.act()\n")
                sys.path.insert(0, str(tmp_path))
                sys.modules["slow_steps"] = types.SimpleNamespace(act=slow(int))
                api.read_program = lambda *a, **k: importlib.import_module("slow_module")
                api.Op = lambda *a: None
                work = lambda: tilec.compile(SOURCE)  # noqa: E731
        thread = threading.Thread(target=work)
        thread.start()
        entered.wait()

        def use():
            if held == "import":
                import slow_module  # noqa: F401
            assert_within(SOURCE, [x], op(x), kind="cpu")

        status = Child(use, tmp_path / "cache").wait(20)
        thread.join()
        return status

    assert Child(body, tmp_path / "cache").wait() == 0
