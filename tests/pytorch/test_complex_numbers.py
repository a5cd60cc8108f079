"""Complex numbers are pairs of real ones within partitions: values, gradients, and how they lie in memory."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import assert_agrees, compiled, tensors  # noqa: E402

import tilec.torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")
C64, C128 = torch.complex64, torch.complex128


def exact(value):
    """With as many digits as there are."""
    if isinstance(value, torch.Tensor) and (value.is_complex() or value.is_floating_point()):
        return value.detach().to(C128 if value.is_complex() else torch.float64).requires_grad_(value.requires_grad)
    return value


def same(found, eager, wanted, rtol=2e-5):
    for one, two, three in zip(tensors(found), tensors(eager), tensors(wanted), strict=True):
        assert (one.dtype, one.shape, one.is_conj(), one.is_neg()) == (two.dtype, two.shape, two.is_conj(), two.is_neg())
        assert one.stride() == two.stride(), (one.stride(), two.stride())
        torch.testing.assert_close(one.resolve_conj(), three.resolve_conj().to(one.dtype), rtol=rtol, atol=1e-5, equal_nan=True)


def agrees(function, *given, backward=False, whole=True, **how):
    run = compiled(function, **how)
    wide = [exact(x) for x in given]
    results = []
    for f, values in ((run, given), (function, given), (function, wide)):
        with torch.set_grad_enabled(backward):
            made = f(*values)
        if backward:
            leaves = [x for x in values if isinstance(x, torch.Tensor) and x.requires_grad]
            asked = [r for r in tensors(made) if r.requires_grad]
            torch.manual_seed(2)
            weights = [torch.randn(r.shape, dtype=C64 if r.is_complex() else torch.float32).to(r.dtype) for r in asked]
            made = [*tensors(made), *torch.autograd.grad(asked, leaves, weights, allow_unused=True)]
        results.append(made)
    same(*results)
    assert not whole or tilec.torch.report().share == 1, str(tilec.torch.report())


def rotated(x, turns):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    turns = turns.view(1, turns.shape[0], 1, turns.shape[1])
    return torch.view_as_real(pairs * turns).flatten(3).type_as(x)


def turns(length, depth, base=10000.0):
    steps = 1.0 / base ** (torch.arange(0, depth, 2)[: depth // 2].float() / depth)
    angles = torch.outer(torch.arange(length), steps)
    return torch.polar(torch.ones_like(angles), angles)


def test_rotary_embeddings():
    """As the reference of Llama writes them: the turns are a complex buffer."""
    table = turns(6, 8)
    given = [torch.randn(2, 6, n, 8, requires_grad=True) for n in (4, 2)]
    assert_agrees(lambda q, k: (rotated(q, table), rotated(k, table)), *given, backward=True)
    report = tilec.torch.report()
    assert report.share == 1 and all(len(graph.parts) == 1 for graph in report.graphs), str(report)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotary_embeddings_in_attention(dtype):
    """With turns that are computed, and a part of a table at a position."""
    table = turns(16, 8)

    def run(q, k, v):
        q, k = rotated(q, turns(6, 8)), rotated(k, table[3:9])
        heads = (x.transpose(1, 2) for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)

    given = [torch.randn(2, 6, 4, 8, dtype=dtype, requires_grad=True) for _ in range(3)]
    assert_agrees(run, *given, backward=True)
    assert tilec.torch.report().share == 1


def z(*shape, dtype=C64, grad=True):
    return torch.randn(shape, dtype=dtype).requires_grad_(grad)


GROUPS = {
    "sums": lambda a, b, x: (a + b, a - b, -a, torch.add(a, b, alpha=2 - 1j), a + x, x - a, a + 1.5, 2j - a, 1 - a, a + 0j),
    "products": lambda a, b, x: (a * b, a * x, x * a, a * 2j, a * 0.5, a.square(), a**2, a**3, a * b.conj(), a * a.abs()),
    "quotients": lambda a, b, x: (a / b, a / x, x / a, 1 / a, a.reciprocal(), a / 2j, (a + 3) / 2),
    "sizes": lambda a, b, x: (a.abs(), a.angle(), a.sgn(), a.real, a.imag, a.exp(), (a.abs() * x).sum(), a.abs() ** 2),
    "conjugates": lambda a, b, x: (
        a.conj() * b, a.conj().real + a.conj().imag, (a.conj() + b.conj()).conj() * 1, a.conj().imag * x, a.conj().imag[1:].exp(),
    ),
    "made": lambda a, b, x: (
        torch.complex(x, x * 2), torch.polar(x.abs(), x), a.to(C128) * b, x.to(C64) * a, x.exp() + 1j * x.sin(),
    ),
    "views": lambda a, b, x: (
        (a * b).reshape(6, 4).t(), (a * b)[1:, ::2], (a * 2).transpose(0, 1).reshape(-1) * 2, a[None].expand(2, 4, 6) + b,
        torch.cat([a, b], 1) * 2, torch.stack([a, b * 2], 1) + 1, (a * b).unflatten(1, (2, 3)).permute(2, 0, 1) * 1j,
        (a * b).flip(0), (a + b).roll(1, 1), torch.nn.functional.pad(a * b, (1, 2), value=2), a.chunk(2, 1)[1] * b.split(3, 1)[0],
        b.unbind(0)[1] * 3,
    ),
    "reductions": lambda a, b, x: (a.sum(), a.sum(0), (a * b).mean(1, keepdim=True), (a * b.conj()).sum(-1).real),
    "rows": lambda a, b, x: (a[ROWS] * 2, (a * b).index_select(0, ROWS), torch.where(x > 0, a, b), torch.where(x > 0, a * 2, 0)),
}  # fmt: skip
ROWS = torch.tensor([2, 0, 3, 1, 2])


@pytest.mark.slow
@pytest.mark.parametrize("name", GROUPS)
def test_operations(name):
    """Values and gradients. A gather's gradient is a write, which PyTorch may do."""
    agrees(GROUPS[name], z(4, 6), z(4, 6), torch.randn(4, 6, requires_grad=True), backward=True, whole=name != "rows")


