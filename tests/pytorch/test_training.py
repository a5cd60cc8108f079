"""Training by compiled models and compiled optimizers is the training that PyTorch does."""

from __future__ import annotations

import copy
import threading

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import assert_agrees, compare, compiled, mlp, wide  # noqa: E402

import tilec.torch  # noqa: E402
from tilec.process import compile_server  # noqa: E402
from tilec.torch import backend, shared  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")

nn, F = torch.nn, torch.nn.functional


def assert_steps(model: nn.Module, *inputs, calls: int = 2, autocast: bool = False, prepare=lambda model: None) -> None:
    """Results and gradients of compiled calls are those of eager ones that draw the same random numbers."""
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    for m in (model, eager, exact):
        prepare(m)
    function = compiled(model, options={"fallback_random": True})
    for call in range(calls):
        results = []
        for f, given in ((function, inputs), (eager, inputs), (exact, wide(inputs))):
            torch.manual_seed(call)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast and f is not exact):
                result = f(*given)
            result.backward(torch.randn(result.shape, generator=torch.Generator().manual_seed(9)).to(result.dtype))
            results.append(result)
        compare("result", *results)
        compare("gradient", *([p.grad for p in m.parameters()] for m in (model, eager, exact)))
        compare("buffer", *(list(m.buffers()) for m in (model, eager, exact)))


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.second(F.dropout(F.relu(F.dropout(self.first(x), 0.5)), 0.2))


class Checkpointed(nn.Module):
    """Its forward pass is done again in the backward pass, with the same random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = mlp(), nn.Linear(4, 3)

    def forward(self, x):
        from torch.utils.checkpoint import checkpoint

        return self.last(checkpoint(lambda v: F.dropout(torch.exp(self.inner(v) / 8), 0.3), x, use_reentrant=False))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, i):
        return self.head(torch.tanh(self.embed(i)))


# ---- models ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_dropout_draws_what_eager_draws():
    assert_steps(Dropped(), torch.randn(6, 8))
    assert {e.operation for g in tilec.torch.report().graphs for e in g.eager} == {"native_dropout"}


@pytest.mark.slow
def test_checkpoints_draw_again_what_they_drew():
    assert_steps(Checkpointed(), torch.randn(5, 8))


@pytest.mark.slow
def test_autocast():
    """Left and entered again, with weights that stay f32."""
    model = mlp()
    assert_steps(model, torch.randn(6, 8), autocast=True)
    assert_agrees(copy.deepcopy(model), torch.randn(6, 8))


@pytest.mark.slow
def test_statistics_of_batches_are_kept_in_place():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4))
    before = [b.data_ptr() for b in model.buffers()]
    assert_steps(model, torch.randn(2, 3, 6, 6), calls=3)
    assert [b.data_ptr() for b in model.buffers()] == before and tilec.torch.report().share == 1


@pytest.mark.slow
def test_tied_weights():
    assert_agrees(Tied(), torch.tensor([[1, 2, 3]]), backward=True)


@pytest.mark.slow
def test_hooks():
    def hooked(model):
        model[0].register_forward_hook(lambda module, inputs, output: output * 2)
        model[2].register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
        model[0].weight.register_hook(lambda gradient: gradient * 3)

    model = mlp()
    assert_steps(model, torch.randn(3, 8), prepare=hooked)
    seen = []
    y = compiled(model)(torch.randn(3, 8))
    y.register_hook(seen.append)
    y.sum().backward()
    assert len(seen) == 1


@pytest.mark.parametrize("first, second", [(False, False), (True, False), (False, True), (True, True)])
def test_inputs_that_require_gradients(first, second):
    x, y = torch.randn(3, requires_grad=first), torch.randn(3, requires_grad=second)
    made = compiled(lambda x, y: (x * y).sum())(x, y)
    assert made.requires_grad == (first or second)
    if made.requires_grad:
        made.backward()
    assert (x.grad is None) == (not first) and (y.grad is None) == (not second)
    assert not first or x.grad.equal(y.detach())


def test_gradients_are_switched_off_inside():
    def function(x, w):
        with torch.no_grad():
            scale = torch.exp(x @ w)
        y = (x @ w) * scale
        torch.set_grad_enabled(False)
        z = y * 2
        torch.set_grad_enabled(True)
        return y, z

    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    (y, z), (eager, other) = compiled(function)(x, w), function(x, w)
    assert y.requires_grad and not z.requires_grad
    torch.testing.assert_close((y, z), (eager, other))
    torch.testing.assert_close(torch.autograd.grad(y.sum(), (x, w)), torch.autograd.grad(eager.sum(), (x, w)))


def test_gradients_of_gradients_are_an_error():
    x = torch.randn(3, requires_grad=True)
    (g,) = torch.autograd.grad(compiled(lambda x: (x.sin() ** 2).sum())(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        g.sum().backward()


def test_a_changed_view_passes_gradients_on():
    def function(x):
        x.mul_(2)
        return x[0]

    found = []
    for f in (function, compiled(function)):
        x = torch.arange(12.0).view(3, 4).requires_grad_()
        f(x * 1).sum().backward()
        found.append(x.grad)
    assert torch.equal(*found)


# ---- optimizers ------------------------------------------------------------------------------------------------------

OPTIMIZERS = {
    "Adam": lambda p: torch.optim.Adam(p, 1e-2),
    "Adam foreach": lambda p: torch.optim.Adam(p, 1e-2, foreach=True),
    "Adam of a tensor": lambda p: torch.optim.Adam(p, torch.tensor(1e-2)),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, 1e-2, weight_decay=0.1, amsgrad=True, foreach=True),
    "SGD": lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, nesterov=True),
    "SGD foreach": lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, foreach=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 1e-2),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 1e-2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    """The whole step is one program's; parameters stay where they are."""
    model = nn.Linear(6, 4)
    eager = copy.deepcopy(model)
    optimizers = [OPTIMIZERS[name](m.parameters()) for m in (model, eager)]
    step, before = compiled(optimizers[0].step), [p.data_ptr() for p in model.parameters()]
    for n in range(4):
        for parameter, other in zip(model.parameters(), eager.parameters()):
            parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(n))
            other.grad = parameter.grad.clone()
        step()
        optimizers[1].step()
        torch.testing.assert_close(list(model.parameters()), list(eager.parameters()))
    assert [p.data_ptr() for p in model.parameters()] == before
    assert all(g.taken == g.operations and len(g.parts) == 1 for g in tilec.torch.report().graphs)


