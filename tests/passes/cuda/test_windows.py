"""Windows along grid dimensions: a thread has neighbours, and loads the elements that their windows share once."""

import re
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from conftest import assert_within
from tools.cuda_kernels import compiled
from tools.emulation import run_printed
from tools.lowering import emitted, lowered

from tilec.core.diagnostics import CallError
from tilec.core.dtypes import DTYPES
from tilec.core.targets import load
from tilec.plan.cuda import choose, columns, windows
from tilec.semantics.interpreter import interpret

ONE = replace(load("h200"), units=1)  # small programs fill it
PAD, PAD_ONE = "pad(x[n, h + r - 1, w + s - 1, c], 0)", "pad(x[n, h + r - 1, w + s - 1, c], 1)"
WINDOWS = {  # the sum's term; R; the dimensions along which windows share elements
    "depthwise": (f"{PAD} * f[r, s, c]", 3, (1, 2)),
    "five wide": (f"{PAD} * f[r, s, c]", 5, (1, 2)),
    "seven wide": (f"{PAD} * f[r, s, c]", 7, (1, 2)),
    "padded by 1": (f"{PAD_ONE} * f[r, s, c]", 3, (1, 2)),
    "without padding": ("x[n, min(h + r, H - 1), min(w + s, W - 1), c] * f[r, s, c]", 3, (1, 2)),
    "along h": ("pad(x[n, h + r - 1, w, c], 0) * f[r, s, c]", 3, (1,)),
    "a sum": (PAD, 3, (1, 2)),
    "dilated": ("pad(x[n, h + 2 * r - 2, w + 2 * s - 2, c], 0) * f[r, s, c]", 3, (1, 2)),
    "apart": ("pad(x[n, 2 * h + r - 1, 2 * w + s - 1, c], 0) * f[r, s, c]", 3, (1, 2)),
    "apart along w": ("pad(x[n, h + r - 1, 2 * w + s - 1, c], 0) * f[r, s, c]", 3, (1, 2)),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(columns, "THREADS", 16)
    monkeypatch.setattr(windows, "THREADS", 16)
    monkeypatch.setattr(choose, "WINDOWS_THRESHOLD", 0)  # the fewest instructions: times of small programs tell nothing


def program(kind: str, term: str, window: int) -> str:
    return f"""op dw(x: {kind}[N, H, W, C], f: {kind}[{window}, {window}, C]) -> (y: {kind}[N, H, W, C]) {{
        y[n, h, w, c] = sum[r in 0:{window}, s in 0:{window}]({term})
    }}"""


def drawn(kind: str, window: int, height: int, width: int, rng) -> dict[str, np.ndarray]:
    shapes = {"x": (8, height, width, 16), "f": (window, window, 16)}
    return {name: rng.standard_normal(shape).astype(DTYPES[kind].numpy) for name, shape in shapes.items()}


SLOW = ("seven wide", "five wide")  # emulated


@pytest.mark.crossed
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in WINDOWS])
@pytest.mark.parametrize("kind", ["bf16", "f32"])
@pytest.mark.parametrize("height, width", [(4, 8), (3, 7)])
def test_neighbours_share_windows(name, kind, height, width, rng):
    term, window, along = WINDOWS[name]
    text, inputs = program(kind, term, window), drawn(kind, window, height, width, rng)
    special, result = lowered(text, None, inputs, target=ONE)
    (kernel,) = result.plan.kernels
    divided = {d for d in along if any((height, width)[d - 1] % n == 0 for n in range(2, 8))}
    assert set(kernel.options.adjacent_steps) <= divided and kernel.options.adjacent_steps
    (out,), failed = run_printed(special, result, inputs)
    assert not any(failed)
    assert_within(text, inputs, out, kind="cuda")
    if kind == "f32" and height == 3:
        assert_within(text, inputs, list(interpret(result.texts["map"], inputs).values()), kind="cuda")


