"""The benchmark of KernelBench's problems: problems are read, varied, judged, planned, and reported."""

from __future__ import annotations

import fcntl
import math
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from benchmarks import device, kernelbench_problems, kernelbench_report, kernelbench_rows  # noqa: E402

CONVOLUTION = """
import torch
class Model(torch.nn.Module):
    def __init__(self, channels, to, kernel_size, shape, stride=1, padding=0, bias=False):
        super().__init__()
        self.layer = torch.nn.Conv2d(channels, to, kernel_size, stride=stride, padding=padding, bias=bias)
        self.scale = torch.nn.Parameter(torch.randn(shape))
        self.state = torch.zeros(1)
    def forward(self, x):
        return torch.relu(self.layer(x)) * self.scale + self.state
batch = 4
channels = 8
to = 16
height = width = 32
kernel_size = (3, 3)
shape = (to, 1, 1)
def get_inputs():
    return [torch.rand(batch, channels, height, width)]
def get_init_inputs():
    return [channels, to, kernel_size, shape]
"""
SOFTMAX = """
import torch
class Model(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim
    def forward(self, x):
        return torch.softmax(x, self.dim), torch.argmax(x, self.dim)
dim = 1
def get_inputs():
    return [torch.randn(24, 40)]
def get_init_inputs():
    return [dim]
"""


@pytest.fixture
def folder(tmp_path):
    for name, text in (
        ("level1/10_softmax", SOFTMAX),
        ("level1/2_window", CONVOLUTION),
        ("level2/1_window", CONVOLUTION),
    ):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_problems_stand_in_the_order_of_their_numbers(folder, tmp_path):
    found = kernelbench_problems.problems(folder)
    assert [(p.name, p.level) for p in found] == [
        ("level1/2_window", 1),
        ("level1/10_softmax", 1),
        ("level2/1_window", 2),
    ]
    assert [p.level for p in kernelbench_problems.problems(folder, level=2)] == [2]
    with pytest.raises(FileNotFoundError, match="level1, level2 and level3"):
        kernelbench_problems.problems(tmp_path / "level1")


def test_a_variant_runs_fits_and_is_drawn_again_equal(folder, monkeypatch):
    """Sizes that follow from others, such as `shape`, follow; so do those without a name. No variant takes more memory."""
    monkeypatch.setattr(kernelbench_problems, "LEAST_BYTES", 1 << 10)
    names = set()
    for seed in range(6):
        for problem in kernelbench_problems.problems(folder, seed=seed):
            own = kernelbench_problems.measured(kernelbench_problems.make(problem, "meta", torch.float32))
            attempt, planned = next(kernelbench_problems.variants(problem, torch.float32))
            assert attempt is not None and planned.bytes <= own.bytes
            made = kernelbench_problems.make(problem, "cpu", torch.float32, attempt)
            assert made.numbers == planned.numbers and [x.shape for x in made.inputs] == [
                x.shape for x in planned.inputs
            ]
            made.call(made.module)
            names |= set(made.numbers)
    assert {"batch", "channels", "to", "height", "kernel_size", "stride", "padding", "bias", "dim", "size 24"} <= names
    assert "shape" not in names


def test_a_problem_as_it_stands_and_in_a_wider_type(folder):
    problem = kernelbench_problems.problems(folder)[0]
    ((attempt, planned),) = kernelbench_problems.variants(problem, torch.bfloat16)
    assert attempt is None and not planned.numbers and not planned.random
    parameters, inputs, result = 16 * 8 * 9 + 16, 4 * 8 * 32 * 32, 4 * 16 * 30 * 30
    assert planned.least_bytes == 2 * (parameters + inputs + result)
    assert list(planned.flops.values()) == [2 * result * 8 * 9]
    made = kernelbench_problems.make(problem, "cpu", torch.bfloat16)
    wider = kernelbench_problems.make(problem, "cpu", torch.bfloat16, None, torch.float64)
    assert wider.module.state.dtype == torch.float64 and made.module.state.dtype == torch.bfloat16
    assert torch.equal(wider.inputs[0].bfloat16(), made.inputs[0]) and torch.equal(
        wider.inputs[0], made.inputs[0].double()
    )


