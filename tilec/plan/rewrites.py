"""The rewrites that a plan may take, in the order in which the search asks for them.

    concatenation  a tensor that concatenates others is computed piece by piece      passes/tensor/split_concatenation.py
    parts          parts of a concatenation are stored where they lie in it          passes/tensor/split_concatenation.py
    toeplitz       a tensor is stored as one element for each diagonal               passes/tensor/toeplitz.py
    recompute      elements of a product that are read by number are computed anew   passes/tensor/gathered.py
    copies         a product is computed for each contraction that reads it          passes/tensor/copies.py
    chain_factors  factors of contractions are stored so that these can be a chain   passes/tensor/pack.py
    split          a reduction is computed in parts, which are combined              passes/tensor/split.py
    pack           a factor is stored as the kernel of its product reads it          passes/tensor/pack.py

The first six replace what else is in memory: the result of a contraction may then stay on chip. Splits and packs are steps of
kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tilec.analysis.concatenation import stored_concatenations
from tilec.analysis.graph import Graph
from tilec.analysis.toeplitz import toeplitz_tensors
from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.passes.tensor.copies import copies_for, copy_for_readers
from tilec.passes.tensor.gathered import compute_anew, gathered_reads, name_of_read
from tilec.passes.tensor.split import refuse_split
from tilec.passes.tensor.split_concatenation import concatenations_of, split_concatenations, store_parts
from tilec.passes.tensor.toeplitz import compress_toeplitz
from tilec.plan import prepack, split_reduction
from tilec.plan.chain import WIDEST
from tilec.plan.chain_factors import chain_factors
from tilec.plan.groups import Group, Remark
from tilec.plan.model import Plan
from tilec.plan.rewrite import Compared, Found, Rewrite
from tilec.plan.state import State
from tilec.plan.steps import Applied, Pack, Split, Step


def _at(rewrite: str, ops: Iterable[ir.Operation]) -> tuple[Applied, ...]:
    """A step at each operation."""
    return tuple(Applied(rewrite, Step(mlir.name_of(op)), line=mlir.source_line(op)) for op in ops)


def _recomputed(subject: str, done: str, undone: str) -> Compared:
    return Compared("recomputed", subject, (f"to compute {subject}",), done, undone)


# ---- concatenation ---------------------------------------------------------------------------------------------------


def _concatenations(state: State) -> tuple[Applied, ...]:
    return _at("concatenation", concatenations_of(state.function, WIDEST))


def _find_concatenations(state: State, without: Callable[[], Plan]) -> Found:
    steps = _concatenations(state)
    return Found(steps, compared=_recomputed(_operations(steps), "in pieces", "as a whole"))


def _apply_concatenations(function: ir.Operation, steps: Sequence[Step]) -> None:
    split_concatenations(function, WIDEST, [s.operation for s in steps])


# ---- parts of concatenations -----------------------------------------------------------------------------------------


BY_PARTS = "its parts are stored where they lie in it"


def _stored_parts(state: State) -> tuple[Applied, ...]:
    """On a GPU; on a CPU the whole is written by the loop that computes its parts."""
    found = stored_concatenations(state.function) if state.target.kind == "cuda" else ()
    return _at("parts", [op for c in found for op, _ in c.operations])


def _find_stored_parts(state: State, without: Callable[[], Plan]) -> Found:
    """They pay by themselves: nothing is stored that was not, and what was copied into the whole is not loaded again."""
    steps = _stored_parts(state)
    return Found(steps, tuple(Remark("stored", a.step.operation, BY_PARTS, a.line) for a in steps))


def _apply_stored_parts(function: ir.Operation, steps: Sequence[Step]) -> None:
    store_parts(function, [s.operation for s in steps])


# ---- toeplitz --------------------------------------------------------------------------------------------------------


def _toeplitz(state: State) -> tuple[Applied, ...]:
    return _at_names(state, toeplitz_tensors(state.function))


def _find_toeplitz(state: State, without: Callable[[], Plan]) -> Found:
    """Of tensors in memory. What is computed inside its readers is left there."""
    tensors = toeplitz_tensors(state.function)
    inlined = set(without().inlined) if tensors else set[str]()
    steps = _at_names(state, [name for name, computed in tensors.items() if not inlined.issuperset(computed)])
    subject = _operations(steps)
    refused = (f"to store {subject} by diagonals",)
    return Found(
        steps, compared=Compared("toeplitz", subject, refused, "with one element for each diagonal", "with all elements")
    )


def _at_names(state: State, names: Iterable[str]) -> tuple[Applied, ...]:
    ops = {mlir.name_of(op): op for op in mlir.traverse(state.function) if mlir.is_generic(op)}
    return _at("toeplitz", [ops[name] for name in names])


def _apply_toeplitz(function: ir.Operation, steps: Sequence[Step]) -> None:
    compress_toeplitz(function, [s.operation for s in steps])


# ---- elements of products, and products, computed anew ---------------------------------------------------------------


def _reads(state: State) -> tuple[Applied, ...]:
    """None where results of contractions are always in memory."""
    return _at("recompute", gathered_reads(state.function) if state.target.has("tma") else ())


def _find_reads(state: State, without: Callable[[], Plan]) -> Found:
    steps = _reads(state)
    if not steps:
        return Found()
    names = ", ".join(name_of_read(op) for op in gathered_reads(state.function))
    return Found(steps, compared=_recomputed(names, "with its elements computed anew", "with all of them in memory"))


def _apply_reads(function: ir.Operation, steps: Sequence[Step]) -> None:
    names = [s.operation for s in steps]
    for op in [o for o in mlir.traverse(function) if mlir.is_generic(o) and mlir.name_of(o) in names]:
        compute_anew(op)


def _copied(state: State) -> dict[ir.Operation, list[str]]:
    able = state.target.kind == "cuda" and state.target.instructions("bf16")
    return copies_for(state.function, WIDEST) if able else {}


def _copies(state: State) -> tuple[Applied, ...]:
    return _at("copies", _copied(state))


def _find_copies(state: State, without: Callable[[], Plan]) -> Found:
    names = ", ".join(name for made in _copied(state).values() for name in made)
    return Found(_copies(state), compared=_recomputed(names, "with a copy for each of their readers", "in memory"))


def _apply_copies(function: ir.Operation, steps: Sequence[Step]) -> None:
    copy_for_readers(function, WIDEST, [s.operation for s in steps])


def _chain_factors(state: State) -> tuple[Applied, ...]:
    return chain_factors(state.graph(), state.target) if state.target.kind == "cuda" and state.target.instructions("bf16") else ()


def _find_chain_factors(state: State, without: Callable[[], Plan]) -> Found:
    steps = _chain_factors(state)
    names = ", ".join(a.step.stored for a in steps if isinstance(a.step, Pack))
    done, undone = "with factors as a chain multiplies them", "with factors as they are"
    return Found(steps, compared=Compared("packed", names, (f"packing {names}",), done, undone))


def _operations(steps: Sequence[Applied]) -> str:
    return ", ".join(a.step.operation for a in steps)


# ---- steps of kernels ------------------------------------------------------------------------------------------------


def _find_splits(state: State, without: Callable[[], Plan]) -> Found:
    graph, groups, _ = state.grouped
    return split_reduction.find(groups, graph, state.target, state.inlined)


def _splits(state: State) -> tuple[Applied, ...]:
    return _find_splits(state, _no_plan).steps


def _no_plan() -> Plan:
    raise AssertionError("steps of kernels are found before a plan")


def _exact_split(state: State, fields: Mapping[str, Any]) -> Applied | str:
    """Any split that is possible, or why it is not."""
    nodes = {n.name: n for n in (state.base or state).graph().nodes}
    if (node := nodes.get(fields["operation"])) is None or not node.reduced:
        return ""
    if "dim" not in fields or "parts" not in fields:
        return "the compiler sees no need of parts; say `dim` and `parts` to have them in any case"
    if "about" in fields or "rest" in fields:
        return "parts are about those of another sum only where the compiler says so; leave out `about` and `rest`"
    step = Split(**fields)
    if state.target.kind == "cpu" and node.contraction is not None:
        return "on a CPU all of a product's sum is computed at once"
    if not 0 <= step.dim < len(node.extents):
        return f"its dimensions are 0 to {len(node.extents) - 1}"
    return refuse_split(node.op, step.dim, step.parts) or Applied("split", step, "as the schedule says", node.line)


def _describe_split(step: Step, index: Callable[[int], str]) -> str:
    assert isinstance(step, Split)
    about = f", about those of {step.about}" if step.about else ""
    return f"{index(step.dim)} in {step.parts} parts{about}"


def _find_packs(state: State, without: Callable[[], Plan]) -> Found:
    return prepack.find(*_unsplit(state), state.target)


def _packs(state: State) -> tuple[Applied, ...]:
    return prepack.named(*_unsplit(state), state.target)


def _unsplit(state: State) -> tuple[list[Group], Graph]:
    """The kernels whose factors may be stored."""
    graph, groups, _ = (state.base or state).grouped
    split = {a.step.operation for a in state.applied if a.rewrite == "split"}
    return [g for g in groups if split.isdisjoint(n.name for n in g.nodes)], graph


def _describe_pack(step: Step, index: Callable[[int], str]) -> str:
    assert isinstance(step, Pack)
    if step.order:
        dims, last = ", ".join(map(str, step.order)), ", even elements of the last one first" * step.evens_first
        return f"the tensor of its {step.side} factor is stored first, as {step.kind}, its dimensions in the order {dims}{last}"
    order = f"by {', '.join(map(index, step.dims))}" if step.dims else "in aligned rows"
    return f"its {step.side} factor is stored first, as {step.kind}, {order}"


REWRITES = (
    Rewrite("concatenation", _find_concatenations, _concatenations, _apply_concatenations, lambda step, index: "piece by piece"),
    Rewrite("parts", _find_stored_parts, _stored_parts, _apply_stored_parts, lambda step, index: BY_PARTS),
    Rewrite("toeplitz", _find_toeplitz, _toeplitz, _apply_toeplitz, lambda step, index: "one element for each diagonal"),
    Rewrite("recompute", _find_reads, _reads, _apply_reads, lambda step, index: "elements read by number are computed anew"),
    Rewrite("copies", _find_copies, _copies, _apply_copies, lambda step, index: "its own copy of the products that it reads"),
    Rewrite("chain_factors", _find_chain_factors, _chain_factors, prepack.apply_packs, _describe_pack, Pack),
    Rewrite(
        "split", _find_splits, _splits, split_reduction.apply_splits, _describe_split, Split, True, _exact_split,
        split_reduction.lacking,
    ),
    Rewrite("pack", _find_packs, _packs, prepack.apply_packs, _describe_pack, Pack, True, lacks=prepack.lacking),
)
