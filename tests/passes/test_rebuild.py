"""Operations made anew: with other dimensions, operands and bodies they compute what they did."""

from __future__ import annotations

import numpy as np
import pytest
from tools.lowering import specialised

from tilec.core import locations, mlir
from tilec.core.mlir import arith, ir, tensor
from tilec.dsl.build import build
from tilec.passes.rebuild import (
    NEW,
    Anew,
    Operand,
    added,
    collapsed,
    expanded,
    operands_in,
    operands_out,
    rebuild,
    replace,
)
from tilec.semantics.interpreter import interpret

M, N = 4, 6
rng = np.random.default_rng(0)
X, V = rng.standard_normal((M, N)).astype(np.float32), rng.standard_normal(N).astype(np.float32)
HEAD = f"op f(x: f32[{M}, {N}], v: f32[{N}]) -> "
SUM = HEAD + f"(y: f32[{M}]) {{ y[i] = sum[j](x[i, j] * v[j] + f32(i * j)) }}"
EACH = HEAD + f"(y: f32[{M}, {N}]) {{ y[i, j] = x[i, j] * v[j] + f32(i - j) }}"
CHECKED = HEAD + f"(y: f32[{M}, {N}]) {{ y[i, j] = x[i, i32(v[j] * 0) + j] }}"


def unchanged(op: ir.Operation) -> ir.Operation:
    return rebuild(op)


def transposed(op: ir.Operation) -> ir.Operation:
    """The dimensions in another order."""
    return rebuild(op, [1, 0])


def read_at_subscripts(op: ir.Operation) -> ir.Operation:
    """An operand that the body reads: an empty tensor tells the extent that it alone has, if it does."""
    (v,) = [o for o in operands_in(op) if len(o.dims) == 1]

    def body(here: Anew) -> list[ir.Value]:
        here.known[v.instead] = tensor.extract(v.value, [here.own(d) for d in v.dims])
        return here.values()

    return rebuild(op, operands=[o for o in operands_in(op) if o != v], body=body)


def all_read_at_subscripts(op: ir.Operation) -> ir.Operation:
    read = operands_in(op)

    def body(here: Anew) -> list[ir.Value]:
        here.known |= {o.instead: tensor.extract(o.value, [here.own(d) for d in o.dims]) for o in read}
        return here.values()

    return rebuild(op, operands=[], body=body)


def with_another_operand(op: ir.Operation) -> ir.Operation:
    """What the body computes first is an operand instead."""
    first = next(o.operation for o in mlir.body_of(op).operations if o.operation.name == "arith.mulf")
    x, v = sorted(operands_in(op), key=lambda o: -len(o.dims))
    identity = [mlir.projection(2, range(2)), mlir.projection(2, [1]), mlir.projection(2, range(2))]
    products, block = mlir.generic(
        [x.value.type], [x.value, v.value], [tensor.empty([M, N], mlir.type_of("f32"))], identity, ["parallel"] * 2
    )
    with ir.InsertionPoint(block):
        mlir.linalg.YieldOp([arith.mulf(block.arguments[0], block.arguments[1])])
    return rebuild(op, operands=[Operand(products.results[0], x.dims, first.results[0])])


def in_two_parts(op: ir.Operation) -> ir.Operation:
    """A further dimension, of which nothing depends: each of its two places has what the operation had."""
    (out,) = operands_out(op)
    shape = list(ir.ShapedType(out.value.type).shape)
    twice = tensor.empty([2, *shape], mlir.type_of("f32"))
    if (fill := mlir.definition(out.value)).name == "linalg.fill":
        twice = mlir.fill(fill.operands[0], twice)
    kinds = mlir.iterators_of(op)
    made = rebuild(
        op, [NEW, *range(len(kinds))], outputs=[Operand(twice, [NEW, *out.dims], out.instead)], iterators=["parallel", *kinds],
        name="twice",
    )  # fmt: skip
    every = mlir.projection(len(shape) + 1, range(1, len(shape) + 1))
    result = tensor.empty(shape, mlir.type_of("f32"))
    halves, block = mlir.generic(
        [result.type], [made.results[0]], [mlir.fill(mlir.constant(0.0, mlir.type_of("f32")), result)],
        [mlir.projection(len(shape) + 1, range(len(shape) + 1)), every], ["reduction", *["parallel"] * len(shape)],
    )  # fmt: skip
    with ir.InsertionPoint(block):
        half = arith.mulf(block.arguments[0], mlir.constant(0.5, mlir.type_of("f32")))
        mlir.linalg.YieldOp([arith.addf(half, block.arguments[1])])
    halves.attributes["tilec.name"] = op.attributes["tilec.name"]
    return halves.operation


