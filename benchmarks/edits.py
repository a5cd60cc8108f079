"""Edited schedules held to the clock: what is predicted for edits of each family of kernels, beside what they take.

A row is a program of one family. Edits of its schedule are drawn as the fuzzers draw them (`tests/fuzz/edits.py`), from all that
the family's options, the tile and the loops can be, and those that the compiler accepts are compiled and timed. `rank` is
Spearman's rank correlation of the predicted and the measured times, of the unedited plan and all edits; edits of which the code
is the same count once.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.report import print_table, time_text
from benchmarks.runner import Row
from tilec.core.diagnostics import CallError, Source
from tilec.core.source import read_source
from tilec.core.target import Target
from tilec.dsl.specialise import Specialised
from tilec.kernels import FAMILIES
from tilec.plan.model import Plan

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

WANTED = 0.8
SPREAD = 1.5  # of the slowest time over the fastest: where edits matter less, their order tells nothing
NOISE = 0.03  # times that differ by less are equal: of the same code measured twice, they differ by as much
TRIES = 60  # drawn edits for each that is wanted: most are refused
SLOW = 0.05  # seconds of a call that has one round
ROUNDS = 5
EXAMPLES = Path(__file__).parents[1] / "examples"


@dataclass(frozen=True)
class Edited:
    """A program whose kernel is of a family: a file of the examples, or a text."""

    family: str
    program: str
    sizes: dict[str, int]
    op: str | None = None

    @property
    def name(self) -> str:
        sizes = " ".join(map(str, self.sizes.values()))
        message = self.program if self.program in _FILES else re.search(r"op (\w+)", self.program)[1]  # type: ignore[index]
        return f"{self.family}: {self.op or message} {sizes}"

    def machine(self, target: str) -> Target:
        """The target; with little shared memory for plain products, since others take their place elsewhere."""
        from tilec.core.targets import load

        found = load(target)
        if self.family != "vector_contraction" or found.sm is None:
            return found
        return replace(found, sm=replace(found.sm, shared_per_block=2048))

    @property
    def source(self) -> Source:
        file = EXAMPLES / f"{self.program}.tile"
        return read_source(file) if self.program in _FILES else Source("program", self.program)


_FILES = frozenset(path.stem for path in EXAMPLES.glob("*.tile"))
_PRODUCT = "op {name}(a: {a}[M, K], b: {b}[K, N]) -> (c: {c}[M, N]) {{ c[i, j] = sum[k](a[i, k] * b[k, j]) }}"
_BF16 = {"a": "bf16", "b": "bf16", "c": "bf16"}
_SUM = "op turned(x: f32[M, N], w: f32[N, M]) -> (y: f32[N, M]) { y[j, i] = x[i, j] + w[j, i] }"
_ATTENTION = (
    "op attend(q: f32[S, D], k: f32[T, D], v: f32[T, E]) -> (o: f32[S, E]) { s[i, j] = sum[d](q[i, d] * k[j, d]) "
    "m[i] = max[j](s[i, j]) e[i, j] = exp(s[i, j] - m[i]) l[i] = sum[j](e[i, j]) o[i, d] = sum[j](e[i, j] / l[i] * v[j, d]) }"
)
_MANY = (
    "op many(a: bf16[B, M, K], b: bf16[B, K, N]) -> (c: bf16[B, M, N]) { c[h, i, j] = bf16(sum[k](a[h, i, k] * b[h, k, j])) }"
)
_LONG = "op running(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = cumsum[j](x[i, j]) }"
_BLUR = "op blur(x: f32[M, N]) -> (y: f32[M - 2, N - 2]) { y[i, j] = mean[r in 0:3, s in 0:3](x[i + r, j + s]) }"

_HEADS = "op heads(x: f32[B, S, H, D]) -> (y: f32[B, H, S, D]) { y[b, h, s, d] = x[b, s, h, d] * 2 }"
_POOL = "op pool(x: f32[N, H, W, C]) -> (y: f32[N, C]) { y[n, c] = mean[h, w](x[n, h, w, c] * x[n, h, w, c]) }"
_BY_KEY = "op gradient(x: f32[T, D], k: i64[T]) -> (y: f32[V, D]) { y[v, d] = sum[t](x[t, d] if k[t] == v else 0) where v in 0:V }"

PROGRAMS: dict[str, tuple[Edited, ...]] = {
    "cpu": (
        Edited("loop_nest", _POOL, {"N": 16, "H": 48, "W": 48, "C": 96}),
        Edited("loop_nest", "variance", {"M": 4096, "N": 1024}),
        Edited("loop_nest", "jacobi", {"M": 2048, "N": 2048}),
        Edited("register_transpose", "transpose", {"M": 2048, "N": 2048}),
        Edited("register_transpose", _SUM, {"M": 2048, "N": 1024}),
        Edited("panels", _PRODUCT.format(name="product", a="f32", b="f32", c="f32"), {"M": 768, "K": 768, "N": 768}),
        Edited("panels", _PRODUCT.format(name="wide", a="f64", b="f64", c="f64"), {"M": 200, "K": 300, "N": 2000}),
        Edited("panel_chain", _ATTENTION, {"S": 1024, "D": 64, "T": 1024, "E": 64}),
    ),
    "cuda": (
        Edited("points", _HEADS, {"B": 8, "S": 4096, "H": 32, "D": 32}),
        Edited("points", "jacobi", {"M": 8192, "N": 8192}),
        Edited("columns", "variance", {"M": 16384, "N": 4096}),
        Edited("columns", _BLUR, {"M": 4096, "N": 8192}),
        Edited("by_key", _BY_KEY, {"T": 32768, "D": 1024, "V": 50000}),
        Edited("rows", "softmax", {"M": 8192, "N": 4096}),
        Edited("rows", "layernorm", {"M": 8192, "N": 8192}),
        Edited("scan", "cumsum", {"M": 4096, "N": 8192}),
        Edited("scan", _LONG, {"M": 16, "N": 1 << 20}),
        Edited("transpose", "transpose", {"M": 8192, "N": 8192}),
        Edited("vector_contraction", _PRODUCT.format(name="plain", a="f32", b="f32", c="f32"), {"M": 1024, "K": 1024, "N": 1024}),
        Edited("contraction", _PRODUCT.format(name="wide", a="f64", b="f64", c="f64"), {"M": 2048, "K": 2048, "N": 2048}),
        Edited("contraction", _MANY, {"B": 1024, "M": 33, "K": 60, "N": 35}),
        Edited("warpgroup_contraction", _PRODUCT.format(name="product", **_BF16), {"M": 4096, "K": 4096, "N": 4096}),
        Edited("warpgroup_contraction", _PRODUCT.format(name="tall", **_BF16), {"M": 16384, "K": 1024, "N": 1024}),
        Edited("contraction_chain", "attention", {"B": 4, "H": 16, "S": 2048, "T": 2048, "D": 128}, "attention"),
    ),
}
"""By the kind of target. A family without a program is an error of the test of these rows."""


def suite(target: str, most: int = 24) -> list[Row]:
    return [Row(x.name, lambda x=x: run(x, target), 300, prepare=lambda x=x: prepare(x, target, most)) for x in PROGRAMS[target]]


def specialised(made: Edited) -> Specialised:
    from tilec.driver.frontend import read_program
    from tilec.dsl.specialise import specialise

    return specialise(read_program(made.source).tree, made.op, None, dict(made.sizes))


def drawn(made: Edited, program: Specialised, machine: Target, most: int) -> list[tuple[str, str, Plan]]:
    """What is edited, the schedule, and its plan: of the unedited plan, and of up to `most` edits that are no refused ones and
    that differ."""
    from fuzz.choices import Choices
    from fuzz.edits import with_drawn_values

    from tilec.core import mlir
    from tilec.driver.lowering import lower
    from tilec.driver.tune import differences
    from tilec.dsl.build import build
    from tilec.plan.schedule.read import parse_schedule
    from tilec.plan.schedule.write import write_schedule

    found: dict[str, tuple[str, str, Plan]] = {}

    def draw(own: Plan) -> Plan:
        families = {k.options.name for k in own.kernels if k.options}
        assert families == {made.family}, f"{made.name}: {families}"
        text = write_schedule(own, program)
        found["the unedited plan"] = "the unedited plan", text, own
        for number in range(TRIES * most):
            edit = with_drawn_values(Choices(f"{made.name} {number}"), own, text)
            try:
                plan = parse_schedule(Source("edit", edit))(own)
            except CallError:
                continue
            what = ", ".join(message for a, b in zip(own.kernels, plan.kernels) for message in differences(a, b))
            if what and {k.options.name for k in plan.kernels if k.options} == families:
                found.setdefault(what, (what, edit, plan))
            if len(found) > most:
                break
        return own

    with mlir.context(), mlir.ir.Location.unknown():
        lower(build(program), machine, schedule=draw, end="plan", emit=False)
    return list(found.values())


def _folder(made: Edited) -> Path:
    return Path(os.environ["BENCHMARKS_FOLDER"]) / re.sub(r"\W+", "-", made.name)


def _executable(program: Specialised, machine: Target, schedule: str) -> Any:
    from tilec.core import mlir
    from tilec.driver.executables import build_executable
    from tilec.driver.lowering import lower
    from tilec.driver.recipe import Prepared
    from tilec.dsl.build import build
    from tilec.plan.schedule.read import parse_schedule

    with mlir.context(), mlir.ir.Location.unknown():
        lowered = lower(build(program), machine, schedule=parse_schedule(Source("edit", schedule)))
    return build_executable(Prepared(program, lowered, machine))


def _code(executable: Any, plan: Plan) -> str:
    """All that is compiled."""
    registers = [getattr(k.options, "registers", None) for k in plan.kernels]
    return f"{executable.emitted.kernels} {executable.emitted.steps} {registers}"


def prepare(made: Edited, target: str, most: int) -> dict:
    """Compiles edits into the cache on disk, up to `most` of different code, and leaves their schedules in the folder, unless they
    are there."""
    listed = _folder(made) / "edits.json"
    if listed.exists():
        return {}
    program, machine = specialised(made), made.machine(target)
    reported, refused, codes = [], [], set()
    for what, schedule, plan in drawn(made, program, machine, 3 * most):
        if len(reported) > most:
            break
        try:
            executable = _executable(program, machine, schedule)
            if (code := _code(executable, plan)) in codes:
                continue
            codes.add(code)
            if target == "cuda":
                _ = executable.cubins
        except Exception as error:
            refused.append(f"{what}: {type(error).__name__}: {str(error).splitlines()[0][:160]}")
            continue
        reported.append({"what": what, "schedule": schedule})
    listed.parent.mkdir(parents=True, exist_ok=True)
    listed.write_text(json.dumps({"edits": reported, "refused": refused}))
    return {}


def run(made: Edited, target: str) -> dict:
    """Times what `prepare` compiled, predicts it, and compares the results with those of the unedited plan."""
    from tilec.driver.devices import open_device
    from tilec.semantics.inputs import random_inputs

    if not (listed := _folder(made) / "edits.json").exists():
        return {"error": "not compiled: see what was printed, or give more time"}
    facts, program, machine = json.loads(listed.read_text()), specialised(made), made.machine(target)
    made_of = [_executable(program, machine, edit["schedule"]) for edit in facts["edits"]]
    wrong = []
    with open_device(target, random_inputs(program, 0, {}), made_of[0].outputs) as device:
        device.run(made_of[0])
        right = {name: np.array(array, copy=True) for name, array in device.results().items()}
        for edit, executable in zip(facts["edits"], made_of):
            device.run(executable)
            if not all(_near(array, right[name]) for name, array in device.results().items()):
                wrong.append(edit["what"])
        times = _times_us(device, made_of)
    predicted = dict(_predicted(made, program, machine, [edit["schedule"] for edit in facts["edits"]]))
    edits = [[e["what"], round(predicted[n], 2), round(us, 2)] for n, (e, us) in enumerate(zip(facts["edits"], times))]
    return {
        "family": made.family, "program": made.program, "sizes": made.sizes, "target": machine.name,
        "rank": rank_correlation([p for _, p, _ in edits], [us for *_, us in edits], NOISE), "own_us": times[0], "edits": edits,
        "refused": facts["refused"], "wrong": wrong, "right": not wrong,
    }  # fmt: skip


def _predicted(made: Edited, program: Specialised, machine: Target, schedules: list[str]) -> Iterator[tuple[int, float]]:
    """Of each schedule, by its number: as the compiler that runs now predicts it."""
    from tilec.core import mlir
    from tilec.driver.lowering import lower
    from tilec.dsl.build import build
    from tilec.plan.schedule.read import parse_schedule

    plans: list[Plan] = []

    def read(own: Plan) -> Plan:
        plans.extend(parse_schedule(Source("edit", text))(own) for text in schedules)
        return own

    with mlir.context(), mlir.ir.Location.unknown():
        lower(build(program), machine, schedule=read, end="plan", emit=False)
    yield from enumerate(plan.time_us for plan in plans)


def _near(array: np.ndarray, right: np.ndarray) -> bool:
    """Whether results are those of another order of sums."""
    mine, theirs = (np.asarray(a, np.float64) for a in (array, right))
    return bool(np.max(np.abs(mine - theirs), initial=0) <= 2e-2 * max(1e-6, np.max(np.abs(theirs), initial=0)))


def _times_us(device: Any, executables: list[Any]) -> list[float]:
    """The least of the rounds' figures, each of the median or, on a CPU, the least of its calls. Each round goes through all of
    them, so that a disturbance hits all; those with long calls are in one round."""
    found = [min(device.time(e, 1)) for e in executables]
    for number in range(ROUNDS):
        for n, executable in enumerate(executables):
            if found[n] > SLOW and number:
                continue
            times = device.time(executable, max(2, min(40, int(0.01 / max(1e-6, found[n])))))
            figure = min(times) if executable.target.kind == "cpu" else median(times)
            found[n] = min(found[n], figure) if number else figure
    return [1e6 * seconds for seconds in found]


def rank_correlation(left: list[float], right: list[float], tolerance: float = 0.0) -> float:
    """Spearman's: the correlation of ranks, where equal numbers share the mean of theirs. 0 where one side has equal numbers alone.
    Numbers are equal to the least of those that they exceed by the share `tolerance` at most."""

    def ranks(values: list[float]) -> np.ndarray:
        rounded, least = np.array(values), -np.inf
        for n in np.argsort(rounded, kind="stable"):
            least = rounded[n] if rounded[n] > (1 + tolerance) * least else least
            rounded[n] = least
        ordered = np.sort(rounded)
        low, high = (np.searchsorted(ordered, rounded, side) for side in ("left", "right"))
        return (low + high - 1) / 2  # type: ignore[no-any-return]

    a, b = ranks(left), ranks(right)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


# ---- what was found ----------------------------------------------------------------------------------------------------


def by_family(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
    """For each family: its programs, their edits, and the mean of their rank correlations."""
    cells = []
    for family in (f for f in FAMILIES if any(r.get("family") == f for r in rows)):
        mine = [r for r in rows if r.get("family") == family]
        edits = [e for r in mine for e in r["edits"][1:]]
        spread = max(us / r["own_us"] for r in mine for *_, us in r["edits"])
        names = [r["name"].partition(": ")[2] for r in mine]
        each = ", ".join(f"{name} {r['rank']:.2f}" if telling(r) else f"{name} (alike)" for name, r in zip(names, mine))
        ranks = [r["rank"] for r in mine if telling(r)]
        cells.append([f"`{family}`", str(len(edits)), f"{fmean(ranks):.2f}" if ranks else "alike", f"{spread:.3g}", each])
    return ["family", "edits", "rank correlation", "slowest over unedited", "programs"], cells


def telling(row: dict) -> bool:
    """Whether the edits of a row differ by more than noise."""
    times = [us for *_, us in row.get("edits", [])]
    return "rank" in row and max(times) >= SPREAD * min(times)


def targets(rows: list[dict]) -> list[tuple[str, float, float, bool]]:
    """(family, reached, wanted, whether)."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if telling(row):
            found.setdefault(row["family"], []).append(row["rank"])
    return [(family, fmean(ranks), WANTED, fmean(ranks) >= WANTED) for family, ranks in found.items()]


def show(rows: list[dict], console: Console) -> None:
    console.width = max(console.width, 150)
    for row in rows:
        cells = [[time_text(p), time_text(us), what] for what, p, us in sorted(row.get("edits", []), key=lambda e: e[2])]
        if cells:
            print_table(console, f"{row['name']}: rank correlation {row['rank']:.2f}", ["predicted", "measured", "edit"], cells)
        for text in ([row["error"]] if row.get("error") else []) + row.get("wrong", []) + row.get("refused", []):
            console.print(f"{row['name']}: {text}", highlight=False, markup=False)
    print_table(console, "by family", *by_family(rows))
    for family, value, wanted, met in targets(rows):
        console.print(f"{family}: {value:.2f}, wanted {wanted:g}{'' if met else ': missed'}", highlight=False)
