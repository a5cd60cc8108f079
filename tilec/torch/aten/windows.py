"""Convolutions and pooling."""

from __future__ import annotations

from tilec.torch.aten.table import Call, expresses  # noqa: F401
