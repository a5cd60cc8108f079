"""Small kernels that share a launch: which do, what a schedule says of it, and what their blocks compute."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest
from conftest import assert_within
from fuzz.matrix import machine
from tools import cuda_emulator
from tools.cuda_kernels import compiled
from tools.emulation import emulate
from tools.lowering import lowered, planned, specialised
from tools.plans import rewritten

import tilec
from tilec.core import mlir
from tilec.core.diagnostics import InternalError, Source
from tilec.core.dtypes import DTYPES
from tilec.core.mlir import ir
from tilec.core.targets import load
from tilec.cost.launches import launch_time
from tilec.passes.cuda import launches as passes
from tilec.plan.report.explain import explain
from tilec.plan.schedule.read import parse_schedule
from tilec.plan.schedule.write import write_schedule
from tilec.semantics.interpreter import interpret

SEVERAL = """\
op f(x: f32[M, N], u: f32[K], q: f32[2, 2048], at: i32[1]) -> (s: f32[M], v: f32[K], m: f32[2], p: i32) {
  s[i] = sum[j](x[i, j])
  v[k] = exp(u[k])
  m[i] = max[j](q[i, j])
  p = at[0] + 1
}
"""
CHAIN = """\
op f(x: f32[2, 1024], u: f32[256]) -> (s: f32[2], v: f32[256], w: f32[256]) {
  s[i] = sum[j](x[i, j])
  v[k] = exp(u[k]) * s[0]
  w[k] = u[255 - k] + 1
}
"""


def given(rng=None, m=3, n=1024, k=300):
    rng = rng or np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((m, n), (k,), (2, 2048))]
    return dict(zip("xuq", arrays)) | {"at": np.array([7], np.int32)}


def schedule_of(text: str):
    return parse_schedule(Source("t.sched.toml", text))


def launched(result) -> list[set[str]]:
    return [set(names) for names in result.plan.launches.values()]


def test_kernels_of_which_none_reads_another_share_a_launch():
    """Rows that several warps and that 32 reduce, points and a scalar: blocks of 256, 128, 512 and 32 threads."""
    special, result = lowered(SEVERAL, None, given())
    assert launched(result) == [{"f_s", "f_v", "f_m", "f_p"}]
    (kernel,), (step,) = result.emitted.kernels, result.emitted.steps
    own = {k.options.block_threads for k in result.plan.kernels}
    assert len(own) > 2 and kernel.threads == max(own) and kernel.grid == sum(k.blocks for k in result.plan.kernels)
    assert step.planned in result.plan.launches and step.planned in result.emitted.launched
    assert "named_barrier" in kernel.text and "syncthreads" in kernel.text
    text = explain(result.plan, special)
    assert f"launch {step.planned}: " in text and "in 4 launches" in text and "4 in 1 launch" in text
    assert "launched     f_v with f_s: " in text


def test_no_copy_is_planned_that_lies_as_its_source_does():
    """A factor of one row would be packed in the order in which it lies: the copy would be gone before its launch is made."""
    text = "op f(a: bf16[1, 16], w: bf16[16, 1]) -> (y: f32[16, 16]) {\n y[i, j] = sum[k](a[k, i] * w[j, k])\n}"
    inputs = {"a": np.arange(16, dtype=np.float32)[None], "w": np.ones((16, 1), np.float32)}
    inputs = {name: a.astype(DTYPES["bf16"].numpy) for name, a in inputs.items()}
    _, result = lowered(text, None, inputs, target=machine("wgmma"))
    assert not result.plan.steps("pack") and len(result.plan.kernels) == len(result.emitted.steps) == 1
    assert_within(text, inputs, interpret(result.texts["map"], list(inputs.values())), kind="cuda")


@pytest.mark.parametrize("sizes", [(3, 1024, 300), (1, 7, 1), pytest.param((130, 33, 513), marks=pytest.mark.slow)])
def test_their_results_are_those_of_kernels_alone(sizes):
    inputs = given(None, *sizes)
    assert planned(SEVERAL, None, inputs).launches
    found, failed = emulate(SEVERAL, None, inputs)
    assert_within(SEVERAL, inputs, found, kind="cuda")
    assert failed == [0]
    alone, _ = emulate(SEVERAL, None, inputs, lambda plan: without(plan))
    assert [a.tobytes() for a in found] == [a.tobytes() for a in alone]


def without(plan):
    return schedule_of(f'[[plan]]\nprogram = "{plan.signature}"\ntarget = "h200"\nlaunches = {{}}')(plan)


@pytest.mark.parametrize("stage", ["stage", "map"])
def test_stages_compute_the_same(stage):
    op, inputs = tilec.compile(SEVERAL, target="h200"), given()
    assert_within(SEVERAL, inputs, list(op.interpret(stage, *inputs.values())), kind="cuda")


def test_who_reads_another_runs_after_it():
    """`w` may run with either of the two others, and goes with the first."""
    _, result = lowered(CHAIN, None, {})
    assert launched(result) == [{"f_s", "f_w"}] and [s.planned for s in result.emitted.steps][-1] == "f_v"
    rng = np.random.default_rng(1)
    inputs = {"x": rng.standard_normal((2, 1024), np.float32), "u": rng.standard_normal(256, np.float32)}
    found, _ = emulate(CHAIN, None, inputs)
    assert_within(CHAIN, inputs, found, kind="cuda")


CROSSED = """\
op f(a: f32[512], b: f32[512], x: f32[4, 2048], y: f32[4, 2048]) -> (p: f32[4], q: f32[4], r: f32[512], s: f32[512]) {
  p[i] = sum[j](x[i, j])
  q[i] = sum[j](y[i, j])
  r[k] = a[k] * p[0]
  s[k] = b[511 - k] * q[0]
}
"""


def test_launches_do_not_wait_for_each_other():
    """Two that each had a kernel which reads the other's could not run: after the first is made, the second is asked for that."""
    plan = planned(CROSSED)
    assert [set(names) for names in plan.launches.values()] == [{"f_p", "f_q"}, {"f_r", "f_s"}]
    crossed = "f_a = ['f_p', 'f_s']\nf_b = ['f_q', 'f_r']"
    text = f'[[plan]]\nprogram = "{plan.signature}"\ntarget = "h200"\n[plan.launches]\n{crossed}\n'
    with pytest.raises(tilec.CallError, match=r"`f_b` cannot be: `f_q` and `f_r` cannot run at once"):
        lowered(CROSSED, None, {}, schedule_of(text))


