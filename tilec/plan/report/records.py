"""What `explain` knows of a plan, as records: the table, the report of one kernel and `--json` are made of them.

Times are microseconds, traffic is bytes. A docstring under a field is its description in the JSON schema (docs/json.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tilec.cost.launches import launch_work
from tilec.cost.model import Prediction, Work, roofline
from tilec.dsl.specialise import Specialised
from tilec.plan.groups import Remark
from tilec.plan.model import Plan
from tilec.plan.report.expectations import Expectation, expectations, minimal_traffic, traffic
from tilec.plan.report.explain import UNOBSERVED, Observed, facts, verdict
from tilec.plan.report.provenance import Provenance


@dataclass(frozen=True)
class Line:
    """A line of a source file."""

    file: str
    line: int


@dataclass(frozen=True)
class Alternative:
    """What else was weighed at a decision."""

    name: str
    time_us: float


@dataclass(frozen=True)
class Decision:
    """A decision of the compiler, or a refusal."""

    verb: str
    """What was decided: "fused", "refused", "inlined", "not inlined", "tiled", "obeyed", ..."""
    subject: str
    """The operations or the kernel that it is about."""
    reason: str
    at: Line | None
    """The source line that it is about; null where it is about the whole program."""
    alternatives: list[Alternative]


@dataclass(frozen=True)
class Rewrite:
    """A step that changed the program before its kernels were made."""

    kind: str
    """The key under `rewrites` of the schedule file."""
    operation: str
    reason: str
    at: Line | None


@dataclass(frozen=True)
class Cost:
    """What a kernel, a launch or a copy costs."""

    time_us: float
    """The predicted time."""
    measured_us: float | None
    """The measured time, with `--measure`."""
    share: float | None
    """The part of the whole program's predicted time, from 0 to 1; null for a kernel that shares a launch."""
    bound: str
    """The kind of the limit: "memory", "compute" or "overhead"."""
    limiter: str
    """The resource that takes longest: "dram", "l2", "tensor", "launch", ..."""
    limit_us: float
    """The least time that the roofline allows: that of the bytes or of the operations, whichever is longer."""
    terms_us: dict[str, float]
    """How long each resource is busy. The resources are busy at the same time, so that these times do not add up."""
    read_bytes: float
    written_bytes: float

    @property
    def best_known_us(self) -> float:
        """The measured time, or else the predicted one."""
        return self.time_us if self.measured_us is None else self.measured_us

    @property
    def of_limit(self) -> float:
        """The speed as a share of what the roofline allows."""
        return self.limit_us / self.best_known_us if self.best_known_us else 1.0


@dataclass(frozen=True)
class Kernel:
    """A kernel of the plan."""

    name: str
    computes: list[str]
    """The operations that it computes, by their names in the program."""
    writes: list[str]
    """The tensors that it stores."""
    lines: list[Line]
    """The source lines of its operations."""
    launch: str | None
    """The launch that it shares with other kernels; null where it shares none."""
    cost: Cost
    family: str
    """The kernel family, by its name in the schedule file."""
    blocks: int
    """Blocks of the grid: thread blocks on a GPU, tasks of a parallel loop on a CPU."""
    operations: dict[str, float]
    """Operations by unit, such as "fma.f32", "tensor.bf16@wgmma" and "special". A fused multiply-add counts as two."""
    model: str | None
    """With `--measure`: the amount of the cost model that explains a wrong prediction best."""
    facts: dict[str, str]
    """What `explain --kernel` prints of it, as labels and texts. They are for people, and may change."""


@dataclass(frozen=True)
class Launch:
    """A launch that several kernels share."""

    name: str
    kernels: list[str]
    cost: Cost


@dataclass(frozen=True)
class Copy:
    """A result that is an input, or another result. It is copied without a kernel."""

    name: str
    source: str
    cost: Cost


@dataclass(frozen=True)
class ClassOfSizes:
    """A class of sizes: one program serves all of its sizes."""

    sizes: str
    """The ranges, such as "M = 2..16"."""
    kernels: int | None
    time_us: float | None
    """The predicted time at the class's typical sizes; null where each size is compiled on its own."""
    refused: str | None
    """Why the class has no program of its own; null where it has one."""


