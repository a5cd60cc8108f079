"""In which order of memory a partition's program stores what it makes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import assert_agrees  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from tilec.torch.aten import decompositions  # noqa: E402
from tilec.torch.write import write  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")

F = torch.nn.functional


def model(x, *weights):
    first, second = weights
    return F.gelu(F.conv2d(F.max_pool2d(F.relu(F.conv2d(x, first, padding=1)), 2), second))


def tensors(order: torch.memory_format, device: str = "cpu") -> list[torch.Tensor]:
    shapes = (2, 4, 8, 10), (6, 4, 3, 3), (5, 6, 2, 2)
    return [torch.randn(n, device=device).to(memory_format=order) for n in shapes]


def text(device: str, order: torch.memory_format) -> str:
    with FakeTensorMode():
        return write(
            make_fx(lambda *given: (model(*given),), decomposition_table=decompositions())(
                *tensors(order, device)
            ).graph
        ).text


def test_channels_that_are_last_stay_so():
    """Nothing is transposed between convolutions, and nothing at the end."""
    lines = text("cpu", torch.channels_last).splitlines()
    made = [line.partition("where")[2] for line in lines if "where" in line]
    assert len(made) == 5
    assert [line.strip() for line in made] == [
        "i0 in 0:2, i1 in 0:8, i2 in 0:10, i3 in 0:6", "i0 in 0:2, i1 in 0:8, i2 in 0:10, i3 in 0:6",
        "i0 in 0:2, i1 in 0:4, i2 in 0:5, i3 in 0:6", "i0 in 0:2, i1 in 0:3, i2 in 0:4, i3 in 0:5",
        "i0 in 0:2, i1 in 0:3, i2 in 0:4, i3 in 0:5",
    ]  # fmt: skip


def test_a_gpu_s_convolutions_have_their_channels_last():
    """Between them; what leaves has the promised order."""
    made = [
        line.partition("where ")[2] for line in text("cuda", torch.contiguous_format).splitlines() if "where" in line
    ]
    assert made[:3] == [
        *["i0 in 0:2, i1 in 0:8, i2 in 0:10, i3 in 0:6"] * 2,
        "i0 in 0:2, i1 in 0:4, i2 in 0:5, i3 in 0:6",
    ]
    assert made[-1] == "i0 in 0:2, i1 in 0:5, i2 in 0:3, i3 in 0:4"
    assert "i3 in 0:6" not in text("cpu", torch.contiguous_format)


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "after",
    [
        lambda y: y,
        lambda y: y.flatten(1) @ y.new_ones(60, 3),
        lambda y: torch.cat([y, y * 2], 1).mean((2, 3)),
        lambda y: F.interpolate(y, scale_factor=2) + 1,
        lambda y: F.pad(y, (1, 2, 0, 1)).transpose(1, 3) * 2,
        lambda y: y.permute(2, 3, 0, 1).reshape(12, 10).softmax(-1),
        lambda y: (y + y.new_ones(5, 1, 1)) * torch.arange(4, device=y.device),
    ],
)
def test_what_follows_a_convolution(after, order):
    assert_agrees(lambda *given: after(model(*given)), *tensors(order))


def test_heads_behind_places():
    x = torch.randn(2, 5, 3, 4)
    assert_agrees(
        lambda x: (x.transpose(1, 2) * 2, x.transpose(1, 2).exp().sum(1), x.transpose(1, 2).sin() @ x[0, 0].T), x
    )


@pytest.mark.parametrize("single", [True, False])
def test_what_has_gaps_is_copied_for_machine_code(single, monkeypatch):
    """Values and promised results: the program is called by machine code all the same."""
    from tilec.torch import call
    from tilec.torch.options import Options

    x, y = torch.randn(8, 12)[::2, 1:7], torch.randn(4, 6)
    function = lambda x, y: (x * 2 + y,) if single else (x.exp(), x * 2 + y)  # noqa: E731
    graph = make_fx(function, tracing_mode="fake")(x, y).graph
    made = graph.output_node().args[0][-1]
    with made.meta["val"].fake_mode:
        made.meta["val"] = torch.empty_strided((4, 6), (10, 1))
    bound, bind = [], call.bind
    monkeypatch.setattr(call, "bind", lambda *args: bound.append(bind(*args)) or bound[-1])
    partition = call.Partition(graph, Options(strict=True), None, lambda written, reason: None)
    for given in (x, torch.randn(8, 6)[::2], torch.randn(4, 6)):
        results = partition(given, y)
        result = results if single else results[-1]
        torch.testing.assert_close(result, given * 2 + y)
        assert result.stride() == (10, 1)
        assert single or torch.allclose(results[0], torch.exp(given))
    assert len(bound) == 1 and bound[0] is not None
