"""PyTorch's sample inputs (`OpInfo`): each is traced to ATen as the back end traces programs, and its nodes are translated by the
table of `tilec.torch.aten`. What is expected is PyTorch's result at f64."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.outside.common import Program
from tests.outside.traced import array, equations, trace
from tilec.torch.program import Graph, Tensor, Unsupported

MOST = {"float32": 4, "float64": 1}
"""Of an op's samples at a type whose tensors have elements, so many are run, evenly spaced."""
TOLERANCES = {"float32": (1.3e-6, 1e-5), "float64": (1e-7, 1e-7)}  # of torch.testing.assert_close


def cases(most: dict[str, int] | None = None) -> Iterator[tuple[str, Callable[[], Program]]]:
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        for name, count in (most or MOST).items():
            dtype = getattr(torch, name)
            if dtype in info.dtypes:
                title = f"{info.name}{'.' if info.variant_test_name else ''}{info.variant_test_name} {name}"
                for n, sample in enumerate(spread(samples(info, dtype), count)):
                    yield f"{title} {n}", lambda info=info, sample=sample, name=name: program(info, sample, name)


def samples(info: Any, dtype: Any) -> list:
    import torch

    torch.manual_seed(0)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        found = list(info.sample_inputs("cpu", dtype, requires_grad=False))
    return [s for s in found if all(t.numel() for t in tensors_of(s))] or found[:1]


def tensors_of(sample: Any) -> list:
    import torch
    from torch.utils._pytree import tree_flatten

    return [v for v in tree_flatten((sample.input, sample.args, sample.kwargs))[0] if isinstance(v, torch.Tensor)]


def spread(all_of_them: list, count: int) -> list:
    """So many of them, the first and the last included."""
    if len(all_of_them) <= count:
        return all_of_them
    return [all_of_them[round(n * (len(all_of_them) - 1) / max(1, count - 1))] for n in range(count)]


def program(info: Any, sample: Any, dtype: str) -> Program:
    """The sample as a program of the language."""
    import torch
    from torch.utils._pytree import tree_flatten, tree_unflatten

    if info.name.removeprefix("new_").startswith("empty"):
        raise Unsupported("elements that have no promised value")
    if info.name.startswith("jiterator"):
        raise Unsupported("functions as C++ text, which PyTorch compiles on GPUs alone")
    leaves, tree = tree_flatten((sample.input, sample.args, sample.kwargs))
    tensors = [v for v in leaves if isinstance(v, torch.Tensor)]

    def call(*values: Any) -> Any:
        places = iter(values)
        first, rest, named = tree_unflatten([next(places) if isinstance(v, torch.Tensor) else v for v in leaves], tree)
        return info.op(first, *rest, **named)

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        graph, outputs, inputs = translated(call, tensors)
        wide = lambda v: v.double() if isinstance(v, torch.Tensor) and v.dtype == getattr(torch, dtype) else v  # noqa: E731
        expected = tree_flatten(call(*(wide(t.clone()) for t in tensors)))[0]
    expected = [array(e) if isinstance(e, torch.Tensor) else np.asarray(e) for e in expected]
    kept = [(t, e) for t, e in zip(outputs, expected, strict=True) if isinstance(t, Tensor)]
    if not kept:
        raise Unsupported("the result is known without the data")
    text = graph.program([t for t, _ in kept])
    return Program(text, inputs, [e.reshape(r.shape) for r, (_, e) in zip(graph.results, kept)], *TOLERANCES[dtype])


def translated(call: Callable, tensors: list) -> tuple[Graph, list, list[np.ndarray]]:
    """A function's graph of equations, its results, and the inputs of the program."""
    from tilec.torch import aten

    graph, inputs = Graph(), []

    def argument(tensor: Any) -> Callable[[str, Any], Tensor]:
        def make(name: str, _: Any) -> Tensor:
            inputs.append(array(tensor))
            return graph.argument(name, tensor.shape, aten.dtype_of(tensor.dtype))

        return make

    module = trace(call, tensors)
    results = equations(graph, module, map(argument, tensors))
    return graph, results, [*inputs, *graph.values.values()]