CHECKED = """\
op f(x: f32[64], at: i32[1], c: f32[512], d: f32[512], u: f32[2, 256]) -> (a: f32[64], b: f32[64], s: f32[2]) {
  a[i] = c[at[0] + i] + x[i]
  s[i] = sum[j](u[i, j])
  b[i] = d[at[0] - i] * x[63 - i]
}
"""


@pytest.mark.parametrize("at, line", [(100, None), (450, 2), (50, 4)])
def test_checks_report_their_own_line(at, line):
    """Of kernels that check subscripts in one launch."""
    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal(64, np.float32), "at": np.array([at], np.int32)}
    inputs |= {n: rng.standard_normal(512, np.float32) for n in "cd"} | {"u": rng.standard_normal((2, 256), np.float32)}
    _, result = lowered(CHECKED, None, inputs, schedule_of(SEPARATE.format(planned(CHECKED, None, inputs).signature)))
    ((kernel,), (step,)), outputs = (result.emitted.kernels, result.emitted.steps), [np.zeros(64, np.float32)] * 2
    (site,) = cuda_emulator.run(
        result.emitted, list(inputs.values()), [*map(np.copy, outputs), np.zeros(2, np.float32)]
    )
    assert (step.sites(kernel)[site - 1].split(":")[1] if site else None) == (line and str(line))


SEPARATE = """\
[[plan]]
program = "{}"
target = "h200"
inline = []
launches = {{f_all = ["f_a", "f_s", "f_b"]}}
[plan.kernels]
f_a = {{operations = ["a"]}}
f_s = {{operations = ["s"]}}
f_b = {{operations = ["b"]}}
"""


