"""How compiled functions are called: modes, memory, transforms, copies, threads and processes."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import assert_agrees, compiled, mlp  # noqa: E402

import tilec.torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")

nn, F = torch.nn, torch.nn.functional


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_buffers_that_share_memory():
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.zeros(6)
            self.register_buffer("whole", whole)
            self.register_buffer("part", whole[2:5])

        def forward(self, x):
            self.whole.add_(x.sum())
            self.part.mul_(2)
            return self.whole + 1, self.part * x[:3]

    model, eager = Shared(), Shared()
    function, x = compiled(model), torch.randn(4)
    for _ in range(2):
        torch.testing.assert_close(function(x), eager(x))
        torch.testing.assert_close(model.whole, eager.whole)
    assert model.part.data_ptr() == model.whole.data_ptr() + 8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.uint8])
def test_views_at_any_address(dtype):
    """One compilation, whatever the address is a multiple of."""
    function = compiled(lambda x: x * 2 + x.amax(-1, keepdim=True))
    base = (torch.rand(40) * 50).to(dtype)
    for offset in (0, 1, 2, 3, 5):
        x = base[offset : offset + 24].view(4, 6)
        assert function(x).equal(x * 2 + x.amax(-1, keepdim=True))
    assert len(tilec.torch.report().graphs) == 1


def test_empty_batches_and_full_ones():
    model = mlp()
    function = compiled(model)
    for n in (3, 0, 2, 0):
        x = torch.ones(n, 8)
        with torch.no_grad():
            torch.testing.assert_close(function(x), model(x))


@pytest.mark.slow
def test_types_that_change_between_calls():
    function = compiled(lambda x, y: torch.sin(x) @ y)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
        x, y = torch.randn(3, 4, dtype=dtype), torch.randn(4, 5, dtype=dtype)
        made = function(x, y)
        assert made.dtype == dtype
        torch.testing.assert_close(made, torch.sin(x) @ y)


@pytest.mark.slow
def test_memory_formats_that_change_between_calls():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 1))
    function = compiled(model)
    for order in (torch.contiguous_format, torch.channels_last, torch.contiguous_format):
        x = torch.randn(2, 3, 8, 8).to(memory_format=order)
        made, eager = function(x), model(x)
        assert made.stride() == eager.stride()
        torch.testing.assert_close(made, eager)


@pytest.mark.parametrize(
    "shape",
    [
        lambda x: x.t() + 1, lambda x: (x[:, :1] * 2).expand(3, 4) + x, lambda x: x.t().reshape(2, 6) * 1,
        lambda x: torch.cat([x, x], 0).t() * 2, lambda x: (x[None] + x[:, None]).transpose(0, 2),
        lambda x: F.pad(x, (1, 2)).t().contiguous(), lambda x: x.unfold(0, 2, 1) + 0, lambda x: torch.zeros_like(x.t()) + x.t(),
        lambda x: x.sum(1, keepdim=True).t(), lambda x: torch.empty_like(x.t()).copy_(x.t()), lambda x: (x + 1).chunk(2, 1),
        lambda x: x.t().clone(memory_format=torch.preserve_format), lambda x: (x * 2).as_strided((2, 2), (1, 4)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("order", ["rows", "columns"])
def test_strides_are_those_of_eager(shape, order):
    x = torch.randn(3, 4) if order == "rows" else torch.randn(4, 3).t()
    function = compiled(shape)
    for made, eager in zip(torch.utils._pytree.tree_leaves(function(x)), torch.utils._pytree.tree_leaves(shape(x))):
        assert made.stride() == eager.stride() and made.storage_offset() == eager.storage_offset()
        torch.testing.assert_close(made, eager)


# ---- modes and transforms --------------------------------------------------------------------------------------------


def test_tensors_of_inference_mode():
    model = mlp()
    function = compiled(model)
    with torch.inference_mode():
        x = torch.randn(3, 8)
        y = function(x)
        assert y.is_inference()
    with torch.no_grad():
        torch.testing.assert_close(function(x), model(x))
    assert function(torch.randn(3, 8)).requires_grad
    with torch.inference_mode():
        torch.testing.assert_close(function(x), y)


@pytest.mark.slow
def test_transforms_of_functions():
    from torch.func import functional_call, grad, jacrev, jvp, vmap

    x, w = torch.randn(5, 4), torch.randn(4, 3)

    def loss(x, w):
        return torch.tanh(x @ w).sum()

    def layer(row):
        return torch.tanh(row @ w)

    def tangent(a, b):
        return jvp(layer, (a,), (b,))[1]

    cases = [(grad(loss, 1), x, w), (vmap(grad(loss, 1), (0, None)), x, w), (jacrev(layer), x[0]), (tangent, x, x * 2)]
    for function, *given in cases:
        torch.testing.assert_close(compiled(function)(*given), function(*given))
    model = mlp()
    called = compiled(lambda weights, x: functional_call(model, weights, (x,)))
    torch.testing.assert_close(called(dict(model.named_parameters()), torch.ones(2, 8)), model(torch.ones(2, 8)))


@pytest.mark.slow
def test_exported_programs():
    model, x = mlp().eval(), torch.randn(3, 8)
    batch = torch.export.Dim("batch")
    for shapes, sizes in ((None, (3,)), (({0: batch},), (3, 5))):
        function = compiled(torch.export.export(model, (x,), dynamic_shapes=shapes).module())
        for n in sizes:
            torch.testing.assert_close(function(torch.ones(n, 8)), model(torch.ones(n, 8)))


def test_functions_of_numpy_arrays():
    def kernel(x, y):
        return np.exp(-((x[:, None] - y[None, :]) ** 2)).sum(1) / np.sqrt(x.size)

    x, y = np.linspace(0, 1, 5), np.linspace(1, 2, 7)
    made = compiled(kernel)(x, y)
    assert type(made) is np.ndarray and tilec.torch.report().share == 1
    np.testing.assert_allclose(made, kernel(x, y))


# ---- copies ----------------------------------------------------------------------------------------------------------


def test_copies_of_compiled_modules():
    model, x = compiled(mlp()), torch.randn(3, 8)
    y = model(x)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other(x), y)
        with torch.no_grad():
            next(other.parameters()).zero_()
        assert not torch.equal(other(x), y) and torch.equal(model(x), y)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    fresh = compiled(mlp())
    fresh.load_state_dict(torch.load(io.BytesIO(file.getvalue())))
    torch.testing.assert_close(fresh(x), y)


# ---- threads and processes -------------------------------------------------------------------------------------------


def in_threads(work, count: int) -> None:
    """Raises what one of them raises."""
    failed = []

    def guarded(k):
        try:
            work(k)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(k,)) for k in range(count)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failed, failed


@pytest.mark.slow
def test_replicas_in_threads():
    """As DataParallel does: each thread has inputs of its own, some sizes are new, and each computes gradients."""
    model = mlp()
    eager, function = copy.deepcopy(model), compiled(model)

    def work(k):
        for _ in range(5):
            x = torch.randn(2 + k % 3, 8)
            y, z = function(x), eager(x)
            torch.testing.assert_close(y, z)
            found = torch.autograd.grad(y.sum(), list(model.parameters()))
            torch.testing.assert_close(found, torch.autograd.grad(z.sum(), list(eager.parameters())))

    in_threads(work, 5)


CHILD = """
import sys, torch, tilec.torch
from tilec.torch.backend import register
register()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
x = torch.randn(3, 8)
print("ready", flush=True)
sys.stdin.readline()
y = torch.compile(model, backend="tilec", options={"strict": True})(x)
y.sum().backward()
torch.testing.assert_close(y, model(x))
print("right", flush=True)
"""


@pytest.mark.slow
def test_two_processes_compile_one_model_at_once(tmp_path):
    """With one cache, which is empty."""
    environment = {**os.environ, "TILEC_CACHE_DIR": str(tmp_path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    children = [subprocess.Popen([sys.executable, "-c", CHILD], env=environment, **pipes) for _ in range(2)]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    for child in children:
        out, message = child.communicate(timeout=300)
        assert child.returncode == 0 and "right" in out, message


class Transformed(torch.utils.data.Dataset):
    def __init__(self, transform) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 4

    def __getitem__(self, k: int):
        return self.transform(torch.full((3,), float(k)))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore")
def test_workers_that_load_data_call_what_their_parent_compiled():
    transform = compiled(lambda x: torch.exp(-x) + 1)
    transform(torch.zeros(3))
    loader = torch.utils.data.DataLoader(
        Transformed(transform), batch_size=2, num_workers=2, multiprocessing_context="fork"
    )
    found = torch.cat(list(loader))
    torch.testing.assert_close(found, torch.exp(-torch.arange(4.0))[:, None].expand(4, 3) + 1)


def test_a_partition_is_called_for_sizes_that_alternate():
    """Of symbolic sizes: each is compiled once, and found again, with numbers that are arguments, too."""
    function = compiled(lambda x, k: torch.exp(x) * k + x.sum(), dynamic=True)
    for n, k in ((3, 4), (5, 4), (3, 7), (5, 4), (3, 4), (3, 4), (5, 9)):
        x = torch.linspace(0, 1, n)
        torch.testing.assert_close(function(x, k), torch.exp(x) * k + x.sum())
    x = torch.linspace(0, 1, 10)[::2]
    torch.testing.assert_close(function(x, 4), torch.exp(x) * 4 + x.sum())


def test_results_do_not_share_memory_with_later_ones():
    function, x = compiled(lambda x: (x + 1, x * 2)), torch.ones(4)
    first = function(x)
    second = function(x * 3)
    assert first[0].eq(2).all() and first[1].eq(2).all() and second[0].eq(4).all() and second[1].eq(6).all()


@pytest.mark.slow
def test_expanded_and_overlapping_inputs():
    def function(x, y):
        return x + y.sum(-1), (x * 2).sum()

    base = torch.arange(12.0)
    for x, y in (
        (torch.ones(1).expand(3), base.view(3, 4)), (base.as_strided((3,), (0,)), base.as_strided((3, 4), (1, 1))),
        (base[::4], base.view(4, 3).t()),
    ):  # fmt: skip
        assert_agrees(function, x, y)
