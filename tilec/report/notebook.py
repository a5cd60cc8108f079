"""What notebooks show of ops and plans: small cards in HTML, and explanations as they are printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import dedent
from typing import TYPE_CHECKING

from tilec.core.diagnostics import CallError
from tilec.core.quantities import count, duration
from tilec.cost.model import roofline
from tilec.plan.report.explain import bound_by
from tilec.report.template import fill

if TYPE_CHECKING:
    from tilec.driver.executable import Executable
    from tilec.driver.kernel import Printer
    from tilec.plan.groups import Remark
    from tilec.plan.model import Plan

SHORT = 16  # lines of a program that is shown open


class Explanation(str):
    """A text that IPython shows as it is printed, not as a literal."""

    __slots__ = ()

    def _repr_pretty_(self, printer: Printer, cycle: bool) -> None:
        printer.text(self)


@dataclass(frozen=True)
class Row:
    """A kernel: its name, cells below the card's headings, and its share of the predicted time."""

    name: str
    cells: tuple[str, ...]
    share: float


def op_card(name: str, text: str, executable: Executable | None) -> str | None:
    """The program, and the kernels of its latest specialisation, if it has one. Compiles nothing. None where Jinja2 is not
    installed: IPython then shows the text."""
    program = dedent(text.strip("\n")).rstrip()
    about, rows = ["not compiled yet: the first call does that"], list[Row]()
    if executable is not None:
        inputs = ", ".join(f"{n}: {d.name}[{', '.join(map(str, shape))}]" for n, d, shape in executable.compiled.inputs)
        kernels = executable.kernels
        total = sum(k.predicted_us for k in kernels)
        about = [f"compiled for {inputs}" if inputs else "compiled", f"target {executable.target.name}"]
        about += [f"{count(len(kernels), 'kernel')}, {duration(total)} predicted"] if kernels else []
        rows = [Row(k.name, (duration(k.predicted_us), str(k.grid)), k.predicted_us / (total or 1.0)) for k in kernels]
    blocks = "blocks" if executable is not None and executable.target.kind == "cuda" else "tasks"
    return _card(f"op {name}", about, ("predicted", blocks), rows, program=program)


def plan_card(plan: Plan) -> str | None:
    """The kernels of a plan with what bounds them, and its decisions. None where Jinja2 is not installed."""
    total = sum(k.prediction.time_us for k in plan.kernels) or 1.0
    rows = []
    for k in plan.kernels:
        p = k.prediction
        speed = f"{roofline(k.work, plan.target).time_us / p.time_us:.0%}"
        rows.append(Row(k.name, (duration(p.time_us), speed, ", ".join(k.nodes), bound_by(p)), p.time_us / total))
    headings = ("predicted", "of the roofline", "computes", "bound by")
    return _card(f"plan of {plan.named}", _about(plan), headings, rows, decisions=plan.remarks)


def plan_text(plan: Plan) -> str:
    """The same in short, for a terminal."""
    width = max((len(k.name) for k in plan.kernels), default=0)
    head = f"plan of {plan.named}: {', '.join(_about(plan))}"
    kernels = [f"  {k.name:{width}}  {duration(k.prediction.time_us):>9}  bound by {bound_by(k.prediction)}" for k in plan.kernels]
    return "\n".join([head, *kernels])


def _about(plan: Plan) -> list[str]:
    return [f"target {plan.target.name}", plan.counted, f"{duration(plan.time_us)} predicted"]


def _card(
    title: str, about: Sequence[str], headings: Sequence[str], rows: Sequence[Row], program: str = "",
    decisions: Sequence[Remark] = (),
) -> str | None:  # fmt: skip
    short = program.count("\n") < SHORT
    try:
        return fill(
            "card", title=title, about=about, headings=headings, rows=rows, program=program, short=short, decisions=decisions,
            numeric=("predicted", "of the roofline", "blocks", "tasks"),
        )  # fmt: skip
    except CallError:  # no Jinja2
        return None
