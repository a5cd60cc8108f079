"""Faults of compilers below ours that were met, and what keeps kernels from them.

Each stands here as it can be reported (`docs/upstream/`). A test that is skipped with "mended" says what can be removed.
"""

import ctypes
import operator
import re

import llvmlite.binding as llvm
import numpy as np
import pytest
from tools import ROOT

import tilec
from tilec.core.dtypes import DTYPES
from tilec.runtime.cpu.masked_stores import without_single_masked_stores

BROKEN_LLVM = (22, 1, 0)  # of which it is known that it makes the fault
BROKEN_NVVM = "release 13.5"  # as its PTX says
FEATURES = llvm.get_host_cpu_features().flatten()
FILL = 0xAB
FOLDS = {"mov": int, "cvt": int, "and": operator.and_, "add": operator.add}
FOLDS |= {"shr": operator.rshift, "shl": operator.lshift}
"""What PTX's instructions do to small numbers that are not negative."""
TRUNCATIONS = [("i16", "i8", 8), ("i32", "i8", 4), ("i32", "i16", 16), ("i64", "i32", 2), ("i64", "i16", 8)]


def masked_store(source: str, result: str, lanes: int, lane: int) -> llvm.ModuleRef:
    """f(from, to): `lanes` numbers are truncated, and one of them is stored."""
    mask = ", ".join(f"i1 {'true' if n == lane else 'false'}" for n in range(lanes))
    return llvm.parse_assembly(f"""
        declare void @llvm.masked.store.v{lanes}{result}.p0(<{lanes} x {result}>, ptr, i32, <{lanes} x i1>)
        define void @f(ptr %from, ptr %to) {{
          %v = load <{lanes} x {source}>, ptr %from, align 1
          %t = trunc <{lanes} x {source}> %v to <{lanes} x {result}>
          call void @llvm.masked.store.v{lanes}{result}.p0(
              <{lanes} x {result}> %t, ptr %to, i32 1, <{lanes} x i1> <{mask}>)
          ret void
        }}""")


def run(module: llvm.ModuleRef, source: np.ndarray, result: np.ndarray) -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    host = {"cpu": llvm.get_host_cpu_name(), "features": FEATURES, "opt": 3}
    engine = llvm.create_mcjit_compiler(module, llvm.Target.from_default_triple().create_target_machine(**host))
    engine.finalize_object()
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(engine.get_function_address("f"))
    function(source.ctypes.data, result.ctypes.data)


def right(rewrite) -> list[bool]:
    found = []
    for source, result, lanes in TRUNCATIONS:
        for lane in (0, lanes - 1):
            numbers = np.arange(3, 3 + lanes).astype(f"i{int(source[1:]) // 8}")
            memory = np.full(8 * lanes + 64, FILL, np.uint8)
            expected = memory.copy()
            expected.view(f"i{int(result[1:]) // 8}")[lane] = numbers[lane]
            run(rewrite(masked_store(source, result, lanes, lane)), numbers, memory)
            found.append(np.array_equal(memory, expected))
    return found


def test_masked_stores_of_one_truncated_element_are_made_plain():
    assert all(right(without_single_masked_stores))


def test_other_masked_stores_stay():
    module = masked_store("i32", "i8", 8, 3)
    text = str(module).replace("i1 false, i1 false, i1 false, i1 true", "i1 false, i1 true, i1 false, i1 true")
    both = llvm.parse_assembly(text)
    assert without_single_masked_stores(both) is both
    assert "masked.store" not in str(without_single_masked_stores(module)).split("define")[1].split("declare")[0]


@pytest.mark.skipif("+avx512vl" not in FEATURES, reason="takes AVX-512 to show")
def test_llvm_stores_too_much_where_one_truncated_element_is_stored():
    """docs/upstream/llvm-masked-store.md."""
    found = right(lambda module: module)
    if tuple(llvm.llvm_version_info) == BROKEN_LLVM:
        assert not any(found)
    elif all(found):
        pytest.skip(
            f"mended in LLVM {llvm.llvm_version_info}: runtime/cpu/masked_stores.py can go once no other is used"
        )


