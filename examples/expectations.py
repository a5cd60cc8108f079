"""What every example computes, said a second time by hand: plain NumPy at f64 (`by_numpy`), and eager
PyTorch (`by_torch`).

Nothing here goes through tilec, so tests compare the reference and every compiled form of an example with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from by_numpy import (
    np_attention,
    np_attention_backward,
    np_conv2d,
    np_cross_entropy,
    np_dropout,
    np_gelu,
    np_jacobi,
    np_layernorm,
    np_logsumexp,
    np_max_pool,
    np_residual_block,
    np_rmsnorm,
    np_rotary,
    np_softmax,
    np_transformer_block,
)  # fmt: skip
from by_torch import (
    torch,
    torch_attention,
    torch_attention_backward,
    torch_dropout,
    torch_jacobi,
    torch_mlp,
    torch_residual_block,
    torch_rmsnorm,
    torch_rotary,
    torch_transformer_block,
)  # fmt: skip

from tilec.core.dtypes import BF16, DTYPES, F32, DType

Sizes = dict[str, int]
Arrays = dict[str, np.ndarray]


# ---- errors ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bound:
    """`|actual - expected| <= rtol * |expected| + atol`, for every float result; integers must be equal."""

    rtol: float = 0.0
    atol: float = 0.0


EXACT = Bound()


def unit_roundoff(dtype: DType) -> float:
    """The largest relative error of rounding a real number to `dtype`."""
    return 2.0**-dtype.mantissa


def bound(out: DType, terms: int = 0, steps: int = 8, magnitude: float = 0.0, rounded: int = 0) -> Bound:
    """The error allowed to a program that computes in f32 and rounds once to `out`.

    With u(t) the unit roundoff of type t,

        e = (terms + steps) * u(f32) + rounded * u(bf16)
        rtol = u(out) + e          atol = magnitude * e

    `terms` is the length of the longest chain of reductions, `steps` counts the roundings of the scalar
    operations on the way (a function for its error in units in the last place), and `rounded` the declared
    bf16 values in between. `magnitude` is the size that values reach on the way where they may cancel, and 0
    where all terms are positive. For n terms of random signs it is a few times sqrt(n) * |term|, the size of
    the result: n * u * sqrt(n) is Higham and Mary's probabilistic bound sqrt(n) * u * sum |terms|.
    """
    e = (terms + steps) * unit_roundoff(F32) + rounded * unit_roundoff(BF16)
    return Bound(rtol=unit_roundoff(out) + e, atol=magnitude * e)


# ---- inputs ------------------------------------------------------------------------------------------------

Draw = Callable[[np.random.Generator, Sizes], np.ndarray]


def _shape(dims: str, sizes: Sizes) -> tuple[int, ...]:
    return tuple(int(d) if d.isdigit() else sizes[d] for d in dims.split())


def normal(dtype: str, dims: str, fan_in: str = "", mean: float = 0.0) -> Draw:
    """Normal numbers around `mean`, of variance 1 over the product of the sizes `fan_in`."""

    def draw(rng: np.random.Generator, sizes: Sizes) -> np.ndarray:
        scale = np.float32(1 / math.sqrt(max(1, math.prod(_shape(fan_in, sizes)))))
        values = rng.standard_normal(_shape(dims, sizes), dtype=np.float32)
        return (values * scale + np.float32(mean)).astype(DTYPES[dtype].numpy)

    return draw


def constant(dtype: str, value: float) -> Draw:
    """A scalar."""
    return lambda rng, sizes: np.array(value, DTYPES[dtype].numpy)


def ids(dtype: str, dims: str, below: str) -> Draw:
    """Integers from 0 to the size `below`, exclusive."""
    return lambda rng, sizes: rng.integers(0, sizes[below], _shape(dims, sizes)).astype(DTYPES[dtype].numpy)


def wide(array: np.ndarray) -> np.ndarray:
    """Floats of any width as f64; integers as they are."""
    return array if array.dtype.kind in "iub" else array.astype(np.float64)


# ---- the shape of an entry ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Example:
    """One op of one `.tile` file.

    `sizes` are small and odd, for tests; `bench_sizes` fill a GPU. `draws` makes each input, in the op's
    order. `numpy` takes them at f64 and gives the result or a tuple of them; `torch_eager` does so with torch
    tensors; with `torch_draws` it draws random numbers of its own. `limit` is the error allowed at given sizes.
    """

    name: str
    path: Path
    op: str
    sizes: Sizes
    bench_sizes: Sizes
    draws: dict[str, Draw]
    numpy: Callable
    torch_eager: Callable
    limit: Callable[[Sizes], Bound]
    torch_draws: bool = False

    def inputs(self, rng: np.random.Generator, sizes: Sizes | None = None) -> Arrays:
        """Random inputs by name, in the order of the op's parameters."""
        return {name: draw(rng, sizes or self.sizes) for name, draw in self.draws.items()}

    def expected(self, inputs: Arrays) -> list[np.ndarray]:
        """The results at f64, in the op's order, never rounded on the way."""
        results = self.numpy(*(wide(a) for a in inputs.values()))
        results = results if isinstance(results, tuple) else (results,)
        return [np.asarray(r) for r in results]

    def bound(self, sizes: Sizes | None = None) -> Bound:
        """The error allowed to every float result."""
        return self.limit(sizes or self.sizes)


