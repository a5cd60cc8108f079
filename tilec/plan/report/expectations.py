"""`expect` statements: conditions on the compiled program, compared with the plan.

`kernels` is the number of kernels, and of copies into results that no kernel makes. `traffic` is the bytes that they
move. `minimal` is the bytes of inputs and outputs. `fused(a, b)` holds if one kernel computes the tensors, and stores
none of them but the last. A failure names the decisions that broke the condition.
"""

# mypy: no-strict-optional
# mypy: disable-error-code="misc, operator, union-attr"

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from tilec.analysis.copied_results import Copy
from tilec.core.diagnostics import Diagnostic, Note, Span, TileError
from tilec.dsl import ast
from tilec.dsl.specialise import Specialised
from tilec.kernels import KernelPlan
from tilec.plan.groups import Remark
from tilec.plan.model import Plan
from tilec.plan.report.provenance import Provenance

_OPERATORS = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "**": math.pow,
}  # fmt: skip
_MORE_KERNELS = ("obeyed", "refused", "not inlined")  # decisions that make kernels and traffic more,
_FEWER_KERNELS = ("obeyed", "fused", "inlined")  # and those that make them fewer


def traffic(plan: Plan) -> float:
    """Bytes that kernels and copies read and write."""
    parts: tuple[KernelPlan | Copy, ...] = (*plan.kernels, *plan.copies)
    return sum(part.work.dram_read + part.work.dram_write for part in parts)


def minimal_traffic(specialised: Specialised) -> int:
    """Bytes of the inputs, read once, and of the outputs, written once."""
    tensors = (*specialised.inputs, *specialised.outputs)
    return sum(t.dtype.bytes * prod([s.value for s in t.shape]) for t in tensors)


def check_expectations(specialised: Specialised, plan: Plan) -> None:
    """Raises TileError with every `expect` that the plan does not meet, and the decisions that broke it."""
    failed = [
        _failure(e, specialised, plan) for e in specialised.expects if not _Plan(specialised, plan).value(e.condition)
    ]
    if failed:
        raise TileError(failed)


@dataclass(frozen=True)
class Expectation:
    """An `expect` statement."""

    condition: str
    """Its text."""
    holds: bool
    values: str
    """Its quantities with their values in this plan; may be empty."""

    def __str__(self) -> str:
        return f"{self.condition}: {'holds' if self.holds else 'FAILS'}" + (f" ({self.values})" if self.values else "")


def expectations(specialised: Specialised, plan: Plan) -> Iterator[Expectation]:
    """Each `expect` of the program, and whether the plan meets it."""
    for expect in specialised.expects:
        facts = _Plan(specialised, plan)
        yield Expectation(_text(expect.condition), bool(facts.value(expect.condition)), facts.reported())


def _failure(expect: ast.Expect, specialised: Specialised, plan: Plan) -> Diagnostic:
    facts = _Plan(specialised, plan)
    facts.value(expect.condition)
    where = Provenance(specialised)
    reported, hint = facts.reported(), None
    verbs: tuple[str, ...] = _MORE_KERNELS
    wanted = facts.wanted(expect.condition)
    if wanted["traffic"] < 0 and traffic(plan) <= 1.01 * minimal_traffic(specialised):
        verbs, hint = (), "no plan moves less than `minimal`: every input is read once, and every result written once"
    elif wanted["kernels"] > 0 or wanted["traffic"] > 0:
        verbs = _FEWER_KERNELS
    notes = [Note(str(r), where.span(r.line)) for r in _culprits(verbs, facts, plan)]
    message = f"the plan does not meet this expectation{f': {reported}' if reported else ''}"
    return Diagnostic(message, expect.span, tuple(notes[:4]), hint)


def _culprits(verbs: tuple[str, ...], facts: _Plan, plan: Plan) -> list[Remark]:
    """The decisions of such verbs about the tensors that are named; about any, where none is."""
    remarks = [r for r in plan.remarks if r.verb in verbs]
    names = facts.stored
    about = [r for r in remarks if names & {w.strip(",") for w in r.subject.split()}]
    about = about or [r for r in remarks if r.verb != "not inlined"] or remarks
    return sorted(about, key=lambda r: verbs.index(r.verb))


