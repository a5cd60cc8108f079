"""The graph of a program's operations: the kernel of each, and what fusion decided between each and its readers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilec.analysis.graph import Graph, Node, build_graph
from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.plan.groups import Remark
from tilec.plan.model import Plan
from tilec.report.layered import layered

MOST_READERS = 3  # of an input that is drawn once; one with more is drawn for each
LETTER, LAYER, HEIGHT, MARGIN = 7.3, 74, 36, 12  # pixels: of a letter, between layers, of a node, around the drawing


@dataclass(frozen=True)
class Box:
    """An input or an operation in the drawing. `kernel`: its number from 1, or 0. `what`: "input", "operation", or "recomputed" in
    each of its readers. `tensor`: what it makes."""

    name: str
    label: str
    what: str
    kernel: int
    tensor: str
    stored: bool
    x: float
    y: float
    width: float


@dataclass(frozen=True)
class Arrow:
    """From an operation to a reader. `how`: "on chip", "memory" or "recomputed". `refused`: why both are no one kernel, and
    `remark` the number of that remark of the plan."""

    source: str
    reader: str
    how: str
    refused: str
    remark: int
    path: str
    x: float
    y: float


@dataclass(frozen=True)
class Picture:
    boxes: list[Box]
    arrows: list[Arrow]
    width: float
    height: float


def picture(text: str, plan: Plan) -> Picture:
    """The drawing of the IR after the stage `plan`."""
    with mlir.reading_context(), mlir.ir.Location.unknown():
        module = mlir.parse(text)
        (function,) = [f for f in mlir.functions(module) if "tilec.kernel" not in f.attributes]
        return _picture(build_graph(function), plan, _inputs(function))


def _inputs(function: ir.Operation) -> dict[ir.Value, str]:
    """The program's name of every argument."""
    attributes = ir.ArrayAttr(function.attributes["arg_attrs"]) if "arg_attrs" in function.attributes else ()
    names = [ir.StringAttr(ir.DictAttr(a)["tilec.name"]).value for a in attributes]
    return dict(zip(mlir.entry(function).arguments, names))


def _picture(graph: Graph, plan: Plan, inputs: Mapping[ir.Value, str]) -> Picture:
    number = {name: k for k, kernel in enumerate(plan.kernels, 1) for name in kernel.nodes}
    stored = {name for kernel in plan.kernels for name in kernel.outputs}
    refused = dict(_refused(plan.remarks))
    shown: dict[str, tuple[str, str, str]] = {}  # name, what and tensor
    edges: list[tuple[str, str]] = []
    read = {node: list(dict.fromkeys(_sources(graph, node, inputs))) for node in graph.nodes}
    readers = Counter(source for own in read.values() for source in own)
    types = {name: _tensor(value.type) for value, name in inputs.items()}
    for node, own in read.items():
        for source in own:
            key = source
            if source in types:
                key = f"{source} of {node.name}" if readers[source] > MOST_READERS else f"{source} of all"
                shown.setdefault(key, (source, "input", types[source]))
            edges.append((key, node.name))
        what = "operation" if node.name in number else "recomputed"
        shown[node.name] = (node.name, what, _tensor(node.results[0].value.type) if node.results else "")
    labels = {key: name if len(name) <= 28 else f"{name[:13]}…{name[-14:]}" for key, (name, *_) in shown.items()}
    widths = {key: 30 + LETTER * max(len(labels[key]), 0.86 * len(tensor)) for key, (_, _, tensor) in shown.items()}
    drawing = layered(widths, edges)

    def point(x: float, layer: int) -> tuple[float, float]:
        return round(MARGIN + x, 1), MARGIN + HEIGHT / 2 + LAYER * layer

    boxes = []
    for key, (name, what, tensor) in shown.items():
        x, y = point(*drawing.centres[key])
        kernel, is_stored = (0, False) if what == "input" else (number.get(name, 0), name in stored)
        boxes.append(Box(name, labels[key], what, kernel, tensor, is_stored, x, y, round(widths[key], 1)))
    arrows = []
    for (a, b), passed in drawing.paths.items():
        points = [point(*p) for p in passed]
        points[0], points[-1] = (points[0][0], points[0][1] + HEIGHT / 2), (points[-1][0], points[-1][1] - HEIGHT / 2 - 2)
        same = number.get(a) is not None and number.get(a) == number.get(b)
        how = "recomputed" if shown[a][1] == "recomputed" else "on chip" if same else "memory"
        x, y = ((p + q) / 2 for p, q in zip(*points[-2:]))
        reason, remark = ("", -1) if same else refused.get((a, b), ("", -1))
        arrows.append(Arrow(shown[a][0], b, how, reason, remark, _curve(points), x, y))
    return Picture(boxes, arrows, round(drawing.width + 2 * MARGIN), LAYER * max(0, drawing.layers - 1) + HEIGHT + 2 * MARGIN)


def _sources(graph: Graph, node: Node, inputs: Mapping[ir.Value, str]) -> Iterator[str]:
    """The names of what an operation reads."""
    for value in (s for v in node.values for s in (v, *mlir.sources_of(v))):
        if value in inputs:
            yield inputs[value]
        elif (maker := graph.producer.get(value)) is not None and maker is not node:
            yield maker.name


def _tensor(type_: ir.Type) -> str:
    """`bf16 1x16x128`."""
    shaped = ir.RankedTensorType(type_)
    sizes = (str(n) if n != mlir.DYNAMIC else "?" for n in shaped.shape)
    return f"{shaped.element_type} {'x'.join(sizes)}".strip()


def _refused(remarks: tuple[Remark, ...]) -> Iterator[tuple[tuple[str, str], tuple[str, int]]]:
    """Of two operations, why they are not in one kernel (`refused a and b with c: reason`), and the number of the remark."""
    for number, remark in enumerate(remarks):
        if remark.verb == "refused":
            first, _, second = remark.subject.partition(" with ")
            for a in re.split(r",? and |, ", first):
                for b in re.split(r",? and |, ", second):
                    yield (a, b), (remark.reason, number)


def _curve(points: list[tuple[float, float]]) -> str:
    """An SVG path, upright at each of its points."""
    (x, y), *others = points
    text = f"M{x:.0f} {y:.0f}"
    for to_x, to_y in others:
        middle = (y + to_y) / 2
        text += f"C{x:.0f} {middle:.0f} {to_x:.0f} {middle:.0f} {to_x:.0f} {to_y:.0f}"
        x, y = to_x, to_y
    return text