# ---- the table ---------------------------------------------------------------------------------------------

EXAMPLES: dict[str, Example] = {}

X = {"x": normal("f32", "M N")}
ROWS, BENCH_ROWS = {"M": 7, "N": 37}, {"M": 8192, "N": 8192}
HEADS, BENCH_HEADS = {"B": 2, "H": 3, "S": 13, "D": 10}, {"B": 4, "H": 16, "S": 4096, "D": 128}


def example(
    name, numpy, torch_eager, limit, draws=X, sizes=ROWS, bench_sizes=BENCH_ROWS, op=None, file=None, **more
) -> None:
    """Adds an entry; `op` and `file` are for an op and a `.tile` file of another name."""
    path = Path(__file__).with_name(f"{file or name}.tile")
    EXAMPLES[name] = Example(name, path, op or name, sizes, bench_sizes, draws, numpy, torch_eager, limit, **more)


example("cos_cos", lambda x: np.cos(np.cos(x)), lambda x: x.cos().cos(), lambda z: bound(F32, magnitude=1))
example("softmax", np_softmax, lambda x: x.softmax(-1), lambda z: bound(F32, terms=z["N"], steps=16))
example("transpose", lambda x: x.T, lambda x: x.T.contiguous(), lambda z: EXACT)
example("top1", lambda x: (x.argmax(1), x.max(1)), lambda x: x.max(1)[::-1], lambda z: EXACT)
example("jacobi", np_jacobi, torch_jacobi, lambda z: bound(F32, terms=4, magnitude=4))
example(
    "log_softmax",
    lambda x: x - np_logsumexp(x)[:, None],
    lambda x: x.log_softmax(-1),
    lambda z: bound(F32, terms=z["N"], magnitude=4),
)
example(
    "cumsum",
    lambda x: x.cumsum(1),
    lambda x: x.cumsum(1),
    lambda z: bound(F32, terms=z["N"], magnitude=4 * math.sqrt(z["N"])),
    op="running_sum",
)
example(
    "variance",
    lambda x: (x.mean(0), x.var(0)),
    lambda x: torch.var_mean(x, 0, correction=0)[::-1],
    lambda z: bound(F32, terms=z["M"], magnitude=4),
    {"x": normal("f32", "M N", mean=3)},
)
example(
    "gelu",
    np_gelu,
    lambda x: torch.nn.functional.gelu(x),
    lambda z: bound(BF16, magnitude=4),
    {"x": normal("bf16", "M N")},
    op="activation",
)
example(
    "layernorm",
    np_layernorm,
    lambda x, gain, bias: torch.nn.functional.layer_norm(x, x.shape[-1:], gain, bias, 1e-5),
    lambda z: bound(F32, terms=z["N"], magnitude=8),
    {"x": normal("f32", "M N", mean=3), "gain": normal("f32", "N"), "bias": normal("f32", "N")},
)
example(
    "rmsnorm",
    np_rmsnorm,
    torch_rmsnorm,
    lambda z: bound(BF16, terms=z["N"]),
    {"x": normal("bf16", "M N"), "gain": normal("bf16", "N")},
)
example(
    "cross_entropy",
    np_cross_entropy,
    lambda logits, target: torch.nn.functional.cross_entropy(logits, target),
    lambda z: bound(F32, terms=z["V"] + z["B"], magnitude=8),
    {"logits": normal("f32", "B V"), "target": ids("i64", "B", below="V")},
    {"B": 9, "V": 53},
    {"B": 8192, "V": 32768},
)
example(
    "linear_cross_entropy",
    lambda x, w, target: np_cross_entropy(x @ w.T, target),
    lambda x, w, target: torch.nn.functional.cross_entropy(torch.nn.functional.linear(x, w).float(), target),
    lambda z: bound(F32, terms=z["D"] + z["V"] + z["B"], magnitude=8),
    {"x": normal("bf16", "B D"), "w": normal("bf16", "V D", fan_in="D"), "target": ids("i64", "B", below="V")},
    {"B": 9, "V": 53, "D": 24},
    {"B": 8192, "V": 32768, "D": 4096},
)
example(
    "linear",
    lambda x, w, b: np_gelu(x @ w + b),
    lambda x, w, b: torch.nn.functional.gelu(torch.addmm(b, x, w)),
    lambda z: bound(BF16, terms=z["K"], magnitude=4),
    {"x": normal("bf16", "M K"), "w": normal("bf16", "K N", fan_in="K"), "b": normal("bf16", "N")},
    {"M": 17, "N": 19, "K": 45},
    {"M": 8192, "N": 8192, "K": 8192},
)
example(
    "mlp",
    lambda x, w1, b1, w2, b2: np_gelu(x @ w1 + b1) @ w2 + b2,
    torch_mlp,
    lambda z: bound(BF16, terms=z["D"] + z["F"], magnitude=4, rounded=1),
    {
        "x": normal("bf16", "M D"),
        "w1": normal("bf16", "D F", fan_in="D"), "b1": normal("bf16", "F"),
        "w2": normal("bf16", "F D", fan_in="F"), "b2": normal("bf16", "D"),
    },
    {"M": 9, "D": 21, "F": 35},
    {"M": 8192, "D": 4096, "F": 16384},
)  # fmt: skip
example(
    "attention",
    np_attention,
    torch_attention,
    lambda z: bound(BF16, terms=z["D"] + z["T"], steps=32, magnitude=4),
    {"q": normal("bf16", "B H S D"), "k": normal("bf16", "B H T D"), "v": normal("bf16", "B H T D")},
    HEADS | {"T": 11},
    BENCH_HEADS | {"T": 4096},
)
example(
    "causal_attention",
    lambda q, k, v: np_attention(q, k, v, causal=True),
    lambda q, k, v: torch_attention(q, k, v, causal=True),
    lambda z: bound(BF16, terms=z["D"] + z["S"], steps=32, magnitude=4, rounded=1),
    {name: normal("bf16", "B H S D") for name in "qkv"},
    HEADS,
    BENCH_HEADS,
    file="attention",
)
example(
    "attention_backward",
    np_attention_backward,
    torch_attention_backward,
    lambda z: bound(BF16, terms=z["D"] + z["S"], steps=64, magnitude=math.sqrt(z["S"] * z["D"]), rounded=1),
    {name: normal("bf16", "B H S D") for name in ("q", "k", "v", "o")}
    | {"lse": normal("f32", "B H S", mean=4.0), "do": normal("bf16", "B H S D")},
    HEADS,
    BENCH_HEADS,
)
example(
    "decoding",
    lambda q, k, v: np_attention(q[:, :, None], *(np.repeat(x, len(q[0]) // len(x[0]), axis=1) for x in (k, v)))[:, :, 0],
    lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=True)[:, :, 0],
    lambda z: bound(BF16, terms=z["D"] + z["T"], steps=32, magnitude=4, rounded=1),
    {"q": normal("bf16", "B H D"), "k": normal("bf16", "B G T D"), "v": normal("bf16", "B G T D")},
    {"B": 2, "H": 6, "G": 2, "T": 11, "D": 8},
    {"B": 8, "H": 32, "G": 4, "T": 8192, "D": 128},
)
example(
    "rotary",
    np_rotary,
    torch_rotary,
    lambda z: bound(BF16, steps=32, magnitude=4 * z["S"]),  # an angle's error grows with the position
    {"x": normal("bf16", "B H S D")},
    HEADS,
    BENCH_HEADS,
)
DROPOUT = {"p": constant("f32", 0.1), "seed": constant("i64", 7)}
example(
    "dropout",
    np_dropout,
    torch_dropout,
    lambda z: bound(BF16),
    {"x": normal("bf16", "M N"), **DROPOUT},
    {"M": 7, "N": 13},
    {"M": 16384, "N": 8192},
    torch_draws=True,
)
example(
    "residual_block",
    np_residual_block,
    torch_residual_block,
    lambda z: bound(BF16, terms=2 * z["N"], steps=40, magnitude=8, rounded=1),
    {
        "x": normal("bf16", "M N"),
        "skip": normal("bf16", "M N"),
        "gain": normal("bf16", "N", mean=1),
        "bias": normal("bf16", "N"),
        **DROPOUT,
    },
    {"M": 7, "N": 13},
    {"M": 16384, "N": 4096},
    file="dropout",
    torch_draws=True,
)
example(
    "embedding",
    lambda ids, table: table[ids],
    lambda ids, table: torch.nn.functional.embedding(ids, table),
    lambda z: EXACT,
    {"ids": ids("i32", "B S", below="V"), "table": normal("bf16", "V D")},
    {"B": 3, "S": 7, "V": 29, "D": 13},
    {"B": 16, "S": 4096, "V": 32768, "D": 4096},
)
example(
    "conv2d",
    np_conv2d,
    lambda x, f: torch.nn.functional.conv2d(x, f, padding="same"),
    lambda z: bound(F32, terms=z["C"] * z["R"] * z["S"], magnitude=4),
    {"x": normal("f32", "N C H W"), "f": normal("f32", "K C R S", fan_in="C R S")},
    {"N": 2, "C": 3, "H": 9, "W": 11, "K": 5, "R": 3, "S": 5},
    {"N": 32, "C": 128, "H": 56, "W": 56, "K": 128, "R": 3, "S": 3},
)
example(
    "max_pool",
    np_max_pool,
    lambda x: torch.nn.functional.max_pool2d(x, 2),
    lambda z: EXACT,
    {"x": normal("f32", "N C H W")},
    {"N": 2, "C": 3, "H": 9, "W": 12},
    {"N": 64, "C": 128, "H": 224, "W": 224},
)
example(
    "batched_einsum",
    lambda a, c: np.einsum("bikl,lbkj->bij", a, c),
    lambda a, c: torch.einsum("bikl,lbkj->bij", a, c),
    lambda z: bound(F32, terms=z["K"] * z["L"], magnitude=4),
    {"a": normal("f32", "B I K L"), "c": normal("f32", "L B K J", fan_in="K L")},
    {"B": 3, "I": 7, "J": 9, "K": 5, "L": 4},
    {"B": 32, "I": 1024, "J": 1024, "K": 64, "L": 16},
)
example(
    "transformer_block",
    np_transformer_block,
    torch_transformer_block,
    lambda z: bound(BF16, terms=2 * z["E"] + z["S"] + z["F"], steps=64, magnitude=10, rounded=8),
    {
        "x": normal("bf16", "B S E"),
        **{name: normal("bf16", "E", mean=1) for name in ("attn_gain", "mlp_gain")},
        **{name: normal("bf16", "E H D", fan_in="E") for name in ("wq", "wk", "wv")},
        "wo": normal("bf16", "H D E", fan_in="H D"),
        **{name: normal("bf16", "E F", fan_in="E") for name in ("w_gate", "w_up")},
        "w_down": normal("bf16", "F E", fan_in="F"),
    },
    {"B": 2, "S": 9, "E": 15, "H": 3, "D": 6, "F": 25},
    {"B": 4, "S": 2048, "E": 2048, "H": 16, "D": 128, "F": 5632},
)
