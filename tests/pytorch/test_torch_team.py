"""Launches on PyTorch's own threads: which they have, and what becomes of the blocks. No test measures time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from tilec.core.host import available_threads  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform != "linux" or available_threads() < 2, reason="no team of two threads")

HEAD = """
import ctypes, os, threading, time
import numpy as np
import torch
torch.set_num_threads(2)
import tilec
from tilec.runtime.cpu import pool, threads
from tilec.runtime.cpu.objects import load_pool
from tilec.runtime.native.tables import Pool, Team

LOOP, SHARE = (ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * n) for n in (4, 7))
share, table, ME = SHARE(load_pool()["tilec_share_blocks"]), pool.table(), threading.get_ident()
threads.settle()
EVER, MS = 1 << 62, 10**6

def word(field):
    start = table if isinstance(field, Pool) else ctypes.c_int64.from_address(table + 8 * Pool.team).value
    return ctypes.c_int64.from_address(start + 8 * field)

def shared(do, grid=8):
    wrong = []

    @LOOP
    def loop(first, end, data, scratch):
        try:
            do(first, end, scratch)
        except BaseException as error:
            wrong.append(error)

    share(table, ctypes.cast(loop, ctypes.c_void_p).value, grid, 2, 0, 1000, 8)
    assert not wrong, wrong

def clock_of(thread):
    found = ctypes.c_int64()
    ctypes.CDLL(None).pthread_getcpuclockid(ctypes.c_ulong(thread), ctypes.byref(found))
    return found.value

def known(worker, until=0, looked=EVER):
    words = {Team.caller: ME, Team.worker: worker, Team.until: until, Team.looked: looked, Team.span: 20 * MS}
    for field, value in words.items():
        word(field).value = value

def meet():
    '''The threads of a launch whose two threads wait for each other.'''
    meeting, here = threading.Barrier(2), set()

    def do(first, end, scratch):
        here.add(threading.get_native_id())
        try:
            meeting.wait(20)
        except threading.BrokenBarrierError:
            pass

    shared(do, 2)
    assert len(here) == 2 and not meeting.broken
    return here

op, x = tilec.compile("op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = 2 * x[i, j] }", target="cpu"), torch.ones(512, 1024)
assert threads.TEAM.value
"""


def run(text: str, seconds: float = 60) -> None:
    own = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "TILEC_THREADS")}
    done = subprocess.run([sys.executable, "-c", HEAD + text], capture_output=True, text=True, env=own, timeout=seconds)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])


def test_each_block_is_run_once_by_the_team():
    """By the caller and one more thread, which is none of the helpers; with scratch memory that two never have at once."""
    run("""
known(clock_of(ME), EVER)
for grid in (2, 3, 8, 23):
    done, inside = [], {}
    def do(first, end, scratch):
        assert inside.setdefault(scratch, threading.get_ident()) == threading.get_ident() and scratch in (1000, 1008)
        done.extend(range(first, end))
    shared(do, grid)
    assert sorted(done) == list(range(grid))
assert meet() == meet() and word(Pool.started).value == 0
assert (op(x) == 2).all() and word(Pool.started).value == 0
tilec.set_threads(2)  # tilec's own
assert meet() and word(Pool.started).value == 1
""")


def test_a_team_is_known_after_a_launch_that_no_helper_joined():
    run("""
word(Pool.help).value = load_pool()["tilec_no_blocks"]
worker = word(Team.worker)
for count in range(2):
    assert worker.value == 0
    shared(lambda *given: None)
assert worker.value not in (0, clock_of(ME)) and word(Team.caller).value == ME
other = threading.Thread(target=lambda: [shared(lambda *given: None) for _ in range(2)])
other.start(), other.join()
assert word(Team.caller).value != ME
""")


def test_phases_begin_while_the_thread_runs_and_end_as_it_sleeps():
    """The clock of the system stands for that of a thread which always runs."""
    run("""
over = threading.Event()
sleeper = threading.Thread(target=over.wait)
sleeper.start()
runs, sleeps, until, span = time.CLOCK_MONOTONIC, clock_of(sleeper.ident), word(Team.until), word(Team.span)

def launches(end):
    while not end():
        shared(lambda *given: None)

def phases():
    known(runs, looked=0)
    word(Team.ran).value, word(Team.since).value = 0, time.monotonic_ns()
    launches(lambda: until.value)
    began = span.value == 40 * MS and word(Team.since).value == until.value
    launches(lambda: span.value >= 80 * MS)
    word(Team.worker).value = sleeps
    launches(lambda: not until.value)
    return began and span.value == 20 * MS

for _ in range(2):
    assert any(phases() for _ in range(20))  # a late thread ends a phase, too, on a busy machine
known(1 << 40 | 0xFFFFFFFE - (1 << 25), looked=0)  # of a thread that there is not
launches(lambda: word(Team.worker).value == 0)
over.set()
""")


def test_a_late_thread_ends_the_phase():
    run("""
known(clock_of(ME), EVER)
meet()
assert word(Team.until).value == EVER

def do(first, end, scratch):
    meeting.wait()
    if threading.get_ident() != ME:
        time.sleep(0.02)

meeting = threading.Barrier(2)
before = time.monotonic_ns()
shared(do, 2)
assert word(Team.until).value == 0 and word(Team.since).value > before + 300 * MS
meet()
assert word(Pool.started).value == 1
""")


def test_forks_have_no_team():
    run("""
known(clock_of(ME), EVER)
torch.softmax(x, 1)
assert meet()
child = os.fork()
if child == 0:
    right = threads.TEAM.value == 0 and word(Team.worker).value == 0 and bool((op(x).numpy() == 2).all())
    threads.settle()
    os._exit(0 if right and threads.TEAM.value == 0 and len(meet()) == 2 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert meet()
""")


def test_operations_in_turn_with_pytorchs():
    """Values are right in whatever phase they are computed, and while other threads call."""
    run("""
def work(factor):
    mine = x * factor
    for _ in range(200):
        torch.softmax(mine, 1)
        wrong.extend([factor] * (not bool((op(mine) == 2 * factor).all())))

wrong = []
work(1.0)
callers = [threading.Thread(target=work, args=(n + 2.0,)) for n in range(2)]
for each in callers: each.start()
for each in callers: each.join()
assert not wrong
""")