FORMS = [unchanged, transposed, read_at_subscripts, all_read_at_subscripts, with_another_operand, in_two_parts]


def only(module: ir.Module) -> ir.Operation:
    *_, op = [o for o in mlir.traverse(module.operation) if mlir.is_generic(o)]
    return op


@pytest.mark.parametrize("text", [SUM, EACH], ids=["a sum", "each element"])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_made_anew_computes_the_same(form, text):
    with mlir.context(), ir.Location.unknown():
        module = build(specialised(text))
        expected = interpret(module, [X, V])["y"]
        op = only(module)
        with ir.InsertionPoint(op):
            new = replace(op, form(op))
        assert module.operation.verify() and mlir.get_string(new, "tilec.name") == "y"
        np.testing.assert_array_equal(interpret(module, [X, V])["y"], expected)


def test_names_and_attributes():
    """One in the operation's place has its attributes, and its indices in the new order; another one has its own name, or none."""
    with mlir.context(), ir.Location.unknown():
        module = build(specialised(SUM))
        op = only(module)
        with ir.InsertionPoint(op):
            new, other, nameless = rebuild(op, [1, 0]), rebuild(op, [1, 0], name="g"), rebuild(op, name="")
        assert locations.indices(op) == ["i", "j"] and locations.indices(new) == locations.indices(other) == ["j", "i"]
        assert mlir.iterators_of(new) == ["reduction", "parallel"]
        assert mlir.get_string(new, "tilec.reduce") == "sum" and mlir.get_string(new, "tilec.name") == "y"
        assert "tilec.reduce" not in other.attributes and mlir.get_string(other, "tilec.name") == "g"
        assert "tilec.name" not in nameless.attributes


def test_checks_stay():
    with mlir.context(), ir.Location.unknown():
        module = build(specialised(CHECKED))
        op = only(module)
        with ir.InsertionPoint(op):
            new = replace(op, rebuild(op, [1, 0]))
        assert [o.name for o in mlir.traverse(new)].count("cf.assert") == 1
        np.testing.assert_array_equal(interpret(module, [X, V])["y"], X)


def test_a_dimension_that_goes():
    """What has no such dimension any more is at one place of it: the index that the body gets."""
    with mlir.context(), ir.Location.unknown():
        module = build(specialised(HEAD + f"(y: f32[{M}, {N}]) {{ y[i, j] = v[j] + f32(i) }}"))
        op = only(module)

        def body(here: Anew) -> list[ir.Value]:
            here.index = lambda d: mlir.index(2) if d == 0 else here.own(d)
            return here.values()

        with ir.InsertionPoint(op):
            out = added(tensor.empty([N], mlir.type_of("f32")), [1])
            row = rebuild(op, [1], body=body, outputs=[out])
            whole = rebuild(op, operands=[Operand(row.results[0], [1], mlir.body_of(op).arguments[0])],
                            body=lambda here: [here.known[mlir.body_of(op).arguments[0]]])  # fmt: skip
            replace(op, whole)
        np.testing.assert_array_equal(interpret(module, [X, V])["y"], np.tile(V + 2, (M, 1)))


def test_a_dimension_written_as_two_and_back():
    with mlir.context(), ir.Location.unknown():
        module = build(specialised("op f(x: f32[4, 6, 5]) -> (y: f32[4, 6, 5]) { y[i, j, k] = x[i, j, k] + 1 }"))
        x = mlir.inputs_of(only(module))[0]
        two = expanded(x, 1, 2, 3)
        assert list(ir.ShapedType(two.type).shape) == [4, 2, 3, 5] and expanded(x, 1, 2, 3) == two
        assert list(ir.ShapedType(collapsed(two, 1).type).shape) == [4, 6, 5]
        assert module.operation.verify()
