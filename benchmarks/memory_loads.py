"""What the memory suite runs: programs that memory should limit, each beside the same in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from benchmarks import workloads as w
from benchmarks.workloads import Bound, Input, Workload, functional, limit, torch

SIZES = {"bf16": 2, "f32": 4}
LARGE = 2**28  # bytes of an input: far more than caches hold
LENGTHS = (1024, 4096, 16384, 65536, 262144)
ODD = (1000, 4099, 50257)  # 16-byte accesses at most, none at all; a vocabulary
BETWEEN = 12288  # no power of two: three rows in the registers of an SM, two in its shared memory
VOCABULARY = 50257
SMALL = (2**12, 2**16, 2**20, 2**22)  # bytes of an input
FEW = (1, 16, 256)
FEW_BYTES = 2**23  # of an input of few rows


@dataclass(frozen=True)
class Load:
    """A workload, and the kind of program, by which its targets go: "chain", "reduction", "transpose", "rows", "small",
    "other". `length` is that of a row, where the row's length is what varies; `main` the input that names the row;
    `gathers`: rows of that input are read at computed places, each as often as the result has it."""

    work: Workload
    program: str
    kind: str
    length: int | None = None
    main: int = 0
    gathers: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.work.inputs[self.main].shape

    @property
    def dtype(self) -> str:
        return self.work.inputs[self.main].dtype

    @property
    def name(self) -> str:
        return f"{self.program} {'x'.join(map(str, self.shape))} {self.dtype}"

    def bytes(self, tensors: list, results: list) -> int:
        """The least that has to be moved."""
        read = [t for n, t in enumerate(tensors) if not (self.gathers and n == self.main)]
        return sum(t.nbytes for t in (*read, *results, *(results if self.gathers else ())))


def op(inputs: str, outputs: str, body: str) -> str:
    return f"op f({inputs}) -> ({outputs}) {{\n    {body}\n}}\n"


def load(
    program: str, kind: str, text: str, inputs: tuple[Input, ...], peer: Callable, bound: Bound, length=None, **more
) -> Load:
    return Load(Workload(program, text, inputs, peer, bound, **more), program, kind, length)


def square(dtype: str, size: int = LARGE) -> tuple[int, int]:
    """Rows and columns of `size` bytes, about as many of both; a power of two."""
    elements = size // SIZES[dtype]
    rows = 2 ** (int(math.log2(elements)) // 2)
    return rows, elements // rows


def rows_of(dtype: str, length: int, size: int = LARGE) -> int:
    return max(1, size // (length * SIZES[dtype]))


# ---- chains ----------------------------------------------------------------------------------------------------------

CHAINS: dict[str, tuple[str, Callable, str]] = {
    "relu": ("relu(x[i, j])", lambda x: x.relu(), "relu"),
    "gelu (tanh)": ("gelu_tanh(x[i, j])", lambda x: functional().gelu(x, approximate="tanh"), "gelu"),
    "gelu (erf)": ("gelu(x[i, j])", lambda x: functional().gelu(x), ""),
    "cos": ("cos(x[i, j])", lambda x: x.cos(), ""),
    "cos(cos)": ("cos(cos(x[i, j]))", lambda x: x.cos().cos(), ""),
}


def chains(dtype: str, shape: tuple[int, int]) -> Iterator[Load]:
    for name in CHAINS:
        yield chain(name, dtype, shape, "chain")
    m, n = shape
    t, x, bound = dtype, Input(dtype, shape), limit(dtype, magnitude=8)
    yield load(
        "silu(x) * z", "chain", op(f"x: {t}[M, N], z: {t}[M, N]", f"y: {t}[M, N]", "y[i, j] = silu(x[i, j]) * z[i, j]"),
        (x, x), lambda x, z: functional().silu(x) * z, bound)  # fmt: skip
    yield load(
        "x * column + row", "chain",
        op(f"x: {t}[M, N], a: {t}[M], b: {t}[N]", f"y: {t}[M, N]", "y[i, j] = x[i, j] * a[i] + b[j]"),
        (x, Input(t, (m,)), Input(t, (n,))), lambda x, a, b: x * a[:, None] + b, bound)  # fmt: skip
    yield load(
        "column + row", "chain", op(f"a: {t}[M], b: {t}[N]", f"y: {t}[M, N]", "y[i, j] = a[i] + b[j]"),
        (Input(t, (m,)), Input(t, (n,))), lambda a, b: a[:, None] + b, bound)  # fmt: skip
    yield load(
        "x + z transposed", "chain",
        op(f"x: {t}[M, N], z: {t}[N, M]", f"y: {t}[M, N]", "y[i, j] = x[i, j] + z[j, i]"),
        (x, Input(t, (n, m))), lambda x, z: x + z.t(), bound)  # fmt: skip


def chain(name: str, dtype: str, shape: tuple[int, int], kind: str) -> Load:
    expression, peer, triton = CHAINS[name]
    text = w.elementwise(expression, dtype)
    return load(name, kind, text, (Input(dtype, shape),), peer, limit(dtype, magnitude=8), triton=triton)


# ---- transposes ------------------------------------------------------------------------------------------------------


def permutation(name: str, dtype: str, shape: tuple[int, ...], order: tuple[int, ...]) -> Load:
    """`order[n]` is the dimension of x that becomes dimension n of y."""
    names, sizes = "ijkl"[: len(shape)], "MNPQ"[: len(shape)]
    left = [names[d] for d in order], [sizes[d] for d in order]
    text = op(
        f"x: {dtype}[{', '.join(sizes)}]", f"y: {dtype}[{', '.join(left[1])}]",
        f"y[{', '.join(left[0])}] = x[{', '.join(names)}]")  # fmt: skip
    return load(
        name, "transpose", text, (Input(dtype, shape),), lambda x: x.permute(order).contiguous(), Bound())  # fmt: skip


def transposes(dtype: str, size: int = LARGE) -> Iterator[Load]:
    m, n = square(dtype, size)
    yield permutation("transpose", dtype, (m, n), (1, 0))
    yield permutation("batched transpose", dtype, (64, m // 8, n // 8), (0, 2, 1))
    yield permutation("heads (0, 2, 1, 3)", dtype, (8, m * n // 2**15, 32, 128), (0, 2, 1, 3))
    yield permutation("permutation (2, 0, 1)", dtype, (m // 8, 64, n // 8), (2, 0, 1))
    yield permutation("permutation (2, 1, 0)", dtype, (m // 8, 64, n // 8), (2, 1, 0))


# ---- reductions ------------------------------------------------------------------------------------------------------

REDUCTIONS: dict[str, tuple[str, str, tuple[int, ...]]] = {  # result's and reduced indices, of ijkl; torch's axes
    "rows": ("i", "j", (1,)),
    "columns": ("j", "i", (0,)),
    "all": ("", "ij", (0, 1)),
    "the middle axis": ("ik", "j", (1,)),
    "two outer axes": ("k", "ij", (0, 1)),
    "axes 0 and 2": ("jl", "ik", (0, 2)),
}


def reduction(over: str, dtype: str, shape: tuple[int, ...], function: str = "sum") -> Load:
    kept, reduced, axes = REDUCTIONS[over]
    size = dict(zip("ijkl", "MNPQ"))
    places = ", ".join("ijkl"[: len(shape)])
    result = f"y: {dtype}" + (f"[{', '.join(size[d] for d in kept)}]" if kept else "")
    left = f"y[{', '.join(kept)}]" if kept else "y"
    text = op(
        f"x: {dtype}[{', '.join('MNPQ'[: len(shape)])}]", result,
        f"{left} = {function}[{', '.join(reduced)}](x[{places}])")  # fmt: skip
    terms = math.prod(shape[a] for a in axes)
    allowed = limit(dtype, 8, 8 * math.sqrt(terms) * max(1, math.log2(terms)))
    peer = (lambda x: x.sum(axes)) if function == "sum" else (lambda x: x.amax(axes))
    triton = "sum" if over == "rows" and function == "sum" and shape[1] <= 65536 else ""
    return load(f"{function} of {over}", "reduction", text, (Input(dtype, shape),), peer, allowed, triton=triton)


def reductions(dtype: str, size: int = LARGE) -> Iterator[Load]:
    m, n = square(dtype, size)
    for over in ("rows", "columns", "all"):
        yield reduction(over, dtype, (m, n))
    yield reduction("the middle axis", dtype, (64, m // 8, n // 8))
    yield reduction("two outer axes", dtype, (64, m // 8, n // 8))
    yield reduction("axes 0 and 2", dtype, (64, 32, m // 32, n // 64))
    yield reduction("rows", dtype, (m, n), "max") if dtype == "bf16" else variance(dtype, m, n)


def variance(dtype: str, m: int, n: int) -> Load:
    return load(
        "mean and variance of columns", "reduction", w.rows_program("variance", dtype), (Input(dtype, (m, n), mean=3),),
        lambda x: torch.var_mean(x, 0, correction=0)[::-1], limit(dtype, m, 8))  # fmt: skip


# ---- rows ------------------------------------------------------------------------------------------------------------


def softmax(dtype: str, m: int, n: int, kind: str = "rows") -> Load:
    return Load(replace(w.softmax(dtype, m, n), triton="softmax"), "softmax", kind, n)


def log_softmax(dtype: str, m: int, n: int, kind: str = "rows") -> Load:
    return load(
        "log_softmax", kind, w.rows_program("log_softmax", dtype), (Input(dtype, (m, n)),),
        lambda x: x.log_softmax(-1), limit(dtype, n, 4), n)  # fmt: skip


def layernorm(dtype: str, m: int, n: int, kind: str = "rows") -> Load:
    return Load(replace(w.layernorm(dtype, m, n), triton="layernorm"), "layernorm", kind, n)


def rmsnorm(dtype: str, m: int, n: int, kind: str = "rows") -> Load:
    return Load(replace(w.rmsnorm(dtype, m, n), triton="rmsnorm"), "rmsnorm", kind, n)


def cross_entropy(dtype: str, m: int, n: int, kind: str = "rows") -> Load:
    text = op(
        f"logits: {dtype}[B, V], target: i64[B]", "loss: f32[B]",
        "z[b] = logsumexp[v](logits[b, v])\n    loss[b] = z[b] - logits[b, target[b]]")  # fmt: skip
    return load(
        "cross_entropy", kind, text, (Input(dtype, (m, n)), Input("i64", (m,), below=n)),
        lambda x, t: functional().cross_entropy(x.float() if x.dtype != torch.float64 else x, t, reduction="none"),
        limit("f32", n, 8), n)  # fmt: skip


ROW_PROGRAMS = (softmax, log_softmax, layernorm, rmsnorm, cross_entropy)


def layernorm_with_moments(dtype: str, m: int, n: int, kind: str = "rows") -> Load:
    text = op(
        f"x: {dtype}[M, N], gain: {dtype}[N], bias: {dtype}[N]", f"y: {dtype}[M, N], mu: f32[M], v: f32[M]",
        "mu[i] = mean[j](x[i, j])\n    v[i] = mean[j]((x[i, j] - mu[i]) ** 2)\n"
        "    y[i, j] = (x[i, j] - mu[i]) * rsqrt(v[i] + 1e-5) * gain[j] + bias[j]")  # fmt: skip

    def peer(x, gain, bias):
        wide = x if x.dtype == torch.float64 else x.float()
        v, mu = torch.var_mean(wide, -1, correction=0, keepdim=True)
        return ((wide - mu) * torch.rsqrt(v + 1e-5) * gain + bias).to(x.dtype), mu[:, 0], v[:, 0]

    inputs = (Input(dtype, (m, n), mean=1), Input(dtype, (n,)), Input(dtype, (n,)))
    return load("layernorm, mean, variance", kind, text, inputs, peer, limit(dtype, n, 8), n)


def softmax_with_gain(dtype: str, m: int, n: int, kind: str = "rows") -> Load:
    text = op(
        f"x: {dtype}[M, N], gain: {dtype}[N]", f"y: {dtype}[M, N]", "y[i, j] = softmax[j](x[i, j]) * gain[j]")  # fmt: skip
    inputs = (Input(dtype, (m, n)), Input(dtype, (n,)))
    return load(
        "softmax * gain", kind, text, inputs, lambda x, gain: x.softmax(-1) * gain, _rounded_twice(dtype, n), n)  # fmt: skip


def softmax_with_sum(dtype: str, m: int, n: int, kind: str = "rows") -> Load:
    text = op(
        f"x: {dtype}[M, N]", f"y: {dtype}[M, N], z: f32[M]",
        "z[i] = logsumexp[j](x[i, j])\n    y[i, j] = softmax[j](x[i, j])")  # fmt: skip

    def peer(x):
        wide = x if x.dtype == torch.float64 else x.float()
        return x.softmax(-1), wide.logsumexp(-1)

    return load("softmax, logsumexp", kind, text, (Input(dtype, (m, n)),), peer, limit(dtype, n, 4), n)


def residual_rmsnorm(dtype: str, m: int, n: int, kind: str = "rows") -> Load:
    """The sum is rounded as it is stored; its squares are of the sum before, within the bound."""
    text = op(
        f"x: {dtype}[M, N], skip: {dtype}[M, N], gain: {dtype}[N]", f"y: {dtype}[M, N], total: {dtype}[M, N]",
        "total[i, j] = x[i, j] + skip[i, j]\n    v[i] = mean[j](total[i, j] * total[i, j])\n"
        "    y[i, j] = total[i, j] * rsqrt(v[i] + 1e-6) * gain[j]")  # fmt: skip

    def peer(x, skip, gain):
        total = x + skip
        return functional().rms_norm(total, total.shape[-1:], gain, 1e-6), total

    inputs = (Input(dtype, (m, n)), Input(dtype, (m, n)), Input(dtype, (n,)))
    return load("residual + rmsnorm", kind, text, inputs, peer, _rounded_twice(dtype, n), n)


def residual_block(dtype: str, m: int, n: int, kind: str = "rows") -> Load:
    """Residual sum, layernorm, gelu, dropout. Checked with nothing dropped, as PyTorch draws other numbers."""
    text = w.EXAMPLES["dropout"].path.read_text(encoding="utf-8").replace("bf16[", f"{dtype}[")

    def block(x, skip, gain, bias, p, seed, dropped=0.1):
        total = x + skip
        normal = functional().layer_norm(total, total.shape[-1:], gain, bias)
        y = functional().gelu(normal)
        return (functional().dropout(y, dropped) if dropped else y), total

    inputs = (Input(dtype, (m, n)), Input(dtype, (m, n)), Input(dtype, (n,)), Input(dtype, (n,)))
    scalars = (Input("f32", (), scale=0), Input("i64", (), below=1000))
    return load(
        "residual + layernorm + gelu + dropout", kind, text, inputs + scalars, block, _rounded_twice(dtype, n), n,
        op="residual_block", expected=lambda *a: block(*a, dropped=0))  # fmt: skip


def _rounded_twice(dtype: str, n: int) -> Bound:
    once = limit(dtype, n, 8)
    return Bound(2 * once.rtol, once.atol + (8 * 2.0**-8 if dtype == "bf16" else 0))


def rows(dtype: str, size: int = LARGE) -> Iterator[Load]:
    for make in ROW_PROGRAMS:
        for n in LENGTHS:
            yield make(dtype, rows_of(dtype, n, size), n)
    for n in ODD if dtype == "bf16" else ():
        for make in (softmax, rmsnorm):
            if (make, n) != (rmsnorm, VOCABULARY):
                yield make(dtype, rows_of(dtype, n, size), n)
    for make in (layernorm_with_moments, residual_rmsnorm, residual_block):
        yield make(dtype, rows_of(dtype, 8192, size), 8192)
    for make in (layernorm, softmax_with_gain):
        yield make(dtype, rows_of(dtype, BETWEEN, size), BETWEEN)
    for make in (softmax_with_gain, rmsnorm, layernorm):
        yield make(dtype, rows_of(dtype, VOCABULARY, size), VOCABULARY)
    yield softmax_with_sum(dtype, rows_of(dtype, LENGTHS[-1], size * 3 // 8), LENGTHS[-1])


# ---- others ----------------------------------------------------------------------------------------------------------


def argmax(dtype: str, m: int, n: int) -> Load:
    text = op(f"x: {dtype}[M, N]", "y: i64[M]", "y[i] = argmax[j](x[i, j])")
    return load("argmax", "other", text, (Input(dtype, (m, n)),), lambda x: x.argmax(-1), Bound())


def cumsum(dtype: str, m: int, n: int) -> Load:
    return load(
        "cumsum", "other", w.rows_program("cumsum", dtype), (Input(dtype, (m, n)),), lambda x: x.cumsum(-1),
        limit(dtype, n, 8 * math.sqrt(n)))  # fmt: skip


def functions(dtype: str, m: int, n: int) -> Load:
    """Five functions of each element, and a difference that can cancel, so that no error of a term is hidden."""
    text = w.elementwise("tanh(exp(sin(x[i, j])) * sigmoid(x[i, j]) - log(1 + x[i, j] * x[i, j]))", dtype)
    peer = lambda x: (x.sin().exp() * x.sigmoid() - (1 + x * x).log()).tanh()  # noqa: E731
    return load("five functions", "other", text, (Input(dtype, (m, n)),), peer, limit(dtype, magnitude=8))


def gather(dtype: str, ids: tuple[int, int], v: int, d: int) -> Load:
    text = w.EXAMPLES["embedding"].path.read_text(encoding="utf-8").replace("bf16[", f"{dtype}[")
    made = load(
        f"gather of {math.prod(ids)} rows", "other", text, (Input("i32", ids, below=v), Input(dtype, (v, d))),
        lambda i, table: functional().embedding(i, table), Bound())  # fmt: skip
    return replace(made, main=1, gathers=True)


def others(dtype: str, size: int = LARGE) -> Iterator[Load]:
    m, n = square(dtype, size)
    yield argmax(dtype, m, n)
    yield cumsum(dtype, m, n)
    yield gather(dtype, (8, m // 2), 50257, n // 8)


def demanding(dtype: str, size: int = LARGE) -> Iterator[Load]:
    """Limited by arithmetic, and not by memory."""
    yield functions(dtype, *square(dtype, size))


def small() -> Iterator[Load]:
    """Few rows, and tensors that a launch takes longer than."""
    for m in FEW:
        for make in (softmax, layernorm):
            yield make("bf16", m, FEW_BYTES // 2 // m if m > 1 else 262144, "small")
    yield replace(reduction("rows", "f32", (16, FEW_BYTES // 64)), kind="small")
    yield replace(reduction("columns", "f32", (FEW_BYTES // 64, 16)), kind="small")
    for size in SMALL:
        m = 2 ** (int(math.log2(size // 4)) // 2)
        yield chain("gelu (tanh)", "f32", (m, size // 4 // m), "small")
        yield softmax("f32", m, size // 4 // m, "small")
        yield replace(reduction("columns", "f32", (m, size // 4 // m)), kind="small")


def loads() -> list[Load]:
    found = [*small(), *(x for dtype in SIZES for x in chains(dtype, square(dtype)))]
    found += [x for make in (transposes, reductions, rows, others, demanding) for dtype in SIZES for x in make(dtype)]
    assert len({x.name for x in found}) == len(found), "names of rows must differ"
    return found


def points(sizes: tuple[int, ...]) -> list[Load]:
    """The same programs on inputs of these sizes, in bytes: where the cost model's choices are held to measurements."""
    found = {}
    for size in sizes:
        for dtype in SIZES:
            for x in chains(dtype, square(dtype, size)):
                found[x.name] = x
            for make in (transposes, reductions, rows, others, demanding):
                found |= {x.name: x for x in make(dtype, size)}
    return list(found.values())
