"""The memory suite: programs that memory should limit, at many shapes, beside a copy of the same bytes and the peers.

Device times are medians of CUDA events with the L2 cache cold. All is compiled beforehand, by as many processes as there are
cores, into the caches on disk; then one process times, alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from benchmarks.machine import has
from benchmarks.measure import Flushed, host_time, on_cpu, on_gpu
from benchmarks.memory_loads import Load, loads
from benchmarks.runner import Row

ROUNDS, BUDGET = 3, 0.004  # of a candidate, seconds a round: thirty calls of 130 us


def suite(compiled: bool = True) -> list[Row]:
    rows = [
        Row(x.name, lambda x=x: run(x, compiled), 60, prepare=lambda x=x: prepare(x, compiled)) for x in loads()
    ]  # fmt: skip
    hosts = [Row(f"host time of a call{name}", lambda n=name: host(n, compiled), 60) for name in HOSTS]
    return [*hosts, Row("what the L2 cache holds", caches, 60), *rows]


def prepare(load: Load, compiled: bool) -> dict:
    """Fills the caches on disk. What the cost model says of the program."""
    import tilec
    from benchmarks import torch_peers

    tensors = tensors_of(load, "cuda")
    op = tilec.compile(load.work.program, op=load.work.op)
    op(*tensors)
    kernels = op.plan.kernels
    if compiled and has("triton"):
        with contextlib.suppress(Exception):
            torch_peers.compiled(load.work.torch, tensors)
    if plain := _triton(load, tensors):
        plain(*tensors)
    operations: dict[str, float] = {}
    for kernel in kernels:
        for unit, amount in kernel.work.flops.items():
            operations[unit] = operations.get(unit, 0) + amount
    terms = [{k: round(t, 3) for k, t in kernel.prediction.terms.items()} for kernel in kernels]
    return {"operations": operations, "terms_us": terms}


def tensors_of(load: Load, device: str) -> list:
    import torch

    from benchmarks.torch_peers import draw

    generator = torch.Generator(device).manual_seed(0)
    return [draw(i, generator, device) for i in load.work.inputs]


def _triton(load: Load, tensors: list) -> Callable | None:
    if not load.work.triton or not has("triton"):
        return None
    from benchmarks import triton_peers

    return triton_peers.peer(load.work.triton, tensors[0].shape[-1])


def run(load: Load, compiled: bool, device: str = "cuda") -> dict:
    """Checks one load and times it."""
    import torch

    import tilec
    from benchmarks import torch_peers

    tensors, work, notes = tensors_of(load, device), load.work, {}
    op = tilec.compile(work.program, op=work.op, deferred_checks=True)  # as PyTorch's checks of indices are
    made = op(*tensors)
    results = list(made) if isinstance(made, tuple) else [made]
    out = made if len(results) == 1 else results
    share = torch_peers.error_share(work.expected or work.torch, tensors, results, work.bound)
    moved = load.bytes(tensors, results)
    source = torch.zeros(max(1, moved // 8), dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    calls = {"tilec": lambda: op(*tensors, out=out), "copy": lambda: target.copy_(source)}
    calls["torch"] = lambda: work.torch(*tensors)
    peers = {"torch.compile": lambda: torch_peers.compiled(work.torch, tensors)} if compiled and has("triton") else {}
    if plain := _triton(load, tensors):
        peers["triton"] = lambda: plain
    for name, make in peers.items():
        try:
            peer = make()
            peer(*tensors)
            torch.cuda.synchronize()
            calls[name] = lambda peer=peer: peer(*tensors)
        except Exception as error:
            notes[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    calls["tilec again"] = calls["tilec"]
    times = on_gpu(calls, ROUNDS, BUDGET) if device == "cuda" else on_cpu(calls, ROUNDS, BUDGET)
    medians = {k: t.median for k, t in times.items()}
    ours, again, copied = (medians.pop(k) for k in ("tilec", "tilec again", "copy"))
    return {
        "program": load.program, "kind": load.kind, "length": load.length, "shape": list(load.shape),
        "dtype": load.dtype, "bytes": moved, "tilec_us": ours, "copy_us": copied, "copy_bytes": 2 * source.nbytes,
        "peers_us": medians, "predicted_us": sum(k.predicted_us for k in op.kernels), "kernels": len(op.kernels),
        "noise": abs(ours / again - 1), "error_share": share, "right": share <= 1, "notes": notes,
    }  # fmt: skip


def caches() -> dict:
    """Device microseconds of a copy and of a kernel that only reads, as many bytes, where L2 is full of lines that were written
    and where of lines that were read."""
    import torch

    import tilec

    x = torch.randn(8192, 8192, device="cuda")
    half, target = x[:4096], torch.empty_like(x[:4096])
    op = tilec.compile("y[i] = sum[j](x[i, j])")
    y = op(x)
    calls = {"a copy": lambda: target.copy_(half), "a sum of rows": lambda: op(x, out=y)}
    found = {}
    for state, clean in (("written", False), ("read", True)):
        for name, time in on_gpu(calls, flush=Flushed(clean)).items():
            found[f"{name}, {state} lines"] = time.median
    return {"kind": "cache", "device_us": found}


HOSTS = {  # small programs, by what a call does: text, types and shapes, and PyTorch's form
    "": ("y[i, j] = relu(x[i, j])", {"x": ("float32", (32, 32))}, lambda x: x.relu()),
    ", two kernels": (
        """op two(x: f32[N, N]) -> (y: f32[N, N]) {
            p[i, j] = sum[k](x[i, k] * x[k, j])
            y[i, j] = sum[k](p[i, k] * p[k, j])
        }""",
        {"x": ("float32", (32, 32))},
        lambda x: (p := x @ x) @ p,
    ),
    ", tensor maps": (
        "op product(a: bf16[M, K], b: bf16[K, N]) -> (y: bf16[M, N]) { y[i, j] = sum[k](a[i, k] * b[k, j]) }",
        {"a": ("bfloat16", (1024, 1024)), "b": ("bfloat16", (1024, 1024))},
        lambda a, b: a @ b,
    ),
    ", a check to wait for": (
        "op pick(x: f32[N], at: i64[M]) -> (y: f32[M]) { y[i] = x[at[i]] }",
        {"x": ("float32", (1000,)), "at": ("int64", (64,))},
        lambda x, at: x[at],
    ),
}


def host(name: str, compiled: bool) -> dict:
    """Host microseconds of one call on small tensors, with `out=` and without."""
    import torch

    import tilec

    text, inputs, peer = HOSTS[name]
    tensors = [torch.ones(shape, device="cuda").to(getattr(torch, dtype)) for dtype, shape in inputs.values()]
    op = tilec.compile(text)
    y = op(*tensors)
    calls = {
        "tilec": lambda: op(*tensors, out=y),
        "tilec, allocated": lambda: op(*tensors),
        "torch": lambda: peer(*tensors),
    }
    if has("triton"):
        if not name:
            from benchmarks.triton_peers import points

            plain = points("relu")
            plain(*tensors)
            calls["triton"] = lambda: plain(*tensors)
        if compiled:
            fast = torch.compile(peer)
            fast(*tensors)
            calls["torch.compile"] = lambda: fast(*tensors)
    return {"kind": "host", "host_us": {k: host_time(c, torch.cuda.synchronize) for k, c in calls.items()}}
