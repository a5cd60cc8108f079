"""A graph cut along its partitions: a graph for each, and a function that runs all of it."""

from __future__ import annotations

import builtins
import keyword
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from tilec.torch.aliases import ancestors, behind_inputs, is_view, returns
from tilec.torch.concrete import Known
from tilec.torch.partition import Decision, Part
from tilec.torch.profiles import ENABLED, label_of, profiled
from tilec.torch.segments import Segmented
from tilec.torch.types import Attribute, Call, Run


@dataclass
class Piece:
    """A partition, cut out: `graph` has its operations and the views that they read through; `inputs` and `outputs` are nodes of
    the whole graph."""

    part: Part
    graph: fx.Graph
    inputs: list[fx.Node]
    outputs: list[fx.Node]


def cut(graph: fx.Graph, decision: Decision, known: Mapping[fx.Node, Known]) -> list[Piece]:
    """The partitions, lowest level first. A result that everything outside reads through one view of all its elements leaves its
    partition as that view: `decision` then has the view's owner."""
    position = {n: k for k, n in enumerate(graph.nodes)}
    gathered = [_gather(part, decision, position) for part in decision.parts]
    asked: dict[fx.Node, set[fx.Node]] = {}  # of a partition's result, what is read of it outside: itself, or views
    for n in (
        *(n for _, inputs in gathered for n in inputs),
        *(n for node in decision.reasons for n in node.all_input_nodes),
        *graph.output_node().all_input_nodes,
    ):
        for result, seen in _seen_through(n, decision, known).items():
            asked.setdefault(result, set()).add(seen)
    pieces = []
    for part, (members, inputs) in zip(decision.parts, gathered):
        outputs = []
        for result in sorted((n for n in part.nodes if n in asked), key=position.__getitem__):
            (seen,) = asked[result] if len(asked[result]) == 1 else (result,)
            outputs.append(seen)
            while seen is not result:
                decision.owner.setdefault(seen, part)
                if seen not in members:
                    members.append(seen)
                seen = seen.all_input_nodes[0]
        if outputs:
            members.sort(key=position.__getitem__)
            pieces.append(Piece(part, _graph_of(members, inputs, outputs), inputs, outputs))
    return pieces


def _seen_through(node: fx.Node, decision: Decision, known: Mapping[fx.Node, Known]) -> dict[fx.Node, fx.Node]:
    """The results of partitions that something outside reads where it reads `node`, each with what it reads of it: `node`, if that
    is all elements in another order, or the result itself."""
    found, pending, done = dict[fx.Node, fx.Node](), [(node, True)], set[fx.Node]()
    while pending:
        n, whole = pending.pop()
        if n in done:
            continue
        done.add(n)
        if n in decision.owner:
            found[n] = node if whole else n
        elif n in decision.light:
            whole = whole and is_view(n) and len(n.all_input_nodes) == 1 and _elements(known[n]) is not None
            whole = whole and _elements(known[n]) == _elements(known.get(n.all_input_nodes[0]))
            pending += [(m, whole) for m in n.all_input_nodes]
    return found


def _elements(known: Known | None) -> int | None:
    """The number of elements of a tensor."""
    value = known.meta.get("val") if isinstance(known, fx.Node) else None
    return value.numel() if isinstance(value, torch.Tensor) else None


def _gather(part: Part, decision: Decision, position: Mapping[fx.Node, int]) -> tuple[list[fx.Node], list[fx.Node]]:
    """The partition's operations with those that move no data and that it reads through, and what it is given."""
    own = set(part.nodes)
    inside = lambda n: n in own or (n in decision.light and isinstance(n.meta.get("val"), (torch.Tensor, list, tuple)))  # noqa: E731
    found = sorted(ancestors(part.nodes, inside), key=position.__getitem__)
    return [n for n in found if inside(n)], [n for n in found if not inside(n)]


def _graph_of(members: Sequence[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> fx.Graph:
    """Names of operations begin anew, so that equal parts of a model are equal texts."""
    made, became = fx.Graph(), dict[fx.Node, fx.Node]()
    for k, node in enumerate(inputs):
        became[node] = made.placeholder(f"x{k}")
        became[node].meta = {**node.meta, "name": node.meta.get("name", node.name)}
    for node in members:
        args, kwargs = fx.map_arg((node.args, node.kwargs), became.__getitem__)
        name = getattr(node.target, "__name__", str(node.target)).partition(".")[0]
        became[node] = made.create_node(node.op, node.target, args, kwargs, name)
        became[node].meta = {**node.meta, "origin": node}
    made.output(tuple(became[n] for n in outputs))
    return made


# ---- the whole -------------------------------------------------------------------------------------------------------


@dataclass
class Whole:
    """`run(args)` computes the graph from the list of its arguments, which it empties. `text` is the function's."""

    run: Run
    text: str


@dataclass
class _Writer:
    names: dict[str, object] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def constant(self, value: object, name: str = "") -> str:
        name = name or f"c{len(self.names)}"
        while self.names.get(name, value) is not value or keyword.iskeyword(name) or hasattr(builtins, name):
            name += "_"
        self.names[name] = value
        return name

    def release(self, dead: Sequence[fx.Node], held: set[fx.Node]) -> None:
        """Has the function let go of values that it holds."""
        if dead:
            self.lines.append(f"del {', '.join(f'{n.name}_' for n in dead)}")
            held.difference_update(dead)

    def argument(self, value: object) -> str:
        if isinstance(value, fx.Node):
            return f"{value.name}_"
        if isinstance(value, (list, tuple)):
            inner = ", ".join(self.argument(v) for v in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(value) == 1)})"
        if isinstance(value, slice):
            return f"slice({self.argument(value.start)}, {self.argument(value.stop)}, {self.argument(value.step)})"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{k!r}: {self.argument(v)}" for k, v in value.items()) + "}"
        if value is None or isinstance(value, (bool, int, str)):
            return repr(value)
        return self.constant(value)


