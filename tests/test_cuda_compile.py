"""Every device function compiles for every chip it is for, without spills or stack; on a GPU, it also does
the right thing."""

import os
import struct
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("numba_cuda_mlir")
pytest.importorskip("cuda.core")

from tilec.runtime import cache, cuda_async, cuda_matrix, cuda_scalar
from tilec.runtime.cuda_compile import CompileError, ResourceError, cached_kernel, compile_kernel
from tilec.runtime.cuda_launch import Kernel, Launcher, current_stream, parameter_format, stream_handle
from tilec.runtime.cuda_memory import WIDTH, in_array

from tilec.dtypes import DTYPES

CHIPS = ("sm_80", "sm_90a")
BASICS = "cuda, int8, int32, int64, float32, float64, shared_address"


def kernel(body: str, *names: str, before: str = "", parameters: str = "x, y, n") -> str:
    """The module text of a kernel as it is emitted: imports, then parametrised functions, then the kernel."""
    lines = [f"    {line}" for line in body.strip().splitlines()]
    imports = ", ".join(dict.fromkeys([*BASICS.split(", "), *names]))
    return "\n".join(
        [
            f"from tilec.runtime.cuda_intrinsics import {imports}",
            before,
            f"def kernel({parameters}):",
            "    tid = int64(cuda.threadIdx.x)",
            *lines,
            "",
        ]
    )


def check(source: str, chips=CHIPS, threads: int = 128, **options):
    cubins = [compile_kernel(source, "kernel", chip, threads, **options) for chip in chips]
    assert all(c.image.startswith(b"\x7fELF") and c.registers > 0 for c in cubins)
    return cubins[-1]


SHARED = "base = shared_address(cuda.shared.array(0, int8))\n"


@pytest.mark.parametrize("dtype", WIDTH)
def test_scalar_access(dtype):
    size = WIDTH[dtype] // 8
    hints = [f"load_{dtype}_nc", f"load_{dtype}_stream", f"store_{dtype}_stream"]
    names = [f"{s}{a}_{dtype}" for s in ("", "shared_") for a in ("load", "store")] + ["barrier", *hints]
    body = f"""
shared_store_{dtype}(base + tid * {size}, load_{dtype}(x + tid * {size}))
barrier()
store_{dtype}(y + tid * {size}, shared_load_{dtype}(base + (tid ^ 1) * {size}))
store_{dtype}_stream(y + 4096 + tid * {size}, load_{dtype}_nc(x + 4096 + tid * {size}))
store_{dtype}_stream(y + 8192 + tid * {size}, load_{dtype}_stream(x + 8192 + tid * {size}))
"""
    check(kernel(SHARED + body, *names), (*CHIPS, "sm_89", "sm_100a"))


@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("dtype", WIDTH)
def test_vector_access(dtype, size):
    count = size * 8 // WIDTH[dtype]
    if not count:
        return
    v, element = f"{dtype}x{count}", in_array(dtype)
    array = {"f": "float", "i": "int", "u": "uint"}[element[0]] + element[1:]
    names = [f"{s}{a}_{v}" for s in ("", "shared_") for a in ("load", "store")]
    body = f"""
a = cuda.local.array({3 * count}, {array})
load_{v}(a, 0, x + tid * {size})
load_{v}_nc(a, {count}, x + 4096 + tid * {size})
load_{v}_stream(a, {2 * count}, x + 8192 + tid * {size})
shared_store_{v}(a, 0, base + tid * {size})
barrier()
shared_load_{v}(a, 0, base + (tid ^ 1) * {size})
for i in range({count}):
    a[i] = a[i] + a[i + {count}]
store_{v}(a, 0, y + tid * {size})
store_{v}_stream(a, {2 * count}, y + 4096 + tid * {size})
"""
    names += [f"load_{v}_nc", f"load_{v}_stream", f"store_{v}_stream", "barrier", array]
    cubin = check(kernel(SHARED + body, *names), ("sm_80", "sm_90a"))
    whole = {4: r"b32", 8: ("v2.b32", "b64"), 16: ("v4.b32", "v2.b64")}[size]
    expected = [f"ld.global.nc.{w}" for w in ([whole] if isinstance(whole, str) else whole)]
    assert any(e in cubin.ptx for e in expected), "not one access"


