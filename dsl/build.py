"""AST to MLIR: every equation of a specialised op becomes `linalg.generic` operations on tensors.

A reduction or scan inside an expression becomes an operation of its own, over the indices that are free in it. Operands
of an operation are only accesses by distinct bare indices (projected permutations); every other access (windows, strided
and joined subscripts, gathers, `pad`) is a `tensor.extract` at computed subscripts in the body. So the passes have one
simple form to fuse and tile, and still see each subscript as an `affine.apply` where it is affine.

    y[i] = sum[k](a[i, k] * x[k])
    ->
    %0 = linalg.fill ins(%zero) outs(%empty)
    %y = linalg.generic {maps = [(i, k) -> (i, k), (i, k) -> (k), (i, k) -> (i)], [parallel, reduction]} ins(%a, %x) outs(%0)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from tilec.core import locations, mlir
from tilec.core.diagnostics import Span
from tilec.core.dtypes import BOOL, I64, DType
from tilec.core.extents import set_sizes
from tilec.core.mlir import arith, func, ir, linalg
from tilec.core.reductions import REDUCTIONS
from tilec.dsl import ast, scalars
from tilec.dsl.ast import replace
from tilec.dsl.batches import with_batches
from tilec.dsl.build_body import Body, Index, bare, index_value, projected
from tilec.dsl.build_sizes import SizeValues, collapsed, tensor_type
from tilec.dsl.flat import flattened
from tilec.dsl.index_terms import in_sizes, range_of, varies
from tilec.dsl.specialise import Specialised
from tilec.dsl.varying_sizes import Shape, determining, shape_terms
from tilec.index.terms import term


def build(op: Specialised, donated: Sequence[tuple[int, int]] = ()) -> ir.Module:
    """The module of one specialised op: a function of its inputs that returns its outputs. Needs a current MLIR context. `donated`:
    numbers of outputs, and of the inputs in whose memory calls have them.

    Tensors may have fewer dimensions in it, see `flat`, and inputs more, see `batches`. Inputs that alone determine a size that
    varies keep theirs, and are seen with fewer.
    """
    written, op = op, with_batches(flattened(op), {op.inputs[i].name for _, i in donated})
    with ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            parameters = list(op.inputs)
            for n in determining(list(map(shape_terms, written.inputs)), list(map(shape_terms, op.inputs)), op.varies):
                parameters[n] = written.inputs[n]
            inputs = [_tensor_type(t) for t in parameters]
            outputs = [_tensor_type(t) for t in op.outputs]
            function = func.FuncOp(op.name, (inputs, outputs))
            function.attributes["arg_attrs"] = _described(written.inputs, parameters)
            function.attributes["res_attrs"] = _described(written.outputs, op.outputs)
            if op.varies:
                set_sizes(function.operation, op.varies)
            if donated:
                function.attributes["tilec.donated"] = mlir.integers(n for pair in donated for n in pair)
            with ir.InsertionPoint(function.add_entry_block()):
                builder = Builder(op, parameters, function.arguments)
                for equation in op.equations:
                    builder.equation(equation)
                locations.set_statements(module.operation, _statements(op.equations))
                func.ReturnOp([builder.tensors[t.name] for t in op.outputs])
    return module


def _described(written: Sequence[ast.Tensor], tensors: Sequence[ast.Tensor]) -> ir.Attribute:
    """Names, the shapes in the source of tensors that have another one here, and the extents of those of which one varies."""
    found = []
    for own, t in zip(written, tensors):
        about: dict[str, ir.Attribute] = {"tilec.name": mlir.string(t.name)}
        if own.shape != t.shape:
            about["tilec.shape"] = _words(shape) if varies(*(shape := shape_terms(own))) else mlir.integers(ast.extents_of(own))
        if varies(*(shape := shape_terms(t))):
            about["tilec.extents"] = _words(shape)
        found.append(ir.DictAttr.get(about))
    return ir.ArrayAttr.get(found)


def _words(shape: Shape) -> ir.Attribute:
    return ir.ArrayAttr.get([mlir.string(str(in_sizes(x))) for x in shape])


def _tensor_type(t: ast.Tensor) -> ir.Type:
    return tensor_type(shape_terms(t), scalars.mlir_type(ast.dtype_of(t)))


def _statements(equations: Sequence[ast.Equation]) -> dict[tuple[str, int, int], str]:
    """The source's text of every statement, by the positions that its operations have."""
    written: dict[int, list[Span]] = {}  # of a source, in order: they lie apart
    for span in sorted((e.span for e in equations), key=lambda s: s.start):
        if "=" in span.source.text[span.start : span.end]:
            written.setdefault(id(span.source), []).append(span)
    texts: dict[tuple[str, int, int], str] = {}
    for equation in equations:
        for node in (equation, *ast.traverse(equation.value)):
            if isinstance(node, (ast.Equation, ast.Reduce, ast.Scan)) and node.span is not Span.none():
                spans = written.get(id(node.span.source), [])
                number = bisect_right(spans, node.span.start, key=lambda s: s.start) - 1
                around = spans[number] if number >= 0 and node.span.end <= spans[number].end else None
                texts[node.span.source.shown, node.span.line, node.span.column] = _statement(node.span, around)
    return texts