@pytest.mark.slow
def test_a_schedule_of_learning_rates():
    """A rate that is a tensor changes without another compilation."""
    found = []
    for compile_step in (False, True):
        parameter = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([parameter], torch.tensor(0.5))
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        step = compiled(optimizer.step) if compile_step else optimizer.step
        for _ in range(4):
            parameter.grad = parameter.detach() * 2
            step()
            schedule.step()
        found.append(parameter.detach())
    assert torch.equal(*found) and len(tilec.torch.report().graphs) == 1


@pytest.mark.parametrize("op", ["_foreach_pow.List", "_foreach_norm.Scalar", "_foreach_lerp.ScalarList", "_foreach_addcdiv.Scalar",
                                "_foreach_add.List", "_foreach_clamp_max.ScalarList", "_foreach_minimum.Scalar"])  # fmt: skip
def test_operations_on_lists(op):
    from tilec.torch.aten.foreach import decompositions

    (op,) = (o for o in decompositions() if str(o) == f"aten.{op}")
    given = []
    for argument in op._schema.arguments:
        kind = str(argument.type)
        given.append(
            [torch.rand(2, 3), torch.rand(4)] if kind == "List[Tensor]" else [0.5, 0.25] if "List" in kind else 2
        )
    positional = [v for v, a in zip(given, op._schema.arguments) if not a.kwarg_only and str(a.type) != "Optional[int]"]
    found = decompositions()[op](*positional)
    torch.testing.assert_close(found, op(*positional))


@pytest.mark.slow
def test_every_operation_on_lists_that_adam_may_use_is_taken():
    def step(p, g, m):
        torch._foreach_lerp_(m, g, 0.1)
        scaled = torch._foreach_div(m, torch._foreach_add(torch._foreach_sqrt(torch._foreach_mul(g, g)), 1e-3))
        torch._foreach_addcmul_(p, scaled, torch._foreach_sign(g), -0.5)
        return torch._foreach_norm(p)

    values = [[torch.randn(3), torch.randn(2, 4)] for _ in range(3)]
    assert_agrees(step, *values)
    assert tilec.torch.report().share == 1


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradients_of_soft_margins_keep_their_digits(reduction):
    """Where a loss is small, so is its gradient: no difference of numbers near 1."""
    x, target = torch.linspace(-30, 30, 13), torch.tensor([1.0, -1.0]).repeat(7)[:13]
    grads = []
    for function, value in (
        (compiled(lambda x, t: F.soft_margin_loss(x, t, reduction=reduction)), x.clone()),
        (lambda x, t: F.soft_margin_loss(x, t, reduction=reduction), x.double()),
    ):
        value.requires_grad_()
        function(value, target.to(value.dtype)).sum().backward()
        grads.append(value.grad)
    torch.testing.assert_close(grads[0].double(), grads[1], rtol=1e-5, atol=0)


