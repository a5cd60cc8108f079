"""Plans that tests force: a kernel built in another way than the planner's."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from tilec.kernels import Family, KernelPlan


def built(kernel: KernelPlan, family: type[Family], **options: Any) -> KernelPlan:
    """The kernel by another family: options that both have stay, but for those given."""
    own = {f.name: getattr(kernel.options, f.name) for f in fields(family) if hasattr(kernel.options, f.name)}
    return replace(kernel, options=family(**(own | options)))