def _statement(span: Span, around: Span | None) -> str:
    """The statement around a span on one line; the span's own line where that is in a function."""
    text = around.source.text[around.start : around.end] if around else span.source.line(span.line)
    lines = [line.partition("#")[0] for line in text.split("\n")]
    return " ".join(" ".join(lines).split())


class Builder:
    """Holds the tensors that exist so far, by name; hoisted reductions get names that no user can write."""

    def __init__(self, op: Specialised, parameters: Sequence[ast.Tensor], arguments: Sequence[ir.Value]):
        """`parameters` are the inputs, some of them of more dimensions than the op has them."""
        self.shapes = {t.name: shape_terms(t) for t in op.inputs}
        self.sizes = op.terms
        self.values = SizeValues(op.varies, arguments, [shape_terms(t) for t in parameters])
        self.tensors: dict[str, ir.Value] = {
            t.name: v if t is own else collapsed(v, shape_terms(own), self.shapes[t.name])
            for t, own, v in zip(op.inputs, parameters, arguments)
        }
        self.scope: dict[str, Index] = {}
        self.hoisted = 0
        self.names: dict[str, int] = {}

    def equation(self, equation: ast.Equation) -> None:
        self.scope = {r.index: _index(r) for r in equation.ranges}
        self.scope |= {r.index: _index(r) for e in ast.traverse(equation.value) for r in _ranges(e)}
        with mlir.location(equation.span):
            value = self.hoist(equation.value, equation.name, whole=equation.indices)
            self.tensors[equation.name] = self.pointwise(equation.name, equation.indices, value)
            self.shapes[equation.name] = tuple(self.scope[i].extent for i in equation.indices)

    # ---- reductions and scans become operations of their own ---------------------------------------------------------

    def hoist(self, expr: ast.Expr, name: str, whole: tuple[str, ...] | None = None) -> ast.Expr:
        """`expr` with every reduction and scan in it replaced by an access to a tensor that now holds it.

        A reduction under an `if` is computed for every element, but its accesses are guarded as they were in the branch:
        `sum[d](t[ids[i], d]) if c else 0` sums `t[ids[i], d] if c else 0`. Where the condition names an index that the
        reduction or scan goes through, they are guarded as the branch is taken for any of its values: what an element is made of
        does not depend on whether the branch is taken there, and a reduction's index is another one than the condition's.
        """
        match expr:
            case ast.Conditional():
                condition = self.hoist(expr.condition, name)
                negated = ast.Unary("not", condition, BOOL, condition.span)
                then = self.hoist(_guarded(expr.then, condition), name)
                otherwise = self.hoist(_guarded(expr.otherwise, negated), name)
                return replace(expr, condition=condition, then=then, otherwise=otherwise)
            case ast.Reduce() | ast.Scan():
                part = name if whole is not None else f"{name}.{expr.kind}"
                body = self.hoist(expr.body, name)
                inner = [r.index for r in _ranges(expr)]
                order = {index: position for position, index in enumerate(self.scope)}
                bound = set(inner) if isinstance(expr, ast.Reduce) else set()
                free = sorted(self.free(body) - bound, key=order.__getitem__)
                if whole is not None and isinstance(expr, ast.Reduce) and set(free) == set(whole):
                    free = list(whole)
                with mlir.location(expr.span):
                    if isinstance(expr, ast.Reduce):
                        value = self.reduce(part, tuple(free), tuple(inner), expr, body)
                    else:
                        if expr.range.index not in free:
                            free = sorted([*free, expr.range.index], key=order.__getitem__)
                        value = self.scan(part, tuple(free), expr, body)
                self.hoisted += 1
                hidden = f"%{self.hoisted}"
                self.tensors[hidden] = value
                return ast.Access(hidden, tuple(ast.Name(i, I64) for i in free), expr.dtype, False, expr.span)
        return _changed(expr, lambda child: self.hoist(child, name))

    def free(self, expr: ast.Expr) -> set[str]:
        return {e.name for e in ast.traverse(expr) if isinstance(e, ast.Name) and e.name in self.scope}

    # ---- the three shapes of an operation ----------------------------------------------------------------------------

    def pointwise(self, name: str, indices: tuple[str, ...], value: ast.Expr) -> ir.Value:
        if isinstance(value, ast.Access) and value.tensor.startswith("%") and bare(value) == indices:
            return self.tensors[value.tensor]  # the whole right side was one reduction
        dims = [self.scope[i] for i in indices]
        out = self.empty(dims, value.dtype)
        (result,) = self.operation(name, dims, [], value, [out], [list(range(len(dims)))], lambda v, _: [v])
        return result

    def reduce(
        self, name: str, free: tuple[str, ...], inner: tuple[str, ...], expr: ast.Reduce, body: ast.Expr
    ) -> ir.Value:
        dims = [self.scope[i] for i in (*free, *inner)]
        row = REDUCTIONS[expr.kind]
        kept = list(range(len(free)))
        outer = dims[: len(free)]
        if expr.kind in ("argmax", "argmin"):
            return self.arg_reduce(name, dims, len(free), expr, body)
        if any(d.extent is term(0) for d in dims[len(free) :]):  # a reduction of nothing is a constant from the beginning
            nothing = ast.Number(row.identity(body.dtype), body.dtype)
            return self.operation(name, outer, [], nothing, [self.empty(outer, body.dtype)], [kept], lambda v, _: [v])[
                0
            ]
        identity = scalars.number(row.identity(body.dtype), body.dtype)
        init = mlir.fill(identity, self.empty(outer, body.dtype))
        attributes = {"tilec.reduce": mlir.string(expr.kind)}
        if expr.multiplicand is not None:
            attributes["tilec.multiplicand"] = mlir.string(expr.multiplicand.name)
        reduced = list(range(len(free), len(dims)))
        combine = lambda v, states: [combine_one(expr.kind, v, states[0], body.dtype)]  # noqa: E731
        (result,) = self.operation(name, dims, reduced, body, [init], [kept], combine, attributes)
        return result

    def arg_reduce(self, name: str, dims: list[Index], outer: int, expr: ast.Reduce, body: ast.Expr) -> ir.Value:
        """The state is the best value and its index, so two results; only the index is used further."""
        kept = list(range(outer))
        kind = "max" if expr.kind == "argmax" else "min"
        values = mlir.fill(
            scalars.number(REDUCTIONS[kind].identity(body.dtype), body.dtype),
            self.empty(dims[:outer], body.dtype),
        )
        # a place past every real one: a first element that equals the identity still wins by coming earlier
        indices = mlir.fill(scalars.number(2**63 - 1, I64), self.empty(dims[:outer], I64))

        def combine(value: ir.Value, states: list[ir.Value]) -> list[ir.Value]:
            index = index_value(dims, outer, self.values)
            return combine_arg(kind, (value, index), (states[0], states[1]), body.dtype)

        attributes = {"tilec.reduce": mlir.string(expr.kind)}
        results = self.operation(name, dims, [outer], body, [values, indices], [kept, kept], combine, attributes)
        return results[1]

    def scan(self, name: str, indices: tuple[str, ...], expr: ast.Scan, body: ast.Expr) -> ir.Value:
        """Two results: the prefix at every place, and the running state, which the next place reads."""
        dims = [self.scope[i] for i in indices]
        along = indices.index(expr.range.index)
        kind = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min"}[expr.kind]
        carried = [d for d in range(len(dims)) if d != along]
        identity = scalars.number(REDUCTIONS[kind].identity(body.dtype), body.dtype)
        state = mlir.fill(identity, self.empty([dims[d] for d in carried], body.dtype))
        out = self.empty(dims, body.dtype)

        def combine(value: ir.Value, states: list[ir.Value]) -> list[ir.Value]:
            prefix = combine_one(kind, value, states[1], body.dtype)
            return [prefix, prefix]

        attributes = {"tilec.reduce": mlir.string(kind), "tilec.scan": mlir.integer(along)}
        outs = [list(range(len(dims))), carried]
        return self.operation(name, dims, [along], body, [out, state], outs, combine, attributes)[0]

    def operation(
        self, name: str, dims: list[Index], reduced: list[int], value: ast.Expr, outs: list[ir.Value],
        out_dims: list[list[int]], combined: Callable[..., Any], attributes: dict[str, ir.Attribute] | None = None,
    ) -> list[ir.Value]:  # fmt: skip
        """One linalg.generic over `dims` whose body computes `value` and yields `combined(value, old outputs)`."""
        operands = self.operands(value, dims)
        inputs = [self.tensors[tensor_name] for tensor_name, _ in operands]
        covered = {d for _, picked in operands for d in picked} | {d for picked in out_dims for d in picked}
        input_dims = [list(picked) for _, picked in operands]
        missing = [d for d in range(len(dims)) if d not in covered]
        if missing:  # a window's own dimensions: linalg reads trip counts off operands, so give it one to read
            inputs.append(self.empty([dims[d] for d in missing], BOOL))
            input_dims.append(missing)
        maps = [mlir.projection(len(dims), picked) for picked in (*input_dims, *out_dims)]
        iterators = ["reduction" if d in reduced else "parallel" for d in range(len(dims))]
        op, block = mlir.generic([v.type for v in outs], inputs, outs, maps, iterators)
        op.attributes["tilec.name"] = mlir.string(self.unique(name))
        locations.set_indices(op.operation, [index.name for index in dims])
        for key, attribute in (attributes or {}).items():
            op.attributes[key] = attribute
        with ir.InsertionPoint(block):
            body = Body(self, dims, dict(zip(operands, block.arguments)))
            result = body.value(value)
            linalg.YieldOp(combined(result, list(block.arguments)[len(inputs) :]))
        return list(op.results)

    def unique(self, name: str) -> str:
        """The plan refers to operations by name: a second one of an equation gets a number."""
        count = self.names[name] = self.names.get(name, -1) + 1
        return f"{name}.{count}" if count else name

    def operands(self, value: ast.Expr, dims: list[Index]) -> list[tuple[str, tuple[int, ...]]]:
        """The accesses that can be operands: distinct bare indices over the full extent of the subscripted dimension."""
        found: dict[tuple[str, tuple[int, ...]], None] = {}
        for expr in ast.traverse(value):
            if isinstance(expr, ast.Access) and (picked := projected(expr, dims, self.shapes)) is not None:
                found[expr.tensor, picked] = None
        return list(found)

    def empty(self, dims: list[Index], dtype: DType) -> ir.Value:
        return self.values.empty(tuple(d.extent for d in dims), scalars.mlir_type(dtype))


