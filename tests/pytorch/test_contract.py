"""What PyTorch demands of a back end: types, sizes, threads, processes."""

from __future__ import annotations

import os
import threading
import warnings

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import assert_agrees, compiled  # noqa: E402

import tilec.torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")


# ---- types -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.bool])
@pytest.mark.parametrize("second", [torch.float32, torch.int64, torch.bool])
def test_types_are_promoted_as_pytorch_does(first, second):
    x = torch.tensor([0, 1, 3, 7, 2]).to(first)
    y = torch.tensor([1, 5, 2, 0, 3]).to(second)
    assert_agrees(lambda x, y: (x + y, x * 2, y / 3, x * 1.5, x == y, torch.where(y > 1, x, y)), x, y)


def test_scalars_without_dimensions():
    def mixed(x, n, s):
        return x * s + n, n + 1, s * 2, x.sum(), (x > 0).any()

    assert_agrees(mixed, torch.randn(4), torch.tensor(3), torch.tensor(0.5, dtype=torch.float64))


def test_constants_and_numbers():
    scale = torch.tensor([1.0, 2.0, 3.0])
    assert_agrees(lambda x, k: (x * scale + k, torch.arange(3) * k, torch.full((2,), 0.5)), torch.randn(3), 7)


# ---- sizes -----------------------------------------------------------------------------------------------------------


def test_no_size_is_left_to_pytorch():
    from tilec.torch.reports import forget

    function = compiled(lambda x: torch.softmax(x, -1).view(x.shape[0] * x.shape[1]) * x.shape[1], dynamic=True)
    for n in (3, 5, 8):
        x = torch.randn(n, n + 2)
        torch.testing.assert_close(function(x), torch.softmax(x, -1).view(-1) * (n + 2))
    (graph,) = tilec.torch.report().graphs
    assert 1 <= graph.parts[0].sizes <= 3 and graph.parts[0].reason is None and tilec.torch.report().share == 1
    forget()


def test_sizes_are_results():
    def counted(x):
        return x * x.shape[0], x.shape[0] * 2

    function = compiled(counted, dynamic=True)
    for n in (3, 4):
        y, twice = function(torch.ones(n))
        assert y.tolist() == [n] * n and twice == 2 * n


def test_training_with_changing_sizes():
    model = torch.nn.Linear(4, 3)
    function = compiled(model, dynamic=True)
    for n in (2, 5, 7):
        x = torch.randn(n, 4)
        model.zero_grad()
        function(x).square().sum().backward()
        found = model.weight.grad.clone()
        model.zero_grad()
        model(x).square().sum().backward()
        torch.testing.assert_close(found, model.weight.grad)


def test_no_elements():
    assert_agrees(lambda x: (x + 1, x.sum(), x.sum(0)), torch.randn(0, 4))


def test_a_size_of_a_partitions_result_is_that_of_the_inputs():
    """AOTAutograd alone, unlike Dynamo, asks what it computes for its size; the partition that computes it needs the size."""
    from functorch.compile import aot_function

    from tilec.torch.backend import compilers
    from tilec.torch.options import Options
    from tilec.torch.reports import forget

    forget()

    def shorter(x, y):
        z = torch.cat([x, y])
        return z[: z.shape[0] - 1] * z[1:], z.exp()[: z.numel() // 9]

    function = aot_function(shorter, **compilers(Options()), dynamic=True)
    x, y = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3)
    results = [function(x, y), shorter(x, y)]
    gradients = [torch.autograd.grad(a.square().sum() + b.sum(), x)[0] for a, b in results]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*gradients)
    assert [len(g.parts) for g in tilec.torch.report().graphs] == [1, 1]
    forget()  # Dynamo, which knows nothing of it, does not


def test_data_decides_a_size():
    assert_agrees(lambda x: x[x > 0] * 2 + 1, torch.randn(9))


def test_the_recompile_limit_is_reported():
    function = compiled(lambda x, k: x * k, dynamic=False)
    reported = pytest.warns(UserWarning, match="compiled one function 2 times, its recompile_limit")
    with torch._dynamo.config.patch(recompile_limit=2), reported:
        for n in range(3, 7):
            assert function(torch.ones(n), 2).sum() == 2 * n


# ---- threads and processes -------------------------------------------------------------------------------------------


def test_threads_call_one_model():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    function, x = compiled(model), torch.randn(3, 4)
    function(x)
    expected, found = model(x), []

    def work():
        for _ in range(5):
            y = function(x)
            y.sum().backward()
            found.append(y.detach())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 15
    for y in found:
        torch.testing.assert_close(y, expected.detach())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_calls_and_compiles():
    function, x = compiled(lambda x: torch.exp(x) + 1), torch.randn(4)
    function(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        status = 1
        try:
            other = compiled(lambda x: torch.exp(x) * 3)
            good = torch.allclose(function(x), torch.exp(x) + 1) and torch.allclose(other(x), torch.exp(x) * 3)
            status = 0 if good else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_importing_tilec_imports_no_torch():
    import subprocess
    import sys

    code = "import sys, tilec, tilec.torch, tilec.cli.command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
