"""Partitions with symbols: one compilation for a class of sizes, and right results at each of them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import compiled  # noqa: E402

import tilec.torch  # noqa: E402
from tilec.torch import extents, shared  # noqa: E402
from tilec.torch.unsupported import Unsupported  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")
SIZES = ((2, 17), (3, 40), (16, 128), (5, 17))
LINEAR = torch.nn.Linear(8, 6)


def part() -> tilec.torch.reports.PartReport:
    (graph,) = tilec.torch.report().graphs
    return graph.parts[0]


def rows(x: torch.Tensor) -> torch.Tensor:
    """What a layer does with batches and places: a norm, a product and its view by heads, a mask, a concatenation."""
    batch, length, _ = x.shape
    made = torch.nn.functional.gelu(LINEAR(torch.nn.functional.layer_norm(x, (8,)))).view(batch, length, 2, 3)
    return made * (torch.arange(length) < 20)[:, None, None] + torch.cat([x[:, :, 5:], x[:, :, :3]], 2)[:, :, None, :3]


@pytest.mark.parametrize("step", [rows, lambda x: x.sum(1) / x.shape[1], lambda x: torch.cat([x, x[:, :2]], 1) * 2])
def test_a_class_is_compiled_once(step):
    function, compilations = compiled(step, options={"strict": True}), set()
    for batch, length in SIZES:
        x = torch.randn(batch, length, 8)
        for d in (0, 1):
            torch._dynamo.mark_dynamic(x, d)
        with torch.no_grad():
            torch.testing.assert_close(function(x), step(x), rtol=1e-5, atol=1e-5)
        compilations.add(shared.compiled())
    assert len(compilations) == 1 and part().sizes == 1 and not part().fixed


def test_what_cannot_vary_is_reported():
    """And compiled for each of its sizes."""
    function = compiled(lambda x: x.var(0), dynamic=True)
    for n in (3, 5):
        x = torch.randn(n, 4)
        torch.testing.assert_close(function(x), x.var(0))
    assert part().sizes == 2 and "a number is needed" in part().fixed
    assert "which do not vary: aten.var" in str(tilec.torch.report())


def test_other_strides_and_sizes_beyond_the_range():
    function = compiled(lambda x, y: (x * 2 + y, x.sum()), dynamic=True)
    for x in (torch.randn(3, 5), torch.randn(4, 6), torch.randn(6, 4).t(), torch.randn(1, 7), torch.randn(8, 14)[::2, ::2]):
        y = torch.randn(x.shape)
        for made, right in zip(function(x, y), (x * 2 + y, x.sum())):
            torch.testing.assert_close(made, right)
            assert made.stride() == right.stride()


def test_comparisons_are_proved_or_become_conditions():
    varies = {"S": tilec.core.varying.Varying(2, 100)}
    of = extents.Scope(varies, {"S": 7}, {})
    size = extents.Extent(varies["S"].term("S"))
    with extents.scope(of):
        assert size > 1 and size != 1 and size * size >= size and max(size, 1) is size
        assert not of.conditions
        assert size < 10 and size != 8
        with pytest.raises(Unsupported, match="where a number is needed"):
            range(size)
    assert [of.holds({"S": n}) for n in (2, 7, 8, 9, 10, 101)] == [True, True, False, True, False, False]
