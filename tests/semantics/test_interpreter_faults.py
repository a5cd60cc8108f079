"""What the interpreter finds wrong: every detector, on IR that is broken on purpose, and quiet on the same IR made right."""

from __future__ import annotations

import re

import numpy as np
import pytest
from conftest import assert_within
from tools.broken_kernels import KERNEL, LOAD, PUT, SHARED, X, fault, filled, run, without
from tools.contractions import MATMUL, arrays, lowered

import tilec
from tilec.kernels import matrix
from tilec.semantics.interpreter import Fault, Unsupported, interpret


def stored(name: str) -> str:
    return f"memref.store %{name}, %y[%t] : memref<64xf32>"


# ---- addresses and poison --------------------------------------------------------------------------------------------


def test_outside():
    body = """%n = affine.apply affine_map<(d0) -> (d0 + 1)>(%t)
        %v = memref.load %x[%n] : memref<64xf32> loc("a.tile":7:3)
        memref.store %v, %y[%t] : memref<64xf32>"""
    found = fault(
        "outside", body, r"a\.tile:7: outside: subscript 64 of dimension 0, where .* has 64; thread 63 of block 0"
    )
    assert found.line == ("a.tile", 7) and found.threads == ((0, 63),) and found.operation == "memref.load"


def test_outside_below_and_in_a_vector_and_a_view():
    fault("outside", "%n = arith.subi %t, %c1 : index\n%v = memref.load %x[%n] : memref<64xf32>", "subscript -1")
    fault("outside", "%v = vector.load %x[%t] : memref<64xf32>, vector<4xf32>", r"subscript 61 .*\(4,\) elements")
    view = "memref.subview %x[%t] [4] [1] : memref<64xf32> to memref<4xf32, strided<[1], offset: ?>>"
    fault("outside", f"%v = {view}", "4 elements from 61 by 1")


def test_lanes_that_are_masked_touch_nothing():
    body = f"""%n = affine.apply affine_map<(d0) -> (d0 + 1)>(%t)
        %c63 = arith.constant 63 : index
        %inside = arith.cmpi slt, %n, %c63 : index
        %v = scf.if %inside -> f32 {{
          %w = memref.load %x[%n] : memref<64xf32>
          scf.yield %w : f32
        }} else {{ scf.yield %one : f32 }}
        {stored("v")}"""
    np.testing.assert_array_equal(run(body), [*range(1, 63), 1, 1])


@pytest.mark.parametrize("masked", [False, True])
def test_lanes_that_store_a_vector_at_one_place(masked):
    """Of values that each lane has computed, and that are the same."""
    stores = f"""%low = arith.cmpi slt, %t, %c4 : index
        %nought = arith.muli %t, %c0 : index
        %whole = arith.index_cast %nought : index to i32
        %number = arith.sitofp %whole : i32 to f32
        %v = vector.broadcast %number : f32 to vector<4xf32>
        scf.if %low {{ {"%STORE" if masked else ""} }} else {{ {stored("one")} }}
        {"" if masked else "%STORE"}"""
    store = "vector.store %v, %y[%c0] : memref<64xf32>, vector<4xf32>"
    np.testing.assert_array_equal(run(stores.replace("%STORE", store)), [0] * 4 + [1] * 60)


def test_unwritten():
    private = "%a = memref.alloca() : memref<2xf32, #gpu.address_space<private>>\n"
    read = "%v = memref.load %a[%c0] : memref<2xf32, #gpu.address_space<private>>\n"
    fault("unwritten", private + read, "read, and nothing wrote it; threads 0, 1, 2, 3 and 60 more of block 0")
    fault("unwritten", f"%v = memref.load %s[%t] : {SHARED}", "read, and nothing wrote it")
    fault(
        "unwritten", "%p = arith.cmpi slt, %t, %c4 : index\nscf.if %p {\n" + stored("one") + "\n}", "60 of 64 elements"
    )
    with pytest.raises(Fault, match="nothing wrote it"):
        interpret(
            """func.func @f() -> tensor<2xf32> {
            %0 = tensor.empty() : tensor<2xf32>
            %1 = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
                outs(%0 : tensor<2xf32>) { ^bb0(%e: f32): %n = arith.negf %e : f32  linalg.yield %n : f32 } -> tensor<2xf32>
            return %1 : tensor<2xf32> }""",
            [],
        )