@pytest.mark.parametrize("function", [*cuda_scalar._LIBDEVICE, *cuda_scalar._LIBDEVICE_2])
def test_accurate_functions(function):
    for dtype in ("f32", "f64"):
        value = f"load_{dtype}(x + tid * 8)"
        values = f"{value}, {value}" if function in cuda_scalar._LIBDEVICE_2 else value
        body = f"store_{dtype}(y + tid * 8, {function}_{dtype}({values}))"
        names = [f"{function}_{dtype}", f"load_{dtype}", f"store_{dtype}"]
        # The slow path of the trigonometric functions keeps a table of 2/pi products on the stack.
        cubin = check(kernel(body, *names), ("sm_90a",), allow=("stack",))
        assert not cubin.stack or function in ("sin", "cos", "tan", "tgamma", "lgamma", "pow")
        if function not in ("exp2",):
            assert "ex2.approx.f32" not in cubin.ptx and "tanh.approx" not in cubin.ptx


def test_scalar_instructions():
    three = ["v", "load_f32(x + 4)", "load_f32(x + 8)"]
    calls = [f"store_f32(y, {n}({', '.join(three[: len(row[1])])}))" for n, row in cuda_scalar._PTX.items()]
    body = "v = load_f32(x)\n" + "\n".join(calls)
    check(kernel(body, "load_f32", "store_f32", *cuda_scalar._PTX), (*CHIPS, "sm_100a"))
    body = """
v = load_f64(x)
w = from_bits_f64(bits_f64(fma_f64(maximum_f64(v, v + 1.0), minimum_f64(v, v * v), v)) ^ 1)
if is_nan_f64(v) or not_equal_f64(v, w):
    store_f64(y, w)
u = float32(v)
if is_nan_f32(u) or not_equal_f32(u, fma_f32(u, u, u)):
    store_f32(y + 8, from_bits_f32(bits_f32(u) ^ 1))
store_f32(y + 16, round_bf16(u) + round_f16(u) + round_f8e4m3(u) + round_f8e5m2(u))
"""
    names = "load_f64 store_f64 store_f32 fma_f64 fma_f32 maximum_f64 minimum_f64 bits_f64 from_bits_f64 is_nan_f64"
    names += " not_equal_f64 not_equal_f32 is_nan_f32 bits_f32 from_bits_f32"
    check(kernel(body, *names.split(), *(f"round_{t}" for t in ("bf16", "f16", "f8e4m3", "f8e5m2"))))


@pytest.mark.parametrize("mode", cuda_scalar._SHUFFLES)
def test_shuffles(mode):
    types = ("f32", "i32", "u32", "f64", "i64", "u64")
    body = "\n".join(f"store_{t}(y + tid * 8, shuffle_{mode}_{t}(load_{t}(x + tid * 8), 16))" for t in types)
    names = [f"{a}_{t}" for t in types for a in ("load", "store", f"shuffle_{mode}")]
    assert "shfl.sync" in check(kernel(body, *names), (*CHIPS, "sm_100a")).ptx


def test_synchronisation():
    body = """
barrier()
barrier_any()
if tid < 64:
    named_barrier_arrive(2, 128)
else:
    named_barrier(2, 128)
warp_barrier()
old = atomic_add_i32(x, 1)
fence_gpu()
store_release_i32(y + old * 4, load_acquire_i32(x + 8) + lane_id())
"""
    names = "barrier barrier_any named_barrier named_barrier_arrive warp_barrier atomic_add_i32 fence_gpu"
    check(kernel(body, *names.split(), "store_release_i32", "load_acquire_i32", "lane_id"))


def test_clusters():
    body = """
if tid == 0:
    mbarrier_init(base, 1)
    mbarrier_fence()
cluster_arrive_relaxed()
cluster_wait()
there = map_shared(base + 64, cluster_rank() ^ 1)
remote_store_f32(there + tid * 4, float32(cluster_size() + cluster_id()))
mbarrier_expect(base, 512)
remote_store_async_f32(there + 512 + tid * 4, float32(1), map_shared(base, cluster_rank() ^ 1))
mbarrier_wait(base, 0)
mbarrier_arrive_remote(map_shared(base, 0))
cluster_arrive()
store_f32(y, remote_load_f32(there))
"""
    names = [n for n in (*cuda_scalar.SCALAR, *cuda_async.ASYNC) if n in body.replace("(", " ").split()]
    check(
        kernel(SHARED + body, *names, "store_f32", "map_shared", "cluster_rank", "cluster_size"), ("sm_90a",)
    )


