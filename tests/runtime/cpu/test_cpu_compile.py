"""CPU kernels as Numba compiles them: integer loops and minima, kernels that are the same, checks, threads, workspaces."""

import os
import subprocess
import sys
from base64 import b64decode
from dataclasses import replace
from itertools import combinations
from threading import Thread

import numpy as np
import pytest
from fuzz.guards import Guarded
from hypothesis import given
from hypothesis import strategies as st

from tilec.core.diagnostics import CallError
from tilec.process import compile_server
from tilec.runtime.cpu.compile import compile_kernels
from tilec.runtime.cpu.launch import CpuProgram
from tilec.runtime.cpu.objects import COMPILER, load_kernels
from tilec.runtime.generated import identity
from tilec.runtime.program import Emitted, KernelSource, Object, Slot, Step
from tilec.runtime.temporaries import Host, allocate

HEAD = "from tilec.runtime.cpu.support import i64, i64_pointer\n\n"


def programs(text: str, *kernels: KernelSource) -> dict[str, CpuProgram]:
    """Each kernel as a program of its own, whose arguments are all results."""
    loops, emitted = load_kernels(compile_kernels(text, kernels)), Emitted("programs", text, kernels, (), ())
    return {
        k.name: CpuProgram(
            replace(emitted, steps=(Step(k.name, tuple(Slot("output", n) for n in range(k.parameters))),)),
            loops, 0, k.parameters,
        )
        for k in kernels
    }  # fmt: skip


def run(body: str, *arrays: np.ndarray, grid: int = 1, sites: tuple[str, ...] = (), scratch: int = 0) -> None:
    lines = [f"    a{n} = i64_pointer(args[{n}])" for n in range(len(arrays))] + [f"    {x}" for x in body.splitlines()]
    text = HEAD + "def kernel(block, args, scratch):\n" + "\n".join(lines) + "\n"
    kernel = KernelSource("kernel", text, grid, len(arrays), scratch=scratch, sites=sites)
    with Guarded() as guarded:
        made = [guarded.copy(f"a{n}", a) for n, a in enumerate(arrays)]
        try:
            programs(text, kernel)["kernel"].launch([a.ctypes.data for a in made])
        finally:
            guarded.check()
            for array, new in zip(arrays, made):
                array[...] = new


@pytest.mark.parametrize(
    "bounds", ["0", "7", "-3", "3, 9", "9, 3", "-5, 5", "2, 17, 3", "2, 18, 4", "5, 5, 2", "-7, -1, 2"]
)
def test_loops_count_as_python_does(bounds):
    expected = list(eval(f"range({bounds})"))
    out = np.zeros(40, np.int64)
    run(f"n = 0\nfor i in range({bounds}):\n    a0[n + 1] = i\n    n = n + 1\na0[0] = n", out)
    assert out[0] == len(expected) and out[1 : 1 + len(expected)].tolist() == expected


def test_a_loop_ends_where_a_variable_says():
    out, n = np.zeros(3, np.int64), np.array([11], np.int64)
    run("s = 0\nfor i in range(2, a1[0], a1[0] - 8):\n    s = s + i\na0[0] = s", out, n)
    assert out[0] == sum(range(2, 11, 3))


@pytest.mark.parametrize("pair", [(3, -4), (-4, 3), (5, 5), (2**62, -(2**62))])
def test_minima_and_maxima_of_integers(pair):
    a, out = np.array(pair, np.int64), np.zeros(4, np.int64)
    run("a0[0] = min(a1[0], a1[1])\na0[1] = max(a1[0], a1[1])\na0[2] = min(7, a1[0])\na0[3] = max(a1[1], 2)", out, a)
    assert out.tolist() == [min(pair), max(pair), min(7, pair[0]), max(pair[1], 2)]


@pytest.mark.parametrize("grid", [1, 2, 3, 7, 64, 1001])
def test_every_block_runs_once(grid):
    out = np.zeros(grid, np.int64)
    run("a0[block] = a0[block] + block + 1", out, grid=grid)
    assert out.tolist() == list(range(1, grid + 1))


def test_kernels_that_differ_in_names_only_are_compiled_once():
    one = "def one(block, args, scratch):\n    x = i64_pointer(args[0])  # x: i64\n    x[block] = 5\n"
    two = "def two(block, args, scratch):\n    y = i64_pointer(args[0])\n    y[block] = 5\n"
    other = "def other(block, args, scratch):\n    y = i64_pointer(args[0])\n    y[block] = 6\n"
    kernels = tuple(KernelSource(n, t, 1, 1) for n, t in (("one", one), ("two", two), ("other", other)))
    made = compile_kernels(HEAD + one + two + other, kernels)
    assert made["one"] is made["two"] and made["one"].symbol != made["other"].symbol
    launchers, out = programs(HEAD + one + two + other, *kernels), np.zeros(1, np.int64)
    for name, value in (("one", 5), ("other", 6), ("two", 5)):
        launchers[name].launch([out.ctypes.data])
        assert out[0] == value


def test_bytecode_distinguishes_kernels():
    space: dict = {}
    exec("def f(a, b):\n c = a + b\n return c\ndef g(x, y):\n z = x + y\n return z\ndef h(x, y):\n return x - y", space)
    f, g, h = (identity(space[n].__code__) for n in "fgh")
    assert f == g != h


def test_a_failed_check_is_reported_once():
    out, text = np.zeros(1, np.int64), "if a0[0] == 0:\n    args[1] = 2\na0[0] = 1"
    with pytest.raises(CallError, match="second"):
        run(text, out, sites=("first", "second"))
    run(text, out, sites=("first", "second"))


