"""Uniform numbers: `tilec::rand`."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.torch import indices as ix
from tilec.torch.aten.table import Call, expresses
from tilec.torch.indices import Index
from tilec.torch.program import Tensor


@expresses("tilec::rand")
def rand(call: Call) -> Tensor:
    from tilec.torch.philox import pitches

    seed, steps = call["seeds"].at(ix.number(call["number"])), pitches(call.shape)

    def drawn(i: Sequence[Index]) -> str:
        return f"rand({seed}, {ix.flat(i, steps).sum_text()})"

    return call.emit(call.shape, "f32", drawn)