def test_cp_async():
    body = """
mbarrier_init(base + 16384, 128)
cp_async_16(base + tid * 16, x + tid * 16, 16)
cp_async_8(base + 4096 + tid * 16, x + tid * 16, 8 if tid < n else 0)
cp_async_4(base + 8192 + tid * 16, x + tid * 16, 4)
cp_async_commit()
wait1()
wait0()
cp_async_arrive(base + 16384)
barrier()
store_f32(y, shared_load_f32(base + 16))
"""
    names = "cp_async_16 cp_async_8 cp_async_4 cp_async_commit cp_async_wait cp_async_arrive mbarrier_init barrier"
    before = "wait1, wait0 = cp_async_wait(1), cp_async_wait(0)"
    check(kernel(SHARED + body, *names.split(), "store_f32", "shared_load_f32", before=before))


@pytest.mark.parametrize("dtype", cuda_matrix._MMA)
def test_mma(dtype):
    element = "int32" if dtype in ("i8", "u8") else "float32"
    short = element[0] + "32"
    body = f"""
acc, a, b = cuda.local.array(4, {element}), cuda.local.array(4, int32), cuda.local.array(2, int32)
for i in range(4):
    acc[i] = {element}(0)
for k in range(n):
    ldmatrix_x4(a, 0, base + tid * 16 + k * 4096)
    ldmatrix_x2_trans(b, 0, base + 2048 + tid * 16 + k * 4096)
    mma_{dtype}(acc, 0, a, 0, b, 0)
store_{short}x4(acc, 0, y + tid * 16)
"""
    chips = ("sm_89", "sm_90a") if dtype.startswith("f8") else (*CHIPS, "sm_120a")
    check(
        kernel(SHARED + body, "ldmatrix_x4", "ldmatrix_x2_trans", f"mma_{dtype}", f"store_{short}x4"), chips
    )


def test_stmatrix_and_packing():
    body = """
a = cuda.local.array(4, int32)
a[0], a[1] = pack_bf16(load_f32(x), load_f32(x + 4)), pack_f16(load_f32(x), load_f32(x + 4))
a[2], a[3] = round_tf32(load_f32(x)), 0
stmatrix_x4(a, 0, base + tid * 16)
stmatrix_x4_trans(a, 0, base + 4096 + tid * 16)
"""
    names = "pack_bf16 pack_f16 round_tf32 stmatrix_x4 stmatrix_x4_trans load_f32"
    check(kernel(SHARED + body, *names.split()), ("sm_90a",))


WGMMA = """
acc = cuda.local.array({count}, {element})
for i in range({count}):
    acc[i] = {element}(0)
step = int64(1) << 16 | int64(64) << 32 | int64(1) << 62
for k in range(n):
    multiply(acc, 0, {a}step | ((base + 65536 + k * 16384) >> 4), int32(1))
    wait(acc, 0{words})
for i in range({count} // 4):
    store_{short}x4(acc, 4 * i, y + tid * {count} * 4 + i * 16)
"""


