"""On how many threads kernels run: what says so, and which of it counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import tilec
from tilec.core.host import available_cores, available_threads, cpu_quota, processors
from tilec.runtime.cpu import threads

CHILD = """
import ctypes, json, os, sys
import numpy as np
import tilec
from tilec.runtime.cpu import pool
from tilec.runtime.native.tables import Pool

SHARE = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 7)
op = tilec.compile("op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = exp(x[i, j]) }", target="cpu")
x = np.zeros((1024, 512), np.float32)
op(x)
word, seen = ctypes.c_int64.from_address(pool.table() + 8 * Pool.share), []
share = SHARE(word.value)

@SHARE
def noted(*given):
    seen.append(given[3])
    share(*given)

word.value = ctypes.cast(noted, ctypes.c_void_p).value

def ran(x=x):
    del seen[:]
    assert (np.asarray(op(x)) == 1).all()
    said = tilec.get_threads()
    assert said == (seen[0] if seen else 1), (said, seen)
    return said

found = [ran()]
"""


def run(text, **environment):
    own = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "TILEC_THREADS")}
    own |= environment
    code = CHILD + text + "\nprint(json.dumps(found))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=own)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


BY_CALLS = """
import threading
os.environ.pop("TILEC_THREADS", None)
for count in (1, 3, 999999, None):
    tilec.set_threads(count)
    found.append(ran())
other = threading.Thread(target=lambda: found.append(ran()))
other.start(), other.join()
"""
MINE = available_threads()


@pytest.mark.parametrize("native", ["1", "0"])
@pytest.mark.parametrize(
    "environment, first, unset",
    [({}, MINE, MINE), ({"OMP_NUM_THREADS": "1,2"}, 1, 1), ({"OMP_NUM_THREADS": "many"}, MINE, MINE),
     ({"TILEC_THREADS": "3"}, 3, MINE), ({"TILEC_THREADS": "3", "OMP_NUM_THREADS": "1"}, 3, 1)],
)  # fmt: skip
def test_the_number_that_counts(environment, first, unset, native):
    """At most the processors, or what TILEC_THREADS says in the beginning."""
    found = run(BY_CALLS, TILEC_NATIVE_CALLS=native, **environment)
    limit = max(processors(), int(environment.get("TILEC_THREADS", 1)))
    assert found == [first, 1, min(3, limit), limit, unset, unset]


def test_a_loop_of_few_blocks_leaves_later_ones_their_threads():
    text = """
few = tilec.compile("op g(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = exp(x[i, j]) }", target="cpu")
for rows in (16, 32, 48, 64, 96, 128):
    few(np.zeros((rows, 700), np.float32))
    found.append(ran())
grids = {k.grid for e in few._built.values() for k in e.emitted.kernels}
assert any(1 < grid < 20 for grid in grids), grids
"""
    for native in "10":
        assert run(text, TILEC_THREADS="20", TILEC_NATIVE_CALLS=native) == [20] * 7


@pytest.mark.parametrize("given", [0, -1, 1.0, True, "2"])
def test_numbers_that_are_none(given, monkeypatch):
    with pytest.raises(tilec.CallError, match="whole number of at least 1"):
        tilec.set_threads(given)
    if given in (0, -1, 1.0):
        monkeypatch.setenv("TILEC_THREADS", str(given))
        with pytest.raises(tilec.CallError, match="TILEC_THREADS must be"):
            threads.settle()


def test_forks_have_the_same_number():
    text = """
read, write = os.pipe()
tilec.set_threads(2)
found.append(ran())
if os.fork() == 0:
    os.write(write, json.dumps([bool((op(x) == 1).all()), tilec.get_threads()]).encode())
    os._exit(0)
os.close(write)
found.append(json.loads(os.read(read, 99)))
"""
    assert run(text, TILEC_THREADS="3") == [3, 2, [True, 2]]


# ---- quotas ----------------------------------------------------------------------------------------------------------


def files(folder, texts):
    for name, text in texts.items():
        path = folder / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


V2 = "0::/app.slice/job\n"
V1 = "12:memory:/docker/a\n4:cpu,cpuacct:/docker/a\n1:name=systemd:/docker/a\n"


@pytest.mark.parametrize(
    "own, texts, quota",
    [
        (V2, {}, None),
        (V2, {"app.slice/job/cpu.max": "max 100000\n"}, None),
        (V2, {"app.slice/job/cpu.max": "150000 100000\n"}, 2),
        (V2, {"app.slice/job/cpu.max": "max 100000\n", "app.slice/cpu.max": "300000 100000\n"}, 3),
        (V2, {"app.slice/job/cpu.max": "20000 100000\n", "app.slice/cpu.max": "300000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "400000 100000\n"}, 4),
        ("", {"cpu.max": "400000 100000\n"}, 4),
        ("0::/../other\n", {"cpu.max": "200000 100000\n"}, 2),
        (V1, {"cpu,cpuacct/docker/a/cpu.cfs_quota_us": "-1\n", "cpu,cpuacct/docker/a/cpu.cfs_period_us": "100000\n"}, None),
        (V1, {"cpu,cpuacct/docker/a/cpu.cfs_quota_us": "250000\n", "cpu,cpuacct/docker/a/cpu.cfs_period_us": "100000\n"}, 3),
        (V1, {"cpu/docker/cpu.cfs_quota_us": "100000\n", "cpu/docker/cpu.cfs_period_us": "100000\n"}, 1),
        (V1, {"cpu/cpu.cfs_quota_us": "500000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 5),
        ("4:cpu:/a:b\n", {"cpu/a:b/cpu.cfs_quota_us": "100000\n", "cpu/a:b/cpu.cfs_period_us": "50000\n"}, 2),
        ("nonsense\n", {"cpu.max": "nonsense\n"}, None),
        (V2, {"cpu.max": "0 0\n"}, None),
    ],
)
def test_quotas_of_cgroups(tmp_path, own, texts, quota):
    """Of the group, its parents, and of the root that a container sees; versions 1 and 2."""
    files(tmp_path, texts)
    (tmp_path / "own").write_text(own)
    assert cpu_quota(tmp_path / "cgroup", tmp_path / "own") == quota


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="affinities are Linux's")
def test_affinity_counts():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert available_threads() == available_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
