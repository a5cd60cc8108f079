"""The GPU suite: copy, chains, rows, sums, products, attention, every example at its bench sizes, host time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks import matrix_forms, matrix_loads
from benchmarks import workloads as w
from benchmarks.cpu import AGAIN
from benchmarks.machine import has
from benchmarks.measure import host_time, on_gpu
from benchmarks.runner import Row
from benchmarks.torch_peers import compiled as compile_peer
from benchmarks.torch_peers import error_share, to_device

CHAIN = (16384, 16384)
ROWS = [(16384, 1024), (16384, 4096), (16384, 16384), (4096, 65536)]
LONG_ROWS = (("bf16", 8192, 32768), ("bf16", 1024, 262144), ("f32", 2048, 65536), ("f32", 512, 262144))
FEW_ROWS = (("bf16", 1, 262144), ("f32", 16, 65536), ("bf16", 256, 1024))


def suite(compiled: bool = True, matrix: bool = False) -> list[Row]:
    """`matrix`: only programs for matrix units."""
    forms = [matrix_forms.row(x, compiled) for x in matrix_loads.loads()]
    if matrix:
        return forms
    rows = [Row("copy f32 1 GiB", copy)]
    rows += [Row(x.name, lambda x=x: compare(x, compiled)) for x in _chains()]
    rows += [Row(f"example {name}", lambda e=e: example(e, compiled), 300) for name, e in w.EXAMPLES.items()]
    rows += [Row(x.name, lambda x=x: compare(x, compiled)) for x in _matrices()]
    rows += forms
    rows += [Row(x.name, lambda x=x: compare(x, compiled)) for x in _rows()]
    rows += [Row("host time of a call", host)]
    return rows


def _chains() -> list[w.Workload]:
    tag = f"{CHAIN[0]}x{CHAIN[1]}"
    gelu = lambda x: w.functional().gelu(x, approximate="tanh")  # noqa: E731
    return [
        w.chain(f"copy + 1 {tag} f32", "x[i, j] + 1", lambda x: x + 1, "f32", CHAIN),
        w.chain(f"cos {tag} f32", "cos(x[i, j])", lambda x: x.cos(), "f32", CHAIN),
        w.chain(f"cos(cos) {tag} f32", "cos(cos(x[i, j]))", lambda x: x.cos().cos(), "f32", CHAIN),
        w.chain(f"gelu (tanh) {tag} f32", "gelu_tanh(x[i, j])", gelu, "f32", CHAIN),
        w.chain(f"gelu (tanh) {tag} bf16", "gelu_tanh(x[i, j])", gelu, "bf16", CHAIN),
        w.chain(f"five steps {tag} bf16", "tanh(x[i, j] * 2 + 1) * sigmoid(x[i, j]) - exp(-abs(x[i, j]))",
                lambda x: (x * 2 + 1).tanh() * x.sigmoid() - (-x.abs()).exp(), "bf16", CHAIN),
    ]  # fmt: skip


def _rows() -> list[w.Workload]:
    loads = [w.softmax("bf16", m, n) for m, n in ROWS] + [w.softmax("f32", 16384, 4096)]
    loads += [make("bf16", m, n) for make in (w.layernorm, w.rmsnorm) for m, n in ROWS]
    loads += [make(t, m, n) for make in (w.softmax, w.layernorm, w.rmsnorm) for t, m, n in LONG_ROWS]
    loads += [w.softmax(t, m, n) for t, m, n in FEW_ROWS]
    return loads + [w.sums(kind, "f32", *CHAIN) for kind in ("rows", "columns", "all")] + [w.transpose("f32", *CHAIN)]


def _matrices() -> list[w.Workload]:
    loads = [w.matmul("bf16", n) for n in (1024, 2048, 4096, 8192, 16384)]
    loads += [w.linear("bf16", n) for n in (4096, 8192)]
    loads += [w.matmul("f32", 4096), w.matmul("f32", 4096, " using tf32", "tf32")]
    loads += [w.matmul("f32", 4096, " using bf16", "f32 using bf16"), w.matmul("f32", 8192, " using tf32", "tf32")]
    loads += [w.product(t, m, 8192, 8192) for t in ("bf16", "f32") for m in (1, 16)]
    loads += [w.product("bf16", 256, 256, 16384)]
    return loads + [w.attention(1, 32, 8192, 128, causal) for causal in (False, True)]


# ---- one row ---------------------------------------------------------------------------------------------------------


def copy() -> dict:
    import torch

    x = torch.randn(2**28, device="cuda")
    y = torch.empty_like(x)
    times = on_gpu({"torch": lambda: y.copy_(x), "torch again": lambda: y.copy_(x)})
    noise = abs(times["torch"].median / times["torch again"].median - 1)
    return {
        "group": "copy",
        "bytes": 2.0 * x.nbytes,
        "times_us": {"torch": times["torch"].median},
        "noise": noise,
        "right": True,
    }


def compare(load: w.Workload, compiled: bool) -> dict:
    tensors = [to_device(a) for a in load.draw(w.FastNormal(np.random.default_rng(0)))]
    facts = _compare(load.program, load.op, tensors, load.torch, load.bound, compiled, "tf32" in load.name)
    group = (
        "matrix"
        if load.flops
        else "rows"
        if any(load.name.startswith(x) for x in ("softmax", "layer", "rms", "sum", "trans"))
        else "chain"
    )
    return facts | {"group": group, "sizes": load.sizes, "flops": load.flops}


def example(e, compiled: bool) -> dict:
    """An example: at small odd sizes within its error bounds, then at its bench sizes against PyTorch in wider types, timed.
    Where PyTorch draws other random numbers, the error bounds stand for it, on the first part of the bench sizes."""
    share = _share_of_bound(e, e.sizes)
    fast = w.FastNormal(np.random.default_rng(0))
    tensors = [to_device(a) for a in e.inputs(fast, e.bench_sizes).values()]
    bound = None if e.torch_draws else e.bound(e.bench_sizes)
    facts = _compare(e.path, e.op, tensors, e.torch_eager, bound, compiled)
    if e.torch_draws:
        first, *others = e.bench_sizes.items()
        part = dict([(first[0], first[1] // 256), *others])
        facts["error_share"] = _share_of_bound(e, part)
        facts["right"] = facts["error_share"] <= 1
        facts["notes"]["tilec"] = f"PyTorch draws other numbers: held to the error bounds at {_message(part)}"
    facts |= {"group": "example", "sizes": _message(e.bench_sizes), "small_error_share": share}
    return facts | {"right": facts["right"] and share <= 1}


def _share_of_bound(e, sizes: dict[str, int]) -> float:
    import tilec

    inputs = e.inputs(np.random.default_rng(0), sizes)
    results = tilec.compile(e.path, op=e.op)(*(to_device(a) for a in inputs.values()))
    results = list(results) if isinstance(results, tuple) else [results]
    found = [(r.double() if r.is_floating_point() else r).cpu().numpy() for r in results]
    return w.share_of_bound(e.path, e.op, list(inputs.values()), found, "cuda")


def _message(sizes: dict[str, int]) -> str:
    return " ".join(f"{k}={v}" for k, v in sizes.items())


def _compare(
    program: str | Path, name: str | None, tensors: list, peer: Callable, bound, compiled: bool, tf32=False
) -> dict:  # fmt: skip
    """Times of tilec and its peer; whether tilec is within the bound of the peer, where there is one."""
    import torch

    import tilec

    start = time.perf_counter()
    op = tilec.compile(program, op=name)
    result = op(*tensors)
    torch.cuda.synchronize()
    facts: dict = {"compile_s": {"tilec": time.perf_counter() - start}, "kernels": len(op.kernels), "notes": {}}
    results = list(result) if isinstance(result, tuple) else [result]
    facts["bytes"] = float(sum(t.nbytes for t in (*tensors, *results)))
    facts["predicted_us"] = sum(k.predicted_us for k in op.kernels)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if bound is not None:
        facts["error_share"] = error_share(peer, tensors, results, bound)
        facts["right"] = facts["error_share"] <= 1
    torch.backends.cuda.matmul.allow_tf32 = tf32
    out = result if len(results) == 1 else results
    calls = {"tilec": lambda: op(*tensors, out=out), "torch": lambda: peer(*tensors)}
    if compiled and has("triton"):
        try:
            start = time.perf_counter()
            fast = compile_peer(peer, tensors)
            calls["torch.compile"] = lambda: fast(*tensors)
            facts["compile_s"]["torch.compile"] = time.perf_counter() - start
        except Exception as error:
            facts["notes"]["torch.compile"] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    calls[AGAIN] = calls["tilec"]
    times = on_gpu(calls)
    facts["times_us"] = {k: t.median for k, t in times.items()}
    facts["range_us"] = {k: (t.low, t.high) for k, t in times.items()}
    return facts | {"noise": abs(times["tilec"].median / times[AGAIN].median - 1)}


def host() -> dict:
    """Host microseconds of one call on small tensors, with `out=` and without."""
    import torch

    import tilec

    x = torch.randn(32, 32, device="cuda")
    op = tilec.compile("y[i, j] = cos(cos(x[i, j])) + 1")
    y = op(x)
    calls = {"tilec": lambda: op(x, out=y), "tilec, allocated": lambda: op(x), "torch": lambda: x.cos().cos() + 1}
    if has("triton"):
        fast = torch.compile(lambda x: x.cos().cos() + 1)
        fast(x)
        calls["torch.compile"] = lambda: fast(x)
    return {"group": "host", "times_us": {k: host_time(c, torch.cuda.synchronize) for k, c in calls.items()}}
