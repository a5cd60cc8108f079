"""What the fuzzers found: each program once went wrong, and is held to the reference on the CPU, on emulated CUDA and a GPU."""

from __future__ import annotations

import re

import numpy as np
import pytest
from fuzz.compare import check, specialised
from fuzz.programs import Case
from fuzz.schedules import planned
from tools.found import PROGRAMS
from tools.lowering import lowered
from tools.rows import planned as mapped
from tools.rows import run as run_rows

import tilec
from tilec.core.source import read_source
from tilec.core.targets import load
from tilec.dsl.parse import parse
from tilec.index.facts import NONE
from tilec.index.terms import size, term
from tilec.kernels import Panels, StoredContraction
from tilec.plan.check import refuse
from tilec.plan.cpu import panels
from tilec.plan.schedule.write import write_schedule
from tilec.semantics.comparison import compare
from tilec.semantics.interpreter import interpret
from tilec.semantics.reference import reference
from tilec.semantics.verify_inputs import inputs_of

CHECK_ALONE = (
    "op f(t: f32[N], n: i64[M]) -> (y: f32[M]) { a[i] = t[n[i]]  y[i] = 1.0 where i in 0:M }",
    {"M": 4, "N": 5},
)


@pytest.mark.parametrize("way", ["cpu", "emulator", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_went_wrong(name, way, rng):
    text, sizes = PROGRAMS[name]
    op = parse(read_source(text)).ops[0]
    shapes = {t.name: [sizes[d.name] for d in t.shape] for t in op.inputs}
    inputs = {
        t.name: np.asarray(rng.integers(0, 2 if t.dtype.name == "bool" else 9, shapes[t.name])).astype(t.dtype.numpy)
        for t in op.inputs
    }
    check(Case(text, sizes, inputs, frozenset(t.name for t in op.outputs)), way)


@pytest.mark.parametrize("target", ["cpu", "h200"])
def test_their_schedules_are_read_back(target):
    """One kernel had an empty name: it held a check alone, and gave no result."""
    for text, sizes in [*PROGRAMS.values(), CHECK_ALONE]:
        program = specialised(Case(text, sizes, {}))
        plan = planned(program, target, None)
        assert planned(program, target, write_schedule(plan, program)).kernels == plan.kernels


def test_parts_of_reductions_of_one_constant_are_combined():
    """The parts are taken or not, as a whole is of its elements: that was read from sums and the like alone."""
    text = """op f(x: bool[N]) -> (y: bool[M], z: bool[M]) {
        y[i] = all[k in 0:N](false) where i in 0:M
        z[i] = any[k in 0:N](true) where i in 0:M
    }"""
    check(Case(text, {"M": 1, "N": 60_000}, {"x": np.zeros(60_000, bool)}), "emulator")


@pytest.mark.parametrize("target, way, size", [("h200", "emulator", 3), ("cpu", "cpu", 7)])
def test_a_tile_of_one_place_has_both_factors(target, way, size, monkeypatch):
    """Of one that is computed from the index of the tile's only row no index is left: it was taken for the other."""
    monkeypatch.setattr(panels, "GAIN_US", -np.inf)  # panels, small as it is
    text = "op f(x: f32[M, M]) -> (y: f32[M, M]) { y[i, l] = sum[k](x[l, k] * x[k % M, i]) }"
    case = Case(text, {"M": size}, {"x": np.random.default_rng(0).integers(-4, 5, (size, size)).astype(np.float32)})
    program = specialised(case)
    plan = planned(program, target, None)
    assert isinstance(plan.kernels[0].options, Panels if target == "cpu" else StoredContraction)
    check(case, way, re.sub(r"^tile = .*", "tile = [1, 1]", write_schedule(plan, program), flags=re.MULTILINE))


def test_floor_division_by_infinities_is_pythons():
    values = np.array([0.0, -0.0, 1, -1, 2.5, -2.5, np.inf, -np.inf, np.nan], np.float32)
    a, b = (np.ravel(m) for m in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        for operator, expected in (("//", a // b), ("%", a % b)):
            found = tilec.compile(f"y[i] = a[i] {operator} b[i]", target="cpu")(a, b)
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("subscript", ["M % 3", "(M + 1) % 3", "-M % 3", "M // 2 % 3", "2 - i64(M) % 3", "M % N % 3"])
def test_a_remainder_of_sizes_is_less_than_its_divisor(subscript):
    tilec.compile(f"op f(x: f32[3]) -> (y: f32[M, N]) {{ y[i, j] = x[{subscript}] }}")


def test_a_quotient_of_sizes_may_be_negative():
    assert not NONE.proves(term(-1) // size("M"))


@pytest.mark.parametrize("edit, message", [
    (("tile = [1, 64]", "tile = [1, 3]"), "a tile of 3 elements cuts vectors"),
    (("thread_counts = ", "thread_counts = [3, 3] #"), "powers of two"),
    (("thread_counts = ", "thread_counts = [64, 64] #"), "at most 1024 threads"),
])  # fmt: skip
def test_a_layout_that_is_none_is_refused(edit, message):
    """Such a kernel would have read vectors that are not aligned."""
    program = "op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = exp(x[i, j]) }"
    case = Case(program, {"M": 4, "N": 64}, {})
    text = write_schedule(planned(specialised(case), "h200", None), specialised(case))
    before, after = edit
    assert "vectors = [1, 4]" in text and before.partition(" = ")[0] in text
    text = re.sub(r"^tile = .*$", after, text, flags=re.M) if before.startswith("tile") else text.replace(before, after)
    with pytest.raises(tilec.CallError, match=message):
        planned(specialised(case), "h200", text)


def test_rounded_literals_are_rounded():
    """The reference once agreed with what was wrong."""
    x = np.ones((), np.float32)
    for program in (
        "op f(x: f32) -> (y: f32) { y = f16(0.1) * x }",
        "op f(x: f32) -> (y: f32) { h: f16 = 0.1  y = h * x }",
    ):
        assert tilec.compile(program, target="cpu")(x) == np.float32(np.float16(0.1))
        assert reference(program, rounded=True)(x) == np.float32(np.float16(0.1))


def test_the_reference_adds_products_of_infinities_one_by_one():
    """It once added up one factor before it multiplied."""
    x, w = np.array([np.inf, 1.0], np.float32), np.array([1.0, -2.0], np.float32)
    assert np.isnan(reference("y[i] = sum[k, l](x[i] * w[k]) where l in 0:2")(x, w)[0])


@pytest.mark.parametrize("text", [
    "op g(x: f32[3]) -> (y: f32[M, 3]) { y[i, j] = x[j] }\nop f(x: f32[3]) -> (z: f32[M, 3]) { z = g(x) }",
    "op g(x: f32[3]) -> (y: f32[3]) { y[j] = sum[k in 0:M](x[j]) }\nop f(x: f32[3]) -> (z: f32[3]) { z = g(x) }",
])  # fmt: skip
def test_a_called_op_whose_sizes_nothing_determines_is_refused(text):
    with pytest.raises(tilec.TileError, match="the size `M` cannot be found in the call of `g`"):
        tilec.compile(text, op="f")


RESIDUAL = "op f(x: bf16[M, N], s: bf16[M, N]) -> (r: bf16[M, N], y: bf16[M, N]) {"
RESIDUAL += " r[i, j] = x[i, j] + s[i, j]  v[i] = mean[j](r[i, j] * r[i, j])  y[i, j] = r[i, j] * rsqrt(v[i] + 1e-6) }"
ROWS = {  # program, sizes, and how rows are dealt out (`planned` of the rows' tests)
    "a row that the kernel itself writes is not copied ahead": (RESIDUAL, {"M": 5, "N": 128}, (64, 2, 1, 1, 0)),
    "nor where blocks share it": (RESIDUAL, {"M": 5, "N": 256}, (32, 4, 2, 2, 1)),
    "and every step of it is stored": (RESIDUAL, {"M": 5, "N": 456}, (64, 2, 1, 1, 0)),
    "bools are copied ahead": (
        "op f(x: bool[M, N]) -> (y: bool[M]) { y[i] = any[j](x[i, j]) }", {"M": 5, "N": 456}, (64, 4, 1, 2, 0)),
    "single elements of 16 bits are copied ahead": (
        "op f(x: f16[M, N]) -> (y: f32[M]) { y[i] = max[j](x[i, j]) }", {"M": 5, "N": 33}, (64, 1, 1, 1, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_rows_that_went_wrong(name):
    text, sizes, plan = ROWS[name]
    program, result = lowered(text, "f", sizes, mapped(*plan))
    inputs, texts = inputs_of(program, "ordinary", 0), result.texts
    assert "nvvm.cp.async.commit.group" in texts["map"]
    printed, _ = run_rows(text, "f", inputs, mapped(*plan))
    for found in (interpret(texts["map"], inputs), dict(zip((t.name for t in program.outputs), printed))):
        for result in compare(program, inputs, found, "cuda").values():
            assert result.within, result


def test_blocks_that_share_a_scan():
    """A schedule could ask for it, and every block began its part anew."""
    program, plans = "op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = cumsum[j](x[i, j]) }", []
    lowered(program, "f", {"M": 2, "N": 2048}, lambda plan: plans.append(mapped(64, 2, 2, 0, 0)(plan)) or plan)
    (kernel,) = plans[0].kernels
    assert refuse(kernel, kernel, load("h200")).why == "`cluster` cannot be 2: a scan goes along the rows"


def test_a_check_of_an_index_that_blocks_count(tmp_path):
    """A schedule makes the index that a check reads a block's own: the check stands before the loops of the body."""
    program = """op f(x: f32[M, N]) -> (y: f32[M, M, M]) {
        s[i] = sum[k](x[i, k])
        y[i, j, l] = exp(s[clamp(i64(i), 0, M - 1)]) where i in 0:M, j in 0:M, l in 0:M
    }"""
    plan = tmp_path / "plan.toml"
    plan.write_text(
        '[[plan]]\nprogram = "f(x: f32[2, 5])"\ntarget = "cpu"\ninline = []\n\n[plan.kernels.f_s]\noperations = ["s"]\ntile = [1]\n'
        '\n[plan.kernels.f_y]\noperations = ["y"]\ntile = [1, 1, 1]\n\n[plan.kernels.f_y.loops]\ny = [0, 1, 2]\n'
    )
    x = np.ones((2, 5), np.float32)
    np.testing.assert_allclose(tilec.compile(program, schedule=plan)(x), np.full((2, 2, 2), np.exp(5)), rtol=1e-6)


def test_rows_of_nothing_are_not_planned():
    """A schedule shared rows that a later stage left out, and no loop was left to share."""
    program = """op f(x: f64) -> (y: f64[K, K // 2], z: f64[M]) {
        y[i, j] = sum[k in 0:3, l in 0:M](x * x) where i in 0:K, j in 0:K // 2
        z[i] = x where i in 0:M
    }"""
    case = Case(program, {"M": 1, "K": 0}, {"x": np.asarray(2.0)})
    assert [k.nodes for k in planned(specialised(case), "h200", None).kernels] == [("z",)]
    check(case, "emulator")


def test_an_argument_that_a_function_ignores_has_ranges():
    """What stands in the program says what an index runs over, whatever becomes of it."""
    short = "def g(p) { return 1.0 }\ny[i, j] = 1 < g(i + x[i, j])\nz[i]: f32 = w[i]"
    y, z = tilec.compile(short, target="cpu")(np.ones((2, 3), np.float32), np.ones(4, np.float32))
    assert y.shape == (2, 3) and not y.any() and z.shape == (4,)
    full = "def g(p) { return 1.0 }\ndef h(p, q) { return g(p) + q }\n"
    full += "op f(x: f32[M, N], w: f32[N]) -> (y: f32[N]) { y[j] = sum[i](h(x[i, j], w[j])) }"
    x, w = np.ones((2, 3), np.float32), np.ones(3, np.float32)
    np.testing.assert_array_equal(tilec.compile(full, target="cpu")(x, w), [4, 4, 4])
    with pytest.raises(tilec.TileError, match="index `j` runs over sizes that differ: N and M"):
        tilec.compile(full.replace("y: f32[N]", "y: f32[M]"))
    deeper = "def g(p) { a = p\n b = a\n return 1.0 }\nop f(x: f32[M, N]) -> (y: f32[M]) { y[i] = sum[k](g(x[i, k])) }"
    np.testing.assert_array_equal(tilec.compile(deeper, target="cpu")(x), [3, 3])


def test_states_in_sram_are_there_before_the_loop(monkeypatch):
    """Of reductions that are one pass over elements that threads do not hold: the second's was made behind the first. By its
    layout, one kernel takes longer than two."""
    monkeypatch.setattr("tilec.plan.chain_fusion.TRAVERSED", 1 << 60)
    text = """op f(x: bool[N, M], w: f32[N, M, N, 1, M, M, 1], v: bool[N, M, M, M, M, M, M, M, M, M, 1, 1, 1, 1])
        -> (y: f32[N, M, N, 1, M, M], z: bool[N, M, M, M, M, M, M, M, M, M, 1, 1, 1, 1]) {
        t[i]: u64 = any[k](not any[i](x[i, k])) where i in 0:N
        y[i, j, l, h, a, b] = logsumexp[k](f32(w[i, j, l, h, a, b, k] >= t[i])) + f32(x[i, j])
        z[i, j, l, h, a, b, c, d, e, o, p, q, r, s] = v[i, j, l, h, a, b, c, d, e, o, p, q, r, s] and x[i, j]
    }"""
    _, result = lowered(text, "f", {"M": 2, "N": 63})
    assert any(getattr(k.options, "online", None) for k in result.plan.kernels)


def test_memory_of_what_is_computed_between_is_there_before_the_loop():
    """A norm down columns of what is read in two orders: its second sum got the columns' number from the mean, which comes
    later."""
    text = """op f(a: bf16[N, C, P], b: bf16[N, P, C], w: bf16[C], c: bf16[C]) -> (y: bf16[N, C, P]) {
        z[i, j, p]: bf16 = a[i, j, p] + b[i, p, j]
        m[i, p]: f32 = mean[k in 0:C](z[i, k, p])
        v[i, p]: f32 = sum[k in 0:C]((z[i, k, p] - m[i, p]) * (z[i, k, p] - m[i, p])) / 768.0
        r[i, p]: f32 = rsqrt(v[i, p] + 1e-05)
        y[i, j, p] = (z[i, j, p] - m[i, p]) * r[i, p] * w[j] + c[j]
    }"""
    _, result = lowered(text, "f", {"N": 8, "C": 1536, "P": 1500})
    assert any(getattr(k.options, "online", None) for k in result.plan.kernels) and result.emitted.kernels


def test_kernels_of_checks_alone_have_names():
    """A schedule that the compiler writes is one that it reads."""
    program = "op f(x: f32[M, K], n: i64[N, 2]) -> (y: f32[M]) {"
    program += " t[i, j] = x[n[i, j], 0]  y[i] = sum[k](x[i, k]) where i in 0:M }"
    case = Case(program, {"M": 7, "K": 500, "N": 300}, {})
    special = specialised(case)
    for target in ("cpu", "h200"):
        text = write_schedule(planned(special, target, None), special)
        names = [k.name for k in planned(special, target, text).kernels]
        assert sorted(names) == ["f_t", "f_y"]