@dataclass(frozen=True)
class Explanation:
    """A plan, its predicted times and its decisions."""

    schema: Literal["tilec.explain/1"] = field(default="tilec.explain/1", init=False)
    """The name and version of this format."""
    program: str
    """The op with the types and shapes of its inputs."""
    target: str
    """The target's name, as `--target` takes it."""
    device: str
    """The device that the times are predicted for."""
    note: str | None
    """Where the device's figures come from, if they are not its own measured ones."""
    fitted: str | None
    """Where the cost model's numbers come from, if they were fitted on another device."""
    sizes: dict[str, int]
    varies: dict[str, str]
    """The ranges of the sizes that vary, such as "2..16"; `sizes` are those that the plan was made at."""
    time_us: float
    """The predicted time of all kernels and copies."""
    measured_us: float | None
    traffic_bytes: float
    """Bytes that kernels and copies read and write."""
    minimal_bytes: int
    """Bytes of the inputs, read once, and of the outputs, written once."""
    expectations: list[Expectation]
    """The `expect` statements of the program."""
    counted: str
    """In words, such as "2 kernels in 1 launch and 1 copy"."""
    kernels: list[Kernel]
    """In the order in which they run."""
    launches: list[Launch]
    copies: list[Copy]
    inlined: list[str]
    """Operations that their readers compute again, which are never stored."""
    rewrites: list[Rewrite]
    decisions: list[Decision]
    classes: list[ClassOfSizes]
    """With a range for a size: every class of sizes."""

    @property
    def ranked(self) -> list[Kernel | Launch | Copy]:
        """Kernels, launches and copies, longest first; each kernel that shares a launch follows it."""
        alone: list[Kernel | Launch | Copy] = [*(k for k in self.kernels if k.launch is None), *self.launches, *self.copies]
        found: list[Kernel | Launch | Copy] = []
        for each in sorted(alone, key=lambda part: -part.cost.best_known_us):
            found.append(each)
            if isinstance(each, Launch):
                found += sorted((k for k in self.kernels if k.launch == each.name), key=lambda k: -k.cost.time_us)
        return found


def explanation(
    plan: Plan, specialised: Specialised, observed: Observed = UNOBSERVED, classes: Sequence[ClassOfSizes] = ()
) -> Explanation:
    """The record of a plan. `classes`: those of the ranges that were given."""
    times, where = observed.measured, Provenance(specialised, plan)
    costs = _Costs(plan, times)
    shared = {kernel: name for name, kernels in plan.launches.items() for kernel in kernels}
    works = {k.name: k.work for k in plan.kernels}
    kernels = []
    for k in plan.kernels:
        launch, found = shared.get(k.name), times.get(k.name)
        kernels.append(Kernel(
            k.name, list(k.nodes), list(dict.fromkeys(k.outputs)), _lines(k.lines), launch,
            costs.of(k.name, k.prediction, k.work, alone=launch is None), k.family.name, k.blocks, dict(k.work.flops),
            verdict(k, plan.target, found, observed.counted.get(k.name, {})) if found else None,
            dict(facts(k, plan, where, observed.registers.get(k.name))),
        ))  # fmt: skip
    launches = [
        Launch(name, list(own), costs.of(name, plan.predictions[name], launch_work([works[k] for k in own])))
        for name, own in plan.launches.items()
    ]
    copied = {c.name: times["copies"] for c in plan.copies if len(plan.copies) == 1 and "copies" in times}
    costs = _Costs(plan, copied)
    return Explanation(
        program=plan.named, target=plan.target.name, device=str(plan.target), note=plan.target.note or None,
        fitted=str(plan.target.fitted) or None, sizes=dict(specialised.sizes),
        varies={name: str(values) for name, values in plan.varies.items()},
        time_us=plan.time_us, measured_us=times.get(specialised.name),
        traffic_bytes=traffic(plan), minimal_bytes=minimal_traffic(specialised),
        expectations=list(expectations(specialised, plan)), counted=plan.counted, kernels=kernels,
        launches=launches,
        copies=[Copy(c.name, c.source, costs.of(c.name, c.prediction, c.work)) for c in plan.copies],
        inlined=list(plan.inlined),
        rewrites=[Rewrite(a.rewrite, a.step.operation, a.reason, _line(a.line)) for a in plan.rewrites],
        decisions=[_decision(r) for r in plan.remarks], classes=list(classes),
    )  # fmt: skip


class _Costs:
    """The costs of a plan's parts. `measured`: microseconds by name."""

    def __init__(self, plan: Plan, measured: Mapping[str, float]):
        self.target, self.total, self.measured = plan.target, plan.time_us or 1.0, measured

    def of(self, name: str, p: Prediction, work: Work, alone: bool = True) -> Cost:
        """`alone`: what is priced is launched by itself, so that it has a share of the program's time."""
        return Cost(
            p.time_us, self.measured.get(name), p.time_us / self.total if alone else None, p.bound, p.limiter,
            roofline(work, self.target).time_us, {term: us for term, us in p.terms.items() if us > 0},
            work.dram_read, work.dram_write,
        )  # fmt: skip


def _line(location: tuple[str, int] | None) -> Line | None:
    return Line(*location) if location else None


def _lines(locations: Iterable[tuple[str, int]]) -> list[Line]:
    return [Line(*location) for location in dict.fromkeys(locations)]


def _decision(remark: Remark) -> Decision:
    weighed = [Alternative(name, us) for name, us in sorted(remark.alternatives, key=lambda a: a[1])]
    return Decision(remark.verb, remark.subject, remark.reason, _line(remark.line), weighed)
