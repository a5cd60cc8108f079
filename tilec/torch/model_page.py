"""The page about a PyTorch model, from its dump: layers, partitions, the predicted time of every kernel, and what PyTorch runs.

Each partition is planned for the device that it ran on, or for a target that is given, at the sizes that it was traced at.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tilec.core import mlir
from tilec.core.diagnostics import TileError
from tilec.core.quantities import duration
from tilec.core.source import read_source
from tilec.core.target import Target
from tilec.core.targets import load
from tilec.cost.model import roofline
from tilec.driver.lowering import lower
from tilec.dsl.build import build
from tilec.dsl.mistakes import read
from tilec.dsl.specialise import specialise
from tilec.plan.model import Plan
from tilec.plan.report.explain import bound_by
from tilec.process import progress
from tilec.report.template import fill
from tilec.torch.reports import GraphReport, PartReport, Report

_COMMENT = re.compile(r"  # (?P<operation>[\w.]+)(?:, (?P<parts>.*))?$")
_WHERE = re.compile(r"[\w.-]+\.py:\d+$")


@dataclass(frozen=True)
class Origin:
    """What a line of a partition was made from: the ATen operation, the module and the line of the model."""

    operation: str
    layer: str
    line: str


@dataclass(frozen=True)
class KernelRow:
    """A kernel. `share`: of the whole model's predicted time. `layers` and `operations`: of its lines."""

    name: str
    time: str
    us: float
    share: float
    bound: str
    roofline: float
    layers: list[str]
    operations: list[str]


@dataclass(frozen=True)
class PartView:
    """A partition. `failed`: why there is no plan of it, if there is none."""

    name: str
    path: str
    sizes: str
    target: str
    operations: int
    time: str
    kernels: list[KernelRow]
    failed: str


@dataclass(frozen=True)
class EagerRow:
    operation: str
    count: int
    reason: str
    where: list[str]


@dataclass(frozen=True)
class GraphView:
    name: str
    kind: str
    taken: int
    operations: int
    share: float
    seconds: str
    time: str
    not_replayed: str
    parts: list[PartView]
    eager: list[EagerRow]


@dataclass
class Layer:
    """A module of the model. `us`: its kernels' time; that of a kernel of several layers is divided equally among its lines."""

    name: str
    us: float = 0.0
    operations: Counter[str] = field(default_factory=Counter)
    eager: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class _Planned:
    """A partition's file with its plan, or why there is none."""

    path: Path
    part: PartReport
    target: str
    plan: Plan | None
    origins: dict[int, Origin]
    failed: str = ""


def model_page(folder: Path, report: Report, target: str | None) -> str:
    """The text of the page. `target`: of all partitions, in place of the devices that they ran on. Raises TileError where there is
    no such target, CallError where Jinja2 is not installed."""
    found = {graph.name: [_planned(folder / graph.name, p, target) for p in graph.parts] for graph in report.graphs}
    partitions = [planned for own in found.values() for several in own for planned in several]
    total = sum(p.plan.time_us for p in partitions if p.plan is not None) or 1.0
    layers = _layers(report, partitions)
    longest = max((layer.us for layer in layers), default=0.0) or 1.0
    graphs = [_graph(g, found[g.name], total) for g in report.graphs]
    return fill(
        "model",
        folder=str(folder),
        target=target or "",
        taken=report.taken,
        operations=report.operations,
        share=report.share,
        time=duration(total) if any(p.plan for p in partitions) else "",
        counted=sum(len(p.plan.kernels) for p in partitions if p.plan is not None),
        graphs=graphs,
        layers=[(layer, duration(layer.us), layer.us / longest) for layer in layers],
    )


def _planned(folder: Path, part: PartReport, target: str | None) -> list[_Planned]:
    """The plans of a partition's files. PyTorch runs a partition without files."""
    found = []
    for file, sizes in part.programs.items():
        path, name = folder / file, target or part.device or "cpu"
        origins: dict[int, Origin] = {}
        machine = load(name)
        try:
            progress.at(f"planning {path}")
            source = read_source(path)
            origins = dict(_origins(source.text))
            found.append(_Planned(path, part, str(machine), _plan(path, sizes, machine), origins))
        except (TileError, OSError) as error:
            found.append(_Planned(path, part, str(machine), None, origins, str(error).splitlines()[0]))
    return found


