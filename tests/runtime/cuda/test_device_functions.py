"""Every device function compiles for every chip it is for, without spills or stack (on a GPU, `test_cuda_launch` runs them)."""

import pytest

pytest.importorskip("numba_cuda_mlir")
pytest.importorskip("cuda.core")

from tools.cuda_kernels import CHIPS, SHARED, check, kernel

from tilec.runtime.cuda.device import asynchronous, matrix, scalar
from tilec.runtime.cuda.device.memory import WIDTH, in_array


@pytest.mark.parametrize("dtype", WIDTH)
def test_scalar_access(dtype):
    size = WIDTH[dtype] // 8
    names = [f"{s}{a}_{dtype}" for s in ("", "shared_") for a in ("load", "store")] + [f"load_{dtype}_nc"]
    body = f"""
shared_store_{dtype}(base + tid * {size}, load_{dtype}(x + tid * {size}))
cuda.syncthreads()
store_{dtype}(y + tid * {size}, shared_load_{dtype}(base + (tid ^ 1) * {size}))
store_{dtype}(y + 4096 + tid * {size}, load_{dtype}_nc(x + 4096 + tid * {size}))
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
a = cuda.local.array({4 * count}, {array})
load_{v}(a, 0, x + tid * {size})
load_{v}_nc(a, {count}, x + 4096 + tid * {size})
load_{v}_nc(a, {2 * count}, x + 8192 + tid * {size})
load_{v}_nc_where(a, {3 * count}, x + 12288 + tid * {size}, tid < n)
shared_store_{v}(a, 0, base + tid * {size})
cuda.syncthreads()
shared_load_{v}(a, 0, base + (tid ^ 1) * {size})
for i in range({count}):
    a[i] = a[i] + a[i + {count}] + a[i + {3 * count}]
store_{v}(a, 0, y + tid * {size})
store_{v}(a, {2 * count}, y + 4096 + tid * {size})
"""
    names += [f"load_{v}_nc", f"load_{v}_nc_where", array]
    cubin = check(kernel(SHARED + body, *names), ("sm_80", "sm_90a"))
    body = f"a = cuda.local.array({2 * count}, {array})\n"
    for n, hint in enumerate(("again", "last")):
        body += f"load_{v}_nc_{hint}(a, {n * count}, x + {4096 * n} + tid * {size})\n"
        body += f"store_{v}(a, {n * count}, y + {4096 * n} + tid * {size})\n"
    text = kernel(body, f"load_{v}_nc_again", f"load_{v}_nc_last", f"store_{v}", array)
    assert check(text, ("sm_90a",)).ptx.count("ld.global.nc.L2::cache_hint") == 2
    assert "cache_hint" not in check(text, ("sm_80",)).ptx
    whole = {4: r"b32", 8: ("v2.b32", "b64"), 16: ("v4.b32", "v2.b64")}[size]
    expected = [f"ld.global.nc.{w}" for w in ([whole] if isinstance(whole, str) else whole)]
    assert any(e in cubin.ptx for e in expected), "not one access"
    assert any(f"@p {e}" in cubin.ptx for e in expected), "not predicated"


@pytest.mark.parametrize("function", [*scalar._LIBDEVICE, *scalar._LIBDEVICE_2])
def test_accurate_functions(function):
    for dtype in ("f32", "f64"):
        value = f"load_{dtype}(x + tid * 8)"
        values = f"{value}, {value}" if function in scalar._LIBDEVICE_2 else value
        body = f"store_{dtype}(y + tid * 8, {function}_{dtype}({values}))"
        names = [f"{function}_{dtype}", f"load_{dtype}", f"store_{dtype}"]
        # The slow path of the trigonometric functions keeps a table of 2/pi products on the stack.
        cubin = check(kernel(body, *names), ("sm_90a",), allow=("stack",))
        assert not cubin.stack or function in ("sin", "cos", "tan", "tgamma", "lgamma", "pow")
        if function not in ("exp2",):
            assert "ex2.approx.f32" not in cubin.ptx and "tanh.approx" not in cubin.ptx


