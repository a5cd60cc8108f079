"""What is run under the tools: every example at small odd sizes and just past its tiles, programs whose kernels use what
no example does at such sizes, one for each kind of kernel for matrix units, and drawn programs with drawn schedules.

A case is prepared without any tool: compiled into the disk cache, its inputs written to a folder.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from expectations import EXAMPLES
from tools import matrix_programs

from sanitize.child import executable
from tilec.core.dtypes import from_numpy
from tilec.core.source import read_source
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise
from tilec.semantics.inputs import random_inputs


@dataclass(frozen=True)
class Case:
    """A program for some sizes. `op` is None for the short form, whose types and sizes `inputs` tell; elsewhere
    inputs are drawn where they are None."""

    name: str
    source: Path | str
    op: str | None
    sizes: dict[str, int]
    inputs: dict[str, np.ndarray] | None = None
    schedule: str | None = None


ROWS = {"M": 33, "N": 1032}
ROW_WISE = ["cos_cos", "gelu", "softmax", "log_softmax", "layernorm", "rmsnorm", "top1", "dropout", "residual_block"]
# just past a tile: of rows, of a vector, of what a block, a cluster or a warpgroup takes at once
PAST = {
    **dict.fromkeys(ROW_WISE, (ROWS,)),
    "cumsum": [ROWS, {"M": 2, "N": 40000}],
    "jacobi": [{"M": 65, "N": 129}],
    "transpose": [{"M": 65, "N": 129}],
    "variance": [{"M": 1025, "N": 40}],
    "cross_entropy": [{"B": 9, "V": 8200}],
    "embedding": [{"B": 3, "S": 33, "V": 29, "D": 136}],
    "linear_cross_entropy": [{"B": 129, "V": 264, "D": 136}],
    "linear": [{"M": 129, "N": 264, "K": 136}, {"M": 1025, "N": 1032, "K": 136}],
    "mlp": [{"M": 129, "D": 136, "F": 264}],
    "attention": [{"B": 1, "H": 2, "S": 129, "T": 136, "D": 64}, {"B": 1, "H": 2, "S": 17, "T": 33, "D": 64}],
    "causal_attention": [{"B": 1, "H": 2, "S": 264, "D": 128}],
    "conv2d": [{"N": 2, "C": 16, "H": 17, "W": 16, "K": 40, "R": 3, "S": 3}],
    "max_pool": [{"N": 2, "C": 3, "H": 34, "W": 66}],
    "rotary": [{"B": 1, "H": 2, "S": 33, "D": 64}],
}
MATMUL = "op f(a: {t}[M, K], b: {t}[K, N]) -> (c: {c}[M, N]) {{ c[i, j] = sum[k](a[i, k] * b[k, j]){using} }}"
GAIN = """op f(x: bf16[M, N], g: bf16[N]) -> (y: bf16[M, N]) {
    v[i] = mean[j](x[i, j] ** 2)
    y[i, j] = x[i, j] / sqrt(v[i] + 1) * g[j]
}"""
SIDE = {"M": 129, "N": 136, "K": 72}
PROGRAMS = {
    "f32 product": (MATMUL.format(t="f32", c="f32", using=""), SIDE),
    "f64 product": (MATMUL.format(t="f64", c="f64", using=""), SIDE),
    "tf32 product of rows": (MATMUL.format(t="f32", c="f32", using=" using tf32"), SIDE),
    "f32 product of bf16": (MATMUL.format(t="f32", c="f32", using=" using bf16"), SIDE),
    "persistent product": (MATMUL.format(t="bf16", c="bf16", using=""), {"M": 2056, "N": 2056, "K": 72}),
    "product with a vector": (
        "op f(a: bf16[M, K], b: bf16[K]) -> (c: bf16[M]) { c[i] = sum[k](a[i, k] * b[k]) }", {"M": 65, "K": 8200}),
    "sum of everything": ("op f(x: f32[M, N]) -> (y: f32) { y = sum[i, j](x[i, j]) }", {"M": 257, "N": 1032}),
    "rows of a cluster": ("op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = softmax[j](x[i, j]) }", {"M": 3, "N": 65544}),
    "rows that arrive ahead": (
        "op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = softmax[j](x[i, j]) }", {"M": 160, "N": 65536}),
    "rows that begin anywhere": (GAIN, {"M": 33, "N": 1003}),
    "rows of a cluster that begin anywhere": (GAIN, {"M": 3, "N": 65541}),
    "rows that arrive ahead and begin anywhere": (GAIN, {"M": 301, "N": 50257}),
    "vectors turned": ("op f(x: bf16[M, N]) -> (y: bf16[N, M]) { y[j, i] = x[i, j] }", {"M": 136, "N": 200}),
    "a checked gather": (
        "op f(x: f32[M, N], n: i32[K]) -> (y: f32[K, N]) { y[i, j] = x[n[i], j] }", {"M": 9, "N": 129, "K": 33}),
}  # fmt: skip


def cases() -> list[Case]:
    """All but what is drawn."""
    made = [Case(n, e.path, e.op, e.sizes, e.inputs(_rng())) for n, e in EXAMPLES.items()]
    for name, many in PAST.items():
        e = EXAMPLES[name]
        made += [Case(_named(name, sizes), e.path, e.op, sizes, e.inputs(_rng(), sizes)) for sizes in many]
    made += [Case(_named(name, sizes), text, "f", sizes) for name, (text, sizes) in PROGRAMS.items()]
    for name, (text, sizes) in matrix_programs.PROGRAMS.items():
        made.append(Case(_named(f"matrix {name}", sizes), text, "f", sizes, schedule=matrix_programs.SCHEDULES.get(name)))
    return made


def drawn_cases(seed: int, count: int) -> list[Case]:
    """Programs of the fuzzer, with schedules where it draws them. The same seed draws the same."""
    from fuzz import attempt
    from fuzz.counts import Counts
    from fuzz.worker import seeded

    made = []
    for number in range(count):
        drawn = attempt.draw("gpu", seeded("gpu", seed, str(number)), Counts())
        case = drawn.case
        made.append(Case(f"drawn-{seed}-{number}", case.text, case.op, case.sizes, case.inputs, drawn.schedule))
    return made


def prepare(case: Case, folder: Path, target: str = "cuda") -> Path:
    """Writes the case below the folder and compiles it. Raises TileError for what the target cannot do."""
    folder = folder / case.name
    folder.mkdir(parents=True)
    if case.schedule:
        (folder / "program.sched.toml").write_text(case.schedule)
    path = str(case.source) if isinstance(case.source, Path) else None
    if path is None:
        (folder / "program.tile").write_text(case.source)
    inputs = case.inputs
    if inputs is None:
        inputs = random_inputs(specialise(parse(read_source(case.source)), case.op, None, case.sizes), 0, {})
    shapes = None if case.op else [[from_numpy(a.dtype).name, a.shape] for a in inputs.values()]
    facts = {"path": path, "op": case.op, "sizes": case.sizes, "inputs": shapes}
    (folder / "case.json").write_text(json.dumps(facts))
    np.savez(
        folder / "inputs.npz", **{n: np.ascontiguousarray(a).reshape(-1).view(np.uint8) for n, a in inputs.items()}
    )
    built = executable(folder, target)
    assert len(built.cubins) == len(built.emitted.kernels)
    facts["clusters"] = [[k.cluster, k.grid // k.cluster] for k in built.emitted.kernels]
    (folder / "case.json").write_text(json.dumps(facts))
    return folder


def _named(name: str, sizes: dict[str, int]) -> str:
    return re.sub(r"\W+", "-", f"{name} {' '.join(f'{k}{v}' for k, v in sizes.items())}")


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)