def test_inputs_stay():
    fault("invalid", "memref.store %one, %x[%t] : memref<64xf32>", "is an input")


def test_misaligned():
    fault("misaligned", "%v = vector.load %x[%c1] : memref<64xf32>, vector<4xf32>", "16 bytes at byte 4")
    fault("misaligned", "%v = vector.load %x[%c2] : memref<64xf32>, vector<4xf32>")


# ---- races -----------------------------------------------------------------------------------------------------------

BARRIER, WARP = "gpu.barrier", "%all = arith.constant -1 : i32\nnvvm.bar.warp.sync %all : i32"


def exchange(between: str, source: str = "%other") -> str:
    return f"{LOAD}\n{PUT}\n{between}\n%w = memref.load %s[{source}] : {SHARED}\n{stored('w')}"


def test_read_after_write():
    fault("race", exchange(""), "written by thread 1 of block 0 and read by thread 0 of block 0")
    np.testing.assert_array_equal(run(exchange(BARRIER)), X.reshape(-1, 2)[:, ::-1].reshape(-1))


def test_a_warps_barrier_orders_the_warp_only():
    np.testing.assert_array_equal(run(exchange(WARP)), X.reshape(-1, 2)[:, ::-1].reshape(-1))
    fault("race", exchange(WARP, "%far"), "thread 32 .* read by thread 0")
    np.testing.assert_array_equal(run(exchange(BARRIER, "%far")), np.roll(X, 32))


def test_write_after_read():
    again = f"\n{{}}\nmemref.store %one, %s[%t] : {SHARED}"
    fault("race", exchange(BARRIER) + again.format(""), "read by thread . of block 0 and written by thread")
    run(exchange(BARRIER) + again.format(BARRIER))


def test_write_after_write():
    both = f"{LOAD}\n{PUT}\n{{}}\nmemref.store %v, %s[%other] : {SHARED}\n{stored('v')}"
    fault("race", both.format(""), "written by thread 1 of block 0 and written by thread 0")
    run(both.format(BARRIER))


def test_two_threads_at_once():
    fault("race", f"{LOAD}\nmemref.store %v, %s[%c0] : {SHARED}", "two threads at once")
    same = f"memref.store %one, %s[%c0] : {SHARED}\n{{}}\n%w = memref.load %s[%c0] : {SHARED}\n{stored('w')}"
    fault("race", same.format(""), "is written by thread")  # the same value, but nothing says that it is there
    np.testing.assert_array_equal(run(same.format(BARRIER)), np.ones(64))


@pytest.mark.parametrize("second, wrong", [("0xFFC00001", False), ("0x7F800000", True)])
def test_nans_of_two_threads_are_one_value(second, wrong):
    """A GPU's arithmetic makes one NaN alone; the second value is another NaN here, or infinite."""
    body = f"""%nan1 = arith.constant 0x7FC00000 : f32
        %nan2 = arith.constant {second} : f32
        %low = arith.cmpi slt, %t, %c4 : index
        %n = arith.select %low, %nan1, %nan2 : f32
        memref.store %n, %s[%c0] : {SHARED}
        {BARRIER}
        %w = memref.load %s[%c0] : {SHARED}
        {stored("w")}"""
    if wrong:
        fault("race", body, "two threads at once")
    else:
        assert np.isnan(run(body)).all()


def test_memory_of_all_blocks():
    body = (
        f"{LOAD}\n%n = arith.addf %v, %one : f32\n{stored('v')}\n{{}}\n%w = memref.load %y[%other] : memref<64xf32>\n"
    )
    fault("race", body.format("") + stored("w"))
    number = "%b32 = arith.index_cast %b : index to i32\n%f = arith.sitofp %b32 : i32 to f32\n"
    fault("race", number + stored("f"), "two threads at once; thread 0 of block 0, and of 1 more", blocks=2)
    only = f"%p = arith.cmpi eq, %b, %c0 : index\nscf.if %p {{\n{stored('one')}\n}}\n"
    fault("race", only + "%w = memref.load %y[%t] : memref<64xf32>", "in another block", blocks=2)


