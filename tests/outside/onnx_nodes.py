"""The node tests of the `onnx` package: each model's graph, said as equations, on the test's own data.

Shapes are the case's. Inputs that are parameters (axes, shapes, sizes, pads) are constants of the program, as are
values that depend on nothing else; ONNX's reference evaluator tells them.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator

import numpy as np

from tests.outside import onnx_arrange, onnx_compute, onnx_layers  # noqa: F401  (they fill the table)
from tests.outside.common import Program
from tests.outside.onnx_table import EXPRESSED, WHY_NOT, Node
from tilec.torch.program import Graph, Inexpressible, Tensor, dtype_name


def cases() -> Iterator[tuple[str, Callable[[], Program]]]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        found = load_model_tests(kind="node")
    for case in found:
        yield case.name, lambda c=case: translate(c)


def translate(case) -> Program:
    model = case.model
    graph = model.graph
    for node in graph.node:
        if node.op_type in WHY_NOT:
            raise Inexpressible(f"{node.op_type}: {WHY_NOT[node.op_type]}")
    if any(n.domain not in ("", "ai.onnx") for n in graph.node):
        raise Inexpressible("operators of another domain")
    inputs, outputs = ([_array(v) for v in values] for values in case.data_sets[0])
    if any(not isinstance(v, np.ndarray | np.generic) for v in [*inputs, *outputs]):
        raise Inexpressible("sequences, maps or optional values")
    given = {i.name: np.asarray(v) for i, v in zip(graph.input, inputs)}
    expected = {o.name: np.asarray(v) for o, v in zip(graph.output, outputs)}
    for array in (*given.values(), *expected.values()):
        dtype_name(array.dtype)
    values = {**_values(model, given, expected), **given, **expected}
    return _program(case, graph, given, expected, values)


def _array(value):
    """A tensor of a type that NumPy lacks comes as ONNX's own."""
    from onnx import TensorProto, numpy_helper

    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def _values(model, given: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What flows between nodes, where there are several."""
    if len(model.graph.node) == 1 and not model.graph.initializer:
        return {}
    from onnx.reference import ReferenceEvaluator

    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = ReferenceEvaluator(model).run(None, given, intermediate=True)
    except Exception as error:
        raise Inexpressible("ONNX's evaluator tells no shapes") from error
    if any(not isinstance(v, np.ndarray | np.generic) for v in found.values() if v is not None):
        raise Inexpressible("sequences, maps or optional values")
    return {name: np.asarray(v) for name, v in found.items() if v is not None}


def _program(case, graph, given, expected, values) -> Program:
    from onnx import numpy_helper

    made = WholeGraph()
    known: dict[str, np.ndarray] = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    parameters = {n for node in graph.node for n in Node.parameter_names(node)}
    tensors: dict[str, Tensor] = {n: made.input(a) for n, a in given.items() if n not in parameters}
    known |= {n: a for n, a in given.items() if n in parameters}
    known |= {name: values[name] for node in graph.node if node.op_type == "Constant" for name in node.output}
    for proto in graph.node:
        if proto.op_type == "Constant":
            continue
        fixed = proto.op_type in ("Shape", "Size") or all(n in known for n in proto.input if n)
        if fixed and all(n in values for n in proto.output if n):
            known |= {n: values[n] for n in proto.output if n}
            continue
        if proto.op_type not in EXPRESSED:
            raise Inexpressible(f"{proto.op_type}: not translated")
        node = Node(proto, made, tensors, known, values, given)
        results = EXPRESSED[proto.op_type](made, node)
        results = results if isinstance(results, tuple | list) else [results]
        for name, tensor in zip(proto.output, results):
            if name:
                tensors[name] = tensor
    results = []
    for name, value in expected.items():
        if name not in tensors:
            raise Inexpressible("the result is known without the data")
        tensor = tensors[name]
        if tensor.name in made.inputs or tensor in results or tensor.dtype != dtype_name(value.dtype):
            tensor = made.map(f"{dtype_name(value.dtype)}({{0}})", tensor, dtype=dtype_name(value.dtype))
        results.append(tensor)
    if not made.lines:
        raise Inexpressible("the result is known without the data")
    inputs = [made.values[name] for name in made.inputs]
    rtol = max([case.rtol, *(_unit(v.dtype) for v in (*expected.values(), *given.values()))])
    assert [r.shape for r in results] == [v.shape for v in expected.values()]
    text = made.program(results)  # which may declare the results in other shapes
    theirs = [v.reshape(r.shape) for v, r in zip(expected.values(), made.results)]
    return Program(text, inputs, theirs, rtol, max(case.atol, rtol * 1e-3))


class WholeGraph(Graph):
    """A program whose indices keep their names: the table of ONNX's operators writes them as i0, i1, ..."""

    def emit(self, shape, dtype, expression, nominal="", whole=()):
        return super().emit(shape, dtype, expression, nominal, range(len(shape)))


def _unit(dtype: np.dtype) -> float:
    """Two units in the last place of a narrow float, which their f16 or bf16 arithmetic may lose on the way."""
    from tilec.core.dtypes import from_numpy

    found = from_numpy(dtype)
    return 4 * 2.0**-found.mantissa if found.is_float and found.bits < 32 else 0.0
