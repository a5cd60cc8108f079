"""The machines that the cost model is tested with, and machines with other fitted numbers."""

from dataclasses import replace
from typing import Any

from tilec.core.fitted import Group
from tilec.core.target import BUILT_IN, Target, read
from tilec.core.targets import load

H200 = load("h200")
CPU = read(BUILT_IN / "cpu.toml")
CARDS = [load(n) for n in ("h200", "h100", "a100", "l4", "rtx4090", "rtx3090", "b200", "sm_90")]


def refitted(target: Target, group: type[Group], **numbers: Any) -> Target:
    """The target with other numbers in one part of its cost model."""
    groups = target.fitted.groups | {group.name: replace(target.fit(group), **numbers)}
    return replace(target, fitted=replace(target.fitted, groups=groups))
