"""Models on two processes, by gloo on the CPU; `python -m tests.pytorch distributed --device cuda` runs the same on two GPUs."""

from __future__ import annotations

import copy
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from tests.pytorch import distributed  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without torch.distributed")


@pytest.mark.slow
def test_set_ups_of_two_processes():
    """One run tries all. It is one test: pytest-xdist would give each of its processes some of the cases, and a run of all."""
    outcomes = {line["case"]: line["failed"] for line in distributed.run("cpu", 2, list(distributed.CASES), [])}
    assert outcomes == dict.fromkeys(distributed.CASES, "")


# ---- graphs cut at buckets, by one process ---------------------------------------------------------------------------


near = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)


def cut(model, **options):
    """The model, whose graphs Dynamo cuts as for DistributedDataParallel, and the optimizer that does, which has the buckets."""
    from torch._dynamo.backends.distributed import DDPOptimizer

    from tilec.torch.backend import backend

    optimizer = DDPOptimizer(600, lambda gm, inputs: backend(gm, inputs, options=options), first_bucket_cap=600)
    return torch.compile(model, backend=optimizer.compile_fn), optimizer


class Views(torch.nn.Module):
    """Two results, of which one is a view; a buffer that changes; a part that needs no gradient."""

    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(4))
        self.register_buffer("seen", torch.zeros(16))

    def forward(self, x):
        for part in self.parts:
            x = torch.relu(part(x))
            self.seen += x.detach().mean(0)
        return x.view(-1, 4, 4).transpose(1, 2), (x > 0).sum(1)


def layers(*between):
    parts = [m for _ in range(4) for m in (torch.nn.Linear(16, 16), *between)]
    return torch.nn.Sequential(*parts)


FORMS = {
    "perceptron": lambda: layers(torch.nn.Tanh()),
    "batch norm": lambda: layers(torch.nn.BatchNorm1d(16), torch.nn.ReLU()),
    "views, a buffer, integers": Views,
    "a parameter used twice": lambda: torch.nn.Sequential(*[torch.nn.Linear(16, 16), torch.nn.ReLU()] * 3, torch.nn.Linear(16, 16)),
    "convolutions": lambda: torch.nn.Sequential(
        torch.nn.Unflatten(1, (1, 4, 4)), *(torch.nn.Conv2d(n, 8, 3, padding=1) for n in (1, 8, 8)), torch.nn.Flatten()
    ),
    "attention": lambda: torch.nn.Sequential(
        torch.nn.Unflatten(1, (4, 4)), *(torch.nn.TransformerEncoderLayer(4, 2, 64, 0.0, batch_first=True) for _ in range(2))
    ),
}


@pytest.mark.usefixtures("fresh_torch")
@pytest.mark.parametrize(
    "name, options",
    [*((name, {}) for name in FORMS), ("perceptron", {"background": True}), ("perceptron", {"mode": "reduce-overhead"})],
)
def test_graphs_cut_at_buckets(name, options):
    """Each part's first call gives fake tensors, by which PyTorch finds what the next part is given; later ones do not."""
    torch.manual_seed(0)
    eager = FORMS[name]()
    model = copy.deepcopy(eager)
    call, optimizer = cut(model, **options)
    for _ in range(2):
        x = torch.randn(8, 16)
        given = [x.clone().requires_grad_(), x.clone().requires_grad_()]
        results = [f(x) for f, x in zip((call, eager), given)]
        for made in results:
            sum(r.float().square().sum() for r in torch.utils._pytree.tree_leaves(made) if r.requires_grad).backward()
        near(*results)
        near(*(x.grad for x in given))
        near(*({n: p.grad for n, p in m.named_parameters()} for m in (model, eager)))
        near(*(dict(m.named_buffers()) for m in (model, eager)))
    with torch.no_grad():
        near(call(given[0]), eager(given[0]))
    assert len(optimizer.buckets) > 1


@pytest.mark.usefixtures("fresh_torch")
def test_graphs_cut_at_buckets_of_other_sizes():
    torch.manual_seed(0)
    eager = layers(torch.nn.GELU())
    call, optimizer = cut(model := copy.deepcopy(eager))
    for rows in (8, 12, 20):
        x = torch.randn(rows, 16)
        for f in (call, eager):
            f(x).square().sum().backward()
        near(*({n: p.grad for n, p in m.named_parameters()} for m in (model, eager)))
    assert len(optimizer.buckets) > 1


@pytest.mark.usefixtures("fresh_torch")
def test_graphs_cut_at_buckets_draw_masks():
    """Of dropout, the same forward and backward."""
    torch.manual_seed(0)
    call, optimizer = cut(layers(torch.nn.Dropout(0.5)))
    for _ in range(2):
        made = call(torch.randn(64, 16))
        made.sum().backward()
        assert 0.3 < (made == 0).float().mean() < 0.7
    assert len(optimizer.buckets) > 1
