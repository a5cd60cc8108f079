"""Graphs are traced with core ATen's decompositions, but for what is said whole."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import compiled  # noqa: E402

import tilec.torch  # noqa: E402
from tilec.torch import aten  # noqa: E402
from tilec.torch.aten.decompositions import WHOLE  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")


def test_graphs_are_traced_with_core_atens_table():
    """What it leaves out is said whole here, or a composite operation without a kernel, which tracing decomposes."""
    from torch._decomp import core_aten_decompositions

    ours = aten.decompositions()
    for op in dict(core_aten_decompositions().items()).keys() - ours.keys():
        if not isinstance(op, torch._ops.OpOverload) or str(op).rpartition(".")[0].removeprefix("aten.") in WHOLE:
            continue
        assert op._can_decompose(), op
        kernels = [k for k in ("CPU", "CUDA") if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), k)]
        assert not kernels, (op, kernels)
    assert torch.ops.aten.native_channel_shuffle.default in ours


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_composite_operations_are_decomposed(mode):
    """Whatever a gradient's mode: `native_channel_shuffle` has a kernel of its own, `einsum` and `chunk` have none."""

    def function(x):
        first, second = torch.einsum("bchw,c->bchw", torch.channel_shuffle(x, 2), x.new_ones(4)).chunk(2, 1)
        return first.matmul(second.mT).movedim(1, 2)

    x = torch.randn(2, 4, 3, 5)
    with mode():
        torch.testing.assert_close(compiled(function)(x), function(x))
    assert tilec.torch.report().share == 1
