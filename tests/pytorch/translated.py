"""Functions of PyTorch's tensors by the translator table: as text, and against PyTorch's results at f64."""

from __future__ import annotations

from tests.outside import opinfo
from tests.outside.common import Program, check


def text(call, *tensors) -> str:
    graph, results, _ = opinfo.translated(call, list(tensors))
    return graph.program(results)


def message(call, *tensors) -> list[str]:
    """The statements."""
    return [line.strip() for line in text(call, *tensors).splitlines()[1:-1]]


def right(call, *tensors, rtol=1e-5, atol=1e-5) -> None:
    """The compiled function agrees with PyTorch's at f64."""
    graph, results, inputs = opinfo.translated(call, list(tensors))
    wide = [t.double() if t.is_floating_point() else t for t in tensors]
    expected = call(*wide)
    expected = list(expected) if isinstance(expected, tuple | list) else [expected]
    program = graph.program(results)
    arrays = [e.numpy().reshape(r.shape) for e, r in zip(expected, graph.results, strict=True)]
    assert check(Program(program, inputs, arrays, rtol, atol)) == ""
