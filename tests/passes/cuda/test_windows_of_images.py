"""Windows of whole images: what a mean of all places, and numbers of channels that no power of two divides, make of their plans."""

import re
from dataclasses import replace

import numpy as np
import pytest
from conftest import assert_within
from tools.cuda_kernels import compiled
from tools.emulation import run_printed
from tools.lowering import emitted, lowered, planned

from tilec.core.dtypes import DTYPES
from tilec.core.targets import load
from tilec.plan.cuda import choose, columns, windows

H200 = load("h200")
ONE = replace(H200, units=1)  # small programs fill it


def excited(channels: int, size: int, window: int, stride: int = 1, last: bool = False, n: int = 64) -> str:
    """A depthwise convolution, an activation, and the mean of all places, which squeeze-and-excite reads. `last`: weights have
    channels last."""
    out, pad = size // stride, window // 2
    shape, weight = (f"{window}, {window}, {channels}", "r, s, c") if last else (f"{channels}, 1, {window}, {window}", "c, 0, r, s")
    where = f"where n in 0:{n}, h in 0:{out}, w in 0:{out}, c in 0:{channels}"
    return f"""op f(x: bf16[{n}, {size}, {size}, {channels}], f: bf16[{shape}], b: bf16[{channels}])
            -> (y: bf16[{n}, {out}, {out}, {channels}], m: bf16[{n}, {channels}]) {{
        t[n, h, w, c]: f32 = sum[r in 0:{window}, s in 0:{window}](
            pad(x[n, h * {stride} + r - {pad}, w * {stride} + s - {pad}, c], 0) * f[{weight}]) {where}
        y[n, h, w, c]: bf16 = relu(t[n, h, w, c] + b[c]) {where}
        m[n, c]: bf16 = mean[h in 0:{out}, w in 0:{out}](y[n, h, w, c]) where n in 0:{n}, c in 0:{channels}
    }}"""


SHAPES = [(120, 28, 5, 1), (72, 56, 5, 2), (672, 14, 3, 1), (960, 7, 5, 1)]  # of MobileNetV3
FUSED = "operations = [{}]".format(", ".join(f'"{n}"' for n in ("t", "y", "m.sum", "m")))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_mean_of_all_places_and_windows_are_separate_kernels(shape):
    """One kernel of both has a block of four warps on an SM, which took five times as long as predicted."""
    plan = planned(excited(*shape), None, {})
    *_, sums, mean = plan.kernels
    assert {*sums.nodes} == {"t", "y"} and sums.options.adjacent_steps and {*mean.nodes} == {"m.sum", "m"}
    assert sums.blocks > 2 * H200.units and sums.work.registers <= 168
    assert plan.time_us < 45


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.slow
def test_kernels_of_windows_and_means_have_no_local_memory(shape):
    pytest.importorskip("numba_cuda_mlir.cuda")
    for _, cubin in compiled(emitted(excited(*shape), None, {}, "h200"), "sm_90a"):
        assert cubin.spills == cubin.stack == 0


@pytest.fixture
def together(tmp_path):
    """The schedule that makes all of a program one kernel."""
    from tilec.plan.schedule.write import read_schedule

    text = excited(*SHAPES[0], last=True)
    name = "f(x: bf16[64, 28, 28, 120], f: bf16[5, 5, 120], b: bf16[120])"
    (path := tmp_path / "f.sched.toml").write_text(
        f'version = 2\n[[plan]]\nprogram = "{name}"\ntarget = "h200"\ninline = ["relu.x"]\n[plan.kernels.f_y_m]\n{FUSED}\n'
    )
    return lowered(text, None, {}, schedule=read_schedule(path))[1]


def test_a_thread_holds_few_elements_of_windows_in_loops(together):
    """Two places along h, four along w, windows of five and eight channels were 320 elements, beside 64 sums: 1,292 bytes of them
    were in local memory. All that a thread holds counts as registers."""
    (kernel,) = together.plan.kernels
    held = kernel.options.layout(dict(kernel.extents)).slots(kernel.dims["t"])
    assert 64 <= held <= 128 and 40 + held <= kernel.work.registers <= 168


@pytest.mark.slow
def test_such_a_kernel_has_no_local_memory(together):
    pytest.importorskip("numba_cuda_mlir.cuda")
    ((_, cubin),) = compiled(together.emitted, "sm_90a")
    assert cubin.spills == cubin.stack == 0 and cubin.registers <= together.plan.kernels[0].work.registers + 8


