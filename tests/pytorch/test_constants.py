"""What graphs compute from numbers alone is evaluated as it is written."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import assert_agrees  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import tilec.torch  # noqa: E402
from tilec.torch import constants  # noqa: E402
from tilec.torch.aten import costs  # noqa: E402
from tilec.torch.constants import patterns  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")

F = torch.nn.functional


def pattern_of(value):
    """As of an operation of a graph that gives this value."""
    graph = torch.fx.Graph()
    node = graph.call_function(torch.ops.aten.full.default, ((), 0))
    node.meta["val"] = value
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "_evaluated", lambda node, read, shape: value)
        return patterns([node]).get(node)


@pytest.mark.parametrize(
    "value, first, steps",
    [
        (torch.arange(5), 0, (1,)),
        (torch.arange(12).view(3, 4) - 7, -7, (4, 1)),
        (torch.arange(6, 0, -2)[None].expand(4, 3), 6, (0, -2)),
        (torch.full((2, 1, 3), 7, dtype=torch.int32), 7, (0, 0, 0)),
        (torch.tensor(3), 3, ()),
        (torch.ones(2, 2, dtype=torch.bool), True, (0, 0)),
        (torch.full((3,), float("-inf")), float("-inf"), (0,)),
        (torch.arange(2**62, 2**62 + 3), 2**62, (1,)),
        (torch.arange(100, 203).to(torch.uint8), 100, (1,)),
        (torch.full((5,), 200, dtype=torch.uint8), 200, (0,)),
    ],
)
def test_patterns(value, first, steps):
    found = pattern_of(value)
    assert (found.first, found.steps, found.shape, found.dtype) == (first, steps, tuple(value.shape), value.dtype)


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([0, 1, 3]),
        torch.tensor([[0, 1], [1, 3]]),
        torch.tensor([True, False]),
        torch.tensor([0.0, 1.0]),
        torch.tensor([float("nan"), 1.0]),
        torch.tensor([1.0, float("nan")]),
        torch.tensor([0.0, -0.0]),
        torch.arange(9).index_fill(0, torch.tensor([4]), 5),
        torch.tensor([100, 50, 0, -50, -100, 106], dtype=torch.int8),  # after 127 comes -128
        torch.zeros(9, dtype=torch.bool).index_fill(0, torch.tensor([1]), True),
    ],
)
def test_what_has_no_pattern(value):
    assert pattern_of(value) is None


def test_a_tensor_of_nans_is_one_number():
    assert pattern_of(torch.full((2,), float("nan"))).steps == (0,)


def test_few_elements_are_computed_and_once(monkeypatch):
    """For the cut into partitions, whose findings the text of a partition has, too. Here all elements of positions alone."""
    computed = []
    evaluated = constants._evaluated

    def noting(node, read, shape):
        computed.append((node.name, shape))
        return evaluated(node, read, shape)

    monkeypatch.setattr(constants, "_evaluated", noting)

    def near(x):
        i = torch.arange(24)
        return torch.where((i[:, None] - i).abs() < 5, x, 0.0)

    assert_agrees(near, torch.randn(24, 24))
    assert {name for name, shape in computed if 24 in shape} >= {"arange"}
    assert {name for name, shape in computed if shape == (24, 24)} == {"sub"}  # it is a pattern
    assert {name for name, shape in computed if shape == (5, 5)} == {"sub", "abs_1", "lt"}
    assert len(computed) == len(set(computed))


def masked(q, k, v, w):
    """Attention with the mask that transformers compute of positions, which may start anew within a sequence."""
    positions = torch.arange(q.shape[-2]).expand(2, q.shape[-2])
    sequence = (torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    batch, at = torch.arange(2)[:, None], torch.arange(q.shape[-2])[None]
    same = sequence[batch, at][:, :, None] == sequence[batch, at][:, None, :]
    mask = same & (at[:, None, :] <= at[:, :, None])
    x = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])
    return w[positions][:, None] + x, mask


def test_a_mask_of_positions_is_a_condition_on_indices(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEC_TORCH_DUMP", str(tmp_path))
    assert_agrees(masked, *(torch.randn(2, 3, 7, 4) for _ in range(3)), torch.randn(7, 4))
    text = "".join(p.read_text() for p in tmp_path.rglob("*.tile"))
    assert "<= i" in text and "cumsum" not in text and "if i0 < 0" not in text


def test_partitions_compute_masks_for_themselves(tmp_path, monkeypatch):
    """No partition stores what follows from numbers: the second one has the condition, too."""

    def function(x):
        mask = torch.arange(4)[None, :] <= torch.arange(4)[:, None]
        y = torch.where(mask, x * 2, 0.0)
        return torch.where(mask, torch.linalg.qr(y)[1], 1.0)

    monkeypatch.setenv("TILEC_TORCH_DUMP", str(tmp_path))
    assert_agrees(function, torch.randn(4, 4))
    texts = [p.read_text() for p in sorted(tmp_path.rglob("*.tile"))]
    assert len(texts) == 2 and all("<=" in t for t in texts)
    assert "bool" not in texts[1].partition("{")[0]


def test_positions_that_count_from_the_end():
    assert_agrees(lambda x: (x[torch.arange(-3, 0)], x[torch.arange(4) - 2], x[torch.arange(3)] * 2), torch.randn(5, 2))


def test_scaled_factors_of_products_are_rounded_to_16_bits(tmp_path, monkeypatch):
    """A product multiplies by the number afterwards: what it reads has 16 bits in memory."""

    def function(x, w):
        q = x @ w
        return (q.view(2, 5, 2, 4).transpose(1, 2) * 0.5) @ x[:, :, :4].view(2, 1, 5, 4).transpose(-1, -2)

    monkeypatch.setenv("TILEC_TORCH_DUMP", str(tmp_path))
    x, w = torch.randn(2, 5, 8, dtype=torch.bfloat16), torch.randn(8, 8, dtype=torch.bfloat16)
    torch.compile(function, backend="tilec")(x, w)
    (text,) = (p.read_text() for p in tmp_path.rglob("*.tile"))
    assert "mm[i0, i1, i2]: bf16 = " in text and "0.5 * sum" in text
    assert tilec.torch.report().share == 1


def test_scaled_factors_that_are_saved_for_the_gradient_have_16_bits_too(tmp_path, monkeypatch):
    def function(x, w):
        q = (x @ w).view(2, 5, 2, 4).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q * 2, q)

    monkeypatch.setenv("TILEC_TORCH_DUMP", str(tmp_path))
    x, w = torch.randn(2, 5, 8, dtype=torch.bfloat16), torch.randn(8, 8, dtype=torch.bfloat16, requires_grad=True)
    torch.compile(function, backend="tilec")(x, w)
    text = "".join(p.read_text() for p in tmp_path.glob("*forward/*.tile"))
    assert "mm[i0, i1, i2]: bf16 = " in text


@pytest.mark.parametrize("window, condition", [(9, False), (3, True)])
def test_large_masks_follow_from_ranges(window, condition, tmp_path, monkeypatch):
    """What is too large to be evaluated is numbers where its operands are, and a comparison that has one answer is that."""
    from tilec.torch import constants

    monkeypatch.setattr(constants, "MOST", 40)
    monkeypatch.setenv("TILEC_TORCH_DUMP", str(tmp_path))

    def function(x):
        q, k = torch.arange(8)[:, None], torch.arange(8)[None, :]
        near = (k > q - window) & torch.ones(8, 8, dtype=torch.bool).clone()
        return x.masked_fill(~(near & (q >= 0)).expand(2, 8, 8), 7.0), (k <= q - 8).logical_not().sum() + x.sum()

    assert_agrees(function, torch.randn(2, 8, 8))
    text = "".join(p.read_text() for p in tmp_path.rglob("*.tile"))
    assert ("> (i" in text or "> i" in text) == condition


@pytest.mark.slow
def test_sums_at_positions_that_are_sums_of_indices(monkeypatch):
    """An element knows which writes it gets, and looks at no others."""
    monkeypatch.setattr(costs, "scatter_pays", lambda *given: False)
    up = torch.arange

    def function(v, three):
        put = lambda values, shape, *at: values.new_zeros(shape).index_put(at, values, True)  # noqa: E731
        return (
            put(v, (4, 6), up(4)[:, None], up(6)),
            put(v, (7, 9), up(4)[:, None] + 2, up(6)),
            put(v, (4, 6), 3 - up(4)[:, None], up(6)),
            put(v, (9,), up(4)[:, None] - up(6) + 5),
            put(v, (9,), up(4)[:, None] + up(6)),
            put(v, (5, 6), up(4)),
            put(v[:, 0], (4, 5), up(4), torch.full((1,), 2)),
            put(v, (5, 6), torch.full((4,), 1)),
            put(v, (4, 13), up(4)[:, None], 2 * up(6) + 1),
            put(v, (20,), 3 * up(4)[:, None] + 2 * up(6)),
            put(three, (2, 9), up(2)[:, None, None], up(4)[:, None] - up(6) + 5),
        )

    with torch.no_grad():
        assert_agrees(function, torch.randn(4, 6), torch.randn(2, 4, 6))
    assert tilec.torch.report().share == 1, str(tilec.torch.report())


def test_positions_of_many_elements_are_followed():
    """Differences of positions are a sum of indices, however many there are."""
    graph = make_fx(lambda: torch.arange(2048)[:, None] - torch.arange(1024) + 1023, tracing_mode="fake")().graph
    found = {n.target._schema.name: p for n, p in patterns(graph.nodes).items()}
    assert found["aten::add"].steps == (1, -1) and found["aten::add"].ends == (0, 3070)
