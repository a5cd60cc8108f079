"""Bodies and expressions, emitted at a place: they compute what the program does, each part once, as soon as it can be."""

from __future__ import annotations

import numpy as np
import pytest
from tools.lowering import specialised

from tilec.analysis.expression import Expr, Reader, constant
from tilec.core import mlir
from tilec.core.functions import FUNCTIONS
from tilec.core.mlir import func, ir, linalg
from tilec.dsl.build import build
from tilec.passes.emit import Body, Expressions, emit
from tilec.semantics.interpreter import interpret

F32 = np.array([-3.7, -1.5, -0.75, -0.0, 0.0, 0.25, 0.5, 1.0, 2.5, 3.0, 60.0, np.inf, np.nan], np.float32)
I32 = np.array([-7, -2, -1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 12], np.int32)
FORMS = {
    "arithmetic": "(x[i] + z[i]) * x[i] - x[i] / z[i]", "choices": "x[i] if x[i] < z[i] and i > 3 else -z[i]",
    "an index": "f32(i // 3 * 2 + i % 3) * x[i]", "integers": "f32((n[i] << 2) // 3 ^ n[i])", "powers": "x[i] ** z[i]",
    "casts": "f32(bf16(x[i])) + f32(n[i])", "computed subscripts": "x[12 - i] + x[i]", "a condition": "pad(x[i + 1], 0)",
    "a checked read": "x[k[i]] * 2", "no part": "1.5",
}  # fmt: skip


def program(expression: str) -> ir.Module:
    """`y` of `expression`, of f32 `x` and `z`, i32 `n`, and places `k`."""
    text = f"op f(x: f32[N], z: f32[N], n: i32[N], k: i32[N]) -> (y: f32[N]) {{ y[i] = {expression} }}"
    return build(specialised(text, given={"N": len(F32)}))


def results(module: ir.Module) -> np.ndarray:
    places = np.arange(len(F32), dtype=np.int32)[::-1].copy()
    return interpret(module, [F32, F32[::-1].copy(), I32, places])["y"]


def generics(module: ir.Module) -> list[ir.Operation]:
    return [o for o in mlir.traverse(module.operation) if mlir.is_generic(o)]


def arguments(name: str) -> str:
    if name == "rand":
        return "i64(n[i]), i64(i)"
    return ", ".join(["x[i]", "z[i]", "0.5"][: FUNCTIONS[name].arity.least])


EXPRESSIONS = {name: f"f32({name}({arguments(name)}))" for name in FUNCTIONS} | FORMS


@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_a_body_emitted_again_computes_the_same(expression):
    with mlir.context(), ir.Location.unknown():
        module = program(expression)
        expected = results(module)
        for op in generics(module):
            block = mlir.body_of(op)
            end = list(block.operations)[-1].operation
            with ir.InsertionPoint(end):
                again = Body(block, list(block.arguments).__getitem__, lambda d: linalg.IndexOp(d).result).values()
            for n, value in enumerate(again):
                assert value != end.operands[n] or mlir.definition(value) is None or mlir.constant_value(value) is not None
                end.operands[n] = value
        mlir.PassManager.parse("builtin.module(canonicalize)").run(module.operation)  # the body as it was goes
        np.testing.assert_array_equal(results(module), expected)


@pytest.mark.parametrize("name", [n for n in EXPRESSIONS if n not in ("a condition", "a checked read")])
def test_an_expression_emitted_computes_the_same(name):
    """An expression is read through all operations of the program, and emitted as the body of one."""
    with mlir.context(), ir.Location.unknown():
        module = program(EXPRESSIONS[name])
        expected = results(module)
        ops = generics(module)

        def maker(value: ir.Value) -> tuple[ir.Operation, int] | None:
            owner = mlir.definition(value)
            return None if owner is None or not mlir.is_generic(owner) else (owner, 0)

        x = Reader({op: (0,) for op in ops}, maker, computed=True).result(ops[-1], 0)
        inputs = list(mlir.entry(mlir.functions(module)[0]).arguments)

        def leaf(x: Expr) -> ir.Value | None:
            match x.op:
                case "constant":
                    return mlir.constant(x.key, mlir.type_of(x.type))
                case "index":
                    return linalg.IndexOp(x.own_dims[0]).result
                case "element" if not x.args:
                    return block.arguments[inputs.index(x.key)]
                case "element":
                    return mlir.tensor.extract(x.key, [emit(a, here) for a in x.args])
                case "outer":
                    return x.key
            return None

        op, identity = ops[-1], mlir.projection(1, [0])
        with ir.InsertionPoint(op):
            made, block = mlir.generic(
                [op.results[0].type], inputs, mlir.outputs_of(op), [identity] * (len(inputs) + 1), ["parallel"]
            )
            made.attributes["tilec.name"] = op.attributes["tilec.name"]
            with ir.InsertionPoint(block):
                here = Expressions(leaf, {})
                linalg.YieldOp([emit(x, here)])
        op.results[0].replace_all_uses_with(made.results[0])
        op.erase()
        np.testing.assert_array_equal(results(module), expected)


SCALARS = "func.func @f(%x: f32, %z: f32) -> f32 { %a = arith.mulf %x, %x : f32  %b = arith.addf %a, %z : f32  return %b : f32 }"


def test_parts_are_computed_once_and_as_soon_as_their_leaves_are_known():
    with mlir.context(), ir.Location.unknown():
        module = mlir.parse(SCALARS)
        block = mlir.entry(mlir.functions(module)[0])
        product, total = (o.operation.results[0] for o in list(block.operations)[:-1])
        known: dict[int, ir.Value] = {}
        asked: list[int] = []

        def element(n: int) -> ir.Value | None:
            asked.append(n)
            return known.get(n)

        with ir.InsertionPoint(ir.Module.create().body):
            function = func.FuncOp("g", ([ir.F32Type.get()] * 2, []))
            own = function.add_entry_block()
            with ir.InsertionPoint(own):
                here = Body(block, element)
                assert emit(total, here) is None and not list(own.operations)
                known[0] = own.arguments[0]
                assert emit(total, here) is None
                assert [o.operation.name for o in own.operations] == ["arith.mulf"]
                assert list(here.known[product].owner.operands) == [own.arguments[0]] * 2
                known[1] = own.arguments[1]
                assert here.value(total) == here.value(total)
                assert [o.operation.name for o in own.operations] == ["arith.mulf", "arith.addf"]
        assert asked == [0, 1, 0, 1, 1], "known leaves are not asked for again"


def test_a_deep_expression_is_no_deep_recursion():
    x = constant(1.0)
    for _ in range(5000):
        x = Expr("arith.negf", (x,))
        hash(x)
    with mlir.context(), ir.Location.unknown(), ir.InsertionPoint(ir.Module.create().body):
        one = mlir.constant(1.0, ir.F32Type.get())
        emitted = emit(x, Expressions(lambda part: one if part.op == "constant" else None, {}))
        count = 0
        while emitted != one:
            emitted, count = emitted.owner.operation.operands[0], count + 1
    assert count == 5000


def test_a_checked_body_keeps_its_checks():
    with mlir.context(), ir.Location.unknown():
        module = program("x[k[i]]")
        (op,) = [o for o in generics(module) if any(i.name == "cf.assert" for i in mlir.traverse(o))]
        block = mlir.body_of(op)
        with ir.InsertionPoint(list(block.operations)[-1]):
            Body(block, lambda n: block.arguments[n], lambda d: linalg.IndexOp(d).result).values()
        checks = [i for i in mlir.traverse(op) if i.name == "cf.assert"]
        assert len(checks) == 2
