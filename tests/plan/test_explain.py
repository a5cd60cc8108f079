"""`explain` and `expect`: the report holds the plan's numbers and reasons; an expectation fails with what
broke it.
"""

import re
from dataclasses import replace

import pytest
from tools import ROOT
from tools.explained import MLP, SOFTMAX, failure, planned

import tilec
from tilec.core.diagnostics import TileError
from tilec.plan.report.expectations import check_expectations, minimal_traffic, traffic
from tilec.plan.report.explain import RESOURCES, Observed, amount, explain
from tilec.plan.report.provenance import Provenance

EXAMPLES = ROOT / "examples"
# ---- explain ---------------------------------------------------------------------------------------------


def test_every_kernel_and_every_remark_is_reported():
    specialised, plan = planned((EXAMPLES / "mlp.tile").read_text(), {"M": 64, "D": 32, "F": 48})
    text = explain(plan, specialised)
    for kernel in plan.kernels:
        assert f"kernel {kernel.name}: " in text
        for term in (t for t, us in kernel.prediction.terms.items() if us > 0):
            assert re.search(rf"^ .*\b{RESOURCES[term]} +[\d.]+ [um]s +#+$", text, re.MULTILINE)
    for remark in plan.remarks:
        assert f"    {remark.verb:<12} {remark.subject}: {remark.reason}" in text


def test_decisions_stand_under_their_source_lines():
    specialised, plan = planned(SOFTMAX.replace("EXPECT", ""), {"M": 64, "N": 64})
    lines = explain(plan, specialised).splitlines()
    place = lines.index("  program.tile:3  e[i, j] = exp(x[i, j] - m[i])")
    assert lines[place + 1].startswith("    not inlined  e: ")


def test_the_summary_adds_up():
    specialised, plan = planned(MLP.replace("EXPECT", ""), {"M": 64, "D": 32, "F": 48})
    text = explain(plan, specialised)
    assert minimal_traffic(specialised) == 4 * (64 * 32 + 32 * 48 + 48 * 32 + 64 * 32)
    assert f"{amount(traffic(plan))}B, {traffic(plan) / minimal_traffic(specialised):.2f} times the minimum" in text
    assert f"{plan.time_us:.1f} us predicted" in text


def test_measured_times_stand_next_to_the_predicted():
    specialised, plan = planned(SOFTMAX.replace("EXPECT", ""), {"M": 64, "N": 64})
    (kernel,) = plan.kernels
    text = explain(plan, specialised, Observed({kernel.name: 2 * kernel.prediction.time_us, "softmax": 33.0}))
    assert "measured (the prediction is 50% of it)" in text and "33.0 us measured" in text


def test_loops_that_compute_nothing_are_blamed_by_their_time():
    specialised, plan = planned("op f(x: f32[M, N]) -> (y: f32[N, M]) { y[j, i] = x[i, j] }", {"M": 512, "N": 512})
    (kernel,) = plan.kernels
    assert not any(kernel.work.flops.values())
    text = explain(plan, specialised, Observed({kernel.name: 3 * kernel.prediction.time_us}))
    assert re.search(r"model .*innermost loops: [\d.]+ us assumed, [\d.]+ us taken", text)


def test_bounds_are_reported_in_words():
    small = explain(*reversed(planned(SOFTMAX.replace("EXPECT", ""), {"M": 2, "N": 2})))
    assert "bound by overhead (launch)" in small
    large = explain(*reversed(planned(SOFTMAX.replace("EXPECT", ""), {"M": 1 << 14, "N": 1 << 12}, "h200")))
    assert "bound by memory (DRAM)" in large and "occupancy" in large


def test_index_names_are_the_sources():
    specialised, plan = planned(SOFTMAX.replace("EXPECT", ""), {"M": 512, "N": 256})
    assert re.search(r"grid +\d+ blocks: i = 512 in tiles of \d+; each block has all of j = 256", explain(plan, specialised))


