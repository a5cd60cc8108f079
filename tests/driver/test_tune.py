"""Candidates of plans, `tilec tune`, and `explain --measure`: what else there is, measured, right, and written down."""

from __future__ import annotations

import re

import pytest
from tools import ROOT
from tools.commands import SOFTMAX, examples_folder, tilec_command  # noqa: F401 - fixtures

import tilec
from tilec.core.source import read_source
from tilec.core.targets import load
from tilec.driver import devices, measure
from tilec.driver.frontend import read_program
from tilec.driver.tune import candidates, combined, compiled, spread
from tilec.dsl.specialise import specialise
from tilec.plan.schedule.read import read_schedule

EXAMPLES = ROOT / "examples"
PROGRAMS = {
    "rows": ("softmax.tile", {"M": 512, "N": 4096}),
    "long rows": ("softmax.tile", {"M": 64, "N": 65536}),
    "odd rows": ("softmax.tile", {"M": 37, "N": 1003}),
    "points": ("gelu.tile", {"M": 100, "N": 1000}),
    "transposes": ("transpose.tile", {"M": 128, "N": 192}),
    "columns": ("variance.tile", {"M": 300, "N": 200}),
    "scans": ("cumsum.tile", {"M": 1024, "N": 1024}),
    "contractions": ("linear.tile", {"M": 256, "N": 256, "K": 128}),
    "walks": ("attention.tile", {"B": 1, "H": 2, "S": 256, "T": 256, "D": 64}),
}


def specialised(file: str, sizes: dict[str, int]):
    op = {"attention.tile": "attention"}.get(file)
    return specialise(read_program(read_source(EXAMPLES / file)).tree, op, None, sizes)


@pytest.mark.crossed
@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_candidates_are_the_choice_and_others(name, target):
    """The first is the compiler's plan, all differ, and each says of itself how."""
    special = specialised(*PROGRAMS[name])
    found = candidates(special, load(target), 6)
    own = found[0].plan
    assert len(found) > 1 and len({c.schedule for c in found}) == len(found)
    assert found[0].kernel is None and found[0].describe(own) == "the compiler's choice"
    assert all(c.describe(own) and c.predicted_us > 0 and len(c.plan.kernels) == len(own.kernels) for c in found)


@pytest.mark.parametrize("name", ["rows", "points", "transposes", "columns", "scans"])
def test_candidates_for_a_gpu_compile(name):
    """What a schedule file then says can be carried out, and is what was predicted."""
    special = specialised(*PROGRAMS[name])
    for candidate in candidates(special, load("sm_90a"), 3):
        made = compiled(candidate, special, load("sm_90a")).recipe.lowered[1].plan
        assert [(k.tile, k.options) for k in made.kernels] == [(k.tile, k.options) for k in candidate.plan.kernels]


def test_the_spread_has_the_first_and_some_of_the_rest():
    assert spread(list("abcdefgh"), 4) == ["a", "b", "c", "f"]
    assert spread(list("abc"), 4) == ["a", "b", "c"] and spread(list("abc"), 1) == ["a"]


def test_kernels_are_combined(tmp_path):
    """The best of every kernel in one plan; nothing where only one has a better plan."""
    text = "op two(x: f32[M, N]) -> (y: f32[M], z: f32[N]) { y[i] = sum[j](x[i, j])  z[j] = max[i](x[i, j]) }"
    special = specialise(read_program(read_source(text)).tree, None, None, {"M": 2048, "N": 512})
    own, *others = candidates(special, load("cpu"), 2)
    kernels = {c.kernel for c in others}
    if len(own.plan.kernels) > 1:
        assert len(kernels) == len(own.plan.kernels)
        made = combined(own.plan, others, special)
        assert made is not None and all(a != b for a, b in zip(made.plan.kernels, own.plan.kernels))
    assert combined(own.plan, [c for c in others if c.kernel == others[0].kernel], special) is None


# ---- the command -----------------------------------------------------------------------------------------------------


def clock(monkeypatch, fastest: int):
    """Timing that finds the plan of this number the fastest, by far, whatever the machine does."""
    ranks: dict[int, float] = {}

    def interleaved(device, executables, budget, rounds=5):
        for e in executables:
            ranks.setdefault(id(e), 100.0 - 50 * (len(ranks) == fastest))
        return [ranks[id(e)] for e in executables]

    monkeypatch.setattr(measure, "interleaved", interleaved)


