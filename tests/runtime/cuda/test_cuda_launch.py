"""Kernels on a GPU do what their device functions say; launching, streams, timing and errors."""

import os
import struct
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("numba_cuda_mlir")
pytest.importorskip("cuda.core")

import cuda.bindings
from cuda.bindings import driver as bindings
from tools.cuda_driver_fake import Launch, stand_in
from tools.cuda_kernels import COPY, SHARED, kernel

import tilec
from tilec.core import targets
from tilec.core.dtypes import DTYPES, F32
from tilec.process import compile_server
from tilec.runtime.cuda import driver as cuda_driver
from tilec.runtime.cuda import intrinsics
from tilec.runtime.cuda.compile import compile_kernel
from tilec.runtime.cuda.device.memory import WIDTH, in_array
from tilec.runtime.cuda.launch import (
    Described,
    Kernel,
    Launcher,
    TiledMap,
    current_stream,
    parameter_offsets,
    stream_handle,
)  # fmt: skip
from tilec.semantics import interval_functions, intervals
from tilec.semantics.comparison import compare_array


def test_parameter_layout():
    assert parameter_offsets(("i64", "i32", "f64")) == [0, 8, 16, 24]
    assert parameter_offsets(("i64", "tensor_map", "i32")) == [0, 64, 64 + 128, 64 + 128 + 4]
    assert parameter_offsets(("i32", "i64")) == [0, 8, 16]


def test_stream_handles():
    class Protocol:
        def __cuda_stream__(self):
            return 0, 77

    class Torch:
        cuda_stream = 78

    assert [stream_handle(s) for s in (5, Protocol(), Torch())] == [5, 77, 78]
    with pytest.raises(tilec.CallError, match="must be a CUDA stream"):
        stream_handle("text")


def test_bf16_rounds_like_ml_dtypes_on_the_host():
    """The reference of the GPU tests."""
    assert float(ml_dtypes.float8_e4m3fn(464.0)) == 448 and np.isnan(float(ml_dtypes.float8_e4m3fn(465.0)))
    assert np.isinf(float(ml_dtypes.float8_e5m2(61440.0)))


@pytest.fixture
def driver(monkeypatch):
    return stand_in(monkeypatch)


def test_launch_packs_arguments_and_configuration(driver):
    driver.kinds = [["i64", "i32", "tensor_map", "f32"]]
    launcher = Launcher(Kernel(b"image", "softmax", driver.kinds[0]), (7, 2, 1), (128, 1, 1), 4096, (16, 1, 1))
    set_attributes = [a[:2] for name, a in driver.calls if name == "cuKernelSetAttribute"]
    assert set_attributes == [(8, 4096), (14, 1)]
    described = bytes(range(128))
    launcher.launch(99, 0x7F00_0000_1000, -5, Described.from_buffer_copy(described), 1.5)
    data = struct.pack("<qi36x128sf", 0x7F00_0000_1000, -5, described, 1.5)
    assert driver.queued == [Launch(1001, 99, (7, 2, 1), (128, 1, 1), 4096, ((4, 0, 16, 1, 1),), data)]


def test_empty_grids_are_not_launched(driver):
    Launcher(Kernel(b"image", "k", ["i64"]), (0, 1, 1), (128, 1, 1)).launch(0, 1)
    assert not driver.queued


def test_a_thread_without_a_context_gets_one_or_that_of_another_gpu(driver):
    launcher = Launcher(Kernel(b"image", "k", ["i64"]), (1, 1, 1), (32, 1, 1))
    driver.calls.clear()
    launcher.launch(0, 1)
    assert "cuCtxSetCurrent" not in driver.names()
    for driver.device in (None, 1):
        driver.calls.clear()
        launcher.launch(0, 1)
        assert "cuCtxSetCurrent" in driver.names()
    assert len(driver.launches) == 3
    driver.codes["cuLaunchKernelEx"] = [700]
    with pytest.raises(cuda_driver.KernelFault, match="launch of k"):
        launcher.launch(0, 1)