# ---- combining states: one place for builder and passes --------------------------------------------------------------


def combine_one(kind: str, value: ir.Value, state: ir.Value, dtype: DType) -> ir.Value:
    match kind:
        case "sum":
            return scalars.binary("+", state, value, dtype)
        case "prod":
            return scalars.binary("*", state, value, dtype)
        case "max" | "min":
            return scalars.extremum(kind, state, value, dtype)
        case "any":
            return arith.ori(state, value)
        case "all":
            return arith.andi(state, value)
    raise AssertionError(kind)


def combine_arg(
    kind: str, new: tuple[ir.Value, ir.Value], old: tuple[ir.Value, ir.Value], dtype: DType
) -> list[ir.Value]:
    """The better of two (value, place) states: NaN before all, then the extremum, then the smaller place.

    Associative and commutative, so that partial states may be combined in any order.
    """
    better = scalars.compare(">" if kind == "max" else "<", new[0], old[0], dtype)
    equal = scalars.compare("==", new[0], old[0], dtype)
    if dtype.is_float:
        new_nan = scalars.compare("!=", new[0], new[0], dtype)
        old_nan = scalars.compare("!=", old[0], old[0], dtype)
        better = arith.ori(better, arith.andi(new_nan, scalars.logical_not(old_nan)))
        equal = arith.ori(equal, arith.andi(new_nan, old_nan))
    earlier = scalars.compare("<", new[1], old[1], I64)
    wins = arith.ori(better, arith.andi(equal, earlier))
    return [arith.select(wins, new[0], old[0]), arith.select(wins, new[1], old[1])]