@pytest.mark.some(6)
@pytest.mark.parametrize("name", [n for n in WINDOWS if n not in ("apart", "apart along w")])
@pytest.mark.parametrize("height, width", [(5, 7), (13, 2), (1, 23)])
def test_neighbours_that_do_not_divide_a_dimension(name, height, width, rng):
    """The last tile has fewer: what these need is loaded, in the first rounds of a loop along windows and in later ones."""
    term, window, along = WINDOWS[name]
    text, inputs = program("f32", term, window), drawn("f32", window, height, width, rng)
    special, result = lowered(text, None, inputs, target=ONE)
    (kernel,) = result.plan.kernels
    assert set(kernel.options.adjacent_steps or ()) <= {*along}
    assert kernel.options.adjacent_steps or height == 1
    (out,), failed = run_printed(special, result, inputs)
    assert not any(failed)
    assert_within(text, inputs, out, kind="cuda")


@pytest.mark.crossed
@pytest.mark.parametrize("height, width", [(4, 8), (6, 7)])
@pytest.mark.parametrize("kind", ["bf16", "f32"])
@pytest.mark.parametrize(
    "term", ["pad(x[n, c, h + r - 1, w + s - 1], 0)", "x[n, c, min(h + r, H - 1), min(w + s, W - 1)]"]
)
def test_neighbours_share_windows_channels_first(term, kind, height, width, rng):
    """Vectors would lie along a window: single elements, which neighbours along the height share."""
    text = f"""op dw(x: {kind}[N, C, H, W], f: {kind}[C, 3, 3]) -> (y: {kind}[N, C, H, W]) {{
        y[n, c, h, w] = sum[r, s]({term} * f[c, r, s])
    }}"""
    shapes = {"x": (8, 16, height, width), "f": (16, 3, 3)}
    inputs = {name: rng.standard_normal(shape).astype(DTYPES[kind].numpy) for name, shape in shapes.items()}
    special, result = lowered(text, None, inputs, target=ONE)
    (kernel,) = result.plan.kernels
    assert kernel.options.adjacent_steps == (2,)
    (out,), failed = run_printed(special, result, inputs)
    assert not any(failed)
    assert_within(text, inputs, out, kind="cuda")
    loaded = counted(result.emitted.module, rf"load_{kind}x1_nc_where\(x_1|= load_{kind}\(x ")
    assert loaded == (kernel.options.steps[2] + 2) * 3


def gradient(kind: str, window: int, step: int = 1) -> str:
    """Of depthwise weights."""
    pad = window // 2
    return f"""op dw(d: {kind}[N, H, W, C], x: {kind}[N, {step} * H, {step} * W, C]) -> (g: f32[C, {window}, {window}]) {{
        g[c, r, s] = sum[n, h, w](d[n, h, w, c] * pad(x[n, {step} * h + r - {pad}, {step} * w + s - {pad}, c], 0))
    }}"""


@pytest.mark.parametrize("kind, step", [("bf16", 1), ("f32", 1), ("bf16", 2)])
def test_neighbours_share_long_windows(kind, step, rng):
    """A loop along a line of an image is written out, and loads each element of its windows once."""
    text, shapes = gradient(kind, 3, step), {"d": (9, 12, 9, 16), "x": (9, 12 * step, 9 * step, 16)}
    inputs = {name: rng.standard_normal(shape).astype(DTYPES[kind].numpy) for name, shape in shapes.items()}
    special, result = lowered(text, None, inputs, target=ONE)
    kernel, printed = result.plan.kernels[0], result.emitted.module
    (near,) = kernel.options.adjacent_steps
    assert kernel.options.steps[near] == kernel.extents[near] == 3
    each = [int(n) for n in re.findall(r"for (?:n|n_chunk|h|h_chunk) in \w+\((\d+)\)", printed)]
    loaded = counted(printed, r"load_\w+_nc_where\(x_1")
    assert loaded == prod(each) * (step * 8 + 2 + 1)
    (out,), failed = run_printed(special, result, inputs)
    assert not any(failed)
    assert_within(text, inputs, out, kind="cuda")