def test_a_gpu_has_the_name_that_the_driver_gives(driver, monkeypatch):
    """For `tilec doctor`, and for the target of this name."""
    (found,) = cuda_driver.device_info().devices
    assert (found.name, found.memory, cuda_driver.device_info().driver) == ("NVIDIA GPU", driver.memory, "CUDA 13.2")
    monkeypatch.setattr(cuda.bindings, "driver", cuda_driver.library())
    name, attributes = targets._query_driver()
    assert name == "GPU" and set(attributes.values()) == {1}
    driver.codes["cuInit"] = [100]
    assert targets._query_driver() is None


def test_a_machine_without_a_driver_says_so(monkeypatch):
    def none(flags):
        raise RuntimeError("Failed to dlopen libcuda.so.1")

    monkeypatch.setattr(bindings, "cuInit", none)
    cuda_driver.library.cache_clear()
    cuda_driver.device_count.cache_clear()
    with pytest.raises(cuda_driver.NoDriver, match="no CUDA driver"):
        cuda_driver.library()
    assert "no CUDA driver" in cuda_driver.device_info().problem


def test_the_driver_is_looked_for_when_a_gpu_is_asked_for():
    """Programs for the CPU need neither it nor the package, in children of a process and in threads, too."""
    code = (
        "import sys, tilec, numpy as np\nimport tilec.runtime.cuda.launch, tilec.runtime.cuda.program\n"
        "assert tilec.compile('y[i] = 2 * x[i]', target='cpu').interpret('map', np.ones(3, np.float32)) is not None\n"
        "assert not {'cuda.bindings.driver', 'cuda.core'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)


# On a GPU


@pytest.fixture(scope="module")
def torch():
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        pytest.skip("no GPU")
    return module


def run(
    source: str,
    *arguments,
    threads: int = 128,
    shared: int = 0,
    grid=(1, 1, 1),
    cluster=(1, 1, 1),
    kinds=None,
):
    from tilec.runtime.cuda.driver import chip_of

    kinds = kinds or ["i64"] * len(arguments)
    cubin = compile_kernel(source, "kernel", chip_of(), threads, parameters=kinds, allow=("stack",))
    launcher = Launcher(Kernel(cubin.image, "kernel", kinds), grid, (threads, 1, 1), shared, cluster)
    launcher.launch(current_stream(), *arguments)
    return launcher


def random_bits(torch, dtype: str, count: int):
    """All bit patterns of narrow types; for wide ones a sample with infinities and NaN."""
    bits = np.random.default_rng(0).integers(0, 256, count * max(1, WIDTH[dtype] // 8), np.uint8)
    if dtype == "bool":
        bits &= 1
    return torch.from_numpy(bits).cuda()


def copies(dtype: str) -> list[tuple[str, list[str]]]:
    """Kernels that copy 128 times 16 bytes, in vectors and one by one, with every hint; and the names that they import."""
    size, count = WIDTH[dtype] // 8, 16 * 8 // WIDTH[dtype]
    element = in_array(dtype)
    array = {"f": "float", "i": "int", "u": "uint"}[element[0]] + element[1:]
    vector = f"""
a = cuda.local.array({count}, {array})
load_{dtype}x{count}{{hint}}(a, 0, x + tid * 16)
shared_store_{dtype}x{count}(a, 0, base + tid * 16)
shared_load_{dtype}x{count}(a, 0, base + tid * 16)
store_{dtype}x{count}(a, 0, y + tid * 16)
"""
    scalar = f"for i in range({count}):\n    at = (i * 128 + tid) * {size}\n"
    scalar += f"    store_{dtype}(y + at, load_{dtype}{{hint}}(x + at))"
    made = []
    for hint in ("", "_nc"):
        for body in (vector, scalar):
            text = body.format(hint=hint)
            names = {w.split("(")[0] for w in text.replace("(", "( ").split() if "load_" in w or "store_" in w}
            made.append((SHARED + text, [*sorted(names), array]))
    return made


@pytest.mark.parametrize("dtype", WIDTH)
def test_copies_name_what_there_is(dtype):
    """Where there is no GPU, too."""
    for _, names in copies(dtype):
        assert all(getattr(intrinsics, name) for name in names)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", WIDTH)
def test_gpu_copies(torch, dtype):
    """Load and store, scalar and vector, through registers and shared memory, give the same values back."""
    x = random_bits(torch, dtype, 128 * 16 * 8 // WIDTH[dtype])
    for text, names in copies(dtype):
        y = torch.zeros_like(x)
        run(kernel(text, *names, parameters="x, y"), x.data_ptr(), y.data_ptr(), shared=2048)
        torch.cuda.synchronize()
        values = [t.cpu().numpy().view(DTYPES[dtype].numpy) for t in (x, y)]
        wide = [v.astype(np.float64) if DTYPES[dtype].is_float else v for v in values]
        np.testing.assert_array_equal(*wide)


@pytest.mark.gpu
@pytest.mark.parametrize("chip", ["sm_80", None])
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f8e4m3", "f8e5m2"])
def test_gpu_rounding_is_that_of_ml_dtypes(torch, dtype, chip, monkeypatch):
    """Both the instruction and the emulation for older chips, on values around every representable one."""
    bits = np.arange(1 << WIDTH[dtype], dtype=f"uint{WIDTH[dtype]}").view(DTYPES[dtype].numpy)
    exact = bits.astype(np.float32)
    ulps = np.arange(-2, 3)[:, None]
    with np.errstate(all="ignore"):
        between = (exact[:-1].astype(np.float64) + exact[1:]).astype(np.float32) / 2
        near = [(v.view(np.int32) + ulps).astype(np.int32).view(np.float32).ravel() for v in (exact, between)]
    values = np.concatenate([*near, np.float32([0, -0.0, 1e-45, 1e30, -1e30, np.inf, -np.inf, np.nan])])
    values = np.concatenate([values, np.zeros(-len(values) % 128, np.float32)])
    x, y = torch.from_numpy(values).cuda(), torch.zeros(len(values), dtype=torch.float32, device="cuda")
    if chip:
        from tilec.runtime.cuda.device import memory

        monkeypatch.setattr(memory, "chip_number", lambda: 80)
        monkeypatch.setattr(compile_server, "ask", lambda *request: None)  # another process knows nothing of this
    body = "at = (int64(cuda.blockIdx.x) * 128 + tid) * 4\n"
    body += f"store_f32(y + at, round_{dtype}(load_f32(x + at)))"
    names = ("load_f32", "store_f32", f"round_{dtype}")
    run(kernel(body, *names, parameters="x, y"), x.data_ptr(), y.data_ptr(), grid=(len(values) // 128, 1, 1))
    with np.errstate(all="ignore"):
        expected = values.astype(DTYPES[dtype].numpy).astype(np.float32)
    np.testing.assert_array_equal(y.cpu().numpy(), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("target", ["bf16", "f16"])
@pytest.mark.parametrize("source", ["i8", "u8", "f8e4m3", "f8e5m2"])
def test_gpu_bytes_are_widened(torch, source, target):
    """Every number of 8 bits, 16 of them a thread."""
    body = "a = cuda.local.array(8, int32)\nload_i32x4(a, 0, x + tid * 16)\nshared_store_i32x4(a, 0, base + tid * 16)\n"
    body += "wide(a, 0, base + tid * 16)\nstore_i32x4(a, 0, y + tid * 32)\nstore_i32x4(a, 4, y + tid * 32 + 16)"
    names = ("widen", "load_i32x4", "shared_store_i32x4", "store_i32x4")
    values = np.arange(256, dtype=np.uint8)
    x, y = torch.from_numpy(values).cuda(), torch.zeros(128, dtype=torch.int32, device="cuda")
    text = kernel(SHARED + body, *names, parameters="x, y", before=f"wide = widen('{source}', '{target}', 1)")
    run(text, x.data_ptr(), y.data_ptr(), threads=16, shared=256)
    with np.errstate(all="ignore"):
        expected = values.view(DTYPES[source].numpy).astype(np.float32)
    np.testing.assert_array_equal(y.cpu().numpy().view(DTYPES[target].numpy).astype(np.float32), expected)


@pytest.mark.gpu
def test_gpu_dynamic_shared_memory_is_aligned(torch):
    from tilec.runtime.cuda.driver import shared_limit

    y = torch.zeros(1, dtype=torch.int64, device="cuda")
    run(
        kernel(SHARED + "store_i64(y, base)", "store_i64", parameters="y"),
        y.data_ptr(),
        shared=shared_limit(),
    )
    assert y.item() % 1024 == 0


@pytest.mark.gpu
def test_gpu_math(torch):
    x = torch.linspace(-10, 10, 1024, device="cuda")
    for name in ("sin", "cos", "exp", "tanh", "erf", "expm1", "log1p"):
        y = torch.zeros_like(x)
        body = "for i in range(8):\n    at = (i * 128 + tid) * 4\n"
        body += f"    store_f32(y + at, {name}_f32(load_f32(x + at)))"
        run(
            kernel(body, f"{name}_f32", "load_f32", "store_f32", parameters="x, y"),
            x.data_ptr(),
            y.data_ptr(),
        )
        allowed = interval_functions.function(name, [intervals.point(x.double().cpu().numpy())], F32, "cuda")
        assert compare_array(y.cpu().numpy(), allowed).within, name


@pytest.mark.gpu
def test_gpu_tensor_map(torch):
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("no TMA")
    x = torch.arange(64 * 64, device="cuda", dtype=torch.float32).reshape(64, 64)
    y = torch.zeros(16, 32, device="cuda")
    body = """
if tid == 0:
    mbarrier_init(base, 1)
    mbarrier_fence()
cuda.syncthreads()
if tid == 0:
    mbarrier_expect(base, 2048)
    load(base + 1024, x, base, 8, 4)
mbarrier_wait(base, 0)
for i in range(4):
    store_f32(y + (i * 128 + tid) * 4, shared_load_f32(base + 1024 + (i * 128 + tid) * 4))
"""
    names = "mbarrier_init mbarrier_fence mbarrier_expect mbarrier_wait tma_load store_f32"
    names += " shared_load_f32"
    source = kernel(SHARED + body, *names.split(), before="load = tma_load(2)", parameters="x, y")
    described = TiledMap(0, "f32", (64, 64), (16, 32), item_bytes=4).encode(x.data_ptr())
    run(source, described, y.data_ptr(), shared=4096, kinds=["tensor_map", "i64"])
    assert torch.equal(y, x[4:20, 8:40])


@pytest.mark.gpu
def test_gpu_launches(torch):
    """Streams, threads, host time, timing, and errors."""
    import threading
    import time

    from tilec.runtime.cuda.launch import time_kernel

    x, y = torch.randn(128, device="cuda"), torch.zeros(128, device="cuda")
    launcher = run(COPY, x.data_ptr(), y.data_ptr())
    torch.cuda.synchronize()
    assert torch.equal(x, y)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert current_stream() == side.cuda_stream == stream_handle(side)
    outputs = [torch.zeros(128, device="cuda") for _ in range(8)]

    def work(out):
        for _ in range(200):
            launcher.launch(0, x.data_ptr(), out.data_ptr())

    workers = [threading.Thread(target=work, args=(o,)) for o in outputs]
    [w.start() for w in workers]
    [w.join() for w in workers]
    torch.cuda.synchronize()
    assert all(torch.equal(o, x) for o in outputs)
    pointers = x.data_ptr(), y.data_ptr()
    best = float("inf")
    for _ in range(20):
        begin = time.perf_counter()
        for _ in range(100):
            launcher.launch(0, *pointers)
        best = min(best, (time.perf_counter() - begin) / 100)
        torch.cuda.synchronize()
    print(f"launch: {best * 1e6:.2f} us")
    assert best < 20e-6
    seconds = time_kernel(lambda s: launcher.launch(s, *pointers), repeats=5)
    assert len(seconds) == 5 and all(0 < s < 1e-2 for s in seconds)
    with pytest.raises(cuda_driver.CudaError, match="larger than this GPU allows"):
        run(COPY, *pointers, shared=1 << 20)
    assert cuda_driver.device_info().devices[0].chip == cuda_driver.chip_of()


@pytest.mark.gpu
def test_gpu_faults_are_reported(torch):
    code = (
        f"from tilec.runtime.cuda.compile import compile_kernel\nimport tilec.runtime.cuda.launch as l\n"
        f"from tilec.runtime.cuda import driver as d\nsource = {COPY!r}\n"
        "c = compile_kernel(source, 'kernel', d.chip_of(), 128)\n"
        "k = l.Kernel(c.image, 'kernel', ['i64', 'i64'])\n"
        "l.Launcher(k, (1, 1, 1), (128, 1, 1)).launch(0, 8, 8)\n"
        "try:\n    d.synchronize_stream(0)\nexcept d.KernelFault as e:\n    print('told', e)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=False)
    assert "told" in done.stdout and "compute-sanitizer" in done.stdout, done.stderr