@pytest.mark.parametrize("columns", [5, 9, 13])
def test_nothing_is_written_behind_narrow_results(columns):
    """Rows whose last element a vector of masked lanes stored."""
    names, rows = ("bf16", "f8e4m3", "f8e5m2", "i8"), 7
    results = ", ".join(f"{a}_{b}: {b}[M, N]" for a in "xy" for b in names)
    source = f"op f(x: f32[M, N], y: f64[M, N]) -> ({results}) {{\n"
    source += "\n".join(f"{a}_{b}[i, j] = {a}[i, j] * {a}[i, j]" for a in "xy" for b in names) + "\n}"
    x = np.random.default_rng(3).standard_normal((rows, columns))
    memory = [np.full(rows * columns * DTYPES[b].bytes + 32, FILL, np.uint8) for _ in "xy" for b in names]
    out = [m[:-32].view(DTYPES[b].numpy).reshape(rows, columns) for m, b in zip(memory, names * 2)]
    tilec.compile(source)(x.astype(np.float32), x, out=tuple(out))
    assert all((m[-32:] == FILL).all() for m in memory)
    assert all(np.array_equal(o, (x * x).astype(np.float32).astype(o.dtype)) for o in out[4:7])


def nvvm(text: str, arch: str) -> str:
    """PTX of NVVM IR, by libnvvm alone."""
    pathfinder = pytest.importorskip("cuda.pathfinder")
    try:
        library = ctypes.CDLL(pathfinder.load_nvidia_dynamic_lib("nvvm").abs_path)
    except pathfinder.DynamicLibNotFoundError as error:
        pytest.skip(f"no libnvvm: {error}")
    program, size, source = ctypes.c_void_p(), ctypes.c_size_t(), text.encode()
    assert library.nvvmCreateProgram(ctypes.byref(program)) == 0
    assert library.nvvmAddModuleToProgram(program, source, ctypes.c_size_t(len(source)), b"module") == 0
    options = (ctypes.c_char_p * 1)(f"-arch={arch}".encode())
    assert library.nvvmCompileProgram(program, 1, options) == 0
    assert library.nvvmGetCompiledResultSize(program, ctypes.byref(size)) == 0
    result = ctypes.create_string_buffer(size.value)
    assert library.nvvmGetCompiledResult(program, result) == 0
    library.nvvmDestroyProgram(ctypes.byref(program))
    return result.value.decode()


def test_nvvm_drops_a_logical_shift():
    """docs/upstream/nvvm-dropped-shift.md."""
    text = (ROOT / "docs/upstream/nvvm-dropped-shift.ll").read_text()
    ptx = nvvm(text, "compute_90")
    numbers = {int(n) for n in re.findall(r"xor\.b32\s+\S+, \S+, (\d+);", ptx)}
    right, wrong = ({f(8 * i + 5) for i in range(8)} for f in (lambda n: n >> 2, lambda n: n))
    assert numbers in (right, wrong)
    if BROKEN_NVVM in ptx:
        assert numbers == wrong
    elif numbers == right:
        pytest.skip("mended in this libnvvm: `keep_right_shifts` can go once no other is used")


def test_nvvm_takes_nan_of_constants_for_equal_to_itself():
    """docs/upstream/nvvm-nan-constant.md."""
    text = (ROOT / "docs/upstream/nvvm-nan-constant.ll").read_text()
    asked, beside_zero = (nvvm(t, "compute_90") for t in (text, text.replace("%v1, %v1", "%v1, 0.0")))
    assert "setp" in beside_zero
    assert "setp" in asked or re.search(r"mov\.u32\s+%r\d+, [12];", asked)
    if BROKEN_NVVM in asked:
        assert re.search(r"mov\.u32\s+%r\d+, 2;", asked)
    elif "setp" in asked or re.search(r"mov\.u32\s+%r\d+, 1;", asked):
        pytest.skip("mended in this libnvvm: runtime/cuda/nan_tests.py can go once no other is used")


def xored(ptx: str) -> set[int]:
    """The numbers that are xored with what a kernel loads: written there, or made of such as are."""
    known: dict[str, int] = {}
    found = set()
    for name, bits, to, operands in re.findall(r"\b(\w+)\.(?:[\w.]*\D)?(\d+)\s+(%\w+), ([^;{}]+);", ptx):
        numbers = [known.get(o, int(o) if o.lstrip("-").isdigit() else None) for o in operands.split(", ")]
        if name == "xor":
            found |= {n for n in numbers if n is not None}
        elif name in FOLDS and None not in numbers:
            known[to] = FOLDS[name](*numbers) % 2 ** int(bits)
    return found