def test_blocks_of_a_parallel_loop():
    text = """func.func @main(%y: memref<4xf32> {{tilec.name = "y"}}) attributes {{tilec.inputs = 0 : i64}} {{
        %one = arith.constant 1.0 : f32
        scf.forall (%i) in (4) {{
          %j = affine.apply affine_map<(d0) -> (d0 {0})>(%i)
          memref.store %one, %y[%j] : memref<4xf32>
        }}
        return }}"""
    with pytest.raises(Fault, match="written by block 0 of a parallel loop, and block 1 uses it"):
        interpret(text.format("floordiv 2"), [])
    np.testing.assert_array_equal(interpret(text.format("+ 0"), [])["y"], np.ones(4))


PART = "strided<[1], offset: ?>"
SUMS = f"""func.func @main(%x: memref<4xf32> {{tilec.name = "x"}}, %y: memref<2xf32> {{tilec.name = "y"}})
    attributes {{tilec.inputs = 1 : i64}} {{
    %zero = arith.constant 0.0 : f32
    %m = memref.alloc() : memref<4xf32>
    scf.forall (%i) in (2) {{
      %at = affine.apply affine_map<(d0) -> (d0 * 2)>(%i)
      %read = affine.apply affine_map<(d0) -> (READ)>(%i)
      %put = affine.apply affine_map<(d0) -> (PUT)>(%i)
      %a = memref.subview %x[%at] [COPIED] [1] : memref<4xf32> to memref<COPIEDxf32, {PART}>
      %b = memref.subview %m[%at] [COPIED] [1] : memref<4xf32> to memref<COPIEDxf32, {PART}>
      memref.copy %a, %b : memref<COPIEDxf32, {PART}> to memref<COPIEDxf32, {PART}>
      %c = memref.subview %m[%read] [2] [1] : memref<4xf32> to memref<2xf32, {PART}>
      %s = memref.subview %y[%put] [1] [1] : memref<2xf32> to memref<1xf32, {PART}>
      FILL
      linalg.generic {{indexing_maps = [affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0)>],
                      iterator_types = ["parallel", "reduction"]}}
        ins(%c : memref<2xf32, {PART}>) outs(%s : memref<1xf32, {PART}>) {{
        ^bb0(%v: f32, %t: f32):
          %n = arith.addf %v, %t : f32
          linalg.yield %n : f32
      }}
    }}
    return }}"""


@pytest.mark.parametrize(
    "changed, fault",
    [
        ({}, None), ({"COPIED": "1"}, "unwritten: %alloc at element 1 is read"),
        ({"FILL": ""}, "unwritten: 'y' at element 0 is read"),
        ({"PUT": "0", "FILL": ""}, "unwritten: 'y' at element 0 is read"),
        ({"PUT": "0"}, "race: 'y' at element 0 is written by block 0 of a parallel loop, and block 1 uses it"),
        ({"PUT": "0", "FILL": "", "%v, %t": "%v, %v"}, "race: 'y' at element 0 is written by block 0 of a parallel loop"),
        ({"READ": "0"}, "race: %alloc at element 0 is written by block 0 of a parallel loop, and block 1 uses it"),
        ({"READ": "d0"}, "race: %alloc at element 1 is written by block 0"),
    ],
)  # fmt: skip
def test_sums_of_blocks(changed, fault):
    """An operation's elements are looked at together before it begins, and one by one where any is at fault."""
    fill = f"linalg.fill ins(%zero : f32) outs(%s : memref<1xf32, {PART}>)"
    text, x = SUMS, np.arange(1, 5, dtype=np.float32)
    for word, instead in ({"READ": "d0 * 2", "PUT": "d0", "COPIED": "2", "FILL": fill} | changed).items():
        text = text.replace(word, instead)
    if fault is None:
        assert interpret(text, [x])["y"].tolist() == [3, 7]
    else:
        with pytest.raises(Fault, match=fault):
            interpret(text, [x])


# ---- threads that part, or wait --------------------------------------------------------------------------------------


@pytest.mark.parametrize("together", [BARRIER, WARP, "%d = arith.constant 1 : i32\n%w32 = arith.constant 32 : i32\n"
                                      "%r, %ok = gpu.shuffle xor %one, %d, %w32 : f32"])  # fmt: skip
def test_diverged(together):
    body = "%p = arith.cmpi slt, %t, {} : index\nscf.if %p {{\n" + together + "\n}}\n" + stored("one")
    found = fault("diverged", body.format("%c16"), "thread 16 does not")
    assert found.threads == tuple((0, t) for t in range(16))
    if together == BARRIER:
        fault("diverged", body.format("%c32"), "thread 32 does not")
    else:
        run(body.format("%c32"))


