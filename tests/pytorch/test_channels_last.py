"""What training saves of convolutions lies with its channels last where programs store it so. A CPU is made to do as GPUs do."""

from __future__ import annotations

import re
import threading

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import assert_agrees, compare, compiled, wide  # noqa: E402

import tilec.torch  # noqa: E402
from tilec.torch import backend, call, channels_last, shared  # noqa: E402
from tilec.torch.aten import orders  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")

nn, F = torch.nn, torch.nn.functional


@pytest.fixture
def saved(monkeypatch):
    """By name, the tensors that backward graphs are given with their channels last, where they were traced in PyTorch's order."""
    found: dict[str, torch.Tensor] = {}
    save = channels_last.save

    def noted(forward, backward, results):
        given = [n for n in backward.graph.nodes if n.op == "placeholder"]
        before = [n.meta["val"] for n in given]
        save(forward, backward, results)
        found.update((n.name, n.meta["val"]) for n, value in zip(given, before) if n.meta["val"] is not value)

    monkeypatch.setattr(orders, "reorders", lambda device: True)
    monkeypatch.setattr(channels_last, "save", noted)
    return found


@pytest.fixture
def texts(monkeypatch):
    """The programs that are written from now on."""
    found: list[str] = []
    write = call.write

    def noted(graph):
        found.append((made := write(graph)).text)
        return made

    monkeypatch.setattr(call, "write", noted)
    return found


def conv(*sizes: int, **how) -> nn.Module:
    return nn.Sequential(nn.Conv2d(*sizes, bias=False, **how), nn.BatchNorm2d(sizes[1]), nn.ReLU())


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = conv(3, 8, 3, padding=1), nn.Linear(8, 5)
        self.grouped, self.deep = nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.strided = nn.Conv2d(8, 8, 3, stride=2, padding=1)

    def forward(self, x):
        y = self.first(x)
        y = F.max_pool2d(F.gelu(self.deep(F.gelu(self.grouped(y)))) + y, 2)
        return self.last(F.adaptive_avg_pool2d(F.silu(self.strided(y)), 1).flatten(1))


class Applied(nn.Module):
    """A function of a convolution's result, and of a second one's."""

    def __init__(self, function, **how) -> None:
        super().__init__()
        self.convolution, self.second, self.function = nn.Conv2d(3, 6, 3, **how), nn.Conv2d(6, 6, 1), function

    def forward(self, x):
        return self.function(F.gelu(self.convolution(x)), self.second)


def image(*shape: int, order: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
    return torch.randn(*(shape or (2, 3, 8, 10))).to(memory_format=order).requires_grad_()


def test_a_residual_network(saved):
    assert_agrees(Residual(), image(2, 3, 12, 12), backward=True, calls=2)
    assert len(saved) > 8 and {f"convolution{k}" for k in ("", "_1", "_2", "_3")} <= saved.keys()
    assert all(t.is_contiguous(memory_format=torch.channels_last) for t in saved.values())
    assert tilec.torch.report().share == 1


def test_values_are_stored_once_and_as_they_are_read(saved, texts):
    """No result of the forward program is a copy in another order, and only gradients are of the backward program."""
    assert_agrees(Residual(), image(2, 3, 12, 12), backward=True)
    forward, backward = (re.findall(r"^  (\w+_out)\[.*i3 in", text, re.MULTILINE) for text in texts)
    assert not forward and all(name.startswith("convolution_backward") for name in backward)


class Fire(nn.Module):
    """Convolutions of a convolution's result, beside each other."""

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.squeeze, self.last = nn.Conv2d(3, 4, 1), last
        self.small, self.large = nn.Conv2d(4, 6, 1), nn.Conv2d(4, 6, 3, padding=1)

    def forward(self, x):
        x = F.relu(self.squeeze(x))
        return self.last(torch.cat([F.relu(self.small(x)), F.relu(self.large(x))], 1))


@pytest.mark.parametrize("last, expected", [(nn.Identity(), False), (nn.MaxPool2d(2), False), (nn.Conv2d(12, 2, 1), True),
                                            (nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(12, 2, 1)), True)])  # fmt: skip
