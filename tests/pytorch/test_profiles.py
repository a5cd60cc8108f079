"""What `torch.profiler` shows of compiled models on the CPU."""

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import compiled  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")


def shown(call) -> list[str]:
    with profile(activities=[ProfilerActivity.CPU]) as found:
        call()
    return sorted(event.key for event in found.key_averages() if event.key.startswith("tilec "))


def test_each_partition_is_a_range():
    function, x = compiled(lambda x: torch.softmax(x * 2, -1) + torch.linalg.det(x @ x.T)), torch.randn(4, 8)
    function(x)
    right = function(x)
    names = ["tilec part0: mm", "tilec part1: mul, _softmax, add"]
    assert shown(lambda: torch.testing.assert_close(function(x), right)) == names
    assert shown(lambda: None) == []
    torch.testing.assert_close(function(x), right)


def test_long_partitions_have_their_ends_for_names():
    function, x = compiled(lambda x: x.sin().cos().exp().log1p().tanh()), torch.randn(4, 8)
    function(x)
    assert shown(lambda: function(x)) == ["tilec part0: sin to tanh, 5 operations"]


def test_training_steps():
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 1)), torch.randn(4, 8)
    function = compiled(model)

    def step() -> None:
        function(x).sum().backward()

    step()
    assert len(shown(step)) >= 2  # forward and backward
