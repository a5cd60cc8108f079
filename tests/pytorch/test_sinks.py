"""Attention with sinks as models write it: the scores and a column are one tensor, whose softmax is read without the column."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import plans_by  # noqa: E402

from tests.pytorch.judge import judge  # noqa: E402
from tests.pytorch.zoo import Model  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")


class Sinks(torch.nn.Module):
    """Of grouped heads, with a causal mask that is added, as gpt-oss has it; `first`: the column is before the scores."""

    def __init__(self, first: bool = False):
        super().__init__()
        self.first, self.sinks = first, torch.nn.Parameter(torch.randn(4))
        self.queries, self.keys, self.values = (torch.nn.Linear(32, 16 * heads) for heads in (4, 2, 2))

    def forward(self, x):
        q, k, v = (of(x).unflatten(-1, (-1, 16)).transpose(1, 2) for of in (self.queries, self.keys, self.values))
        k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
        mask = torch.full((24, 24), torch.finfo(torch.float32).min, dtype=q.dtype).triu(1)
        scores = q @ k.transpose(2, 3) * 0.25 + mask
        column = self.sinks.reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[2], -1)
        both = torch.cat([column, scores] if self.first else [scores, column], dim=-1)
        weights = torch.softmax(both - both.max(dim=-1, keepdim=True).values, dim=-1)
        return {"out": (weights[..., 1:] if self.first else weights[..., :-1]) @ v}


@pytest.mark.parametrize("first", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_attention_with_sinks_is_right_in_pieces(first, tmp_path, monkeypatch):
    plans = plans_by("concatenation", tmp_path, monkeypatch)
    model = Model("sinks", "here", "", lambda: Sinks(first), lambda _: {"x": torch.randn(2, 24, 32)})
    verdict = judge(model, lambda module: torch.compile(module, backend="tilec"))
    assert verdict.right, verdict
    assert any(plan.steps("concatenation") for plan in plans)
