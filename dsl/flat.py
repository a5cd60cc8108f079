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
from functools import lru_cache
from itertools import pairwise
from math import prod

from tilec.dsl import ast
from tilec.dsl.ast import replace
from tilec.dsl.index_terms import IndexTerms, expression_of, range_of, to_size
from tilec.dsl.specialise import Specialised
from tilec.dsl.varying_sizes import shape_terms
from tilec.index.answers import remembered
from tilec.index.facts import NONE, has_index
from tilec.index.terms import Leaf, Term, index, summands, term

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


def _divisions(x: Term) -> int:
    """How many quotients and remainders it is written with."""
    remainders, rest = summands(x)
    divided = (*(z for _, z, _ in remainders), *(leaf.args[0] for leaf in rest.leaves if leaf.op == "//"))
    return sum(1 + _divisions(of) for of in divided)


def factors(x: Term) -> list[Term]:
    """Of indices, quotients and remainders in a sum; they are terms of sizes."""
    remainders, rest = summands(x)
    return [*(c for c, _, _ in remainders), *weights(rest).values()]


def weights(x: Term) -> dict[Leaf, Term]:
    """The factor of each leaf that depends on an index, in a sum that is linear in these."""
    return {leaf: x.factor(leaf) for leaf in reversed(x.leaves) if has_index(leaf)}


def _is_alone(x: Term) -> bool:
    """Whether it is an index, a quotient or a remainder, and nothing more."""
    remainders, rest = summands(x)
    return factors(x) == [term(1)] and (not rest.parts if remainders else rest.leaf is not None)


def cost(subscripts: Iterable[Term]) -> tuple[int, int]:
    """The divisions, and the subscripts that are no index, quotient or remainder alone."""
    found = [x for x in subscripts if x.leaf is None or not x.leaf.is_symbol]
    return sum(map(_divisions, found)), sum(not _is_alone(x) for x in found)


class Program:
    def __init__(self, op: Specialised):
        self.op = op
        self.shapes = {t.name: shape_terms(t) for t in (*op.inputs, *op.outputs)}
        self.shapes |= {e.name: tuple(range_of(r)[1] for r in e.ranges) for e in op.equations}
        self.defined = {e.name: e for e in op.equations}
        self.readers: dict[str, list[ast.Equation]] = {}
        self.bound: dict[str, set[str]] = {}
        self.names: dict[str, Mapping[str, Term]] = {}  # the indices of each equation
        self.fixed: set[str] = set()  # tensors with an access that is not simple arithmetic
        self.accesses: dict[str, list[ast.Access]] = {}  # of each equation
        self.terms: dict[tuple[str, int], list[Term | None]] = {}  # the subscripts of each access of an equation
        self.rewrites: dict[tuple[object, ...], _Rewrite] = {}
        for e in op.equations:
            inner = list(ast.bound_in(e.value))
            self.bound[e.name] = {r.index for r in inner}
            self.names[e.name] = {r.index: _index(r.index, *range_of(r)) for r in (*inner, *e.ranges)}
            terms = IndexTerms({**op.terms, **self.names[e.name]})
            own = self.accesses[e.name] = list[ast.Access]()
            for node in ast.traverse(e.value):
                if isinstance(node, ast.Access):
                    own.append(node)
                    self.readers.setdefault(node.tensor, []).append(e)
                    found = self.terms[e.name, id(node)] = [terms.affine(s) for s in node.subscripts]
                    if None in found:
                        self.fixed.add(node.tensor)
                elif isinstance(node, ast.Pad):
                    self.fixed.add(node.access.tensor)
        self.fixed |= {name for name, shape in self.shapes.items() if term(0) in shape}

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
                shape = self.shapes[access.tensor]
                one = [p.constant is not None and all(shape[d] is term(1) for d in g) for p, g in zip(found, groups)]
                for g, pair, single in zip(groups, pairwise(found), pairwise(one)):
                    if any(map(_divisions, pair)) or any(single):
                        yield access.tensor, g[-1]
                for factors in map(weights, found):
                    for t, (outer, inner) in enumerate(pairwise(made.indices)):
                        if inner in factors and factors.get(outer) is factors[inner] * made.extents[t + 1]:
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
                    if self.shapes[e.name][t + 1] is self.shapes[name][p + 1]:
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
            return replace(t, shape=tuple(to_size(product(self.shapes[t.name][d] for d in g)) for g in groups))

        inputs, outputs = (tuple(map(reshaped, tensors)) for tensors in (self.op.inputs, self.op.outputs))
        return replace(self.op, inputs=inputs, outputs=outputs, equations=equations)


