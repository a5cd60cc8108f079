"""The node tests of the `onnx` package: each model's graph, written as equations, on the test's own data.

Shapes are the case's. Inputs that are parameters (axes, shapes, sizes, pads) are constants of the program, as are
values that depend on nothing else; ONNX's reference evaluator tells them.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator

import numpy as np

from tests.outside import (  # noqa: F401  (they fill the table)
    onnx_arrange,
    onnx_compute,
    onnx_layers,
    onnx_quantised,
    onnx_resize,
    onnx_signals,
    onnx_steps,
    onnx_torch,
)
from tests.outside.common import Program
from tests.outside.onnx_flat import Flat
from tests.outside.onnx_table import EXPRESSED, NO_TENSORS, WHY_NOT, Computed, Node
from tilec.core.dtypes import DTYPES
from tilec.torch.program import Graph, Tensor, Unsupported, dtype_name

UNKNOWN = "an operator that the table does not have yet"


def cases() -> Iterator[tuple[str, Callable[[], Program]]]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        found = load_model_tests(kind="node")
    for case in found:
        yield case.name, lambda c=case: translate(c)


def translate(case) -> Program:
    graph = case.model.graph
    for node in graph.node:
        if node.op_type in WHY_NOT:
            raise Unsupported(f"{node.op_type}: {WHY_NOT[node.op_type]}")
    inputs, outputs = ([_array(v) for v in values] for values in case.data_sets[0])
    if any(not isinstance(v, np.ndarray | np.generic) for v in [*inputs, *outputs]):
        raise Unsupported(NO_TENSORS)
    given = {i.name: np.asarray(v) for i, v in zip(graph.input, inputs)}
    expected = {o.name: np.asarray(v) for o, v in zip(graph.output, outputs)}
    for array in (*given.values(), *expected.values()):
        dtype_name(array.dtype)
    parameters = {name for node in graph.node for name in Node.parameter_names(node) if name in given}
    while True:
        flat = Flat(case.model, {**given, **expected}, parameters)
        try:
            flat.flatten()
            return _program(case, flat, given, expected)
        except Computed as asked:
            more = {n for n in flat.sources(asked.name) & given.keys() if _gives_shapes(given[n])}
            if not more - parameters:
                raise
            parameters |= more


def _gives_shapes(value: np.ndarray) -> bool:
    """Whether an input may be a parameter: a number or a list of whole numbers."""
    return value.ndim <= 1 and (value.size == 1 or value.dtype.kind in "iub")


def _array(value):
    """A tensor of a type that NumPy lacks comes as ONNX's own."""
    from onnx import TensorProto, numpy_helper

    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def _program(case, flat: Flat, given: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> Program:
    made = WholeGraph()
    tensors: dict[str, Tensor] = {n: made.input(a) for n, a in given.items() if n not in flat.known}
    for proto in flat.nodes:
        if all(_is_folded(proto, flat.known.get(name)) for name in proto.output if name):
            continue
        if proto.op_type not in EXPRESSED:
            raise Unsupported(f"{proto.op_type}: {WHY_NOT.get(proto.op_type, UNKNOWN)}")
        node = Node(proto, made, tensors, flat.known, flat.values)
        results = EXPRESSED[proto.op_type](made, node)
        results = results if isinstance(results, tuple | list) else [results]
        for name, tensor in zip(proto.output, results):
            if name:
                tensors[name] = tensor
    results = []
    for name, value in expected.items():
        tensor = tensors.get(flat.scope.get(name, name))
        if tensor is None:
            raise Unsupported("the result is known without the data")
        if tensor.name in made.inputs or tensor in results or tensor.dtype != dtype_name(value.dtype):
            tensor = made.map(f"{dtype_name(value.dtype)}({{0}})", tensor, dtype=dtype_name(value.dtype))
        results.append(tensor)
    if not made.lines:
        raise Unsupported("the result is known without the data")
    rtol = max([case.rtol, *(_unit(v.dtype) for v in (*expected.values(), *given.values()))])
    assert [r.shape for r in results] == [v.shape for v in expected.values()]
    text = made.program(results)  # which may declare the results in other shapes
    inputs = [made.values[name] for name in made.inputs]
    theirs = [v.reshape(r.shape) for v, r in zip(expected.values(), made.results)]
    return Program(text, inputs, theirs, rtol, max(case.atol, rtol * 1e-3))


def _is_folded(proto, value: np.ndarray | None) -> bool:
    """Whether a value is a constant of the program: what shapes depend on is, and what is given as one. Tables of floats that
    depend on sizes alone are computed, as those of windows."""
    if value is None:
        return False
    given = proto.op_type in ("Constant", "Shape", "Size") or proto.op_type not in EXPRESSED
    return given or value.ndim == 0 or not DTYPES[dtype_name(value.dtype)].is_float


class WholeGraph(Graph):
    """A program whose indices keep their names: the table of ONNX's operators writes them as i0, i1, ..."""

    def emit(self, shape, dtype, expression, nominal="", whole=()):
        return super().emit(shape, dtype, expression, nominal, range(len(shape)))


def _unit(dtype: np.dtype) -> float:
    """Two units in the last place of a narrow float, which their f16 or bf16 arithmetic may lose on the way."""
    from tilec.core.dtypes import from_numpy

    found = from_numpy(dtype)
    return 4 * 2.0**-found.mantissa if found.is_float and found.bits < 32 else 0.0
