"""Equal operations of a joint graph are done once, as PyTorch's own pass has them, and without Inductor."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch._functorch.compile_utils import fx_graph_cse  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from tilec.torch import recompute  # noqa: E402
from tilec.torch.share import share_equal  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")
aten = torch.ops.aten


def shared(function, *given):
    """How often each operation is done."""
    graph = make_fx(function, tracing_mode="fake")(*given).graph
    share_equal(graph)
    graph.lint()
    names = [n.target._schema.name.removeprefix("aten::") for n in graph.nodes if hasattr(n.target, "_schema")]
    return {name: names.count(name) for name in names}


X = torch.randn(4, 6)


def test_equal_operations():
    """With all that is computed from them."""
    assert shared(lambda x: (x.exp() + x.exp()) * (x.exp() + x.exp()), X) == {"exp": 1, "add": 1, "mul": 1}
    assert shared(lambda x: x.sum([0, 1]) + x.sum([0, 1]) + x.sum([1]).sum(), X)["sum"] == 3
    assert shared(lambda x: aten.max.dim(x, 1)[0] + aten.max.dim(x, 1)[0], X)["max"] == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x + 1) * (x + 1.0) * (x + True),
        lambda x: torch.copysign(x, 0.0) * torch.copysign(x, -0.0) * torch.copysign(x, 1.0),
        lambda x: x.sum(0) + x.sum(0, keepdim=True) + x.sum(0, dtype=torch.float64),
    ],
)
def test_arguments_that_compare_equal(function):
    assert 3 in shared(function, X).values()


def test_results_stay_tensors_of_their_own():
    assert shared(lambda x: (x.exp(), x.exp(), x.neg() + x.neg()), X) == {"exp": 2, "neg": 1, "add": 1}
    assert shared(lambda x: (x.exp().view(-1), x.exp()), X)["exp"] == 2


def test_nothing_is_shared_across_a_write():
    def function(x, y):
        before = x.exp() + x.exp()
        x.copy_(y)
        return before * (x.exp() + x.exp())

    found = shared(function, X, X + 1)
    assert found == {"exp": 2, "add": 2, "copy_": 1, "mul": 1}


def test_random_numbers_are_drawn_as_often_as_they_stand_there():
    assert shared(lambda x: torch.rand_like(x) + torch.rand_like(x) + torch.bernoulli(x) * torch.bernoulli(x), X.abs() / 9) == {
        "rand_like": 2, "bernoulli": 2, "add": 2, "mul": 1,
    }  # fmt: skip


def test_sizes_that_data_decide():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = X
    a, b = (graph.call_function(aten.nonzero.default, (x,)) for _ in range(2))
    graph.output((graph.call_function(aten.cat.default, ([a, b],)),))
    share_equal(graph)
    assert len(a.users) == len(b.users) == 1


def test_as_by_pytorch(monkeypatch):
    """On the joint graph of a block of a transformer."""
    compared = []

    def both(graph):
        theirs = fx_graph_cse(copy.deepcopy(graph))
        before = len(graph.nodes)
        share_equal(graph)
        compared.append(before > len(graph.nodes) and [n.target for n in graph.nodes] == [n.target for n in theirs.nodes])

    monkeypatch.setattr(recompute, "share_equal", both)
    block = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, norm_first=True, batch_first=True)
    torch.compile(lambda x: block(x) + block(x), backend="tilec")(torch.randn(2, 8, 16)).sum().backward()
    assert compared == [True]


STEP = """
import sys, torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
torch.compile(model, backend="tilec")(torch.randn(4, 8)).sum().backward()
print(*(m for m in ("torch._inductor.pattern_matcher", "torch._inductor.debug", "torch._inductor.lowering") if m in sys.modules))
"""


def test_a_training_step_imports_nothing_of_inductors_passes():
    """They take a second."""
    made = subprocess.run([sys.executable, "-W", "ignore", "-c", STEP], capture_output=True, text=True, timeout=300)
    assert (made.returncode, made.stdout.strip()) == (0, ""), made.stderr
