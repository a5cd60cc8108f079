"""Writes into a part of an input, in place again: a decoder's step writes its cache without copying it.

AOTAutograd makes a graph functional: `cache[:, i] = k` becomes a new value of the whole cache, copied back at the end of the graph.
Where nothing reads an old value after the write, the write goes into the input itself, and the copies vanish. A training step's
backward graph may read an old value, which its forward graph therefore copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import fx

from tilec.torch.aliases import arguments, memory, reached, readers, returns, schema_of, set_returns, writes
from tilec.torch.aten.scatters import CHANGES

if TYPE_CHECKING:
    from torch._ops import OpOverload
    from torch.fx.node import Argument, Target

    from tilec.torch.partition import Decision, Part
    from tilec.torch.split import Piece

aten = torch.ops.aten
WRITES: dict[Target, OpOverload] = {
    aten.index_put.default: aten.index_put_.default, aten.scatter.src: aten.scatter_.src, aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default, aten.index_add.default: aten.index_add_.default,
    aten.index_copy.default: aten.index_copy_.default,
}  # fmt: skip
"""Operations that make a changed copy of their first argument, and those that change it."""
MOVES = {aten.index_put_.default, aten.index_copy_.default, aten.scatter_.src, aten.scatter_.value}
"""Those of the latter that compute nothing."""
PARTS: dict[Target, OpOverload] = {aten.slice_scatter.default: aten.slice.Tensor, aten.select_scatter.default: aten.select.int}
"""Operations that replace a part of their first argument by their second, and the view of that part."""


def reuse_inputs(graph: fx.Graph, by_kernels: bool = False) -> int:
    """Changes the graph; returns how many writes are in place now. `by_kernels`: those of one position are left to partitions, of
    which a kernel may do it, and are marked (`CHANGES`)."""
    position = {n: k for k, n in enumerate(graph.nodes)}
    count = 0
    for node in list(graph.nodes):
        if copies_back(node) and node.args[0].op == "placeholder":
            writes = _writes_of(node)
            if writes and _allowed(node, writes, position):
                if by_kernels and len(writes) == 1 and _is_of_one_position(writes[0]):
                    writes[0].meta[CHANGES] = True
                    continue
                _rewrite(graph, node, writes)
                count += len(writes)
    if count:
        graph.eliminate_dead_code(is_impure_node=_stays)
    return count


def leave_to_pytorch(graph: fx.Graph, write: fx.Node) -> None:
    """Has PyTorch do a write in place that was left to a partition."""
    del write.meta[CHANGES]
    (last,) = [n for n in write.users if copies_back(n) and n.args[1] is write]
    _rewrite(graph, last, [write])
    graph.eliminate_dead_code(is_impure_node=_stays)


def _is_of_one_position(write: fx.Node) -> bool:
    """Whether all that is written is at one position of one dimension."""
    if write.target is aten.index_copy.default:
        names = ("self", "source", "index")
    elif write.target is aten.index_put.default and not (len(write.args) > 3 and write.args[3]):
        names = ("self", "values", "indices")
    else:
        return False
    given = arguments(write)
    target, source, chosen = (fx.map_arg(given[name], lambda n: n.meta.get("val")) for name in names)
    indices = [i for i in (chosen if isinstance(chosen, list | tuple) else [chosen]) if i is not None]
    if len(indices) != 1 or not all(isinstance(t, torch.Tensor) for t in (target, source, *indices)):
        return False
    (index,) = indices
    same_kind = source.dtype == target.dtype and source.device == target.device == index.device
    return same_kind and index.dtype in (torch.int64, torch.int32) and index.numel() == 1 and index.dim() < 2


def save_old_values(forward: fx.GraphModule, results: int) -> None:
    """Has a forward graph copy inputs that it saves for its backward graph and changes at its end: saved is what they were. The
    first outputs are `results` of the function, and the others are saved."""
    graph = forward.graph
    changes = {n.args[0]: n for n in reversed(graph.nodes) if copies_back(n)}  # the first of each input
    returned = returns(graph)
    for k, saved in list(enumerate(returned))[results:]:
        if isinstance(saved, fx.Node) and (change := changes.get(memory(saved))) is not None:
            with graph.inserting_before(change):
                returned[k] = old = graph.call_function(aten.clone.default, (saved,))
            value = saved.meta["val"]
            with value.fake_mode:
                old.meta = {**saved.meta, "val": value.clone()}
    set_returns(graph, returned)
    forward.recompile()


def copies_back(node: fx.Node) -> bool:
    """Whether the operation is the copy of a new value into an input, as AOTAutograd ends a graph with."""
    return node.target is aten.copy_.default


def is_write(node: fx.Node) -> bool:
    """Whether the operation moves a value into an input or a part of it, and computes nothing."""
    return copies_back(node) or node.target in MOVES


def _stays(node: fx.Node) -> bool:
    if node.op != "call_function":
        return node.op in ("placeholder", "output")
    return node.is_impure() or (schema_of(node) is not None and writes(node))


def _writes_of(last: fx.Node) -> list[fx.Node]:
    """The writes from an input to the value that is copied into it at the end, first one first; empty if there is anything else."""
    (target, value), found = last.args[:2], list[fx.Node]()
    while value is not target:
        if not isinstance(value, fx.Node) or value.target not in (*WRITES, *PARTS):
            return []
        found.append(value)
        value = value.args[0]
    return found[::-1]


def _allowed(last: fx.Node, writes: list[fx.Node], position: dict[fx.Node, int]) -> bool:
    """Whether each write comes after all that reads what was there before, and writes nothing that it reads."""
    target = last.args[0]
    assert isinstance(target, fx.Node)
    if any(n.target is aten.copy_.default and n is not last for n in target.users):
        return False
    for before, write in zip([target, *writes], writes):
        own = reached(before)
        if any(position[reader] > position[write] for reader in own if reader is not last and reader not in writes):
            return False
        if any(source is before or source in own for argument in write.args[1:] for source in _nodes(argument)):
            source = write.args[1]
            if write.target not in PARTS or not isinstance(source, fx.Node) or source.target is not aten.copy.default:
                return False
            if any(read is before or read in own for read in _nodes(source.args[1])):
                return False
    return True


def _nodes(argument: Argument) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg(argument, lambda n: found.append(n) or n)  # type: ignore[func-returns-value]
    return found


def _rewrite(graph: fx.Graph, last: fx.Node, writes: list[fx.Node]) -> None:
    target = last.args[0]
    assert isinstance(target, fx.Node)
    for write in writes:
        with graph.inserting_before(write):
            if write.target in WRITES:
                made = graph.call_function(WRITES[write.target], (target, *write.args[1:]), dict(write.kwargs))
                made.meta = {**write.meta, "val": target.meta.get("val")}
            else:
                part = graph.call_function(PARTS[write.target], (target, *write.args[2:]), dict(write.kwargs))
                source = write.args[1]
                assert isinstance(source, fx.Node)
                part.meta = {**write.meta, "val": source.meta.get("val")}
                if source.target is aten.copy.default:  # of the whole part: what was there does not matter
                    source = source.args[1]
                made = graph.call_function(aten.copy_.default, (part, source))
                made.meta = dict(part.meta)
        write.replace_all_uses_with(target)
    last.replace_all_uses_with(target)
    graph.erase_node(last)
    for write in reversed(writes):
        graph.erase_node(write)


def results_in_inputs(graph: fx.Graph, decision: Decision, pieces: Sequence[Piece]) -> list[dict[int, int]]:
    """For each partition, which of its results are the new values of inputs of the graph, and are written there, by the numbers of
    these among what the partition is given. The copies at the end of the graph that did it are taken out of `decision`.

    Nothing else may read such a result, and whatever else reads the input's old value comes before the partition."""
    made: list[dict[int, int]] = [{} for _ in pieces]
    end, light = graph.output_node(), decision.light.__contains__
    for node in [n for n in decision.reasons if copies_back(n) and not n.users.keys() - {end}]:
        target, value = node.args[:2]
        if not isinstance(target, fx.Node) or not isinstance(value, fx.Node) or target.op != "placeholder":
            continue
        found = [(k, piece) for k, piece in enumerate(pieces) if value in piece.outputs]
        if not found or not _same_memory(target, value):
            continue
        ((k, piece),) = found
        outside = [n for n in readers(value, light) if decision.owner.get(n) is not piece.part]
        behind = [n for n in readers(target) if n is not node and (n is end or not _before(n, piece.part, decision))]
        if outside != [node] or behind:
            continue
        if target not in piece.inputs:
            first = next(n for n in piece.graph.nodes if n.op != "placeholder")
            with piece.graph.inserting_before(first):
                piece.graph.placeholder(f"x{len(piece.inputs)}").meta = dict(target.meta)
            piece.inputs.append(target)
        made[k][piece.outputs.index(value)] = piece.inputs.index(target)
        node.replace_all_uses_with(target)
        del decision.reasons[node]
    return made


def _same_memory(target: fx.Node, value: fx.Node) -> bool:
    """Whether a result lies as an input does."""
    one, other = target.meta.get("val"), value.meta.get("val")
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor) or one.dtype != other.dtype:
        return False
    return repr((one.shape, one.stride(), one.device)) == repr((other.shape, other.stride(), other.device))


def _before(node: fx.Node, part: Part, decision: Decision) -> bool:
    """Whether an operation belongs to a partition, or is over before it."""
    owner = decision.owner.get(node)
    return owner is part or (owner.level if owner is not None else decision.level[node]) < part.level


__all__ = ["CHANGES", "copies_back", "is_write", "leave_to_pytorch", "results_in_inputs", "reuse_inputs", "save_old_values"]
