"""Threads for some work: abandoned by interruptions and by the end of the interpreter, and taken by threads beside the main one."""

import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError

import pytest

from tilec.process import workers as of
from tilec.process.workers import Abandoned, Workers, workers


def ended(code: str, **more: str) -> tuple[str, float]:
    """What a process prints, and the seconds that it takes from its word `ready` to its end."""
    child = subprocess.Popen([sys.executable, "-W", "error", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n", child.communicate()
    begin = time.monotonic()
    reported, errors = child.communicate(timeout=60)
    assert errors == "" and child.returncode == 0
    return reported, time.monotonic() - begin


def test_results_come_in_order_and_errors_come_out():
    with workers(3, "some") as pool:
        assert pool.map(lambda n: n * n, range(50)) == [n * n for n in range(50)] and len(pool.threads) == 3
        assert isinstance(pool.submit(lambda: 1 // 0).exception(), ZeroDivisionError)
    assert not any(thread.is_alive() for thread in pool.threads)


def test_what_has_not_started_is_dropped_and_the_rest_is_not_waited_for():
    begun, go, done = threading.Event(), threading.Event(), []

    def first():
        begun.set()
        go.wait(60)
        of.check()
        done.append(1)

    with pytest.raises(KeyboardInterrupt), workers(1, "interrupted") as pool:
        one, two = pool.submit(first), pool.submit(done.append, 2)
        begun.wait(60)
        raise KeyboardInterrupt
    go.set()
    assert isinstance(one.exception(60), Abandoned) and two.cancelled() and done == []
    with pytest.raises(CancelledError):
        two.result()
    with pytest.raises(CancelledError):
        pool.submit(done.append, 3).result(60)


def test_workers_of_workers_are_abandoned_with_them():
    begun, go = threading.Event(), threading.Event()

    def inner():
        begun.set()
        go.wait(60)
        of.check()

    def outer():
        with workers(1, "inner") as pool:
            pool.submit(inner).result()

    with pytest.raises(ValueError, match="stop"), workers(1, "outer", spare=True) as pool:
        made = pool.submit(outer)
        begun.wait(60)
        raise ValueError("stop")
    go.set()
    assert isinstance(made.exception(60), Abandoned)
    of.check()  # here nothing is


def test_threads_that_outlive_the_main_one_have_workers():
    code = """if True:
        import threading
        def work():
            threading.main_thread().join()
            from tilec.process.workers import workers
            with workers(2, "late") as pool:
                print(pool.map(str, range(3)))
        print("ready", flush=True)
        threading.Thread(target=work).start()
    """
    assert ended(code)[0] == "['0', '1', '2']\n"


def test_a_thread_that_just_starts_is_waited_for(monkeypatch):
    """It may be at work before the call that starts it returns."""
    begun, done, start = threading.Event(), [], threading.Thread.start

    def slowly(thread):
        start(thread)
        if thread.name.startswith("slow"):
            time.sleep(0.2)

    def work():
        begun.set()
        time.sleep(0.4)
        done.append(1)

    monkeypatch.setattr(threading.Thread, "start", slowly)
    pool = Workers(1, "slow")
    maker = threading.Thread(target=pool.submit, args=[work])
    maker.start()
    begun.wait(60)
    pool.abandon()
    pool.join()
    assert done == [1]
    maker.join()


def test_the_interpreter_ends_without_what_has_not_started():
    """It waits for what has begun, which may be in the middle of LLVM."""
    code = """if True:
        import threading, time
        from tilec.process import compile_server
        from tilec.process.workers import workers
        begun = threading.Event()
        def first():
            begun.set()
            time.sleep(0.5)
            print("first", flush=True)
        def work():
            with workers(1, "ahead", spare=True) as pool:
                pool.map(lambda f: f(), [first, *[lambda: time.sleep(5)] * 10])
        threading.excepthook = lambda told: None  # of CancelledError: while the interpreter ends, nothing can be printed
        threading.Thread(target=work, daemon=True).start()
        begun.wait(60)
        print("ready", flush=True)
    """
    reported, seconds = ended(code)
    assert reported.splitlines() == ["first"]
    assert seconds < 5
