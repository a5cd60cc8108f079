"""What an op's text says of its arguments and results, for sizes that may be symbols: PyTorch traces with these, and compiles
nothing for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from operator import mod
from typing import TypeAlias

import torch

from tilec.core.diagnostics import CallError, TileError
from tilec.core.dtypes import DTYPES, DType
from tilec.driver.frontend import Program
from tilec.dsl import ast
from tilec.dsl.check import Elaborator
from tilec.dsl.check_scope import Report, TensorInfo
from tilec.dsl.check_sizes import declared_shape, size_names, subscript_ranks
from tilec.dsl.index_terms import is_open, names_in, range_of
from tilec.dsl.modules import load
from tilec.dsl.specialise import Specialised, choose_op, specialise
from tilec.index.terms import Leaf, Term, size, term
from tilec.torch.aten.table import dtype_of
from tilec.torch.concrete import UNDECIDED, hint
from tilec.torch.program import Unsupported
from tilec.torch.types import Size

Shape: TypeAlias = tuple[Size, ...]
Types = tuple[DType, ...]


@dataclass(frozen=True)
class _Bind:
    """A size that dimension `dim` of argument `argument` tells: its extent is `factor` times the size, and `rest`."""

    size: str
    argument: int
    dim: int
    factor: Term
    rest: Term


@dataclass(frozen=True)
class _Demand:
    """Dimension `dim` of argument `argument` must be `extent`."""

    argument: int
    dim: int
    extent: Term


class Signature:
    """The op of that name in a program; `sizes` are values that are fixed for some of its sizes. `keywords` are the sizes that
    arguments do not tell, and calls have to give. Raises CallError where there is no such op, or no such size."""

    def __init__(self, program: Program, op: str | None, sizes: Mapping[str, int]):
        self.program, self.fixed = program, dict(sizes)
        self.op = choose_op(program.tree, op)
        self.name = self.op.name
        self.inputs = tuple(t.name for t in self.op.inputs)
        self.results = tuple(t.name for t in self.op.outputs)
        known = size_names(self.op)
        for name in self.fixed:
            if name not in known:
                raise CallError(f"the op `{self.name}` has no size `{name}`", hint="its sizes are " + ", ".join(known))
        ranks = subscript_ranks(self.op)
        self._named = {n: size(n) for n in known} | {n: term(v) for n, v in self.fixed.items()}
        self.types = tuple(t.dtype for t in self.op.inputs)
        self.shapes = tuple(self._declared(t, ranks.get(t.name, 0)) for t in self.op.inputs)
        self._steps, determined = self._solved()
        self.keywords = tuple(n for n in known if n not in determined and n not in self.fixed)
        if self.keywords:
            self._steps, _ = self._solved()

    def _declared(self, tensor: ast.Tensor, rank: int) -> tuple[Term, ...]:
        if tensor.shape is None:
            return tuple(size(f"{tensor.name}.{k}") for k in range(rank))
        return declared_shape(tensor, self._named, Report(), False) or ()

    def _solved(self) -> tuple[list[_Bind | _Demand], set[str]]:
        """How sizes are found, one after another, and which are. What the call gives (`keywords`) is known."""
        known, steps = {*self.fixed, *getattr(self, "keywords", ())}, list[_Bind | _Demand]()
        open_ = [(k, d, p) for k, shape in enumerate(self.shapes) for d, p in enumerate(shape)]
        found = True
        while found:
            found, waiting, open_ = False, open_, []
            for k, d, p in waiting:
                unknown = [leaf for leaf in p.leaves if names_in(term(leaf)) - known]
                if not unknown:
                    steps.append(_Demand(k, d, p))
                    continue
                factor, rest = p.collect(unknown[0])
                if len(unknown) > 1 or not unknown[0].is_symbol or names_in(factor) - known:
                    open_.append((k, d, p))
                    continue
                steps.append(_Bind(unknown[0].name, k, d, factor, rest))
                known.add(unknown[0].name)
                found = True
        return steps, known

    # ---- of a call ---------------------------------------------------------------------------------------------------

    def fitting(self, arguments: Sequence[torch.Tensor]) -> Types:
        """The arguments' types. Raises CallError where types or ranks do not fit."""
        types = []
        for name, dtype, shape, argument in zip(self.inputs, self.types, self.shapes, arguments):
            try:
                given = DTYPES[dtype_of(argument.dtype)]
            except Unsupported as error:
                raise CallError(f"`{name}` of `{self.name}`: {error}, which the language does not have") from None
            if dtype is not None and given != dtype:
                raise CallError(f"`{name}` of `{self.name}` is {dtype}, and the argument is {given}")
            if argument.dim() != len(shape):
                many = f"{len(shape)} dimension{'s' * (len(shape) != 1)}"
                raise CallError(f"`{name}` of `{self.name}` has {many}, and the argument has {argument.dim()}")
            types.append(given)
        return tuple(types)

    def solve(self, shapes: Sequence[Shape], given: Mapping[str, Size]) -> dict[str, Size]:
        """The sizes for arguments of these shapes; `given` are the keywords. What must hold of symbols, `torch._check` learns."""
        sizes: dict[str, Size] = {**self.fixed, **given}
        for step in self._steps:
            extent = shapes[step.argument][step.dim]
            if isinstance(step, _Demand):
                wanted = _value(step.extent, sizes)
                self._demand(extent == wanted, partial(self._mismatch, step, wanted, extent))
                continue
            factor, rest = _value(step.factor, sizes), _value(step.rest, sizes)
            size, why = extent - rest, partial(self._mismatch, step, None, extent)
            if step.factor.constant != 1:
                self._demand(mod(size, factor) == 0, why)
                size = size // factor
            if step.rest is not term(0):
                self._demand(size >= 0, why)
            sizes[step.size] = size
        return sizes

    def _mismatch(self, step: _Bind | _Demand, wanted: Size | None, extent: Size) -> str:
        text = self.shapes[step.argument][step.dim]
        determined = f"`{text}` is {_shown(wanted)}" if wanted is not None and text.constant is None else f"it must be `{text}`"
        return f"{self.name}: dimension {step.dim} of `{self.inputs[step.argument]}` is {_shown(extent)}, and {determined}"

    @staticmethod
    def _demand(condition: bool | torch.SymBool, message: Callable[[], str]) -> None:
        if isinstance(condition, bool):
            if not condition:
                raise CallError(message())
        else:
            torch._check(condition, message)

    def made(self, arguments: Sequence[torch.Tensor], given: Mapping[str, Size]) -> list[tuple[DType, Shape]]:
        """Types and shapes of the results. Raises CallError, or what `torch._check` raises, where arguments do not fit."""
        types = self.fitting(arguments)
        shapes = [tuple(a.shape) for a in arguments]
        if all(type(n) is int for n in (*given.values(), *(n for s in shapes for n in s))):
            determined = tuple(sorted((n, v) for n, v in {**self.fixed, **given}.items() if isinstance(v, int)))
            known = [tuple(n for n in shape if isinstance(n, int)) for shape in shapes]
            return _specialised(self, tuple(zip(types, known)), determined)
        sizes = self.solve(shapes, given)
        body = self._body(types)
        for extent, high, of, index in body.equal:
            a, b = _value(extent, sizes), _value(high, sizes)
            why = f"{self.name}: {of} is {_shown(a)}, and the index `{index}` has {_shown(b)} values elsewhere"
            self._demand(a == b, partial(str, why))
        return [(dtype, tuple(_value(p, sizes) for p in shape)) for dtype, shape in body.results]

    @lru_cache(maxsize=64)  # noqa: B019 - signatures live as long as their ops, which is as long as the process
    def _body(self, types: Types) -> _Body:
        """The op's body for arguments of these types and open sizes."""
        report = Report()
        inputs = {
            t.name: TensorInfo(t.name, dtype, shape, t.span)
            for t, dtype, shape in zip(self.op.inputs, types, self.shapes)
        }
        found = Elaborator(self.op, load(self.program.tree, report), inputs, self._named, report, decided=False)
        found.run()
        if report.diagnostics:
            raise TileError(report.diagnostics)
        return _Body(found, self.results)

    @cached_property
    def result_shapes(self) -> tuple[tuple[Term, ...], ...]:
        """The results' shapes in terms of sizes. (Arguments without a declared type are taken for f32.)"""
        return tuple(shape for _, shape in self._body(tuple(t or DTYPES["f32"] for t in self.types)).results)