def test_threads_do_not_share_scratch():
    body = (
        "own = i64_pointer(scratch)\n"
        "for i in range(64):\n    own[i] = block\n"
        "s = 0\nfor i in range(64):\n    s = s + own[i]\n"
        "a0[block] = s"
    )
    lines = (
        "def kernel(block, args, scratch):\n    a0 = i64_pointer(args[0])\n    " + body.replace("\n", "\n    ") + "\n"
    )
    kernel = programs(HEAD + lines, KernelSource("kernel", lines, 500, 1, scratch=512))["kernel"]
    outs = [np.zeros(500, np.int64) for _ in range(4)]
    threads = [Thread(target=lambda o=o: [kernel.launch([o.ctypes.data]) for _ in range(20)]) for o in outs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for out in outs:
        np.testing.assert_array_equal(out, np.arange(500) * 64)


uses = st.lists(st.lists(st.integers(0, 7), max_size=4), min_size=1, max_size=10)


@given(st.lists(st.integers(0, 5000), min_size=8, max_size=8), uses)
def test_intermediates_that_live_at_once_are_disjoint(sizes, uses):
    steps = [Step("k", tuple(Slot("temporary", n) for n in step)) for step in uses]
    allocated = allocate(sizes, steps)
    assert [t.bytes for t in allocated] == sizes and all(t.offset % 256 == 0 for t in allocated)
    lives = {n: [i for i, step in enumerate(uses) if n in step] for n in range(8)}
    for a, b in combinations(range(8), 2):
        if lives[a] and lives[b] and lives[a][0] <= lives[b][-1] and lives[b][0] <= lives[a][-1]:
            x, y = allocated[a], allocated[b]
            assert x.end <= y.offset or y.end <= x.offset or not x.bytes or not y.bytes


@given(st.lists(st.integers(0, 5000), min_size=8, max_size=8), uses, st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 9))))
def test_intermediates_lie_in_results_that_are_not_written_yet(sizes, uses, results):
    """Where the workspace would be larger without them."""
    hosts = [Host(Slot("output", n), size, min(until, len(uses))) for n, (size, until) in enumerate(results)]
    steps = [Step("k", tuple(Slot("temporary", n) for n in step)) for step in uses]
    allocated = allocate(sizes, steps, lasting=[3], hosts=hosts)
    plain = allocate(sizes, steps, lasting=[3])
    ends = [max((t.end for t in found if t.within is None), default=0) for found in (allocated, plain)]
    assert ends[0] <= ends[1] and allocated[3].within is None
    lives = {n: [i for i, step in enumerate(uses) if n in step] for n in range(8)}
    for n, t in enumerate(allocated):
        if t.within is not None:
            host = hosts[t.within.number]
            assert t.end <= host.bytes and lives[n] and lives[n][-1] < host.until
    for a, b in combinations(range(8), 2):
        x, y = allocated[a], allocated[b]
        if x.within == y.within and lives[a] and lives[b] and lives[a][0] <= lives[b][-1] and lives[b][0] <= lives[a][-1]:
            assert x.end <= y.offset or y.end <= x.offset or not x.bytes or not y.bytes


def test_what_lasts_from_call_to_call_lies_alone():
    allocated = allocate([512] * 3, [Step("k", (Slot("temporary", n),)) for n in range(3)], lasting=[1])
    assert [t.offset == allocated[1].offset for t in allocated] == [False, True, False] == [t.stays_clear for t in allocated]
    assert allocated[0].offset == allocated[2].offset


def test_a_chain_needs_two_intermediates_at_a_time():
    steps = [Step("k", tuple(Slot("temporary", n) for n in (i, i + 1) if n < 6)) for i in range(6)]
    allocated = allocate([1024] * 6, steps)
    assert max(t.end for t in allocated) == 2048


def test_the_compilers_own_process_makes_what_this_one_would():
    text = HEAD + "def kernel(block, args, scratch):\n    y = i64_pointer(args[0])\n    y[block] = min(block, 3)\n"
    (here,) = compile_kernels(text, (KernelSource("kernel", text, 5, 1),)).values()
    made = compile_server.ask(COMPILER, {"module": text, "kernel": "kernel"})
    assert (made["symbol"], tuple(made["needs"])) == (here.symbol, here.needs)
    y = np.zeros(5, np.int64)
    source = KernelSource("kernel", text, 5, 1)
    step = Step("kernel", (Slot("output", 0),))
    loops = load_kernels({"kernel": Object(b64decode(made["image"]), made["symbol"], here.needs)})
    CpuProgram(Emitted("own", text, (source,), (step,), ()), loops, 0, 1).launch([y.ctypes.data])
    np.testing.assert_array_equal(y, [0, 1, 2, 3, 3])


def test_what_does_not_compile_is_reported_by_this_process():
    assert "no_such" in compile_server.ask(COMPILER, {"module": "import no_such", "kernel": "kernel"})["error"]


ELSEWHERE = """
import sys, numpy as np, tilec
from tilec.process import compile_server
compile_server._POSSIBLE = {possible} and compile_server._POSSIBLE
x = np.arange(600, dtype=np.float32).reshape(20, 30)
program = "m[i] = max[j](x[i, j])  s[j] = sum[i](x[i, j] * m[i])  y[i, j] = cumsum[j](x[i, j] + s[j])"
y = tilec.compile(program, target="cpu")(x)
s = (x.astype(np.float64) * x.max(1, keepdims=True)).sum(0)
np.testing.assert_allclose(y, np.cumsum(x + s, 1), rtol=1e-4)
print("tilec.runtime.cpu.compile" in sys.modules)
"""


@pytest.mark.parametrize("possible", [True, False])
def test_programs_compile_in_processes_of_the_compilers_own_or_here(possible, tmp_path):
    environment = os.environ | {"TILEC_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", ELSEWHERE.format(possible=possible)]
    here = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    assert here == str(not (possible and compile_server._POSSIBLE))