MBARRIER = "!nvgpu.mbarrier.group<memorySpace = #gpu.address_space<workgroup>, num_barriers = 1>"
TYPE = MBARRIER.removeprefix("!nvgpu.mbarrier.group")
MAKE = f"""%m = nvgpu.mbarrier.create -> {TYPE}
    %first = arith.cmpi eq, %t, %c0 : index
    scf.if %first {{ nvgpu.mbarrier.init %m[%c0], %c32 : {TYPE} }}
    gpu.barrier
    %upper = arith.cmpi sge, %t, %c32 : index
    %no = arith.constant false
    %yes = arith.constant true
    %ticks = arith.constant 1000 : index"""
HAND_ON = f"""{MAKE}
    {LOAD}
    scf.if %upper {{
      memref.store %v, %s[%t] : {SHARED}
      ARRIVE
    }} else {{
      WAIT
      %w = memref.load %s[%far] : {SHARED}
      {stored("w")}
    }}
    scf.if %upper {{ {stored("one")} }}"""
ARRIVE = f"%token = nvgpu.mbarrier.arrive %m[%c0] : {TYPE} -> !nvgpu.mbarrier.token"


def wait(parity: str) -> str:
    return f"nvgpu.mbarrier.try_wait.parity %m[%c0], %{parity}, %ticks : {TYPE}"


def test_an_mbarrier_orders_those_that_wait_behind_those_that_arrive():
    np.testing.assert_array_equal(run(filled(HAND_ON, arrive=ARRIVE, wait=wait("no")))[:32], X[32:])
    fault("race", filled(HAND_ON, arrive=ARRIVE, wait=""), "written by thread 32 .* read by thread 0")
    fault("unwritten", filled(HAND_ON, arrive=ARRIVE, wait=wait("yes")))  # of a phase before the first, which is over


def test_stuck():
    found = fault(
        "stuck", filled(HAND_ON, arrive="", wait=wait("no")), "32 of 32 arrivals and 0 bytes are missing, 32 threads"
    )
    assert found.threads[0] == (0, 0)


def test_mbarriers_that_are_not_made():
    unmade = HAND_ON.replace("nvgpu.mbarrier.init %m[%c0], %c32 : " + TYPE, "")
    fault("unwritten", filled(unmade, arrive=ARRIVE, wait=""), "used before it is initialised")
    unordered = HAND_ON.replace("    gpu.barrier\n", "")
    fault("race", filled(unordered, arrive=ARRIVE, wait=wait("no")), "initialised by thread 0")
    few = HAND_ON.replace("%c32 : " + TYPE, "%c16 : " + TYPE)
    fault("stuck", filled(few, arrive=ARRIVE, wait=wait("no")), "16 of 16 arrivals")  # two phases have passed


COPY = f"""%at = arith.muli %t, %c4 : index
    %p = arith.cmpi slt, %t, %c16 : index
    scf.if %p {{
      %token = nvgpu.device_async_copy %x[%at], %s[%at], 4 {{bypassL1}} : memref<64xf32> to {SHARED}
      nvvm.cp.async.commit.group
      WAIT
    }}
    BARRIER
    %w = memref.load %s[%t] : {SHARED}
    {stored("w")}"""
WAIT = "nvvm.cp.async.wait.group 0"


def test_asynchronous_copies():
    np.testing.assert_array_equal(run(filled(COPY, wait=WAIT, barrier=BARRIER)), X)
    fault("race", filled(COPY, wait=WAIT, barrier=""), "asynchronous copy of thread 0")
    fault(
        "race",
        filled(COPY, wait="", barrier=BARRIER),
        "written by the asynchronous copy of thread 0 of block 0 and read",
    )
    fault("race", filled(COPY, wait="nvvm.cp.async.wait.group 1", barrier=BARRIER), "asynchronous copy")


# ---- whole kernels, with one line taken out --------------------------------------------------------------------------


PRODUCT = MATMUL.format(t="bf16", o="bf16")


def contraction(tile: tuple, target: str, monkeypatch, sizes=(136, 72, 200)) -> tuple[str, list[np.ndarray]]:

    monkeypatch.setitem(matrix.DEEPEST, "wgmma", 2)
    specialised, result = lowered(PRODUCT, dict(zip("MNK", sizes)), target, tile, monkeypatch)
    return result.texts["map"], arrays(specialised)


