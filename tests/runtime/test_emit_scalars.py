"""Printed conversions between integers and bools are those of the interpreter, at the ends of all types."""

import itertools

import numpy as np
import pytest
from semantics.test_interpreter_scalars import evaluate

from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.runtime.emit.comments import Comments
from tilec.runtime.emit.names import Names
from tilec.runtime.emit.printer import Printer

NUMPY = {"i1": np.bool_} | {f"{sign}{bits}": np.dtype(f"{sign}{bits // 8}").type for sign in "iu" for bits in (8, 16, 32, 64)}
WIDTHS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64}
CASES = [
    *((name, a, b) for a, b in itertools.combinations(WIDTHS, 2) for name in ("arith.extsi", "arith.extui")),
    *(("arith.trunci", b, a) for a, b in itertools.combinations(WIDTHS, 2)),
    *((name, a, "f32") for a in WIDTHS for name in ("arith.sitofp", "arith.uitofp")),
]  # fmt: skip


def printed(operation: str, source: str, result: str) -> str:
    """The expression of a conversion of `x`."""
    with mlir.context(), ir.Location.unknown():
        text = f"func.func @f(%x: {source}) {{ %y = {operation} %x : {source} to {result} return }}"
        module = ir.Module.parse(text)
        block = module.body.operations[0].regions[0].blocks[0]
        printer = Printer(Names([], []), Comments({}, ir.Location.unknown()))
        printer.text[block.arguments[0]] = "x"
        return printer.expression(block.operations[0].operation)


def cast(kind: str):
    """As the compilers of kernels convert: integers wrap around."""
    return lambda value: np.asarray(value).astype(np.float32 if kind == "f32" else NUMPY[kind])[()]


@pytest.mark.parametrize("operation, source, result", CASES)
def test_conversions(operation, source, result):
    names = {kind: cast(kind) for kind in (*NUMPY, "f32")}
    ends = [False, True] if source == "i1" else [np.iinfo(NUMPY[source]).min, -2, -1, 0, 1, 2, 3, np.iinfo(NUMPY[source]).max]
    values, text = np.array(ends, NUMPY[source]), printed(operation, source, result)
    found = [eval(text, names | {"x": value}) for value in values]
    np.testing.assert_array_equal(found, evaluate(f"{operation} {{0}} : {source} to {result}", values, result=result))
