"""What is timed: one program, and the same computation as users of NumPy and PyTorch write it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tilec.core.dtypes import DTYPES, from_numpy
from tilec.core.source import read_source
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise
from tilec.semantics.comparison import compare

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from expectations import EXAMPLES, Bound, unit_roundoff

EPS = 2.0**-24


class _Torch:
    """PyTorch, imported when first used."""

    def __getattr__(self, name):
        import torch

        return getattr(torch, name)


torch = _Torch()


def functional():
    return torch.nn.functional


@dataclass(frozen=True)
class Input:
    """Normal numbers of variance `scale` squared around `mean`; `below` above 0: whole numbers from 0, all as likely, which do
    not fall along the last dimension if they `ascend`."""

    dtype: str
    shape: tuple[int, ...]
    scale: float = 1.0
    mean: float = 0.0
    below: int = 0
    ascend: bool = False


@dataclass(frozen=True)
class Workload:
    """`numpy_out` writes into its last argument, where plain NumPy can. `rows` limits the check on the CPU to the first
    rows where all of them would take long. `bound` is the error allowed beside PyTorch in wider types. `expected` takes
    the place of `torch` where results are checked and `torch` draws numbers of its own; `triton` names a plain kernel. `peers` are
    further calls of PyTorch, `compiled_peers` make such calls for given tensors. `form`: the kind of program for matrix units, by
    which its targets go (`FORMS` in `report.py`)."""

    name: str
    program: str | Path
    inputs: tuple[Input, ...]
    torch: Callable
    bound: Bound
    numpy: Callable | None = None
    numpy_out: Callable | None = None
    torch_out: Callable | None = None
    jax: Callable | None = None
    rows: int | None = None
    flops: float = 0.0
    op: str | None = None
    expected: Callable | None = None
    triton: str = ""
    peers: Mapping[str, Callable] = field(default_factory=dict)
    compiled_peers: Mapping[str, Callable] = field(default_factory=dict)
    form: str = ""

    @property
    def sizes(self) -> str:
        return " ".join("x".join(map(str, i.shape)) + " " + i.dtype for i in self.inputs[:2])

    def draw(self, rng: np.random.Generator) -> list[np.ndarray]:
        return [draw(rng, i) for i in self.inputs]


POOL = 4_000_037  # a prime, so that rows differ


class FastNormal:
    """Normal numbers, drawn once and repeated: as good for timing, and made at memory's speed. The rest is NumPy's."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng
        self.pool = rng.standard_normal(POOL, dtype=np.float32)
        self.integers = rng.integers

    def standard_normal(self, shape, dtype=np.float32):
        return np.resize(self.pool, shape)


def share_of_bound(program, op: str | None, inputs: list[np.ndarray], results: list[np.ndarray], kind) -> float:
    """What part of the allowed error the worst element takes; infinite outside of it."""
    special = specialise(parse(read_source(program)), op, [(from_numpy(a.dtype), a.shape) for a in inputs], None)
    given = {t.name: a for t, a in zip(special.inputs, inputs, strict=True)}
    found = {t.name: a for t, a in zip(special.outputs, results, strict=True)}
    return max(
        c.error / c.allowed if c.within and c.allowed else 0.0 if c.within else math.inf
        for c in compare(special, given, found, kind).values()
    )


def draw(rng, described: Input) -> np.ndarray:
    if described.below:
        found = rng.integers(0, described.below, described.shape).astype(DTYPES[described.dtype].numpy)
        return np.sort(found, axis=-1) if described.ascend else found
    values = rng.standard_normal(described.shape, dtype=np.float32)
    if described.scale != 1:
        values *= np.float32(described.scale)
    if described.mean:
        values += np.float32(described.mean)
    return values.astype(DTYPES[described.dtype].numpy, copy=False)


def limit(dtype: str, terms: float = 0, magnitude: float = 1.0) -> Bound:
    """One rounding to the result's type, and f32 arithmetic of `terms` terms before."""
    e = (8 + terms) * EPS
    return Bound(unit_roundoff(DTYPES[dtype]) + e, magnitude * e)


# ---- programs --------------------------------------------------------------------------------------------------------


def elementwise(expression: str, dtype: str) -> str:
    return f"op chain(x: {dtype}[M, N]) -> (y: {dtype}[M, N]) {{ y[i, j] = {expression} }}"


def rows_program(name: str, dtype: str) -> str:
    """An example's file for another type."""
    text = EXAMPLES[name].path.read_text(encoding="utf-8")
    return text.replace("bf16[", f"{dtype}[").replace("f32[", f"{dtype}[")


def matmul_program(dtype: str, using: str = "") -> str:
    return (
        f"op matmul(a: {dtype}[M, K], b: {dtype}[K, N]) -> (y: {dtype}[M, N]) {{"
        f" y[m, n] = sum[k](a[m, k] * b[k, n]){using} }}"
    )


