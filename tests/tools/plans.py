"""Plans that tests force: by a schedule file's text, or a kernel built in another way than the planner's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import tomlkit

from tilec.core.diagnostics import Source
from tilec.kernels import Family, KernelPlan
from tilec.plan.model import Plan
from tilec.plan.schedule.read import parse_schedule


def built(kernel: KernelPlan, family: type[Family], **options: Any) -> KernelPlan:
    """The kernel by another family: options that both have stay, but for those given."""
    own = {f.name: getattr(kernel.options, f.name) for f in fields(family) if hasattr(kernel.options, f.name)}
    return replace(kernel, options=family(**(own | options)))


def scheduled(**section: Any) -> Callable[[Plan], Plan]:
    """A schedule file with this section for the program, whichever it is."""

    def obeyed(plan: Plan) -> Plan:
        own = {"program": plan.signature, "target": plan.target.name} | section
        return parse_schedule(Source("given.sched.toml", tomlkit.dumps({"plan": [own]})))(plan)

    return obeyed


def rewritten(**rewrites: Any) -> Callable[[Plan], Plan]:
    """A schedule file that decides these rewrites: `True` takes all that apply, `[]` none."""
    return scheduled(rewrites=rewrites)


def schedule_file(folder: Path, plan: Plan, **rewrites: Any) -> Path:
    """A schedule file that decides these rewrites of a plan's program."""
    path = folder / "given.sched.toml"
    path.write_text(tomlkit.dumps({"plan": [{"program": plan.signature, "target": plan.target.name, "rewrites": rewrites}]}))
    return path


def operations(plan: Plan, rewrite: str) -> list[str]:
    """Where a rewrite was applied."""
    return [step.operation for step in plan.steps(rewrite)]