LAYERS = """\
op f(x: f32[16, 64], w: f32[64, 64]) -> (s: f32[16], v: f32[64], t: f32[16], u: f32[64]) {
  a[i, n] = sum[k](x[i, k] * w[k, n])
  s[i] = max[j](a[i, j])
  v[j] = exp(-abs(a[0, j]))
  c[i, k] = a[i, k] * s[15 - i] + v[63 - k]
  b[i, n] = sum[k](c[i, k] * w[k, n])
  t[i] = max[j](b[i, j])
  u[j] = exp(-abs(b[0, j]))
}
"""


def test_launches_of_equal_kernels_are_one_function():
    _, result = lowered(LAYERS, None, {})
    calls = [s for s in result.emitted.steps if s.planned in result.plan.launches]
    assert launched(result) == [{"f_s", "f_v"}, {"f_t", "f_u"}]
    assert [s.planned for s in calls] == [*result.plan.launches] and len({s.kernel for s in calls}) == 1
    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((16, 64), np.float32), "w": rng.standard_normal((64, 64), np.float32) / 8}
    found = tilec.compile(LAYERS, target="h200").interpret("map", *inputs.values())
    assert_within(LAYERS, inputs, list(found), kind="cuda")


FAMILIES = """\
op f(x: f32[64, 96], u: bf16[72, 64], q: f32[5, 700], p: f32[34, 34], k: i32[40]) -> (
  c: f32[96], t: bf16[64, 72], r: f32[5, 700], a: i32[5], w: f32[32, 32], h: f32[40]
) {
  c[j] = sum[i](x[i, j] * x[i, j])
  t[i, j] = u[j, i] + 1
  r[i, j] = cumsum[j](q[i, j])
  a[i] = argmax[j](q[i, j])
  w[i, j] = max[d in 0:3, e in 0:3](p[i + d, j + e])
  h[i] = q[k[i], 7]
}
"""


@pytest.mark.slow
def test_kernels_of_all_families_share_launches():
    """Columns, a transpose, a scan, pairs of values and indices, windows, and subscripts that are checked."""
    rng = np.random.default_rng(3)
    shapes = {"x": (64, 96), "u": (72, 64), "q": (5, 700), "p": (34, 34)}
    inputs = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    inputs["u"] = inputs["u"].astype(DTYPES["bf16"].numpy)
    inputs["k"] = rng.integers(0, 5, 40).astype(np.int32)
    _, result = lowered(FAMILIES, None, inputs)
    families = {k.name: k.options.name for k in result.plan.kernels}
    assert len({families[k] for names in result.plan.launches.values() for k in names}) >= 4
    found, failed = emulate(FAMILIES, None, inputs)
    assert_within(FAMILIES, inputs, found, kind="cuda")
    assert not any(failed)
    assert compiled(result.emitted, "sm_90a")


def test_a_schedule_says_it_again_and_forbids_it():
    special, own = lowered(SEVERAL, None, given())
    text = write_schedule(own.plan, special)
    again = lowered(SEVERAL, None, given(), schedule_of(text))[1]
    assert again.plan == own.plan and again.emitted == own.emitted
    (plan,) = tomllib.loads(text)["plan"]
    ((name, names),) = plan["launches"].items()
    none = lowered(SEVERAL, None, given(), without)[1]
    assert not none.plan.launches and len(none.emitted.kernels) == 4 and none.plan.time_us > own.plan.time_us
    assert lowered(SEVERAL, None, given(), schedule_of(write_schedule(none.plan, special)))[1].plan == none.plan
    two = text.replace(str(list(names)).replace("'", '"'), '["f_s", "f_p"]')
    obeyed = lowered(SEVERAL, None, given(), schedule_of(two))[1]
    assert obeyed.plan.launches == {name: ("f_s", "f_p")} and len(obeyed.emitted.kernels) == 3


