"""Products by groups of rows, and layers of experts that are one partition, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

from tools.lowering import planned  # noqa: E402

import tilec  # noqa: E402
from tests.outside import opinfo  # noqa: E402
from tilec.torch.aten import costs, groups  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")

ENDS = [[3, 20, 41, 50], [0, 0, 50, 50], [50, 50, 50, 50], [16, 32, 48, 50], [0, 0, 0, 0], [1, 2, 3, 40]]


def by_groups(x, w, offs):
    return torch._grouped_mm(x, w.transpose(1, 2), offs=offs)


@pytest.mark.slow
@pytest.mark.parametrize("ends", ENDS)
def test_products_by_groups(ends):
    x, w = torch.randn(50, 24).bfloat16(), torch.randn(4, 16, 24).bfloat16()
    offs = torch.tensor(ends, dtype=torch.int32)
    graph, results, inputs = opinfo.translated(by_groups, [x, w, offs])
    made = tilec.compile(graph.program(results), target="cpu")(*inputs).astype(np.float64)
    expected = np.zeros((50, 16))
    for e, (begin, end) in enumerate(zip([0, *ends], ends)):
        expected[begin:end] = x[begin:end].double().numpy() @ w[e].double().numpy().T
    np.testing.assert_allclose(made, expected, rtol=2**-8, atol=2**-8)


@pytest.mark.slow
def test_matrices_of_groups():
    """The gradient of the matrices: each is a product of the rows of its group."""
    x, y, offs = torch.randn(16, 24).bfloat16(), torch.randn(16, 8).bfloat16(), torch.tensor([4, 4, 15]).int()
    graph, results, inputs = opinfo.translated(lambda x, y, o: torch._grouped_mm(x.t(), y, offs=o), [x, y, offs])
    made = tilec.compile(graph.program(results), target="cpu")(*inputs).astype(np.float64)
    expected = [x[b:e].double().T @ y[b:e].double() for b, e in ((0, 4), (4, 4), (4, 15))]
    np.testing.assert_allclose(made, torch.stack(expected).numpy(), rtol=2**-7, atol=2**-7)


def routed(x, router, up, down, count: int = 2):
    """A layer of experts, as transformers writes it: rows are sorted by expert, and each expert multiplies its rows."""
    weights, experts = (x @ router).softmax(-1).topk(count)
    weights = weights / weights.sum(-1, keepdim=True)
    order, places = experts.reshape(-1).sort()
    counts = torch.histc(order.float(), up.shape[0], 0, up.shape[0] - 1)
    offs = counts.cumsum(0, dtype=torch.int32)
    rows = x[places // count]
    hidden = torch.nn.functional.silu(torch._grouped_mm(rows, up, offs=offs))
    made = torch._grouped_mm(hidden, down, offs=offs) * weights.reshape(-1)[places, None]
    inverse = torch.empty_like(places)
    inverse[places] = torch.arange(len(places))
    return made[inverse].view(*experts.shape, -1).sum(1)


def layer():
    x, router = torch.randn(16, 24), torch.randn(24, 4)
    up, down = torch.randn(4, 24, 32) / 5, torch.randn(4, 32, 24) / 6
    return [t.bfloat16() for t in (x, router, up, down)]


@pytest.mark.slow
def test_a_layer_of_experts_is_one_partition():
    compiled = torch.compile(routed, backend="tilec")
    given = layer()
    with torch.no_grad():
        made = compiled(*given)
    assert [len(graph.parts) for graph in tilec.torch.report().graphs] == [1]
    assert tilec.torch.report().share == 1
    expected, eager = routed_at_f64(*given), routed(*given)
    assert float((made.double() - expected).norm()) <= 1.5 * float((eager.double() - expected).norm()) + 1e-2


def routed_at_f64(x, router, up, down, count: int = 2):
    """Each expert of each row, with the experts that bf16 chooses."""
    weights, experts = (x @ router).softmax(-1).topk(count)
    weights = (weights / weights.sum(-1, keepdim=True)).double()
    x, up, down = x.double(), up.double(), down.double()
    hidden = torch.nn.functional.silu(torch.einsum("tk,tckn->tcn", x, up[experts]))
    return (torch.einsum("tcn,tcnk->tck", hidden, down[experts]) * weights[:, :, None]).sum(1)


@pytest.mark.slow
def test_tiles_of_groups_are_those_of_matrix_units(monkeypatch):
    """On an H200: the rows that an expert multiplies are gathered by the product itself, from the tokens; and what sorts tokens,
    counts them and puts them back is as many small kernels as there are orders to wait for."""
    for name in ("sort_pays", "scatter_pays"):
        monkeypatch.setattr(costs, name, lambda *_: True)
    monkeypatch.setattr(groups, "_rows_pay", lambda *_: True)
    given = [torch.empty(s, dtype=torch.bfloat16) for s in ((2048, 1024), (1024, 8), (8, 1024, 2048), (8, 2048, 1024))]
    graph, results, _ = opinfo.translated(lambda x, r, up, down: routed(x, r, up, down), given)
    families = [k.options.name for k in planned(graph.program(results)).kernels]
    assert families.count("warpgroup_contraction") == 2 and len(families) <= 16, families


@pytest.mark.slow
def test_a_layer_of_experts_by_gpu_kernels(monkeypatch):
    """The kernels of an H200, interpreted, give what those of the CPU give."""
    monkeypatch.setattr(groups, "_rows_pay", lambda *_: True)
    graph, results, inputs = opinfo.translated(lambda x, r, up, down: routed(x, r, up, down), layer())
    op = tilec.compile(graph.program(results), target="h200")
    made, expected = op.interpret("map", *inputs), tilec.compile(graph.program(results), target="cpu")(*inputs)
    np.testing.assert_allclose(made.astype(np.float32), expected.astype(np.float32), rtol=2**-6, atol=2**-6)
