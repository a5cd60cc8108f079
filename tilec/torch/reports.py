"""What became of compiled models: partitions, the share of operations that tilec computes, and why PyTorch runs the others."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tilec.core.quantities import amount
from tilec.process.printable import printable

LATEST = 256  # graphs that `report()` remembers
FILE = "graph.json"


@dataclass
class PartReport:
    """One partition: `operations` that its program computes, its statements, and the `reason` if PyTorch runs it after all.
    `sizes`: for how many classes or sets of sizes it was compiled; `fixed`: why some sizes do not vary. `calls`: how many the
    program of a training step is run as, so that values are freed on the way; `needed` bytes are held at a time then, by one call
    `whole`. `device` is what it runs on; `programs` are its dumped files, each with the numbers of sizes that it was traced at."""

    name: str
    operations: int
    statements: int = 0
    sizes: int = 0
    fixed: str = ""
    reason: str | None = None
    calls: int = 1
    needed: int = 0
    whole: int = 0
    device: str = ""
    programs: dict[str, dict[str, int]] = field(default_factory=dict)


@dataclass
class Eager:
    """An operation that PyTorch runs, where in the model it is, and why."""

    operation: str
    reason: str
    module: str = ""
    line: str = ""


@dataclass
class GraphReport:
    """One graph: `kind` is "inference", "forward" or "backward". `not_replayed`: why `reduce-overhead` runs it without a CUDA
    graph."""

    name: str
    kind: str
    not_replayed: str | None = None
    seconds: float = 0.0
    parts: list[PartReport] = field(default_factory=list)
    eager: list[Eager] = field(default_factory=list)

    @property
    def taken(self) -> int:
        """Operations that tilec computes. Views and constants are no operations."""
        return sum(p.operations for p in self.parts if p.reason is None)

    @property
    def operations(self) -> int:
        return sum(p.operations for p in self.parts) + len(self.eager)

    def __str__(self) -> str:
        share = f"{100 * self.taken / self.operations:.0f}%" if self.operations else "nothing to compute"
        lines = [
            f"{self.name}: {self.taken} of {self.operations} operations ({share}) in "
            f"{len(self.parts)} partition{'s' * (len(self.parts) != 1)}, {self.seconds:.1f} s"
        ]
        reasons = Counter((e.operation, e.reason) for e in self.eager)
        for (operation, reason), count in reasons.most_common():
            where = next(
                (e.module or e.line for e in self.eager if e.operation == operation and (e.module or e.line)), ""
            )
            lines.append(f"  {count} x {operation}: {reason}{f' (first in {where})' if where else ''}")
        lines += [f"  {p.name}: run by PyTorch: {p.reason}" for p in self.parts if p.reason is not None]
        lines += [f"  {p.name}: compiled for {p.sizes} sizes, which do not vary: {p.fixed}" for p in self.parts if p.fixed]
        for p in (p for p in self.parts if p.calls > 1):
            lines.append(f"  {p.name}: {p.calls} calls, for {amount(p.needed)}B at a time; one would need {amount(p.whole)}B")
        if self.not_replayed:
            lines.append(f"  no CUDA graph: {self.not_replayed}")
        return printable("\n".join(lines))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(fields: dict[str, Any]) -> GraphReport:
        parts, eager = [PartReport(**p) for p in fields["parts"]], [Eager(**e) for e in fields["eager"]]
        return GraphReport(**{**fields, "parts": parts, "eager": eager})


@dataclass
class Report:
    """All graphs that were compiled, oldest first."""

    graphs: list[GraphReport]

    @property
    def taken(self) -> int:
        return sum(g.taken for g in self.graphs)

    @property
    def operations(self) -> int:
        return sum(g.operations for g in self.graphs)

    @property
    def share(self) -> float:
        """Of operations that tilec computes, from 0 to 1; 1 where there are none."""
        return self.taken / self.operations if self.operations else 1.0

    @property
    def reasons(self) -> Counter[str]:
        """How many operations PyTorch runs for each reason."""
        return Counter(e.reason for g in self.graphs for e in g.eager)

    def __str__(self) -> str:
        if not self.graphs:
            return "nothing was compiled"
        total = f"{self.taken} of {self.operations} operations ({100 * self.share:.0f}%) are computed by tilec"
        return "\n".join([*map(str, self.graphs), total])


_graphs: list[GraphReport] = []


def add(graph: GraphReport) -> None:
    _graphs.append(graph)
    del _graphs[:-LATEST]


def report() -> Report:
    """What was compiled in this process, since it began or `torch._dynamo.reset()`; at most the latest 256 graphs."""
    return Report(list(_graphs))


def forget() -> None:
    _graphs.clear()


def read(folder: Path) -> Report:
    """The report of a folder that `TILEC_TORCH_DUMP` named. Raises FileNotFoundError where nothing was dumped."""
    paths = sorted(Path(folder).glob(f"*/{FILE}"), key=lambda p: p.parent.name)
    if not paths:
        raise FileNotFoundError(f"{folder} has no dumped graphs: run the model with TILEC_TORCH_DUMP={folder}")
    return Report([GraphReport.from_json(json.loads(p.read_text(encoding="utf-8"))) for p in paths])
