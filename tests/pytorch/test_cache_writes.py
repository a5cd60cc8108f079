"""Writes of one position into an input, as a decoder's step does to its cache: a kernel of the partition stores it there."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import assert_agrees, compiled  # noqa: E402

import tilec.torch  # noqa: E402
from tilec.torch import call  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")

aten = torch.ops.aten


@pytest.fixture
def partitions(monkeypatch):
    """For each partition that is called, how many results it writes into inputs, and whether its kernels read such an input."""
    found, bind = [], call.bind

    def binding(built, device, written, otherwise, into, freed):
        made = bind(built, device, written, otherwise, into, freed)
        numbers = [a.number for a in written.arguments]
        found.append((len(into), any(built.emitted.reads(numbers.index(n)) for n in into.values() if n in numbers)))
        return made

    monkeypatch.setattr(call, "bind", binding)
    return found


def assert_in_place(found, writes: int = 1) -> None:
    """All is one partition, which stores positions alone."""
    assert found[-1] == (writes, False)
    report = tilec.torch.report()
    assert report.share == 1 and [len(graph.parts) for graph in report.graphs] == [1]


def attention(q, keys, values):
    return torch.softmax(q @ keys.transpose(-1, -2), -1) @ values


def step(q, k, v, keys, values, at):
    keys.index_copy_(2, at, k)
    values.index_copy_(2, at, v)
    return attention(q, keys, values)


def given(room: int = 10):
    return [torch.randn(2, 3, 1, 4) for _ in range(3)] + [torch.randn(2, 3, room, 4) for _ in range(2)]


def test_a_step_of_a_decoder_is_one_partition(partitions):
    assert_agrees(step, *given(), torch.tensor([4]), calls=2)
    assert_in_place(partitions, 2)


def put(cache, k, at):
    cache[:, :, at] = k


WRITES = {
    "a number": (lambda c, k, at: aten.index_put_(c, [None, None, at], k[:, :, 0]), torch.tensor(3)),
    "a list of one": (put, torch.tensor([3])),
    "from the end": (put, torch.tensor([-1])),
    "the first": (lambda c, k, at: c.index_copy_(0, at, k[:1].expand(1, 3, 10, 4)), torch.tensor([1])),
    "the last dimension": (lambda c, k, at: c.index_copy_(3, at, k[..., :1].expand(2, 3, 10, 1)), torch.tensor([2])),
    "with arithmetic": (lambda c, k, at: c.index_copy_(2, torch.arange(1) + at + 1, k.exp() * 2), torch.tensor(4)),
    "one value for all": (lambda c, k, at: put(c, k[0, 0, 0, 0], at), torch.tensor([5])),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes(name, partitions):
    write, at = WRITES[name]

    def written(cache, k, at):
        write(cache, k, at)
        return cache.sum(-1)

    assert_agrees(written, torch.randn(2, 3, 10, 4), torch.randn(2, 3, 1, 4), at, calls=2)
    assert_in_place(partitions)


def test_the_rest_of_the_cache_is_not_touched():
    """Not even a NaN's bits, nor what lies around the tensor."""
    memory = torch.full((3 * 240,), 7, dtype=torch.int32)
    memory[240:480] = 0x7FA00001
    cache = memory.view(torch.float32)[240:480].view(2, 3, 10, 4)
    changed = compiled(lambda c, k, at: c.index_copy_(2, at, k).mul(0).isnan())
    changed(cache, torch.ones(2, 3, 1, 4), torch.tensor([6]))
    want = memory.clone().fill_(7)
    want[240:480] = 0x7FA00001
    want[240:480].view(2, 3, 10, 4)[:, :, 6] = torch.ones(()).view(torch.int32)
    assert torch.equal(memory, want)


def test_layers(partitions):
    def layers(q, k, v, keys, values, at, more_keys, more_values):
        first = step(q, k, v, keys, values, at)
        return step(first, first * 2, first + 1, more_keys, more_values, at)

    more = [torch.randn(2, 3, 10, 4) for _ in range(2)]
    assert_agrees(layers, *given(), torch.tensor([9]), *more)
    assert_in_place(partitions, 4)


@pytest.mark.parametrize("at", [10, -11])
def test_a_position_outside_is_an_error(at):
    with pytest.raises(IndexError, match="outside"):
        compiled(step)(*given(), torch.tensor([at]))