GELU_TANH = math.sqrt(2 / math.pi)


def np_gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(GELU_TANH * (x + 0.044715 * x**3)))


def np_softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def np_layernorm(x, gain, bias):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * gain + bias


def np_rmsnorm(x, gain):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-6) * gain


def jnp():
    import jax.numpy

    return jax.numpy


def jnn():
    import jax.nn

    return jax.nn


def chain(name: str, expression: str, torch_fn: Callable, dtype: str, shape: tuple[int, int], **more) -> Workload:
    return Workload(
        name, elementwise(expression, dtype), (Input(dtype, shape),), torch_fn, limit(dtype, magnitude=4), **more
    )


def softmax(dtype: str, m: int, n: int, **more) -> Workload:
    return Workload(
        f"softmax {m}x{n} {dtype}", rows_program("softmax", dtype), (Input(dtype, (m, n)),), lambda x: x.softmax(-1),
        limit(dtype, n), np_softmax, rows=256,
        jax=lambda x: jnn().softmax(x, -1), **more)  # fmt: skip


def layernorm(dtype: str, m: int, n: int, **more) -> Workload:
    return Workload(
        f"layernorm {m}x{n} {dtype}", rows_program("layernorm", dtype),
        (Input(dtype, (m, n), mean=1), Input(dtype, (n,)), Input(dtype, (n,))),
        lambda x, g, b: functional().layer_norm(x, x.shape[-1:], g, b, 1e-5), limit(dtype, n, 8), np_layernorm,
        rows=256,
        jax=lambda x, g, b: (x - x.mean(-1, keepdims=True)) * (x.var(-1, keepdims=True) + 1e-5) ** -0.5 * g + b,
        **more)  # fmt: skip


def rmsnorm(dtype: str, m: int, n: int, **more) -> Workload:
    return Workload(
        f"rmsnorm {m}x{n} {dtype}", rows_program("rmsnorm", dtype), (Input(dtype, (m, n)), Input(dtype, (n,))),
        lambda x, g: functional().rms_norm(x, x.shape[-1:], g, 1e-6), limit(dtype, n, 4), np_rmsnorm,
        rows=256, jax=lambda x, g: x / jnp().sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * g, **more)  # fmt: skip


def sums(kind: str, dtype: str, m: int, n: int) -> Workload:
    left, axis = {"rows": ("y[i]", 1), "columns": ("y[j]", 0), "all": ("y", (0, 1))}[kind]
    program = f"op sums(x: {dtype}[M, N]) -> (y: {dtype}{{}}) {{{{ {left} = sum[{{}}](x[i, j]) }}}}"
    shape, over = {"rows": ("[M]", "j"), "columns": ("[N]", "i"), "all": ("", "i, j")}[kind]
    terms = m * n / {"rows": m, "columns": n, "all": 1}[kind]
    return Workload(
        f"sum of {kind} {m}x{n} {dtype}", program.format(shape, over), (Input(dtype, (m, n)),), lambda x: x.sum(axis),
        Bound(EPS, 8 * math.sqrt(terms) * math.log2(terms) * EPS * 4), lambda x: x.sum(axis),
        lambda x, out: np.sum(x, axis, out=out), lambda x, out: torch.sum(x, axis, out=out), lambda x: x.sum(axis))  # fmt: skip


def transpose(dtype: str, m: int, n: int) -> Workload:
    def copy(x, out):
        out[...] = x.T

    program = f"op transpose(x: {dtype}[M, N]) -> (y: {dtype}[N, M]) {{ y[j, i] = x[i, j] }}"
    return Workload(
        f"transpose {m}x{n} {dtype}", program, (Input(dtype, (m, n)),), lambda x: x.t().contiguous(), Bound(),
        lambda x: np.ascontiguousarray(x.T), copy,
        lambda x, out: out.copy_(x.t()), lambda x: jnp().copy(x.T))  # fmt: skip


def matmul(dtype: str, n: int, using: str = "", label: str = "") -> Workload:
    scale = 1 / math.sqrt(n)
    rounded = {" using tf32": 2.0**-10, " using bf16": 2.0**-7}.get(using, 0.0)
    bound = limit(dtype, n / 8, 4)
    bound = Bound(bound.rtol + rounded, bound.atol + 4 * rounded)
    return Workload(
        f"matmul {n} {label or dtype}", matmul_program(dtype, using),
        (Input(dtype, (n, n)), Input(dtype, (n, n), scale)),
        lambda a, b: a @ b, bound, np.matmul, lambda a, b, out: np.matmul(a, b, out=out),
        lambda a, b, out: torch.matmul(a, b, out=out), lambda a, b: a @ b, 64,
        2.0 * n**3)  # fmt: skip