class _Body:
    """What an elaborated op has for results, and which extents must be `equal` in it: that of a dimension, and an index's."""

    def __init__(self, elaborator: Elaborator, results: Sequence[str]):
        tensors = elaborator.tensors
        self.results: list[tuple[DType, tuple[Term, ...]]] = []
        for name in results:
            info = elaborator.results[name]
            shape = info.shape if info.shape is not None else tensors[name].shape
            self.results.append((info.dtype or tensors[name].dtype, shape or ()))  # type: ignore[arg-type]
        self.equal = list(dict.fromkeys(self._agreements(elaborator.equations, tensors)))

    @staticmethod
    def _agreements(
        equations: Sequence[ast.Equation], tensors: Mapping[str, TensorInfo]
    ) -> Iterator[tuple[Term, Term, str, str]]:
        for equation in equations:
            ranges = {r.index: r for r in (*equation.ranges, *ast.bound_in(equation.value))}
            for node in ast.traverse(equation.value):
                if not isinstance(node, ast.Access) or (shape := tensors[node.tensor].shape) is None:
                    continue
                for d, (subscript, extent) in enumerate(zip(node.subscripts, shape)):
                    if isinstance(subscript, ast.Name) and (r := ranges.get(subscript.name)) is not None and r.high:
                        high = range_of(r)[1]
                        if extent is not high and is_open(".", extent, high):
                            yield extent, high, f"dimension {d} of `{node.tensor}`", r.index


@lru_cache(maxsize=1024)
def _specialised(
    signature: Signature, inputs: tuple[tuple[DType, tuple[int, ...]], ...], sizes: tuple[tuple[str, int], ...]
) -> list[tuple[DType, Shape]]:
    found: Specialised = specialise(signature.program.tree, signature.name, inputs, dict(sizes))
    return [(t.dtype, tuple(n.value for n in t.shape)) for t in found.outputs]  # type: ignore[misc, union-attr]


def _shown(size: Size | None) -> object:
    """A size as messages have it: of a symbol, the number that it stood for when it was traced."""
    found = hint(size)
    return size if found is UNDECIDED else found


def _value(p: Term, sizes: Mapping[str, Size]) -> Size:
    total: Size = 0
    for monomial, factor in p.parts.items():
        product: Size = factor
        for leaf in monomial:
            n = _leaf_value(leaf, sizes)
            product = n if type(product) is int and product == 1 else product * n
        total = product if type(total) is int and total == 0 else total + product
    return total


def _leaf_value(leaf: Leaf, sizes: Mapping[str, Size]) -> Size:
    """Of a size, or of a quotient of sizes."""
    if leaf.is_symbol:
        return sizes[leaf.name]
    left, right = (_value(a, sizes) for a in leaf.args)
    return left // right
