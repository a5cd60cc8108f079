"""In which order of memory a partition's program stores what it makes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import assert_agrees  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import tilec  # noqa: E402
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


AFTER = {
    "nothing": (lambda y: y, False),
    "elementwise": (lambda y: F.gelu(y) * 2 + 1, False),
    "pools": (lambda y: F.max_pool2d(F.relu(y), 2), False),
    "norms of groups": (lambda y: F.relu(F.group_norm(y, 2)), False),
    "means of images": (lambda y: F.softmax(y.mean((2, 3), keepdim=True) + 1, 1), False),
    "rows": (lambda y: F.softmax(y, -1), False),
    "a product": (lambda y: F.conv2d(F.relu(y), y.new_ones(5, 6, 2, 2)), True),
    "a product of pools": (lambda y: F.conv2d(F.max_pool2d(y, 2), y.new_ones(5, 6, 1, 1)), True),
    "channels": (lambda y: F.softmax(F.relu(y), 1), True),
    "a scan of channels": (lambda y: F.relu(y).cumsum(-3), True),
    "a running maximum of channels": (lambda y: y.cummax(1)[0], True),
    "a scan of rows": (lambda y: y.cumsum(2), False),
    "channels in order": (lambda y: torch.sort(y, dim=1)[0], True),
    "a gradient of channels": (lambda y: torch.ops.aten._softmax_backward_data(y, y * 2, 1, torch.float32), True),
    "chosen channels": (lambda y: y.gather(1, y.long() % 6), True),
    "a maximum over channels": (lambda y: F.relu(y).amax(1, keepdim=True), True),
    "a sum over channels": (lambda y: torch.tanh(y).sum(1), True),
    "tokens": (lambda y: F.layer_norm(y.flatten(2).transpose(1, 2), (6,)), True),
    "channels behind places": (lambda y: y.permute(0, 2, 3, 1) + 1, True),
}


@pytest.mark.parametrize("name", AFTER)
def test_channels_are_last_for_what_goes_along_them(name):
    after, last = AFTER[name]
    with FakeTensorMode():
        given = tensors(torch.contiguous_format, "cuda")[:2]
        traced = make_fx(lambda x, w: (after(F.conv2d(x, w, padding=1)),), decomposition_table=decompositions())(*given)
        (first, *_) = [line.partition("where ")[2] for line in write(traced.graph).text.splitlines() if "where" in line]
    assert first == ("i0 in 0:2, i1 in 0:8, i2 in 0:10, i3 in 0:6" if last else "i0 in 0:2, i1 in 0:6, i2 in 0:8, i3 in 0:10")


def separable(x, each, points, back):
    """Each channel alone, then a product of the channels, then each channel alone as a transposed convolution."""
    y = F.conv_transpose2d(F.conv2d(F.relu(F.conv2d(x, each, padding=1, groups=4)), points), back, groups=6)
    return y.amax(1)


def test_convolutions_of_each_channel_lie_as_what_they_read():
    with FakeTensorMode():
        shapes = (2, 4, 8, 10), (4, 1, 3, 3), (6, 4, 1, 1), (6, 1, 2, 2)
        given = [torch.empty(n, device="cuda") for n in shapes]
        graph = make_fx(lambda *given: (separable(*given),), decomposition_table=decompositions())(*given).graph
        made = [line.partition("where ")[2] for line in write(graph).text.splitlines() if "where" in line]
    assert made[:2] == ["i0 in 0:2, i1 in 0:4, i2 in 0:8, i3 in 0:10"] * 2
    assert made[2:4] == ["i0 in 0:2, i1 in 0:8, i2 in 0:10, i3 in 0:6", "i0 in 0:2, i1 in 0:9, i2 in 0:11, i3 in 0:6"]
    assert_agrees(separable, *(torch.randn(n) for n in shapes))


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


def lies_behind(x, first, second, added, weight):
    """Places behind channels, as encoders of speech have them: the sum lies as its operand does."""
    places = F.gelu(F.conv1d(F.gelu(F.conv1d(x, first, padding=1)), second, stride=2, padding=1)).permute(0, 2, 1)
    rows = places + added
    return rows + F.layer_norm(rows, (6,), weight)


def speech() -> list[torch.Tensor]:
    return [torch.randn(n) for n in ((2, 4, 10), (6, 4, 3), (6, 6, 3), (5, 6), (6,))]


def speech_program(after) -> str:
    with FakeTensorMode():
        given = [torch.empty_like(x, device="cuda") for x in speech()]
        traced = make_fx(lambda *given: (after(lies_behind(*given)),), decomposition_table=decompositions())(*given)
        return write(traced.graph).text


def test_a_product_by_a_transpose_is_stored_in_rows():
    ranges = speech_program(lambda y: torch.bmm(y.exp(), y.new_ones(2, 7, 6).transpose(1, 2)) * 2)
    assert "i0 in 0:2, i1 in 0:5, i2 in 0:7" in ranges and "i1 in 0:7" not in ranges


def test_sums_lie_as_their_operands_are_stored():
    """PyTorch's convolution has places last, and so its sums in the order of rows; those of a GPU's program have channels last."""
    ranges = [
        line.partition("where ")[2] for line in speech_program(lambda y: y.exp().sum(1)).splitlines() if "where" in line
    ]
    whole = [r for r in ranges if r.count(" in ") == 3]
    assert len(whole) > 5 and all(r.endswith("i2 in 0:6") for r in whole), ranges


@pytest.mark.parametrize(
    "after",
    [
        lambda y: y,
        lambda y: y.sum(1),
        lambda y: (y * 2).reshape(2, 30),
        lambda y: y.transpose(1, 2).reshape(12, 5) * 2,
        lambda y: (y + y.flip(1)).softmax(-1),
        lambda y: torch.cat([y, y * 2], 1).mean(2),
    ],
)
def test_what_follows_convolutions_along_one_dimension(after):
    """The numbers of a GPU's program, which stores results in other orders than PyTorch's."""
    given = speech()
    found = tilec.compile(speech_program(after))(*(x.numpy() for x in given))
    exact = after(lies_behind(*(x.double() for x in given)))
    stored = exact.as_strided([exact.numel()], [1])  # in PyTorch's order of memory, as is what leaves a program
    torch.testing.assert_close(torch.from_numpy(found).double().ravel(), stored, rtol=1e-5, atol=1e-5)


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
    partition = call.Partition(graph, Options(strict=True), None, lambda *_: None)
    for given in (x, torch.randn(8, 6)[::2], torch.randn(4, 6)):
        results = partition(given, y)
        result = results if single else results[-1]
        torch.testing.assert_close(result, given * 2 + y)
        assert result.stride() == (10, 1)
        assert single or torch.allclose(results[0], torch.exp(given))
    assert len(bound) == 1 and bound[0] is not None