def test_few_warps_wait_for_themselves(together):
    """A scheduler has one warp, whose next instruction is ready some clocks after the last."""
    (kernel,) = together.plan.kernels
    clocks = kernel.work.warp_clocks
    assert kernel.prediction.occupancy.blocks * kernel.options.block_threads == H200.sm.issued and clocks > 1
    rate = H200.peak("fma.f32") * kernel.prediction.wave_efficiency * kernel.work.lanes / clocks
    assert kernel.prediction.terms["fma"] == pytest.approx(1e6 * kernel.work.flops["fma.f32"] / rate)


@pytest.mark.parametrize("channels, lanes", [(120, 16), (72, 8), (144, 8), (96, 8)])
def test_threads_next_to_the_last_channels(channels, lanes):
    """120 channels are 30 vectors of 4 elements, which 2 threads divide, and no higher power of two: 16 bytes of a line."""
    *_, sums, _ = planned(excited(channels, 28, 5), None, {}).kernels
    lane = sums.options.thread_order[0]
    stored = 2 * sums.options.thread_counts[lane] * max(sums.options.vectors)
    assert sums.extents[lane] == channels and stored >= 2 * lanes and stored >= 32
    assert sums.work.lanes == channels / (-(-channels // sums.tile[-1]) * sums.tile[-1])


@pytest.mark.parametrize("kind, channels, threads", [("bf16", 24, 4), ("bf16", 40, 4), ("f32", 20, 8)])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_guard_stands_around_all_neighbours(kind, channels, threads, stride, rng, monkeypatch):
    for module in (columns, windows):
        monkeypatch.setattr(module, "THREADS", 16)
    monkeypatch.setattr(choose, "WINDOWS_THRESHOLD", 0)
    monkeypatch.setattr(columns, "_lanes", lambda *_: [threads])
    text = f"""op f(x: {kind}[N, {stride} * H, {stride} * W, C], f: {kind}[3, 3, C]) -> (y: {kind}[N, H, W, C]) {{
        y[n, h, w, c] = sum[r, s](pad(x[n, {stride} * h + r - 1, {stride} * w + s - 1, c], 0) * f[r, s, c])
    }}"""
    shapes = {"x": (8, 4 * stride, 8 * stride, channels), "f": (3, 3, channels)}
    inputs = {name: rng.standard_normal(shape).astype(DTYPES[kind].numpy) for name, shape in shapes.items()}
    special, result = lowered(text, None, inputs, target=ONE)
    (kernel,) = result.plan.kernels
    assert kernel.options.adjacent_steps and kernel.options.thread_counts[3] == threads
    assert channels % (threads * kernel.options.vectors[3])
    (out,), failed = run_printed(special, result, inputs)
    assert not any(failed)
    assert_within(text, inputs, out, kind="cuda")


MEAN = "op f(x: bf16[N, H, W, C]) -> (y: bf16[N, C]) { y[n, c] = mean[h, w](x[n, h, w, c]) }"


def test_guarded_loads_of_a_mean_do_not_wait(rng):
    """Each of 8 threads has two of 14 lines or one, and steps along 14 places. A branch around each load had all wait for one
    another: 21 us for the mean of 64 images of 14 x 14 places and 576 channels on an H200, where 6 were predicted."""
    _, result = lowered(MEAN, None, {"N": 64, "H": 14, "W": 14, "C": 576})
    (kernel,) = result.plan.kernels
    text = result.emitted.module
    assert 14 % kernel.options.steps[3] == 0  # no guard along w
    printed = text[text.index("def f_y") :]
    before = printed[: printed.index("load_bf16x")]
    assert re.search(r"load_bf16x\d\w*_where\(x_1", printed) and not re.search(r"^ *if ", before, re.MULTILINE)


@pytest.mark.parametrize("height, width", [(11, 13), (9, 3)])
def test_loads_under_two_guards(height, width, rng, monkeypatch):
    """Of lines and of channels."""
    monkeypatch.setattr(columns, "THREADS", 32)
    x = rng.standard_normal((2, height, width, 24)).astype(DTYPES["bf16"].numpy)
    special, result = lowered(MEAN, None, {"x": x}, target=ONE)
    (out,), failed = run_printed(special, result, {"x": x})
    assert not any(failed)
    assert_within(MEAN, {"x": x}, out, kind="cuda")
    assert np.isfinite(out.astype(np.float32)).all()


def test_few_columns_have_small_blocks():
    """A mean of 49 places, which no threads share: 32 blocks of 256 threads with 8 elements each would leave 100 SMs idle."""
    (kernel,) = planned(MEAN, None, {"N": 64, "H": 7, "W": 7, "C": 960}).kernels
    assert kernel.blocks > 0.9 * H200.units and kernel.prediction.time_us < 7.5