@pytest.mark.parametrize("chip", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    "shifted, meant",
    [
        *((f"int32(uint{b}(int{b}(i * 8 + 5)) {q})", lambda i: 8 * i + 5 >> 2)
          for b, q in ((16, "// uint16(4)"), (32, "// uint32(4)"), (32, ">> uint32(2)"))),
        ("(within_i32((i * 32 + 53) & 1023) >> 3)", lambda i: 4 * i + 6),
        ("(within_i32(within_u31((i * 16 + 9) & 255) >> 1) >> 1)", lambda i: 4 * i + 2),
        ("(((i * 4 + 13) & 60) >> 2)", lambda i: i + 3),
        ("(within_u31((i * 16 + 9) & 255) >> 1 & 1023)", lambda i: 8 * i + 4),
        ("int64(uint32(int32(i * 8 + 5)) >> uint32(2))", lambda i: 8 * i + 5 >> 2),
        ("int64(uint64((i * 16 + 13) & 1099511627775) * uint64(8) // uint64(16) >> uint64(1))", lambda i: 16 * i + 13 >> 2),
        ("(((((i * 16 + 9) >> 3) * 32 >> 2) >> 1) >> 2)", lambda i: 2 * i + 1),
    ],
)  # fmt: skip
def test_kernels_keep_right_shifts(shifted, meant, chip):
    """Kernels as they are printed: unsigned types, which Numba takes to 64 bits, and indices, which are 64 bits."""
    pytest.importorskip("numba_cuda_mlir.cuda")
    from tools.cuda_kernels import kernel

    from tilec.runtime.cuda.compile import _to_ptx

    bits = 32 if shifted.startswith("int32") else 64
    body = f"""for i in range(8):
  for j in range(4):
    at = ((i * 4 + j) * 128 + tid) * 8
    store_i{bits}(y + at, {shifted} ^ load_i{bits}(x + at))"""
    names = ("uint16", "uint32", "uint64", "int16", "within_i32", "within_u31", f"load_i{bits}", f"store_i{bits}")
    ptx = _to_ptx(kernel(body, *names, parameters="x, y"), "kernel", chip, 128, None, 1)
    assert xored(ptx) | {0} == {meant(i) for i in range(8)} | {0}


def test_places_in_registers_stay_known():
    """An element's word is its place shifted by one: were that hidden from NVVM, the row would lie in local memory."""
    pytest.importorskip("numba_cuda_mlir.cuda")
    from tools.cuda_kernels import kernel

    from tilec.runtime.cuda.compile import compile_kernel

    body = """row = cuda.local.array(32, uint32)
for i in range(8):
  load_u32x4_nc(row, (i * 8) >> 1, x + (i * 128 + tid) * 16)
total = float32(0.0)
for i in range(8):
  for j in range(8):
    total = total + unpack_bf16(row, i * 8 + j)
for i in range(8):
  for j in range(8):
    total = total * unpack_bf16(row, i * 8 + j)
store_f32(y + tid * 4, total)"""
    source = kernel(body, "uint32", "load_u32x4_nc", "unpack_bf16", "store_f32", parameters="x, y")
    assert compile_kernel(source, "kernel", "sm_80", 128).stack == 0


def test_ptxas_takes_a_comparison_of_nan_for_true():
    """docs/upstream/ptxas-nan-range.md: without the fault, the kernel loads the number before it compares it."""
    from tilec.runtime.cuda import assemble

    ptx = (ROOT / "docs/upstream/ptxas-nan-range.ptx").read_text()
    never = re.sub(r"setp\.ge\.f32 (%p1), .*;", r"setp.eq.u32 \1, 0, 0;", ptx)
    constant, as_it_stands, kept = (
        len(image) for image in (
            assemble._image(never, "sm_90a")[0], assemble._image(ptx, "sm_90a")[0],
            assemble.assemble(ptx, "kernel", "sm_90a").image,
        )
    )  # fmt: skip
    assert kept > constant
    if as_it_stands > constant:
        pytest.skip("mended in this ptxas: `_unordered` in runtime/cuda/ptx_faults.py can go once no other is used")


