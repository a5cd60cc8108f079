"""Partitions with symbols: one compilation for a class of sizes, and right results at each of them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import compiled  # noqa: E402

import tilec.torch  # noqa: E402
from tilec.torch import extents, indices, shared  # noqa: E402
from tilec.torch.unsupported import Unsupported  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")
SIZES = ((2, 17), (3, 40), (16, 128), (5, 17))
LINEAR = torch.nn.Linear(8, 6)
WINDOWS = torch.randn(2, 2, 3, 3)


def part() -> tilec.torch.reports.PartReport:
    (graph,) = tilec.torch.report().graphs
    return graph.parts[0]


def rows(x: torch.Tensor) -> torch.Tensor:
    """What a layer does with batches and places: a norm, a product and its view by heads, a mask, a concatenation."""
    batch, length, _ = x.shape
    made = torch.nn.functional.gelu(LINEAR(torch.nn.functional.layer_norm(x, (8,)))).view(batch, length, 2, 3)
    return made * (torch.arange(length) < 20)[:, None, None] + torch.cat([x[:, :, 5:], x[:, :, :3]], 2)[:, :, None, :3]


def read_at_positions(x: torch.Tensor) -> torch.Tensor:
    """Gathers by data and by positions, and what is found among them."""
    batch, length, _ = x.shape
    at = (x[..., 0].abs() * 7).long() % length
    each = torch.arange(batch)[:, None]
    return x[each, at] + x.gather(1, at[..., None].expand(-1, -1, 8)) + x[each, torch.arange(length)] + x.topk(1, 1)[0]


def positions_of_sequences(x: torch.Tensor) -> torch.Tensor:
    """Masks as transformers make them, of positions that begin anew where they do not go on: here nowhere."""
    batch, length, _ = x.shape
    at = torch.arange(length)[None].expand(batch, -1)
    number = (torch.diff(at, prepend=at[:, :1] - 1) != 1).cumsum(-1)
    each, rows, columns = torch.arange(batch)[:, None, None], torch.arange(length)[:, None], torch.arange(length)
    mask = (number[each, rows] == number[each, columns]) & (at[each, columns] <= at[each, rows])
    return (x @ x.transpose(1, 2)).masked_fill(~mask, 0)


def images(x: torch.Tensor) -> torch.Tensor:
    """A convolution reads zeros around what is normalised by groups, whose extents are quotients."""
    seen = torch.nn.functional.max_pool2d(x.sum(0, keepdim=True).unflatten(2, (2, 4)).transpose(1, 2), (2, 1))
    return torch.nn.functional.conv2d(torch.nn.functional.group_norm(seen, 2), WINDOWS, padding=1)


STEPS = {
    "rows": rows, "means": lambda x: x.sum(1) / x.shape[1] + x[:, : x.shape[1] // 2].sum(),
    "cat": lambda x: torch.cat([x, x[:, :2]], 1) * 2,
    "images": images, "positions": read_at_positions, "masks": positions_of_sequences,
    "slices": lambda x: x[:, : x.shape[1] // 2] * x[:, ::2][:, : x.shape[1] // 2].flip(1),
    "variances": lambda x: x.var(1) + x.std((0, 1)) + torch.nn.functional.group_norm(x.transpose(1, 2), 2)[..., -1],
    "windows": lambda x: torch.nn.functional.avg_pool1d(x.transpose(1, 2), 3, 2, 1),
}  # fmt: skip


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
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


def test_sizes_that_answer_otherwise_have_a_program_of_their_own():
    """Of few elements the largest are found by their ranks, of more one after the other."""
    step = lambda x: x.topk(3, 0)[0]  # noqa: E731
    function, compilations = compiled(step, dynamic=True), []
    for n in (10, 12, 4, 5, 14):
        x = torch.randn(n, 6)
        torch.testing.assert_close(function(x), step(x))
        compilations.append(shared.compiled())
    assert [n - compilations[0] for n in compilations] == [0, 0, 1, 1, 1]


def test_what_cannot_vary_is_reported():
    """And compiled for each of its sizes."""
    step = lambda x: x.topk(x.shape[0] // 2, 0)[0]  # noqa: E731
    function = compiled(step, dynamic=True)
    for n in (6, 10):
        x = torch.randn(n, 4)
        torch.testing.assert_close(function(x), step(x))
    assert part().sizes == 2 and "a number is needed" in part().fixed
    assert "which do not vary: aten.topk" in str(tilec.torch.report())


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
        k, half = indices.opaque("k", (0, 999)), size // 2
        assert (str(k % half), str(k // half)) == ("(k % (S // 2))", "k // (S // 2)")
        assert size > 1 and size != 1 and size * size >= size and max(size, 1) is size
        assert not of.conditions
        assert size < 10 and size != 8
        with pytest.raises(Unsupported, match="where a number is needed"):
            range(size)
    assert [of.holds({"S": n}) for n in (2, 7, 8, 9, 10, 101)] == [True, True, False, True, False, False]
