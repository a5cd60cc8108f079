"""The memory suite's programs on the CPU: arrays that fit no core's own cache, and small ones, of which the call is a large
part; beside PyTorch's form of each NumPy's and JAX's, and those that write into given memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks import memory_loads as m
from benchmarks.memory_loads import REDUCTIONS, Load
from benchmarks.workloads import Workload, jnn, jnp, torch

BYTES = 2**24
SMALL = (2**12, 2**16, 2**20)
SHORT = 64  # rows that are checked, of results that are made row by row

JAX: dict[str, Callable] = {
    "relu": lambda x: jnn().relu(x),
    "gelu (tanh)": lambda x: jnn().gelu(x, approximate=True),
    "gelu (erf)": lambda x: jnn().gelu(x, approximate=False),
    "silu(x) * z": lambda x, z: jnn().silu(x) * z,
    "x * column + row": lambda x, a, b: x * a[:, None] + b,
    "column + row": lambda a, b: a[:, None] + b,
    "x + z transposed": lambda x, z: x + z.T,
    "max of rows": lambda x: x.max(1),
    "mean and variance of columns": lambda x: (x.mean(0), x.var(0)),
    "log_softmax": lambda x: jnn().log_softmax(x, -1),
    "cross_entropy": lambda x, t: jnn().logsumexp(x, 1) - x[jnp().arange(len(x)), t],
    "argmax": lambda x: x.argmax(-1),
    "cumsum": lambda x: jnp().cumsum(x, -1),
}
TORCH_OUT: dict[str, Callable] = {
    "relu": lambda x, out: torch.clamp(x, min=0, out=out),
    "x + z transposed": lambda x, z, out: torch.add(x, z.t(), out=out),
    "max of rows": lambda x, out: torch.amax(x, 1, out=out),
    "softmax": lambda x, out: torch.softmax(x, -1, out=out),
    "log_softmax": lambda x, out: torch.log_softmax(x, -1, out=out),
    "argmax": lambda x, out: torch.argmax(x, -1, out=out),
    "cumsum": lambda x, out: torch.cumsum(x, -1, out=out),
}
NUMPY_OUT: dict[str, Callable] = {
    "relu": lambda x, out: np.maximum(x, 0, out=out),
    "max of rows": lambda x, out: np.max(x, 1, out=out),
    "cumsum": lambda x, out: np.cumsum(x, -1, out=out),
}
PERMUTATIONS = {
    "transpose": (1, 0), "batched transpose": (0, 2, 1), "heads (0, 2, 1, 3)": (0, 2, 1, 3),
    "permutation (2, 0, 1)": (2, 0, 1), "permutation (2, 1, 0)": (2, 1, 0),
}  # fmt: skip


def beside(load: Load) -> Workload:
    """The program with its other forms."""
    name, work, kind = load.program, load.work, load.kind
    jax, torch_out, numpy_out = JAX.get(name, work.jax), TORCH_OUT.get(name), NUMPY_OUT.get(name)
    if name in PERMUTATIONS:
        order = PERMUTATIONS[name]
        jax, torch_out = (lambda x: jnp().copy(x.transpose(order))), (lambda x, out: out.copy_(x.permute(order)))
    if name.startswith("sum of "):
        axes = REDUCTIONS[name.removeprefix("sum of ")][2]
        jax, numpy_out = (lambda x: x.sum(axes)), (lambda x, out: np.sum(x, axes, out=out))
        torch_out = lambda x, out: torch.sum(x, axes, out=out)  # noqa: E731
    if load.gathers:
        jax = lambda ids, table: table[ids]  # noqa: E731
    single = kind == "chain" and len(work.inputs) == 1
    return replace(
        work, name=load.name, jax=jax, torch_out=torch_out, numpy_out=None if load.dtype == "bf16" else numpy_out,
        rows=SHORT if single or name in ("argmax", "log_softmax") else work.rows)  # fmt: skip


def loads() -> list[Workload]:
    """All of them in f32 but for the cosines, which the suite has at a larger size; in bf16 some of each kind."""
    found = []
    for dtype in ("f32", "bf16"):
        side = m.square(dtype, BYTES)
        chains = [x for x in m.chains(dtype, side) if "cos" not in x.program]
        groups = (chains, [*m.transposes(dtype, BYTES)], [*m.reductions(dtype, BYTES)], [*m.others(dtype, BYTES)])
        found += [x for group in groups for x in (group if dtype == "f32" else group[:3])]
        found += [make(dtype, *side) for make in m.ROW_PROGRAMS]
    for size in SMALL:
        side = m.square("f32", size)
        found += [m.chain("relu", "f32", side, "chain"), m.softmax("f32", *side), m.reduction("columns", "f32", side)]
    return [beside(x) for x in found]


__all__ = ["loads"]
