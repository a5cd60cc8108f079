"""Sorts, top-k and writes to computed positions: as programs, against PyTorch's own results, and what is left to PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

import tilec.torch  # noqa: E402
from tests.outside import opinfo  # noqa: E402
from tilec.torch import aten  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")

INF, NAN = float("inf"), float("nan")
SPECIAL = torch.tensor(
    [
        [0.5, -0.0, 0.0, INF, -INF, NAN, 2.0, 2.0],
        [-INF, -INF, -INF, -INF, -INF, -INF, -INF, -INF],
        [NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN],
        [INF, NAN, INF, NAN, INF, NAN, -1.0, INF],
        [3.0, 1.0, 3.0, 1.0, 3.0, 1.0, 3.0, 1.0],
    ]
)


def compiled(call, *tensors) -> list:
    """The results of the program that a function becomes, for these arguments, on the CPU."""
    graph, results, inputs = opinfo.translated(call, list(tensors))
    made = tilec.compile(graph.program(results), target="cpu")(*inputs)
    made = made if isinstance(made, tuple) else (made,)
    return [torch.from_numpy(np.array(m)).reshape(tuple(r.shape)) for m, r in zip(made, results, strict=True)]


def same(call, *tensors) -> None:
    expected = call(*tensors)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for mine, theirs in zip(compiled(call, *tensors), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6, equal_nan=True)


def chosen(call, x, dim: int = -1) -> None:
    """Values are PyTorch's, and those at the indices; of equal ones PyTorch promises no index."""
    values, places = compiled(call, x)
    torch.testing.assert_close(values, call(x)[0], rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(x.gather(dim, places), values, rtol=0, atol=0, equal_nan=True)
    in_order = places.sort(dim)[0].diff(dim=dim)
    assert bool((in_order > 0).all()), "an index is given twice"


def reasons(call, *tensors) -> list[str]:
    module = opinfo.trace(call, list(tensors))
    nodes = [n for n in module.graph.nodes if n.op == "call_function"]
    return [
        r
        for n in nodes
        if not any(isinstance(m.meta["val"], tuple) for m in n.all_input_nodes) and (r := aten.refusal(n))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 8])  # the last by ranks
def test_top_k_of_special_values(count, largest):
    chosen(lambda x: x.topk(count, -1, largest), SPECIAL)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64])
@pytest.mark.parametrize("largest", [True, False])
def test_top_k_of_the_ends_of_types(dtype, largest):
    ends = torch.iinfo(dtype)
    row = [ends.min, ends.max, ends.min, 0, ends.max, ends.min, 1, ends.max, 7, 9, 11, 2]
    x = torch.tensor([row, [ends.min] * 12, [ends.max] * 12], dtype=dtype)
    chosen(lambda x: x.topk(4, -1, largest), x)


@pytest.mark.slow
def test_top_k_along_any_dimension():
    x = torch.randn(3, 40, 5)
    chosen(lambda x: x.topk(3, 1), x, 1)
    same(lambda x: x.topk(1), torch.tensor(3.0))


@pytest.mark.slow
@pytest.mark.parametrize("descending", [False, True])
def test_sort(descending):
    same(lambda x: torch.sort(x, stable=True, dim=-1, descending=descending), SPECIAL)
    same(lambda x: torch.sort(x, stable=True, dim=0, descending=descending), torch.randint(-2, 3, (33, 2)))
    same(lambda x: torch.sort(x, stable=True, dim=-1, descending=descending), torch.rand(3, 4) < 0.5)
    same(lambda x: x.argsort(stable=True, descending=descending), torch.rand(2, 9))


@pytest.mark.slow
def test_elements_of_a_rank():
    for row in (SPECIAL, torch.randn(3, 7)):
        same(lambda x: x.kthvalue(3)[0], row)
        same(lambda x: x.median(-1)[0], row)
        same(lambda x: x.nanmedian(0, keepdim=True)[0], row)
        same(lambda x: x.median(), row)
    same(lambda x: x.nanmedian(), SPECIAL)
    same(lambda x: x.median(0), torch.randperm(7))


@pytest.mark.slow
@pytest.mark.parametrize("right", [False, True])
def test_places_among_sorted_numbers(right):
    ends = torch.tensor([-1.0, 0.0, 0.0, 2.0])
    same(lambda x, e: torch.searchsorted(e, x, right=right), SPECIAL, ends)
    same(lambda x, e: torch.bucketize(x, e, right=right, out_int32=True), SPECIAL, ends)
    same(lambda x, e: torch.searchsorted(e, x, right=right), torch.randint(0, 9, (2, 3)), torch.arange(10).view(2, 5))
    mixed, order = torch.tensor([2.0, -1.0, 0.0]), torch.tensor([1, 2, 0])
    same(lambda x, e, s: torch.searchsorted(e, x, right=right, sorter=s), SPECIAL, mixed, order)


