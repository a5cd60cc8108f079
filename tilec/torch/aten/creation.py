"""Tensors made of numbers and positions alone; random ones."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.torch.aten.promotion import cast
from tilec.torch.aten.table import Call, expresses, refused
from tilec.torch.indices import Index
from tilec.torch.program import Tensor, constant, literal


@expresses("full full_like new_full fill zeros zeros_like new_zeros ones ones_like new_ones scalar_tensor")
def full(call: Call) -> Tensor:
    dtype = call.dtype
    value = next((call[n] for n in ("fill_value", "value", "s") if n in call), 1 if "ones" in call.name else 0)
    if isinstance(value, Tensor):
        return cast(call.graph, value, dtype).expanded(call.shape)
    return constant(call.shape, dtype, value)


@expresses("empty empty_like new_empty empty_strided new_empty_strided empty_permuted")
def empty(call: Call) -> Tensor:
    """Memory that nothing reads before it is written: zeros, which cost nothing if nothing reads them."""
    return constant(call.shape, call.dtype, 0)


@expresses("arange iota")
def arange(call: Call) -> Tensor:
    start = call["start"] if "start" in call and call["start"] is not None else 0
    step = call["step"] if "step" in call and call["step"] is not None else 1
    dtype = call.dtype
    whole = isinstance(start, int) and isinstance(step, int)

    def formula(i: Sequence[Index]) -> str:
        if whole:
            position = i[0] * step + start
            return f"{dtype}({position.sum_text()})" if dtype != "i64" else str(position)
        wide = "f64" if dtype == "f64" else "f32"
        return f"({literal(float(start))} + {literal(float(step))} * {wide}({i[0].sum_text()}))"

    if dtype in ("i64", "f32", "f64") or whole:
        return Tensor("", call.shape, dtype, formula=formula)
    return call.emit(call.shape, dtype, formula)


@expresses("eye")
def eye(call: Call) -> Tensor:
    dtype = call.dtype
    return call.emit(call.shape, dtype, lambda i: f"{literal(1, dtype)} if {i[0]} == {i[1]} else {literal(0, dtype)}")


refused(
    "random numbers of PyTorch's generator",
    "native_dropout rand randn rand_like randn_like randint randperm bernoulli uniform normal multinomial "
    "randint_like exponential geometric cauchy log_normal normal_functional rrelu_with_noise",
)
refused(
    "a result whose shape depends on data",
    "nonzero masked_select unique_consecutive _local_scalar_dense repeat_interleave nonzero_static",
)
