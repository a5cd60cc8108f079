"""Indices outside of their tensors: errors of eager mode's type, which tell the operation, its place, the tensor and the index."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import compiled  # noqa: E402

import tilec.torch  # noqa: E402
from tilec.core.diagnostics import CheckError  # noqa: E402
from tilec.torch import backend, call, outside  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")

F, tensor = torch.nn.functional, torch.tensor
X, V, W = torch.randn(5, 7), torch.randn(2, 7), torch.randn(10, 4)
ROWS = [[0], [1], [1], [1]]

FORMS = {
    "embedding": (lambda i, w: F.embedding(i, w), (tensor([1, 10]), W), "dimension 0 of `w`, whose size", "[1] of `i`"),
    "gather": (lambda x, i: x.gather(1, i) * 2, (X, tensor([*ROWS, [7]])), "dimension 1 of `x`, whose", "[4, 0] of `i`"),
    "index_select": (lambda x, i: x.index_select(0, i) * 2, (X, tensor([0, -1])), "dimension 0 of `x`", "[1] of `i`"),
    "index": (lambda x, i, j: x[i, j] * 2, (X, tensor([0, -6]), tensor([0, 1])), "index -6 is outside", "[1] of `i`"),
    "scatter": (lambda x, i: (x * 2).scatter(1, i, 3.0), (X, tensor([*ROWS, [-1]])), "index -1 is outside", "[4, 0] of `i`"),
    "index_add": (lambda x, i, v: (x * 2).index_add(0, i, v), (X, tensor([0, 5]), V), "0 of the result of mul", "[1] of `i`"),
    "index_put": (lambda x, i, v: (x * 2).index_put((i,), v), (X, tensor([5, 0]), V), "index 5 is outside", "[0] of `i`"),
    "nll_loss": (lambda x, i: F.nll_loss(x * 2, i), (X, tensor([0, 1, 7, 2, 3])), "index 7 is outside", "[2] of `i`"),
    "take": (lambda x, i: x.take(i) * 2, (X, tensor([0, 35])), "index 35 is outside of `x`, where 35 are counted", "[1] of `i`"),
    "put": (lambda x, i, v: (x * 2).put(i, v), (X, tensor([0, -36]), V[:, 0]), "index -36 is outside", "[1] of `i`"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_operations(name):
    function, inputs, what, where = FORMS[name]
    with pytest.raises((IndexError, RuntimeError)) as eager:
        function(*inputs)
    with pytest.raises(eager.type) as found:
        compiled(function)(*inputs)
    message, place, operation = str(found.value).splitlines()
    assert message.startswith("index ") and what in message and place == f"  the index is at {where}"
    assert operation.startswith(f"  in {name}, {Path(__file__).name}:") and "lambda" in operation
    assert f"(PyTorch: {eager.value})" in message or name in ("nll_loss", "take", "put")
    assert tilec.torch.report().share == 1


class Table(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(10, 4)

    def forward(self, i):
        return self.words(i).sum()


class Tables(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Table(), Table()])

    def forward(self, i, j):
        return self.layers[0](i) + self.layers[1](j)


@pytest.mark.parametrize("dynamic", [None, True])
def test_of_two_operations_of_a_partition_the_right_one(dynamic):
    model = compiled(Tables(), dynamic=dynamic)
    for bad in (0, 1):
        inputs = [tensor([1, 2, 3]), tensor([1, 2, 3])]
        inputs[bad][2] = 12
        with pytest.raises(IndexError) as found:
            model(*inputs)
        message, place, operation = str(found.value).splitlines()
        assert f"index 12 is outside of dimension 0 of `layers.{bad}.words.weight`, whose size is 10" in message
        assert place == f"  the index is at [2] of `{'ij'[bad]}`"
        assert f"in embedding of the module layers.{bad}.words, " in operation
        assert operation.endswith(": return self.words(i).sum()")
    assert len(tilec.torch.report().graphs[0].parts) == 1


class Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, i):
        ctx.save_for_backward(i)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return torch.gather(grad * 3, 1, ctx.saved_tensors[0]), None


def test_a_backward_pass():
    x = torch.randn(5, 7, requires_grad=True)
    made = compiled(lambda x, i: Read.apply(x, i).sum())(x, torch.full((5, 7), 9))
    with pytest.raises(RuntimeError, match=r"index 9 is outside of dimension 1 of the result of mul, whose size is 7") as found:
        made.backward()
    assert "the index is at [0, 0] of `i`" in str(found.value) and "in gather, " in str(found.value)


def test_an_index_that_the_partition_computes():
    with pytest.raises(IndexError, match="index -7 is outside of dimension 0 of `x`") as found:
        compiled(lambda x, i: x[i * 2 + 1] * 2)(X, tensor([1, -4]))
    assert "the index is at [1] of the result of add" in str(found.value)


def test_a_gpu_reports_at_a_later_call(monkeypatch):
    """The values are gone then. Where partitions have one program, any of them may have failed."""
    kept = []
    monkeypatch.setattr(call, "remember", lambda module, sites, written: kept.append((module, written)))
    compiled(Tables())(tensor([1, 2, 3]), tensor([1, 2, 3]))
    module, written = kept[0]
    sites = tilec.compile(written.text, target="h200").build()._last.emitted.sites
    assert sites
    outside.remember(module, sites, written)
    for number, site in enumerate(sites):
        error = outside.deferred(CheckError(site, deferred=True, program=module))
        message, place, why = str(error).splitlines()
        assert message == f"an index is outside of `layers.{number}.words.weight`, whose shape is [10, 4]"
        assert f"in embedding of the module layers.{number}.words, " in place and "in an earlier call" in why
    for layer in range(6):
        outside._remembered[module][outside.line_of(sites[0])].append(f"layer {layer}")
    assert str(outside.deferred(CheckError(sites[0], deferred=True, program=module))).splitlines()[-2] == "  or 3 others"
    assert "<program>" in str(outside.deferred(CheckError(sites[0], deferred=True, program="of others")))


def test_checks_of_former_kernels_are_remembered_until_a_later_reset(monkeypatch):
    """A GPU may raise those of calls before a reset. Without checks, and on the CPU, nothing is."""
    monkeypatch.setattr(outside, "_remembered", {})
    monkeypatch.setattr(outside, "_former", {})
    compiled(lambda x: x * 3)(X)
    compiled(Tables())(tensor([1, 2, 3]), tensor([1, 2, 3]))
    assert not outside._remembered
    error = CheckError("<program>:7: outside", deferred=True, program="first")
    for program, known in (("first", True), ("second", True), ("third", False)):
        outside._remembered[program] = {7: ["an index is outside of `w`"]}
        assert str(outside.deferred(error)).startswith("an index is outside of `w`") == known
        backend.backend.reset()
        backend.backend.reset()
    assert list(outside._former) == ["third"] and not outside._remembered


@pytest.mark.gpu
def test_on_a_gpu():
    model = compiled(Tables().cuda())
    good, bad = tensor([1, 2, 3]).cuda(), tensor([1, 2, 12]).cuda()
    other = good.clone()  # one tensor as both arguments would be another graph
    model(good, bad)
    torch.cuda.synchronize()
    with pytest.raises(IndexError, match=r"outside of `layers.1.words.weight`, whose shape is \[10, 4\]") as found:
        model(good, other)
    assert "in embedding of the module layers.1.words, " in str(found.value)
