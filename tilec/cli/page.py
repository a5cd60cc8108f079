"""The page about a loaded program, for the commands that write it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tilec.cli import common
from tilec.cli.common import Loaded, note, write
from tilec.core.diagnostics import CallError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tilec.driver.lowering import Lowered
    from tilec.plan.model import Plan
    from tilec.report.against import Comparison


def write_page(
    path: Path, loaded: Loaded, lowered: Lowered, measured: Mapping[str, float] | None = None, against: Path | None = None
) -> None:
    """The page of a program after all stages. `measured`: microseconds by kernel name; `against`: a schedule file with another
    plan."""
    from tilec.report.page import page
    from tilec.report.subject import compiled_subject

    with common.working(f"compiling kernels for {loaded.target}"):
        subject = compiled_subject(loaded.specialised, lowered, measured)
    write(path, page(subject, _comparison(loaded, subject.plan, against) if against else None))
    if str(path) != "-":
        note(f"wrote {path}", kind="")


def _comparison(loaded: Loaded, plan: Plan, against: Path) -> Comparison:
    from tilec.plan.schedule.read import read_schedule
    from tilec.report.against import compare

    schedule = read_schedule(against)
    other = replace(loaded, schedule=schedule)
    found = common.lower(other, end="plan", emit=False, expect=False).plan
    assert found is not None, "the stage that was asked for"
    if found.obeys is None:
        what = f"{against} has no plan for {plan.named} on {plan.target.name}"
        raise CallError(what, hint=f"`tilec plan` with `-o {against}`, these sizes and this target writes one")
    own = loaded.schedule.source.shown if loaded.schedule is not None and plan.obeys is not None else "the compiler"
    return compare(loaded.specialised.at(plan.sizes), (plan, found), (own, schedule.source.shown))
