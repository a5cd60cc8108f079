"""Variances and deviations at large offsets and scales, against those at f64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tools.lowering import lowered  # noqa: E402
from tools.pytorch import compiled  # noqa: E402

from tests.pytorch.translated import text  # noqa: E402
from tilec.core.targets import load  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")
N = 300  # numbers of a row


def numbers(scale=1.0, offset=0.0, dtype=torch.float32):
    made = torch.randn(4, N, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (made * scale + offset).to(dtype)


INPUTS = {
    "plain": numbers(),
    "offset 1e4": numbers(1, 1e4),
    "offset 1e7": numbers(1, 1e7),
    "offset -1e6": numbers(3, -1e6),
    "scale 1e12": numbers(1e12),
    "scale 8e18": numbers(8e18),
    "scale 1e30": numbers(1e30),
    "scale 1e-30": numbers(1e-30),
    "subnormal": numbers(1e-42),
    "equal": torch.full((4, N), 3.3),
    "f16": numbers(1, 1000, torch.float16),
    "bf16": numbers(1, 100, torch.bfloat16),
}
FORMS = {
    "rows": lambda f, x: f(x, 1),
    "columns": lambda f, x: f(x, 0, keepdim=True),
    "all": lambda f, x: f(x),
    "no correction": lambda f, x: f(x, 1, correction=0),
    "a large correction": lambda f, x: f(x, 1, correction=N - 0.5),
}


@pytest.mark.parametrize("name", INPUTS)
def test_variances_and_deviations(name):
    """A deviation d of n numbers is off by at most (n + 4) u d and by what is left of the mean's error e = n u max|x|, squared: its
    part that rounds differences by u. A variance is off by twice of that; beyond f32 it is infinite, and below it vanishes."""
    x = INPUTS[name]

    def results(x):
        both = [form(f, x) for f in (torch.var, torch.std) for form in FORMS.values()]
        pairs = [f(x, 1)[0] for f in (torch.var_mean, torch.std_mean)]
        return (*both, *pairs)

    found, exact = compiled(results)(x), results(x.double())
    unit, own = 2.0**-24, torch.finfo(x.dtype)
    left = (x.numel() * unit * x.double().abs().max() * unit**0.5) ** 2
    for k, (value, wanted) in enumerate(zip(found, exact, strict=True)):
        variance = k < len(FORMS) or k == 2 * len(FORMS)
        squared = wanted if variance else wanted**2
        error = 4 * (x.numel() + 4) * unit * squared + left * (2 * N if k % len(FORMS) == 4 else 1)
        allowed = error if variance else error / wanted.clamp(min=own.tiny)
        allowed = allowed + own.eps * wanted + own.smallest_normal * own.eps + (1e-37 if variance else 0)
        holds = wanted <= own.max
        assert torch.isinf(value[~holds]).all(), (name, k)
        assert ((value.double() - wanted).abs() <= allowed)[holds].all(), (name, k, value, wanted)


def test_a_mean_next_to_a_variance():
    x = INPUTS["offset 1e7"]
    for function in (torch.var_mean, torch.std_mean):
        mean = compiled(lambda x, f=function: f(x, 1)[1])(x)
        assert ((mean - x.double().mean(1)).abs() <= N * 2.0**-24 * x.abs().max()).all()


def test_infinities_and_too_few_numbers():
    x = numbers()
    x[0, 3], x[1, 5] = float("inf"), float("nan")
    for function in (torch.var, torch.std):
        found = compiled(lambda x, f=function: (f(x, 1), f(x[:, :1], 1), f(x[2:, :1], 1, correction=0)))(x)
        expected = function(x, 1), function(x[:, :1], 1), function(x[2:, :1], 1, correction=0)
        assert [f.isfinite().tolist() for f in found] == [e.isfinite().tolist() for e in expected]


@pytest.mark.parametrize("function", [torch.var, torch.std])
def test_gradients(function):
    x = numbers(2, 10).requires_grad_()
    compiled(lambda x: function(x, 1).sum())(x).backward()
    wide = x.detach().double().requires_grad_()
    function(wide, 1).sum().backward()
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=1e-5, atol=1e-5)


def test_a_gpu_reads_the_numbers_once():
    """The sums of differences and of their squares are one pass of the kernel."""
    program = text(lambda x: x.std(1), torch.empty(4096, 1024))
    plan = lowered(program, None, {}, target=load("h200"), end="plan", emit=False)[1].plan
    assert [type(kernel.options).__name__ for kernel in plan.kernels] == ["Rows"]