@pytest.mark.parametrize("order", ["w, h, n", "n, w, h"])
def test_no_loop_is_inside_one_along_a_line(order, rng):
    """What a round keeps for the next would be of the last round of the loop inside."""
    text = gradient("f32", 3).replace("n, h, w](", f"{order}](")
    inputs = {name: rng.standard_normal((3, 9, 11, 16)).astype(np.float32) for name in "dx"}
    special, result = lowered(text, None, inputs, target=ONE)
    (out,), failed = run_printed(special, result, inputs)
    assert not any(failed)
    assert_within(text, inputs, out, kind="cuda")


@pytest.mark.parametrize("size, channels", [(14, 384), (7, 768)])
def test_the_gradient_of_depthwise_weights_fills_the_machine(size, channels, monkeypatch):
    monkeypatch.undo()  # blocks as they are
    sums, *_ = lowered(gradient("bf16", 7), None, {"N": 64, "H": size, "W": size, "C": channels})[1].plan.kernels
    assert sums.options.adjacent_steps and sums.blocks * sums.options.block_threads >= 256 * load("h200").units
    products = 64 * size * size * channels * 49
    assert sums.work.flops["fma.f32"] / 2 < 2.5 * products  # instructions


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bf16", "f32"])
@pytest.mark.parametrize("size, channels, window", [(56, 96, 7), (14, 384, 7), (7, 768, 7), (112, 32, 3), (7, 960, 5)])
def test_gradients_of_depthwise_weights_compile_without_spills(size, channels, window, kind, monkeypatch):
    monkeypatch.undo()  # blocks as they are
    pytest.importorskip("numba_cuda_mlir.cuda")
    made = emitted(gradient(kind, window), None, {"N": 64, "H": size, "W": size, "C": channels}, "h200")
    for _, cubin in compiled(made, "sm_90a"):
        assert cubin.spills == cubin.stack == 0


def test_threads_share_the_sums_of_neighbours(rng):
    """Where results are few: here along n, while windows are along h and w."""
    text = gradient("bf16", 3)
    inputs = {name: rng.standard_normal((37, 4, 4, 16)).astype(DTYPES["bf16"].numpy) for name in "dx"}
    special, result = lowered(text, None, inputs, target=ONE)
    kernel = result.plan.kernels[0]
    assert kernel.options.adjacent_steps and not {*kernel.options.thread_order} <= {*kernel.grid}
    (out,), failed = run_printed(special, result, inputs)
    assert not any(failed)
    assert_within(text, inputs, out, kind="cuda")


@pytest.mark.parametrize("window", [3, 7])
@pytest.mark.parametrize("kind", ["bf16", "f32"])
def test_shared_elements_are_loaded_once(kind, window, rng):
    """The registers of x have (neighbours + window - 1) elements along each dimension, times a vector, and each is loaded once."""
    inputs = drawn(kind, window, 4, 8, rng)
    _, result = lowered(program(kind, f"{PAD} * f[r, s, c]", window), None, inputs, target=ONE)
    (kernel,) = result.plan.kernels
    near, vector, text = kernel.options.adjacent_steps, kernel.options.vectors[3], result.emitted.module
    assert near == (1, 2)
    places = [kernel.options.steps[d] + window - 1 for d in near]
    (held,) = re.findall(r"x_1 = cuda.local.array\((\d+),", text)
    assert int(held) == prod(places) * vector
    loaded = counted(text, rf"load_{kind}x{vector}_nc_where\(x_1")
    assert loaded == prod(places)


