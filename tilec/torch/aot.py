"""Dynamo's graphs as ATen graphs, forward and backward, by AOTAutograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import fx

from tilec.torch.types import Compilers, Input, Run


def functions(gm: fx.GraphModule, inputs: Sequence[Input], how: Compilers) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A function like `gm` of what the compilers in `how` make of its ATen graphs, whose arguments are `aot_module_simplified`'s.
    So does `torch._dynamo.backends.common.aot_autograd`, which imports Inductor's debugger first, for 0.15 s.

    It counts, too: where Dynamo cuts a graph at the buckets of DistributedDataParallel, the count tells it that the first call of
    each part gives fake tensors, with which it goes on to the next part."""
    from torch._dynamo import disable
    from torch._dynamo.utils import counters, flatten_graph_inputs
    from torch._functorch.aot_autograd import aot_module_simplified

    if any(isinstance(x, (list, tuple, dict)) for x in inputs):
        return flatten_graph_inputs(gm, inputs, lambda flat, given: functions(flat, given, how))
    backward = disable(how["bw_compiler"], reason="the compiler of a backward graph")

    def bw_compiler(gm: fx.GraphModule, example_inputs: Sequence[Input]) -> Run:
        return disable(backward(gm, example_inputs), reason="a compiled backward graph")

    chosen: Compilers = {**how, "bw_compiler": bw_compiler}
    counts = counters["aot_autograd"]
    counts["total"] += 1
    try:
        with tracing():
            made = aot_module_simplified(gm, inputs, **chosen)
    except Exception:
        counts["not_ok"] += 1
        raise
    counts["ok"] += 1
    return disable(made, reason="a compiled graph")


@contextmanager
def tracing() -> Iterator[None]:
    """Has attention traced as products and a softmax."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH), _narrow_attention():
        yield


@contextmanager
def _narrow_attention() -> Iterator[None]:
    """Has attention of f16 and bf16 traced as products of these types. PyTorch's plain formula has its factors cast to f32, so that
    its products cannot accumulate in 16 bits; a kernel's accumulate in f32 whatever their factors are, as flash attention's do."""
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        yield
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)
