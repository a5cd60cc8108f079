"""PyTorch programs: `torch.compile(model, backend="tilec")`, ATen graphs as `.tile` text, and `.tile` programs as operators.
Nothing of torch is imported before it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilec.torch.call import wait
    from tilec.torch.failures import FallbackWarning
    from tilec.torch.operators import op
    from tilec.torch.reports import report

__all__ = ["FallbackWarning", "op", "report", "wait"]


def __getattr__(name: str) -> object:
    if name == "report":
        from tilec.torch.reports import report

        return report
    if name == "op":
        from tilec.torch.operators import op

        return op
    if name == "wait":
        from tilec.torch.call import wait

        return wait
    if name == "FallbackWarning":
        from tilec.torch.failures import FallbackWarning

        return FallbackWarning
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
