"""PyTorch's promotion of types: what an elementwise operation computes in, and what it gives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from tilec.core.dtypes import DTYPES
from tilec.core.functions import FUNCTIONS
from tilec.torch.aliases import arguments
from tilec.torch.aten.table import Call, dtype_of, operand
from tilec.torch.indices import Index
from tilec.torch.program import Graph, Tensor, Unsupported, converted

KINDS = {
    "arithmetic": "DEFAULT", "float": "INT_TO_FLOAT", "bool": "ALWAYS_BOOL", "same": "NO_OPMATH", "power": "BOOL_TO_LONG",
}  # fmt: skip
_CALLED = re.compile(r"\b([a-z][a-z0-9_]*)\(")


def computed(call: Call, names: Sequence[str], kind: str) -> str:
    """The type that an operation of this kind computes in, on these of its arguments."""
    from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

    given = arguments(call.node)
    values = [v.meta["val"] if type(v).__name__ == "Node" else v for n in names if (v := given.get(n)) is not None]
    values = [v for v in values if not isinstance(v, str)]
    compute, _ = elementwise_dtypes(*values, type_promotion_kind=getattr(ELEMENTWISE_TYPE_PROMOTION_KIND, KINDS[kind]))
    return dtype_of(compute)


def elementwise(
    call: Call, template: str, names: Sequence[str], kind: str = "arithmetic", dtype: str | None = None,
    compute: str | None = None, known: Sequence[str] = (),
) -> Tensor:  # fmt: skip
    """An equation by a template in which `{0}` is the argument of the first name, broadcast and of the type computed in. `known`
    are functions of the program's own."""
    require(template, call.name, known)
    compute = compute or computed(call, names, kind)
    operands = [call[n] for n in names]
    shape, dtype = call.shape, dtype or call.dtype

    def expression(i: Sequence[Index]) -> str:
        return template.format(*(operand(x, compute, lambda t: t.along(i, shape)) for x in operands))

    if call.joined():
        return call.formula(shape, dtype, expression)
    return call.emit(shape, dtype, expression)


def require(template: str, name: str, known: Sequence[str] = ()) -> None:
    """Refuses text that calls a function which the language has not."""
    for called in _CALLED.findall(template):
        if called not in _known() and called not in known:
            raise Unsupported(f"{name}: no function {called}")


@cache
def _known() -> frozenset[str]:
    from tilec.core.reductions import REDUCTIONS
    from tilec.dsl import std

    words = ["if", "else", "and", "or", "not", "pad", "rand"]
    return frozenset({*FUNCTIONS, *DTYPES, *REDUCTIONS, *std.names(), *words})


def cast(graph: Graph, x: Tensor, dtype: str) -> Tensor:
    """The tensor in another type."""
    if x.dtype == dtype and not x.nominal:
        return x
    if x.dtype in ("f16", "bf16") and dtype == "f32":  # its readers widen it, and nothing is stored
        return Tensor("", x.shape, dtype, formula=lambda i: f"f32({x.at(*i)})", origin=(x, 1.0))
    return graph.emit(x.shape, dtype, lambda i: converted(x.at(*i), x.dtype, dtype))