def test_all_parts_of_a_concatenation_have_one_order(last, expected, saved, texts):
    """Where nothing goes along its channels, no part has them last: another one was read element by element."""
    model = Fire(last).eval()
    with torch.no_grad():
        assert_agrees(model, image(2, 3, 8, 10).detach())
    (text,) = texts
    (joined,) = re.findall(r"^  cat\w*\[i0, i1, i2, i3\].*where (.*)$", text, re.MULTILINE)
    order = [int(n) for n in re.findall(r"i\d in 0:(\d+)", joined)]
    assert order == ([2, 8, 10, 12] if expected else [2, 12, 8, 10])
    for name in ("convolution_1", "convolution_2"):
        (made,) = re.findall(rf"^  {name}\[i0, i1, i2, i3\].*where (.*)$", text, re.MULTILINE)
        assert [int(n) for n in re.findall(r"i\d in 0:(\d+)", made)] == ([2, 8, 10, 6] if expected else [2, 6, 8, 10])


def test_a_concatenation_with_an_image_in_pytorch_s_order_lies_so(saved, texts):
    first, second = nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(8, 2, 1)
    joined = lambda x: second(torch.cat([x, first(x)], 1))  # noqa: E731
    with torch.no_grad():
        compiled(joined)(image(2, 3, 8, 10).detach())
    assert re.search(r"convolution\[.*where i0 in 0:2, i1 in 0:5, i2 in 0:8, i3 in 0:10", texts[-1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_types(dtype, saved):
    x = torch.randn(2, 3, 12, 12, dtype=dtype, requires_grad=True)
    model = Residual().to(dtype)
    result = compiled(model)(x)
    result.sum().backward()
    assert saved and x.grad.stride() == x.stride() and result.isfinite().all()


def test_three_spatial_dimensions(saved):
    parts = nn.Conv3d(2, 4, 3), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(4, 3, 2), nn.Tanh()
    assert_agrees(nn.Sequential(*parts), image(2, 2, 8, 9, 10), backward=True)
    assert saved and all(t.is_contiguous(memory_format=torch.channels_last_3d) for t in saved.values())


def test_one_spatial_dimension(saved):
    """PyTorch has no order with channels last for it."""
    parts = nn.Conv1d(3, 4, 3), nn.GELU(), nn.BatchNorm1d(4), nn.ReLU(), nn.Conv1d(4, 2, 1)
    assert_agrees(nn.Sequential(*parts), image(2, 3, 9), backward=True)
    assert not saved


def test_transposed_convolutions(saved):
    first, second = nn.ConvTranspose2d(3, 6, 3, stride=2, bias=False), nn.ConvTranspose2d(6, 4, 2)
    parts = first, nn.BatchNorm2d(6), nn.ReLU(), second, nn.Sigmoid()
    assert_agrees(nn.Sequential(*parts), image(2, 3, 5, 6), backward=True)
    assert saved


@pytest.mark.parametrize(
    ("function", "some"),
    [
        (lambda y, second: second(y) * y, True),
        (lambda y, second: second(y) + y.permute(0, 3, 1, 2).exp().permute(0, 2, 3, 1), True),
        (lambda y, second: second(y).softmax(1) * y.mean((2, 3), keepdim=True).sigmoid(), True),
        (lambda y, second: torch.cat([second(y), y.exp()], 1).sin(), True),
        (lambda y, second: F.layer_norm(second(y.sin()).permute(0, 2, 3, 1), (6,)).permute(0, 3, 1, 2).exp(), True),
        (lambda y, second: F.group_norm(second(y.sin()), 3).relu(), True),
        (lambda y, second: F.interpolate(second(y.sin()), scale_factor=2).sin(), True),
        (lambda y, second: F.pad(second(y.sin()), (1, 0, 2, 1)).sin().unfold(3, 3, 2).exp(), True),
        (lambda y, second: second(y.sin()).flatten(2).transpose(1, 2).softmax(-1), True),
        (lambda y, second: (second(y), y.relu(), y), True),
        (lambda y, second: second(y.sin()).split(3, 1)[1].exp(), True),
        (lambda y, second: (y.sin().flatten(1) @ y.new_ones(y[0].numel(), 3)).tanh(), True),
        (lambda y, second: second(F.dropout(y, 0.0)).sin().clone().add_(1).exp(), True),
    ],
    ids=[
        *["product", "permuted", "gates", "joined", "norm", "groups", "resampled", "windows", "sequence", "returned", "parts"],
        *["flat", "changed"],
    ],
)  # fmt: skip
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_what_follows(function, some, order, saved):
    model = Applied(function)
    if order is torch.channels_last:
        assert_agrees(model.to(memory_format=order), image(order=order), backward=True)
        return
    assert_agrees(model, image(), backward=True)
    assert bool(saved) == some


def test_returned_values_are_saved_as_they_are_returned(saved):
    """What is in memory in PyTorch's order anyway is not stored twice: a result, and what a view of is saved or returned."""
    for function in (
        lambda y, second: (y.exp_(), y.flatten(1)),
        lambda y, second: (second(z := y.exp()).sum(), z.flatten(2)),
    ):
        assert_agrees(Applied(function), image(), backward=True)
        assert "exp" not in saved and "exp_" not in saved


def test_gradients_twice(saved):
    model, x = Residual(), image(2, 3, 12, 12)
    result = compiled(model)(x)
    result.sum().backward(retain_graph=True)
    once = x.grad.clone()
    result.sum().backward()
    assert saved
    torch.testing.assert_close(x.grad, 2 * once)


def test_random_numbers_and_checkpoints(saved):
    from torch.utils.checkpoint import checkpoint

    def function(y, second):
        return second(checkpoint(lambda v: F.dropout(v.exp(), 0.5) * v, y, use_reentrant=False)) * y

    model, x = Applied(function), image()
    result = compiled(model)(x)
    (gradient,) = torch.autograd.grad(result.sum(), x, retain_graph=True)
    (again,) = torch.autograd.grad(result.sum(), x)
    assert saved and torch.equal(gradient, again) and gradient.stride() == x.stride()


class Transformed(torch.autograd.Function):
    """PyTorch runs the transform in both graphs."""

    @staticmethod
    def forward(ctx, y):
        ctx.save_for_backward(y)
        return y.exp()

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * y.exp() + 0 * torch.fft.fft(y.view(y.shape[0], -1)).real.view(y.shape)


def test_operations_that_pytorch_runs(saved):
    """They have what they are traced with, and what they read stays in PyTorch's order."""
    model, x = Applied(lambda y, second: Transformed.apply(second(y.sin())).sin()), image()
    exact, given = Applied(model.function).double(), wide(x)
    exact.load_state_dict(model.state_dict())
    assert_agrees(model, x, backward=True)
    assert "convolution_1" not in saved and saved
    assert any(e.operation.startswith("_fft") for g in tilec.torch.report().graphs for e in g.eager)
    exact(given).sum().backward()
    compiled(model)(x).sum().backward()
    compare("gradient", x.grad, x.grad, given.grad)


def test_partitions_that_pytorch_runs(saved, monkeypatch):
    """Of programs that are refused: the copies are PyTorch's then."""

    def refused(*given):
        raise ValueError("refused")

    monkeypatch.setattr(call, "_program", refused)
    with pytest.warns(tilec.torch.FallbackWarning, match="ValueError: refused"):
        assert_agrees(Residual(), image(2, 3, 12, 12), backward=True)
    assert saved and tilec.torch.report().share == 0


def test_in_background(saved):
    assert_agrees(Residual(), image(2, 3, 12, 12), backward=True, options={"background": True})
    tilec.torch.wait()
    assert_agrees(Residual(), image(2, 3, 12, 12), backward=True, calls=2, options={"background": True})
    assert saved


def test_sizes_that_change(saved):
    model, x = Residual(), image(2, 3, 12, 12)
    torch._dynamo.mark_dynamic(x, 0)
    compiled(model)(x).sum().backward()
    assert not saved and x.grad.stride() == x.stride()
    assert_agrees(Residual(), image(3, 3, 14, 12), backward=True, dynamic=True)
    assert not saved


def test_backward_is_compiled_ahead_for_the_same_orders(saved, texts, monkeypatch):
    shared.forget()
    monkeypatch.setattr(backend, "SPARE", 1)
    result = compiled(Residual())(image(2, 3, 12, 12)).sum()
    for thread in [t for t in threading.enumerate() if t.name == "tilec-ahead"]:
        thread.join(60)
    before = set(texts)
    result.backward()
    assert saved and len(before) == 2 and set(texts) == before


def test_a_cpu_saves_in_pytorch_s_order(texts):
    """Its programs store images so."""
    assert_agrees(Residual(), image(2, 3, 12, 12), backward=True)
    assert len(texts) == 2 and not any("[2, 12, 12, 8]" in text for text in texts)
