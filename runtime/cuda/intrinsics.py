"""What emitted CUDA kernels import: device functions by name, made when first asked for.

    from tilec.runtime.cuda.intrinsics import cuda, float32, load_f32x4, shuffle_xor_f32, wgmma

    wgmma_n128 = wgmma("bf16", n=128, steps=4)

Addresses are int64, in global and in shared memory alike. The families:

| names | module |
|---|---|
| `[shared_]load_T`, `load_TxN`, `store_...`, `_nc`, `_nc_again`, `_nc_last` | `runtime/cuda/device/memory.py` |
| `exp2_approx_f32`, `tanh_f32`, `maximum_f32`, `shuffle_xor_f32`, barriers, clusters | `runtime/cuda/device/scalar.py` |
| `cp_async_16`, `mbarrier_*`, `tma_load(2)`, `set_registers(240, more=True)` | `runtime/cuda/device/asynchronous.py` |
| `ldmatrix_x4`, `mma_bf16`, `wgmma(...)`, `wgmma_wait(...)` | `runtime/cuda/device/matrix.py` |
| `unpack_bf16` | `runtime/cuda/device/packed.py` |
| `unrolled(8)` | `runtime/cuda/unroll.py` |
| `COS_NEAR_4`, `LOG2_E` | `tilec.core.coefficients` |
| `cuda`, `int32`, `float32`, ... | Numba's own |

Nothing of `numba-cuda-mlir` is imported before the first name is looked up.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tilec.core.coefficients import NAMED
from tilec.runtime.cuda.device.asynchronous import ASYNC, bulk_wait, cp_async_wait, set_registers, tma_load, tma_store
from tilec.runtime.cuda.device.contraction import contract
from tilec.runtime.cuda.device.define import NUMBA, DeviceFunction, Intrinsic, define, ptx
from tilec.runtime.cuda.device.matrix import MATRIX, matrix_descriptor, shared_words, wgmma, wgmma_wait, widen
from tilec.runtime.cuda.device.memory import WIDTH, load, load_vector, store, store_vector
from tilec.runtime.cuda.device.packed import PACKED
from tilec.runtime.cuda.device.scalar import SCALAR
from tilec.runtime.cuda.unroll import unrolled

__all__ = [
    "bulk_wait",
    "contract",
    "cp_async_wait",
    "define",
    "matrix_descriptor",
    "ptx",
    "set_registers",
    "shared_words",
    "tma_load",
    "tma_store",
    "unrolled",
    "wgmma",
    "wgmma_wait",
    "widen",
]

_TABLE: dict[str, Callable[[], Intrinsic]] = {**SCALAR, **ASYNC, **MATRIX, **PACKED}
_ACCESS = re.compile(rf"(shared_)?(load|store)_({'|'.join(WIDTH)})(?:x(\d+))?(?:_(nc|nc_again|nc_last))?(_where)?")


def __getattr__(name: str) -> object:
    """The device function of this name. Not kept here: a few differ between chips, and definitions are
    cached."""
    if name in _TABLE:
        return _TABLE[name]()
    if name in NAMED:
        return NAMED[name]
    if name in NUMBA.values():
        from numba_cuda_mlir import types

        return getattr(types, name)
    if name == "cuda":
        from numba_cuda_mlir import cuda

        return cuda
    if match := _ACCESS.fullmatch(name):
        return _access(*match.groups())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _access(shared: str | None, action: str, dtype: str, count: str | None, hint: str | None, where: str | None) -> DeviceFunction:
    if where and not (action == "load" and count and not shared):
        raise AttributeError("only loads of vectors from global memory take a condition")
    space = "shared" if shared else "global"
    if shared and hint:
        raise AttributeError(f"shared memory accesses have no hint {hint!r}")
    if action == "store" and hint:
        raise AttributeError(f"a {action} has no hint {hint!r}")
    if count is None:
        return load(dtype, space, hint or "") if action == "load" else store(dtype, space)
    if action == "load":
        return load_vector(dtype, int(count), space, hint or "", bool(where))
    return store_vector(dtype, int(count), space)