class _Plan:
    """A plan's facts by name; the names that were asked for are kept for the message."""

    def __init__(self, specialised: Specialised, plan: Plan):
        self.specialised, self.plan = specialised, plan
        self.asked: dict[str, str] = {}
        self.stored: set[str] = set()

    def reported(self) -> str:
        return ", ".join(
            f"{name} {'is ' if not text.startswith('`') else ''}{text}" for name, text in self.asked.items()
        )

    def wanted(self, condition: ast.Expr) -> dict[str, int]:
        """Whether a condition that fails asks for more (1) or less (-1) of kernels and of traffic than there is."""
        found = {"kernels": 0, "traffic": 0}
        for node in ast.traverse(condition):
            if not isinstance(node, ast.Compare) or self.value(node):
                continue
            left, right = self.value(node.left), self.value(node.right)
            for side, sign in ((node.left, 1), (node.right, -1)):
                for name in {n.name for n in ast.traverse(side) if isinstance(n, ast.Name)} & found.keys():
                    found[name] = sign * (1 if left < right else -1)
        return found

    def value(self, expr: ast.Expr) -> float | bool:
        match expr:
            case ast.Number(value=value) | ast.Boolean(value=value):
                return value
            case ast.Name(name=name):
                return self.quantity(name)
            case ast.Binary(op="and", left=left, right=right):
                return bool(self.value(left) and self.value(right))
            case ast.Binary(op="or", left=left, right=right):
                return bool(self.value(left) or self.value(right))
            case ast.Binary(op=op, left=left, right=right) | ast.Compare(op=op, left=left, right=right):
                return self.apply(op, self.value(left), self.value(right), expr.span)
            case ast.Unary(op="not", operand=operand):
                return not self.value(operand)
            case ast.Unary(op="-", operand=operand):
                return -self.value(operand)
            case ast.Conditional(condition=condition, then=then, otherwise=otherwise):
                return self.value(then if self.value(condition) else otherwise)
            case ast.Call(function="fused", arguments=arguments):
                return self.fused([a.name for a in arguments if isinstance(a, ast.Name)])
            case ast.Call(function=("min" | "max" | "abs") as function, arguments=arguments):
                return {"min": min, "max": max, "abs": lambda v: abs(v[0])}[function](
                    [self.value(a) for a in arguments]
                )
        raise TileError(Diagnostic("`expect` cannot evaluate this expression", expr.span))

    def apply(self, op: str, left: float, right: float, span: Span) -> float | bool:
        try:
            return _OPERATORS[op](left, right)
        except (ZeroDivisionError, OverflowError, ValueError):
            raise TileError(Diagnostic("this has no value: it divides by zero or is too large", span)) from None

    def quantity(self, name: str) -> float:
        match name:
            case "kernels":
                value: float = len(self.plan.kernels) + len(self.plan.copies)
                self.stored |= {n for k in self.plan.kernels for n in k.outputs}
                shown = str(value) + (f" ({self.plan.counted})" if self.plan.copies else "")
            case "traffic":
                value = traffic(self.plan)
                results = {t.name for t in self.specialised.outputs}
                self.stored |= {n for k in self.plan.kernels for n in k.outputs} - results
                shown = f"{value:.0f} bytes"
            case "minimal":
                value = minimal_traffic(self.specialised)
                shown = f"{value} bytes"
            case _:
                return self.specialised.sizes.get(name, 0)
        self.asked[name] = shown
        return value

    def fused(self, names: list[str]) -> bool:
        """One kernel makes the last tensor; all others are made in it or inside their readers, and none is
        stored.
        """
        home = next((k for k in self.plan.kernels if names and names[-1] in k.nodes), None)
        results = {t.name for t in self.specialised.outputs}
        met = True
        for name in names[:-1] if len(names) > 1 else names:
            if why := self.in_other_kernel(name, home, name in results):
                self.asked[f"`{name}`"] = why
                met = False
        return met

    def in_other_kernel(self, name: str, home: KernelPlan | None, returned: bool) -> str | None:
        """Why a tensor is not fused into the kernel `home`, or None."""
        if any(t.name == name for t in self.specialised.inputs):
            return "an input"
        for part in (name, *self.parts(name)):
            kernel = next((k for k in self.plan.kernels if part in k.nodes), None)
            if kernel is None:  # computed inside its readers, or nowhere at all
                continue
            self.stored |= {part} | set(home.nodes if home else ())
            if home is not None and kernel.name != home.name:
                return f"computed in kernel {kernel.name}, apart from {home.name}"
            if part in kernel.outputs and not (returned and part == name):
                return f"written to memory by kernel {kernel.name}" + (f", as {part}" if part != name else "")
        return None

    def parts(self, name: str) -> list[str]:
        """The reductions in a tensor's equation that are operations of their own: `h.sum` of `h`."""
        owned = {e.name for e in self.specialised.equations}
        found = [n for k in self.plan.kernels for n in k.nodes if n.startswith(f"{name}.")]
        return [n for n in found if n not in owned and n.count(".") == name.count(".") + 1]


def _text(expr: ast.Expr) -> str:
    source = expr.span.source.text
    return " ".join(source[expr.span.start : expr.span.end].split())
