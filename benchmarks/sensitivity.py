"""python -m benchmarks sensitivity: which of the numbers that were fitted to measurements decide anything.

Each number of a target (`tilec/core/fitted.py`) is moved by 30 % down and up, and the programs whose plans read it are planned
again: all rows of the suites, the points of the audits, the examples, and parts of large programs. A row is a number: programs
whose plan another value changes, and by how much their predicted times move. For its first programs a number is moved alone; then
numbers are moved together, and where that changes a plan, halves of them, down to single ones. A number that has changed enough
plans of the suites is not moved for further programs, and beyond the suites none is that has changed one. Where a number says what
it is without its term (`without`), that is tried, too. Moves that cancel each other are not seen: `--only NUMBER` moves one alone.
Nothing is compiled or launched, so that numbers of a GPU need none. What was found for a program is kept in the cache on disk,
until the compiler changes.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import Field, dataclass, field, fields, replace
from functools import cache, reduce
from itertools import repeat
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import audit, kernels, matrix_points, memory_loads, report, result_tables
from benchmarks.large_programs import LARGE
from tilec.core import mlir
from tilec.core.fitted import GROUPS, Fitted, Group
from tilec.core.host import AMX_OPERATIONS
from tilec.core.source import read_source
from tilec.core.target import Target
from tilec.core.targets import load
from tilec.driver.lowering import lower
from tilec.dsl.build import build
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise
from tilec.plan.model import Plan
from tilec.plan.planner import make_plan
from tilec.process.recursion import deep_recursion
from tilec.runtime import cache as disk

WAYS = {"lower": 0.7, "higher": 1.3, "without": None}
MACHINES = {"cuda": ("h200", "a100"), "cpu": ("cpu", "amx")}
"""By the kind of a target. Numbers that change no plan for the first one are moved for the second, which has other instructions."""
MOST = 2  # plans that a number changes: with as many it is not moved for others
ALONE = 1  # program for which a number is moved without others
BATCH = 8  # programs, after which it is looked again which numbers are still moved
PARTS = {"chain": 40, "small": 40, "updates": 8, "transformer": 2, "backward": 3}
"""Of the large programs: so many statements, layers or parameters, in which each of their kinds of kernels is."""
DROPPED = """op attention(q: bf16[B, H, S, D], k: bf16[B, H, S, D], v: bf16[B, H, S, D], seed: i64) -> (o: bf16[B, H, S, D]) {
    s[b, h, i, j] = sum[d](q[b, h, i, d] * k[b, h, j, d]) / sqrt(f32(D))
    p[b, h, i, j] = softmax[j](s[b, h, i, j])
    w[b, h, i, j] = p[b, h, i, j] / 0.9 if rand(seed, ((b * H + h) * S + i) * S + j) < 0.9 else 0
    o[b, h, i, d] = sum[j](w[b, h, i, j] * v[b, h, j, d]) using bf16
}"""
"""Attention with dropout, as models have it that are trained."""
DROPPED_SIZES = ({"B": 4, "H": 16, "S": 2048, "D": 128}, {"B": 8, "H": 12, "S": 512, "D": 64}, {"B": 4, "H": 8, "S": 1024, "D": 96})
HEADINGS = ["number", "value", "read by", "planned again", "other plans", "predicted time", "of"]


def numbers(kind: str) -> dict[str, Field[Any]]:
    """All fitted numbers of a kind of target, as `group.number`."""
    groups = {n: g for n, g in GROUPS.items() if g.kind == kind}
    return {f"{n}.{f.name}": f for n, g in groups.items() for f in fields(g) if f.metadata}


def moved(target: Target, name: str, way: str) -> Target:
    """The target with another value of a number: at least one more or one less where it is whole, the next power of two where it
    has to be one, and for "without" the value with which its term is none."""
    group_name, _, key = name.partition(".")
    group, f = target.fitted.groups[group_name], numbers(target.kind)[name]
    value, factor = getattr(group, key), WAYS[way]
    if factor is None:
        other = f.metadata["without"]
    elif f.metadata["power"]:
        other = value * 2 if factor > 1 else value // 2
    elif f.type is int:
        other = max(round(value * factor), value + 1) if factor > 1 else min(round(value * factor), value - 1)
    else:
        other = value * factor
    groups = {**target.fitted.groups, group_name: replace(group, **{key: max(other, f.metadata["least"])})}
    return replace(target, fitted=replace(target.fitted, groups=groups))


@dataclass(frozen=True)
class _Noted(Fitted):
    """Numbers that note which of them are read."""

    read: set[str] = field(default_factory=set)

    def group(self, kind: type[Any]) -> Any:
        return _Reader(super().group(kind), self.read)


class _Reader:
    def __init__(self, group: Group, read: set[str]):
        self._group, self._read = group, read

    def __getattr__(self, name: str) -> Any:
        self._read.add(f"{self._group.name}.{name}")
        return getattr(self._group, name)


# ---- programs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """A program for one machine."""

    program: kernels.Program
    machine: str

    @property
    def name(self) -> str:
        return self.program.name if self.machine == MACHINES[self.program.target][0] else f"{self.program.name}, {self.machine}"


@cache
def machine(name: str) -> Target:
    """A target; "amx" is the processor here with Intel's AMX, whether it has it or not."""
    if name != "amx":
        return load(name)
    own = load("cpu")
    amx = 1e-3 * own.units * own.clock_ghz * AMX_OPERATIONS
    return replace(own, name=name, features=tuple({*own.features, "amx_bf16"}), tensor={"bf16": {"amx": amx}})