def test_right_and_wrong_results_are_distinguished(folder):
    problem = kernelbench_problems.problems(folder)[1]
    _, planned = next(kernelbench_problems.variants(problem, torch.float32))
    made = kernelbench_problems.make(problem, "cpu", torch.float32)
    judge = kernelbench_rows.Judge(problem, None, planned, made, torch.float32)
    assert judge.kind == "f64"
    soft, place = made.call(made.module)
    assert judge.share((soft, place))[0] <= 0.5
    assert judge.share((soft * (1 + 1e-4), place))[0] > 1
    assert judge.share((soft, place + 1)) == (pytest.approx(1 / kernelbench_rows.LEAST[torch.float32]), "result 1, rms")
    assert judge.share((soft[:, :-1], place))[0] == math.inf


@pytest.mark.parametrize(
    "result, want, right",
    [
        ([math.nan, 1.0], [math.nan, 1.0], True),
        ([math.inf, 1.0], [math.inf, 1.0], True),
        ([math.nan, 1.0], [1.0, 1.0], False),
        ([1.0, 1.0], [math.nan, 1.0], False),
        ([-math.inf, 1.0], [math.inf, 1.0], False),
        ([0.0, 0.0], [0.0, 0.0], True),
        ([0.0, 1e-9], [0.0, 0.0], False),
    ],
)
def test_infinities_and_nan_are_where_they_are_right(result, want, right):
    assert (kernelbench_rows.error(torch.tensor(result), torch.tensor(want))[1] == 0) is right


def test_one_wrong_element_among_many_is_seen():
    want, least = torch.ones(1 << 20), kernelbench_rows.LEAST[torch.float32]
    result = want.clone()
    result[77] += 1e-3
    off, worst = kernelbench_rows.error(result, want)
    assert off < least and worst > kernelbench_rows.WORST * least


def test_rounding_to_tf32_and_moments():
    x = torch.tensor([1.0, 1 + 2.0**-10, 1 + 2.0**-11, 1 + 3 * 2.0**-11, -(1 + 2.0**-11 + 2.0**-20)])
    assert kernelbench_rows.to_tf32(x).tolist() == [1.0, 1 + 2.0**-10, 1.0, 1 + 2.0**-9, -(1 + 2.0**-10)]
    drawn = [torch.nn.functional.dropout(torch.ones(1 << 16), 0.3) for _ in range(2)]
    assert max(kernelbench_rows.moments(*drawn)) < kernelbench_rows.MOMENTS < kernelbench_rows.error(*drawn)[0]


@pytest.mark.slow
def test_plans_without_a_gpu(folder):
    """The programs are a GPU's: products of convolutions are of tf32, and a chain is one kernel."""
    from tilec.torch.backend import backend

    problem = kernelbench_problems.problems(folder)[0]
    found = kernelbench_rows.predict(problem, "h200", torch.float32)
    assert found["taken"] == found["operations"] > 0 and not found["refused"]
    assert found["predicted_us"] > found["roofline_us"] > 0 and len(found["kernels"]) == 1
    with kernelbench_rows.traced("h200") as programs:
        made = kernelbench_problems.make(problem, "meta", torch.float32)
        kernelbench_rows.compile_faked(made, "cpu", partial(backend, options={"target": "h200"}))
    assert "using tf32" in programs[0][0].recipe_for(programs[0][1], 0).program.source.text


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 3])
def test_a_row_is_prepared_and_measured(folder, seed, monkeypatch, tmp_path):
    """As on a GPU, with the CPU in its place."""
    from benchmarks.measure import on_cpu

    make, compile_faked = kernelbench_rows.make, kernelbench_rows.compile_faked
    here = lambda device: "cpu" if device == "cuda" else device  # noqa: E731
    monkeypatch.setenv("BENCHMARKS_FOLDER", str(tmp_path))
    monkeypatch.setattr(kernelbench_problems, "LEAST_BYTES", 1)
    monkeypatch.setattr(kernelbench_rows, "make", lambda p, device, *more: make(p, here(device), *more))
    monkeypatch.setattr(
        kernelbench_rows, "compile_faked", lambda made, device, how: compile_faked(made, here(device), how)
    )
    monkeypatch.setattr(kernelbench_rows, "on_gpu", lambda steps: on_cpu(steps, 1, 0.001))
    monkeypatch.setattr(kernelbench_rows, "kernels_of", lambda step: {})
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    problem = kernelbench_problems.problems(folder, seed=seed)[0]
    found = kernelbench_rows.prepare(problem, torch.float32)
    assert set(found["prepared_s"]) == {"tilec", "torch.compile"} and found["predicted_us"] > 0
    facts = kernelbench_rows.measure(problem, torch.float32, False)
    assert (
        facts["right"] and not facts["errors"] and set(facts["times_us"]) == set(facts["first_s"]) == {"eager", "tilec"}
    )
    assert facts["taken"] == facts["operations"] and bool(facts["numbers"]) is (seed is not None)


