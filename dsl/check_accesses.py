"""The proof that every access stays inside its tensor (docs/language.md, "Ranges").

Subscripts and conditions are terms, and what is proved of them holds for all sizes at once (`tilec/index`). Where sizes have names,
only an access that is outside for every size is refused. Where all sizes are numbers, integer systems decide what proofs leave open
(`tilec/index/exact.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tilec.core.diagnostics import Note
from tilec.dsl import ast
from tilec.dsl.check_scope import Report, TensorInfo, free_indices, text_of
from tilec.dsl.index_terms import IndexTerms, implied, in_sizes, is_open, range_of, varies
from tilec.index.exact import Domain
from tilec.index.facts import NONE, Facts
from tilec.index.terms import Cond, Leaf, Term, index, leaf_of, term

_TRIED = 16  # numbers of a size
_Ranges = Mapping[str, tuple[Term, Term]]


@dataclass(frozen=True)
class _Here:
    """A place in an expression: the indices that are known there, what conditions tell of them, and what follows. `empty`: some
    index has no value, so that nothing is evaluated."""

    terms: IndexTerms
    facts: Facts = NONE
    conditions: tuple[Cond, ...] = ()
    empty: bool = False

    def binding(self, indices: Mapping[str, tuple[Term, Term]]) -> _Here:
        """Inside a reduction over these ranges. An index has another symbol than an outer one of the same name."""
        names, empty = dict[str, Term](), self.empty
        for name, (low, high) in indices.items():
            outer = self.terms.names[name].leaf if name in self.terms.names else None
            names[name] = index(f"{outer.name}'" if outer is not None and outer.op == "index" else name, _end(low, high), low)
            empty |= NONE.proves(low - high)
        facts = replace(self.facts, never=True) if empty else _of_some(self.facts, indices.values())
        return _Here(self.terms.within(names), facts, self.conditions, empty)

    @property
    def indices(self) -> list[Leaf]:
        return [leaf for x in self.terms.names.values() if (leaf := x.leaf) is not None and leaf.op == "index"]

    def where(self, condition: Cond) -> _Here:
        facts, known = self.facts, implied(condition)
        for part in known:
            facts = facts.assume(part)
        return replace(self, facts=facts, conditions=(*self.conditions, *known))


class AccessChecker:
    """Accesses of one op's equations; with names for sizes it refuses only accesses that are always wrong."""

    def __init__(self, tensors: Mapping[str, TensorInfo], sizes: Mapping[str, Term], report: Report, decided: bool):
        self.tensors, self.sizes, self.report, self.decided = tensors, sizes, report, decided

    def prove(self, equation: ast.Equation, ranges: Mapping[str, ast.Range]) -> ast.Equation:
        """The equation with `guarded` set on accesses; an access that may fall outside is an error."""
        spans = {i: range_of(r) for i, r in ranges.items() if r.low is not None and r.high is not None}
        here = _Here(IndexTerms(self.sizes)).binding({i: s for i, s in spans.items() if i in equation.indices})
        return ast.replace(equation, value=self._prove(equation.value, here, spans))

    def _prove(self, expr: ast.Expr, here: _Here, spans: _Ranges) -> ast.Expr:
        def go(e: ast.Expr) -> ast.Expr:
            return self._prove(e, here, spans)

        match expr:
            case ast.Access(subscripts=subscripts):
                expr = ast.with_children(expr, tuple(map(go, subscripts)))
                guarded = self._guarded(expr, here)
                return expr if guarded == expr.guarded else ast.replace(expr, guarded=guarded)
            case ast.Pad(access=access, value=value):
                access = ast.replace(access, subscripts=tuple(map(go, access.subscripts)))
                return ast.replace(expr, access=access, value=go(value))
            case ast.Conditional(condition=condition, then=then, otherwise=otherwise):
                holds = here.terms.condition(condition)
                then, otherwise = (
                    self._prove(branch, here.where(when), spans)
                    for branch, when in ((then, holds), (otherwise, ~holds))
                )
                return ast.replace(expr, condition=go(condition), then=then, otherwise=otherwise)
            case ast.Reduce(ranges=ranges, body=body):
                inner = here.binding({r.index: spans[r.index] for r in ranges})
                return ast.replace(expr, body=self._prove(body, inner, spans))
            case ast.Scan(body=body):  # takes in all that came before, whatever an `if` around it tells
                free = _Here(here.terms, replace(NONE, never=here.empty), (), here.empty)
                return ast.replace(expr, body=self._prove(body, free, spans))
            case _:
                return ast.with_children(expr, tuple(map(go, ast.children(expr))))

    def _guarded(self, access: ast.Access, here: _Here) -> bool:
        """Whether the access needs care; reports one that is affine and not provably inside."""
        info = self.tensors.get(access.tensor)
        if info is None or info.shape is None or info.hoisted:
            return False
        guarded = False
        for k, (subscript, extent) in enumerate(zip(access.subscripts, info.shape)):
            x = here.terms.of(subscript)
            if x is None:
                guarded = True  # a gather: checked where it is used
                continue
            if _inside(x, extent, NONE):
                continue  # a reduction does not run along the empty range of an index it does not use
            affine = here.terms.affine(subscript) is not None  # what is not is checked where it is used
            if affine and _inside(x, extent, here.facts):
                guarded = True
            elif not self._decides(domain := Domain(here.conditions, here.indices), x - extent, here):
                guarded = True
                if affine and (self.decided or self._surely_outside(subscript, x, extent, here)):
                    self._outside(access, k, x, extent, here)
            elif not _exactly_inside(Domain(), x, extent):
                guarded = True
                if affine and not _exactly_inside(domain, x, extent):
                    self._outside(access, k, x, extent, here, domain)
        return guarded

    def _decides(self, domain: Domain, x: Term, here: _Here) -> bool:
        """Whether an integer system decides about a term. A program whose sizes are yet open may still be right."""
        ends = [e for leaf in here.indices for e in leaf.ends if e is not None]
        return (self.decided or not varies(x, *ends)) and domain.decides(x)

    def _outside(
        self, access: ast.Access, k: int, x: Term, extent: Term, here: _Here, domain: Domain | None = None
    ) -> None:  # fmt: skip
        """Reports an access of which a subscript takes values outside of its dimension."""
        subscript, info = access.subscripts[k], self.tensors[access.tensor]
        at, size = text_of(subscript), in_sizes(extent)
        message = f"`{text_of(access)}` may reach outside: the conditions are too many to be weighed. "
        message += f"Dimension {k} of `{access.tensor}` has size {size}"
        if domain is None or not domain.limited:
            open_ = self.decided and varies(x - extent)
            low, high = NONE.ends(x) if domain is None or open_ else domain.ends(x)
            low, high = (e if isinstance(e, int | None) else in_sizes(e) for e in (low, high))
            known = low is not None and high is not None
            values = f"`{at}` takes the values {low}" + f" to {high}" * (low != high) + ", and " if known else ""
            message = f"`{text_of(access)}` {'may reach' if open_ else 'reaches'} outside: {values}"
            message += f"dimension {k} of `{access.tensor}` has size {size}"
        above, below = here.facts.proves(x), here.facts.proves(extent - 1 - x)
        if domain is not None:
            above, below = domain.is_at_least(x, 0), domain.is_below(x, extent)
        if x.constant is not None and x.constant < 0 and not free_indices(subscript, [i.name for i in here.indices]):
            hint = f"subscripts count from the beginning: the last one is `{size - 1}`"
        else:
            tests = " and ".join([f"{at} >= 0"] * (not above) + [f"{at} < {size}"] * (not below))
            hint = f"write `pad({text_of(access)}, 0)`, or guard it: `… if {tests} else 0`"
        self.report.error(message, access.span, [Note(f"`{access.tensor}` is defined here", info.span)], hint)

    def _surely_outside(self, subscript: ast.Expr, x: Term, extent: Term, here: _Here) -> bool:
        """Whether it is outside for all sizes. Corners are reached where nothing is rounded, no condition is in the way and no
        range can be empty."""
        low, high = NONE.ends(x)
        if low is None or high is None or here.conditions or _rounds(subscript):
            return False
        if not all(leaf.is_symbol for y in (x, low, high) for leaf in y.leaves) or is_open(".", extent, high):
            return False
        ends = [leaf.ends for leaf in here.indices]
        nonempty = all(a is not None and b is not None and NONE.proves(b - a) for a, b in ends)
        return nonempty and (NONE.proves(high - extent) or NONE.proves(-low - 1))


