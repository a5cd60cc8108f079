"""Sizes that a program accepts, near those that are wanted: its divisors may rule the wanted ones out.

A program whose blocks have 16 elements takes multiples of 16, and one that reads three elements for each result takes three
times as many. The numbers of the program's text are the units to try. Dimensions that must agree tell sizes from others
(`M // 3` and `N`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations_with_replacement, count, islice
from math import lcm

from tilec.dsl import ast
from tilec.dsl.index_terms import names_in, with_sizes
from tilec.dsl.notation import written_ranges
from tilec.index.terms import Term, term

Sizes = dict[str, int]
_LARGEST = 4096  # of a unit
_MOST_UNITS = 10
_MOST_LOOKED_AT, _MOST_TRIED = 20_000, 300


def suitable(
    wanted: Mapping[str, int], accepts: Callable[[Sizes], bool], units: list[int], equal: list[tuple[Term, Term]],
    fixed: Mapping[str, int],
) -> Sizes | None:  # fmt: skip
    """Sizes near `wanted` that `accepts` returns true for; None where none was found. `units` are those of the program
    (`units_of`), `equal` are sizes that must agree, and the sizes `fixed` stay."""
    if accepts(found := {**wanted, **fixed}):
        return found
    free = [n for n in wanted if n not in fixed]
    determined = _determined(equal, set(free))
    values = {n: _near(wanted[n], units, [wanted[m] for m in free if m != n]) for n in free if n not in determined}
    combined = islice(_combinations(values, wanted, units), _MOST_LOOKED_AT)
    whole = (_completed({**sizes, **fixed}, determined, equal) for sizes in combined)
    first = list(islice(_distinct(sizes for sizes in whole if sizes is not None), _MOST_TRIED))
    proper = [s for s in first if all(s[n] > 1 or wanted[n] <= 1 for n in s)]
    for sizes in (*proper, *(s for s in first if s not in proper)):
        if accepts(sizes):
            found = _nearer(sizes, wanted, accepts, [n for n in free if n not in determined])
            return {name: found[name] for name in wanted}
    return None


def _nearer(sizes: Sizes, wanted: Mapping[str, int], accepts: Callable[[Sizes], bool], names: list[str]) -> Sizes:
    """With each size that was wanted and is accepted with the others."""
    for name in names:
        if sizes[name] != wanted[name] and accepts(closer := {**sizes, name: wanted[name]}):
            sizes = closer
    return sizes


def _near(size: int, units: list[int], others: list[int]) -> list[int]:
    """Values to try for a size, the likely ones first."""
    every = [u for u in (*units, *others) if u > 1]
    multiples = (m * u for m in (1, 2, 3) for u in every)
    values = (size, *(-(-size // u) * u for u in every), *multiples, *(m * size for m in (2, 3, 4)))
    return list(dict.fromkeys(values)) if size else [0]


def _combinations(values: dict[str, list[int]], wanted: Mapping[str, int], units: list[int]) -> Iterator[Sizes]:
    """All sizes multiples of one unit; then those of `values`, the likely ones first."""
    for unit in units:
        yield {n: -(-wanted[n] // unit) * unit for n in values}
    longest = sum(len(v) - 1 for v in values.values())
    for total in range(longest + 1):
        for steps in _steps([len(v) for v in values.values()], total):
            yield {n: v[k] for (n, v), k in zip(values.items(), steps)}


def _steps(lengths: list[int], total: int) -> Iterator[tuple[int, ...]]:
    """Positions below these lengths that add up to `total`."""
    if not lengths:
        if total == 0:
            yield ()
        return
    for first in range(min(lengths[0] - 1, total) + 1):
        for rest in _steps(lengths[1:], total - first):
            yield first, *rest


def _distinct(found: Iterator[Sizes]) -> Iterator[Sizes]:
    seen = set()
    for sizes in found:
        if (key := tuple(sizes.items())) not in seen:
            seen.add(key)
            yield sizes


# ---- sizes that must agree -------------------------------------------------------------------------------------------


def _determined(equal: list[tuple[Term, Term]], free: set[str]) -> dict[str, Term]:
    """The sizes that others tell: one side of an equality is just their name."""
    determined: dict[str, Term] = {}
    for a, b in (*equal, *((b, a) for a, b in equal)):
        name = a.leaf.name if a.leaf is not None else ""
        if name in free and name not in determined and not _reaches(b, name, determined):
            determined[name] = b
    return determined


def _reaches(p: Term, name: str, determined: Mapping[str, Term]) -> bool:
    """Whether a size depends on `name`, be it by way of others that are determined."""
    names = names_in(p)
    return name in names or any(_reaches(determined[n], name, determined) for n in names & determined.keys())


def _completed(sizes: Sizes, determined: Mapping[str, Term], equal: list[tuple[Term, Term]]) -> Sizes | None:
    """With the sizes that are determined; None where sizes that must agree do not."""
    for _ in determined:
        for name, p in determined.items():
            if (value := _value(p, sizes)) is not None:
                sizes = {**sizes, name: value}
    if any((a := _value(p, sizes)) is None or a != _value(q, sizes) for p, q in equal) or min(sizes.values(), default=0) < 0:
        return None
    return sizes


def _value(p: Term, sizes: Mapping[str, int]) -> int | None:
    return with_sizes(p, {name: term(n) for name, n in sizes.items()}).constant


# ---- units -----------------------------------------------------------------------------------------------------------


def units_of(program: ast.Program) -> list[int]:
    """The whole numbers of a program's text that may divide sizes, and products of two of them, the small ones first."""
    found: set[int] = set()
    for expr in _expressions(program):
        for node in ast.traverse(expr):
            match node:
                case ast.Binary(op="<<" | ">>", right=ast.Number(value=int(value))) if 0 < value < 13:
                    found.add(1 << value)
                case ast.Binary(op="&", right=ast.Number(value=int(value))):
                    found.add(value + 1)
                case ast.Number(value=int(value)):
                    found.add(value)
    found |= {size.value for size in _sizes(program) if isinstance(size, ast.SizeNumber)}
    small = sorted(u for u in found if 1 < u <= _LARGEST)[:_MOST_UNITS]
    products = {a * b for a, b in combinations_with_replacement(small, 2)} | {lcm(*small)}
    return [*small, *sorted(u for u in products - set(small) if u <= _LARGEST)[:_MOST_UNITS]]


def _expressions(program: ast.Program) -> Iterator[ast.Expr]:
    for op in program.ops:
        yield from (s.value for s in op.body if isinstance(s, ast.Equation))
    for function in program.defs:
        yield from (*(local.value for local in function.locals), function.result)


def _sizes(program: ast.Program) -> Iterator[ast.Size]:
    """All sizes and bounds, and the parts of them."""
    for op in program.ops:
        found = [size for t in (*op.inputs, *op.outputs) for size in t.shape or ()]
        for statement in op.body:
            if isinstance(statement, ast.Equation):
                ranges = (*statement.ranges, *written_ranges(statement.value))
                found += [bound for r in ranges for bound in (r.low, r.high) if bound is not None]
        yield from (part for size in found for part in ast.parts_of(size))


def multiple(name: str, sizes: Sizes, accepts: Callable[[Sizes], bool], units: list[int]) -> tuple[int, int] | None:
    """A number of which a size must be a multiple, and the multiple next to it: if it is none, and multiples are accepted."""
    size = sizes[name]
    for unit in units:
        if size % unit:
            above = islice(count(-(-size // unit) * unit, unit), 3)
            if (first := next(above)) and accepts({**sizes, name: first}) and all(accepts({**sizes, name: n}) for n in above):
                return unit, first
    return None