def test_more_than_two_alternatives_are_listed():
    specialised, plan = planned(SOFTMAX.replace("EXPECT", ""), {"M": 64, "N": 64})
    remark = replace(plan.remarks[-1], alternatives=(("tile 1", 9.0), ("tile 2", 3.0), ("tile 4", 5.0)))
    text = explain(replace(plan, remarks=(remark,)), specialised)
    assert re.search(r"3.0 us  tile 2\n +5.0 us  tile 4\n +9.0 us  tile 1", text)


def test_an_op_explains_itself():
    op = tilec.compile(EXAMPLES / "softmax.tile", target="cpu", sizes={"M": 8, "N": 8})
    assert "kernel softmax_y: " in op.explain(full=True) and op.explain("y") == op.explain("softmax_y")
    assert re.search(r"^softmax_y  m, e, s, y .* 100%  overhead", op.explain(), re.MULTILINE)
    with pytest.raises(tilec.CallError, match="no kernel 'softmax_z'\nhint: did you mean 'softmax_y'"):
        op.explain("softmax_z")


# ---- expect ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expect", [
    "kernels == 1", "fused(m, e, s, y)", "fused(e, y)", "traffic <= 1.05 * minimal",
    "kernels < 2 and not kernels == 3", "kernels == 2 or traffic > 0",
    "max(kernels, 3) == 3 and abs(0 - kernels) == 1", "kernels <= M", "true",
])  # fmt: skip
def test_expectations_that_hold(expect):
    assert failure(SOFTMAX, expect, {"M": 512, "N": 512}) is None


def test_a_failed_count_names_the_refusal():
    message = failure(MLP, "kernels == 1", {"M": 64, "D": 32, "F": 48})
    assert message.startswith("program.tile:4:5: error: the plan does not meet this expectation: kernels is 2\n4 |")
    assert "program.tile:3:5: note: refused h.sum with y: a contraction chain would take" in message


def test_a_tensor_that_is_stored_is_named():
    message = failure(MLP, "fused(h, y)", {"M": 64, "D": 32, "F": 48})
    assert "`h` is computed in kernel mlp_h, apart from mlp_y" in message
    assert "note: refused h.sum with y" in message


def test_traffic_is_reported_in_bytes():
    message = failure(MLP, "traffic <= 1.05 * minimal", {"M": 64, "D": 32, "F": 48})
    assert re.search(r"traffic is \d+ bytes, minimal is 28672 bytes", message)


def test_parts_of_a_factor_are_tensors_of_their_own():
    """A kernel writes the three bf16 parts of an f32 factor, each with the indices of the source."""
    specialised, plan = planned(
        "op mm(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N]) { c[m, n] = sum[k](a[m, k] * b[k, n]) }",
        {"M": 4096, "N": 4096, "K": 4096}, "h200",
    )  # fmt: skip
    text = explain(plan, specialised)
    assert re.search(r"writes +c\.left \(3 tensors\)\n *grid .* blocks: m = \d+ in tiles of \d+, k = \d+ in", text)


def test_a_part_that_is_stored_counts():
    """The sum inside `s` is written, though `s` itself is computed in its readers."""
    text = (
        (EXAMPLES / "attention.tile")
        .read_text()
        .split("\n\nop causal")[0]
        .replace("\n}", "\n    expect fused(s, p)\n}", 1)
    )
    specialised, plan = planned(text, {"B": 1, "H": 1, "S": 32, "T": 1 << 18, "D": 16})
    with pytest.raises(TileError, match=r"s\.sum|s` is computed"):
        check_expectations(specialised, plan)


def test_an_input_is_never_fused():
    assert "`x` is an input" in failure(SOFTMAX, "fused(x, y)", {"M": 8, "N": 8})


