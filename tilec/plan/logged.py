"""A plan's decisions as lines of `TILEC_LOGS`."""

from __future__ import annotations

from tilec.core.quantities import duration
from tilec.plan.model import Plan
from tilec.process.logs import log, wants

FUSION = ("fused", "inlined", "not inlined", "online", "refused")
"""What is said of operations that became one kernel, or did not."""


def log_decisions(plan: Plan) -> None:
    """Reports the kernels of a plan and its remarks, each with its place in the program."""
    if not (wants("plan") or wants("fusion")):
        return
    for remark in plan.remarks:
        where = f"{remark.line[0]}:{remark.line[1]}: " if remark.line else ""
        log("fusion" if remark.verb in FUSION else "plan", f"{where}{remark}")
    for kernel in plan.kernels:
        name, tile = kernel.options.name if kernel.options is not None else "", "x".join(map(str, kernel.tile)) or "all"
        time, bound = duration(kernel.prediction.time_us), kernel.prediction.bound
        log("plan", f"kernel {kernel.name} of {', '.join(kernel.nodes)}: {name}, tile {tile}, {time} predicted, bound by {bound}")
