"""Groups of operations that become one kernel each, their order, and remarks on decisions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_

from tilec.analysis.graph import Graph, Node
from tilec.analysis.space import Space
from tilec.analysis.traffic import work_of
from tilec.core.order import topological
from tilec.core.quantities import count, duration
from tilec.core.target import Target
from tilec.cost.model import predict


@dataclass(frozen=True)
class Remark:
    """A decision or a refusal. `verb` is "fused", "refused", "inlined", "tiled", ...; `line` is the source position."""

    verb: str
    subject: str
    reason: str
    line: tuple[str, int] | None = None
    alternatives: tuple[tuple[str, float], ...] = ()  # what else was weighed, with its predicted microseconds
    weighed: str = ""  # how these times were found, where not as the kernel's own

    def __str__(self) -> str:
        return f"{self.verb} {self.subject}: {self.reason}"


@dataclass
class Group:
    """Operations that become one kernel."""

    nodes: list[Node]
    space: Space
    at_size_cap: bool = False  # no reader of its inputs is to join it any more
    _time_us: float | None = None

    def time_us(self, graph: Graph, target: Target) -> float:
        """Predicted, before its tiles are chosen."""
        if self._time_us is None:
            find = partial(work_of, self.nodes, graph, self.space, target)
            self._time_us = graph.memoise("untiled", self.nodes, lambda: predict(find(), target).time_us).result
        return self._time_us


class Kernels(dict[Node, Group]):
    """The kernel that each operation is of, so far; none of those that are computed inside others."""

    def __init__(self, graph: Graph):
        super().__init__()
        self.graph, self._all = graph, sum(not n.inlined for n in graph.nodes)
        self._behind: dict[int, int] | None = None

    def __setitem__(self, node: Node, kernel: Group) -> None:
        self._behind = None
        super().__setitem__(node, kernel)

    def add(self, kernels: Sequence[Group]) -> None:
        """Has these be the kernels of their operations."""
        for g in kernels:
            for n in g.nodes:
                self[n] = g

    def behind(self, nodes: Collection[Node]) -> int | None:
        """The operations of kernels that must run after those of `nodes`, as bits at their positions; None where some operation has
        no kernel yet, or the nodes are a part of a kernel."""
        kernels = {id(g): g for n in nodes if (g := self.get(n)) is not None}
        if len(self) < self._all or sum(len(g.nodes) for g in kernels.values()) != len(nodes):
            return None
        if self._behind is None:
            self._behind = self._found_behind()
        return reduce(or_, (self._behind[number] for number in kernels))

    def _found_behind(self) -> dict[int, int]:
        position, found = self.graph.position, dict[int, int]()
        own = {id(g): reduce(or_, (1 << position[n] for n in g.nodes)) for g in {id(g): g for g in self.values()}.values()}
        for g in reversed(ordered(self.graph, self)):
            readers = {id(self[r]) for n in g.nodes for r in self.graph.consumers(n)} - {id(g)}
            found[id(g)] = reduce(or_, (own[k] | found[k] for k in readers), 0)
        return found


def join(
    kernels: Sequence[Group], member: Kernels, remarks: list[Remark], subject: str, line: tuple[str, int] | None,
    times: tuple[float, float], others: int, what: str = "one kernel", more: str = "", better: bool | None = None,
    weighed: str = "",
) -> None:  # fmt: skip
    """Makes operations these kernels, instead of the `others` that they are now, if that takes less time (`times`: theirs, and that
    of the others; `better`: whether it does), and says so. `what`, `more`: what they are."""
    (fused_us, separate_us), several = times, count(others, "kernel")
    alternatives = ((what, fused_us), (several, separate_us))
    if not (fused_us <= separate_us if better is None else better):
        reason = f"{what} would take {duration(fused_us)}, {several} take {duration(separate_us)}"
        remarks.append(Remark("refused", subject, reason, line, alternatives, weighed))
        return
    reason = f"{duration(fused_us)} as {what}{more}, {duration(separate_us)} as {several}"
    remarks.append(Remark("fused", subject, reason, line, alternatives, weighed))
    member.add(kernels)


def ordered(graph: Graph, member: dict[Node, Group]) -> list[Group]:
    """The groups in an order in which each comes after the groups that it reads from; of several possible next groups the
    first one. Raises ValueError if groups read from each other."""
    groups = list({id(g): g for n in graph.nodes if (g := member.get(n))}.values())
    number = {n: k for k, g in enumerate(groups) for n in g.nodes}
    needs = [
        {number[p] for n in g.nodes for p in graph.producers(n) if p in number} - {k} for k, g in enumerate(groups)
    ]
    return [groups[k] for k in topological(needs)]
