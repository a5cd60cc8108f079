"""The amount that explains a measured time: mispricings are planted, and what is right stands for the measured time."""

import re
from dataclasses import replace

import pytest
from tools.explained import planned

from tilec.core.fitted import WarpgroupTimes
from tilec.core.targets import load
from tilec.cost.blame import causes, scaled
from tilec.cost.model import Work, predict
from tilec.plan import chain as plan_chain
from tilec.plan.report.explain import Observed, explain

H200 = load("h200")
ATTENTION = """op f(q: bf16[H, S, D], k: bf16[H, S, D], v: bf16[H, S, D]) -> (o: bf16[H, S, D]) {{
    t[h, i, j] = sum[d](q[h, i, d] * k[h, j, d]) / 8
    s[h, i, j] = {score}
    p[h, i, j] = softmax[j](s[h, i, j])
    o[h, i, d] = sum[j](p[h, i, j] * v[h, j, d]) using bf16
}}"""
CAPPED = ATTENTION.format(score="20 * tanh(t[h, i, j] / 20)")
PLAIN = ATTENTION.format(score="t[h, i, j]")
SIZES = {"H": 32, "S": 4096, "D": 128}
PRODUCT = "op f(a: bf16[M, K], b: bf16[K, N]) -> (y: bf16[M, N]) { y[m, n] = sum[k](a[m, k] * b[k, n]) }"
EPILOGUE = """op f(a: bf16[M, K], b: bf16[K, N], r: bf16[M, N]) -> (y: bf16[M, N]) {
    h[m, n] = sum[k](a[m, k] * b[k, n])
    y[m, n] = tanh(h[m, n]) * sigmoid(h[m, n]) + exp(-abs(h[m, n])) * r[m, n]
}"""
CONVERTED = "op f(a: bf16[M, K], b: i8[K, N]) -> (y: bf16[M, N]) { y[m, n] = sum[k](a[m, k] * b[k, n]) }"
LOGSUMEXP = "op f(x: bf16[M, K], w: bf16[N, K]) -> (y: f32[M]) { y[i] = logsumexp[j](sum[k](x[i, k] * w[j, k])) }"
ROWS = "op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = x[i, j] + 1 }"
ARITHMETIC = ("float arithmetic", "special functions")  # whichever was assumed to take longer
CUBE = {"M": 4096, "N": 4096, "K": 4096}


def fitted(target, group, **numbers):
    """The target with other fitted numbers."""
    groups = target.fitted.groups
    known = groups | {group.name: replace(groups[group.name], **numbers)}
    return replace(target, fitted=replace(target.fitted, groups=known))


def reported(text, sizes, target, measured):
    """The verdict of `explain` on the last kernel, of which `measured` is the time by its name."""
    specialised, plan = planned(text, sizes, target)
    kernel = plan.kernels[-1]
    report = explain(plan, specialised, Observed({kernel.name: measured}))
    return next(line for line in report.splitlines() if line.startswith("  model")).removeprefix("  model").strip(), kernel


def time_of(text, sizes, target, work=None):
    """The predicted time of the last kernel, or that of its work with this change."""
    _, plan = planned(text, sizes, target)
    kernel = plan.kernels[-1]
    return predict(work(kernel.work) if work else kernel.work, target).time_us


def more(unit, factor):
    """A change of a work: so many times the operations of a unit, wherever they stand."""

    def change(work):
        flops = {u: n * (factor if u.partition(".")[0] == unit else 1) for u, n in work.flops.items()}
        times = {
            name: {u: us * (factor if u == unit else 1) for u, us in getattr(work, name).items()}
            for name in ("idle_us", "exposed_us")
        }
        return replace(work, flops=flops, **times)

    return change


