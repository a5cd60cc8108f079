"""Views of outside arrays: the same memory, described rightly, or a clear refusal."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from tilec.core.diagnostics import CallError
from tilec.core.dtypes import DTYPES, F32, I64
from tilec.runtime.buffers import empty_like_kind, new_tensor, overlaps, view, wrap

ALL = list(DTYPES.values())


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_numpy(dtype):
    array = np.ones((3, 4), dtype.numpy)
    buffer = view(array)
    assert buffer[:6] == (array.ctypes.data, (3, 4), (4, 1), dtype, "cpu", False)
    assert buffer.owner is array and buffer.contiguous and buffer.nbytes == array.nbytes
    assert wrap(buffer) is array


CASES = {
    "0-d": np.array(1.0, np.float32),
    "empty": np.empty((0, 3), np.float32),
    "negative": np.arange(12, dtype=np.float32).reshape(3, 4)[::-1, ::-2],
    "transposed": np.zeros((3, 4), np.float32).T,
    "broadcast": np.broadcast_to(np.float32(1), (4, 5)),
    "slice": np.zeros((8, 8), np.float32)[2:6, 1::3],
    "one": np.zeros((1, 5), np.float32)[:, ::-1],
}


@pytest.mark.parametrize("name", CASES)
def test_numpy_layouts(name):
    array = CASES[name]
    buffer = view(array)
    assert buffer.shape == array.shape
    if array.size:
        assert buffer.pointer == array.ctypes.data
        live = [i for i, n in enumerate(array.shape) if n > 1]
        assert [buffer.strides[i] * 4 for i in live] == [array.strides[i] for i in live]
        low, high = np.lib.array_utils.byte_bounds(array)
        assert buffer.extent() == (low, high)
        assert np.array_equal(wrap(buffer._replace(owner=None)), array)
    assert buffer.contiguous == array.flags.c_contiguous
    assert buffer.readonly == (not array.flags.writeable)


def test_what_holds_nothing_is_contiguous():
    buffer = view(np.empty((2, 0, 2), np.float32))
    assert buffer._replace(strides=(0, 0, 0)).contiguous and buffer._replace(strides=(7, 5, 3)).contiguous


def test_numbers():
    assert view(2.5).dtype == F32 and wrap(view(2.5)) == 2.5
    assert view(-7).dtype == I64 and wrap(view(-7)) == -7
    assert view(True).dtype == DTYPES["bool"] and view(True).shape == ()
    assert view(np.float64(1.5)).dtype == DTYPES["f64"]
    assert view(ml_dtypes.bfloat16(2)).dtype == DTYPES["bf16"]


REFUSED = {
    "object": np.array([object()]),
    "complex64": np.zeros(2, np.complex64),
    "byte-swapped": np.zeros(2, ">f4"),
    "<U1": np.array(["a"]),
    "aligned": np.zeros(2, [("a", "i1"), ("b", "f4")])["b"],
    "expected an array, got a list": [1, 2],
    "expected an array, got a str": "text",
    "got None": None,
    "is not a value of i64": 2**70,
    "is not a value of f32": 1e300,
    "masked": np.ma.array([1.0, 2.0], mask=[0, 1]),
    "the class ndarray": np.ndarray,
}


@pytest.mark.parametrize("says", REFUSED)
def test_refused(says):
    with pytest.raises(CallError, match=says):
        view(REFUSED[says])


def test_odd_strides():
    array = np.zeros(4, np.dtype({"names": ["a"], "formats": ["f4"], "offsets": [0], "itemsize": 6}))["a"]
    with pytest.raises(CallError, match=r"copy\(\)"):
        view(array)


# PyTorch


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_torch(dtype):
    torch = pytest.importorskip("torch")
    result = empty_like_kind(torch.zeros(1), (3, 4), dtype, "cpu")
    assert isinstance(result, torch.Tensor)
    buffer = view(result)
    assert buffer[:6] == (result.data_ptr(), (3, 4), (4, 1), dtype, "cpu", False)
    array = wrap(buffer)
    assert array.dtype == dtype.numpy and array.shape == (3, 4)
    array[...] = 1
    assert bool((result.to(torch.float64) == 1).all())
    assert view(result.T).strides == (1, 4)


def test_torch_refusals():
    torch = pytest.importorskip("torch")
    tensor = torch.ones(2, requires_grad=True)
    with pytest.raises(CallError, match="detach"):
        view(tensor)
    assert view(tensor.detach()).shape == (2,)
    with torch.no_grad():
        assert view(tensor).shape == (2,)
    with pytest.raises(CallError, match="meta"):
        view(torch.empty(2, device="meta"))
    with pytest.raises(CallError, match="complex"):
        view(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(CallError, match="strided"):
        view(torch.eye(2).to_sparse())
    assert view(torch.zeros(())).shape == () and view(torch.zeros(0, 2)).size == 0


# DLPack and others


class Exporter:
    """An array of another library: nothing but DLPack."""

    def __init__(self, array, versioned=True):
        self.array, self.versioned = array, versioned

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        if "max_version" in options and not self.versioned:
            raise TypeError("unexpected keyword")
        return self.array.__dlpack__(**options)


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack(versioned):
    array = np.arange(12, dtype=np.int16).reshape(3, 4)[:, ::2]
    buffer = view(Exporter(array, versioned))
    assert buffer[:6] == (array.ctypes.data, (3, 2), (4, 2), DTYPES["i16"], "cpu", False)
    assert np.array_equal(wrap(buffer), array)


def test_dlpack_narrow_floats_and_read_only():
    torch = pytest.importorskip("torch")
    tensor = torch.ones(4, dtype=torch.bfloat16)
    assert view(Exporter(tensor)).dtype == DTYPES["bf16"]
    assert wrap(view(Exporter(tensor)))[0] == 1
    frozen = np.ones(3)
    frozen.flags.writeable = False
    assert view(Exporter(frozen)).readonly
    with pytest.raises(CallError, match="DLPack"):
        view(Exporter(frozen, versioned=False))  # the old protocol cannot say read-only
    with pytest.raises(CallError, match="complex"):
        view(Exporter(torch.zeros(2, dtype=torch.complex64)))


def test_dlpack_keeps_memory_alive():
    wrapped = wrap(view(Exporter(np.full(100_000, 7.0))))
    assert (wrapped == 7).all()


def test_results():
    assert isinstance(empty_like_kind(1.0, (2,), F32, "cpu"), np.ndarray)
    assert empty_like_kind(np.ones(1), (2, 0), DTYPES["f8e5m2"], "cpu").dtype == ml_dtypes.float8_e5m2


# Overlap

BASE = np.zeros((8, 8), np.float32)
PAIRS = [
    (BASE, BASE, True),
    (BASE[:4], BASE[4:], False),
    (BASE[:5], BASE[4:], True),
    (BASE[:, :4], BASE[:, 4:], False),
    (BASE[::2], BASE[1::2], False),
    (BASE.ravel()[::2], BASE.ravel()[1::2], False),
    (BASE.ravel()[::2], BASE.ravel()[::3], True),
    (BASE[:, ::-1], BASE.T, True),
    (BASE[:0], BASE, False),
    (BASE, np.zeros((8, 8), np.float32), False),
    (np.broadcast_to(BASE[0, :1], (4,)), BASE[0, 1:], False),
    (BASE.view(np.int16)[:, ::2], BASE.view(np.int16)[:, 1::2], False),
    (BASE.view(np.int16)[:, 1::2], BASE, True),
]


@pytest.mark.parametrize("case", range(len(PAIRS)))
def test_overlaps(case):
    a, b, expected = PAIRS[case]
    assert overlaps(view(a), view(b)) is expected
    assert overlaps(view(b), view(a)) is expected
    assert not overlaps(view(a), view(b)._replace(device=0))
    gpu = view(a)._replace(device=0, owner=None), view(b)._replace(device=0, owner=None)
    assert overlaps(*gpu) is expected


@pytest.mark.parametrize("shape", [(), (1,), (2, 1), (3, 5), (0, 3), (1, 1)], ids=str)
def test_new_tensors_are_row_major_and_nothing_is_kept_for_them(shape):
    """A fast path may be made while PyTorch records a CUDA graph, whose pool then may hold nothing but results."""
    torch = pytest.importorskip("torch")
    element = torch.empty((), dtype=torch.bfloat16)
    allocate = new_tensor(element, shape)
    kept = [element, *(t for t in allocate.args if isinstance(t, torch.Tensor))]
    assert len(kept) == 2 and not any(t.untyped_storage().nbytes() for t in kept)
    one, other = allocate().fill_(1), allocate().fill_(2)
    assert one.dtype == torch.bfloat16 and one.shape == shape and one.is_contiguous()
    assert one.stride() == torch.empty(shape).stride()
    assert (one == 1).all() and (other == 2).all()


def test_imports_nothing_large():
    code = (
        "import sys, numpy as np; from tilec.runtime.buffers import view; view(np.ones(3)); view(1.0);"
        "print([m for m in ('torch', 'cupy', 'cuda', 'numba_cuda_mlir', 'numba') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_cuda_tensors(dtype):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    tensor = empty_like_kind(torch.zeros(1, device="cuda"), (3, 4), dtype, 0)
    assert view(tensor)[:6] == (tensor.data_ptr(), (3, 4), (4, 1), dtype, 0, False)
    if dtype.name not in ("bf16", "f8e4m3", "f8e5m2"):
        assert view(Exporter(tensor))[:5] == view(tensor)[:5]

    class Interface:
        __cuda_array_interface__ = torch.zeros(2, 3, device="cuda").T.__cuda_array_interface__

    assert view(Interface()).strides == (1, 3) and view(Interface()).device == 0
