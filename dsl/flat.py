"""Tensors in fewer dimensions, where a program reads and writes them at flat addresses.

    y[m, n] = sum[k](x[m // 512, m % 512, k] * w[k, n])     ->   x is [4096, 1024], and is read as x[m, k]
    z[b, s, n] = y[b * 512 + s, n] + r[b, s, n]             ->   z and r are [4096, 1024], and z[m, n] = y[m, n] + r[m, n]

Tensors are row-major and without gaps, so that merging two neighbouring dimensions moves no element. Two dimensions of a tensor
become one if that makes the subscripts of an access simpler and of no other access worse: divisions vanish, or a sum is an index.
The two indices of an equation's left side that belong to them become one with them. The dimensions that depend on one another in
this way are merged together, or stay. So what was a view of a tensor elsewhere (`reshape`, `view`, `as_strided`) is read in the
order of its elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import prod

from tilec.core.dtypes import I64
from tilec.dsl import ast
from tilec.dsl.ast import replace
from tilec.dsl.index_values import Values, index_values
from tilec.dsl.notation import arithmetic
from tilec.dsl.ranges import Atom, Poly
from tilec.dsl.specialise import Specialised

Boundary = tuple[str, int]
"""Of a tensor: between dimension n and the next."""


class _Worse(Exception):
    """Subscripts would not become simpler."""


def flattened(op: Specialised) -> Specialised:
    """The same op on tensors of fewer dimensions, whose elements lie in the same order, with as few divisions in its subscripts."""
    program = Program(op)
    merged, known = frozenset[Boundary](), -1
    while len(merged) > known:  # three dimensions may be one where two of them are none
        known, refused = len(merged), set[Boundary]()
        for seed in dict.fromkeys(program.seeds(merged)):
            closure = program.closure(seed, merged) if seed not in merged and seed not in refused else None
            if closure is not None and program.gains(closure, merged):
                merged |= closure
            elif closure is not None:
                refused |= closure
    return program.with_merged(merged)


@dataclass(frozen=True)
class Scope:
    """The indices of an equation with their least and greatest values."""

    values: Mapping[str, Values]
    sizes: Mapping[str, int]

    @cached_property
    def all(self) -> Mapping[str, Values]:
        """The values of sizes, too."""
        return {**{name: (size, size) for name, size in self.sizes.items()}, **self.values}

    def poly(self, expr: ast.Expr) -> Poly | None:
        """A subscript; None where it depends on data, or may leave 64 bits."""
        if isinstance(expr, ast.Name) and expr.name in self.values:
            return Poly.of(expr.name)
        return None if index_values(expr, self.all) is None else self._poly(expr)

    def _poly(self, expr: ast.Expr) -> Poly | None:
        match expr:
            case ast.Number(value=int(value)):
                return Poly.of(value)
            case ast.Name(name=name):
                return Poly.of(name if name in self.values else self.sizes[name])
            case ast.Cast(operand=operand):
                return self._poly(operand)
            case ast.Unary(op="-", operand=operand):
                p = self._poly(operand)
                return None if p is None else -p
            case ast.Binary():
                same = arithmetic(expr) or expr
                a, b = self._poly(same.left), self._poly(same.right)
                return None if a is None or b is None else self._binary(same.op, a, b)
        return None

    def _binary(self, op: str, a: Poly, b: Poly) -> Poly | None:
        match op:
            case "+":
                return a + b
            case "-":
                return a - b
            case "*" if a.constant is not None or b.constant is not None:
                return a * b
            case "//" | "%" if b.constant is not None and b.constant > 0:
                return self.divided(op, a, b.constant)
        return None

    def divided(self, op: str, p: Poly, n: int) -> Poly:
        """p // n or p % n: the multiples of n in p are taken out first."""
        whole = sum((Poly(((m, a // n),)) for m, a in p.terms if a % n == 0), Poly())
        rest = p - whole * n
        low, high = self.range(rest)
        if low >= 0 and high < n:
            return whole if op == "//" else rest
        for unit in sorted({abs(a) for m, a in rest.terms if m and 1 < abs(a) < n and n % a == 0}, reverse=True):
            large = Poly(tuple((m, a // unit) for m, a in rest.terms if a % unit == 0))
            small = rest - large * unit
            low, high = self.range(small)
            if low >= 0 and high < unit:  # it decides nothing
                digits = self.divided(op, large, n // unit)
                return whole + digits if op == "//" else digits * unit + small
        inner = rest.terms[0][0][0] if len(rest.terms) == 1 and rest.terms[0][0] and rest.terms[0][1] == 1 else None
        if isinstance(inner, Atom):
            by = _number(inner.right)
            if (inner.op, op) == ("//", "//"):
                return whole + self.divided("//", inner.left, by * n)
            if (inner.op, op) == ("%", "//") and by % n == 0:
                return whole + self.divided("%", self.divided("//", inner.left, n), by // n)
            if (inner.op, op) == ("%", "%") and by % n == 0:
                return self.divided("%", inner.left, n)
        atom = Poly.of(Atom("//" if op == "//" else "%", rest, Poly.of(n)))
        return whole + atom if op == "//" else atom

    def range(self, p: Poly) -> Values:
        low = high = 0
        for monomial, factor in p.terms:
            ends = [factor * end for end in (self._variable(monomial[0]) if monomial else (1, 1))]
            low, high = low + min(ends), high + max(ends)
        return low, high

    def _variable(self, variable: str | Atom) -> Values:
        if isinstance(variable, str):
            return self.values[variable]
        n = _number(variable.right)
        low, high = self.range(variable.left)
        return (low // n, high // n) if variable.op == "//" else (0, n - 1)

    def replaced(self, p: Poly, new: Mapping[str, Poly]) -> Poly:
        """With other indices, and as simple as it becomes."""
        total = Poly()
        for monomial, factor in p.terms:
            if not monomial:
                total = total + factor
            elif isinstance(variable := monomial[0], str):
                total = total + new.get(variable, Poly.of(variable)) * factor
            else:
                total = total + self.divided(variable.op, self.replaced(variable.left, new), _number(variable.right)) * factor
        return self.joined(total)

    def joined(self, p: Poly) -> Poly:
        """Quotients and remainders of one number by another are put together again."""
        factors = {m[0]: a for m, a in p.terms if m}
        for rest, factor in factors.items():
            if not isinstance(rest, Atom) or rest.op != "%":
                continue
            n = _number(rest.right)
            quotient = self.divided("//", rest.left, n)
            known = [m[0] for m, _ in quotient.terms if m]
            if len(known) == 1 and factors.get(known[0]) == factor * n and quotient == Poly.of(known[0]):
                return self.joined(p - Poly.of(rest) * factor - quotient * (factor * n) + rest.left * factor)
            for other, its in factors.items():  # the last digits of the quotient
                if not isinstance(other, Atom) or other.op != "%" or its != factor * n:
                    continue
                if _atoms(upper := other.left - quotient) < _atoms(other.left):
                    digits = self.divided("%", upper * n + rest.left, n * _number(other.right))
                    return self.joined(p - Poly.of(rest) * factor - Poly.of(other) * its + digits * factor)
        return p


def _number(p: Poly) -> int:
    assert p.constant is not None
    return p.constant


def _atoms(p: Poly) -> int:
    """How many divisions it has."""
    return sum(1 + _atoms(v.left) for v in p.variables if isinstance(v, Atom))


def cost(subscripts: Iterable[Poly]) -> tuple[int, int]:
    """The divisions, and the subscripts that are no index alone."""
    found = list(subscripts)
    plain = [len(p.terms) == 1 and p.terms[0][1] == 1 and p.terms[0][0] != () for p in found]
    return sum(map(_atoms, found)), len(found) - sum(plain)


class Program:
    def __init__(self, op: Specialised):
        self.op = op
        self.shapes = {t.name: tuple(size.value for size in t.shape or ()) for t in (*op.inputs, *op.outputs)}  # type: ignore[union-attr]
        self.shapes |= {e.name: tuple(r.high.value for r in e.ranges) for e in op.equations}  # type: ignore[union-attr]
        self.defined = {e.name: e for e in op.equations}
        self.readers: dict[str, list[ast.Equation]] = {}
        self.bound: dict[str, set[str]] = {}
        self.scopes: dict[str, Scope] = {}
        self.fixed: set[str] = set()  # tensors with an access that is not simple arithmetic
        self.accesses: dict[str, list[ast.Access]] = {}  # of each equation
        self.polys: dict[tuple[str, int], list[Poly | None]] = {}  # the subscripts of each access of an equation
        self.rewrites: dict[tuple[object, ...], _Rewrite] = {}
        for e in op.equations:
            inner = list(ast.bound_in(e.value))
            self.bound[e.name] = {r.index for r in inner}
            spans = {r.index: (r.low.value, max(r.low.value, r.high.value - 1)) for r in (*inner, *e.ranges)}  # type: ignore[union-attr]
            self.scopes[e.name] = Scope(spans, op.sizes)
            own = self.accesses[e.name] = list[ast.Access]()
            for node in ast.traverse(e.value):
                if isinstance(node, ast.Access):
                    own.append(node)
                    self.readers.setdefault(node.tensor, []).append(e)
                    found = self.polys[e.name, id(node)] = [self.scopes[e.name].poly(s) for s in node.subscripts]
                    if None in found:
                        self.fixed.add(node.tensor)
                elif isinstance(node, ast.Pad):
                    self.fixed.add(node.access.tensor)
        self.fixed |= {name for name, shape in self.shapes.items() if 0 in shape}

    def rewrite(self, e: ast.Equation, merged: frozenset[Boundary]) -> _Rewrite:
        """The equation after merging. Boundaries of tensors that it does not name make no difference."""
        by_tensor = _by_tensor(merged)
        key = e.name, *(by_tensor.get(name) for name in dict.fromkeys((e.name, *(a.tensor for a in self.accesses[e.name]))))
        if (found := self.rewrites.get(key)) is None:
            found = self.rewrites[key] = _Rewrite(self, e, merged)
        return found

    def seeds(self, merged: frozenset[Boundary]) -> Iterator[Boundary]:
        """Where something may become simpler: subscripts with divisions, those of a dimension of one element, and sums that go
        through two indices of the left side."""
        for e in self.op.equations:
            made, last = self.rewrite(e, merged), [g[-1] for g in _groups(self.shapes[e.name], e.name, merged)]
            for access in self.accesses[e.name]:
                if access.tensor in self.fixed:
                    continue
                found, groups = made.subscripts(access), _groups(self.shapes[access.tensor], access.tensor, merged)
                one = [p.constant is not None and all(self.shapes[access.tensor][d] == 1 for d in g) for p, g in zip(found, groups)]
                for g, pair, single in zip(groups, pairwise(found), pairwise(one)):
                    if any(map(_atoms, pair)) or any(single):
                        yield access.tensor, g[-1]
                for factors in ({m[0]: a for m, a in s.terms if m} for s in found):
                    for t, (outer, inner) in enumerate(pairwise(made.indices)):
                        if inner in factors and factors.get(outer) == factors[inner] * made.extents[t + 1]:
                            yield e.name, last[t]

    def closure(self, seed: Boundary, merged: frozenset[Boundary]) -> frozenset[Boundary] | None:
        """The boundaries that go with one; None where one of them has to stay."""
        found, waiting = set[Boundary](), [seed]
        while waiting:
            name, p = at = waiting.pop()
            if at in found or at in merged:
                continue
            if name in self.fixed:
                return None
            found.add(at)
            if (e := self.defined.get(name)) is not None:
                pair = e.indices[p : p + 2]
                if self.bound[name] & set(pair):
                    return None
                waiting += [(a.tensor, q) for a, q in self._pairs(e, pair)]
            for e in self.readers.get(name, ()):
                for t, pair in enumerate(pairwise(e.indices)):
                    if self.shapes[e.name][t + 1] == self.shapes[name][p + 1]:
                        waiting += [(e.name, t) for a, q in self._pairs(e, pair) if (a.tensor, q) == at]
        return frozenset(found)

    def _pairs(self, e: ast.Equation, pair: Sequence[str]) -> Iterator[tuple[ast.Access, int]]:
        """The accesses of an equation to which two indices are neighbouring subscripts, and the first's dimension."""
        for access in self.accesses[e.name]:
            names = [s.name if isinstance(s, ast.Name) else None for s in access.subscripts]
            yield from ((access, q) for q in range(len(names) - 1) if names[q : q + 2] == list(pair))

    def gains(self, more: frozenset[Boundary], merged: frozenset[Boundary]) -> bool:
        """Whether some subscripts become simpler, and none worse."""
        names = {name for name, _ in more}
        affected = {e.name: e for n in names for e in self.readers.get(n, ())}
        affected |= {n: self.defined[n] for n in names if n in self.defined}
        simpler = False
        try:
            for e in affected.values():
                before, after = (self.rewrite(e, m) for m in (merged, merged | more))
                for access in self.accesses[e.name]:
                    if access.tensor not in self.fixed:
                        old, new = (cost(r.subscripts(access)) for r in (before, after))
                        if new > old:
                            return False
                        simpler |= new < old
                after.equation()
        except _Worse:
            return False
        return simpler

    def with_merged(self, merged: frozenset[Boundary]) -> Specialised:
        equations = tuple(self.rewrite(e, merged).equation() for e in self.op.equations)

        def reshaped(t: ast.Tensor) -> ast.Tensor:
            groups = _groups(self.shapes[t.name], t.name, merged)
            return replace(t, shape=tuple(ast.SizeNumber(prod(self.shapes[t.name][d] for d in g)) for g in groups))

        inputs, outputs = (tuple(map(reshaped, tensors)) for tensors in (self.op.inputs, self.op.outputs))
        return replace(self.op, inputs=inputs, outputs=outputs, equations=equations)


@lru_cache(maxsize=4)
def _by_tensor(merged: frozenset[Boundary]) -> dict[str, frozenset[int]]:
    found: dict[str, set[int]] = {}
    for name, d in merged:
        found.setdefault(name, set()).add(d)
    return {name: frozenset(dims) for name, dims in found.items()}


def _groups(shape: Sequence[int], name: str, merged: frozenset[Boundary]) -> list[list[int]]:
    """The dimensions of a tensor, those together that become one."""
    groups: list[list[int]] = []
    for d in range(len(shape)):
        if d and (name, d - 1) in merged:
            groups[-1].append(d)
        else:
            groups.append([d])
    return groups


class _Rewrite:
    """One equation after merging."""

    def __init__(self, program: Program, e: ast.Equation, merged: frozenset[Boundary]):
        self.program, self.e, self.merged = program, e, merged
        self.known: dict[int, list[Poly]] = {}  # the new subscripts of accesses
        shape, taken = program.shapes[e.name], (e.indices, program.bound[e.name], program.shapes, program.op.sizes)
        self.indices: list[str] = []
        self.extents: list[int] = []
        self.new: dict[str, Poly] = {}
        values = dict(program.scopes[e.name].values)
        groups = _groups(shape, e.name, merged)
        for g in groups:
            self.extents.append(prod(shape[d] for d in g))
            name = "_".join(e.indices[d] for d in g)
            while len(g) > 1 and any(name in names for names in taken):
                name += "_"
            self.indices.append(name)
            values[name] = 0, max(0, self.extents[-1] - 1)
        self.scope = Scope(values, program.op.sizes)
        for g, index in zip(groups, self.indices):
            for n, d in enumerate(g if len(g) > 1 else ()):
                inner = self.scope.divided("//", Poly.of(index), prod(shape[k] for k in g[n + 1 :]))
                self.new[e.indices[d]] = self.scope.divided("%", inner, shape[d]) if n else inner

    def subscripts(self, access: ast.Access) -> list[Poly]:
        """Of an access that is arithmetic alone."""
        if (known := self.known.get(id(access))) is not None:
            return known
        shape, old = self.program.shapes[access.tensor], self.program.polys[self.e.name, id(access)]
        made = []
        for g in _groups(shape, access.tensor, self.merged):
            total = Poly()
            for d in g:
                if (p := old[d]) is None:
                    raise _Worse
                total = total + self.scope.replaced(p, self.new) * prod(shape[k] for k in g if k > d)
            made.append(self.scope.joined(total))
        self.known[id(access)] = made
        return made

    def equation(self) -> ast.Equation:
        ranges = tuple(
            ast.Range(i, ast.SizeNumber(0), ast.SizeNumber(n), self.e.span) for i, n in zip(self.indices, self.extents)
        )
        return replace(self.e, indices=tuple(self.indices), ranges=ranges, value=self.value(self.e.value))

    def value(self, expr: ast.Expr) -> ast.Expr:
        if isinstance(expr, ast.Name) and expr.name in self.new:
            raise _Worse
        if isinstance(expr, ast.Access) and expr.tensor not in self.program.fixed and self._changes(expr):
            return replace(expr, subscripts=tuple(written(p, expr) for p in self.subscripts(expr)))
        return ast.with_children(expr, tuple(map(self.value, ast.children(expr))))

    def _changes(self, access: ast.Access) -> bool:
        inside = list(ast.traverse(access))
        if any(isinstance(n, ast.Name) and n.name in self.new for n in inside):
            return True
        divisions = sum(isinstance(n, ast.Binary) and n.op in ("//", "%") for n in inside)
        own = any((access.tensor, d) in self.merged for d in range(len(access.subscripts)))
        return own or (divisions > 0 and sum(map(_atoms, self.subscripts(access))) < divisions)


def written(p: Poly, at: ast.Access) -> ast.Expr:
    """A polynomial as an expression, its largest terms first."""
    made: ast.Expr | None = None
    for monomial, factor in sorted(p.terms, key=lambda term: (term[0] == (), -abs(term[1]), str(term[0]))):
        if not monomial:
            term: ast.Expr = ast.Number(factor, I64, at.span)
        else:
            variable = monomial[0]
            if isinstance(variable, str):
                term = ast.Name(variable, I64, at.span)
            else:
                by = ast.Number(_number(variable.right), I64, at.span)
                term = ast.Binary(variable.op, written(variable.left, at), by, I64, at.span)
            if factor != 1:
                term = ast.Binary("*", term, ast.Number(factor, I64, at.span), I64, at.span)
        made = term if made is None else ast.Binary("+", made, term, I64, at.span)
    return made or ast.Number(0, I64, at.span)
