"""Sizes that vary, in the IR: their values, and extents that depend on them.

    %M = tensor.dim %x, %c0                                  M, of x: f32[M, 8]
    %0 = affine.apply ()[s0] -> (s0 * 2 + 1)()[%M]           2 * M + 1

They are made once, at the top of the function. Sizes are the symbols of affine maps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from math import prod

from tilec.core import mlir
from tilec.core.mlir import affine, arith, ir, tensor
from tilec.core.varying import Varying
from tilec.dsl.index_terms import in_sizes
from tilec.dsl.varying_sizes import Shape, solved_sizes
from tilec.index.terms import Leaf, Term, term

Symbols = dict[Leaf, int]
"""The sizes of an affine map, and minima of terms of them: the number of each one's symbol."""


class SizeValues:
    """The values of sizes and of their terms, in the function at whose top one inserts now; `shapes` are those of its arguments."""

    def __init__(self, varies: Mapping[str, Varying], arguments: Sequence[ir.Value], shapes: Sequence[Shape]):
        self.sizes: dict[str, ir.Value] = {}
        self._terms: dict[Term, ir.Value] = {}
        for size in solved_sizes(shapes, varies):
            value: ir.Value = tensor.DimOp(arguments[size.number], mlir.index(size.dim)).result
            multiple = varies[size.name].multiple
            if size.factor != multiple or size.rest is not term(0):
                symbols = Symbols()
                rest = ir.AffineDimExpr.get(0) - self.affine(size.rest, symbols)
                value = self.applied(ir.AffineExpr.get_floor_div(rest, size.factor) * multiple, [value], symbols)
            self.sizes[size.name] = self._last = value
        extents = ((in_sizes(x), (a, d)) for a, shape in zip(arguments, shapes) for d, x in enumerate(shape))
        self._extents = {x: at for x, at in reversed(list(extents)) if x.constant is None}

    def value(self, x: Term | int) -> ir.Value:
        """The value of a term of sizes: of a number, a constant where it is used."""
        x = in_sizes(term(x))
        if x.constant is not None:
            return mlir.index(x.constant)
        if (leaf := x.leaf) is not None and leaf.name in self.sizes:
            return self.sizes[leaf.name]
        if x not in self._terms:
            with ir.InsertionPoint.after(mlir.definition(self._last)):
                if x in self._extents:
                    argument, dim = self._extents[x]
                    made = tensor.DimOp(argument, mlir.index(dim)).result
                elif leaf is not None and leaf.op == "min":
                    made = reduce(arith.minsi, map(self.value, leaf.args))
                else:
                    symbols = Symbols()
                    made = self.applied(self.affine(x, symbols), [], symbols)
            self._terms[x] = self._last = made
        return self._terms[x]

    def empty(self, shape: Shape, element: ir.Type) -> ir.Value:
        """A tensor without values."""
        return tensor.empty([self.value(x) if x.constant is None else x.number for x in shape], element)

    def applied(self, expr: ir.AffineExpr, indices: Sequence[ir.Value], symbols: Symbols) -> ir.Value:
        """The value of an affine expression."""
        map_ = ir.AffineMap.get(len(indices), len(symbols), [expr])
        return affine.AffineApplyOp(map_, [*indices, *(self.value(term(leaf)) for leaf in symbols)]).result

    def affine(self, x: Term, symbols: Symbols) -> ir.AffineExpr:
        """A term of sizes as an affine expression; sizes that `symbols` lacks are added."""
        found: ir.AffineExpr = ir.AffineConstantExpr.get(0)
        for m, f in in_sizes(x).parts.items():
            product: ir.AffineExpr = ir.AffineConstantExpr.get(f)
            for leaf in m:
                product = product * self._leaf(leaf, symbols)
            found = found + product
        return found

    def _leaf(self, leaf: Leaf, symbols: Symbols) -> ir.AffineExpr:
        if leaf.is_symbol or leaf.op == "min":
            return ir.AffineSymbolExpr.get(symbols.setdefault(leaf, len(symbols)))
        assert leaf.op == "//", f"{leaf} is no sum, product, quotient or minimum of sizes"
        return ir.AffineExpr.get_floor_div(*(self.affine(x, symbols) for x in leaf.args))


def collapsed(value: ir.Value, shape: Shape, fewer: Shape) -> ir.Value:
    """A tensor with neighbouring dimensions merged."""
    groups, dims = list[list[int]](), iter(range(len(shape)))
    for extent in fewer:
        groups.append([next(dims)])
        while prod((shape[d] for d in groups[-1]), start=term(1)) is not extent:
            groups[-1].append(next(dims))
    groups[-1] += dims  # of one element
    return tensor.CollapseShapeOp(tensor_type(fewer, ir.ShapedType(value.type).element_type), value, groups).result


def tensor_type(shape: Shape, element: ir.Type) -> ir.RankedTensorType:
    """A type, with `?` for the extents that vary."""
    return mlir.tensor_type([mlir.DYNAMIC if x.constant is None else x.number for x in shape], element)
