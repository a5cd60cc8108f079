"""PyTorch programs: `torch.compile(model, backend="tilec")`, ATen graphs as `.tile` text, and `.tile` programs as operators.
Nothing of torch is imported before it is used."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tilec.core.later import later

if TYPE_CHECKING:
    from tilec.torch.call import wait
    from tilec.torch.failures import FallbackWarning
    from tilec.torch.operators import op
    from tilec.torch.reports import report
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            "FallbackWarning": "tilec.torch.failures:FallbackWarning",
            "op": "tilec.torch.operators:op",
            "report": "tilec.torch.reports:report",
            "wait": "tilec.torch.call:wait",
        },
    )

__all__ = ["FallbackWarning", "op", "report", "wait"]

if "torch" in sys.modules:  # `torch.compiler.load_cache_artifacts` may be called next
    from tilec.torch import artifacts

    artifacts.register()