# ---- helpers ---------------------------------------------------------------------------------------------------------


def _guarded(expr: ast.Expr, condition: ast.Expr) -> ast.Expr:
    """`expr` with the bodies of its outermost reductions evaluated only where `condition` holds."""
    if isinstance(expr, (ast.Reduce, ast.Scan)):
        if not any(isinstance(e, ast.Access) and e.guarded for e in ast.traverse(expr.body)):
            return expr
        named = {e.name for e in ast.traverse(condition) if isinstance(e, ast.Name)}
        if bound := tuple(r for r in _ranges(expr) if r.index in named):
            condition = ast.Reduce("any", bound, condition, BOOL, None, BOOL, condition.span)
        zero = ast.Boolean(False, BOOL) if expr.body.dtype == BOOL else ast.Number(0, expr.body.dtype)
        return replace(expr, body=ast.Conditional(condition, expr.body, zero, expr.body.dtype, expr.body.span))
    return _changed(expr, lambda child: _guarded(child, condition))


def _index(r: ast.Range) -> Index:
    return Index(r.index, *range_of(r))


def _ranges(expr: ast.Expr) -> tuple[ast.Range, ...]:
    match expr:
        case ast.Reduce():
            return expr.ranges
        case ast.Scan():
            return (expr.range,)
    return ()


def _changed(expr: ast.Expr, change: Callable[[ast.Expr], ast.Expr]) -> ast.Expr:
    """`expr` with its direct subexpressions changed."""
    return ast.with_children(expr, tuple(change(child) for child in ast.children(expr)))
