"""The checks of one op, statement by statement, and `check`, which checks a whole file without sizes.

The same code runs twice for a program. In `check` sizes are names, and it refuses mistakes that exist for all sizes. In
`specialise` sizes are numbers, and it decides everything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from tilec.core.diagnostics import Diagnostic, Note, Span
from tilec.core.dtypes import DType
from tilec.dsl import ast
from tilec.dsl.ast import replace
from tilec.dsl.check_accesses import AccessChecker
from tilec.dsl.check_calls import Calls
from tilec.dsl.check_expect import check_expect
from tilec.dsl.check_ranges import RangeChecker
from tilec.dsl.check_scope import Module, Report, TensorInfo, suggestion
from tilec.dsl.check_sizes import declared_ranges, declared_shape, size_names, subscript_ranks
from tilec.dsl.check_types import Typer
from tilec.dsl.index_terms import range_of
from tilec.dsl.inline import Inliner
from tilec.dsl.later_uses import LaterUses
from tilec.dsl.modules import Loader, load, load_file
from tilec.dsl.weak_types import UNKNOWN
from tilec.index.terms import Term, size, term


def check(program: ast.Program, loader: Loader = load_file) -> list[Diagnostic]:
    """Every mistake of a program that can be known without sizes."""
    report = Report()
    check_module(load(program, report, loader), report)
    return sorted(report.diagnostics, key=lambda d: (d.span.source.name, d.span.start))


def check_module(module: Module, report: Report) -> dict[str, Elaborator]:
    """Checks what a file declares. Returns the work for each op, with the facts that were found of its names."""
    elaborated: dict[str, Elaborator] = {}
    for function in module.program.defs:
        if not report.full:
            check_function(function, module, report)
    for op in module.program.ops:
        if not report.full:
            mistakes = report.count
            found = elaborate_open(op, module, report)
            elaborated[op.name] = found
            if found.whole and report.count == mistakes:
                module.program.elaborated[op.name] = found
    return elaborated


def check_function(function: ast.Def, module: Module, report: Report) -> None:
    """The names in a function, whether or not anything calls it."""
    seen = {name: function.span for name in (*function.parameters, *function.indices)}
    for name in function.indices:
        if name in function.parameters:
            report.error(f"`{name}` is both index and parameter", function.span)
    for local in function.locals:
        if local.name in seen:
            report.error(f"`{local.name}` is defined twice", local.span, [Note("first here", seen[local.name])])
        seen.setdefault(local.name, local.span)
    Inliner(module, {}, {}, report).function(function)


def elaborate_open(op: ast.Op, module: Module, report: Report, sizes: Mapping[str, int] | None = None) -> Elaborator:
    """The op with its sizes left open, except those given."""
    known = {name: size(name) for name in size_names(op)} | {n: term(v) for n, v in (sizes or {}).items()}
    ranks = subscript_ranks(op)
    inputs: dict[str, TensorInfo] = {}
    for tensor in op.inputs:
        shape: tuple[Term, ...] | None = tuple(size(f"{tensor.name}.{k}") for k in range(ranks.get(tensor.name, 0)))
        if tensor.shape is not None:
            shape = declared_shape(tensor, known, report, False)
        elif tensor.name not in ranks:
            shape = None
        inputs[tensor.name] = TensorInfo(tensor.name, tensor.dtype, shape, tensor.span)
    elaborator = Elaborator(op, module, inputs, known, report, decided=False)
    elaborator.run()
    elaborator.whole &= not known and all(t.dtype is not None and t.shape is not None for t in op.inputs)
    return elaborator


@dataclass(frozen=True)
class Described:
    """The facts about a name: its type, its shape, and the range of each index of its equation."""

    name: str
    dtype: str
    shape: tuple[str, ...]
    ranges: tuple[tuple[str, str, str], ...]  # index, low, high

    def __str__(self) -> str:
        shape = f"[{', '.join(self.shape)}]" if self.shape else ""
        ranges = ", ".join(f"{i} in {low}:{high}" for i, low, high in self.ranges)
        return f"{self.name}: {self.dtype}{shape}" + (f"  {ranges}" if ranges else "")


class Elaborator(Calls):
    """Takes the statements of one op in order; `run` gives its equations, calls inlined, ranges and types in place.

    `decided` says that all sizes are numbers, or vary in known ranges: then all is decided for every number in these. `whole`:
    nothing was left for the time when they are.
    """

    def __init__(
        self, op: ast.Op, module: Module, inputs: dict[str, TensorInfo], sizes: Mapping[str, Term], report: Report,
        decided: bool,
    ):  # fmt: skip
        self.op, self.module, self.sizes, self.report = op, module, sizes, report
        self.decided, self.whole = decided, True
        self.tensors: dict[str, TensorInfo] = dict(inputs)
        self.results: dict[str, TensorInfo] = {}
        self.equations: list[ast.Equation] = []
        self.known: list[tuple[TensorInfo, Mapping[str, ast.Range]]] = []
        self.inliner = Inliner(module, self.tensors, sizes, report)
        self.ranges = RangeChecker(self.tensors, sizes, report, decided)
        self.accesses = AccessChecker(self.tensors, sizes, report, decided)
        self.spliced: dict[tuple, tuple[list[ast.Equation], int]] = {}
        self.typer = Typer(self.tensors, sizes, report, decided)

    def run(self) -> list[ast.Equation]:
        self._declarations()
        for tensor in self.op.inputs:
            self.known.append((self.tensors[tensor.name], {}))
        self.inliner.later = {n: s.span for s in reversed(self.op.body) for n in defined_names(s)}
        for position, statement in enumerate(self.op.body, 1):
            self.report.context = statement.span
            self.later = LaterUses(self.op.body, position, self.tensors, self.results, self.sizes)
            if self.report.full:
                return self.equations
            match statement:
                case ast.Equation():
                    call = self._as_op_call(statement)
                    self._equation(statement) if call is None else self._op_call(call)
                case ast.OpCall():
                    self._op_call(statement)
                case ast.Expect():
                    pass
                case _:
                    assert_never(statement)
        self.report.context = None
        for statement in self.op.body:
            if isinstance(statement, ast.Expect):
                check_expect(statement, self.tensors, self.sizes, self.report)
        for tensor in self.op.outputs:
            if tensor.name not in self.tensors:
                hint = suggestion(tensor.name, [n for n in self.tensors if n not in self.results])
                self.report.error(f"the result `{tensor.name}` is never defined", tensor.span, hint=hint)
        return self.equations

    def _declarations(self) -> None:
        """Each name of the signature once, and no name for two things."""
        seen: dict[str, Span] = {}
        for tensor in (*self.op.inputs, *self.op.outputs):
            if tensor.name in seen:
                note = Note("first here", seen[tensor.name])
                self.report.error(f"`{tensor.name}` is declared twice", tensor.span, [note])
            seen.setdefault(tensor.name, tensor.span)
        sizes = size_names(self.op)
        declared_ranges(self.op, self.report)
        for name in seen.keys() & sizes.keys():
            note = Note("as a size", sizes[name])
            self.report.error(f"`{name}` is both a tensor and a size", seen[name], [note])
        for tensor in self.op.outputs:
            shape = None if tensor.shape is None else declared_shape(tensor, self.sizes, self.report, self.decided)
            self.results[tensor.name] = TensorInfo(tensor.name, tensor.dtype, shape, tensor.span)

    # ---- equations ----

    def _equation(self, equation: ast.Equation) -> None:
        name = equation.name
        if not self._new(name, equation.span):
            return
        declared = self.results.get(name)
        mistakes = self.report.count
        group = self.inliner.equation(equation)
        ranges = None if group is None else self.ranges.infer(group, declared, self.later, self.inliner.unread)
        if group is None or ranges is None:
            self.tensors[name] = self._assumed(name, equation.dtype, equation.span)
            return
        dtype = equation.dtype
        if declared is not None and declared.dtype is not None:
            if dtype not in (None, declared.dtype):
                note = Note("it is declared here", declared.span)
                self.report.error(f"`{name}` is {declared.dtype}, not {dtype}", equation.span, [note])
            dtype = declared.dtype
        for member in group:
            self._member(member, ranges, dtype if member is group[-1] else None, member is not group[-1])
        if self.report.count > mistakes:
            found = self.tensors[name]
            self.tensors[name] = replace(found, dtype=dtype)

    def _member(self, equation: ast.Equation, ranges: dict[str, ast.Range], declared: DType | None, hoisted: bool) -> None:
        """One equation of a group: proved, typed, and from now on a tensor."""
        equation = self.accesses.prove(equation, ranges)
        equation = self.typer.equation(equation, ranges, declared)
        own = tuple(replace(ranges[i], span=ranges[i].span) for i in equation.indices)
        equation = replace(equation, ranges=own)
        shape = tuple(range_of(r)[1] for r in own)
        dtype = None if equation.dtype is UNKNOWN else equation.dtype
        info = TensorInfo(equation.name, dtype, shape, equation.span, hoisted)
        self.tensors[equation.name] = info
        used = {r.index for n in ast.traverse(equation.value) if isinstance(n, ast.Reduce) for r in n.ranges}
        self.known.append((info, {i: r for i, r in ranges.items() if i in equation.indices or i in used}))
        self.equations.append(equation)

    @property
    def described(self) -> list[Described]:
        """The facts about every name, in the order of their definitions."""
        found = []
        for info, ranges in self.known:
            ends = {i: range_of(r) for i, r in ranges.items()}
            shown = tuple((i, _open_size(low), _open_size(high)) for i, (low, high) in ends.items())
            shape = tuple(map(_open_size, info.shape)) if info.shape is not None else ("…",)
            found.append(Described(info.name, str(info.dtype or "any"), shape, shown))
        return found

    def _new(self, name: str, span: Span) -> bool:
        """Whether the name is free to be defined."""
        if name in self.tensors:
            what = "is an input" if any(t.name == name for t in self.op.inputs) else "is defined twice"
            note = Note("it is defined here first", self.tensors[name].span)
            self.report.error(f"`{name}` {what}", span, [note], "a name is defined once; choose another one")
            return False
        if name in self.sizes:
            self.report.error(f"`{name}` is a size", span, hint="choose another name")
            return False
        return True

    def _assumed(self, name: str, dtype: DType | None, span: Span) -> TensorInfo:
        """The facts about a name whose definition is wrong, so that its uses cause no further messages."""
        declared = self.results.get(name)
        return declared if declared is not None else TensorInfo(name, dtype, None, span)


def _open_size(size: Term) -> str:
    """A size; those that only a call tells (`x.0` of the short form) as Python has them: `x.shape[0]`."""
    return re.sub(r"\b(\w+)\.(\d+)\b", r"\1.shape[\2]", str(size))


def defined_names(statement: ast.Statement) -> tuple[str, ...]:
    match statement:
        case ast.Equation(name=name):
            return (name,)
        case ast.OpCall(names=names):
            return names
        case ast.Expect():
            return ()
        case _:
            assert_never(statement)