@lru_cache(maxsize=4)
def _by_tensor(merged: frozenset[Boundary]) -> dict[str, frozenset[int]]:
    found: dict[str, set[int]] = {}
    for name, d in merged:
        found.setdefault(name, set()).add(d)
    return {name: frozenset(dims) for name, dims in found.items()}


def product(extents: Iterable[Term]) -> Term:
    return prod(extents, start=term(1))


def _groups(shape: Sequence[Term], name: str, merged: frozenset[Boundary]) -> list[list[int]]:
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
        self.known: dict[int, list[Term]] = {}  # the new subscripts of accesses
        shape, taken = program.shapes[e.name], (e.indices, program.bound[e.name], program.shapes, program.op.sizes)
        self.indices: list[Leaf] = []
        self.extents: list[Term] = []
        self.new: dict[Leaf, Term] = {}
        groups = _groups(shape, e.name, merged)
        for g in groups:
            self.extents.append(product(shape[d] for d in g))
            name = "_".join(e.indices[d] for d in g)
            while len(g) > 1 and any(name in names for names in taken):
                name += "_"
            made = _index(name, term(0), self.extents[-1])
            self.indices.append(made.symbol)
            for n, d in enumerate(g if len(g) > 1 else ()):
                inner = made // product(shape[k] for k in g[n + 1 :])
                self.new[program.names[e.name][e.indices[d]].symbol] = inner % shape[d] if n else inner
        self.replaced = {leaf.name for leaf in self.new}

    def subscripts(self, access: ast.Access) -> list[Term]:
        """Of an access that is arithmetic alone."""
        if (known := self.known.get(id(access))) is not None:
            return known
        shape, old = self.program.shapes[access.tensor], self.program.terms[self.e.name, id(access)]
        made = []
        for g in _groups(shape, access.tensor, self.merged):
            total = term(0)
            for d in g:
                if (x := old[d]) is None:
                    raise _Worse
                total = total + NONE.rebuilt(x, self.new) * product(shape[k] for k in g if k > d)
            made.append(total)
        self.known[id(access)] = made
        return made

    def equation(self) -> ast.Equation:
        ranges = tuple(
            ast.Range(i.name, ast.SizeNumber(0), to_size(n), self.e.span)
            for i, n in zip(self.indices, self.extents)
        )
        return replace(self.e, indices=tuple(i.name for i in self.indices), ranges=ranges, value=self.value(self.e.value))

    def value(self, expr: ast.Expr) -> ast.Expr:
        if isinstance(expr, ast.Name) and expr.name in self.replaced:
            raise _Worse
        if isinstance(expr, ast.Access) and expr.tensor not in self.program.fixed and self._changes(expr):
            return replace(expr, subscripts=tuple(expression_of(x, expr.span) for x in self.subscripts(expr)))
        return ast.with_children(expr, tuple(map(self.value, ast.children(expr))))

    def _changes(self, access: ast.Access) -> bool:
        inside = list(ast.traverse(access))
        if any(isinstance(n, ast.Name) and n.name in self.replaced for n in inside):
            return True
        divisions = sum(isinstance(n, ast.Binary) and n.op in ("//", "%") for n in inside)
        own = any((access.tensor, d) in self.merged for d in range(len(access.subscripts)))
        return own or (divisions > 0 and sum(map(_divisions, self.subscripts(access))) < divisions)


@remembered
def _index(name: str, low: Term, high: Term) -> Term:
    """An index; one without a value is taken for one of a single value."""
    return index(name, high if low is not high else low + 1, low)

