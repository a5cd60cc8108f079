"""Positions that are data, at the ends of a dimension and beyond: taken or refused as eager mode does."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import compiled  # noqa: E402

from tilec.torch import indices as ix  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")
F = torch.nn.functional


def setitem(x, *where):
    x[where] = 1.0
    return x


def rows(i, *shape):
    return i.view(2, *(1 for _ in shape)).expand(2, *shape)


READS = {  # of a tensor of 6, 4 and 5 elements along its dimensions; with the extent that positions are for
    "index": (lambda x, i: x[:, i], 4),
    "index twice": (lambda x, i: x[i, :, i], 5),
    "index_select": (lambda x, i: x.index_select(2, i), 5),
    "gather": (lambda x, i: x[0].gather(0, rows(i, 5)), 4),
    "take": (lambda x, i: x.take(i), 120),
    "embedding": (lambda x, i: F.embedding(i, x[0]), 4),
    "one_hot": (lambda x, i: F.one_hot(i, 4), 4),
    "nll_loss": (lambda x, i: F.nll_loss(x[0, :2], i), 5),
    "of a part": (lambda x, i: x[1:3][i], 2),
    "of each second": (lambda x, i: x[::2, 0][i], 3),
    "of a part in another order": (lambda x, i: x.permute(2, 0, 1)[1:3][i], 2),
    "of a flattened part": (lambda x, i: x[1:3].flatten()[i], 40),
    "of the second part": (lambda x, i: x.chunk(2)[1][i], 3),
    "of what is repeated": (lambda x, i: x[:1, 0].expand(3, 5)[i], 3),
    "of one": (lambda x, i: x[:, :1][:, i], 1),
    "taken of one": (lambda x, i: x[0, 0, 0].take(i), 1),
    "selected of one": (lambda x, i: x[:1].index_select(0, i), 1),
    "of overlapping windows": (lambda x, i: x.as_strided((3, 2), (4, 1), 2)[i], 3),
    "of a part twice": (lambda x, i: x[1:4, 1:3][i, i], 2),
    "of a part in f16": (lambda x, i: x.half()[1:3].float()[i], 2),
    "of a sum of rows": (lambda x, i: x[1:4][i].sum(0), 3),
    "of numbers": (lambda x, i: torch.arange(5)[i], 5),
    "of equal numbers": (lambda x, i: torch.zeros(5)[i] + x[0, 0, 0], 5),
    "of numbers in rows": (lambda x, i: F.embedding(i, torch.arange(12.0).view(4, 3)), 4),
    "gathered in a part": (lambda x, i: x[1:3, 0].gather(0, rows(i, 5)), 2),
    "taken in a part": (lambda x, i: x[1:3].take(i), 40),
    "backwards": (lambda x, i: x[:, 0].flip(0)[i], 6),
}
WRITES = {
    "index_copy": (lambda x, i: x.index_copy(1, i, torch.ones(6, 2, 5)), 4),
    "index_copy of one": (lambda x, i: x.index_copy(0, i[:1], torch.ones(1, 4, 5)), 6),
    "index_copy in place": (lambda x, i: x.index_copy_(1, i[1:], torch.ones(6, 1, 5)), 4),
    "index_copy in a part": (lambda x, i: (x[1:4].index_copy_(0, i[:1], torch.ones(1, 4, 5)), x)[1], 3),
    "index_add": (lambda x, i: x.index_add(0, i, torch.ones(2, 4, 5)), 6),
    "index_reduce": (lambda x, i: x.index_reduce(0, i, torch.ones(2, 4, 5), "amax"), 6),
    "index_fill": (lambda x, i: x.index_fill(1, i, 2.0), 4),
    "index_fill by a tensor, in place": (lambda x, i: x.index_fill_(1, i, torch.tensor(2.0)), 4),
    "index_put": (lambda x, i: x.index_put((i,), torch.ones(())), 6),
    "index_put in place": (lambda x, i: setitem(x, slice(None), i[1:]), 4),
    "index_put in a part": (lambda x, i: (setitem(x[1:4], i), x)[1], 3),
    "put": (lambda x, i: x.put(i, torch.ones(2)), 120),
    "scatter": (lambda x, i: x.scatter(0, rows(i, 4, 5), 1.5), 6),
    "scatter_add": (lambda x, i: x.scatter_add(0, rows(i, 4, 5), torch.ones(2, 4, 5)), 6),
    "scatter_reduce": (lambda x, i: x.scatter_reduce(0, rows(i, 4, 5), torch.ones(2, 4, 5), "prod"), 6),
    "index_add of one": (lambda x, i: x[:1].index_add(0, i, torch.ones(2, 4, 5)), 1),
}


@pytest.mark.parametrize("name", [*READS, *WRITES])
def test_positions_are_refused_where_eager_mode_refuses_them(name):
    call, extent = {**READS, **WRITES}[name]
    function = compiled(lambda x, i: call(x, i))
    for places in ([0, extent - 1], [-1, -1], [-extent, 0], [0, -extent - 1], [extent, 0], [0, extent + 1], [0, 2**33]):
        mine, x, i = torch.linspace(-1, 1, 120).view(6, 4, 5), torch.linspace(-1, 1, 120).view(6, 4, 5), torch.tensor(places)
        try:
            expected = call(mine, i)
        except (IndexError, RuntimeError):
            with pytest.raises((IndexError, RuntimeError)):
                function(x, i)
        else:
            torch.testing.assert_close(function(x, i), expected)
            assert torch.equal(x, mine)


def test_the_ends_of_a_subscript():
    """Where an index of it has a value, which may be outside of its own range."""
    here, other = ix.name("here", 12), ix.name("k", 3)
    for index, value, ends in [
        (here * 3 + other, -1, (-3, -1)), (here // 3, 12, (4, 4)), (here % 3, -1, (2, 2)), (here + 2, 12, (14, 14)),
        ((here * 3 + other) // 6, 12, (6, 6)), (other, -1, (0, 2)), ((here + other) % 3, 0, (0, 2)),
    ]:  # fmt: skip
        found = ix.where(index, here, value)
        assert found.at_least(ends[0]) and found.below(ends[1] + 1), (str(index), value)
        assert not found.at_least(ends[0] + 1) and not found.below(ends[1]), (str(index), value)
