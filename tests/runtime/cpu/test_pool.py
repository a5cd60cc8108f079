"""Threads that share blocks: each block once, nobody waits for who has not begun, sleep, forks, callers at once, the end."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tilec.runtime.native import pool

HEAD = """
import ctypes, os, signal, sys, threading, time
import numpy as np
import tilec
from tilec.runtime.cpu import pool
from tilec.runtime.cpu.objects import load_pool
from tilec.runtime.native.tables import Pool

LOOP, SHARE = (ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * n) for n in (4, 7))
share = SHARE(load_pool()["tilec_share_blocks"])

def shared(do, grid, threads, scratch=0, stride=1):
    wrong = []

    @LOOP
    def loop(*given):
        try:
            do(*given)
        except BaseException as error:
            wrong.append(error)

    share(pool.table(), ctypes.cast(loop, ctypes.c_void_p).value, grid, threads, 77, scratch, stride)
    assert not wrong, wrong

def met(threads, seconds=20):
    '''Whether so many threads are in blocks of one launch at once, the caller among them.'''
    meeting, here = threading.Barrier(threads), set()

    def do(first, end, data, scratch):
        here.add(threading.get_native_id())
        try:
            meeting.wait(seconds)
        except threading.BrokenBarrierError:
            pass

    shared(do, threads, threads)
    return len(here) == threads and not meeting.broken

PROGRAM = "op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = 2 * x[i, j] + sum[k](x[i, k]) }"
op, x = tilec.compile(PROGRAM, target="cpu"), np.arange(512 * 512, dtype=np.float32).reshape(512, 512) % 7
right = 2 * x + x.sum(1, keepdims=True)
"""
CALL = "assert np.array_equal(op(x), right) and op.kernels[0].grid > 4\n"


def run(text: str, seconds: float = 40, **environment: str) -> str:
    """What a process with five threads prints. It fails where it takes too long: threads wait for each other."""
    own = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"} | {"TILEC_THREADS": "5"} | environment
    done = subprocess.run([sys.executable, "-c", HEAD + text], capture_output=True, text=True, env=own, timeout=seconds)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return done.stdout


def test_no_address_of_a_process_is_in_the_machine_code():
    """Every constant is an offset, a mask or a count."""
    numbers = [abs(int(n)) for n in re.findall(r"-?\d+", str(pool.module()))]
    assert max(numbers) <= pool.ASLEEP + 1


def test_each_block_is_run_once():
    """For grids of all sizes on any number of threads, which meet, with scratch memory that two never have at once."""
    run("""
assert met(5)
for grid in (*range(1, 24), 64, 97):
    for threads in range(2, min(5, max(2, grid)) + 1):
        done, inside = [], {}
        def do(first, end, data, scratch):
            assert data == 77 and 1000 <= scratch < 1000 + 8 * threads and scratch % 8 == 0
            assert inside.setdefault(scratch, threading.get_ident()) == threading.get_ident()
            done.extend(range(first, end))
        shared(do, grid, threads, 1000, 8)
        assert sorted(done) == list(range(grid)), (grid, threads, done)
""")


def test_who_has_not_started_is_not_waited_for():
    """Threads that end at once, and those that a fork of C's lacks without knowing."""
    run(f"""
help = ctypes.c_int64.from_address(pool.table() + 8 * Pool.help)
help.value = load_pool()["tilec_no_blocks"]
for _ in range(3):
    {CALL.strip()}
assert not met(2, 0.1)
""")
    run(f"""
assert met(5)
child = ctypes.PyDLL(None).fork()
if child == 0:
    for _ in range(3):
        {CALL.strip()}
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""")


def test_helpers_sleep_and_are_woken():
    """They have no signals of the process."""
    run("""
before = set(os.listdir("/proc/self/task"))
def helpers():
    return set(os.listdir("/proc/self/task")) - before
def facts(task, name):
    return next(line.split()[1] for line in open(f"/proc/self/task/{task}/status") if line.startswith(name))
for _ in range(3):
    assert met(5)
    while any(facts(t, "State") != "S" for t in helpers()):
        time.sleep(0.01)
assert len(helpers()) == 4
most = [s for s in signal.valid_signals() if s not in (signal.SIGKILL, signal.SIGSTOP)]
assert all(int(facts(t, "SigBlk"), 16) >> s - 1 & 1 for t in helpers() for s in most)
""")


@pytest.mark.parametrize("native", ["1", "0"])
def test_many_callers(native):
    """More than there are slots, while the number of threads changes."""
    run(f"""
wrong, over = [], threading.Event()

def work():
    try:
        for _ in range(60):
            {CALL.strip()}
    except BaseException as error:
        wrong.append(repr(error))

def change():
    while not over.is_set():
        for count in (1, 2, 5, 3, None):
            tilec.set_threads(count)
            time.sleep(0)

callers = [threading.Thread(target=work) for _ in range(12)]
changing = threading.Thread(target=change)
changing.start()
for each in callers: each.start()
for each in callers: each.join()
over.set(), changing.join()
assert not wrong, wrong[:3]
assert met(5)
""", TILEC_NATIVE_CALLS=native)  # fmt: skip


def test_forks():
    """While others call, forks of forks, and after each of them the parent as before."""
    run(f"""
over = threading.Event()
def work():
    while not over.is_set():
        {CALL.strip()}
{CALL}
callers = [threading.Thread(target=work) for _ in range(3)]
for each in callers: each.start()
for turn in range(6):
    child = os.fork()
    if child == 0:
        {CALL.strip()}
        status = 0 if met(5) else 1
        if turn == 5 and (other := os.fork()) != 0:
            status |= os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])
        {CALL.strip()}
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
over.set()
for each in callers: each.join()
assert met(5)
""")


def test_processes_that_share_processors():
    """More threads than processors in each, all at work: values are right, and all end."""
    code = HEAD + f"for _ in range(400):\n    {CALL}\nos._exit(0)"
    own = os.environ | {"TILEC_THREADS": "4"}
    many = [
        subprocess.Popen([sys.executable, "-c", code], env=own, stderr=subprocess.PIPE, text=True) for _ in range(4)
    ]
    try:
        for each in many:
            assert (each.communicate(timeout=60)[1], each.returncode) == ("", 0)
    finally:
        for each in many:
            each.kill()


def test_the_end_of_a_process_that_has_just_called():
    """Its helpers still look for work."""
    for _ in range(3):
        run(CALL)


def test_what_running_loads():
    """Neither Numba nor an OpenMP library, which would have threads of its own, where kernels were compiled before."""
    run(CALL)
    assert run(f"""{CALL}
assert "numba" not in sys.modules
print([line.split()[-1] for line in open("/proc/self/maps") if "gomp" in line])
""") == "[]\n"  # fmt: skip
