"""`tilec.from_torch`: the text computes what the module does, says what PyTorch keeps, and is made anew at every call."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tilec  # noqa: E402
from tilec.core.diagnostics import CallError  # noqa: E402


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(6, 5), torch.nn.LayerNorm(5)

    def forward(self, x):
        return torch.relu(self.norm(self.linear(x)))


def test_the_text_computes_what_the_module_does():
    torch.manual_seed(1)
    block, x = Block(), torch.randn(4, 6)
    text = tilec.from_torch(block, x)
    assert "# x0: linear.weight" in text and "aten.addmm" in text
    with torch.no_grad():
        found = tilec.compile(text)(block.linear.weight, block.linear.bias, x, block.norm.weight, block.norm.bias)
        torch.testing.assert_close(found, block(x))


def test_operations_that_pytorch_keeps_are_comments():
    def function(x):
        return torch.relu(torch.linalg.inv(torch.softmax(x, -1))) @ x

    text = tilec.from_torch(function, torch.eye(3) + 1)
    assert text.startswith("# PyTorch keeps linalg_inv_ex") and "op part0(" in text and "op part1(" in text
    assert {op.name for op in tilec.compile(text, op="part1")._program.tree.ops} == {"part0", "part1"}
    for rows in range(2, 14):  # more than Dynamo keeps for one function
        assert f"f32[{rows}, 3]" in tilec.from_torch(torch.softmax, torch.ones(rows, 3), dim=1)


def test_what_is_no_function_of_tensors():
    with pytest.raises(CallError, match="takes a module or a function"):
        tilec.from_torch(3)
    with pytest.raises(CallError, match="computes no operation"):
        tilec.from_torch(torch.linalg.inv, torch.eye(3))
    with pytest.raises(CallError, match="made no graph"):
        tilec.from_torch(lambda n: n + 1, 3)
