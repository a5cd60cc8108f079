"""The decompositions that graphs are traced with."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from tilec.torch.aten import composites, dropouts, embeddings, foreach, losses, transformers
from tilec.torch.aten.table import words

WHOLE = words(
    "_safe_softmax silu baddbmm addmv mv dot vdot stack softplus logsumexp roll tril triu narrow narrow_copy select_scatter "
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
    "_upsample_nearest_exact3d reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d "
    "replication_pad3d max_unpool2d max_unpool3d index_add index_copy col2im detach "
    "std std_mean"
)
"""Operations that are one expression here."""
COMPOSITE, BACKENDS = "CompositeImplicitAutograd", ("CPU", "CUDA")


def decompositions() -> dict[Any, Any]:
    """The decompositions that graphs are traced with: core ATen's, but for operations that are one expression here."""
    kept = {f"aten.{name}" for name in WHOLE}
    own = dict(p for m in (foreach, losses, embeddings, dropouts, composites, transformers) for p in m.decompositions().items())
    table = {**_core(), **own}
    return {op: f for op, f in table.items() if not (isinstance(op, OpOverload) and str(op).rpartition(".")[0] in kept)}


def _core() -> dict[Any, Any]:
    """What `core_aten_decompositions()` says of operations that reach a graph. It lists all composite operations, too, for 0.2 s;
    tracing decomposes these anyway, but for the few that also have a kernel of their own."""
    from torch._decomp import _core_aten_decompositions_post_autograd
    from torch.export.decomp_utils import PRESERVED_ATEN_CIA_OPS

    names = {key: set(torch._C._dispatch_get_registrations_for_dispatch_key(key)) for key in (*BACKENDS, COMPOSITE)}
    found = dict(_core_aten_decompositions_post_autograd())
    for name in names[COMPOSITE].intersection(set().union(*(names[key] for key in BACKENDS))):
        packet, _, overload = name.removeprefix("aten::").partition(".")
        if name.startswith("aten::"):
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
            if op not in PRESERVED_ATEN_CIA_OPS:
                found.setdefault(op, op.decompose)
    return found