def _of_some(facts: Facts, ranges: Iterable[tuple[Term, Term]]) -> Facts:
    """Where some index of each range exists: sizes are not so small that a range would be empty."""
    swaps = dict(facts.swaps)
    for low, high in ranges:
        extent = high - low
        for leaf in (leaf for leaf in extent.free if leaf.op == "size" and leaf.ends[1] is not None):
            first = _first(extent, leaf)
            if not NONE.proves(swaps.get(leaf, term(leaf)) - first):
                swaps[leaf] = leaf_of("size", leaf.name, (), (term(first), leaf.ends[1]))
    return facts if swaps == facts.swaps else replace(facts, swaps=swaps)


def _first(extent: Term, size: Leaf) -> int:
    """A number below which a size makes an extent less than 1."""
    low, high = map(int, NONE.bounds(term(size)))
    last = min(low + _TRIED, high)
    return next((n for n in range(low, last) if NONE.bounds(NONE.rebuilt(extent, {size: term(n)}))[1] >= 1), last)


def _end(low: Term, high: Term) -> Term:
    """The end of a range that may be empty for some sizes, max(low, x): no index has a value where x is below `low`."""
    leaf = (-high).leaf
    others = [a for a in leaf.args if a is not -low] if leaf is not None and leaf.op == "min" else []
    return -others[0] if len(others) == 1 else high


def _inside(x: Term, extent: Term, facts: Facts) -> bool:
    low, high = leaf.ends if (leaf := x.leaf) is not None and leaf.op == "index" else (None, None)
    if low is not None and high is not None and NONE.proves(low) and NONE.proves(extent - 1 - high):
        return True  # also where the range is empty: it ends before it begins
    return facts.proves(x) and facts.proves(extent - 1 - x)


def _exactly_inside(domain: Domain, x: Term, extent: Term) -> bool:
    return domain.is_at_least(x, 0) and domain.is_below(x, extent)


def _rounds(expr: ast.Expr) -> bool:
    """Whether an index or a size is divided."""
    divisions = (e for e in ast.traverse(expr) if isinstance(e, ast.Binary) and e.op in ("//", "%", ">>", "&"))
    return any(isinstance(part, ast.Name) for e in divisions for part in ast.traverse(e))
