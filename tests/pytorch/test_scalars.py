"""Numbers that a call gives: values that kernels read, and no reason to compile anything again."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import compiled  # noqa: E402

import tilec.torch  # noqa: E402
from tilec.torch import shared  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")
STRICT = {"strict": True}


def step(x: torch.Tensor, k: int) -> tuple[torch.Tensor, ...]:
    """A number in every place where it is a value: as a factor, a bound, a position, in arithmetic with others."""
    wide = x / (k + 1) - k + torch.where(x > k, k, x).clamp(-1, k) * k**0.5
    positions = torch.arange(k, k + 8) * (torch.arange(8) < k) + torch.full((8,), k) % 3
    return wide, positions, x.int() * k, (x.sum() * k).half(), torch.full_like(x, k) + x.abs() ** k


def test_values_compile_nothing():
    function, x = compiled(step, dynamic=True, options=STRICT), torch.linspace(-2, 9, 8)
    counts = []
    for k in (3, 2, 7, 100, 2):
        for made, right in zip(function(x, k), step(x, k), strict=True):
            assert made.dtype == right.dtype and made.stride() == right.stride()
            torch.testing.assert_close(made, right)
        counts.append(shared.compiled())
    assert len(set(counts)) == 1


def test_values_of_a_training_step():
    """Backward reads the numbers of its forward call."""
    function, counts = compiled(lambda x, w, k: ((x @ w) * k).sin() / (k + 1), dynamic=True), []
    x, w = torch.randn(4, 3), torch.randn(3, 2)
    for k in (3, 4, 9):
        grads = []
        for call in (function, lambda x, w, k: ((x @ w) * k).sin() / (k + 1)):
            leaf = w.clone().requires_grad_()
            call(x, leaf, k).sum().backward()
            grads.append(leaf.grad)
        torch.testing.assert_close(*grads)
        counts.append(shared.compiled())
    assert len(set(counts)) == 1


@pytest.mark.parametrize("dtype", [torch.int32, torch.float16])
def test_a_scalar_keeps_its_type(dtype):
    """A tensor of one element would be widened by another one; by a number it is not."""
    function, x = compiled(lambda x, k: x * k, dynamic=True), torch.tensor(3, dtype=dtype)
    for k in (3, 5):
        made = function(x, k)
        assert made.dtype == dtype and made == x * k


def test_a_size_that_is_a_value():
    function = compiled(lambda x: x.sum(0) / x.shape[0] + torch.arange(x.shape[0]).max(), dynamic=True)
    for n in (3, 5):
        x = torch.randn(n, 4)
        torch.testing.assert_close(function(x), x.sum(0) / n + n - 1)
    assert tilec.torch.report().graphs[-1].kind == "inference"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_number_is_where_the_tensors_are_that_it_is_computed_with(device):
    """On a GPU, too, where the machine code of a call reads nothing of the CPU's."""
    from torch import fx
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from tilec.torch.scalars import as_tensors

    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        graph, aten = fx.Graph(), torch.ops.aten
        x, k = graph.placeholder("x"), graph.placeholder("k")
        x.meta["val"], k.meta["val"] = torch.empty(8, device=device), mode.shape_env.create_unbacked_symint()
        made = graph.call_function(aten.mul.Scalar, (x, k))
        made.meta["val"] = torch.empty(8, device=device)
        graph.output((made,))
        as_tensors(graph)
        (scalar,) = graph.find_nodes(op="call_function", target=aten.scalar_tensor.default)
        assert scalar.meta["val"].device.type == scalar.kwargs["device"].type == device