@cache
def problems(kind: str) -> tuple[list[Problem], int]:
    """All programs for each machine, and how many of them, the first, are rows of the suites."""
    suites = [p for p in kernels.programs([kind]) if not p.name.startswith("example")]
    points = [*memory_loads.points(audit.SIZES[kind]), *(matrix_points.points() if kind == "cuda" else ())]
    further = [kernels.Program(f"audit {point.name}", kind, kernels._of(point.work)) for point in points]
    further += [p for p in kernels.programs([kind]) if p.name.startswith("example")]
    for name, count in PARTS.items():
        tree = parse(read_source(LARGE[name].text(count)))
        further.append(kernels.Program(f"large {name} {count}", kind, specialise(tree, None, None, {})))
    for sizes in DROPPED_SIZES:
        name = f"attention with dropout {'x'.join(map(str, sizes.values()))}"
        further.append(kernels.Program(name, kind, specialise(parse(read_source(DROPPED)), None, None, sizes)))
    by_name = dict[str, kernels.Program]()
    for program in (*suites, *further):  # several rows have one name
        name, number = program.name, 1
        while name in by_name:
            name, number = f"{program.name} {number + 1}", number + 1
        by_name[name] = replace(program, name=name)
    return [Problem(p, m) for m in MACHINES[kind] for p in by_name.values()], len(suites)


def named(kind: str, name: str) -> Problem:
    return next(p for p in problems(kind)[0] if p.name == name)


def found_for(kind: str, number: int, alone: Collection[str], in_groups: Collection[str]) -> tuple[str, dict[str, Any]]:
    """The name of a problem. `read`: the numbers that its plan reads. `moved`: for each of them that is moved, whether another plan
    is made, by the way in which it is moved, and this one's predicted time over its own; None where no plan can be made, and for
    numbers that were moved together with others."""
    problem = problems(kind)[0][number]
    target = machine(problem.machine)
    with mlir.context(), mlir.ir.Location.unknown(), deep_recursion():
        module = build(problem.program.special)
        text = mlir.text(module, False)
        key = disk.make_key(Path(__file__).read_text(), disk.compiler_digest(), text, target.digest())
        kept = disk.load(key)
        found: dict[str, Any] = kept[0] if kept is not None else {"read": None, "moved": {}}
        wanted = {*alone, *in_groups}
        if found["read"] is None or any(n in wanted and n not in found["moved"] for n in found["read"]):
            _replan(problem, module, target, alone, in_groups, found)
            disk.save(key, found, {})
    return problem.name, found


def _replan(
    problem: Problem, module: Any, target: Target, alone: Collection[str], in_groups: Collection[str], found: dict[str, Any]
) -> None:
    """Adds what is not yet found. The module is what `build` made."""
    lower(module, target, end="simplify", emit=False, texts=False)
    (function,) = mlir.functions(module.operation)
    noted = _Noted(target.fitted.groups, problem.name, target.fitted.inherits, target.fitted.sources)
    own = make_plan(function, replace(target, fitted=noted))  # of a machine of its own: nothing is remembered of its tiles
    found["read"] = sorted(noted.read)
    fresh = [n for n in found["read"] if n not in found["moved"]]
    for way in WAYS:
        able = [n for n in fresh if way != "without" or numbers(target.kind)[n].metadata["without"] is not None]
        for names in filter(None, [*([n] for n in able if n in alone), [n for n in able if n in in_groups]]):
            _move(own, function, target, names, way, found["moved"])


