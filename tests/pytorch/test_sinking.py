"""Operations are in the partition where the fewest bytes pass between partitions; what they compute stays the same."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import assert_agrees  # noqa: E402

import tilec.torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")


def operations(function, *inputs):
    """How many operations each partition has, once results are those of PyTorch."""
    assert_agrees(function, *inputs)
    (graph,) = tilec.torch.report().graphs
    return [part.operations for part in graph.parts]


def behind(x):
    """Of operations that PyTorch runs."""
    return torch.special.i0e(x)


X, M = torch.randn(4, 5, dtype=torch.bfloat16), torch.randn(5)


def test_wide_values_of_narrow_inputs_are_computed_where_they_are_read():
    """A cast and a difference move behind PyTorch's operation; the exponential that it reads stays."""
    assert operations(lambda x, m: behind(torch.exp(x)) * (x.float() - m), X, M) == [1, 3]


def test_what_passes_fewer_bytes_than_it_reads_stays():
    """A sum has fewer elements than what it adds up, which PyTorch reads, too."""

    def function(x, m):
        e = torch.exp(x)
        return behind(e) * e.sum(-1, keepdim=True)

    assert operations(function, X, M) == [2, 1]


def test_several_results_move_at_once():
    def function(x, m):
        deviation, mean = torch.std_mean(x.float() * m, 0)
        return behind(torch.exp(x)) * (deviation - mean)

    first, second = operations(function, X, M)
    assert first == 1 < second


def test_old_values_are_read_before_a_write():
    def function(x, m):
        d = x - 1
        y = behind(torch.exp(m))
        x.add_(y)
        return d * y

    assert_agrees(function, torch.randn(4, 5), torch.randn(4, 5))


def test_scalars_of_the_cpu_are_computed_before_a_gpu_reads_them():
    """Both partitions have one level, and the GPU's begins the graph. A scalar stays on the CPU where what reads it moves."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    from tilec.torch import aten, sinking
    from tilec.torch.partition import decide

    def function(x, scalar):
        e = x.exp()
        wide = (x.float() - 1) / scalar.sqrt()
        return e, behind(e) * wide + behind(scalar[None].sin()).exp()[0]

    with FakeTensorMode():
        given = torch.empty(64, 32, dtype=torch.bfloat16, device="cuda:0"), torch.empty(())
        graph = make_fx(function)(*given).graph
    decision = decide(graph, {n: n for n in graph.nodes}, aten.refusal)
    sinking.sink(graph, decision, {n: n for n in graph.nodes})
    assert {(p.device.type, p.level) for p in decision.parts} == {("cpu", 2), ("cuda", 2), ("cpu", 4), ("cuda", 4)}
    place = {unit: k for k, unit in enumerate(decision.order)}
    where = lambda n: place.get(decision.owner.get(n, n), -1)  # noqa: E731
    for node, part in decision.owner.items():
        assert part.device == node.meta["val"].device, node
        assert all(where(n) <= place[part] for n in node.all_input_nodes), node
