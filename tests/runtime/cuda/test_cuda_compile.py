"""The compiler of GPU kernels: what it refuses and says, its cache, and its processes."""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest.mock import ANY

import pytest

pytest.importorskip("numba_cuda_mlir")
pytest.importorskip("cuda.core")

from tools.cuda_kernels import CHIPS, COPY, SHARED, check, kernel

from tilec.process import compile_server
from tilec.runtime import cache
from tilec.runtime.cpu.objects import load_native
from tilec.runtime.cuda import compile as cuda_compile
from tilec.runtime.cuda.compile import CompileError, ResourceError, compile_kernel
from tilec.runtime.cuda.cubins import CompilationsInFlight, program_cubins
from tilec.runtime.program import Emitted, KernelSource


def test_threads_compile_for_several_chips_at_once():
    sources = [kernel(f"store_f32(y + tid * 4, load_f32(x + tid * {n}))", "load_f32", "store_f32") for n in (4, 8)]
    wanted = [(source, chip) for source in sources for chip in CHIPS]
    with ThreadPoolExecutor(4) as pool:
        made = pool.map(lambda w: compile_kernel(w[0], "kernel", w[1], 128), 2 * wanted)
    assert [c.ptx for c in made] == 2 * [compile_kernel(source, "kernel", chip, 128).ptx for source, chip in wanted]


def test_names_and_shared_memory_are_as_declared():
    cubin = check(kernel(SHARED + "store_i64(y, base)", "store_i64"), ("sm_90a",))
    assert cubin.entry == "kernel" and ".entry kernel(" in cubin.ptx and cubin.shared == 0
    assert ".extern .shared .align 1024" in cubin.ptx
    assert ".maxntid 128, 1, 1" in cubin.ptx


def test_scalar_parameters():
    source = kernel("store_f32(y, a * float32(n))", "store_f32", parameters="y, a, n")
    assert ".param .f32" in check(source, parameters=("i64", "f32", "i32")).ptx


@pytest.mark.parametrize("condition", ["fabs_f32(a) >= zero", "fabs_f32(a) + float32(0.5) > zero", "zero <= a * a"])
def test_comparisons_of_what_is_not_negative_see_nan(condition):
    """ptxas forgets that `abs(x)` may be NaN: the kernel would not even read x."""
    names = ["load_f32", "store_f32", "fabs_f32"]
    before = "a = load_f32(x)\nzero = float32(0)\n"
    read = check(kernel(f"{before}store_f32(y, float32(1) if {condition} else float32(2))", *names), ("sm_90a",))
    constant = check(kernel("store_f32(y, float32(1))", *names), ("sm_90a",))
    assert len(read.image) > len(constant.image)


def test_absolute_values_of_16_bits_are_not_left_to_the_assembler():
    body = "n = load_i16(x)\nstore_f32(y, float32(int16(abs(n))))"
    cubin = check(kernel(body, "load_i16", "store_f32", "int16"), ("sm_90a",))
    assert ".s16 %rs" not in cubin.ptx and "max.s32" in cubin.ptx


@pytest.mark.parametrize("division", ["uint64(a * b) // uint64(b)", "(a * b) // b", "(a + b - n) * b % b"])
def test_products_divided(division):
    """The simplification of `a * b // b` asks whether the product may overflow; it once crashed where nothing decided that."""
    body = f"a = load_i64(x + tid * 8)\nb = load_i64(y)\nstore_i64(y + tid * 8, int64({division}))"
    cubin = check(kernel(body, "load_i64", "store_i64", "uint64"), ("sm_90a",))
    assert re.search(r"mul\.lo\.s64|mad\.lo\.s64", cubin.ptx)  # may wrap around, so it is not left out


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
    loop += "cuda.syncthreads()\nfor i in range(96):\n    store_f32(y + i * 4, a[i])"
    with pytest.raises(ResourceError, match="spills"):
        compile_kernel(kernel(loop, "load_f32", "store_f32"), "kernel", "sm_90a", 128, max_registers=32)


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
    with pytest.raises(CompileError, match="cannot import"):
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


def emitted(*names: str) -> Emitted:
    """A program of kernels that all copy."""
    module = "\n".join([COPY.split("def ")[0], *("def " + COPY.split("def ")[1].replace("kernel", n) for n in names)])
    kernels = tuple(KernelSource(n, "", 1, 2, threads=128) for n in names)
    return Emitted("copies", module, kernels, (), ())