def _move(
    own: Plan, function: mlir.ir.Operation, target: Target, names: list[str], way: str, found: dict[str, Any]
) -> None:
    """Moves numbers together, and halves of them if that changes the plan."""
    time = None
    try:
        plan = make_plan(function, reduce(lambda t, name: moved(t, name, way), names, target))
        other, time = decided(plan) != decided(own), plan.time_us / own.time_us
    except Exception:  # no tile fits
        other = True
    if len(names) == 1 or not other:
        for name in names:
            found.setdefault(name, {})[way] = other, time if len(names) == 1 else None
        return
    for half in (names[: len(names) // 2], names[len(names) // 2 :]):
        _move(own, function, target, half, way, found)


def decided(plan: Plan) -> str:
    """All that a plan decides: no times and no reasons."""
    kernels = [replace(k, work=None, prediction=None) for k in plan.kernels]  # type: ignore[arg-type]
    return repr(replace(plan, target=None, remarks=(), copies=(), kernels=kernels))  # type: ignore[arg-type]


# ---- rows --------------------------------------------------------------------------------------------------------------


def measure(kind: str, only: list[str], workers: int | None) -> Iterator[dict[str, Any]]:
    """A row for each number whose name contains one of the texts `only`."""
    names = [n for n in numbers(kind) if not only or any(o in n for o in only)]
    count, suites = len(problems(kind)[0]), problems(kind)[1]
    found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in names}
    read, changed = Counter[str](), Counter[str]()
    with ProcessPoolExecutor(workers) as pool:
        for first in range(0, count, BATCH):
            batch = range(first, min(first + BATCH, count))
            most = MOST if first < suites else 1
            if not (wanted := {n for n in names if changed[n] < most}):
                break
            alone = {n for n in wanted if len(found[n]) < ALONE}
            for program, facts in pool.map(found_for, repeat(kind), batch, repeat(alone), repeat(wanted - alone)):
                read.update(facts["read"])
                for name in wanted & facts["moved"].keys():
                    found[name][program] = facts["moved"][name]
                    changed[name] += any(other for way, (other, _) in facts["moved"][name].items() if WAYS[way])
    target = machine(MACHINES[kind][0])
    for name in names:
        group, _, key = name.partition(".")
        yield {"name": name, "value": getattr(target.fitted.groups[group], key), "read": read[name], "tried": len(found[name])} | {
            way: _found(found[name], way) for way in WAYS
        }


def _found(found: dict[str, dict[str, Any]], way: str) -> dict[str, Any]:
    tried = {name: moved[way] for name, moved in found.items() if way in moved}
    times = [time for _, time in tried.values() if time is not None]
    plans = [name for name, (other, _) in tried.items() if other][:MOST]
    return {"plans": plans, "time": [round(min(times, default=1), 4), round(max(times, default=1), 4)]}


def changed(row: dict[str, Any], ways: Iterable[str] = ("lower", "higher")) -> list[str]:
    """The programs whose plans a number was seen to change."""
    return list(dict.fromkeys(name for way in ways for name in row[way]["plans"]))


def evidence() -> dict[str, tuple[str, str]]:
    """By the names of numbers, what the newest results say of them, as a kind and a text: a program whose plan changes where the
    number is `moved`, or where its term goes (`without`); or why it stands (`measured`, `reported`). `none`: no plan changes.
    `new`: not in the results."""
    found = dict[str, tuple[str, str]]()
    for kind in MACHINES:
        rows = {row["name"]: row for row in (result_tables.newest(f"{kind}-sensitivity") or ("", {"rows": []}))[1]["rows"]}
        for name, number in numbers(kind).items():
            plans, gone = (changed(rows[name], w) if name in rows else [] for w in (("lower", "higher"), ("without",)))
            stands = number.metadata["stands"]
            if plans or gone:
                found[name] = ("moved", plans[0]) if plans else ("without", f"without it: {gone[0]}")
            elif stands:
                found[name] = stands.partition(":")[0], stands
            else:
                found[name] = ("none", "none") if name in rows else ("new", "not moved yet")
    return found


def cells(row: dict[str, Any]) -> list[str]:
    times = [t for way in ("lower", "higher") for t in row[way]["time"]]
    programs = changed(row)
    moves = f"{100 * (min(times) - 1):+.1f}% to {100 * (max(times) - 1):+.1f}%"
    return [row["name"], f"{row['value']:g}", str(row["read"]), str(row["tried"]), str(len(programs)), moves, *programs[:1]]


def run(options: argparse.Namespace) -> int:
    started, console = report.started(), Console()
    console.width = max(console.width, 170)
    for kind in options.target or MACHINES:
        rows = list(measure(kind, options.only, options.workers))
        terms = [row["name"] for row in rows if not changed(row) and changed(row, ["without"])]
        undecided = [row["name"] for row in rows if not changed(row, WAYS)]
        report.print_table(console, f"fitted numbers, {kind}", HEADINGS, [[*cells(row), ""][:7] for row in rows])
        for names, what in ((terms, "change plans only if their terms go"), (undecided, "change no plan")):
            console.print(f"{len(names)} of {len(rows)} {what}: {', '.join(names)}", highlight=False)
        if options.json or not options.only:
            path = options.json and options.json.with_stem(f"{options.json.stem}-{kind}")
            console.print(f"written to {report.save(f'{kind}-sensitivity', rows, path, started)}", highlight=False)
    return 0


__all__ = ["changed", "evidence", "named", "numbers", "run"]