def test_all_that_fail_are_reported_and_compile_refuses():
    text = MLP.replace("EXPECT", "expect kernels == 1\n    expect fused(h, y)\n    expect kernels == 2")
    with pytest.raises(TileError) as error:
        tilec.compile(text, target="cpu").build(M=8, D=8, F=8)
    assert len(error.value.diagnostics) == 2


def test_dividing_by_nothing_is_a_mistake():
    assert "this has no value: it divides by zero" in failure(SOFTMAX, "kernels / 0 > 1", {"M": 8, "N": 8})


def test_intensity_is_of_the_unit_that_the_ridge_is_of():
    """A GPU's instructions over a ridge of `exp`s a byte would call this kernel compute-bound."""
    text = explain(*reversed(planned(SOFTMAX.replace("EXPECT", ""), {"M": 4096, "N": 4096}, "h200")))
    pattern = r"intensity +\d\.\d+ operations \(f32\) a byte, the ridge is at 1\d\.\d+: below the ridge, so bound by memory"
    assert re.search(pattern, text)


def test_a_tile_of_one_thread_says_so():
    """The count was empty: no dimension has more than one thread."""
    _, plan = planned("op f(x: f32[2]) -> (y: f32[2]) { y[i] = x[i] + 1 }", {}, "h200")
    assert [r.reason for r in plan.remarks if r.verb == "tiled"] == ["1 thread, 2 elements an access, tiles of 2"]


SIZES = {
    "softmax": {"M": 64, "N": 4096}, "mlp": {"M": 256, "D": 256, "F": 512}, "layernorm": {"M": 64, "N": 16384},
    "linear": {"M": 256, "K": 256, "N": 256}, "cumsum": {"M": 64, "N": 4096}, "transpose": {"M": 512, "N": 512},
    "batched_einsum": {"B": 2, "I": 256, "J": 256, "K": 128, "L": 128},
}  # fmt: skip


@pytest.mark.parametrize("target", ["cpu", "h200"])
@pytest.mark.parametrize("name", SIZES)
def test_options_in_use_are_reported_with_the_names_of_indices(name, target):
    """Neither options that are off, nor numbers of dimensions, nor Python's tuples."""
    specialised, plan = planned((EXAMPLES / f"{name}.tile").read_text(), SIZES[name], target)
    text = explain(plan, specialised)
    assert not re.search(r"\(\d*,?\)|\bwalk|\bd\d+ (=|\d)|: False|  (no|none|0|\[\])$", text.replace("operations        none", ""))
    for kernel, reported in zip(plan.kernels, text.split("\nkernel ")[1:]):
        labels = re.findall(r"^  (\w+) ", reported.partition("\n\n")[0], re.MULTILINE)
        for field, value in kernel.options.fields():
            if field.name not in ("residency", "thread_order", "thread_counts") and not field.metadata["fixed"]:
                on = any(n > 1 for n in value) if field.metadata["by_dim"] else value != field.metadata["off"]
                assert (field.name in labels) == on or field.name in ("lanes",), (field.name, value, reported)


def test_dimensions_of_parts_and_of_packed_factors_have_names():
    """The names of the whole reduction stood for the dimensions of its parts."""
    text = "op f(x: f32[N]) -> (y: f32) { y = sum[i](x[i]) }"
    specialised, plan = planned(text, {"N": 1 << 24}, "h200")
    names = Provenance(specialised, plan).dimensions
    assert [set(names(k).values()) for k in plan.kernels] == [{"part", "i"}, {"part"}]
    packed = "op f(x: f32[M, K], w: f32[K, N]) -> (y: f32[M, N]) { y[m, n] = sum[k](x[m, k] * w[k, n]) using bf16 }"
    specialised, plan = planned(packed, {"M": 4096, "K": 4096, "N": 4096}, "h200")
    names = Provenance(specialised, plan).dimensions
    left, right = (next(k for k in plan.kernels if k.nodes == (f"y.{side}",)) for side in ("left", "right"))
    assert tuple(names(left).values()) == ("m", "k") and set(names(right).values()) == {"n", "k"}
