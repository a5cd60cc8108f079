"""`.tile` programs as operations of JAX: `tilec.jax.op(source)`. Nothing of JAX is imported before it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilec.core.later import later

if TYPE_CHECKING:
    from tilec.jax.operators import op
else:
    __getattr__, __dir__ = later(__name__, {"op": "tilec.jax.operators:op"})

__all__ = ["op"]