@pytest.mark.parametrize(
    "launches, message",
    [
        ("f_l = ['f_s']", "has two at least"),
        ("f_l = ['f_s', 'f_z']", "there is no kernel `f_z`"),
        ("f_l = ['f_s', 'f_s']", "the kernel `f_s` is listed twice"),
        ("f_l = ['f_s', 'f_v']\nf_k = ['f_v', 'f_m']", "the kernel `f_v` is listed twice"),
        ("f_s = ['f_s', 'f_v']", "`f_s` cannot be the name of a launch"),
        ("l = ['f_s', 'f_v']", "write `f_l`"),
        ("f_l = [1, 2]", "must be a list of names"),
        ("f_l = 'f_s'", "must be a list of names"),
    ],
)
def test_launches_that_a_schedule_cannot_have(launches, message):
    plan = planned(SEVERAL, None, given())
    text = f'[[plan]]\nprogram = "{plan.signature}"\ntarget = "h200"\n[plan.launches]\n{launches}\n'
    with pytest.raises(tilec.CallError, match=message):
        lowered(SEVERAL, None, given(), schedule_of(text))


def test_kernels_that_an_edit_makes_unfit_are_launched_alone():
    """A cluster's blocks share a row."""
    own = lowered(SEVERAL, None, given())[1]
    rows = "[[plan]]\nprogram = '{}'\ntarget = 'h200'\n[plan.kernels.f_m.rows]\ncluster = 2\nthread_counts = [1, 256]"
    result = lowered(SEVERAL, None, given(), schedule_of(rows.format(own.plan.signature)))[1]
    assert not result.plan.launches
    assert any("blocks of `f_m` share rows" in r.reason for r in result.plan.remarks)


def test_edited_ir_is_held_to_the_same():
    _, result = lowered(SEVERAL, None, given(), texts=True)
    from tilec.plan.edited import check_edited

    text = result.texts["plan"]
    names = '["f_s", "f_v", "f_m", "f_p"]'
    assert names in text
    with mlir.context(), ir.Location.unknown():
        check_edited(mlir.parse(text.replace(names, '["f_s", "f_p"]')).operation, load("h200"), "fuse")
        with pytest.raises(tilec.CallError, match="listed twice"):
            check_edited(mlir.parse(text.replace(names, '["f_s", "f_s"]')).operation, load("h200"), "fuse")


def test_the_pass_sees_kernels_that_cannot_run_at_once():
    """Whoever decided it: `v` reads `s`."""
    _, result = lowered(CHAIN, None, {}, lambda plan: without(plan))
    with mlir.context(), ir.Location.unknown():
        module = mlir.parse(result.texts["map"])
        module.operation.attributes[passes.LAUNCHES] = ir.Attribute.parse('{f_l = ["f_s", "f_v"]}')
        with pytest.raises(InternalError, match="cannot run at once"):
            passes.share_launches(module.operation)


def test_kernels_without_elements_take_no_launch():
    """And a last part that does nothing is no branch."""
    text = (
        "op f(x: f32[M, N], u: f32[K]) -> (y: f32[M, N], s: f32[M], v: f32[K]) { y[i, j] = x[i, j] + 1\n"
        "s[i] = max[j](x[i, j])\nv[k] = exp(u[k]) }"
    )
    inputs = {"x": np.zeros((3, 0), np.float32), "u": np.ones(40, np.float32)}
    _, result = lowered(text, None, inputs)
    assert not any(k in names for names in result.plan.launches.values() for k in ("f_y",))
    found, _ = emulate(text, None, inputs)
    assert_within(text, inputs, found, kind="cuda")


def test_large_kernels_are_launched_alone():
    """Their blocks do not fit the machine at once: the launch is a small share of the time."""
    text = "op f(x: f32[N], u: f32[M]) -> (y: f32[N], v: f32[M]) { y[i] = exp(x[i])  v[j] = sin(u[j]) }"
    assert not planned(text, None, {"N": 1 << 26, "M": 1 << 26}).launches
    assert planned(text, None, {"N": 1 << 10, "M": 1 << 12}).launches


def test_a_launch_takes_as_long_as_its_slowest_kernel():
    plan = planned(SEVERAL, None, given())
    works = [k.work for k in plan.kernels]
    (name,) = plan.launches
    alone = [k.prediction.time_us for k in plan.kernels]
    assert max(alone) <= plan.predictions[name].time_us < sum(alone)
    assert plan.time_us == plan.predictions[name].time_us
    assert launch_time(works, plan.target).occupancy.blocks <= min(k.prediction.occupancy.blocks for k in plan.kernels)