@pytest.mark.slow
@pytest.mark.parametrize("chip, target", [("sm_80", "a100"), ("sm_90a", "h200")])
@pytest.mark.parametrize("name", ["depthwise", "seven wide", "apart"])
@pytest.mark.parametrize("kind", ["bf16", "f32"])
def test_windows_compile_without_spills(kind, name, chip, target, monkeypatch):
    monkeypatch.undo()  # blocks as they are
    pytest.importorskip("numba_cuda_mlir.cuda")
    term, window, _ = WINDOWS[name]
    made = emitted(program(kind, term, window), None, {"N": 32, "H": 56, "W": 56, "C": 96}, target)
    for _, cubin in compiled(made, chip):
        assert cubin.spills == cubin.stack == 0


def counted(text: str, line: str) -> int:
    """How many times the lines that match are run, by the loops with constant bounds around them."""
    total, loops = 0, []
    for row in text.splitlines():
        depth = len(row) - len(row.lstrip())
        loops = [(d, n) for d, n in loops if d < depth]
        if found := re.match(r"\s*for \w+ in \w+\((?:(\d+), )?(\d+)\):", row):
            loops.append((depth, int(found[2]) - int(found[1] or 0)))
        total += prod(n for _, n in loops) if re.search(line, row) else 0
    return total


def test_padding_is_loaded_under_its_condition(rng):
    printed = {}
    for term in (PAD, PAD_ONE):
        inputs = drawn("bf16", 3, 4, 8, rng)
        _, result = lowered(program("bf16", f"{term} * f[r, s, c]", 3), None, inputs, target=ONE)
        printed[term] = result.emitted.module
    assert re.search(r"load_bf16x4_nc_where\(x", printed[PAD]) and "max(" not in printed[PAD]
    assert re.search(r"load_bf16x4_nc_where\(x", printed[PAD_ONE]) and "max(" not in printed[PAD_ONE]


def test_schedules_that_cut_neighbours_are_refused(tmp_path, rng):
    from tilec.plan.schedule.write import read_schedule, write_schedule

    text, inputs = program("bf16", WINDOWS["depthwise"][0], 3), drawn("bf16", 3, 4, 8, rng)
    special, result = lowered(text, None, inputs, target=ONE)
    schedule = write_schedule(result.plan, special)
    path = tmp_path / "program.sched.toml"
    for edited in (
        re.sub(r"(?m)^adjacent_steps = .*$", "adjacent_steps = [3]", schedule),
        re.sub(r"(?m)^steps = .*$", "steps = [1, 1, 1, 1, 1, 1]", schedule),
    ):
        assert edited != schedule
        path.write_text(edited)
        with pytest.raises(CallError, match="adjacent_steps"):
            lowered(special, schedule=read_schedule(path), target=ONE)
    path.write_text(schedule)
    assert lowered(special, schedule=read_schedule(path), target=ONE)[1].plan.kernels == result.plan.kernels


@pytest.mark.parametrize(
    "subscripts", [("max(i - 1, 0), j", "min(i + 1, M - 1), j"), ("i, (j + 1) % N", "(i + 2) % M, j")]
)
def test_loads_of_the_last_tile_do_not_wait_for_one_another(subscripts, rng):
    """With a branch for each step that loads and computes, every step waits for the one before it: loads are predicated instead."""
    a, b = subscripts
    text = f"op f(x: f32[M, N], u: f32[M, N]) -> (y: f32[M, N]) {{ y[i, j] = x[{a}] * x[{b}] - u[i, j] }}"
    inputs = {n: rng.standard_normal((13, 70)).astype(np.float32) for n in "xu"}
    special, result = lowered(text, None, inputs, target=ONE)
    (kernel,) = result.plan.kernels
    assert kernel.options.steps[0] > 1 and 13 % kernel.tile[0]
    assert not re.search(r"= load_f32\(", result.emitted.module), result.emitted.module
    assert result.emitted.module.count("load_f32x1_nc_where(") == 3
    (out,), failed = run_printed(special, result, inputs)
    assert not any(failed)
    assert_within(text, inputs, out, kind="cuda")
