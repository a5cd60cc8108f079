"""Every example as an operator: its fake results, its statements in a partition, and one more dimension."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from expectations import EXAMPLES  # noqa: E402

import tilec.torch  # noqa: E402
from tilec.torch import FallbackWarning  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")

IMPORTS = {"transformer_block"}  # whose statements are not taken: it calls ops of another file


def tensor(array: np.ndarray):
    array = np.asarray(array)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def listed(results) -> list:
    return list(results) if isinstance(results, tuple | list) else [results]


def agree(made, wanted) -> None:
    for m, w in zip(listed(made), listed(wanted), strict=True):
        near = {"rtol": 2e-2, "atol": 1e-2} if w.dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
        torch.testing.assert_close(m, w, **near)


@pytest.mark.parametrize("name", [name if name == "softmax" else pytest.param(name, marks=pytest.mark.slow) for name in EXAMPLES])
def test_example_is_an_operator(name, rng):
    example = EXAMPLES[name]
    op = tilec.torch.op(example.path, op=example.op)
    given = [tensor(a) for a in example.inputs(rng).values()]
    real = listed(op(*given))
    for r, fake in zip(real, listed(op(*(t.to("meta") for t in given))), strict=True):
        assert (r.shape, r.stride(), r.dtype) == (fake.shape, fake.stride(), fake.dtype)

    agree(torch.compile(lambda *a: listed(op(*a)), backend="tilec", fullgraph=True)(*given), real)
    assert (tilec.torch.report().share == 1) == (name not in IMPORTS)

    many = [torch.stack([t, t.roll(1, -1) if t.dim() else t]) for t in given]
    each = [listed(op(*(t[k] for t in many))) for k in range(2)]
    with pytest.warns(FallbackWarning, match="of another file") if name in IMPORTS else nullcontext():
        agree(torch.vmap(lambda *a: tuple(listed(op(*a))))(*many), [torch.stack(r) for r in zip(*each)])
