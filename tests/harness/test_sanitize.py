"""The driver of `make sanitize`: what it reads from the tools' output, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace

import numpy as np
import pytest
from sanitize import driver
from sanitize.cases import Case, cases, prepare
from sanitize.planted import PLANTED, compile_planted
from sanitize.tools import MARK, TOOLS, read, runs

from tilec.runtime.cuda.driver import SystemInfo

CLEAN = f"""========= COMPUTE-SANITIZER
{MARK} case a
{MARK} done a
========= ERROR SUMMARY: 0 errors
"""
WRONG = f"""========= COMPUTE-SANITIZER
{MARK} case a
{MARK} done a
{MARK} case b
========= Invalid __global__ write of size 4 bytes
=========     at planted+0x90
=========     by thread (127,0,0) in block (0,0,0)
=========     Address 0x7f7f1c200200 is out of bounds
=========
========= Invalid __global__ write of size 4 bytes
=========     at planted+0x90
=========     by thread (126,0,0) in block (0,0,0)
=========
{MARK} done b
========= Target application returned an error
========= ERROR SUMMARY: 2 errors
"""
RACE = f"""========= COMPUTE-SANITIZER
{MARK} case a
========= Error: Race reported between Write access at f_y+0x430
=========     and Read access at f_y+0x770 [248 hazards]
=========
{MARK} done a
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
NO_DEVICE = """========= COMPUTE-SANITIZER
========= Error: Device not supported. Please refer to the "Supported Devices" section of the sanitizer documentation
=========
========= Target application returned an error
========= ERROR SUMMARY: 0 errors
"""


def test_what_tools_say():
    assert (
        read(CLEAN, 0) == (clean := read(CLEAN, 0))
        and clean.ended == ("a",)
        and not clean.reports
        and not clean.problem
    )
    wrong = read(WRONG, 86)
    assert wrong.ended == ("a", "b") and [r.case for r in wrong.reports] == ["b", "b"] and not wrong.problem
    assert len({r.kind for r in wrong.reports}) == 1 and "thread (127,0,0)" in wrong.reports[0].text
    (race,) = read(RACE, 86).reports
    assert race.case == "a" and "248 hazards" in race.text


def test_silence_is_not_clean():
    cut = CLEAN.partition("========= ERROR")[0]
    assert "no summary" in read(cut, -9).problem
    assert "status 1" in read(CLEAN, 1).problem
    refused = read(NO_DEVICE, 1)
    assert "compute-sanitizer does not support" in refused.problem and not refused.reports


def test_a_machine_that_cannot_gets_advice(monkeypatch, capsys):
    monkeypatch.setattr(driver, "find", lambda: None)
    assert driver.main([]) == 2 and "CUDA toolkit" in capsys.readouterr().err
    monkeypatch.setattr(driver, "find", lambda: "compute-sanitizer")
    monkeypatch.setattr(driver, "device_info", lambda: SystemInfo(problem="no driver"))
    assert driver.main([]) == 2 and "no GPU to run on: no driver" in capsys.readouterr().err


@pytest.fixture
def tool(tmp_path):
    """A program that answers as compute-sanitizer would."""

    def make(planted: str, case: str, status: int):
        path = tmp_path / "tool"
        path.write_text(
            f"#!{sys.executable}\nimport sys\nfrom pathlib import Path\n"
            "words = sys.argv[sys.argv.index('sanitize.child') + 1 :]\n"
            f"if words[0] == '--planted':\n    print({planted!r})\n    sys.exit({status})\n"
            f"for word in words:\n    print({case!r}.replace('NAME', Path(word).name))\n"
            "print('========= ERROR SUMMARY: 0 errors')\n"
        )
        path.chmod(0o755)
        return str(path)

    return make


