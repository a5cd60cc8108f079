"""`tilec tune`: measures plans of a program, and writes the fastest into the schedule file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tilec.cli import common
from tilec.cli.common import note, show
from tilec.cli.plan import put, schedule_text
from tilec.core.diagnostics import CallError
from tilec.core.quantities import count, duration

if TYPE_CHECKING:
    from tilec.semantics.fastest import Measured


def tune(args: argparse.Namespace) -> int:
    from tilec.driver.tune import candidates
    from tilec.semantics.error_bounds import enclose
    from tilec.semantics.fastest import compile_plans, fastest
    from tilec.semantics.inputs import random_inputs

    if args.trials < 1:
        raise CallError("--trials must be at least 1")
    args.schedule, args.no_schedule = None, True
    loaded = common.prepare(args)
    if loaded.target.kind == "cuda":
        from tilec.cli.run import need_gpu

        need_gpu()
    with common.working("planning"):
        found = candidates(loaded.specialised, loaded.target, args.trials)
    schedule_text(args, [(found[0].plan, loaded.specialised)])  # refuses to replace an edited file, before anything takes time
    inputs = random_inputs(loaded.specialised, args.seed, {})
    with common.working("evaluating the program and its error bounds at f64"):
        allowed = enclose(loaded.specialised, inputs, loaded.target.backend)
    special, target, leave_out = loaded.specialised, loaded.target, lambda what: note(what, "left out")
    with _progress("compiling", len(found)) as step:
        plans = compile_plans(special, target, found, leave_out, step)
    made = fastest(special, target, plans, inputs, allowed, leave_out, common.working)
    _show(made.right, made.final, made.best)
    best, own = made.best, made.right[0]
    path, text = schedule_text(args, [(best.candidate.plan, special)], (best.time_us, own.time_us))
    put(path, text, best.candidate.plan, f"{duration(best.time_us)} measured")
    return 0


def _show(right: list[Measured], final: list[Measured], best: Measured) -> None:
    """The plans that were measured to the end, fastest first; how many there were."""
    shown = dict.fromkeys(map(id, final))
    for m in sorted((m for m in [*final, *right] if shown.pop(id(m), 0) is None), key=lambda m: m.time_us):
        mark = "*" if m is best else " "
        show(f"{mark} {m.time_us:10.1f} us  {m.candidate.predicted_us:10.1f} predicted  {m.what}", [(r"^\*.*", "green")])
    gain = right[0].time_us / best.time_us
    reported = f"{gain:.2f} times as fast as the compiler's" if best is not right[0] else "the compiler's choice stays"
    show(f"{count(len(right), 'plan')} measured: {reported}")


@contextmanager
def _progress(what: str, count: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal; in a pipe, nothing."""
    if not common.coloured(sys.stderr):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=count)
        yield lambda: bar.advance(task)
