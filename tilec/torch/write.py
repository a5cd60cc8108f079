"""A partition as `.tile` text: parameters and results in the order of memory, and one statement after another."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import fx

from tilec.core.varying import Varying
from tilec.torch.aliases import returns
from tilec.torch.aten import dtype_of, translate
from tilec.torch.aten.table import Value
from tilec.torch.constants import patterns
from tilec.torch.extents import extent
from tilec.torch.extents import shape as extents_of
from tilec.torch.indices import number
from tilec.torch.layout import Layout, layout, row_major
from tilec.torch.origins import origin_text
from tilec.torch.program import Graph, Tensor, Unsupported, reason

TEXT = "<program>"
"""What the compiler calls a program that is given as text."""
_LINE = re.compile(rf"{re.escape(TEXT)}:(\d+):")


@dataclass(frozen=True)
class Argument:
    """A tensor that a program reads: the number of the partition's argument, and how it must lie. `layout` is None where it has
    gaps, and is copied."""

    number: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    layout: Layout | None

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape that the program's parameter has."""
        return self.shape if self.layout is None else self.layout.stored


@dataclass(frozen=True)
class Result:
    """A tensor that a program makes, with the strides that the graph promises. The program has its elements in the order of memory,
    in the shape `made`."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    layout: Layout | None
    made: tuple[int, ...]

    @property
    def plain(self) -> bool:
        """Whether what the program makes is the tensor, with exactly the promised strides."""
        return self.made == self.shape and self.strides == row_major(self.shape)


@dataclass(frozen=True)
class Written:
    """A partition's program. `comments` and `nodes` give for each line of the text what it was made from."""

    text: str
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    comments: dict[int, str]
    nodes: dict[int, fx.Node]
    given: int
    """How many values the partition is given; some may be read by nothing."""
    varies: Mapping[str, Varying] = field(default_factory=dict)
    """The ranges of sizes that vary, and `sizes` their numbers in the shapes that this has."""
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def commented(self) -> str:
        lines = self.text.splitlines()
        return (
            "\n".join(f"{line}  # {self.comments[k]}" if k in self.comments else line for k, line in enumerate(lines))
            + "\n"
        )


class Unwritten(Exception):
    """Nodes of a partition that cannot be written or compiled after all, and why. `failed`: whether that is a failure of tilec's,
    and nothing that the language does not say."""

    def __init__(self, nodes: Sequence[fx.Node], reason: str, failed: bool = False):
        super().__init__(f"{', '.join(str(n.target) for n in nodes)}: {reason}")
        self.nodes, self.reason, self.failed = nodes, reason, failed


def write(graph: fx.Graph) -> Written:
    """The program of a partition whose nodes have fake tensors of known sizes. Raises Unwritten."""
    program, origin = Graph(), dict[str, fx.Node]()
    values: dict[fx.Node, Value] = {}
    arguments = []
    outputs: Sequence[fx.Node] = ()
    count = -1
    known = patterns(graph.nodes)
    for node in graph.nodes:
        first = len(program.lines)
        if node.op == "placeholder":
            count += 1
            value = node.meta.get("val")
            if node.users and isinstance(value, torch.Tensor):
                arguments.append(_argument(count, value))
                values[node] = _parameter(program, arguments[-1], value)
            elif isinstance(value, torch.SymInt):
                values[node] = extent(value)
        elif node.op == "output":
            outputs = [n for n in returns(graph) if isinstance(n, fx.Node)]
        elif isinstance(node.meta.get("val"), torch.SymInt):
            values[node] = extent(node.meta["val"])
        elif node in known:
            values[node] = known[node].tensor()
        else:
            try:
                values[node] = translate(program, node, values)
            except Exception as error:  # of any kind: PyTorch can run it
                raise Unwritten([node], reason(error), not isinstance(error, Unsupported)) from error
        origin.update((_defined(line), node) for line in program.lines[first:])
    layouts = [_result_layout(node.meta["val"]) for node in outputs]
    text = program.program([_in_order(values[node], found) for node, found in zip(outputs, layouts)])
    results = [_result(node.meta["val"], found, made.shape) for node, found, made in zip(outputs, layouts, program.results)]
    lines = enumerate(text.splitlines())
    nodes = {k: origin[name] for k, line in lines if (name := _defined(line)) in origin}
    comments = {line: origin_text(node) for line, node in nodes.items()}
    return Written(text, tuple(arguments), tuple(results), comments, nodes, count + 1)


def _defined(line: str) -> str:
    """The name that a statement defines."""
    return re.split(r"[\[:]", line, maxsplit=1)[0].strip()


def blamed(error: Exception, written: Written) -> Unwritten | None:
    """The node whose statement an error of the compiler is about, if it names one."""
    nodes = named(str(error), written)[:1]
    first = str(error).partition("\n")[0].partition("error: ")
    return Unwritten(nodes, f"the program is refused: {first[2] or first[0]}", failed=True) if nodes else None


def named(text: str, written: Written) -> list[fx.Node]:
    """The nodes of the statements whose lines a message of the compiler names."""
    lines = [int(k) - 1 for k in _LINE.findall(text)]
    return list(dict.fromkeys(written.nodes[k] for k in lines if k in written.nodes))


def line_of(text: str) -> int | None:
    """The first line of the program that a message names."""
    found = _LINE.search(text)
    return int(found[1]) if found else None


def _argument(number: int, value: torch.Tensor) -> Argument:
    shape, strides = extents_of(value.shape), extents_of(value.stride())
    return Argument(number, shape, strides, layout(shape, strides))


def _parameter(program: Graph, argument: Argument, value: torch.Tensor) -> Tensor:
    found, name = argument.layout, f"x{argument.number}"
    if found is None or found.plain:
        return program.argument(name, argument.shape, dtype_of(value.dtype))
    stored = program.argument(name, found.stored, dtype_of(value.dtype))
    return stored.seen(argument.shape, lambda i: [i[d] for d in found.order])


def _result_layout(value: torch.Tensor) -> Layout | None:
    found = layout(value.shape, value.stride())
    if found is not None and any(found.shape[d] > 1 for d in range(value.dim()) if d not in found.order):
        return None
    return found


def _result(value: torch.Tensor, found: Layout | None, made: tuple[int, ...]) -> Result:
    return Result(extents_of(value.shape), extents_of(value.stride()), value.dtype, found, made)


def _in_order(tensor: Tensor, found: Layout | None) -> Tensor:
    """The tensor as the row-major array that a result is stored as."""
    if found is None or found.plain:
        return tensor
    order, rank = found.order, len(found.shape)
    return tensor.seen(found.stored, lambda i: [i[order.index(d)] if d in order else number(0) for d in range(rank)])
