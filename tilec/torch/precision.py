"""PyTorch's switches of how exact products of f32 are: which products may have their factors rounded.

    tensors     operations          switch                                         what it may say
    on a GPU    convolutions        torch.backends.cudnn.conv.fp32_precision       tf32 (by default), ieee
    on a GPU    other products      torch.backends.cuda.matmul.fp32_precision      tf32, ieee (meant by the default, none)
    on a CPU    convolutions        torch.backends.mkldnn.conv.fp32_precision      bf16, tf32, ieee (meant by the default, none)
    on a CPU    other products      torch.backends.mkldnn.matmul.fp32_precision    bf16, tf32, ieee (meant by the default, none)

`allow_tf32`, `torch.set_float32_matmul_precision` and the settings of all of a back end are other names for these, and PyTorch
tells the outcome. A switch is read when a graph is compiled, for its backward graph as well. Dynamo guards those that were read:
a call after a change compiles anew. CPUs have no products of tf32, so that full f32 is meant there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tilec.torch.aten.table import ROUNDED, row_of

if TYPE_CHECKING:
    from torch import fx

MULTIPLIERS = {"cuda": "cuda", "cpu": "mkldnn"}
"""By the kind of a device, PyTorch's name of what multiplies there."""


class Switches:
    """What factors may be rounded to now, by PyTorch's name of what multiplies and by the kind of operation; "" for full f32."""

    @property
    def cuda_conv(self) -> str:
        return _allowed("cuda", "conv", "tf32")

    @property
    def cuda_matmul(self) -> str:
        return _allowed("cuda", "matmul", "tf32")

    @property
    def mkldnn_conv(self) -> str:
        return _allowed("mkldnn", "conv", "bf16")

    @property
    def mkldnn_matmul(self) -> str:
        return _allowed("mkldnn", "matmul", "bf16")


def _allowed(multiplier: str, operation: str, kind: str) -> str:
    return kind if torch._C._get_fp32_precision_getter(multiplier, operation) == kind else ""


switches = Switches()


def mark(graph: fx.Graph) -> None:
    """Has the products of f32 know what their factors may be rounded to, and Dynamo guard the switches that say so."""
    read = set[str]()
    for node in graph.nodes:
        if not (operation := row_of(node).switch):
            continue
        factors = [v for n in node.all_input_nodes if isinstance(v := n.meta.get("val"), torch.Tensor)]
        if not factors or any(v.dtype != torch.float32 for v in factors) or factors[0].device.type not in MULTIPLIERS:
            continue
        switch = f"{MULTIPLIERS[factors[0].device.type]}_{operation}"
        read.add(switch)
        node.meta[ROUNDED] = getattr(switches, switch)
    _guard(read)


def _guard(read: set[str]) -> None:
    """Nothing without a trace of Dynamo's, such as AOTAutograd's own."""
    from torch._guards import TracingContext

    if TracingContext.try_get() is None:
        return
    from torch._dynamo.guards import GuardBuilder, install_guard
    from torch._dynamo.source import AttrSource, ImportSource

    source = AttrSource(AttrSource(AttrSource(ImportSource("tilec"), "torch"), "precision"), "switches")
    for name in sorted(read):
        install_guard(AttrSource(source, name).make_guard(GuardBuilder.CONSTANT_MATCH))