F2F, PERMUTE, STORE, SUM, PRODUCT, HIGH = 0x310, 0x816, 0x986, 0x210, 0x224, 0x227
"""In machine code of sm_90: conversions between floats, choices of bytes (by which 16 bits are extended), stores, and the sums and
products of integers by which they are negated, too, and the upper halves of products."""


def opcodes(image: bytes) -> np.ndarray:
    """The lower 12 bits of every 16 bytes of a cubin, which an instruction has, among them those of its kernel."""
    return np.frombuffer(image[: len(image) // 16 * 16], np.uint16)[::8] & 0xFFF


def test_ptxas_takes_a_conversion_for_an_earlier_one():
    """docs/upstream/ptxas-f64-to-f32.md: two conversions to f32, and two back."""
    from tilec.runtime.cuda import assemble

    ptx = (ROOT / "docs/upstream/ptxas-f64-to-f32.ptx").read_text()
    kept, as_it_stands = assemble.assemble(ptx, "kernel", "sm_90a").image, assemble._image(ptx, "sm_90a")[0]
    assert np.count_nonzero(opcodes(kept) == F2F) == 4
    if np.count_nonzero(opcodes(as_it_stands) == F2F) == 4:
        pytest.skip("right in this ptxas: `_parted` in runtime/cuda/ptx_faults.py can go once 13.0 is not used")


def test_ptxas_extends_the_negation_of_the_least_integer():
    """docs/upstream/ptxas-least-integer.md: what is stored has been cut to 16 bits just before."""
    from tilec.runtime.cuda import assemble

    def cut(image: bytes) -> bool:
        found = opcodes(image)
        (at,) = np.flatnonzero(found == STORE)
        return bool(found[at - 1] == PERMUTE)

    ptx = (ROOT / "docs/upstream/ptxas-least-integer.ptx").read_text()
    assert cut(assemble.assemble(ptx, "kernel", "sm_90a").image)
    if cut(assemble._image(ptx, "sm_90a")[0]):
        pytest.skip("right in this ptxas: `_wrapping` in runtime/cuda/ptx_faults.py can go once 13.0 is not used")


def test_ptxas_drops_a_negation_in_the_largest_of_three():
    """docs/upstream/ptxas-negation-in-extremes.md: the machine code negates nothing."""
    from tilec.runtime.cuda import assemble

    def negates(image: bytes) -> bool:
        return bool(np.isin(opcodes(image), (SUM, PRODUCT)).any())

    ptx = (ROOT / "docs/upstream/ptxas-negation-in-extremes.ptx").read_text()
    assert negates(assemble.assemble(ptx, "kernel", "sm_90a").image)
    assert not negates(assemble._image(ptx.replace("%r1, %r4;", "%r1, %r2;"), "sm_90a")[0])
    if negates(assemble._image(ptx, "sm_90a")[0]):
        pytest.skip("right in this ptxas: `_two_at_a_time` in runtime/cuda/ptx_faults.py can go once 13.0 is not used")


EXTREME, CHOICE = 0x009, 0x008
"""Extremes and choices of floats, whatever their operands: the lower 9 bits."""
CHOSEN = "selp.f32 %f2, 0f80000000, 0fBF800000, %p1;"
CLAMPED = "max.f32 %f2, %f1, 0f80000000;\nmin.f32 %f2, %f2, 0f3F800000;"


@pytest.mark.parametrize(("body", "opcode"), [(CHOSEN, CHOICE), (CLAMPED, EXTREME)], ids=["chosen", "clamped"])
def test_ptxas_forgets_signs_of_zeros(body, opcode):
    """docs/upstream/ptxas-signed-zeros.md: in place of choices and extremes of floats it has other instructions."""
    from tilec.runtime.cuda import assemble

    ptx = f""".version 8.4
.target sm_90
.address_size 64
.visible .entry kernel(.param .u64 x)
{{
.reg .f32 %f<3>;
.reg .pred %p<2>;
.reg .b64 %rd<2>;
ld.param.u64 %rd1, [x];
ld.global.f32 %f1, [%rd1];
setp.equ.f32 %p1, %f1, 0f40000000;
{body}
st.global.f32 [%rd1], %f2;
ret;
}}
"""
    images = assemble.assemble(ptx, "kernel", "sm_90a").image, assemble._image(ptx, "sm_90a")[0]
    kept, as_it_stands = (np.count_nonzero((opcodes(image) & 0x1FF) == opcode) for image in images)
    assert kept >= body.count("\n") + 1
    if as_it_stands == kept:
        pytest.skip(
            "right in this ptxas: a part of `_signed_zeros` in runtime/cuda/ptx_faults.py can go once no other is used"
        )


def test_ptxas_forgets_a_carry_next_to_a_product():
    """docs/upstream/ptxas-widened-product.md: the product takes a negation as an addend."""
    from tilec.runtime.cuda import assemble

    ptx = """.version 8.4
.target sm_90
.address_size 64
.visible .entry kernel(.param .u64 x)
{
.reg .b32 %r<3>;
.reg .b64 %rd<6>;
ld.param.u64 %rd1, [x];
ld.global.u32 %r1, [%rd1];
ld.global.u64 %rd2, [%rd1+8];
mul.hi.u32 %r2, %r1, %r1;
cvt.u64.u32 %rd3, %r2;
sub.s64 %rd4, %rd3, %rd2;
st.global.u64 [%rd1], %rd4;
ret;
}
"""

    def product_first(image: bytes) -> bool:
        found = opcodes(image)
        (stored,) = np.flatnonzero(found == STORE)
        (product,) = np.flatnonzero(found[:stored] == HIGH)
        return not (found[product - 3 : product] == SUM).any()

    assert product_first(assemble.assemble(ptx, "kernel", "sm_90a").image)
    if product_first(assemble._image(ptx, "sm_90a")[0]):
        pytest.skip("right in this ptxas: `_upper_halves` in runtime/cuda/ptx_faults.py can go once no other is used")


def test_signs_of_the_least_integers_are_those_of_wider_ones():
    """docs/upstream/ptxas-least-integer.md. What is rewritten is not rewritten again."""
    from tilec.runtime.cuda import assemble
    from tilec.runtime.cuda.ptx_faults import without_faults

    body = (
        "neg.s16 %rs2, %rs1;\nabs.s16 %rs3, %rs1;\nsub.s16 %rs4, 0, %rs1;\nsub.s16 %rs5, %rs4, %rs1;\nabs.s32 %r1, %r2;"
    )
    ptx = without_faults(body)
    assert not re.search(r"abs|\.s16 %rs", ptx) and ptx.count("max.s32") == 2 and ptx.count("sub.s32") == 3
    assert without_faults(ptx) == ptx
    head = ".version 8.4\n.target sm_90\n.address_size 64\n.visible .entry kernel()\n{\n.reg .b16 %rs<6>;\n.reg .b32 %r<3>;\n"
    assert assemble.assemble(f"{head}{body}\nret;\n}}\n", "kernel", "sm_90a").image


@pytest.mark.parametrize(
    "element, number, printed",
    [("i64", "u32(4294967295)", "4294967295"), ("f32", "u32(4294967295)", "0f4F800000|1333788672"),
     ("f64", "u64(18446744073709551615)", f"0d43F0000000000000|{0x43F0 << 48}")],
)  # fmt: skip
def test_known_numbers_without_a_sign_stay_positive(element, number, printed):
    """Numba-CUDA takes the cast of a known -1 to an unsigned type for -1, also where that is made wider."""
    pytest.importorskip("numba_cuda_mlir.cuda")
    from fuzz.compare import specialised
    from fuzz.programs import Case
    from tools.lowering import lowered

    from tilec.runtime.cuda.compile import _to_ptx

    program = specialised(Case(f"op f() -> (y: {element}[M]) {{ y[j] = max[k in 0:1]({number}) }}", {"M": 5}, {}))
    emitted = lowered(program)[1].emitted
    (kernel,) = emitted.kernels
    ptx = _to_ptx(emitted.module, kernel.name, "sm_90a", kernel.threads, None, 1)
    assert re.search(printed, ptx), ptx
