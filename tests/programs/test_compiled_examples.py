"""Every example, compiled, within its error bounds: on the CPU, for GPUs without one, and on one."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import as_list, assert_within, from_torch, to_gpu
from expectations import EXAMPLES, Example, Sizes
from tools.examples import NOTHING

import tilec

SHAPES = {
    # Given to an example's sizes in their order, again from the first where there are more sizes.
    "small": None,
    "ones": [1],
    "around a tile": [63, 64, 65, 3, 2],
    "primes": [101, 37, 131, 2, 3],
    "powers of two": [32, 64, 16, 4, 2],
}
LARGE = {  # large enough for several blocks of the parallel loop on every axis that has them
    **{name: {"M": 1031, "N": 523} for name in ("cos_cos", "softmax", "transpose", "layernorm", "cumsum", "variance")},
    "linear": {"M": 129, "N": 257, "K": 191},
    "mlp": {"M": 65, "D": 127, "F": 193},
    "attention": {"B": 1, "H": 2, "S": 129, "T": 191, "D": 64},
    "causal_attention": {"B": 1, "H": 2, "S": 130, "D": 64},
    "attention_backward": {"B": 1, "H": 2, "S": 130, "D": 64},
    "conv2d": {"N": 2, "C": 5, "H": 33, "W": 65, "K": 7, "R": 3, "S": 5},
    "embedding": {"B": 3, "S": 1021, "V": 503, "D": 67},
    "transformer_block": {"B": 2, "S": 65, "E": 64, "H": 4, "D": 16, "F": 129},
}
EVEN = {"rotary": "D", "transformer_block": "D"}  # a head is made of pairs
ODD = {"conv2d": "RS"}  # a window has a middle
SMALL = {"conv2d": {"R": 3, "S": 5}}


def sizes_of(example: Example, shape: str) -> Sizes:
    values = SHAPES[shape]
    if values is None:
        return example.sizes
    sizes = {name: values[n % len(values)] for n, name in enumerate(example.sizes)} | SMALL.get(example.name, {})
    for name in EVEN.get(example.name, ""):
        sizes[name] += sizes[name] % 2
    if "attention" in example.name or example.name in ("transformer_block", "conv2d", "batched_einsum", "max_pool", "rotary"):
        keep = {"B": 2, "H": 3 if "attention" in example.name else sizes.get("H", 1)}
        sizes |= {k: min(v, keep[k]) for k, v in sizes.items() if k in keep and v > 1}
    return sizes


def compiled(example: Example, target: str = "cpu") -> tilec.Op:
    return tilec.compile(example.path, op=example.op, target=target)


def poisoned(op: tilec.Op, results: list[np.ndarray]) -> list[np.ndarray]:
    """Buffers like the results, every byte set: what is not written shows."""
    made = [np.empty_like(r) for r in results]
    for buffer in made:
        buffer.view(np.uint8).fill(0xFF) if buffer.ndim else buffer.fill(np.array(-1, buffer.dtype))
    return made


def strided(array: np.ndarray) -> np.ndarray:
    """The same values, in every other element of larger memory, and read-only."""
    memory = np.zeros(tuple(2 * n for n in array.shape), array.dtype)
    view = memory[(*(slice(None, None, 2) for _ in array.shape), ...)]
    view[...] = array
    view.flags.writeable = False
    return view


def check(op: tilec.Op, example: Example, sizes: Sizes, rng: np.random.Generator) -> None:
    inputs = example.inputs(rng, sizes)
    arrays = list(inputs.values())
    originals = [a.copy() for a in arrays]
    results = as_list(op(*arrays))
    out = poisoned(op, [np.asarray(r) for r in results])
    op(*(strided(a) for a in arrays), out=out)
    assert_within(example.path, inputs, results, example.op, kind="cpu")
    for result, again in zip(results, out, strict=True):
        assert np.asarray(result).tobytes() == again.tobytes(), "another buffer, another result"
    for array, original in zip(arrays, originals):
        assert array.tobytes() == original.tobytes(), "an input was written to"


CPU = [pytest.param(e, s, id=f"{e.name}-{s.replace(' ', '-')}") for e in EXAMPLES.values() for s in SHAPES]


@pytest.mark.some(2)
@pytest.mark.parametrize("example, shape", CPU)
def test_on_the_cpu(example, shape, rng):
    check(compiled(example), example, sizes_of(example, shape), rng)


@pytest.mark.parametrize("name", LARGE)
def test_large_on_the_cpu(name, rng):
    check(compiled(EXAMPLES[name]), EXAMPLES[name], LARGE[name], rng)


@pytest.mark.parametrize("name, size", [(n, s) for n, all_ in NOTHING.items() for s in all_])
def test_nothing_on_the_cpu(name, size, rng):
    check(compiled(EXAMPLES[name]), EXAMPLES[name], EXAMPLES[name].sizes | {size: 0}, rng)


def test_one_op_serves_many_sizes(rng):
    """Temporaries and scratch of one specialisation do not leak into the next."""
    example = EXAMPLES["transformer_block"]
    op = compiled(example)
    for shape in ("small", "ones", "small"):
        check(op, example, sizes_of(example, shape), rng)


# ---- for GPUs, without one -------------------------------------------------------------------------------------------


@pytest.mark.crossed
@pytest.mark.parametrize("target", ["a100", "h200"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_builds_for_gpus(name, target):
    """At small sizes; `test_emit_cuda.py` compiles kernels at large ones."""
    op = compiled(EXAMPLES[name], target).build(**EXAMPLES[name].sizes)
    assert op.kernels
    for kernel in op.kernels:
        assert "def " in kernel.source and kernel.grid >= 1 and kernel.block >= 1


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("example, shape", CPU)
def test_on_a_gpu(example, shape, rng):
    sizes = sizes_of(example, shape)
    inputs = example.inputs(rng, sizes)
    arrays = [to_gpu(a) for a in inputs.values()]
    op = tilec.compile(example.path, op=example.op)
    results = as_list(op(*arrays))
    again = as_list(op(*arrays))
    assert_within(example.path, inputs, [from_torch(r) for r in results], example.op, kind="cuda")
    for result, other in zip(results, again, strict=True):
        assert result.is_cuda
        assert from_torch(result).tobytes() == from_torch(other).tobytes(), "two runs, two results"


@pytest.mark.gpu
@pytest.mark.parametrize("name", LARGE)
def test_large_on_a_gpu(name, rng):
    example = EXAMPLES[name]
    inputs = example.inputs(rng, LARGE[name])
    results = as_list(tilec.compile(example.path, op=example.op)(*(to_gpu(a) for a in inputs.values())))
    assert_within(example.path, inputs, [from_torch(r) for r in results], example.op, kind="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["softmax", "top1", "cross_entropy"])
def test_cupy_arrays(name, rng):
    cupy = pytest.importorskip("cupy")
    example = EXAMPLES[name]
    inputs = example.inputs(rng)
    results = as_list(tilec.compile(example.path, op=example.op)(*(cupy.asarray(a) for a in inputs.values())))
    assert all(isinstance(r, cupy.ndarray) for r in results)
    assert_within(example.path, inputs, [cupy.asnumpy(r) for r in results], example.op, kind="cuda")


@pytest.mark.gpu
def test_gather_outside_on_a_gpu(rng):
    torch = pytest.importorskip("torch")
    op = tilec.compile(EXAMPLES["embedding"].path)
    table = torch.zeros((5, 8), dtype=torch.bfloat16, device="cuda")
    with pytest.raises(tilec.CallError, match=r"embedding\.tile:3"):
        op(torch.tensor([[1, 5]], dtype=torch.int32, device="cuda"), table)
        torch.cuda.synchronize()
