"""Large results for PyTorch lie on huge pages: else their page faults take longer than the kernel."""

import re
from pathlib import Path

import numpy as np
import pytest

import tilec
from tilec.runtime import huge_pages

torch = pytest.importorskip("torch")
SMAPS = Path("/proc/self/smaps")
pytestmark = pytest.mark.skipif(
    not (SMAPS.exists() and Path("/sys/kernel/mm/transparent_hugepage").exists()), reason="needs huge pages of Linux"
)
PROGRAM = "op twice(x: f32[N]) -> (y: f32[N]) { y[i] = 2 * x[i] }"
LARGE = 4 * huge_pages.LEAST_BYTES // 4  # elements


def asked_for(tensor: torch.Tensor) -> bool:
    """Whether the memory in the tensor's middle has been advised to have huge pages (`hg` among the flags, proc(5))."""
    middle = tensor.data_ptr() + tensor.nbytes // 2
    for part in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", SMAPS.read_text())[1:]:
        begin, end = (int(n, 16) for n in part.split(maxsplit=1)[0].split("-"))
        if begin <= middle < end:
            return " hg" in part[part.index("VmFlags:") :]
    raise AssertionError("the memory is not mapped")


def test_memory_of_pytorch_itself_is_not_asked_for():  # else the other tests show nothing
    assert not asked_for(torch.empty(LARGE))


def test_new_results_of_every_call():
    op, x = tilec.compile(PROGRAM), torch.ones(LARGE)
    for _ in range(4):  # the first call, and machine code for those after it
        y = op(x)
        assert asked_for(y)
        assert y[0] == y[-1] == 2


@pytest.mark.parametrize("strides", [(2048, 1), (1, 2048)])
def test_results_of_compiled_graphs(strides):
    x = torch.ones(2048 * 2048).as_strided((2048, 2048), strides)
    with torch.no_grad():
        function = torch.compile(lambda x: x * 2 + 1, backend="tilec")
        for _ in range(3):
            y = function(x)
            assert asked_for(y)
            assert y.stride() == strides


def test_results_of_graphs_without_arguments():
    with torch.no_grad():
        made = torch.compile(lambda: torch.arange(LARGE, dtype=torch.float32) * 2, backend="tilec")()
    assert asked_for(made) and made[3] == 6


def test_a_system_without_huge_pages(monkeypatch):
    monkeypatch.setattr(huge_pages, "_madvise", lambda: None)
    x = torch.ones(LARGE)
    assert huge_pages.advised(x) is x
    assert torch.equal(tilec.compile(PROGRAM)(x), 2 * x)


def test_pages_at_the_edges_are_left_alone():
    """Only whole pages are named: what lies beside the tensor belongs to others."""
    memory = np.zeros(huge_pages.LEAST_BYTES + 8192, np.uint8)
    named = []
    tensor = torch.from_numpy(memory)[100 : 100 + huge_pages.LEAST_BYTES]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(huge_pages, "_madvise", lambda: lambda *given: named.append(given))
        huge_pages.advised(tensor)
    ((start, size, _),) = named
    assert start % 4096 == size % 4096 == 0
    assert tensor.data_ptr() <= start and start + size <= tensor.data_ptr() + tensor.nbytes