def _plan(path: Path, sizes: Mapping[str, int], target: Target) -> Plan:
    special = specialise(read(read_source(path)), None, None, sizes, checked=True)
    with mlir.context(), mlir.ir.Location.unknown():
        plan = lower(build(special), target, texts=False, end="plan", emit=False).plan
    assert plan is not None, "the stage that was asked for"
    return plan


def _origins(text: str) -> Iterator[tuple[int, Origin]]:
    """By line, what the comments of a dumped file say (`tilec/torch/origins.py`)."""
    for number, line in enumerate(text.split("\n"), 1):
        if (comment := _COMMENT.search(line)) and not line.startswith("#"):
            parts = [p for p in (comment["parts"] or "").split(", ") if p]
            where = parts.pop() if parts and _WHERE.match(parts[-1]) else ""
            yield number, Origin(comment["operation"].removeprefix("aten.").removesuffix(".default"), ", ".join(parts), where)


def _kernels(planned: _Planned, total: float) -> list[KernelRow]:
    if (plan := planned.plan) is None:
        return []
    rows = []
    for k in plan.kernels:
        own = [planned.origins[line] for _, line in k.lines if line in planned.origins]
        us = k.prediction.time_us
        rows.append(KernelRow(
            k.name, duration(us), us, us / total, bound_by(k.prediction), roofline(k.work, plan.target).time_us / us,
            list(dict.fromkeys(o.layer or "(the model)" for o in own)), list(dict.fromkeys(o.operation for o in own)),
        ))  # fmt: skip
    return sorted(rows, key=lambda row: -row.us)


def _graph(graph: GraphReport, planned: list[list[_Planned]], total: float) -> GraphView:
    parts = []
    for part, files in zip(graph.parts, planned):
        if not files:
            reason = part.reason or "the dump has no program of it: run the model again with this version of tilec"
            parts.append(PartView(part.name, "", "", "", part.operations, "", [], reason))
        for p in files:
            sizes = ", ".join(f"{name} = {n}" for name, n in part.programs[p.path.name].items())
            time = duration(p.plan.time_us) if p.plan is not None else ""
            parts.append(PartView(p.path.stem, str(p.path), sizes, p.target, part.operations, time, _kernels(p, total), p.failed))
    us = sum(p.plan.time_us for files in planned for p in files if p.plan is not None)
    share = graph.taken / graph.operations if graph.operations else 1.0
    reasons = Counter((e.operation, e.reason) for e in graph.eager)
    eager = [
        EagerRow(name, n, reason, list(dict.fromkeys(
            ", ".join(w for w in (e.module, e.line) if w) for e in graph.eager if (e.operation, e.reason) == (name, reason)
        )))
        for (name, reason), n in reasons.most_common()
    ]  # fmt: skip
    return GraphView(
        graph.name, graph.kind, graph.taken, graph.operations, share, f"{graph.seconds:.1f} s", duration(us) if us else "",
        graph.not_replayed or "", parts, eager,
    )  # fmt: skip


def _layers(report: Report, partitions: list[_Planned]) -> list[Layer]:
    """All modules, those of the longest kernels first."""
    found: dict[str, Layer] = {}

    def layer(name: str) -> Layer:
        return found.setdefault(name, Layer(name or "(the model)"))

    for planned in partitions:
        for origin in planned.origins.values():
            layer(origin.layer).operations[origin.operation] += 1
        for kernel in planned.plan.kernels if planned.plan is not None else ():
            own = [planned.origins[line] for _, line in kernel.lines if line in planned.origins]
            for origin in own:
                layer(origin.layer).us += kernel.prediction.time_us / len(own)
    for graph in report.graphs:
        for e in graph.eager:
            layer(e.module).eager[e.operation] += 1
    return sorted(found.values(), key=lambda one: -one.us)