@pytest.mark.parametrize(
    "planted, case, status, says",
    [
        (WRONG, f"{MARK} case NAME\n{MARK} done NAME", 0, "no faults"),
        (CLEAN, f"{MARK} case NAME\n{MARK} done NAME", 1, "does not see what is planted"),
        (WRONG, f"{MARK} case NAME", 1, "not run: two"),
        (WRONG, f"{MARK} case NAME\n========= Invalid read\n{MARK} done NAME", 1, "2 faults"),
        (NO_DEVICE, f"{MARK} case NAME\n{MARK} done NAME", 2, "Nothing was checked"),
    ],
)
def test_verdicts(planted, case, status, says, tool, tmp_path, capsys):
    options = Namespace(tool=["memcheck"], jobs=1, limit=60)
    program, prepared = tool(planted, case, 86), [tmp_path / "one", tmp_path / "two"]
    for folder in prepared:
        folder.mkdir()
        (folder / "case.json").write_text('{"clusters": [[1, 9]]}')
    assert driver.sanitize(program, options, prepared, 0) == status
    message = capsys.readouterr()
    assert says in message.out + message.err


def test_a_tool_that_hangs_is_ended_with_what_it_runs(tmp_path):
    path = tmp_path / "tool"
    path.write_text("#!/bin/sh\necho begun\nsleep 300\n")
    path.chmod(0o755)
    outcome, output, seconds = driver._run(str(path), "memcheck", ("one",), 1)
    assert "no summary" in outcome.problem and "begun" in output and seconds < 60


def test_a_prepared_case_is_what_the_child_runs(tmp_path, monkeypatch):
    pytest.importorskip("numba_cuda_mlir.cuda")
    from sanitize.child import executable

    case = Case("two", "op f(x: bf16[N], n: i32[M]) -> (y: bf16[M]) { y[i] = x[n[i]] }", "f", {"N": 5, "M": 7})
    folder = prepare(case, tmp_path, "h200")
    built = executable(folder, "h200")
    assert [shape for _, _, shape in built.compiled.inputs] == [(5,), (7,)]
    facts = json.loads((folder / "case.json").read_text())
    assert facts["sizes"] == case.sizes and facts["clusters"] == [[k.cluster, k.grid] for k in built.emitted.kernels]
    short = Case("short", "y[i] = 2 * x[i] + z", None, {}, {"x": np.ones(5, np.float32), "z": np.float64(1)})
    assert [shape for _, _, shape in executable(prepare(short, tmp_path, "h200"), "h200").compiled.inputs] == [(5,), ()]


def test_cases_are_prepared_in_other_processes(tmp_path):
    pytest.importorskip("numba_cuda_mlir.cuda")
    program = """
import sys
sys.argv[1:] = ["--only", "a-checked", "--jobs", "2"]
from argparse import Namespace
from pathlib import Path
from sanitize import driver
driver.find, driver.device_info = (lambda: "tool"), (lambda: Namespace(devices=[1]))
prepare = driver.prepare
driver.prepare = lambda options, folder: prepare(options, folder, "h200")
driver.sanitize = lambda program, options, prepared, broken: print("prepared", [p.name for p in prepared], broken)
import runpy
runpy.run_module("sanitize", run_name="__main__", alter_sys=True)
"""
    path = os.pathsep.join([str(driver.ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert "prepared ['a-checked-gather-M9-N129-K33'] 0" in done.stdout, done.stdout + done.stderr


def test_the_cases_use_what_kernels_are_made_of():
    """Every asynchronous or shared thing that kernels do has a case; each example has two."""
    chosen = cases()
    names = [c.name for c in chosen]
    assert len(names) == len(set(names)) and {p.tool for p in PLANTED.values()} == set(TOOLS)


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_compile(name):
    pytest.importorskip("numba_cuda_mlir.cuda")
    assert compile_planted(name, "sm_90a").image


def test_clusters_that_a_tool_cannot_run_are_left_out_of_it_alone(tmp_path):
    for clusters, tools in (([[16, 3], [8, 99]], set(TOOLS)), ([[1, 9], [16, 4]], set(TOOLS) - {"synccheck"})):
        (tmp_path / "case.json").write_text(json.dumps({"clusters": clusters}))
        assert {t for t in TOOLS if runs(t, tmp_path)} == tools