def test_the_cache_gives_the_same_cubins(tmp_path, monkeypatch):
    load_native()  # whose machine code is cached, too
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    compiled = []
    monkeypatch.setattr(cuda_compile, "compile_kernel", lambda *a, **o: compiled.append(a) or compile_kernel(*a, **o))
    program = emitted("one", "other")
    first = program_cubins(program, "sm_90a", {})
    assert first["one"] is first["other"] and len(compiled) == 1, "they differ in names only"
    again = program_cubins(program, "sm_90a", {})
    assert again == first and again["one"] is again["other"] and len(compiled) == 1
    entries = tmp_path / "cache" / "entries"
    assert len(list(entries.glob("*.json"))) == 1 and len(list(entries.glob("*.bin"))) == 2, "the cubin and its PTX"
    wide = replace(program, kernels=(program.kernels[0], replace(program.kernels[1], threads=256)))
    for n, different in enumerate([(program, "sm_80", {}), (program, "sm_90a", {"one": 64}), (wide, "sm_90a", {})]):
        before = len(compiled)
        program_cubins(*different)
        assert len(compiled) > before, n
    for binary in entries.glob("*.bin"):
        binary.write_bytes(b"bad")
    assert program_cubins(program, "sm_90a", {}) == {n: replace(c, seconds=ANY) for n, c in first.items()}


def test_kernels_that_are_started_are_not_compiled_again(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    compiled = []
    monkeypatch.setattr(cuda_compile, "compile_kernel", lambda *a, **o: compiled.append(a[1]) or compile_kernel(*a, **o))
    one, two, three = (emitted(name) for name in ("one", "two", "three"))
    wide = replace(two.kernels[0], threads=256)
    last = replace(three.kernels[0], threads=64)
    with CompilationsInFlight("sm_90a") as in_flight:
        in_flight.submit(one.module, one.kernels[0], None)
        in_flight.submit(two.module, wide, 64)
        in_flight.submit(two.module, wide, 64)
        in_flight.submit(two.module, replace(wide, name="two"), 72)  # the program asks for another limit
    program = replace(emitted("one", "two", "three"), kernels=(one.kernels[0], wide, last))
    cubins = program_cubins(program, "sm_90a", {"two": 64}, in_flight)
    assert sorted(compiled) == ["one", "three", "two", "two"]
    found = [future.result() for future in in_flight.cubins.values()]
    assert cubins["one"] is found[0] and cubins["two"] is found[1] and cubins["three"].entry == "three"
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "other"))
    assert program_cubins(program, "sm_90a", {"two": 64}) == {n: replace(c, seconds=ANY) for n, c in cubins.items()}


def test_started_kernels_that_were_given_up_are_compiled(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    program = emitted("one")
    with pytest.raises(KeyboardInterrupt), CompilationsInFlight("sm_90a") as in_flight:
        in_flight.pool.count = 0  # nothing begins
        in_flight.submit(program.module, program.kernels[0], None)
        raise KeyboardInterrupt
    (future,) = in_flight.cubins.values()
    assert future.cancelled()
    assert program_cubins(program, "sm_90a", {}, in_flight)["one"].entry == "one"


def test_a_fork_waits_for_no_kernel_that_its_process_has_started(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    program = emitted("one")
    with CompilationsInFlight("sm_90a") as in_flight:
        in_flight.pool.count = 0  # as where the threads did not come along
        in_flight.submit(program.module, program.kernels[0], None)
        in_flight.process -= 1
    assert program_cubins(program, "sm_90a", {}, in_flight)["one"].entry == "one"
    assert not any(future.done() for future in in_flight.cubins.values())


def test_the_compilers_own_process_makes_what_this_one_would():
    source = kernel("store_f32(y + tid * int64(4), load_f32(x + tid * int64(4)))", "load_f32", "store_f32")
    ptx = compile_kernel(source, "kernel", "sm_90a", 128).ptx
    assert ptx == cuda_compile._compile_here(source, "kernel", "sm_90a", 128, None, 1)


def test_what_does_not_compile_is_reported_by_this_process():
    wanted = {"source": kernel("no_such_name(x)"), "entry": "kernel", "chip": "sm_90a", "threads": 128}
    wanted |= {"parameters": None, "min_blocks": 1}
    assert "no_such_name" in compile_server.ask(cuda_compile.__name__, wanted)["error"]
    with pytest.raises(CompileError, match="no_such_name") as caught:
        cuda_compile._to_ptx(**wanted)
    assert caught.value.source == wanted["source"] and caught.value.__cause__ is not None


def test_compiling_leaves_no_compiler_in_this_process(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    code = "import sys, tilec\nop = tilec.compile('y[i] = x[i] + 1', target='sm_90a')\nop.build(N=5)\n"
    code = code.replace("y[i] = x[i] + 1", "op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + 1.0 }")
    code += "assert op._latest.cubins\n"
    code += "print([m for m in ('numba_cuda_mlir.numba_cuda', 'torch', 'numba') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_imports_are_lazy():
    code = "import sys, tilec.runtime.cuda.intrinsics, tilec.runtime.cuda.compile, tilec.runtime.cuda.launch\n"
    code += "print([m for m in ('numba_cuda_mlir', 'cuda', 'torch', 'numba') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