def test_scalar_instructions():
    three = ["v", "load_f32(x + 4)", "load_f32(x + 8)"]
    calls = [f"store_f32(y, {n}({', '.join(three[: len(row[1])])}))" for n, row in scalar._PTX.items()]
    body = "v = load_f32(x)\n" + "\n".join(calls)
    check(kernel(body, "load_f32", "store_f32", *scalar._PTX), (*CHIPS, "sm_100a"))
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
    names = "load_f64 store_f64 store_f32 fma_f64 fma_f32 maximum_f64 minimum_f64 bits_f64 from_bits_f64"
    names += " is_nan_f64 not_equal_f64 not_equal_f32 is_nan_f32 bits_f32 from_bits_f32"
    cubin = check(kernel(body, *names.split(), *(f"round_{t}" for t in ("bf16", "f16", "f8e4m3", "f8e5m2"))))
    assert (
        "cvt.rn.bf16x2.f32" in cubin.ptx and "cvt.rn.bf16.f32" not in cubin.ptx
    )  # which is done elsewhere, and slowly


@pytest.mark.parametrize("mode", scalar._SHUFFLES)
def test_shuffles(mode):
    types = ("f32", "i32", "u32", "f64", "i64", "u64")
    body = "\n".join(f"store_{t}(y + tid * 8, shuffle_{mode}_{t}(load_{t}(x + tid * 8), 16))" for t in types)
    names = [f"{a}_{t}" for t in types for a in ("load", "store", f"shuffle_{mode}")]
    assert "shfl.sync" in check(kernel(body, *names), (*CHIPS, "sm_100a")).ptx


def test_synchronisation():
    body = """
if tid < 64:
    named_barrier_arrive(2, 128)
else:
    named_barrier(2, 128)
warp_barrier()
publish_i64(y + tid * 8, observe_i64(x))
"""
    check(kernel(body, "named_barrier", "named_barrier_arrive", "warp_barrier", "publish_i64", "observe_i64"))


def test_clusters():
    body = """
if tid == 0:
    mbarrier_init(base, 1)
    mbarrier_fence()
cluster_arrive()
cluster_wait()
there = map_shared(base + 64, cluster_rank() ^ 1)
mbarrier_expect(base, 512)
remote_store_async_f32(there + tid * 4, float32(cluster_count() + cluster_id()), map_shared(base, cluster_rank() ^ 1))
mbarrier_wait(base, 0)
mbarrier_arrive_remote(map_shared(base, 0))
cluster_arrive()
store_f32(y, shared_load_f32(base + 64))
"""
    names = [n for n in (*scalar.SCALAR, *asynchronous.ASYNC) if n in body.replace("(", " ").split()]
    check(kernel(SHARED + body, *names, "store_f32", "shared_load_f32", "map_shared", "cluster_rank", "cluster_count"), ("sm_90a",))


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
cuda.syncthreads()
store_f32(y, shared_load_f32(base + 16))
"""
    names = "cp_async_16 cp_async_8 cp_async_4 cp_async_commit cp_async_wait cp_async_arrive"
    names += " mbarrier_init"
    before = "wait1, wait0 = cp_async_wait(1), cp_async_wait(0)"
    check(kernel(SHARED + body, *names.split(), "store_f32", "shared_load_f32", before=before))


@pytest.mark.parametrize("dtype", matrix._MMA)
def test_mma(dtype):
    element = "int32" if dtype in ("i8", "u8") else "float32"
    short = element[0] + "32"
    word, names = "int32", ["ldmatrix_x4", "ldmatrix_x2_trans"]
    load_a, load_b = "ldmatrix_x4(a, 0, base + {at})", "ldmatrix_x2_trans(b, 0, base + 2048 + {at})"
    if dtype == "tf32":  # its words are float32 numbers
        word, names = "float32", ["shared_load_f32"]
        load_a, load_b = (
            "; ".join(f"{v}[{i}] = shared_load_f32(base + {i * 2048} + {{at}})" for i in range(n))
            for v, n in (("a", 4), ("b", 2))
        )
    at = "tid * 16 + k * 4096"
    body = f"""