@pytest.mark.parametrize(
    "text",
    [
        "op f(x: f32[4, 1024], u: f32[2, 2048]) -> (s: f32[4], m: f32[2]) { s[i] = sum[j](x[i, j])  m[i] = max[j](u[i, j]) }",
        "op f(x: bf16[4, 512], c: bf16[8, 64]) -> (a: bf16[4, 8, 64], b: bf16[4, 8, 64]) {\n"
        "a[i, h, d] = x[i, h * 64 + d] * c[h, 0]\nb[i, h, d] = x[i, h * 64 + 63 - d] * c[h, 1] }",
    ],
)
def test_compiled_launches_keep_their_variables_in_registers(text):
    """Two parts that end alike: NVVM would make one end of both."""
    _, result = lowered(text, None, {}, lambda plan: plan if plan.launches else pytest.fail("nothing to see"))
    assert compiled(result.emitted, "sm_90a")  # which demands it


@pytest.mark.slow
def test_candidates_of_tune_have_the_launches_that_they_can():
    from tilec.driver.tune import candidates

    found = candidates(specialised(SEVERAL, None, given()), load("h200"), 8)
    assert {len(c.plan.launches) for c in found} == {0, 1}
    for candidate in found:
        result = lowered(SEVERAL, None, given(), schedule_of(candidate.schedule))[1]
        assert result.plan.launches == candidate.plan.launches


def test_a_cpu_has_no_launches():
    assert not planned(SEVERAL, None, given(), "cpu").launches


DELAYED = """\
op f(x: f32[256, 512], u: f32[512, 512], v: f32[512, 512], w: f32[512, 512]) -> (p: f32[512], q: f32[512], z: f32[256, 512]) {
  a[i, j] = sum[k](x[i, k] * u[k, j])
  p[j] = sum[i](a[i, j])
  b[i, j] = sum[k](a[i, k] * v[k, j])
  c[i, j] = sum[k](b[i, k] * w[k, j])
  q[j] = sum[i](c[i, j])
  z[i, j] = sum[k](c[i, k] * u[k, j])
}
"""


def test_shared_launches_need_no_more_memory():
    """The sums of columns could share a launch, for which `a` would have to stay until `c` is there."""
    plan = lowered(DELAYED, None, {}, rewritten(split=[], pack=[]))[1].plan
    assert not plan.launches
    assert any("but temporaries would take 1.57 MB, and take 1.05 MB" in r.reason for r in plan.remarks)
    shared = f'[[plan]]\nprogram = "{plan.signature}"\ntarget = "h200"\n[plan.launches]\nf_l = ["f_p", "f_q"]\n'
    schedules = rewritten(split=[], pack=[]), schedule_of(f"{shared}[plan.rewrites]\nsplit = []\npack = []\n")
    sizes = [workspace(lowered(DELAYED, None, {}, schedule)[1]) for schedule in schedules]
    assert sizes == [2 * 256 * 512 * 4, 3 * 256 * 512 * 4]


def workspace(result) -> int:
    """Bytes of temporaries."""
    return max(t.end for t in result.emitted.temporaries)


def test_parts_of_one_memory_are_in_the_order_of_the_program():
    """A launch was shared by a part that the program makes last, and another by one that it makes first."""
    text = """op f(x: f32[M, 2], n: f32[N]) -> (y: f32[2 * M + 2, M], q: f32[N], z: f32[N]) {
        w[i, j] = sum[k](x[i, j % 2] * x[k, j % 2]) where j in 0:M
        y[i, j] = (w[j, 3 - i] if 3 - i >= 0 and 3 - i < M else 3) where i in 0:2 * M + 2
        q[i] = n[i] * 2
        z[i] = q[N - 1 - i]
    }"""
    inputs = {"x": np.ones((14, 2), np.float32), "n": np.arange(1000, dtype=np.float32)}
    _, result = lowered(text, None, inputs)
    assert any("f_q" in names for names in launched(result)) and len(result.emitted.steps) < 5
    found, _ = emulate(text, None, inputs)
    assert_within(text, inputs, found, kind="cuda")
