"""The gradient of an op: a second op whose parameters say by their names what they are given.

Of an op with an input `x` and a result `y`, the second op may take `x`, `y`, and the gradient `y_grad`; it gives `x_grad`.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from tilec.core.diagnostics import CallError
from tilec.core.dtypes import DType
from tilec.dsl.bind import Binding
from tilec.dsl.index_terms import with_sizes
from tilec.index.terms import size, term
from tilec.torch.signature import Signature

SUFFIX = "_grad"


@dataclass(frozen=True)
class Source:
    """What a parameter of the gradient is given: input, result, or gradient of result `number` of the op."""

    kind: str  # "input" | "result" | "gradient"
    number: int


@dataclass(frozen=True)
class Gradient:
    """`sources` for the parameters of the gradient's op, in their order; `targets` are the numbers of the inputs that its results
    are the gradients of; `sizes` have no argument that tells them, and are the op's own. `summed` has for each target
    the dimensions of the gradient that the input does not have, since the op was made for `vmap`; () is none for all."""

    sources: tuple[Source, ...]
    targets: tuple[int, ...]
    sizes: tuple[str, ...]
    summed: tuple[tuple[int, ...], ...] = ()

    @property
    def read(self) -> frozenset[int]:
        """The results whose gradients are read."""
        return frozenset(s.number for s in self.sources if s.kind == "gradient")


def match(op: Signature, backward: Signature) -> Gradient:
    """How `backward` is called for the gradient of `op`. Raises CallError where a name, a type or a shape does not fit."""
    sources = [_source(op, backward, name) for name in backward.inputs]
    targets = [_target(op, backward, name) for name in backward.results]
    if not any(s.kind == "gradient" for s in sources):
        raise CallError(
            f"the gradient `{backward.name}` of `{op.name}` takes no result's gradient",
            hint="name a parameter " + " or ".join(f"`{r}{SUFFIX}`" for r in op.results),
        )
    binding = Binding(backward.op, backward.fixed)
    shapes = {"input": op.shapes, "result": op.result_shapes, "gradient": op.result_shapes}
    for declared, dtype, source in zip(backward.op.inputs, backward.types, sources):
        theirs = _type(op, source.kind, source.number)
        _same_type(op, backward, declared.name, dtype, theirs)
        shape = shapes[source.kind][source.number]
        if declared.shape is not None:
            _same_rank(op, backward, declared.name, len(declared.shape), len(shape))
            binding.give(declared, shape, f"`{declared.name}`")
    binding.solve()
    for conflict in (c for c in binding.conflicts if not c.open or None not in (t.shape for t in op.op.inputs)):
        raise CallError(f"{conflict.message}, in the gradient `{backward.name}` of `{op.name}`", conflict.span)
    for name, number, result in zip(backward.results, targets, backward.op.outputs):
        _same_type(op, backward, name, result.dtype, op.types[number])
        if result.shape is not None:
            wanted = op.shapes[number]
            _same_rank(op, backward, name, len(result.shape), len(wanted))
            bound = binding.sizes | {n: term(op.fixed[n]) if n in op.fixed else size(n) for n in backward.keywords}
            mine = tuple(with_sizes(p, bound) for p in backward.result_shapes[backward.results.index(name)])
            if mine != wanted:
                is_, but = (f"[{', '.join(map(str, s))}]" for s in (mine, wanted))
                message = f"`{name}` of the gradient `{backward.name}` is {is_}, and `{op.inputs[number]}` is {but}"
                raise CallError(message, result.span)
    missing = [n for n in backward.keywords if n not in (*op.keywords, *op.fixed, *_reported(op))]
    if missing:
        raise CallError(f"nothing tells the size `{missing[0]}` of the gradient `{backward.name}` of `{op.name}`")
    return Gradient(tuple(sources), tuple(targets), backward.keywords)


def _reported(op: Signature) -> set[str]:
    return {leaf.name for shape in op.shapes for p in shape for leaf in p.leaves if leaf.is_symbol}


def _source(op: Signature, backward: Signature, name: str) -> Source:
    if name in op.inputs:
        return Source("input", op.inputs.index(name))
    if name in op.results:
        return Source("result", op.results.index(name))
    if name.endswith(SUFFIX) and name.removesuffix(SUFFIX) in op.results:
        return Source("gradient", op.results.index(name.removesuffix(SUFFIX)))
    there = [*op.inputs, *op.results, *(f"{r}{SUFFIX}" for r in op.results)]
    raise CallError(
        f"the gradient `{backward.name}` of `{op.name}` has a parameter `{name}`, which the op does not have",
        hint=_hint(name, there, "its parameters may be"),
    )


def _target(op: Signature, backward: Signature, name: str) -> int:
    if name.endswith(SUFFIX) and name.removesuffix(SUFFIX) in op.inputs:
        return op.inputs.index(name.removesuffix(SUFFIX))
    there = [f"{i}{SUFFIX}" for i, t in zip(op.inputs, op.types) if t is None or t.is_float]
    raise CallError(
        f"the gradient `{backward.name}` of `{op.name}` has a result `{name}`, which is no input's gradient",
        hint=_hint(name, there, "its results may be"),
    )


def _hint(name: str, there: Sequence[str], those: str) -> str:
    close = difflib.get_close_matches(name, there, 1)
    return f"did you mean `{close[0]}`?" if close else f"{those} " + ", ".join(f"`{n}`" for n in there)


def _type(op: Signature, kind: str, number: int) -> DType | None:
    return op.types[number] if kind == "input" else op.op.outputs[number].dtype


def _same_type(op: Signature, backward: Signature, name: str, mine: DType | None, theirs: DType | None) -> None:
    if name.endswith(SUFFIX) and theirs is not None and not theirs.is_float:
        what = name.removesuffix(SUFFIX)
        raise CallError(f"`{what}` of `{op.name}` is {theirs}, which has no gradient")
    if None not in (mine, theirs) and mine != theirs:
        message = f"`{name}` of the gradient `{backward.name}` is {mine}, and `{name.removesuffix(SUFFIX)}` is {theirs}"
        raise CallError(message)


def _same_rank(op: Signature, backward: Signature, name: str, mine: int, theirs: int) -> None:
    if mine != theirs:
        what = f"`{name.removesuffix(SUFFIX)}` of `{op.name}`"
        raise CallError(f"`{name}` of the gradient `{backward.name}` has {mine} dimensions, and {what} has {theirs}")
