"""The plan of a kernel before a backend chooses its family and tiles."""

from __future__ import annotations

from dataclasses import replace

from tilec.analysis.graph import Graph, Node
from tilec.analysis.isomorphic import Found
from tilec.analysis.traffic import outputs_of, work_of
from tilec.core.target import Target
from tilec.cost.model import predict
from tilec.kernels import KernelPlan
from tilec.plan.groups import Group, Remark


def unchosen(g: Group, graph: Graph, name: str, target: Target) -> KernelPlan:
    """The kernel's plan before the backend's choices."""
    space = g.space
    work = work_of(g.nodes, graph, space, target)
    outputs = outputs_of(g.nodes, graph)
    return KernelPlan(
        name=name,
        nodes=tuple(n.name for n in g.nodes),
        dims={n.name: space.dims[n] for n in g.nodes},
        extents=dict(space.extents),
        grid=space.grid,
        tile=tuple(space.extents[d] for d in space.grid),
        loop_groups=number_loop_groups(g.nodes, graph),
        loops={},
        options=None,  # type: ignore[arg-type]  # chosen next
        outputs=tuple(n.name for n in g.nodes for r in n.results if r.value in outputs),
        work=work,
        prediction=predict(work, target),
        lines=tuple(dict.fromkeys(n.line for n in g.nodes if n.line)),
    )


def renamed(
    start: KernelPlan, kernel: KernelPlan, remarks: list[Remark], found: Found[object]
) -> tuple[KernelPlan, list[Remark]]:  # fmt: skip
    """The plan of the kernel `start`, and its remarks, from those that were `found` for an isomorphic kernel."""
    if found.names == start.nodes:
        return kernel, remarks
    own = dict(zip(found.names, start.nodes))
    mine = replace(
        kernel, name=start.name, nodes=start.nodes, outputs=start.outputs, lines=start.lines,
        dims={own[n]: dims for n, dims in kernel.dims.items()}, loops={own[n]: dims for n, dims in kernel.loops.items()},
        loop_groups={own[n]: number for n, number in kernel.loop_groups.items()},
    )  # fmt: skip
    line = start.lines[-1] if start.lines else None
    names = own | {kernel.name: start.name}
    return mine, [
        replace(r, subject=names.get(r.subject, r.subject), reason=found.reason(r.reason, start.nodes), line=r.line and line)
        for r in remarks
    ]


def number_loop_groups(nodes: list[Node], graph: Graph) -> dict[str, int]:
    """The number of each operation's loop nest: the earliest nest after those whose complete reductions it reads.

    Operations of one nest share a loop only if they have the same dimensions; others of the same number follow one another.
    """
    number: dict[Node, int] = {}
    for node in nodes:
        number[node] = 0
        for producer in graph.producers(node):
            if producer in number:
                number[node] = max(number[node], number[producer] + bool(producer.reduced))
    return {n.name: s for n, s in number.items()}