def product(dtype: str, m: int, n: int, k: int) -> Workload:
    """A matrix product of few rows, or of few results with long sums."""
    return Workload(
        f"matmul {m}x{n}x{k} {dtype}", matmul_program(dtype), (Input(dtype, (m, k)), Input(dtype, (k, n), 1 / math.sqrt(k))),
        lambda a, b: a @ b, limit(dtype, k / 8, 4), np.matmul, lambda a, b, out: np.matmul(a, b, out=out),
        lambda a, b, out: torch.matmul(a, b, out=out), lambda a, b: a @ b, 64,
        2.0 * m * n * k)  # fmt: skip


def linear(dtype: str, n: int) -> Workload:
    program = (
        f"op linear(x: {dtype}[M, K], w: {dtype}[K, N], b: {dtype}[N]) -> (y: {dtype}[M, N]) {{"
        " h[m, n] = sum[k](x[m, k] * w[k, n])  y[m, n] = gelu_tanh(h[m, n] + b[n]) }"
    )
    return Workload(
        f"matmul + bias + gelu {n} {dtype}", program,
        (Input(dtype, (n, n)), Input(dtype, (n, n), 1 / math.sqrt(n)), Input(dtype, (n,))),
        lambda x, w, b: functional().gelu(torch.addmm(b, x, w), approximate="tanh"), limit(dtype, n / 8, 4),
        flops=2.0 * n**3)  # fmt: skip


def attention(b: int, h: int, s: int, d: int, causal: bool, dtype: str = "bf16") -> Workload:
    shape, path = Input(dtype, (b, h, s, d)), EXAMPLES["attention"].path
    return Workload(
        f"attention {'causal' if causal else 'full'} {b}x{h}x{s}x{d}{'' if dtype == 'bf16' else ' ' + dtype}",
        path if dtype == "bf16" else Path(path).read_text().replace("bf16[", f"{dtype}[").replace(" using bf16", ""), (shape,) * 3,
        lambda q, k, v: functional().scaled_dot_product_attention(q, k, v, is_causal=causal),
        EXAMPLES["attention"].bound({"D": d, "T": s, "S": s}), flops=4.0 * b * h * s * s * d / (2 if causal else 1),
        op="causal_attention" if causal else "attention")  # fmt: skip


def transposed_product(m: int, n: int, k: int) -> Workload:
    """A linear layer without bias, whose weights lie along the sum."""
    return Workload(
        f"linear {m}x{n}x{k} f32",
        "op linear(x: f32[M, K], w: f32[N, K]) -> (y: f32[M, N]) { y[m, n] = sum[k](x[m, k] * w[n, k]) }",
        (Input("f32", (m, k)), Input("f32", (n, k), 1 / math.sqrt(k))), lambda x, w: x @ w.T, limit("f32", k / 8, 4),
        lambda x, w: x @ w.T, rows=64, flops=2.0 * m * n * k)  # fmt: skip


def convolution(n: int, c: int, size: int, k: int, dtype: str = "f32", last: bool = False) -> Workload:
    """A convolution with a 3x3 window, padded so that images keep their size; with the channels `last`, or before the pixels."""
    x, f = ("n, h + r - 1, w + s - 1, c", "k, r, s, c") if last else ("n, c, h + r - 1, w + s - 1", "k, c, r, s")
    y = "n, h, w, k" if last else "n, k, h, w"
    sizes = [", ".join(f"{i.upper()}" for i in names) for names in (("nhwc", "krsc", "nhwk") if last else ("nchw", "kcrs", "nkhw"))]
    program = (
        f"op conv2d(x: {dtype}[{sizes[0]}], f: {dtype}[{sizes[1]}]) -> (y: {dtype}[{sizes[2]}]) {{ "
        f"y[{y}] = sum[c, r, s](pad(x[{x}], 0) * f[{f}]) }}"
    )
    image, window = ((n, size, size, c), (k, 3, 3, c)) if last else ((n, c, size, size), (k, c, 3, 3))

    def torch_form(x, w):
        x, w = (x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)) if last else (x, w)
        found = functional().conv2d(x, w, padding=1)
        return found.permute(0, 2, 3, 1) if last else found

    return Workload(
        f"conv2d 3x3 {n}x{c}x{size}x{size} to {k} {dtype}{' channels last' if last else ''}", program,
        (Input(dtype, image), Input(dtype, window, 1 / math.sqrt(9 * c))), torch_form, limit(dtype, 9 * c / 8, 4),
        flops=2.0 * n * k * c * 9 * size**2)  # fmt: skip


def copy(m: int, n: int) -> Workload:
    return Workload(
        f"copy {m}x{n} f32", "op copy(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = x[i, j] }", (Input("f32", (m, n)),),
        lambda x: x.clone(), Bound(0, 0), np.copy, lambda x, out: np.copyto(out, x),
        lambda x, out: out.copy_(x))  # fmt: skip
