"""Drawn functions of a tensor: views of views, borders of views, reductions and joins of them, as the translators write them."""

from __future__ import annotations

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

import tilec  # noqa: E402
from tests.outside import opinfo  # noqa: E402
from tests.outside.common import Program, check  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")

F = torch.nn.functional
MOST_ELEMENTS, MOST_DIMENSIONS = 2000, 5


def _some(x, a, n):
    """Elements along a dimension: from one on, up to another, each or every second."""
    return x[(slice(None),) * a + (slice(n % 3, None if n % 2 else -1, 1 + n % 4 // 3),)]


def _filled(x, a, n):
    y = x.clone()
    y.select(a, n % x.shape[a]).mul_(2)
    y.narrow(a, 0, 1).add_(1)
    return y


def _weight(x, n):
    """Of a convolution of x, made of x."""
    return x.flatten()[: 1 + n % 2].repeat(x.shape[-2] * 12)[: 2 * x.shape[-2] * 3].view(2, x.shape[-2], 3)


VIEWS = [  # of a tensor, one of its dimensions, and a number
    lambda x, a, n: x.movedim(a, n % x.dim()),
    lambda x, a, n: x.flip(a),
    lambda x, a, n: x.roll(n % 5 - 2, a),
    lambda x, a, n: x.roll(n % 5 - 2),
    lambda x, a, n: x.unsqueeze(a),
    lambda x, a, n: x.squeeze(),
    lambda x, a, n: x.flatten(a),
    lambda x, a, n: x.unflatten(a, (-1, 2 + n % 2)),
    lambda x, a, n: x.reshape(sorted(x.shape)),
    lambda x, a, n: x.select(a, n % x.shape[a]),
    lambda x, a, n: x.narrow(a, 0, 1 + n % x.shape[a]),
    _some,
    lambda x, a, n: x.chunk(2, a)[-1],
    lambda x, a, n: x.unfold(a, 2, 1 + n % 2),
    lambda x, a, n: x.diagonal(n % 3 - 1, a, (a + 1) % x.dim()),
    lambda x, a, n: x.clone().as_strided((2, 2), (1 + n % 3, 1), n % 2),
    lambda x, a, n: x.expand(2, *x.shape),
    lambda x, a, n: x.repeat([2 if d == a else 1 for d in range(x.dim())]),
]
OTHERS = [
    lambda x, a, n: x * 2.5 + 1,
    lambda x, a, n: x.tanh(),
    lambda x, a, n: torch.where(x > 0, x, x / 3),
    lambda x, a, n: x.sum(a, keepdim=n % 2 == 0),
    lambda x, a, n: x - x.mean(a, keepdim=True),
    lambda x, a, n: x.amax(a),
    lambda x, a, n: sum(x.max(a)),
    lambda x, a, n: x.softmax(a),
    lambda x, a, n: x.logsumexp(a),
    lambda x, a, n: x.cumsum(a),
    lambda x, a, n: x.var(a, correction=0),
    lambda x, a, n: torch.cat([x, x * 2, x.narrow(a, 0, 1)], a),
    lambda x, a, n: torch.stack([x, x + 1], a),
    lambda x, a, n: F.pad(x, [n % 3 - 1, n % 4 - 1], value=1.5),
    lambda x, a, n: F.pad(x, [n % 3 - 1, 1, n % 4 - 1, -1]),
    lambda x, a, n: F.pad(x, [n % 2, 1], mode="reflect"),
    lambda x, a, n: F.pad(x, [n % 3, 1], mode="replicate"),
    lambda x, a, n: x.index_select(a, torch.arange(3) * n % x.shape[a]),
    lambda x, a, n: x.gather(a, torch.zeros(x.shape, dtype=torch.int64) + n % x.shape[a]),
    lambda x, a, n: x.contiguous().select_scatter(x.sum(a), a, n % x.shape[a]),
    _filled,
    lambda x, a, n: x + x.flip(a),
    lambda x, a, n: x.tril(n % 3 - 1),
    lambda x, a, n: (x * 0.5) @ x.transpose(-1, -2),
    lambda x, a, n: F.avg_pool1d(x, 3, 1 + n % 2, 1),
    lambda x, a, n: F.max_pool2d(x, 2, 1 + n % 2, 1),
    lambda x, a, n: F.conv1d(x, _weight(x, n), padding=n % 3, dilation=1 + n % 2, stride=1 + n % 2),
    lambda x, a, n: F.conv_transpose1d(x, _weight(x, n).transpose(0, 1), stride=1 + n % 2, padding=n % 2),
    lambda x, a, n: F.interpolate(x.view(1, 1, *x.shape[-2:]), size=(3, 4), mode="bilinear", align_corners=n % 2 == 0),
]


def drawn(seed: int):
    """A function of a tensor, which gives its last two values, and the tensor."""
    rng, steps = random.Random(seed), []
    torch.manual_seed(seed)
    given = torch.randn([rng.choice([1, 2, 3, 4, 5, 6]) for _ in range(rng.choice([1, 2, 3, 4]))])
    values = [given]
    while len(steps) < rng.choice([3, 4, 6, 8]):
        of = rng.choice([len(values) - 1, len(values) - 1, rng.randrange(len(values))])
        step, n = rng.choice(rng.choice([VIEWS, OTHERS])), rng.randrange(12)
        try:
            made = step(values[of], n % max(values[of].dim(), 1), n)
        except (RuntimeError, IndexError, ValueError, ZeroDivisionError):
            continue  # of too few dimensions or elements
        if 0 < made.numel() <= MOST_ELEMENTS and made.dim() <= MOST_DIMENSIONS:
            steps.append((step, of, n))
            values.append(made)

    def call(x):
        values = [x]
        for step, of, n in steps:
            values.append(step(values[of], n % max(values[of].dim(), 1), n))
        return values[-2:]

    return call, given


def program(seed: int) -> Program:
    call, given = drawn(seed)
    graph, results, inputs = opinfo.translated(call, [given])
    text = graph.program(results)
    expected = [e.numpy().reshape(r.shape) for e, r in zip(call(given.double()), graph.results, strict=True)]
    return Program(text, inputs, expected, 1e-4, 1e-4)


@pytest.mark.parametrize("seed", range(48, 72))
def test_programs_mean_the_function(seed):
    case = program(seed)
    found = tilec.reference(case.text)(*case.inputs)
    for value, expected in zip(found if isinstance(found, tuple | list) else [found], case.expected, strict=True):
        np.testing.assert_allclose(value, expected, case.rtol, case.atol)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 180))
def test_programs_compute_the_function(seed):
    assert check(program(seed)) == ""
