"""What PyTorch demands of a back end's memory: strides, aliases, changed inputs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import assert_agrees, compiled  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")


# ---- strides and memory ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        torch.randn(4, 6).t(),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(1, 6).expand(4, 6),
        torch.randn(6, 1).expand(6, 4),
        torch.randn(8, 12)[::2, 1:7],
        torch.randn(25)[1:].view(4, 6),
        torch.randn(3, 1, 5).permute(1, 2, 0),
        torch.randn(()),
    ],
    ids=["transposed", "channels_last", "rows", "columns", "gaps", "offset", "size 1", "scalar"],
)
def test_inputs_lie_as_they_like(given):
    assert_agrees(lambda x: torch.exp(x) * 2 + x, given)


def test_results_lie_as_promised():
    def several(x, y):
        added = x + y
        return added, added.t(), (x * 2).t() + 1, (x @ y.t()).unsqueeze(0), x.sum(0, keepdim=True).expand(3, -1)

    assert_agrees(several, torch.randn(4, 5), torch.randn(5, 4).t())


def test_views_of_inputs_stay_views():
    @compiled
    def shown(x):
        return x[1:], x.view(-1), x + 1

    x = torch.arange(6.0).view(2, 3)
    part, flat, more = shown(x)
    x += 10
    assert torch.equal(part, x[1:]) and torch.equal(flat, x.view(-1)) and torch.equal(more, x - 9)


def test_results_that_share_memory():
    @compiled
    def shared(x):
        y = x * 2
        return y, y[0], y.t()

    y, first, transposed = shared(torch.randn(3, 4))
    y.zero_()
    assert first.eq(0).all() and transposed.eq(0).all()


def test_inputs_are_changed_in_place():
    def change(x, y):
        x.mul_(2)
        y[1:3].add_(x[0])
        return x.sum() + y.sum()

    assert_agrees(change, torch.randn(3, 4), torch.randn(5, 4))


def test_old_values_that_are_read_after_a_write():
    def late(cache, x):
        before = cache.clone()
        cache[0] = x
        cache[1:3] = cache[0:2] * 2
        return before + cache

    assert_agrees(late, torch.randn(4, 5), torch.randn(5))


def test_a_shift_within_one_input():
    def shift(history, x):
        history[:, :-1] = history[:, 1:].clone()
        history[:, -1] = x
        return history.mean(1)

    assert_agrees(shift, torch.randn(3, 5), torch.randn(3))


def test_one_tensor_as_two_arguments():
    @compiled
    def both(x, y):
        x.add_(1)
        return x * y

    x = torch.ones(4)
    assert torch.equal(both(x, x), torch.full((4,), 4.0)) and torch.equal(x, torch.full((4,), 2.0))


# ---- results in inputs -----------------------------------------------------------------------------------------------


def swapped(x, y):
    old = x * 3
    x.copy_(y * 2)
    y.copy_(old)


def statistics(x, mean, w):
    """The new mean is read by the result, and saved for its gradient."""
    mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    return (x - mean) * w * mean


CHANGES = {
    "of each element": lambda x, y: x.mul_(2).add_(y),
    "of other elements": lambda x, y: x.add_(x.t().clone()),
    "of a row's sum": lambda x, y: x.div_(x.sum(1, keepdim=True)),
    "of a shift": lambda x, y: x.copy_(x.roll(1, 0)) * 2,
    "swapped": swapped,
    "after an old value is sorted": lambda x, y: (x.sort(0)[0] + 1, x.mul_(2).add_(1))[0],
    "before it is sorted": lambda x, y: (x.mul_(2).add_(1), x.sort(0)[0] + 1)[1],
    "with an old value that is returned": lambda x, y: (x * 1, x.add_(y))[0],
    "with the new value, returned": lambda x, y: (x.add_(y), x + 0)[1],
    "by one that changes, too": lambda x, y: (y.mul_(3), x.add_(y))[1].sum(),
    "of a part": lambda x, y: x[1:].mul_(2).sum(),
    "of a transpose": lambda x, y: x.t().mul_(2).add_(y).sum(),
    "by an old and a new value": lambda x, y: (x.clone() @ x.exp_()).sum(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_in_place(name):
    assert_agrees(CHANGES[name], torch.randn(5, 5), torch.randn(5, 5), calls=2)


def test_a_changed_value_that_gradients_need():
    x, mean, w = torch.randn(6, 4, requires_grad=True), torch.randn(4), torch.randn(4, requires_grad=True)
    assert_agrees(statistics, x, mean, w, backward=True)


def test_new_values_are_written_where_they_belong(tmp_path, monkeypatch):
    """Without a copy in memory, and into an input that lies transposed."""
    monkeypatch.setenv("TILEC_TORCH_DUMP", str(tmp_path))
    assert_agrees(lambda x, y: x.mul_(y).add_(1), torch.randn(6, 4).t(), torch.randn(6, 4).t())
    (text,) = (p.read_text() for p in tmp_path.rglob("run.py"))
    assert "copy_" not in text
