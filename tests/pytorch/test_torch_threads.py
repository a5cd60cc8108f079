"""On how many threads compiled graphs run on the CPU: on as many as PyTorch's own operations, at each call."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

import tilec  # noqa: E402
from tilec.core.host import available_threads  # noqa: E402
from tilec.runtime.cpu import pool, threads  # noqa: E402
from tilec.runtime.native.tables import Pool  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")
SHARE = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 7)
several = pytest.mark.skipif(available_threads() < 2, reason="one processor")


@pytest.fixture
def launches():
    """The threads of each launch that several share; PyTorch's number is as before, afterwards."""
    before, seen = torch.get_num_threads(), []
    word = ctypes.c_int64.from_address(pool.table() + 8 * Pool.share)
    address = word.value
    share = SHARE(address)

    @SHARE
    def noted(*given):
        seen.append(given[3])
        share(*given)

    word.value = ctypes.cast(noted, ctypes.c_void_p).value
    yield seen
    word.value = address
    torch.set_num_threads(before)
    tilec.set_threads(None)


def threads_of(call, *inputs, launches):
    del launches[:]
    call(*inputs)
    return set(launches) or {1}


PROGRAM = "op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = exp(x[i, j]) }"


def ways():
    return {
        "compiled": torch.compile(lambda x: torch.softmax(x, 1) * 2, backend="tilec"),
        "symbols": torch.compile(lambda x: torch.softmax(x, 1) + 1, backend="tilec", dynamic=True),
        "operator": tilec.torch.op(PROGRAM, name="tests::exp_threads"),
        "op": tilec.compile(PROGRAM, target="cpu"),
    }


@several
@pytest.mark.parametrize("way", ["compiled", "symbols", "operator", "op"])
def test_pytorchs_number_counts_at_each_call(way, launches):
    import tilec.torch

    call, x = ways()[way], torch.randn(512, 1024)
    call(x)
    for count in (1, 2, 1):
        torch.set_num_threads(count)
        assert threads_of(call, x, launches=launches) == {count} and tilec.get_threads() == count
    tilec.set_threads(2)  # before PyTorch's
    assert threads_of(call, x, launches=launches) == {2}
    tilec.set_threads(None)
    assert threads_of(call, x, launches=launches) == {1}


@several
def test_backward_and_other_threads(launches):
    """PyTorch's number is of all threads: autograd's, and Python's."""
    call, x = torch.compile(lambda x: torch.softmax(x, 1), backend="tilec"), torch.randn(512, 1024, requires_grad=True)
    call(x).sum().backward()
    for count in (1, 2):
        torch.set_num_threads(count)
        assert threads_of(lambda: call(x).sum().backward(), launches=launches) == {count}
        with ThreadPoolExecutor(1) as other:
            assert other.submit(threads_of, call, x.detach(), launches=launches).result() == {count}


def test_the_function_that_reads_pytorchs_number():
    """By machine code, and where libraries do not show it, by Python."""
    call = ctypes.CFUNCTYPE(ctypes.c_int)
    before = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            for address in (threads._torchs(torch), ctypes.cast(threads._by_python(torch), ctypes.c_void_p).value):
                assert call(address)() == count
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["import torch, tilec", "import tilec"], ids=["torch first", "tilec first"])
def test_pytorch_keeps_its_number(order):
    """Whoever loads OpenMP first."""
    text = f"""
{order}
import numpy as np
tilec.compile({PROGRAM!r}, target="cpu")(np.zeros((1024, 1024), np.float32))
import torch
print(torch.get_num_threads(), tilec.get_threads())
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.stdout.split() == ["1", "1"], done.stderr[-2000:]


class Compiled(torch.utils.data.Dataset):
    """Elements by a compiled function and an op."""

    def __len__(self):
        return 4

    def __getitem__(self, k):
        x = torch.full((64, 512), float(k))
        function = torch.compile(lambda x: torch.softmax(x, 1).sum(1), backend="tilec")
        return function(x), tilec.compile(PROGRAM, target="cpu")(x), torch.tensor([torch.get_num_threads(), tilec.get_threads()])


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_data_loader(start, launches):
    """After this process has used the pool. PyTorch has one thread in each of them."""
    ways()["compiled"](torch.randn(512, 1024))
    loader = torch.utils.data.DataLoader(Compiled(), num_workers=2, multiprocessing_context=start, timeout=300)
    for k, (sums, powers, counts) in enumerate(loader):
        torch.testing.assert_close(sums, torch.ones(1, 64))
        torch.testing.assert_close(powers, torch.full((1, 64, 512), float(k)).exp())
        assert counts.tolist() == [[1, 1]]
