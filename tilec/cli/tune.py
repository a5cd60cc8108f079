"""`tilec tune`: measures plans of a program, and writes the fastest into the schedule file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tilec.cli import common
from tilec.cli.common import note, say
from tilec.cli.plan import put, schedule_text
from tilec.core.diagnostics import CallError, TileError
from tilec.core.quantities import count, duration

GAIN = 0.02  # of its time, that a plan must save before it takes the place of the compiler's
FINAL = 4  # plans that are measured once more, with the compiler's
SHORT, LONG = 0.02, 0.2  # seconds of a plan's timing


@dataclass
class Measured:
    """A compiled candidate and its time."""

    candidate: Any
    executable: Any
    what: str
    time_us: float = 0.0


def tune(args: argparse.Namespace) -> int:
    from tilec.driver.devices import open_device
    from tilec.driver.tune import candidates, combined, compiled
    from tilec.semantics.error_bounds import enclose
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
    schedule_text(args, loaded, found[0].plan)  # refuses to replace an edited file, before anything takes time
    inputs = random_inputs(loaded.specialised, args.seed, {})
    with common.working("evaluating the program and its error bounds at f64"):
        allowed = enclose(loaded.specialised, inputs, loaded.target.kind)
    plans = _compiled(loaded, found)
    with open_device(loaded.target.kind, inputs, plans[0].executable.outputs) as device:
        right = [m for m in plans if _is_right(m, device, allowed)]
        if not right or right[0] is not plans[0]:
            raise CallError("the compiler's own plan gives wrong results", hint="`tilec verify` finds the stage")
        _measure(device, right, SHORT)
        ranked = sorted(right[1:], key=lambda m: m.time_us)
        final = [right[0], *ranked[:FINAL]]
        faster = [m.candidate for m in ranked if m.time_us < right[0].time_us]
        if together := combined(right[0].candidate.plan, faster, loaded.specialised):
            made = Measured(together, compiled(together, loaded.specialised, loaded.target), "every kernel's best")
            final += [made] if _is_right(made, device, allowed) else []
        _measure(device, final, LONG)
    best = min(final, key=lambda m: m.time_us)
    if best.time_us > (1 - GAIN) * right[0].time_us:
        best = right[0]
    _show(right, final, best)
    path, text = schedule_text(args, loaded, best.candidate.plan, (best.time_us, right[0].time_us))
    put(path, text, best.candidate.plan, f"{duration(best.time_us)} measured")
    return 0


def _compiled(loaded: Any, found: Any) -> list[Measured]:
    """The candidates that compile. A plan that cannot be carried out is reported and left out."""
    from tilec.driver.tune import compiled

    own, made = found[0].plan, []
    with _progress("compiling", len(found)) as step:
        for candidate in found:
            what = candidate.describe(own)
            try:
                made.append(Measured(candidate, compiled(candidate, loaded.specialised, loaded.target), what))
            except TileError as error:
                if candidate is found[0]:
                    raise
                note(f"{what}: {error.diagnostics[0].message}", "left out")
            step()
    return made


def _is_right(m: Measured, device: Any, allowed: Any) -> bool:
    """Whether its results are within the program's error bounds."""
    from tilec.semantics.comparison import compare_array

    device.run(m.executable)
    if all(compare_array(array, allowed[name]).within for name, array in device.results().items()):
        return True
    note(f"{m.what}: results out of bounds, which is a defect of tilec", "left out")
    return False


def _measure(device: Any, plans: list[Measured], budget: float) -> None:
    from tilec.driver.measure import interleaved

    with common.working(f"timing {len(plans)} plans"):
        for m, time in zip(plans, interleaved(device, [m.executable for m in plans], budget)):
            m.time_us = time


def _show(right: list[Measured], final: list[Measured], best: Measured) -> None:
    """The plans that were measured to the end, fastest first; how many there were."""
    shown = dict.fromkeys(map(id, final))
    for m in sorted((m for m in [*final, *right] if shown.pop(id(m), 0) is None), key=lambda m: m.time_us):
        mark = "*" if m is best else " "
        say(f"{mark} {m.time_us:10.1f} us  {m.candidate.predicted_us:10.1f} predicted  {m.what}", [(r"^\*.*", "green")])
    gain = right[0].time_us / best.time_us
    told = f"{gain:.2f} times as fast as the compiler's" if best is not right[0] else "the compiler's choice stays"
    say(f"{count(len(right), 'plan')} measured: {told}")


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
