"""The fastest of a program's plans, by measurement: for `tilec tune`, and for `mode="max-autotune"` of torch.compile.

Of a program's sizes, types and target the result is kept in the disk cache, as the text of a schedule.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache as once
from math import prod
from pathlib import Path
from typing import Any

from tilec.core.diagnostics import CallError, TileError
from tilec.core.target import Target
from tilec.driver.recipe import Recipe
from tilec.driver.tune import Candidate, candidates, combined, compiled
from tilec.dsl.specialise import Specialised
from tilec.process import progress
from tilec.process.atomic_files import replace_file
from tilec.runtime import cache

GAIN = 0.02  # of its time, that a plan must save before it takes the place of the compiler's
FINAL = 4  # plans that are measured once more, with the compiler's
SHORT, LONG = 0.02, 0.2  # seconds of a plan's timing
TRIALS = 4  # other plans of each kernel, where nobody says how many
BUDGET = 30.0  # seconds in which plans of one program are compiled, then
MOST = 1 << 24  # elements of a program whose results are held to its error bounds, then


@dataclass
class Measured:
    """A compiled candidate, how it differs from the compiler's choice, and its time."""

    candidate: Candidate
    executable: Any
    what: str
    time_us: float = 0.0


@dataclass(frozen=True)
class Fastest:
    """`right`: the plans that were measured, the compiler's first. `final`: those that were measured again, and `best` of these."""

    right: list[Measured]
    final: list[Measured]
    best: Measured


def compile_plans(
    specialised: Specialised, target: Target, found: Sequence[Candidate], leave_out: Callable[[str], object],
    step: Callable[[], object] = lambda: None, budget: float | None = None,
) -> list[Measured]:  # fmt: skip
    """The candidates that compile, of which the first is the compiler's own, as many as `budget` seconds allow. `leave_out` is
    called of a plan that cannot be carried out, `step` of each."""
    plans, end = list[Measured](), time.monotonic() + budget if budget is not None else None
    for candidate in found:
        what = candidate.describe(found[0].plan)
        try:
            plans.append(Measured(candidate, compiled(candidate, specialised, target), what))
        except TileError as error:
            if candidate is found[0]:
                raise
            leave_out(f"{what}: {error.diagnostics[0].message}")
        step()
        if end is not None and time.monotonic() > end:
            break
    return plans


def fastest(
    specialised: Specialised, target: Target, plans: Sequence[Measured], inputs: Mapping[str, Any],
    allowed: Mapping[str, Any] | None, leave_out: Callable[[str], object],
    working: Callable[[str], AbstractContextManager[Any]] = progress.during,
) -> Fastest:  # fmt: skip
    """Times compiled plans on these inputs, of which the first is the compiler's own. `allowed`: error bounds of the results; None
    where they are not looked at. `leave_out` is called of a plan that is wrong. Raises CallError where the compiler's own is."""
    from tilec.driver.devices import open_device
    from tilec.driver.measure import interleaved

    def is_right(m: Measured) -> bool:
        from tilec.semantics.comparison import compare_array

        device.run(m.executable)
        if allowed is None or all(compare_array(a, allowed[name]).within for name, a in device.results().items()):
            return True
        leave_out(f"{m.what}: results out of bounds, which is a defect of tilec")
        return False

    def measure(some: list[Measured], seconds: float) -> None:
        with working(f"timing {len(some)} plans"):
            for m, time_us in zip(some, interleaved(device, [m.executable for m in some], seconds)):
                m.time_us = time_us

    with open_device(target.kind, dict(inputs), plans[0].executable.outputs) as device:
        right = [m for m in plans if is_right(m)]
        if not right or right[0] is not plans[0]:
            raise CallError("the compiler's own plan gives wrong results", hint="`tilec verify` finds the stage")
        measure(right, SHORT)
        ranked = sorted(right[1:], key=lambda m: m.time_us)
        final = [right[0], *ranked[:FINAL]]
        faster = [m.candidate for m in ranked if m.time_us < right[0].time_us]
        if merged := combined(right[0].candidate.plan, faster, specialised):
            made = Measured(merged, compiled(merged, specialised, target), "every kernel's best")
            final += [made] if is_right(made) else []
        measure(final, LONG)
    best = min(final, key=lambda m: m.time_us)
    return Fastest(right, final, best if best.time_us <= (1 - GAIN) * right[0].time_us else right[0])


def fastest_schedule(recipe: Recipe) -> Path | None:
    """A file with the schedule of a recipe's fastest plan, from the cache or by measurement; the recipe has none. None where it
    is the compiler's own. Raises TileError where plans cannot be measured, for want of memory, say."""
    key = cache.make_key("fastest", recipe.key)
    found = cache.load(key)
    text = found[0].get("schedule") if found is not None else None
    if not isinstance(text, str):
        with progress.during(f"measuring plans of {recipe.op}"):
            text = _measured(recipe)
        cache.save(key, {"schedule": text}, {})
    if not text:
        return None
    path = (cache.entries() or _folder()) / f"{key}.sched.toml"
    if not path.is_file():
        replace_file(path, text.encode(), 0o600)
    return path


@once
def _folder() -> Path:
    """Where there is no cache."""
    return Path(tempfile.mkdtemp(prefix="tilec-"))


def _measured(recipe: Recipe) -> str:
    """The schedule of the fastest plan, or "" for the compiler's own. Plans of the kernels that take longest come first."""
    from tilec.semantics.error_bounds import enclose
    from tilec.semantics.inputs import random_inputs
    from tilec.semantics.reference import extents_of

    special, target = recipe.specialised, recipe.target
    kind: Any = target.kind
    own, *others = candidates(special, target, TRIALS)
    if not others:
        return ""
    times = {name: p.time_us for name, p in own.plan.predictions.items()}
    others.sort(key=lambda c: -times.get(c.kernel or "", 0.0))  # stable: the likely ones of a kernel first
    inputs = random_inputs(special, 0, {})
    elements = sum(prod(high - low for low, high in extents_of(e).values()) for e in special.equations)
    allowed = enclose(special, inputs, kind) if elements <= MOST else None
    plans = compile_plans(special, target, [own, *others], progress.at, budget=BUDGET)
    found = fastest(special, target, plans, inputs, allowed, progress.at)
    return found.best.candidate.schedule if found.best is not found.right[0] else ""