@pytest.mark.parametrize(
    ("dtype", "n"),
    [("bf16", 256), ("bf16", 64), ("f16", 128), ("tf32", 128), ("f8e4m3", 128), ("f8e5m2", 8), ("i8", 64)],
)
def test_wgmma(dtype, n):
    element = "int32" if dtype == "i8" else "float32"
    short = element[0] + "32"
    a = "step | ((base + k * 16384) >> 4), "
    body = WGMMA.format(count=n // 2, element=element, short=short, a=a, words="")
    before = f"multiply, wait = wgmma('{dtype}', {n}, steps=4), wgmma_wait(0, {n // 2}, '{short}')"
    cubin = check(
        kernel(SHARED + body, "wgmma", "wgmma_wait", f"store_{short}x4", before=before), ("sm_90a",)
    )
    assert cubin.registers < n // 2 + 64


def test_wgmma_with_a_in_registers():
    loads = "".join(f"    ldmatrix_x4(a, {4 * i}, base + tid * 16 + {2048 * i})\n" for i in range(4))
    body = WGMMA.format(count=64, element="float32", short="f32", a="a, 0, ", words=", a, 0")
    body = body.replace("    multiply", loads + "    multiply").replace(
        "step =", "a = cuda.local.array(16, int32)\nstep ="
    )
    before = "multiply = wgmma('bf16', 128, steps=4, registers=True, transpose_b=True, step_b=128)\n"
    before += "wait = wgmma_wait(0, 64, words=16)"
    names = "wgmma wgmma_wait ldmatrix_x4 store_f32x4"
    check(kernel(SHARED + body, *names.split(), before=before), ("sm_90a",))


def test_tma_and_registers():
    loads = "".join(f"            load{r}(base + 1024, x, base, {', '.join('0' * r)})\n" for r in range(1, 6))
    body = f"""
if tid == 0:
    tma_prefetch(x)
    mbarrier_init(base, 1)
    mbarrier_fence()
barrier()
if tid >= 128:
    more()
    mbarrier_wait(base, 0)
    mbarrier_arrive(base + 8)
else:
    fewer()
    if tid < 32:
        if elect() != 0:
            mbarrier_expect(base, 4096)
{loads}            many(base + 1024, x, base, 0, n, 3)
            bulk_load(base + 8192, y, 1024, base)
barrier()
fence_async_shared()
if tid == 0:
    store2(x, base + 1024, 0, 0)
    bulk_store(y, base + 1024, 512)
    bulk_commit()
    wait_read()
    mbarrier_invalidate(base)
"""
    before = "".join(f"load{r} = tma_load({r})\n" for r in range(1, 6))
    before += "many, store2, wait_read = tma_load(2, multicast=True), tma_store(2), bulk_wait(0)\n"
    before += "more, fewer = set_registers(240, more=True), set_registers(40, more=False)"
    names = [n for n in cuda_async.ASYNC if f"{n}(" in body]
    source = kernel(
        SHARED + body, *names, *["tma_load", "tma_store", "bulk_wait", "set_registers", "barrier"], before=before
    )
    cubin = check(source, ("sm_90a", "sm_100a"), threads=384, parameters=("tensor_map", "i64", "i32"))
    assert (
        ".param .align 64 .b8 kernel_param_0[128]" in cubin.ptx
        and "ld.param.u64 \t%rd1, [kernel_param_0]" not in cubin.ptx
    )


# The compiler


COPY = kernel("store_f32(y + tid * 4, load_f32(x + tid * 4))", "load_f32", "store_f32", parameters="x, y")


def test_names_and_shared_memory_are_as_declared():
    cubin = check(kernel(SHARED + "store_i64(y, base)", "store_i64"), ("sm_90a",))
    assert cubin.entry == "kernel" and ".entry kernel(" in cubin.ptx and cubin.shared == 0
    assert ".extern .shared .align 1024" in cubin.ptx
    assert ".maxntid 128, 1, 1" in cubin.ptx


def test_scalar_parameters():
    source = kernel("store_f32(y, a * float32(n))", "store_f32", parameters="y, a, n")
    assert ".param .f32" in check(source, parameters=("i64", "f32", "i32")).ptx


def test_slow_kernels_are_refused():
    body = """
a = cuda.local.array(64, float32)
for i in range(64):
    a[i] = float32(0)
for i in range(n):
    a[load_i32(x + i * 4)] += float32(1)
for i in range(64):
    store_f32(y + i * 4, a[i])
"""
    source = kernel(body, "load_i32", "store_f32")
    with pytest.raises(ResourceError, match="stack frame of 256 bytes") as error:
        compile_kernel(source, "kernel", "sm_90a", 128)
    assert error.value.cubin.stack == 256 and error.value.cubin.faults == ("stack",)
    assert compile_kernel(source, "kernel", "sm_90a", 128, allow=("stack",)).stack == 256
    loop = "a = cuda.local.array(96, float32)\nfor i in range(96):\n    a[i] = load_f32(x + i * 4)\n"
    loop += "barrier()\nfor i in range(96):\n    store_f32(y + i * 4, a[i])"
    with pytest.raises(ResourceError, match="spills"):
        compile_kernel(
            kernel(loop, "load_f32", "store_f32", "barrier"), "kernel", "sm_90a", 128, max_registers=32
        )


def test_serialised_wgmma_is_refused():
    body = """
acc = cuda.local.array(4, float32)
multiply(acc, 0, x, y, int32(0))
store_f32(y, acc[0])
"""
    before = "multiply = wgmma('bf16', 8)"
    with pytest.raises(ResourceError, match="C75"):
        compile_kernel(kernel(body, "wgmma", "store_f32", before=before), "kernel", "sm_90a", 128)


def test_wrong_sources_say_why():
    with pytest.raises(CompileError, match="no_such_name"):
        compile_kernel(kernel("no_such_name(x)"), "kernel", "sm_90a", 128)
    with pytest.raises(CompileError, match="has no attribute|cannot import"):
        compile_kernel(kernel("pass", "load_f33"), "kernel", "sm_90a", 128)
    with pytest.raises(CompileError, match="does not assemble"):
        check(kernel("multiply(x, y)", "ptx", before="multiply = ptx('multiply', 'nonsense $0, $1;', 'll')"))
    with pytest.raises(ValueError, match="too old"):
        compile_kernel(COPY, "kernel", "sm_75", 128)
    with pytest.raises(ValueError, match="not a chip"):
        compile_kernel(COPY, "kernel", "h100", 128)
    for name in ("shared_load_f32_nc", "store_f32_nc"):
        with pytest.raises(CompileError):
            compile_kernel(kernel("pass", name), "kernel", "sm_90a", 128)


def test_the_cache_gives_the_same_cubin(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    first, hit = cached_kernel(COPY, "kernel", "sm_90a", 128, parameters=("i64", "i64"))
    assert not hit
    again, hit = cached_kernel(COPY, "kernel", "sm_90a", 128, parameters=("i64", "i64"))
    assert hit and again == first
    assert not cached_kernel(COPY, "kernel", "sm_80", 128, parameters=("i64", "i64"))[1]
    next((tmp_path / "cache" / "entries").glob("*.bin")).write_bytes(b"bad")
    assert cached_kernel(COPY, "kernel", "sm_90a", 128, parameters=("i64", "i64"))[0].entry == "kernel"


def test_imports_are_lazy():
    code = (
        "import sys, tilec.runtime.cuda_intrinsics, tilec.runtime.cuda_compile, tilec.runtime.cuda_launch\n"
    )
    code += "print([m for m in ('numba_cuda_mlir', 'cuda', 'torch', 'numba') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_parameter_layout():
    assert struct.calcsize(parameter_format(("i64", "i32", "f64"))) == 24
    assert struct.calcsize(parameter_format(("i64", "tensor_map", "i32"))) == 64 + 128 + 4
    assert parameter_format(("i32", "i64")) == "<i4xq"


def test_stream_handles():
    class Protocol:
        def __cuda_stream__(self):
            return 0, 77

    class Torch:
        cuda_stream = 78

    assert [stream_handle(s) for s in (5, Protocol(), Torch())] == [5, 77, 78]
    with pytest.raises(TypeError, match="no CUDA stream"):
        stream_handle("text")


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
    from tilec.runtime.cuda_driver import chip_of

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


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", WIDTH)
def test_gpu_copies(torch, dtype):
    """Load and store, scalar and vector, through registers and shared memory, give the same values back."""
    size, count = WIDTH[dtype] // 8, 16 * 8 // WIDTH[dtype]
    x = random_bits(torch, dtype, 128 * count)
    element = in_array(dtype)
    array = {"f": "float", "i": "int", "u": "uint"}[element[0]] + element[1:]
    vector = f"""
a = cuda.local.array({count}, {array})
load_{dtype}x{count}{{hint}}(a, 0, x + tid * 16)
shared_store_{dtype}x{count}(a, 0, base + tid * 16)
shared_load_{dtype}x{count}(a, 0, base + tid * 16)
store_{dtype}x{count}{{end}}(a, 0, y + tid * 16)
"""
    scalar = f"for i in range({count}):\n    at = (i * 128 + tid) * {size}\n"
    scalar += f"    store_{dtype}{{end}}(y + at, load_{dtype}{{hint}}(x + at))"
    for hint, end in (("", ""), ("_nc", "_stream"), ("_stream", "_stream")):
        for body in (vector, scalar):
            y = torch.zeros_like(x)
            text = body.format(hint=hint, end=end)
            names = {
                w.split("(")[0] for w in text.replace("(", "( ").split() if "load_" in w or "store_" in w
            }
            run(
                kernel(SHARED + text, *names, array, parameters="x, y"),
                x.data_ptr(),
                y.data_ptr(),
                shared=2048,
            )
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
        from tilec.runtime import cuda_memory

        monkeypatch.setattr(cuda_memory, "chip_number", lambda: 80)
        from tilec.runtime.cuda_define import _define

        _define.cache_clear()
    body = "at = (int64(cuda.blockIdx.x) * 128 + tid) * 4\n"
    body += f"store_f32(y + at, round_{dtype}(load_f32(x + at)))"
    names = ("load_f32", "store_f32", f"round_{dtype}")
    run(kernel(body, *names, parameters="x, y"), x.data_ptr(), y.data_ptr(), grid=(len(values) // 128, 1, 1))
    with np.errstate(all="ignore"):
        expected = values.astype(DTYPES[dtype].numpy).astype(np.float32)
    np.testing.assert_array_equal(y.cpu().numpy(), expected)


@pytest.mark.gpu
def test_gpu_dynamic_shared_memory_is_aligned(torch):
    from tilec.runtime.cuda_driver import shared_limit

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
        body = f"for i in range(8):\n    store_f32(y + (i * 128 + tid) * 4, {name}_f32(load_f32(x + (i * 128 + tid) * 4)))"
        run(
            kernel(body, f"{name}_f32", "load_f32", "store_f32", parameters="x, y"),
            x.data_ptr(),
            y.data_ptr(),
        )
        expected = getattr(torch, name)(x.double()).float()
        torch.testing.assert_close(y, expected, rtol=5e-7, atol=1e-7, equal_nan=True)


@pytest.mark.gpu
def test_gpu_tensor_map(torch):
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("no TMA")
    from tilec.runtime.cuda_launch import tensor_map

    x = torch.arange(64 * 64, device="cuda", dtype=torch.float32).reshape(64, 64)
    y = torch.zeros(16, 32, device="cuda")
    body = """
if tid == 0:
    mbarrier_init(base, 1)
    mbarrier_fence()
barrier()
if tid == 0:
    mbarrier_expect(base, 2048)
    load(base + 1024, x, base, 8, 4)
mbarrier_wait(base, 0)
for i in range(4):
    store_f32(y + (i * 128 + tid) * 4, shared_load_f32(base + 1024 + (i * 128 + tid) * 4))
"""
    names = "mbarrier_init mbarrier_fence mbarrier_expect mbarrier_wait barrier tma_load store_f32 shared_load_f32"
    source = kernel(SHARED + body, *names.split(), before="load = tma_load(2)", parameters="x, y")
    described = tensor_map(x.data_ptr(), "f32", (64, 64), (64, 1), (16, 32), item_bytes=4)
    run(source, described, y.data_ptr(), shared=4096, kinds=["tensor_map", "i64"])
    assert torch.equal(y, x[4:20, 8:40])


@pytest.mark.gpu
def test_gpu_launches(torch):
    """Streams, threads, host time, timing, and errors."""
    import threading
    import time

    from tilec.runtime import cuda_driver
    from tilec.runtime.cuda_launch import time_kernel

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
    with pytest.raises(cuda_driver.CudaError, match="more than this GPU takes"):
        run(COPY, *pointers, shared=1 << 20)
    assert cuda_driver.device_info().devices[0].chip == cuda_driver.chip_of()


@pytest.mark.gpu
def test_gpu_faults_are_told(torch):
    code = (
        f"from tilec.runtime.cuda_compile import compile_kernel\nimport tilec.runtime.cuda_launch as l\n"
        f"from tilec.runtime import cuda_driver as d\nsource = {COPY!r}\n"
        "c = compile_kernel(source, 'kernel', d.chip_of(), 128)\nk = l.Kernel(c.image, 'kernel', ['i64', 'i64'])\n"
        "l.Launcher(k, (1, 1, 1), (128, 1, 1)).launch(0, 8, 8)\n"
        "try:\n    d.synchronize_stream(0)\nexcept d.KernelFault as e:\n    print('told', e)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=False
    )
    assert "told" in done.stdout and "compute-sanitizer" in done.stdout, done.stderr


def test_bf16_rounds_like_ml_dtypes_on_the_host():
    """The reference of the GPU tests."""
    assert float(ml_dtypes.float8_e4m3fn(464.0)) == 448 and np.isnan(float(ml_dtypes.float8_e4m3fn(465.0)))
    assert np.isinf(float(ml_dtypes.float8_e5m2(61440.0)))
