"""The switch that turns calls by machine code off: the same results and the same errors from plain Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from conftest import as_list
from expectations import EXAMPLES

import tilec
from tilec.driver import fast_call
from tilec.runtime.cpu import launch as cpu_launch
from tilec.runtime.native import tables
from tilec.runtime.native.python import PythonLaunch

CALLS = """
import hashlib, json, sys
import numpy as np
import tilec

def told(call):
    try:
        found = call()
        return [hashlib.sha256(np.asarray(a).tobytes()).hexdigest() for a in (found if isinstance(found, tuple) else (found,))]
    except Exception as error:
        return [type(error).__name__, str(error)]

x = np.random.default_rng(0).standard_normal((700, 90)).astype(np.float32)
out = np.empty_like(x)
rows = tilec.compile("op f(x: f32[M, N]) -> (y: f32[M, N], s: f32[M]) { s[i] = sum[j](x[i, j])  y[i, j] = x[i, j] / s[i] }")
pick = tilec.compile("op pick(x: f32[N], at: i32[M]) -> (y: f32[M]) { y[i] = x[at[i]] }")
square = tilec.compile("op g(x: f32[M, N]) -> (y: f32[M, M]) { p[i, k] = sum[j](x[i, j] * x[k, j])  y[i, k] = exp(p[i, k] / 1e3) }")
copy = tilec.compile("op h(x: f32[N]) -> (y: f32[N]) { t[i] = -x[i]  y[i] = -t[i] }")
calls = [
    lambda: rows(x), lambda: rows(x), lambda: rows(np.asfortranarray(x)), lambda: rows(x[::2]),
    lambda: rows(x, out=(out, np.empty(700, np.float32))), lambda: rows(x[:0]),
    lambda: pick(x[0], np.array([3, 89, 0], np.int32)), lambda: pick(x[0], np.array([3, 90, 0], np.int32)),
    lambda: pick(x[0], np.array([3, -91, 0], np.int32)), lambda: pick(x[0].astype(np.complex64), np.zeros(3, np.int32)),
    lambda: square(x), lambda: square(x), lambda: copy(x[0]), lambda: rows(x, stream=3), lambda: rows(x, out=[x]),
]
found = [told(call) for call in calls]
print(json.dumps([found, [len(op._fast) for op in (rows, pick, square, copy)], "tilec.runtime.native.python" in sys.modules]))
"""


def answers(switch: str) -> list:
    environment = os.environ | {tables.VARIABLE: switch}
    done = subprocess.run([sys.executable, "-c", CALLS], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_same_results_and_errors():
    (by_machine, fast, _), (by_python, none, loaded) = answers("1"), answers("0")
    assert by_machine == by_python and loaded
    assert all(fast) and not any(none), "short ways are there by machine code alone"
    assert sum(len(a) == 2 and "Error" in a[0] for a in by_python) >= 4


@pytest.fixture
def by_python(monkeypatch):
    monkeypatch.setattr(tables, "native_calls", lambda: False)
    monkeypatch.setattr(cpu_launch, "builtin", None)  # no machine code is made


@pytest.mark.parametrize("name", ["softmax", "attention", "embedding", "cumsum", "mlp"])
def test_examples(name, rng, by_python, monkeypatch):
    """Several kernels, temporaries, scratch memory, checks; among canaries, too (`tools.guarded_calls`)."""
    example = EXAMPLES[name]
    inputs = list(example.inputs(rng).values())
    op = tilec.compile(example.path, op=example.op, target="cpu")
    found = op(*inputs)
    assert isinstance(op._latest.program._launch, PythonLaunch) and not op._fast
    monkeypatch.undo()
    expected = tilec.compile(example.path, op=example.op, target="cpu")(*inputs)
    assert [a.tobytes() for a in as_list(found)] == [a.tobytes() for a in as_list(expected)]


def test_a_check_that_fails(by_python):
    op = tilec.compile("op pick(x: f32[N], at: i32[M]) -> (y: f32[M]) { y[i] = x[at[i]] }", target="cpu")
    with pytest.raises(tilec.CallError, match="at"):
        op(np.ones(4, np.float32), np.array([0, 4], np.int32))
    np.testing.assert_array_equal(op(np.arange(4, dtype=np.float32), np.array([3], np.int32)), [3])


def test_threads_have_workspaces_of_their_own(by_python, rng):
    text = "op g(x: f32[M, N]) -> (y: f32[M, M]) { p[i, k] = sum[j](x[i, j] * x[k, j])  y[i, k] = p[i, k] + max[l](p[i, l]) }"
    op, x = tilec.compile(text, target="cpu"), [rng.standard_normal((60, 50), np.float32) for _ in range(4)]
    expected, wrong = [op(a) for a in x], []

    def work(n: int) -> None:
        for _ in range(20):
            if op(x[n]).tobytes() != expected[n].tobytes():
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_no_short_way_on_a_gpu(by_python):
    """What it would be made of is not asked for."""
    assert fast_call.make(None, [object()], [object()], [], tuple) is None


def test_numbers_of_addresses(by_python):
    keep = tables.KeepAlive()
    launch = PythonLaunch(keep.table(tables.Program, arrays=2), None, None)
    with pytest.raises(TypeError, match="2 addresses are expected, not 1"):
        launch(0)