@pytest.mark.parametrize(("rows", "padding", "eager"), [(5, None, []), (5, 2, []), (20_000, 2, ["embedding_dense_backward"])])
def test_gradients_of_embeddings(rows, padding, eager):
    """Large ones are one operation of PyTorch's, with no copy of zeros before it."""
    ids, table = torch.randint(0, 5, (70, 40)), torch.randn(rows, 3)

    def step(table):
        return F.embedding(ids, table, padding) * 1.5

    given, expected = (table.clone().requires_grad_() for _ in range(2))
    compiled(step)(given).sum().backward()
    step(expected).sum().backward()
    torch.testing.assert_close(given.grad, expected.grad)
    assert [e.operation for graph in tilec.torch.report().graphs for e in graph.eager] == eager


def test_narrow_gradients_of_embeddings_are_added_up_in_f32():
    ids, table = torch.zeros(2000, dtype=torch.long), torch.zeros(3, 4, dtype=torch.bfloat16, requires_grad=True)
    compiled(lambda table: F.embedding(ids, table))(table).sum().backward()
    assert table.grad[0].eq(2000).all() and table.grad[1:].eq(0).all()


@pytest.mark.skipif(not compile_server._POSSIBLE, reason="processes of their own are for Linux")
def test_backward_is_compiled_while_forward_is(monkeypatch):
    """Where processors are spare: the first gradient finds its programs."""
    shared.forget()  # programs of tests before
    made, make = [], shared.compile_program

    def noted(text, **how):
        made.append(text)
        return make(text, **how)

    monkeypatch.setattr(shared, "compile_program", noted)
    monkeypatch.setattr(backend, "SPARE", 1)
    model, x = mlp(), torch.randn(3, 8)
    result = compiled(model)(x).sum()
    for thread in [t for t in threading.enumerate() if t.name == "tilec-ahead"]:
        thread.join(60)
    before = list(made)
    result.backward()
    assert len(before) > 1 and made == before, "the texts that backward asks for are those made before"
    want = copy.deepcopy(model)
    want(x).sum().backward()
    for mine, other in zip(model.parameters(), want.parameters()):
        torch.testing.assert_close(mine.grad, other.grad)


def test_backward_is_written_before_forward_is_compiled(monkeypatch):
    """Its programs take longer, and both threads would share Python's lock."""
    events, ahead, compile_aten = [], backend.Partition.ahead, backend.compile_aten

    def noted(graphs, *given):
        if len(graphs) == 1:  # of the backward graph: a graph of one partition asks for nothing ahead
            events.append("written")
        return ahead(graphs, *given)

    def compiling(graph, given, kind, options):
        events.append(kind)
        return compile_aten(graph, given, kind, options)

    monkeypatch.setattr(backend, "SPARE", 1)
    monkeypatch.setattr(backend.Partition, "ahead", staticmethod(noted))
    monkeypatch.setattr(backend, "compile_aten", compiling)
    compiled(mlp())(torch.randn(3, 8)).sum().backward()
    assert events == ["written", "forward", "backward"]


@pytest.mark.slow
@pytest.mark.skipif(not compile_server._POSSIBLE, reason="processes of their own are for Linux")
def test_what_another_thread_gives_up_ahead_is_compiled_after_all(monkeypatch):
    """Its interruption ends the processes that compile, and with them what is compiled before it is asked for."""
    struck, make = [], tilec.torch.call._program

    def give_up(*given):
        struck.append(given) or (len(struck) > 1 or compile_server.give_up())
        return make(*given)

    monkeypatch.setattr("tilec.torch.call._program", give_up)
    monkeypatch.setattr("tilec.torch.call.AT_ONCE", 1)
    function = lambda x: torch.fft.fft(torch.fft.fft(x * 3).real + 1).real.exp()  # noqa: E731
    x = torch.rand(8) / 99
    torch.testing.assert_close(compiled(function)(x), function(x))
    assert len(struck) == 4, "one ahead of its time, whose successors are dropped, and three when they are asked for"