ROWS = [
    {"name": "level1/a", "group": "level 1", "right": True, "times_us": {"eager": 4.0, "torch.compile": 2.0, "tilec": 1.0}},
    {"name": "level1/b", "group": "level 1", "right": True, "times_us": {"eager": 1.0, "tilec": 2.0}},
    {
        "name": "level2/c", "group": "level 2", "right": False, "times_us": {"eager": 1.0, "tilec": 1.0},
        "error_share": {"tilec": 3.0}, "worst": {"tilec": "result 0, rms"},
    },
    {"name": "level2/d", "group": "level 2", "right": False, "error": "CompileError: no", "numbers": {"n": "3"}},
]  # fmt: skip


OWN_NUMBERS = """
import torch
class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.steps = [x.item() for x in torch.linspace(0, 1, 3)]
        self.layer = torch.nn.LSTM(width, width, batch_first=True)
    def forward(self, x):
        zero = torch.zeros(1, x.shape[0], x.shape[2], device=x.device)
        return self.layer(x * self.steps[1], (zero, zero))[0]
def get_inputs():
    return [torch.rand(4, 3, 8)]
def get_init_inputs():
    return [8]
"""


def test_a_module_that_reads_tensors_and_makes_some_in_f32(folder, monkeypatch):
    (folder / "level1" / "3_own.py").write_text(OWN_NUMBERS)
    problem = kernelbench_problems.problems(folder)[1]
    _, planned = next(kernelbench_problems.variants(problem, torch.float32))
    assert planned.module.steps == [0, 0.5, 1] and planned.module.layer.weight_ih_l0.is_meta and planned.inputs[0].is_meta
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    made = kernelbench_problems.make(problem, "cpu", torch.float32)
    judge = kernelbench_rows.Judge(problem, None, planned, made, torch.float32)
    assert judge.kind == "full f32" and judge.share(made.call(made.module))[0] <= 1


def test_ratios_are_over_the_faster_peer():
    assert [kernelbench_report.ratio(r) for r in ROWS] == [2.0, 0.5, 1.0, None]
    cells = {line[0]: line[1:9] for line in kernelbench_report.grid(ROWS)}
    assert cells["level 1"] == ["2", "1.000", "1", "1", "1", "0", "0", "0"]
    assert cells["all"] == ["4", "1.000", "2", "1", "1", "0", "2", "1"]
    assert [line[0] for line in kernelbench_report.missed(ROWS)] == ["level2/d", "level1/b", "level2/c"]
    assert "an error of 3 of what is allowed (result 0, rms)" in kernelbench_report.page(ROWS)
    assert "WRONG by 3" in kernelbench_report.line(ROWS[2])


