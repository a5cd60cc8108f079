"""A function of PyTorch's tensors as equations: traced to ATen as the back end traces programs, and translated by its table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tilec.core.dtypes import OTHER_NAMES
from tilec.torch.program import Graph, Tensor, Unsupported


def trace(call: Callable, tensors: Sequence[Any]) -> Any:
    """The ATen graph, functional, with the decompositions of the back end."""
    import torch
    from torch.func import functionalize
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from tilec.torch import aten

    for t in tensors:
        if t.dtype.is_complex:
            raise Unsupported("complex numbers")
        if t.layout != torch.strided:
            raise Unsupported("sparse tensors")
    logging.disable(logging.ERROR)  # of sizes that depend on data, which are refused
    try:
        with sdpa_kernel(SDPBackend.MATH):
            module = call
            for _ in range(2):  # decompositions bring mutations of their own
                pure = functionalize(module, remove="mutations_and_views")
                made = make_fx(pure, decomposition_table=aten.decompositions(), tracing_mode="fake")
                module = made(*(t.detach().clone() for t in tensors))
                if not any(str(n.target).partition(".")[2].partition(".")[0].endswith("_") for n in module.graph.nodes):
                    break
    except Exception as error:
        raise Unsupported(f"not traced: {reason(error)}") from error
    finally:
        logging.disable(logging.NOTSET)
    module.graph.eliminate_dead_code()
    return module


def reason(error: Exception) -> str:
    name = type(error).__name__
    if name in ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode"):
        return "a result whose shape depends on data"
    return name


def equations(graph: Graph, module: Any, arguments: Iterator[Callable[[str, Any], Tensor]]) -> list:
    """The results of a traced function; `arguments` make the tensors that it is given, by name and value."""
    from torch.utils._pytree import tree_flatten

    from tilec.torch import aten

    values: dict[Any, Any] = {}
    results: list = []
    for node in module.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            made = next(arguments) if node.op == "placeholder" else lambda name, t: graph.input(array(t))
            tensor = node.meta["val"] if "val" in node.meta else getattr(module, node.target)
            node.meta.setdefault("val", tensor)
            if not node.users:
                continue
            if 0 in tensor.shape:
                raise Unsupported("tensors without elements")
            values[node] = made(node.name, getattr(module, node.target) if node.op == "get_attr" else tensor)
        elif node.op == "output":
            results = [values[n] if type(n).__name__ == "Node" else n for n in tree_flatten(node.args[0])[0]]
        elif aten.op_name(node) != "copy_" or node.users:  # what changes an argument is no result
            values[node] = aten.translate(graph, node, values)
    return results


def by_torch(graph: Graph, call: Callable, *operands: Tensor) -> list:
    """What a function of PyTorch's makes of tensors of the program."""
    import torch

    names = {language: name for name, language in reversed(OTHER_NAMES.items())}  # the first name of each is torch's

    def empty(x: Tensor) -> Any:
        dtype = names.get(x.torch_dtype, x.torch_dtype)
        return torch.empty(x.shape, dtype=getattr(torch, dtype))

    module = trace(lambda *values: call(*values), [empty(x) for x in operands])
    return equations(graph, module, iter([lambda name, value, x=x: x for x in operands]))


def array(tensor: Any) -> np.ndarray:
    import torch

    tensor = tensor.detach().resolve_neg().contiguous()
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()