def test_comparisons():
    a, b = z(4, 6, grad=False), z(4, 6, grad=False)
    b[:2] = a[:2]
    agrees(lambda a, b: (a == b, a != b, a == 1j), a, b)


LAYOUTS = {
    "transposed": lambda: (z(6, 4).t(), z(4, 6)),
    "both transposed": lambda: (z(6, 4).t(), z(6, 4).t()),
    "with gaps": lambda: (z(8, 12)[::2, 1::2], z(4, 7)[:, 1:]),
    "conjugates": lambda: (z(4, 6).conj(), z(4, 6)),
    "both conjugates": lambda: (z(6, 4).conj().t(), z(4, 6).conj()),
    "repeated": lambda: (z(1, 6).expand(4, 6), z(4, 1)),
    "three": lambda: (z(3, 4, 6).permute(1, 2, 0), z(3)),
    "double": lambda: (z(4, 6, dtype=C128), z(4, 6, dtype=C128)),
    "mixed": lambda: (z(4, 6, dtype=C128), z(4, 6)),
    "empty shape": lambda: (z(), z(3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_memory(name):
    """Results lie as PyTorch's do, conjugates are views, and inputs may be such."""
    a, b = (x.detach() for x in LAYOUTS[name]())
    agrees(lambda a, b: (a * b, a + 2 * b, (a * b).conj(), a.conj() + 1, (a * b).mT if a.dim() > 1 else a * 2), a, b)


@pytest.mark.slow
def test_what_pytorch_runs():
    """Products of matrices and transforms stay PyTorch's, between partitions."""

    def run(x, a, b):
        spectrum = torch.fft.rfft(x * 2)
        return torch.fft.irfft(spectrum * a, n=6), (a * 2) @ b.mT.conj() * 3

    agrees(run, torch.randn(4, 6, requires_grad=True), z(4, 4), z(4, 4), backward=True, whole=False)
    assert tilec.torch.report().share > 0.5


@pytest.mark.slow
def test_quotients_of_all_sizes():
    """No square overflows or vanishes; a quotient by 0 is infinite."""
    values = torch.tensor([1e-30, 3e-20, 1.0, 7.0, 2e20, 1e30])
    a = torch.complex(values[:, None].expand(6, 6), values.expand(6, 6)).flatten()
    b = a.conj().resolve_conj()
    one = torch.complex(torch.tensor([1.0, 0.0, 2.0]), torch.tensor([1.0, -1.0, 0.5]))
    found = compiled(lambda a, b: (a / a, a.abs(), b / b, one / torch.zeros(3, dtype=C64)))(a, b)
    torch.testing.assert_close(found[0], torch.ones_like(a), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found[1], a.abs(), rtol=1e-6, atol=0)
    torch.testing.assert_close(found[2], torch.ones_like(b), rtol=1e-6, atol=1e-6)
    assert not found[3].isfinite().any()


@pytest.mark.slow
def test_sizes_that_change():
    table = turns(40, 8)
    run = lambda q: rotated(q, table[: q.shape[1]])  # noqa: E731
    function = compiled(run, dynamic=True)
    for length in (5, 9, 40):
        q = torch.randn(2, length, 3, 8)
        torch.testing.assert_close(function(q), run(q))
    assert tilec.torch.report().share == 1


@pytest.mark.slow
def test_a_complex_buffer_is_changed():
    class Running(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("state", torch.zeros(4, dtype=C64))

        def forward(self, x):
            self.state.mul_(0.5 + 0.1j).add_(x)
            return (self.state * x.conj()).real

    model, eager = Running(), Running()
    function = compiled(model)
    with torch.no_grad():
        for _ in range(3):
            x = z(4, grad=False)
            torch.testing.assert_close(function(x), eager(x))
    torch.testing.assert_close(model.state, eager.state)