@pytest.mark.gpu
@pytest.mark.parametrize("more", [[], ["--vary", "3"], ["--dtype", "bf16"]])
def test_the_command_measures_every_problem(folder, tmp_path, more):
    import json

    out = tmp_path / "found.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "kernelbench",
        str(folder),
        "--workers",
        "2",
        "--json",
        str(out),
        *more,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    rows = json.loads(out.read_text())["rows"]
    assert len(rows) == 3 and all(r["right"] and set(r["times_us"]) == set(kernelbench_rows.WAYS) for r in rows), (
        done.stdout
    )
    assert all(r["prepared_s"]["tilec"] > 0 and r["predicted_us"] > 0 for r in rows), done.stderr


HOLDS = """
import time
from benchmarks import device
with device.alone():
    print("alone", flush=True)
    time.sleep(60)
"""


def _state_is(process: int, want: str) -> None:
    end = time.monotonic() + 20
    while (found := Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]) != want:
        assert time.monotonic() < end, found
        time.sleep(0.01)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc")
def test_others_are_stopped_while_a_row_is_timed(tmp_path, monkeypatch):
    """A row stops the benchmark's other processes and what these have started, and counts how long; not a stranger, nor itself."""
    monkeypatch.setenv("BENCHMARKS_FOLDER", str(tmp_path))
    started = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    timed = """
import sys, time
from pathlib import Path
from benchmarks.device import _stopped_s, alone
def stopped(wanted):  # a signal may take a moment
    end = time.monotonic() + 20
    while True:
        found = [Path(f"/proc/{p}/stat").read_text().rpartition(")")[2].split()[0] == "T" for p in sys.argv[2:]]
        if found == wanted or time.monotonic() > end:
            return found
        time.sleep(0.01)
with alone():
    print(stopped([sys.argv[1] == "True"] * 3))
print(stopped([False] * 3), _stopped_s() > 0)
"""
    stranger = subprocess.Popen(["sleep", "60"])
    monkeypatch.setenv("BENCHMARKS_PARENT", str(stranger.pid))
    run = partial(subprocess.run, capture_output=True, text=True)
    with subprocess.Popen([sys.executable, "-c", started], stdout=subprocess.PIPE, text=True) as other:
        try:
            processes = [str(other.pid), other.stdout.readline().strip(), str(stranger.pid)]
            for parent, want in ((stranger.pid, False), (os.getpid(), True)):
                monkeypatch.setenv("BENCHMARKS_PARENT", str(parent))
                done = run([sys.executable, "-c", timed, str(want), *processes], cwd=Path(__file__).parents[2])
                assert done.stdout.splitlines() == [str([want] * 3), f"{[False] * 3} True"], done.stderr
            holds = subprocess.Popen([sys.executable, "-c", HOLDS], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE)
            holds.stdout.readline()
            holds.kill()
            holds.wait()
            for killed, want in ((other.pid, "T"), (holds.pid, "S")):
                device.resume(killed)
                _state_is(other.pid, want)
        finally:
            for process in processes:
                os.kill(int(process), signal.SIGKILL)
            stranger.wait()


def test_one_row_has_the_device_alone_and_compiling_gives_it_away(tmp_path, monkeypatch):
    """Two rows have it beside each other; a third that asks for it alone waits until one of them compiles and the other ends."""
    monkeypatch.setenv("BENCHMARKS_FOLDER", str(tmp_path))
    seen, timed = [], threading.Event()

    def time_alone() -> None:
        with device.alone():
            seen.append("timed")
            timed.set()

    def backend(graph, inputs):
        assert timed.wait(20)  # while this compiles, another row is timed
        seen.append("compiled")
        return graph.forward

    torch._dynamo.reset()
    with device.BesideButCompiling():
        with device.beside():
            other = threading.Thread(target=time_alone)
            other.start()
            assert not timed.wait(0.2), "two rows have the device"
        assert not timed.wait(0.2), "this row has the device"
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(3))
        seen.append("called")
        assert not _free(tmp_path), "it has the device again"
    other.join()
    assert seen == ["timed", "compiled", "called"] and _free(tmp_path)


def _free(folder) -> bool:
    with open(folder / "device.lock") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