def test_a_cache_that_lies_otherwise():
    cache = torch.randn(2, 10, 3, 4).transpose(1, 2)
    assert_agrees(lambda c, k, at: c.index_copy_(2, at, k).sum(-1), cache, torch.randn(2, 3, 1, 4), torch.tensor([5]))


def test_one_cache_given_twice():
    def twice(one, other, k, at):
        one.index_copy_(0, at, k)
        other.index_copy_(0, at + 1, k * 2)
        return one + other

    cache, mine = (torch.zeros(6, 4) for _ in range(2))
    k, at = torch.randn(1, 4), torch.tensor([2])
    torch.testing.assert_close(compiled(twice)(cache, cache, k, at), twice(mine, mine, k, at))
    torch.testing.assert_close(cache, mine)


OTHERWISE = {
    "several positions": lambda c, k, at: c.index_copy_(0, torch.cat([at, at + 1]), k.expand(2, 4)).sum(),
    "an old value that is read later": lambda c, k, at: (c[0] * 2, c.index_copy_(0, at, k).sum())[0],
    "an old value in the same place": lambda c, k, at: c.index_copy_(0, at, k + c[2:3]).sum(),
    "a position that data tell": lambda c, k, at: c.index_copy_(0, (k * 0).argmax(1) + at, k).sum(),
    "a sum": lambda c, k, at: c.index_put_((at,), k, accumulate=True).sum(),
    "a part of a part": lambda c, k, at: c[1:].index_copy_(0, at, k).sum(),
    "two after each other": lambda c, k, at: c.index_copy_(0, at, k).index_copy_(0, at + 1, k * 2).sum(),
    "a window that moves": lambda c, k, at: c.copy_(c.roll(-1, 0).index_copy(0, at, k)).sum(),
    "the result as well": lambda c, k, at: c.index_copy_(0, at, k).sort()[0] + c,
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_no_kernel_does_in_place(name):
    assert_agrees(OTHERWISE[name], torch.randn(6, 4), torch.randn(1, 4), torch.tensor([3]), calls=2)


def test_a_cache_is_never_copied(partitions, tmp_path, monkeypatch):
    """Where a kernel would compute all of it, PyTorch writes in place."""
    monkeypatch.setenv("TILEC_TORCH_DUMP", str(tmp_path))
    assert_agrees(OTHERWISE["a position that data tell"], torch.randn(6, 4), torch.randn(1, 4), torch.tensor([3]))
    (text,) = (p.read_text() for p in tmp_path.rglob("run.py"))
    assert "index_copy__default(" in text and "aten_copy_" not in text and "clone" not in text


def test_without_machine_codes_calls(monkeypatch):
    monkeypatch.setattr("tilec.runtime.native.tables.native_calls", lambda: False)
    assert_agrees(step, *given(), torch.tensor([4]), calls=2)


def test_a_schedule_is_obeyed(tmp_path, monkeypatch, capsys):
    """It is one of the program that computes all of the cache."""
    from tilec.cli.command import main

    monkeypatch.setenv("TILEC_TORCH_DUMP", str(tmp_path))
    assert_agrees(step, *given(), torch.tensor([4]))
    monkeypatch.delenv("TILEC_TORCH_DUMP")
    (program,) = tmp_path.rglob("*.tile")
    assert main(["plan", str(program)]) == 0
    torch._dynamo.reset()
    assert_agrees(step, *given(), torch.tensor([4]), options={"schedule": str(tmp_path)})
    assert all(part.reason is None for graph in tilec.torch.report().graphs for part in graph.parts)


def test_in_the_background():
    call = assert_agrees(step, *given(), torch.tensor([4]), options={"background": True})
    tilec.torch.wait()
    keys = given()
    call(*keys, torch.tensor([2]))
    torch.testing.assert_close(keys[3][:, :, 2:3], keys[1])


@pytest.mark.slow
def test_changing_sizes():
    call = compiled(step, dynamic=True)
    for room in (10, 13, 17):
        mine, theirs = given(room), None
        theirs = [t.clone() for t in mine]
        at = torch.tensor([room - 2])
        torch.testing.assert_close(call(*mine, at), step(*theirs, at))
        torch.testing.assert_close(mine, theirs)