def test_a_tanh_that_was_priced_as_one_operation(monkeypatch):
    """Its chain took five times the predicted time, for which the matrix units were blamed."""
    right = time_of(CAPPED, SIZES, H200, more("special", 6))
    monkeypatch.setitem(plan_chain._SPECIAL, "math.tanh", 1)
    verdict, _ = reported(CAPPED, SIZES, H200, right)
    assert verdict.startswith(ARITHMETIC)


def test_the_compiled_kernel_distinguishes_arithmetic_from_waits():
    """The same measured time: where the compiled kernel has the operations that were assumed, units waited."""
    specialised, plan = planned(CAPPED, SIZES, H200)
    (kernel,) = plan.kernels
    assumed = {"fma": kernel.work.flops["fma.f32"], "special": kernel.work.flops["special"]}
    late = 4 * kernel.prediction.time_us
    as_many, more_of = (causes(kernel.work, H200, late, {u: f * n for u, n in assumed.items()})[0] for f in (1, 5))
    assert as_many.name == "waits" and more_of.name == "arithmetic"
    report = explain(plan, specialised, Observed({kernel.name: late}, {kernel.name: {u: 5 * n for u, n in assumed.items()}}))
    assert re.search(r"(special functions|float arithmetic): .*; the compiled kernel has 5 times as many", report)


@pytest.mark.parametrize("text, sizes, unit, factor, name", [
    (CAPPED, SIZES, "special", 8, ARITHMETIC),
    (PLAIN, SIZES, "fma", 8, ARITHMETIC),
    (EPILOGUE, CUBE | {"K": 512}, "fma", 12, ARITHMETIC),
    (LOGSUMEXP, {"M": 8192, "N": 8192, "K": 64}, "special", 4, ARITHMETIC),
    (PRODUCT, CUBE, "tensor", 1.4, "matrix units"),
])  # fmt: skip
def test_operations_that_were_priced_too_low(text, sizes, unit, factor, name):
    verdict, _ = reported(text, sizes, H200, time_of(text, sizes, H200, more(unit, factor)))
    assert verdict.startswith(name)


def test_factors_that_are_converted():
    sizes = {"M": 64, "N": 4096, "K": 4096}
    verdict, _ = reported(CONVERTED, sizes, H200, time_of(CONVERTED, sizes, H200, more("int", 6)))
    assert verdict.startswith("integer arithmetic")


def test_waits_between_tiles():
    slow = fitted(H200, WarpgroupTimes, tile_us=6.0)
    sizes = {"M": 8192, "N": 8192, "K": 256}
    verdict, kernel = reported(PRODUCT, sizes, H200, 1e3)
    waits = kernel.work.idle_us["waits"] * 6.0 / H200.fit(WarpgroupTimes).tile_us
    late = predict(replace(kernel.work, idle_us={"waits": waits}), slow).time_us
    verdict, _ = reported(PRODUCT, sizes, H200, late)
    assert verdict.startswith("waits for loads and between steps: ")


def test_memory_that_was_slower():
    slow = replace(H200, dram=replace(H200.dram, achievable=H200.dram.achievable / 2))
    sizes = {"M": 16384, "N": 16384}
    verdict, _ = reported(ROWS, sizes, H200, time_of(ROWS, sizes, slow))
    assert verdict.startswith("DRAM") and "4.18 TB/s assumed, 2.1" in verdict


def test_a_launch_that_took_longer():
    verdict, _ = reported(ROWS, {"M": 8, "N": 8}, H200, 30.0)
    assert verdict.startswith("launch: 4.0 us assumed")


def test_a_factor_gives_the_measured_time():
    work = Work(dram_read=1e9, flops={"special": 1e9}, blocks=132)
    time = predict(work, H200).time_us
    for measured in (0.9 * time, 3 * time):
        for cause in causes(work, H200, measured):
            assert predict(*scaled(cause.name, work, H200, cause.factor)).time_us == pytest.approx(measured, rel=1e-3)
        assert {"dram", "waits"} <= {c.name for c in causes(work, H200, measured)}
    assert causes(work, H200, 1e-3) == []
