"""Programs whose sizes vary that drawn ones were reduced to: each once failed, or was compiled anew for every size."""

from __future__ import annotations

import pytest
from tools.varying import ranges, results
from tools.varying_kernels import lowered_for, wrong_kernels

from tilec.core.source import read_source
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise
from tilec.runtime.cpu.compile import _execute
from tilec.semantics.comparison import compare
from tilec.semantics.inputs import random_inputs
from tilec.semantics.interpreter import prepare

FOUND = {  # a program, what varies, and calls
    "a bound that MLIR divides unsigned": (
        "op f(t: f32[N // 3 + 1], p: i64[N]) -> (y: f32[N]) { y[i] = t[p[i]] }", {"N": (17, 33)}, [17, 20],
    ),
    "memory of which a kernel that shares a launch takes the shape": (
        """op f(x: f32, u: bool[M]) -> (y: f32[5, M], z: f32) {
            y[i, j] = erf(x) where i in 0:5, j in 0:M
            z = prod[k in 0:M, l in 0:M](clamp(f32(2.0), -1, 1))
        }""", {"M": (17, 18)}, [17, 18],
    ),
    "one block has all of a scan": (
        "op f(x: f32, u: bool[M]) -> (y: f32[M]) { y[i] = cumprod[i](x) where i in 0:M }", {"M": (17, 40)}, [17, 33],
    ),
    "one block has a reduction and all of what reads it": (
        "op f(x: u8, u: bool[M]) -> (y: i64[M]) { y[i] = min[k in 0:1](x) * 2 where i in 0:M }", {"M": (17, 40)}, [17, 33],
    ),
    "rows of a multiple of a vector's elements at the size that is planned alone": (
        "op f(x: bf16[3, M + 1]) -> (y: bf16[3, M + 1], s: f32[3]) { y[i, j] = x[i, j] * 2\n s[i] = sum[j](x[i, j]) }",
        {"M": (2, 16)}, [2, 7, 9],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_on_cuda(name):
    text, varies, calls = FOUND[name]
    made = lowered_for(text, varies)
    assert wrong_kernels(text, made, [{size: n} for size in varies for n in calls]) == []


@pytest.mark.parametrize("name", FOUND)
def test_on_the_cpu(name):
    text, varies, calls = FOUND[name]
    made, program = lowered_for(text, varies, "cpu"), parse(read_source(text))
    assert made.emitted is not None and "memref.copy" not in made.texts["bufferize"]
    _execute(made.emitted.module)  # all that it imports is there
    run = prepare(made.texts["map"])
    for at in [{size: n} for size in ranges(varies) for n in calls]:
        exact = specialise(program, None, None, at)
        inputs = random_inputs(exact, 1, {})
        found = results(run, exact, inputs)
        assert found is not None and all(c.within for c in compare(exact, inputs, found).values()), at
