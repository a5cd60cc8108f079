"""Programs at the edges of what PyTorch hands to a back end: no inputs, no tensors, other types, graph breaks, checkpoints."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import assert_agrees  # noqa: E402

import tilec.torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")

nn, F = torch.nn, torch.nn.functional


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x,
        lambda x: (x, None, 3),
        lambda x: x.shape[0],
        lambda x: (torch.arange(5) * 2, torch.full((2, 2), 1.5) + 1),
        lambda x: {"sum": x.sum(), "parts": [x[0] * 2, x[1].exp()]},
        lambda x: x.clone(),
        lambda x: (x * 2, x * 2),
        lambda x: (x + 1).to(torch.complex64) * 1j,
        lambda x: torch.fft.rfft(x * 2).abs() + 1,
        lambda x: torch.linalg.qr(x * 2)[1].abs() * 3,
        lambda x: (x.double() * 2, x.half() + 1, x.bfloat16().exp()),
        lambda x: torch.stack([x, x * 2]).transpose(0, 1).contiguous().split(2)[0],
        lambda x: [y * 2 for y in x.unbind(0)],
        lambda x: x.sum(dtype=torch.float64),
        lambda x: (x > 0).sum() + x.argmax(),
        lambda x: torch.empty_like(x).copy_(x) * 2,
        lambda x: x.new_zeros(3, 2) + x[0, 0],
        lambda x: torch.as_strided(x * 2, (2, 2), (1, 2)) + 1,
        lambda x: x.cumsum(0).flip(1) * x.tril(),
        lambda x: x.masked_fill(x > 0, float("-inf")).softmax(-1),
    ],
)
def test_functions_of_one_tensor(function):
    assert_agrees(function, torch.randn(3, 4))


def test_no_arguments():
    assert_agrees(lambda: torch.arange(6.0).view(2, 3).sin() @ torch.ones(3, 2))


def test_graph_breaks():
    def broken(x):
        y = torch.exp(x) + 1
        if y.sum() > 0:
            y = y * 2
        torch._dynamo.graph_break()
        return y.tanh()

    assert_agrees(broken, torch.randn(4, requires_grad=True), backward=True)


def test_checkpoints():
    from torch.utils.checkpoint import checkpoint

    layer = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    again = lambda x: checkpoint(lambda y: torch.exp(y).cos(), x, use_reentrant=False)  # noqa: E731
    assert_agrees(again, torch.randn(4, requires_grad=True), backward=True)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return checkpoint(self.layer, x, use_reentrant=False)

    assert_agrees(Model(), torch.randn(3, 6, requires_grad=True), backward=True)


def test_branches_of_a_graph():
    def either(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() * 2, (x * 3,)) + 1

    assert_agrees(either, torch.randn(4))


def test_tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 6)
            self.head = nn.Linear(6, 10, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids):
            return F.cross_entropy(self.head(self.embed(ids)).flatten(0, 1), ids.flatten())

    assert_agrees(Tied(), torch.randint(0, 10, (2, 5)), backward=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_models_of_other_types(dtype):
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.SiLU(), nn.Linear(16, 4)).to(dtype)
    assert_agrees(model, torch.randn(3, 8).to(dtype).requires_grad_(), backward=True)


def test_training_under_autocast():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))

    def loss(x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float().square().mean()

    compiled, x = torch.compile(loss, backend="tilec"), torch.randn(6, 8)
    gradients = []
    for function in (compiled, loss):
        model.zero_grad()
        function(x).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for found, eager in zip(*gradients):
        torch.testing.assert_close(found, eager, rtol=0.05, atol=1e-3)


def test_dropout_while_training():
    """With the numbers of PyTorch's kernels, a run with the same seed is that of eager mode."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4)).train()
    compiled, x = torch.compile(model, backend="tilec", options={"fallback_random": True}), torch.randn(6, 8)
    made = []
    for function in (compiled, model):
        model.zero_grad()
        torch.manual_seed(5)
        y = function(x)
        y.sum().backward()
        made.append([y.detach(), *(p.grad.clone() for p in model.parameters())])
    for found, eager in zip(*made):
        torch.testing.assert_close(found, eager)


def test_an_operator_that_returns_another_type_than_it_promises():
    """PyTorch's batch norm at bf16 is traced with statistics at f32."""

    def updated(x, w, b, m, v):
        return [r.float() + 1 for r in torch.ops.aten._batch_norm_with_update(x, w, b, m, v, 0.5, 1e-5)[:3]]

    ones = torch.ones(2, dtype=torch.bfloat16)
    x, results = torch.randn(5, 2).bfloat16(), []
    for function in (torch.compile(updated, backend="tilec"), updated):
        results.append(function(x, ones, ones * 0, ones * 0, ones.clone()))
    torch.testing.assert_close(*results, rtol=0.02, atol=0.02)


def test_an_optimiser_step_is_compiled():
    def step(w, g, m):
        m.mul_(0.9).add_(g)
        w.sub_(m, alpha=0.1)

    w, g, m = torch.randn(5), torch.randn(5), torch.randn(5)
    expected = w - 0.1 * (0.9 * m + g)
    torch.compile(step, backend="tilec")(w, g, m)
    torch.testing.assert_close(w, expected)
    assert tilec.torch.report().share == 1


def test_gradients_accumulate():
    model = nn.Linear(4, 2)
    compiled = torch.compile(model, backend="tilec")
    for _ in range(2):
        compiled(torch.ones(3, 4)).sum().backward()
    assert torch.equal(model.weight.grad, torch.full((2, 4), 6.0))


def test_gradients_read_what_inputs_were_before_they_are_changed():
    """The backward graph computes `calls + 1` again, and the forward graph has written that over `calls`."""

    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("mean", torch.zeros(4, 3))

        def forward(self, x):
            y = self.linear(x).relu()
            self.calls += 1
            self.mean.mul_(0.5)
            return y * self.calls + self.mean.t().exp() * y

    assert_agrees(Counted(), torch.randn(3, 4), backward=True, calls=2)


def test_a_model_that_is_saved_and_copied():
    import copy
    import io

    model = nn.Linear(4, 2)
    compiled = torch.compile(model, backend="tilec")
    x = torch.randn(3, 4)
    compiled(x)
    other = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    torch.testing.assert_close(torch.compile(other, backend="tilec")(x), model(x))


@pytest.mark.slow
def test_the_example(monkeypatch, capsys):
    """A few steps of examples/gpt.py."""
    import runpy
    import sys
    from pathlib import Path

    monkeypatch.setattr(sys, "argv", ["gpt.py", "--steps", "3"])
    main = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "gpt.py"))["main"]
    loss = main()
    assert loss < 2.6 and "17+25=" in capsys.readouterr().out


def test_what_the_host_checks_is_not_in_a_cuda_graph():
    """Without a GPU: a partition's checks name the operations that PyTorch is to run instead."""
    from tilec.torch.shared import program
    from tilec.torch.write import named, write

    graphs = []

    def capture(gm, inputs):
        graphs.append(gm.graph)
        return gm.forward

    from torch._dynamo.backends.common import aot_autograd

    table, ids = torch.randn(5, 4), torch.tensor([1, 2])
    torch.compile(lambda t, i: F.embedding(i, t).exp() * 2, backend=aot_autograd(fw_compiler=capture))(table, ids)
    written = write(graphs[0])
    built = program(written.text, None, None).build()
    (executable,) = built._built.values()
    assert [str(n.target) for n in named("\n".join(executable.emitted.sites), written)] == ["aten.embedding.default"]
