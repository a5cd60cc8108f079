"""PyTorch programs: `torch.compile(model, backend="tilec")`, ATen graphs as `.tile` text, and `.tile` programs as operators.
Nothing of torch is imported before it is used."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilec.torch.call import wait
    from tilec.torch.failures import FallbackWarning
    from tilec.torch.operators import op
    from tilec.torch.reports import report
else:

    def __getattr__(name):
        from importlib import import_module

        if name not in _LATER:
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        return getattr(import_module(_LATER[name]), name)


__all__ = ["FallbackWarning", "op", "report", "wait"]
_LATER = {
    "FallbackWarning": "tilec.torch.failures",
    "op": "tilec.torch.operators",
    "report": "tilec.torch.reports",
    "wait": "tilec.torch.call",
}
"""The modules of what is imported when it is first asked for."""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "torch" in sys.modules:  # `torch.compiler.load_cache_artifacts` may be called next
    from tilec.torch import artifacts

    artifacts.register()
