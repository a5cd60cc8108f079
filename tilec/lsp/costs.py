"""The costs of statements: an op is planned by a process of its own, which is ended when its text changes.

`python -m tilec.lsp.costs` is that process. It reads a question as JSON from the standard input, and prints its answer as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tilec.core.diagnostics import InternalError, Source, TileError
from tilec.core.quantities import duration
from tilec.dsl import ast
from tilec.dsl.check_sizes import size_names
from tilec.dsl.specialise import not_known
from tilec.lsp.document import with_open

DEFAULT_TARGET = "cpu"  # that of the command line


@dataclass(frozen=True)
class Settings:
    """What costs are predicted for. `sizes`: of all programs; an op takes those that it names."""

    target: str = DEFAULT_TARGET
    sizes: Mapping[str, int] = field(default_factory=dict)


def read_settings(given: object) -> Settings:
    """The settings of an editor, by themselves or below `tilec`. Raises ValueError with what is wrong with them."""
    found = given.get("tilec", given) if isinstance(given, dict) else given
    if found is None:
        return Settings()
    if not isinstance(found, dict):
        raise ValueError("the settings of `tilec` must be a table")
    target, sizes = found.get("target") or DEFAULT_TARGET, found.get("sizes") or {}
    if not isinstance(target, str):
        raise ValueError('`tilec.target` must be a name, such as "h200"')
    if not isinstance(sizes, dict):
        raise ValueError('`tilec.sizes` must be a table, such as {"M": 4096}')
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"`tilec.sizes`: {name} must be a whole number from 0, not {value!r}")
    return Settings(target, sizes)


@dataclass(frozen=True)
class Question:
    """An op to plan. `opened`: the texts that the editor has open, by their paths."""

    name: str
    text: str
    folders: tuple[str, ...]
    opened: Mapping[str, str]
    op: str
    target: str
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Priced:
    """A kernel: the tensors that it computes, and the lines of their statements, as `file:line`."""

    name: str
    tensors: list[str]
    lines: list[str]
    cost: str


@dataclass(frozen=True)
class Answer:
    """`refused`: why there is no plan."""

    kernels: list[Priced] = field(default_factory=list)
    inlined: list[str] = field(default_factory=list)
    refused: str = ""


def question(source: Source, op: ast.Op, settings: Settings, opened: Mapping[str, str]) -> Question | Answer:
    """What to ask of an op of a source. It is answered already where the settings have not all of its sizes."""
    known = size_names(op)
    if missing := [name for name in known if name not in settings.sizes]:
        return Answer(refused=f"{not_known(missing)} not in the setting `tilec.sizes`")
    sizes = {name: value for name, value in settings.sizes.items() if name in known}
    return Question(source.name, source.text, source.folders, opened, op.name, settings.target, sizes)


def described(answer: Answer, settings: Settings, op: ast.Op, equation: ast.Equation) -> Iterator[str]:
    """The kernels that a statement is in and their costs, a sentence each."""
    if answer.refused:
        yield f"no cost on {settings.target}: {answer.refused}"
        return
    at = [f"{name} = {settings.sizes[name]}" for name in size_names(op) if name in settings.sizes]
    where = ", ".join([f"on {settings.target}", *at])
    line = f"{equation.span.source.shown}:{equation.span.line}"
    alone = [statement.span.line for statement in op.body].count(equation.span.line) == 1
    for kernel in answer.kernels:
        if equation.name in kernel.tensors or (alone and line in kernel.lines):
            yield f"kernel `{kernel.name}` ({where}): {kernel.cost}"
    if equation.name in answer.inlined:
        yield f"`{equation.name}` is computed again by each of its readers, and never stored ({where})"


class Costs:
    """Plans of ops, each made once for a text. A change of a text ends those of the texts before it."""

    def __init__(self) -> None:
        self._plans: dict[str, asyncio.Task[Answer]] = {}

    def forget(self) -> None:
        """Ends what is being planned."""
        for task in self._plans.values():
            task.cancel()
        self._plans.clear()

    async def answer(self, asked: Question, seconds: float) -> Answer | None:
        """None where the plan takes longer than `seconds`, or where a change ended it. A plan that takes longer goes on, so that
        the next question finds it."""
        key = json.dumps(asdict(asked))
        if key not in self._plans:
            self._plans[key] = asyncio.ensure_future(_elsewhere(key))
        task = self._plans[key]
        await asyncio.wait([task], timeout=seconds)
        return task.result() if task.done() and not task.cancelled() else None


async def _elsewhere(asked: str) -> Answer:
    """The answer of a process, which ends with this task."""
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(sys.executable, "-m", "tilec.lsp.costs", stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        out, err = await child.communicate(asked.encode())
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    if child.returncode:
        last = err.decode("utf-8", "replace").strip().splitlines()[-1:]
        return Answer(refused=f"the planner ended with status {child.returncode}: {''.join(last)}")
    found = json.loads(out)
    return Answer([Priced(**kernel) for kernel in found["kernels"]], found["inlined"], found["refused"])


# ---- in the process that plans ---------------------------------------------------------------------------------------


def planned(asked: Question) -> Answer:
    """The plan of an op. It obeys the schedule file beside the program, as the command line does."""
    from tilec.core.targets import load
    from tilec.driver.what_if import Problem
    from tilec.dsl.mistakes import read
    from tilec.dsl.specialise import specialise
    from tilec.plan.report.explain import resource
    from tilec.plan.report.records import explanation
    from tilec.plan.report.short import computed_names
    from tilec.plan.schedule.read import read_schedule

    source, loader = Source(asked.name, asked.text, asked.folders), with_open(asked.opened)
    try:
        target, program = load(asked.target), read(source, loader)
        special = specialise(program, asked.op, None, dict(asked.sizes), loader, checked=True)
        schedule = Path(asked.name).with_suffix(".sched.toml")
        obeyed = read_schedule(schedule) if schedule.is_file() else None
        found = explanation(Problem(program, asked.op, asked.sizes, target, schedule=obeyed).plan(special), special)
    except TileError as error:
        first = error.diagnostics[0]
        return Answer(refused=first.text.replace("\n", "; "))
    except InternalError as error:
        return Answer(refused=f"the planner failed: {error}")
    launches = {launch.name: launch.cost for launch in found.launches}
    kernels = []
    for k in found.kernels:
        shared = launches.get(k.launch or "")
        share = k.cost.share if shared is None else shared.share
        cost = f"{duration(k.cost.time_us)} predicted, bound by {k.cost.bound} ({resource(k.cost.limiter)})"
        if share is not None:
            cost += f", {share:.0%} of the op's time" + (f" with the kernels of launch `{k.launch}`" if shared else "")
        kernels.append(Priced(k.name, computed_names(k.computes), [f"{at.file}:{at.line}" for at in k.lines], cost))
    return Answer(kernels, found.inlined)


if __name__ == "__main__":
    given = json.load(sys.stdin)
    json.dump(asdict(planned(Question(**{**given, "folders": tuple(given["folders"])}))), sys.stdout)
