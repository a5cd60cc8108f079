"""Operations on lists of tensors, which optimizers are made of, as an operation for each tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor
    from torch._ops import OpOverload, OpOverloadPacket
    from torch.fx.node import Argument

ANOTHER = {
    "maximum.Scalar": "clamp_min", "maximum.ScalarList": "clamp_min", "minimum.Scalar": "clamp_max",
    "minimum.ScalarList": "clamp_max", "norm.Scalar": "linalg_vector_norm", "max.default": "amax",
}  # fmt: skip
"""Operations that are called otherwise on a single tensor."""
KEYWORDS = {"addcdiv": "value", "addcmul": "value", "norm": "dtype"}
"""What an operation on a single tensor takes by its name only, and one on lists as its last argument, if at all."""
LEFT_OUT = ("addcdiv.Tensor", "addcmul.Tensor", "copy.default", "zero.default", "powsum.Scalar", "clone.default")
"""Where the numbers are values of a tensor, and what is not called for its result."""


def decompositions() -> dict[OpOverload, Callable[..., list[Tensor]]]:
    import torch

    found: dict[OpOverload, Callable[..., list[Tensor]]] = {}
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.removeprefix("aten::_foreach_").partition(".")
        if full.startswith("aten::_foreach_") and not name.endswith("_") and not overload.endswith("out"):
            op = getattr(getattr(torch.ops.aten, f"_foreach_{name}"), overload or "default")
            if (key := f"{name}.{op._overloadname}") not in LEFT_OUT:
                found[op] = _each(op, getattr(torch.ops.aten, ANOTHER.get(key, name)), KEYWORDS.get(name))
    return found


def _each(op: OpOverload, single: OpOverloadPacket, keyword: str | None) -> Callable[..., list[Tensor]]:
    lists = {a.name for a in op._schema.arguments if str(a.type).startswith("List")}
    names = [a.name for a in op._schema.arguments]
    last = names[-1] if keyword else None

    def decomposed(*args: Argument, **kwargs: Argument) -> list[Tensor]:
        given = {**dict(zip(names, args)), **kwargs}
        by_name = {a.name for a in op._schema.arguments if a.kwarg_only}
        count = next(len(value) for name, value in given.items() if name in lists and isinstance(value, Sequence))
        made = []
        for n in range(count):
            own = {name: value[n] if name in lists and isinstance(value, Sequence) else value for name, value in given.items()}
            named = {name: own.pop(name) for name in by_name & own.keys()}
            if last in own:
                named[keyword or ""] = own.pop(last or "")
            made.append(single(*own.values(), **named))
        return made

    return decomposed
