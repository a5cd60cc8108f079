"""Ranges of indices (docs/language.md, "Ranges")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilec.core.diagnostics import Note, Span
from tilec.dsl import ast
from tilec.dsl.check_scope import Report, TensorInfo, free_indices
from tilec.dsl.index_terms import in_sizes, is_open, names_in, range_of, size_term, to_size
from tilec.dsl.later_uses import LaterUses
from tilec.index.facts import NONE, maximum
from tilec.index.terms import Term, term


@dataclass(frozen=True)
class _Use:
    """A place where an index subscripts a dimension bare."""

    extent: Term
    tensor: str
    dimension: int
    span: Span
    binding: bool  # False in `pad` and under an `if` about the index: there it need not cover the dimension


class RangeChecker:
    """Ranges of the groups of one op."""

    def __init__(self, tensors: Mapping[str, TensorInfo], sizes: Mapping[str, Term], report: Report, decided: bool):
        self.tensors, self.sizes, self.report, self.decided = tensors, sizes, report, decided
        self.undecided: list[tuple[Term, Term]] = []  # sizes that must be equal, as numbers will tell

    # ---- inference ----

    def infer(
        self, group: list[ast.Equation], declared: TensorInfo | None, later: LaterUses, unread: Sequence[ast.Expr] = ()
    ) -> dict[str, ast.Range] | None:
        """The range of every index of a group, whose last equation defines `declared`; None if some have none. What indices
        subscript in `unread` counts, too. An index of the left side that subscripts nothing has its range from `later`."""
        mistakes = self.report.count
        main = group[-1]
        explicit = {r.index: r for r in main.ranges}
        uses: dict[str, list[_Use]] = {}
        bound: dict[str, Span] = {}
        self.lost: set[str] = set()  # indices of names without a shape, since their equation has a mistake
        for equation in (main, *group[:-1]):
            for index in equation.indices:
                bound.setdefault(index, equation.span)
            for r in _bound_ranges(equation.value):
                bound.setdefault(r.index, r.span)
                if r.low is not None:
                    explicit[r.index] = r
        for value in (*(equation.value for equation in group), *unread):
            self._collect(value, frozenset(), frozenset(bound), uses)
        if declared is not None and declared.shape is not None:
            if len(declared.shape) != len(main.indices):
                message = f"`{main.name}` has {len(declared.shape)} dimensions, but {len(main.indices)} indices"
                self.report.error(message, main.span, [Note("it is declared here", declared.span)])
                return None
            for k, index in enumerate(main.indices):
                use = _Use(declared.shape[k], main.name, k, declared.span, True)
                if index in explicit:
                    self._declared_agrees(explicit[index], use)
                uses.setdefault(index, []).append(use)
        found: dict[str, ast.Range] = {}
        for index, span in bound.items():
            if index in self.lost and index not in explicit and index not in uses:
                continue
            if index in explicit:
                range_ = self._written(explicit[index])
            elif index not in uses and index in main.indices and (
                later_extent := later.extent(main.name, main.indices.index(index))
            ) is not None:  # fmt: skip
                range_ = ast.Range(index, ast.SizeNumber(0), to_size(later_extent.size), later_extent.span)
            else:
                range_ = self._from_uses(index, span, uses.get(index, []), group)
            if range_ is not None:
                found[index] = range_
        for index in main.indices:
            self._starts_at_zero(index, found.get(index), explicit.get(index))
        return found if self.report.count == mistakes and self.lost <= found.keys() else None

    def _collect(
        self, expr: ast.Expr, soft: frozenset[str], bound: frozenset[str], uses: dict[str, list[_Use]]
    ) -> None:
        match expr:
            case ast.Access(tensor=tensor, subscripts=subscripts):
                info = self.tensors.get(tensor)
                if info is not None and info.shape is not None and not info.hoisted:
                    for k, (subscript, extent) in enumerate(zip(subscripts, info.shape)):
                        if isinstance(subscript, ast.Name) and subscript.name in bound:
                            name = subscript.name
                            use = _Use(extent, tensor, k, subscript.span, name not in soft)
                            uses.setdefault(name, []).append(use)
                elif info is not None and info.shape is None and self.report.count:
                    self.lost |= {s.name for s in subscripts if isinstance(s, ast.Name) and s.name in bound}
                for subscript in subscripts:
                    self._collect(subscript, soft, bound, uses)
            case ast.Pad(access=access, value=value):
                self._collect(access, bound, bound, uses)
                self._collect(value, soft, bound, uses)
            case ast.Conditional(condition=condition, then=then, otherwise=otherwise):
                self._collect(condition, soft, bound, uses)
                inside = soft | set(free_indices(condition, bound))
                self._collect(then, inside, bound, uses)
                self._collect(otherwise, inside, bound, uses)
            case _:
                for child in ast.children(expr):
                    self._collect(child, soft, bound, uses)

    def _written(self, range_: ast.Range) -> ast.Range | None:
        """A range given in the source, in sizes as far as they are known."""
        try:
            low, high = (size_term(end, self.sizes) for end in ast.ends_of(range_))
        except ZeroDivisionError:
            self.report.error("division by zero in a bound", range_.span)
            return None
        if not names_in(low) | names_in(high) <= self._known_sizes():
            return None
        if (self.decided or (high - low).constant is not None) and not NONE.proves(high - low):
            high = maximum(low, high)
        return ast.Range(range_.index, to_size(low), to_size(high), range_.span)

    def _known_sizes(self) -> set:
        return set().union(*map(names_in, self.sizes.values()))

    def _declared_agrees(self, range_: ast.Range, use: _Use) -> None:
        written = self._written(range_)
        if written is not None and self._differ(high := range_of(written)[1], use.extent):
            high, extent = in_sizes(high), in_sizes(use.extent)
            message = f"`{range_.index}` runs to {high} here, but `{use.tensor}` has {extent}"
            self.report.error(message, range_.span, [Note(f"dimension {use.dimension} is {extent}", use.span)])

    def _taken_for_inputs(self, group: list[ast.Equation]) -> list[Note]:
        """The subscripts that the short form takes for inputs, as they are neither on the left side nor reduced over: a
        mistyped index is one."""
        subscripts = [
            s for e in group for a in ast.traverse(e.value) if isinstance(a, ast.Access) for s in a.subscripts
        ]
        scalars = {s.tensor: s.span for s in subscripts if isinstance(s, ast.Access) and not s.subscripts}
        neither = "is neither on the left side nor in a reduction, and so is taken for an input"
        return [
            Note(f"`{name}` {neither}", at) for name, at in scalars.items()
            if (info := self.tensors.get(name)) is not None and info.dtype is None
        ]  # fmt: skip

    def _from_uses(self, index: str, span: Span, uses: list[_Use], group: list[ast.Equation]) -> ast.Range | None:
        """The extent that all bare uses of an index of the group agree on."""
        binding = [use for use in uses if use.binding] or uses
        if not binding:
            left = index in group[-1].indices
            hint = f"`where {index} in 0:…`" if left else f"`[{index} in 0:…]` in the reduction"
            hint = f"write {hint}, with the number of its values in place of `…`"
            message = f"the range of `{index}` is unknown: `{index}` alone is not a subscript of any tensor here"
            self.report.error(message, span, self._taken_for_inputs(group), hint=hint)
            return None
        first = binding[0]
        for other in binding[1:]:
            if self._differ(first.extent, other.extent):
                notes = [Note(f"{_dimension(use)} is {in_sizes(use.extent)}", use.span) for use in (first, other)]
                message = f"index `{index}` runs over sizes that differ: {in_sizes(first.extent)} and {in_sizes(other.extent)}"
                named = first.extent.constant is None or other.extent.constant is None
                hint = "are the subscripts in the right order? "
                hint += "Sizes that are equal have one name in the types. " if named else ""
                hint += f"A part of a dimension is `where {index} in 0:…`"
                self.report.error(message, other.span if other.span.source is span.source else span, notes, hint)
                return None
        return ast.Range(index, ast.SizeNumber(0), to_size(first.extent), first.span)

    def _differ(self, a: Term, b: Term) -> bool:
        """Whether two sizes are not the same; open sizes of the short form and quotients may yet turn out so. Those that vary must
        be the same for all numbers that they may have."""
        if a is b or (self.decided and NONE.proves(a - b) and NONE.proves(b - a)):
            return False
        if self.decided:
            return True
        open_ = is_open(".", a, b) or not all(leaf.is_symbol for x in (a, b) for leaf in x.leaves)
        if not open_ or NONE.proves(a - b - 1) or NONE.proves(b - a - 1):
            return True
        self.undecided.append((a, b))
        return False

    def _starts_at_zero(self, index: str, range_: ast.Range | None, written: ast.Range | None) -> None:
        if range_ is None or written is None or range_of(range_)[0] is term(0):
            return
        hint = f"let `{index}` run from 0 and shift the accesses: `x[{index} + {range_of(written)[0]}]`"
        self.report.error(f"index `{index}` of the left side must run from 0", written.span, hint=hint)


def _bound_ranges(expr: ast.Expr) -> Iterator[ast.Range]:
    for node in ast.traverse(expr):
        if isinstance(node, ast.Reduce):
            yield from node.ranges


def _dimension(use: _Use) -> str:
    return f"dimension {use.dimension} of `{use.tensor}`"