def test_long_rows_are_sorted_by_pytorch():
    assert any("sooner" in r for r in reasons(lambda x: x.sort(), torch.empty(4, 4096)))
    assert any("sooner" in r for r in reasons(lambda x: x.topk(500), torch.empty(4, 4096)))
    assert reasons(lambda x: x.topk(2)[0], torch.empty(4, 4096)) == []
    assert reasons(lambda x: x.topk(8)[0], torch.empty(4096, 128)) == []  # of as many experts
    assert any("sooner" in r for r in reasons(lambda x: x.topk(8), torch.empty(1, 100_000)))


@pytest.mark.slow
def test_histogram():
    x = torch.cat([torch.randn(50), torch.tensor([0.0, 3.0, 3.1, -0.1, NAN, INF, 1.0, 2.0])])
    same(lambda x: torch.histc(x, 4, 0, 3), x)
    same(lambda x: torch.histc(x, 7, -1, 1), x.double())
    same(lambda x: torch.histc(x.float(), 4, 0, 3), torch.randint(0, 4, (6, 5)))


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 9])  # by choices, and by the last write
def test_scatter(count):
    x, places = torch.randn(3, 11, 2), torch.randint(0, 11, (3, count, 2))
    source = torch.randn(3, count, 2)
    same(lambda x, p, s: x.scatter(1, p, s), x, places, source)
    same(lambda x, p, s: x.scatter(1, p, 2.5), x, places, source)
    same(lambda x, p, s: x.scatter(1, p[:2], s), x, places, source)
    same(lambda p: torch.zeros(11, 3, dtype=torch.int8).scatter(0, p, 1), torch.randint(0, 11, (count, 2)))


@pytest.mark.slow
def test_scatter_with_sums():
    x, places, source = torch.randn(4, 6), torch.randint(0, 6, (4, 5)), torch.randn(4, 5)
    same(lambda x, p, s: x.scatter_add(1, p, s), x, places, source)
    same(lambda x, p, s: x.scatter(1, p, s, reduce="multiply"), x, places, source)


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("kind", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_with_reductions(kind, own):
    x, places, source = torch.randn(4, 6), torch.randint(0, 6, (4, 5)), torch.randn(4, 5)
    same(lambda x, p, s: x.scatter_reduce(1, p, s, kind, include_self=own), x, places, source)


@pytest.mark.slow
def test_writes_of_rows():
    x, places, source = torch.randn(5, 3), torch.tensor([4, 0, 4, 2]), torch.randn(4, 3)
    same(lambda x, p, s: x.index_add(0, p, s, alpha=2), x, places, source)
    same(lambda x, p, s: x.index_copy(0, p[1:], s[1:]), x, places, source)
    same(lambda x, p, s: x.index_put((p - 5,), s), x, places[1:], source[1:])
    same(lambda x, p, s: x.index_put((p,), s, accumulate=True), x, places, source)
    same(lambda x, p, s: x.index_put((p, s), torch.ones(4)), x, places, torch.tensor([0, 2, 1, 1]))
    put = torch.ops.aten.index_put
    same(lambda x, p: put(x, [None, p], x.new_ones(()), True), x, torch.tensor([[0], [2]]))
    same(lambda x, p: put(x[:, None], [p, None, p - 3], x[:2, :1]), x, torch.tensor([0, 2]))


@pytest.mark.slow
def test_a_position_outside_is_an_error():
    x, source = torch.randn(5, 3), torch.randn(2, 3)
    for place in (5, -6):
        with pytest.raises(tilec.TileError):
            compiled(lambda x, p, s: x.index_put((p,), s), x, torch.tensor([0, place]), source)
    with pytest.raises(tilec.TileError):
        compiled(lambda x, p, s: x.scatter(0, p[:, None], s), x, torch.tensor([0, -1]), source)


def test_large_writes_are_pytorchs():
    places, source = torch.zeros(4096, dtype=torch.int64), torch.empty(4096, 64)
    assert any(
        "computed positions" in r for r in reasons(lambda p, s: s.new_zeros(512, 64).index_add(0, p, s), places, source)
    )


@pytest.mark.slow
def test_what_a_sort_has_moved_is_put_back_by_ranks():
    def routed(x):
        values, places = x.reshape(-1).sort(stable=True)
        inverse = torch.empty_like(places)
        inverse[places] = torch.arange(len(places))
        return values * 2, inverse, (values * 2)[inverse]

    same(routed, torch.randn(6, 4))
    graph, results, _ = opinfo.translated(routed, [torch.randn(6, 4)])
    assert "max[" not in graph.program(results)


@pytest.mark.slow
def test_sums_at_the_positions_of_a_sort():
    def added(x, y):
        return y.index_put((x.sort()[1],), x, accumulate=True)

    same(added, torch.randn(9), torch.randn(9))


@pytest.mark.slow
def test_a_partition_keeps_its_operations_at_larger_sizes():
    """A row is sorted by ranks also where it is somewhat longer than a graph would be cut for."""
    function = torch.compile(lambda x: x.sort(stable=True)[0] * 2, backend="tilec", dynamic=True)
    for n, kept in ((50, True), (1500, True), (60000, False)):
        x = torch.randn(n)
        torch.testing.assert_close(function(x), x.sort()[0] * 2)
        (graph,) = tilec.torch.report().graphs
        assert graph.eager == [] and (graph.parts[0].reason is None) == kept
