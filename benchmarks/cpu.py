"""The CPU suite: what fits into main memory but not into a cache, products, every example, what memory limits, and what
compiling costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

from benchmarks import workloads as w
from benchmarks.cpu_examples import Drawn, examples
from benchmarks.cpu_loads import loads
from benchmarks.machine import has
from benchmarks.measure import Times, on_cpu
from benchmarks.report import TENSORS
from benchmarks.runner import Row
from benchmarks.torch_peers import on_host
from tilec.core.dtypes import DTYPES

SHAPE = (4096, 4096)
AGAIN = "tilec again"
LARGE = 1 << 26  # bytes of a result, from which on pages that are new to a process are a good part of its time
WORTH = 1 << 21  # bytes of inputs, from which on torch.compile, which looks at much in each call, may be the fastest
SLOW = 0.2  # seconds of a call of NumPy, from which on one is timed and no more
BF16 = DTYPES["bf16"].numpy


def suite() -> list[Row]:
    rows = [Row(load.name, lambda load=load: compare(load), 240) for load in _workloads()]
    rows += [
        Row(f"compile {name}", lambda name=name: compile_times(name), 240) for name in ("softmax", "transformer_block")
    ]
    rows += [Row(x.name, lambda x=x: compare(x, "example", rounds=5, budget=0.02), 240) for x in examples()]
    return rows + [Row(x.name, lambda x=x: compare(x, "memory", rounds=5, budget=0.02), 240) for x in loads()]


def _workloads() -> list[w.Workload]:
    m, n = SHAPE
    tag = f"{m}x{n} f32"
    return [
        w.chain(f"cos {tag}", "cos(x[i, j])", lambda x: x.cos(), "f32", SHAPE, numpy=np.cos,
                numpy_out=lambda x, out: np.cos(x, out=out), torch_out=lambda x, out: w.torch.cos(x, out=out),
                jax=lambda x: w.jnp().cos(x)),
        w.chain(f"cos(cos) {tag}", "cos(cos(x[i, j]))", lambda x: x.cos().cos(), "f32", SHAPE,
                numpy=lambda x: np.cos(np.cos(x)),
                numpy_out=lambda x, out: np.cos(np.cos(x, out=out), out=out),
                torch_out=lambda x, out: w.torch.cos(w.torch.cos(x, out=out), out=out),
                jax=lambda x: w.jnp().cos(w.jnp().cos(x))),
        w.softmax("f32", m, n, torch_out=lambda x, out: w.torch.softmax(x, -1, out=out)),
        w.layernorm("f32", m, n),
        w.rmsnorm("f32", m, n),
        w.chain(f"gelu (tanh) {tag}", "gelu_tanh(x[i, j])", lambda x: w.functional().gelu(x, approximate="tanh"), "f32",
                SHAPE, numpy=w.np_gelu_tanh, rows=256,
                jax=lambda x: w.jnn().gelu(x, approximate=True)),
        w.chain(f"gelu (erf) {tag}", "gelu(x[i, j])", lambda x: w.functional().gelu(x), "f32", SHAPE,
                rows=64, jax=lambda x: w.jnn().gelu(x, approximate=False)),
        w.sums("rows", "f32", m, n),
        w.sums("columns", "f32", m, n),
        w.transpose("f32", m, n),
        w.matmul("f32", 1024),
        w.matmul("f32", 2048),
        w.product("f32", 1500, 1300, 700),
        w.product("f32", 64, 1024, 4096),
        *(w.product("f32", m, 4096, 4096) for m in (1, 4, 16)),
        w.product("f32", 100, 100, 100),
        w.transposed_product(1024, 1024, 1024),
        w.linear("f32", 1024),
        w.matmul("bf16", 1024),
        w.attention(1, 8, 1024, 64, False, "f32"),
        w.attention(1, 8, 1024, 64, True, "f32"),
        w.attention(1, 8, 1024, 64, False),
        w.attention(1, 8, 1024, 64, True),
        *(w.convolution(1, 64, 56, 64, dtype, last) for dtype in ("f32", "bf16") for last in (False, True)),
        w.copy(m, n),
    ]  # fmt: skip


# ---- one workload ----------------------------------------------------------------------------------------------------


def compare(load: w.Workload, group: str = "cpu", **timing) -> dict:
    """Times all ways of computing it, with memory given and with memory allocated, and checks tilec's result."""
    import tilec

    arrays = load.draw(np.random.default_rng(0))
    op = tilec.compile(load.program, op=load.op, target="cpu")
    result = op(*arrays)
    results = list(result) if isinstance(result, tuple) else [result]
    facts = {"group": group, "sizes": load.sizes, "flops": load.flops, "kernels": len(op.kernels)} | check(
        load, arrays, results
    )
    facts["bytes"] = float(sum(a.nbytes for a in (*arrays, *results)))
    given: dict[str, Callable] = {"tilec": lambda: op(*arrays, out=result)}
    fresh: dict[str, Callable] = {"tilec": lambda: op(*arrays)}
    once: dict[str, float] = {}
    wide = [a.astype(np.float32) if a.dtype == BF16 else a for a in arrays]  # NumPy would convert numbers one by one
    if load.numpy is not None:
        start = time.perf_counter()
        load.numpy(*wide)
        if (seconds := time.perf_counter() - start) < SLOW:
            fresh["numpy"] = lambda: load.numpy(*wide)
        else:
            once["numpy"] = 1e6 * seconds
    if load.numpy_out is not None:
        out = np.empty_like(result)
        given["numpy"] = lambda: load.numpy_out(*wide, out)
    if has("torch") and max(r.nbytes for r in results) >= LARGE:
        tensors = [on_host(a) for a in arrays]
        fresh[TENSORS] = lambda: op(*tensors)
    notes: dict[str, str] = {}
    for name, add in (("torch", _add_torch), ("torch.compile", _add_compiled), ("jax", _add_jax)):
        if not has(name.split(".")[0]):
            continue
        try:
            add(load, arrays, results, given, fresh)
        except Exception as error:
            notes[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    given[AGAIN], fresh[AGAIN] = given["tilec"], fresh["tilec"]
    times = on_cpu({f"{name}, out=": call for name, call in given.items()} | fresh, **timing)
    facts["times_us"] = {k: t.median for k, t in times.items()} | once
    facts["range_us"] = {k: (t.low, t.high) for k, t in times.items()}
    return facts | {"noise": _noise(times), "notes": notes}


def _noise(times: dict[str, Times]) -> float:
    pairs = [(times["tilec" + end], times[AGAIN + end]) for end in (", out=", "")]
    return max(abs(a.median / b.median - 1) for a, b in pairs)


def check(load: w.Workload, arrays: list[np.ndarray], results: list[np.ndarray]) -> dict:
    """The largest share of the allowed error that tilec's result uses: 1 at the end of the program's error bound."""
    if isinstance(load, Drawn):
        share = load.error_share(arrays, results)
        return {"right": share <= 1, "error_share": share}
    if load.rows is not None:
        arrays, results = [arrays[0][: load.rows], *arrays[1:]], [r[: load.rows] for r in results]
    share = w.share_of_bound(load.program, load.op, arrays, results, "cpu")
    return {"right": share <= 1, "error_share": share}


def _add_torch(load, arrays, results, given, fresh) -> None:
    import torch

    torch.set_num_threads(_cores())
    tensors = [on_host(a) for a in arrays]
    fresh["torch"] = lambda: load.torch(*tensors)
    if load.torch_out is not None:
        out = torch.empty_like(on_host(results[0]))
        given["torch"] = lambda: load.torch_out(*tensors, out)


def _add_compiled(load, arrays, results, given, fresh) -> None:
    """A copy into given memory becomes a part of the kernel. Compiling takes seconds: once where that is the same work."""
    import torch

    if load.flops or sum(a.nbytes for a in arrays) < WORTH:
        return  # it calls the same product, and a small array's call takes it longer than the others
    torch._dynamo.reset()  # or the eighth row is refused, and runs eagerly
    tensors = [on_host(a) for a in arrays]
    allocate = torch.compile(load.torch, dynamic=False)
    allocate(*tensors)
    fresh["torch.compile"] = lambda: allocate(*tensors)
    if len(results) == 1 and results[0].nbytes >= LARGE:
        out = torch.empty_like(on_host(results[0]))
        store = torch.compile(lambda target, *inputs: target.copy_(load.torch(*inputs)), dynamic=False)
        store(out, *tensors)
        given["torch.compile"] = lambda: store(out, *tensors)


def _add_jax(load, arrays, results, given, fresh) -> None:
    import jax

    if load.jax is None:
        return
    inputs, compiled = [jax.device_put(a) for a in arrays], jax.jit(load.jax)
    fresh["jax"] = lambda: jax.block_until_ready(compiled(*inputs))


def _cores() -> int:
    from tilec.core.host import available_cores

    return available_cores()


# ---- compiling -------------------------------------------------------------------------------------------------------

TILEC = """
import json, sys, time
import numpy as np
t0 = time.perf_counter()
import tilec
sys.path.insert(0, "examples")
from expectations import EXAMPLES

t1 = time.perf_counter()
e = EXAMPLES[NAME]
x = list(e.inputs(np.random.default_rng(0)).values())
t2 = time.perf_counter()
op = tilec.compile(e.path, op=e.op, target="cpu")
op(*x)
t3 = time.perf_counter()
other = list(e.inputs(np.random.default_rng(0), {k: v + 2 for k, v in e.sizes.items()}).values())
t4 = time.perf_counter()
op(*other)
t5 = time.perf_counter()
print(json.dumps({"import": t1 - t0, "first call": t3 - t2, "next shape": t5 - t4}))
"""
TORCH = """
import json, sys, time
import numpy as np
t0 = time.perf_counter()
import torch
sys.path.insert(0, "examples")
from expectations import EXAMPLES
t1 = time.perf_counter()
e = EXAMPLES[NAME]
def tensors(sizes):
    arrays = e.inputs(np.random.default_rng(0), sizes).values()
    kinds = {"bfloat16": torch.bfloat16}
    return [torch.from_numpy(a.astype(np.float32)).to(kinds.get(a.dtype.name, torch.float32)) for a in arrays]
x = tensors(e.sizes)
t2 = time.perf_counter()
f = torch.compile(e.torch_eager, dynamic=False)
f(*x)
t3 = time.perf_counter()
other = tensors({k: v + 2 for k, v in e.sizes.items()})
t4 = time.perf_counter()
f(*other)
t5 = time.perf_counter()
print(json.dumps({"import": t1 - t0, "first call": t3 - t2, "next shape": t5 - t4}))
"""


def compile_times(name: str) -> dict:
    """Seconds in a fresh process with an empty cache, and in a second one that finds what the first has left."""
    times: dict[str, float] = {}
    scripts = {"tilec": TILEC} | ({"torch.compile": TORCH} if has("torch") else {})
    for who, script in scripts.items():
        with tempfile.TemporaryDirectory() as folder:
            variables = os.environ | {
                "TILEC_CACHE_DIR": folder,
                "TORCHINDUCTOR_CACHE_DIR": folder,
                "PYTHONDONTWRITEBYTECODE": "",
            }
            for state in ("fresh", "cached"):
                command = [sys.executable, "-c", f"NAME = {name!r}\n{script}"]
                done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise RuntimeError(done.stderr.strip().splitlines()[-1])
                seconds = json.loads(done.stdout.splitlines()[-1])
                times |= {f"{who}, {state}, {what}": 1e6 * value for what, value in seconds.items()}
    return {"group": "compile", "times_us": times}


__all__ = ["check", "compare", "suite"]