acc, a, b = cuda.local.array(4, {element}), cuda.local.array(4, {word}), cuda.local.array(2, {word})
for i in range(4):
    acc[i] = {element}(0)
for k in range(n):
    {load_a.format(at=at)}
    {load_b.format(at=at)}
    mma_{dtype}(acc, 0, a, 0, b, 0)
store_{short}x4(acc, 0, y + tid * 16)
"""
    chips = ("sm_89", "sm_90a") if dtype.startswith("f8") else (*CHIPS, "sm_120a")
    check(kernel(SHARED + body, *names, f"mma_{dtype}", f"store_{short}x4"), chips)


def test_packing():
    body = """
a = cuda.local.array(4, int32)
a[0], a[1] = pack_bf16(load_f32(x), load_f32(x + 4)), pack_f16(load_f32(x), load_f32(x + 4))
a[2], a[3] = bits_f32(round_tf32(load_f32(x))), 0
store_i32x4(a, 0, y + tid * 16)
"""
    names = "pack_bf16 pack_f16 round_tf32 bits_f32 load_f32 store_i32x4"
    check(kernel(SHARED + body, *names.split()), ("sm_90a",))


@pytest.mark.parametrize("source", ["i8", "u8", "f8e4m3", "f8e5m2"])
def test_bytes_are_widened(source):
    body = """
a = cuda.local.array(32, int32)
to_bf16(a, 0, base + tid * 16)
to_f16(a, 1, base + tid * 16)
words(a, 16, base + 4096 + tid * 16)
words(a, 17, base + 8192 + tid * 16)
for i in range(6):
    store_i32x4(a, 4 * i, y + tid * 96 + i * 16)
"""
    before = f"to_bf16, to_f16, words = widen('{source}', 'bf16', 2), widen('{source}', 'f16', 2), shared_words(2)"
    chips = ("sm_80", "sm_90a") if source[0] != "f" else ("sm_89", "sm_90a")
    check(kernel(SHARED + body, "widen", "shared_words", "store_i32x4", before=before), chips)


@pytest.mark.parametrize("source", ["i8", "u8", "i16", "u16"])
def test_short_integers_become_floats_by_their_bits(source):
    """Without the conversion's own instruction, which is slow."""
    body = f"store_f32(y + tid * 4, f32_from_{source}(load_{source}(x + tid * {int(source[1:]) // 8})))"
    cubin = check(kernel(body, f"f32_from_{source}", f"load_{source}", "store_f32"))
    assert "cvt.rn.f32" not in cubin.ptx


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
    cubin = check(kernel(SHARED + body, "wgmma", "wgmma_wait", f"store_{short}x4", before=before), ("sm_90a",))
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
    loads = "".join(f"        load{r}(base + 1024, x, base, {', '.join('0' * r)})\n" for r in range(1, 6))
    body = f"""
if tid == 0:
    mbarrier_init(base, 1)
    mbarrier_fence()
cuda.syncthreads()
if tid >= 128:
    more()
    mbarrier_wait(base, 0)
    mbarrier_arrive(base + 8)
else:
    fewer()
    if tid == 0:
        mbarrier_expect(base, 4096)
{loads}        many(base + 1024, x, base, 0, n, 3)
cuda.syncthreads()
fence_async_shared()
if tid == 0:
    store2(x, base + 1024, 0, 0)
    bulk_commit()
    wait_read()
"""
    before = "".join(f"load{r} = tma_load({r})\n" for r in range(1, 6))
    before += "many, store2, wait_read = tma_load(2, multicast=True), tma_store(2), bulk_wait(0)\n"
    before += "more, fewer = set_registers(240, more=True), set_registers(40, more=False)"
    names = [n for n in asynchronous.ASYNC if f"{n}(" in body]
    names += ["tma_load", "tma_store", "bulk_wait", "set_registers"]
    source = kernel(SHARED + body, *names, before=before)
    cubin = check(source, ("sm_90a", "sm_100a"), threads=384, parameters=("tensor_map", "i64", "i32"))
    assert (
        ".param .align 64 .b8 kernel_param_0[128]" in cubin.ptx
        and "ld.param.u64 \t%rd1, [kernel_param_0]" not in cubin.ptx
    )