WGMMA = ("wgmma", 64, 64, 64, (4, 1))


def test_a_product_of_warpgroups_is_right(monkeypatch):
    text, inputs = contraction(WGMMA, "h200", monkeypatch)
    assert_within(PRODUCT, inputs, interpret(text, inputs), kind="cuda")


@pytest.mark.parametrize(
    "kind, pattern, message",
    [
        ("race", r"running = 0", "a product that writes it may still run"),
        ("stuck", r"mbarrier\.arrive\.expect_tx", "arrivals and -?[0-9]+ bytes are missing"),
        ("stuck", r"nvgpu\.mbarrier\.arrive %", "all threads wait forever"),
        ("race", r"gpu\.barrier", "initialised by thread 0"),
        ("race", r"nvvm\.bar\.warp\.sync", "workgroup memory"),
    ],
)
def test_a_product_of_warpgroups_that_is_broken(kind, pattern, message, monkeypatch):
    text, inputs = contraction(WGMMA, "h200", monkeypatch)
    with pytest.raises(Fault, match=message) as error:
        interpret(without(text, pattern), inputs)
    assert error.value.kind == kind and error.value.line[0].endswith("t.tile")


def test_tiles_of_another_swizzle(monkeypatch):
    text, inputs = contraction(WGMMA, "h200", monkeypatch)
    message = r"at byte \d+ of workgroup memory was copied with a swizzle of 16 bytes, and is read with one of 128; threads 128"
    with pytest.raises(Fault, match=message) as error:
        interpret(text.replace("swizzle = swizzle_128b", "swizzle = none"), inputs)
    assert error.value.operation == "func.call" and error.value.line[0].endswith("t.tile")


def test_who_waits_for_the_wrong_phase(monkeypatch):
    """Who reads a slot that is not filled yet races; the phases of one that is filled again too early pass unseen."""
    text, inputs = contraction(WGMMA, "h200", monkeypatch)
    waits = re.findall(r"^.*try_wait\.parity.*\n", text, re.MULTILINE)
    assert len(waits) == 2
    kinds = []
    for line in waits:
        with pytest.raises(Fault) as error:
            interpret(text.replace(line, ""), inputs)
        kinds.append(error.value.kind)
    assert sorted(kinds) == ["race", "stuck"]


@pytest.mark.parametrize("pattern", ["gpu.barrier", "nvvm.cp.async.wait.group", "nvvm.bar.warp.sync"])
def test_a_pipeline_that_is_broken(pattern, monkeypatch):
    text, inputs = contraction(("mma.sync", 32, 32, 32, (1, 2)), "a100", monkeypatch, (40, 40, 72))
    assert_within(PRODUCT, inputs, interpret(text, inputs), kind="cuda")
    with pytest.raises(Fault) as error:
        interpret(without(text, re.escape(pattern)), inputs)
    assert error.value.kind == "race"


# ---- what it does not do ---------------------------------------------------------------------------------------------


def test_refused_by_name():
    with pytest.raises(Unsupported, match=r"cannot interpret 'math\.cbrt'") as error:
        run("%v = math.cbrt %one : f32")
    assert error.value.operation == "math.cbrt"
    with pytest.raises(Unsupported, match=r"of shape \[16, 8, 8\]"):
        frag = "vector<2x2xf16>"
        run(
            f"%h = arith.constant dense<0.0> : vector<2x2xf16>\n%k = arith.constant dense<0.0> : vector<1x2xf16>\n"
            f"%r = nvgpu.mma.sync (%h, %k, %h) {{mmaShape = [16, 8, 8]}} : ({frag}, vector<1x2xf16>, {frag}) -> {frag}"
        )


def test_arrays_that_do_not_fit():
    text = KERNEL.format(body=stored("one"), threads=64, blocks=1, cluster=1)
    with pytest.raises(tilec.CallError, match="in the IR, and the array is float64"):
        interpret(text, [X.astype(np.float64)])
    with pytest.raises(tilec.CallError, match="takes 1 inputs"):
        interpret(text, [X, X])
    with pytest.raises(tilec.CallError, match="the inputs are x"):
        interpret(text, {"z": X})