def test_tune_writes_what_schedule_then_obeys(tilec, folder, monkeypatch):
    clock(monkeypatch, 2)
    status, out, err = tilec("tune", *SOFTMAX, "--trials", 3)
    assert status == 0, err
    assert "4 plans measured: 2.00 times as fast" in out and "*       50.0 us" in out
    text = (folder / "softmax.sched.toml").read_text()
    assert "50.0 us measured, 100.0 us for the compiler's own plan" in text
    read_schedule(folder / "softmax.sched.toml")
    status, out, err = tilec("run", *SOFTMAX, "--check")
    assert status == 0 and "obeyed softmax_y" in err, out + err
    status, _, err = tilec("tune", *SOFTMAX, "--trials", 1)
    assert status == 1 and "has another plan" in err
    clock(monkeypatch, 0)
    status, out, _ = tilec("tune", *SOFTMAX, "--trials", 1, "--force")
    assert status == 0 and "the compiler's choice stays" in out
    assert "obeyed" not in tilec("run", *SOFTMAX)[2]


def test_tune_leaves_out_what_is_wrong(tilec, monkeypatch):
    """A plan whose results are out of bounds never wins; where the compiler's own are, that is the news."""
    results, count = devices.Host.results, []

    def spoilt(self):
        count.append(1)
        return {n: a + (1e-3 if len(count) in bad else 0) for n, a in results(self).items()}

    monkeypatch.setattr(devices.Host, "results", spoilt)
    bad = {3}
    clock(monkeypatch, 1)
    status, out, err = tilec("tune", *SOFTMAX, "--trials", 3, "-o", "-")
    assert status == 0 and "3 plans measured" in out and "results out of bounds" in err
    bad, _ = {1}, count.clear()
    status, _, err = tilec("tune", *SOFTMAX, "--trials", 3, "-o", "-")
    assert status == 1 and "the compiler's own plan gives wrong results" in err


def test_tune_needs_a_device(tilec, monkeypatch):
    from tilec.runtime.cuda import driver as cuda_driver

    info = cuda_driver.device_info()
    if not info.devices:
        status, _, err = tilec("tune", *SOFTMAX, "--target", "sm_90a")
        assert status == 1 and "there is no GPU" in err
    assert tilec("tune", *SOFTMAX, "--trials", 0)[0] == 1


def test_tuning_measures_in_turn():
    """The median over rounds that go through all of them; kernels by what they add."""

    class Device:
        def __init__(self):
            self.order = []

        def run(self, executable):
            pass

        def time(self, executable, repeats):
            self.order.append(executable)
            return [1e-6 * executable.us] * repeats

    class Program:
        target = load("cpu")

        def __init__(self, us):
            self.us = us

    device, programs = Device(), [Program(5), Program(7)]
    assert measure.interleaved(device, programs, 0.001) == pytest.approx([5, 7])
    assert device.order == programs * measure.ROUNDS


def test_explain_measures_every_kernel(tilec, monkeypatch):
    status, out, err = tilec("explain", "mlp.tile", "-D", "M=16,D=24,F=32", "--measure", "--full")
    assert status == 0, err
    count = int(out.split("  kernels ")[1].split()[0])
    times = re.findall(r"predicted, \S+ [um]s measured|, \S+ [um]s measured \(", out)
    assert len(times) == count + 1 and out.count("  model ") == count > 1
    monkeypatch.setattr(measure, "kernel_times", lambda device, executable: {"softmax_y": 1e4})
    _, out, _ = tilec("explain", *SOFTMAX, "--measure", "--kernel", "y")
    assert "assumed" in out and ("reached" in out or "measured" in out)


def test_kernel_times_are_of_all_kernels(monkeypatch):
    text = "op two(x: f32[M, N]) -> (y: f32[M, N]) { s = sum[i, j](x[i, j])  y[i, j] = x[i, j] / s }"
    op = tilec.compile(text, target="cpu").build(M=300, N=200)
    from numpy import ones

    inputs = {"x": ones((300, 200), "float32")}
    with devices.open_device("cpu", inputs, op._last.outputs) as device:
        found = measure.kernel_times(device, op._last, 0.01)
    assert list(found) == [k.name for k in op.kernels] and all(t >= 0 for t in found.values())