def join(
    graph: fx.Graph, decision: Decision, pieces: Sequence[Piece], calls: Sequence[Call],
    attribute: Attribute,
) -> Whole:  # fmt: skip
    """The function that runs partitions by `calls`, and all else as the graph has it. A call takes its piece's inputs one by one,
    and returns its output, or a sequence of several; or is Segmented."""
    steps: list[fx.Node | int] = []
    written = {n for n in graph.nodes if n.op != "call_function"} | decision.owner.keys() | decision.reasons.keys()
    of_part = {id(piece.part): k for k, piece in enumerate(pieces)}

    def want(node: fx.Node) -> None:
        """Operations without an owner, where they are first read."""
        for n in behind_inputs(node, written):
            written.add(n)
            steps.append(n)

    for unit in decision.order:
        if isinstance(unit, Part):
            if id(unit) not in of_part:
                continue  # nothing reads its results
            k = of_part[id(unit)]
            for n in pieces[k].inputs:
                want(n)
            steps.append(k)
        else:
            for n in unit.all_input_nodes:
                want(n)
            steps.append(unit)
    output = graph.output_node()
    for n in output.all_input_nodes:
        want(n)

    w, ranges = _Writer(), dict[str, object]()
    arguments = graph.find_nodes(op="placeholder")
    if arguments:
        w.lines.append(f"{', '.join(f'{n.name}_' for n in arguments)}, = args")
    w.lines.append("args.clear()")
    held = set(arguments)
    last: dict[fx.Node, int] = {}
    for k, step in enumerate(steps):
        for n in pieces[step].inputs if isinstance(step, int) else step.all_input_nodes:
            last[n] = k
    kept = set(output.all_input_nodes)
    for n in graph.nodes:
        if n.op == "get_attr":
            w.names[f"{n.name}_"] = attribute(str(n.target))
            kept.add(n)
    unread = [f"{n.name}_" for n in arguments if n not in last and n not in kept]
    if unread:
        w.lines.append(f"del {', '.join(unread)}")
    for k, step in enumerate(steps):
        if isinstance(step, int):
            piece = pieces[step]
            read, made = piece.inputs, list(piece.outputs)
            left = ", ".join(f"{n.name}_" for n in made)
            function, given = w.constant(calls[step], f"part{step}"), ", ".join(f"{n.name}_" for n in read)
            ranges[function] = profiled(calls[step], label_of(f"part{step}", piece.part.nodes))
            if isinstance(calls[step], Segmented):  # nothing else may have what it lets go
                w.lines.append(f"given = [{given}]")
                w.release([n for n in dict.fromkeys(read) if n in held and n not in kept and last[n] <= k], held)
                w.lines.append(f"{left} = {function}.run(given)")
            else:
                w.lines.append(f"{left} = {function}({given})")
        else:
            read, made = step.all_input_nodes, [step]
            w.lines.append(f"{step.name}_ = {_called(w, step)}")
        held.update(made)
        w.release([n for n in dict.fromkeys((*read, *made)) if n in held and n not in kept and last.get(n, -1) <= k], held)
    w.lines.append(f"return {w.argument(returns(graph))}")
    body = "".join(f"    {line}\n" for line in w.lines)
    observed = _function(body, {**w.names, **ranges})
    checked = f"    if enabled():\n        return observed(args)\n{body}"
    run = _function(checked, {**w.names, "enabled": ENABLED, "observed": observed})
    return Whole(run, f"def run(args):\n{body}")


def _function(body: str, names: dict[str, Any]) -> Run:
    exec(compile(f"def run(args):\n{body}", "<tilec: a graph's partitions>", "exec"), names)
    run: Run = names["run"]
    return run


def _called(w: _Writer, node: fx.Node) -> str:
    if node.target is operator.getitem:
        return f"{w.argument(node.args[0])}[{w.argument(node.args[1])}]"
    overload = isinstance(node.target, torch._ops.OpOverload)
    name = str(node.target) if overload else getattr(node.target, "__name__", "function")
    function = w.constant(node.target, "".join(c if c.isalnum() else "_" for c in name))
    given = [w.argument(a) for a in node.args] + [f"{k}={w.argument(v)}" for k, v in node.kwargs.items()]
    return f"{function}({', '.join(given)})"
