"""Calls of ops by ops: compares arguments with parameters and results with declarations, and inserts the callee's equations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tilec.core.diagnostics import Note, Span
from tilec.core.dtypes import DType
from tilec.dsl import ast
from tilec.dsl.ast import replace
from tilec.dsl.bind import Binding
from tilec.dsl.check_scope import Module, Report, TensorInfo, suggestion
from tilec.dsl.check_sizes import declared_ranges, declared_shape, size_names
from tilec.dsl.index_terms import in_sizes, is_open, range_of
from tilec.dsl.inline import Inliner
from tilec.index.facts import NONE
from tilec.index.terms import Term, size, term


class Calls:
    """The part of `check.Elaborator` that elaborates calls of ops, and what it takes of the rest."""

    module: Module
    report: Report
    tensors: dict[str, TensorInfo]
    results: dict[str, TensorInfo]
    known: list[tuple[TensorInfo, Mapping[str, ast.Range]]]
    equations: list[ast.Equation]
    inliner: Inliner
    decided: bool
    whole: bool
    spliced: dict[tuple, tuple[list[ast.Equation], int]]

    if TYPE_CHECKING:

        def __init__(
            self, op: ast.Op, module: Module, inputs: Mapping[str, TensorInfo], sizes: Mapping[str, Term],
            report: Report, decided: bool,
        ) -> None: ...  # fmt: skip
        def run(self) -> list[ast.Equation]: ...
        def _new(self, name: str, span: Span) -> bool: ...
        def _assumed(self, name: str, dtype: DType | None, span: Span) -> TensorInfo: ...
        def _equation(self, equation: ast.Equation) -> None: ...

    def _as_op_call(self, equation: ast.Equation) -> ast.OpCall | None:
        """`y = other(x)` looks like a scalar equation until one knows that `other` is an op."""
        value = equation.value
        if not isinstance(value, ast.Call) or value.function not in self.module.ops or value.indices:
            return None
        if equation.indices or equation.ranges or equation.dtype is not None:
            hint = f"write `{equation.name} = {value.function}(…)`"
            self.report.error("an op is called with whole tensors, and gives whole tensors", equation.span, hint=hint)
        names: list[str] = []
        for argument in value.arguments:
            if isinstance(argument, ast.Name):
                names.append(argument.name)
            else:
                hint = (
                    "give the value a name first"
                    if not isinstance(argument, ast.Access)
                    else f"write `{argument.tensor}`"
                )
                self.report.error("an op is called with whole tensors", argument.span, hint=hint)
        if len(names) < len(value.arguments) or equation.indices or equation.ranges:
            names = []
            self.tensors[equation.name] = self._assumed(equation.name, None, equation.span)
            return ast.OpCall((), value.function, (), equation.span)
        return ast.OpCall((equation.name,), value.function, tuple(names), equation.span)

    def _op_call(self, call: ast.OpCall) -> None:
        self.whole &= self.decided
        if not call.names:
            return
        names = [name for name in call.names if self._new(name, call.span)]
        mistakes = self.report.count
        binding = self._bound(call)
        for name in names:
            self.tensors[name] = self._assumed(name, None, call.span)
        if binding is None or len(names) < len(call.names) or self.report.count > mistakes:
            return
        callee, home = self.module.ops[call.op]
        for name, result in zip(call.names, callee.outputs):
            found = declared_shape(result, binding.sizes, self.report, self.decided)
            if found is None:
                return
            shape = tuple(p if not is_open("?", p) else size(f"{name}.{k}") for k, p in enumerate(found))
            info = TensorInfo(name, result.dtype, shape, call.span)
            self._result_agrees(info, call)
            declared = self.results.get(name)
            self.tensors[name] = info if declared is None else replace(info, dtype=declared.dtype or info.dtype)
            self.known.append((self.tensors[name], {}))
        if self.decided and self.report.count == mistakes:
            self._splice(call, callee, home, binding)

    def _bound(self, call: ast.OpCall) -> Binding | None:
        """The callee's sizes, from the arguments."""
        if call.op not in self.module.ops:
            what = "is a function, not an op" if call.op in self.module.defs else "is not an op"
            hint = suggestion(call.op, self.module.ops)
            self.report.error(f"`{call.op}` {what}", call.span, hint=hint)
            return None
        callee, _ = self.module.ops[call.op]
        note = [Note(f"`{callee.name}` is defined here", callee.span)]
        for what, given, wanted in (
            ("arguments", call.arguments, callee.inputs), ("results", call.names, callee.outputs)
        ):  # fmt: skip
            if len(given) != len(wanted):
                self.report.error(f"`{callee.name}` has {len(wanted)} {what}, not {len(given)}", call.span, note)
                return None
        binding = Binding(callee)
        for name, parameter in zip(call.arguments, callee.inputs):
            info = self.tensors.get(name)
            if info is None:
                later = name in self.inliner.later
                message = f"`{name}` is read before it is defined" if later else f"unknown name `{name}`"
                self.report.error(message, call.span, hint=suggestion(name, self.tensors))
                continue
            self._argument_agrees(info, parameter, callee, call)
            if info.shape is not None and parameter.shape is not None:
                binding.give(parameter, info.shape, f"`{name}`")
        binding.solve()
        for problem in binding.conflicts:
            if not self.decided and problem.open:
                continue
            self.report.error(f"{problem.message} in the call of `{callee.name}`", call.span, problem.notes)
        if not binding.conflicts and all(n in self.tensors for n in call.arguments):
            self._sizes_determined(call, callee, binding)
            self._in_ranges(call, callee, binding)
        return binding

    def _in_ranges(self, call: ast.OpCall, callee: ast.Op, binding: Binding) -> None:
        """The callee's sizes must be those that its text allows; while sizes are open, those that are numbers."""
        for name, allowed in declared_ranges(callee, Report()).items():
            x, numbers = binding.sizes[name], allowed.numbers
            if x.constant is None and (not self.decided or is_open("?", x)):
                continue
            if not (NONE.proves(x - numbers.low) and NONE.proves(numbers.high - x) and x % numbers.multiple is term(0)):
                message = f"`{name}` is {in_sizes(x)} in the call of `{callee.name}`, which allows {numbers}"
                self.report.error(message, call.span, [Note("it is declared here", allowed.span)])

    def _sizes_determined(self, call: ast.OpCall, callee: ast.Op, binding: Binding) -> None:
        """The arguments must tell all of the callee's sizes; while sizes are open, those that no parameter has."""
        missing = [*binding.missing, *(n for n in size_names(callee) if n not in binding.sizes)]
        if not self.decided:
            missing = [n for n in missing if n not in size_names(replace(callee, outputs=(), body=()))]
        if missing:
            names = ", ".join(f"`{n}`" for n in missing)
            what = "the size" if len(missing) == 1 else "the sizes"
            message = f"{what} {names} cannot be found in the call of `{callee.name}`"
            hint = "a called op learns its sizes from the shapes of its arguments"
            note = Note(f"`{callee.name}` is defined here", callee.span)
            self.report.error(message, call.span, [note], hint)

    def _argument_agrees(self, info: TensorInfo, parameter: ast.Tensor, callee: ast.Op, call: ast.OpCall) -> None:
        notes = [Note(f"the parameter `{parameter.name}`", parameter.span)]
        if None not in (info.dtype, parameter.dtype) and info.dtype != parameter.dtype:
            message = (
                f"`{callee.name}` takes {parameter.dtype} as `{parameter.name}`, and `{info.name}` is {info.dtype}"
            )
            hint = f"declare its type: `{info.name}[…]: {parameter.dtype} = …`"
            self.report.error(message, call.span, notes, hint)
        if info.shape is not None and parameter.shape is not None and len(info.shape) != len(parameter.shape):
            wanted, got = len(parameter.shape), len(info.shape)
            message = f"`{callee.name}` takes {wanted} dimensions as `{parameter.name}`, and `{info.name}` has {got}"
            self.report.error(message, call.span, notes)

    def _result_agrees(self, info: TensorInfo, call: ast.OpCall) -> None:
        declared = self.results.get(info.name)
        if declared is None or declared.shape is None or info.shape is None:
            return
        same = len(declared.shape) == len(info.shape) and not any(
            not is_open(".", a) and a is not b for a, b in zip(info.shape, declared.shape)
        )
        if not same:
            got, wanted = (f"[{', '.join(map(str, shape))}]" for shape in (info.shape, declared.shape))
            note = Note("it is declared here", declared.span)
            self.report.error(f"`{call.op}` gives {got}, and `{info.name}` is {wanted}", call.span, [note])

    def _splice(self, call: ast.OpCall, callee: ast.Op, home: Module, binding: Binding) -> None:
        """The callee's equations, under names of their own; its results under the caller's."""
        inputs = {
            p.name: replace(self.tensors[a], name=p.name, dtype=p.dtype or self.tensors[a].dtype, hoisted=False)
            for a, p in zip(call.arguments, callee.inputs)
        }
        prefix = self.inliner.instance(callee.name)
        names = dict(zip((p.name for p in callee.inputs), call.arguments))
        for name, result in zip(call.names, callee.outputs):
            declared = self.results.get(name)
            cast = declared is not None and declared.dtype not in (None, result.dtype)
            names[result.name] = f"{prefix}.{result.name}" if cast else name
        spliced = [_renamed(e, names, prefix) for e in self._elaborated(callee, home, inputs, binding)]
        self.equations += spliced
        for equation in spliced:
            shape = tuple(range_of(r)[1] for r in equation.ranges)
            self.tensors[equation.name] = TensorInfo(equation.name, equation.dtype, shape, call.span)
        for name, result in zip(call.names, callee.outputs):
            if names[result.name] != name:
                self._rounded(name, names[result.name], call)

    def _elaborated(
        self, callee: ast.Op, home: Module, inputs: Mapping[str, TensorInfo], binding: Binding
    ) -> list[ast.Equation]:
        """The callee's equations for these arguments: worked out once for all calls of these types and shapes."""
        facts = tuple((t.name, t.dtype, t.shape) for t in inputs.values())
        key = (id(callee), facts, tuple(binding.sizes.items()))
        if key not in self.spliced:
            mistakes = self.report.count
            inner = type(self)(callee, home, inputs, binding.sizes, self.report, True)
            inner.spliced = self.spliced
            inner.run()
            self.spliced[key] = inner.equations, self.report.count - mistakes
            return inner.equations
        equations, mistakes = self.spliced[key]
        self.report.count += mistakes
        return equations

    def _rounded(self, name: str, source: str, call: ast.OpCall) -> None:
        """A result of the caller whose declared type is not the callee's."""
        indices = tuple(f"i{k}" for k in range(len(self.tensors[source].shape or ())))
        access = ast.Access(source, tuple(ast.Name(i, span=call.span) for i in indices), span=call.span)
        del self.tensors[name]
        self._equation(ast.Equation(name, indices, access, span=call.span))


def _renamed(equation: ast.Equation, names: Mapping[str, str], prefix: str) -> ast.Equation:
    """A callee's equation with its tensors called by the caller's names, or `prefix.name`."""

    def called(name: str) -> str:
        return names.get(name) or f"{prefix}.{name}"

    def go(expr: ast.Expr) -> ast.Expr:
        if isinstance(expr, ast.Access):
            return replace(expr, tensor=called(expr.tensor), subscripts=tuple(map(go, expr.subscripts)))
        return ast.with_children(expr, tuple(map(go, ast.children(expr))))

    return replace(equation, name=called(equation.name), value=go(equation.value))
