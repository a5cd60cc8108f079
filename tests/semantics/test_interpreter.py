"""The interpreter computes what every stage's IR says: all programs at all stages, matrix units, tiles as TMA brings them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from conftest import Within, assert_within
from expectations import EXAMPLES
from tools import construct_cases, contractions
from tools.examples import NOTHING
from tools.lowering import lowered, specialised

import tilec
from tilec.passes import NAMES
from tilec.semantics.interpreter import interpret

TARGETS = ["cpu", "sm_80", "sm_90a"]
nan, inf = np.nan, np.inf


def texts(source, op, arrays, target, sizes=None) -> dict[str, str]:
    """The IR after every stage."""
    special = specialised(source, op, list(arrays), sizes)
    return lowered(special, target=target, locations=True, emit=False, texts=True)[1].texts


def of_one_meaning(found: dict[str, str], seen: set[str]) -> dict[str, str]:
    """The stages whose text nothing else had: `plan` writes attributes only, and targets share the first stages."""
    different = {}
    for stage, text in found.items():
        body = "\n".join(
            line.split("attributes {tilec.backend")[0] for line in text.splitlines() if "#loc" not in line[:5]
        )
        if body not in seen:
            seen.add(body)
            different[stage] = text
    return different


# ---- all programs, at all stages -------------------------------------------------------------------------------------


def check_stages(found: dict[str, str], inputs, within: Within, target: str) -> None:
    for stage, text in found.items():
        try:
            within(interpret(text, inputs))
        except AssertionError as error:
            raise AssertionError(f"after {stage} for {target}: {error}") from error


@pytest.mark.some(2)
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name, rng):
    example = EXAMPLES[name]
    inputs = example.inputs(rng)
    within, seen = Within(example.path, inputs, example.op), set()
    for target in TARGETS:
        check_stages(
            of_one_meaning(texts(example.path, example.op, inputs.values(), target), seen), inputs, within, target
        )


@pytest.mark.parametrize("name", NOTHING)
def test_examples_of_nothing(name, rng):
    """Each size that may be 0, for a GPU: the planner meets it, and results without elements have no thread."""
    example = EXAMPLES[name]
    for size in NOTHING[name]:
        inputs = example.inputs(rng, {**example.sizes, size: 0})
        text = texts(example.path, example.op, inputs.values(), "sm_90a")["map"]
        assert_within(example.path, inputs, interpret(text, inputs), example.op, kind="cuda")


@pytest.mark.parametrize("target", TARGETS)
def test_a_factor_that_is_constant(target, rng):
    b = rng.standard_normal((20, 24), dtype=np.float32)
    source = """op f(b: f32[K, N]) -> (y: f32[16, N]) {
        z[i, k] = 2.0 where i in 0:16, k in 0:K
        y[i, j] = sum[k](z[i, k] * b[k, j])
    }"""
    found = tilec.interpret(source, "map", b, target=target)
    expected = np.broadcast_to(2 * b.sum(0, dtype=np.float64), (16, 24))
    assert_within(source, [b], found, expected=expected)


def check_construct(name: str, size: str, rng, targets) -> None:
    program, described, numpy = construct_cases.CASES[name]
    z = construct_cases.SIZES[size]
    arrays = construct_cases.inputs_of(rng, described, z)
    expected = construct_cases.expected_of(numpy, arrays, z)
    if expected is None:
        pytest.skip("NumPy has no value for this size")
    given = {n: z[n] for n in construct_cases.GIVEN.get(name, "")}
    op = "f" if program.count("op ") > 1 else None
    within, seen = Within(program, arrays, op, given, expected=expected), set()
    for target in targets:
        found = texts(program, op, arrays, target, given)
        assert tuple(found) == NAMES
        check_stages(of_one_meaning(found, seen), arrays, within, target)


@pytest.mark.parametrize("name", construct_cases.CASES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_constructs_at_odd_sizes(name, rng):
    check_construct(name, "odd", rng, TARGETS)


@pytest.mark.slow
@pytest.mark.parametrize("size", [s for s in construct_cases.SIZES if s != "odd"])
@pytest.mark.parametrize("name", construct_cases.CASES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_constructs_at_all_sizes(name, size, rng):
    check_construct(name, size, rng, TARGETS)


# ---- from Python -----------------------------------------------------------------------------------------------------


def test_an_op_at_a_stage(rng):
    x = rng.standard_normal((5, 9), dtype=np.float32)
    op = tilec.compile("y[i] = sum[j](x[i, j])", target="cpu")
    for stage in ("build", "map"):
        assert_within("y[i] = sum[j](x[i, j])", [x], op.interpret(stage, x), kind="cpu")
    found = tilec.interpret("m[i] = max[j](x[i, j]); p[i] = argmax[j](x[i, j])", "map", x, target="sm_90a")
    np.testing.assert_array_equal(found.m, x.max(1))
    np.testing.assert_array_equal(found.p, x.argmax(1))
    with pytest.raises(tilec.CallError, match="no stage 'maps'"):
        op.interpret("maps", x)


def test_unsigned_results_keep_their_type():
    x = np.array([200, 100], np.uint8)
    found = tilec.interpret("op f(x: u8[N]) -> (y: u8[N]) { y[i] = x[i] // 3 }", "map", x, target="cpu")
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, [66, 33])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("stage", ["build", "map"])
def test_a_check_of_the_programs_own(stage, target):
    table, ids = np.zeros((5, 8), ml_dtypes.bfloat16), np.array([[1, 5]], np.int32)
    with pytest.raises(tilec.CallError, match=r"embedding\.tile:3"):
        tilec.interpret(EXAMPLES["embedding"].path, stage, ids, table, target=target)


# ---- matrix units ----------------------------------------------------------------------------------------------------

MATRIX = {  # program, type of the factors, of the result, tile, target
    "fma": ("MATMUL", "f32", "f32", ("fma", 32, 64, 8, (2, 1)), "h200"),
    "f64": ("TRANSPOSED", "f64", "f64", ("fma", 32, 64, 8, (2, 1)), "h200"),
    "mma.sync": ("MATMUL", "f16", "f32", ("mma.sync", 32, 32, 32, (1, 2)), "a100"),
    "transposed": ("TRANSPOSED", "bf16", "bf16", ("mma.sync", 32, 32, 32, (1, 2)), "a100"),
    "f8": ("MATMUL", "f8e4m3", "f16", ("mma.sync", 32, 32, 32, (1, 2)), "a100"),
    "tf32": ("USING", "tf32", "f32", ("mma.sync", 32, 32, 16, (1, 2)), "a100"),
    "wgmma": ("TRANSPOSED", "bf16", "f32", ("wgmma", 64, 64, 64, (4, 1)), "h200"),
    "two warpgroups": ("MATMUL", "bf16", "bf16", ("wgmma", 128, 64, 64, (8, 1)), "h200"),
    "heads": ("HEADS", "bf16", "bf16", ("wgmma", 64, 32, 64, (4, 1)), "h200"),
    "epilogue": ("LINEAR", "bf16", "bf16", ("wgmma", 64, 64, 64, (4, 1)), "h200"),
}


@pytest.mark.parametrize("name", MATRIX)
def test_matrix_units(name, monkeypatch):
    source, factors, result, tile, target = MATRIX[name]
    text = getattr(contractions, source).format(t=factors, o=result)
    sizes = {"M": 40, "N": 72, "K": 136} | ({"H": 2} if source == "HEADS" else {})
    specialised, lowered = contractions.lowered(text, sizes, target, tile, monkeypatch)
    arrays = contractions.arrays(specialised)
    assert_within(text, arrays, interpret(lowered.texts["map"], arrays), kind="cuda")


@pytest.mark.parametrize("transposed", [False, True])
def test_matrix_units_of_integers(transposed, monkeypatch):
    text = contractions.INTEGERS.format(t="i8", transposed="N, K" if transposed else "K, N", at="n, k" if transposed else "k, n")
    sizes, tile = {"M": 40, "N": 48, "K": 80}, ("mma.sync", 32, 32, 64, (1, 2))
    specialised, lowered = contractions.lowered(text, sizes, "a100", tile, monkeypatch)
    assert "nvgpu.mma.sync" in lowered.texts["map"]
    a, b = contractions.arrays(specialised)
    expected = a.astype(np.int32) @ (b.T if transposed else b).astype(np.int32)
    np.testing.assert_array_equal(interpret(lowered.texts["map"], [a, b])["c"], expected)


# ---- tiles as TMA brings them, and products of 8 bits --------------------------------------------------------------------

TILES = """
#shared = #gpu.address_space<workgroup>
module {{
  func.func private @wgmma(memref<{wide}x2x2x{sum}, #gpu.address_space<private>>, memref<64x{line}x{type}, #shared>,
                           memref<{n}x{line}x{type}, #shared>, index)
  func.func private @wgmma_wait(memref<{wide}x2x2x{sum}, #gpu.address_space<private>>)
  func.func @kernel(%a: memref<64x{line}x{type}>, %b: memref<{n}x{line}x{type}>, %c: memref<64x{n}x{sum}>)
      attributes {{tilec.kernel, tilec.blocks = 1 : i64, tilec.threads = 128 : i64}} {{
    %t = gpu.thread_id x
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c64 = arith.constant 64 : index
    %n = arith.constant {n} : index
    %line = arith.constant {line} : index
    %bytes = arith.constant {bytes} : index
    %ticks = arith.constant 1000 : index
    %no = arith.constant false
    %left = memref.alloc() : memref<64x{line}x{type}, #shared>
    %right = memref.alloc() : memref<{n}x{line}x{type}, #shared>
    %sums = memref.alloca() : memref<{wide}x2x2x{sum}, #gpu.address_space<private>>
    %m = nvgpu.mbarrier.create -> <memorySpace = #shared>
    %ua = memref.cast %a : memref<64x{line}x{type}> to memref<*x{type}>
    %ub = memref.cast %b : memref<{n}x{line}x{type}> to memref<*x{type}>
    %ta = nvgpu.tma.create.descriptor %ua box[%c64, %line] : memref<*x{type}> -> {left}
    %tb = nvgpu.tma.create.descriptor %ub box[%n, %line] : memref<*x{type}> -> {right}
    %first = arith.cmpi eq, %t, %c0 : index
    scf.if %first {{ nvgpu.mbarrier.init %m[%c0], %c1 : <memorySpace = #shared> }}
    gpu.barrier
    scf.if %first {{
      nvgpu.mbarrier.arrive.expect_tx %m[%c0], %bytes : <memorySpace = #shared>
      nvgpu.tma.async.load %ta[%c0, %c0], %m[%c0] to %left : {left}, <memorySpace = #shared> -> memref<64x{line}x{type}, #shared>
      nvgpu.tma.async.load %tb[%c0, %c0], %m[%c0] to %right : {right}, <memorySpace = #shared> -> memref<{n}x{line}x{type}, #shared>
    }}
    nvgpu.mbarrier.try_wait.parity %m[%c0], %no, %ticks : <memorySpace = #shared>
    {body}
    return
  }}
  func.func @main(%a: memref<64x{line}x{type}> {{tilec.name = "a"}}, %b: memref<{n}x{line}x{type}> {{tilec.name = "b"}},
                  %c: memref<64x{n}x{sum}> {{tilec.name = "c"}}) attributes {{tilec.inputs = 2 : i64}} {{
    func.call @kernel(%a, %b, %c) : (memref<64x{line}x{type}>, memref<{n}x{line}x{type}>, memref<64x{n}x{sum}>) -> ()
    return
  }}
}}
"""


def tiles(body: str, type_: str, sum_: str, n: int, line: int, swizzle: str) -> str:
    size = {"f32": 4, "bf16": 2}.get(type_, 1)
    box = f"<tensor = memref<{{}}x{line}x{type_}, #shared>, swizzle = {swizzle}, l2promo = none, oob = zero, interleave = none>"
    return TILES.format(
        body=body, wide=n // 8, sum=sum_, type=type_, n=n, line=line, bytes=(64 + n) * line * size,
        left=box.format(64), right=box.format(n))  # fmt: skip


MULTIPLY = """
    func.call @wgmma(%sums, %left, %right, %c0) {{tilec.wgmma = {product}}} : (memref<2x2x2x{sum}, #gpu.address_space<private>>,
      memref<64x128x{type}, #shared>, memref<16x128x{type}, #shared>, index) -> ()
    func.call @wgmma(%sums, %left, %right, %c1) {{tilec.wgmma = {product}}} : (memref<2x2x2x{sum}, #gpu.address_space<private>>,
      memref<64x128x{type}, #shared>, memref<16x128x{type}, #shared>, index) -> ()
    func.call @wgmma_wait(%sums) {{tilec.wgmma_wait = {{running = 0 : i64}}}} :
      (memref<2x2x2x{sum}, #gpu.address_space<private>>) -> ()
    %c2 = arith.constant 2 : index
    scf.for %j = %c0 to %c2 step %c1 {{ scf.for %h = %c0 to %c2 step %c1 {{ scf.for %e = %c0 to %c2 step %c1 {{
      %v = memref.load %sums[%j, %h, %e] : memref<2x2x2x{sum}, #gpu.address_space<private>>
      %row = affine.apply affine_map<(t, h) -> ((t floordiv 32) * 16 + (t mod 32) floordiv 4 + h * 8)>(%t, %h)
      %column = affine.apply affine_map<(t, j, e) -> (j * 8 + (t mod 4) * 2 + e)>(%t, %j, %e)
      memref.store %v, %c[%row, %column] : memref<64x16x{sum}>
    }} }} }}"""
EIGHT_BITS = {
    "i8": ("i8", "i32", np.int8),
    "u8": ("i8", "i32", np.uint8),
    "f8e4m3": ("f8E4M3FN", "f32", ml_dtypes.float8_e4m3fn),
    "f8e5m2": ("f8E5M2", "f32", ml_dtypes.float8_e5m2),
}


@pytest.mark.parametrize("kind", EIGHT_BITS)
def test_products_of_warpgroups_of_8_bits(kind, rng):
    """Twice the same product, the second added to the first."""
    type_, sum_, dtype = EIGHT_BITS[kind]
    low, high = {"i8": (-128, 128), "u8": (0, 256)}.get(kind, (-8, 8))
    a, b = (rng.integers(low, high, (n, 128)).astype(dtype) for n in (64, 16))
    product = f'{{n = 16 : i64, k = 128 : i64, multiplicand = "{kind}"}}'
    text = tiles(MULTIPLY.format(product=product, sum=sum_, type=type_), type_, sum_, 16, 128, "swizzle_128b")
    expected = 2 * (a.astype(np.float64) @ b.astype(np.float64).T)
    np.testing.assert_array_equal(interpret(text, [a, b])["c"], expected)


@pytest.mark.parametrize(
    "swizzle, line", [("none", 64), ("none", 16), ("swizzle_32b", 32), ("swizzle_64b", 64), ("swizzle_128b", 128)]
)
def test_where_tma_lays_pieces_of_16_bytes(swizzle, line, rng):
    """Row t of the tile as thread t finds it: piece p of the row that begins at byte t * line (CUTLASS, `Swizzle`)."""
    bits = {32: 1, 64: 3, 128: 7}[line] if swizzle != "none" else 0
    body = f"""
    %mine = arith.cmpi slt, %t, %c64 : index
    scf.if %mine {{ scf.for %j = %c0 to %n step %c1 {{
      %p = affine.apply affine_map<(t, j) -> (((t * {line} + j) floordiv 128) mod {bits + 1})>(%t, %j)
      %q = affine.apply affine_map<(j) -> (j floordiv 16)>(%j)
      %r = arith.xori %p, %q : index
      %k = affine.apply affine_map<(r, j) -> (r * 16 + j mod 16)>(%r, %j)
      %v = memref.load %left[%t, %k] : memref<64x{line}xi8, #shared>
      memref.store %v, %c[%t, %j] : memref<64x{line}xi8>
    }} }}"""
    a, b = (rng.integers(-128, 128, (n, line)).astype(np.int8) for n in (64, line))
    found = interpret(tiles(body, "i8", "i8", line, line, swizzle), [a, b])["c"]
    np.testing.assert_array_equal(found, a)
