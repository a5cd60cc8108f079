"""What the command line is given and does not fit, at its edges: options, streams, files, dumps that are of something else."""

import os
import subprocess
import sys

import numpy as np
import pytest
from tools.commands import IN_SHELL, SOFTMAX, examples_folder, tilec_command  # noqa: F401 - fixtures

GATHER = "op f(t: f32[V], k: i32[N]) -> (y: f32[N]) { y[i] = t[k[i]] }\n"


@pytest.mark.parametrize("arguments, status, message", [
    (["run", *SOFTMAX, "--seed", "-1"], 2, "argument --seed: '-1' is not a whole number from 0"),
    (["verify", *SOFTMAX, "--seed", "x"], 2, "'x' is not a whole number from 0"),
    (["tune", *SOFTMAX, "--seed", "-1"], 2, "'-1' is not a whole number from 0"),
    (["run", "softmax.tile", "-D", "M=1e3"], 2, "a size must be a whole number, not '1e3'"),
    (["run", "softmax.tile", "-D", f"M={1 << 63}"], 2, "a size must be between 0 and 2^63 - 1"),
    (["cache", "clear", "--older-than", "-1"], 2, "'-1' is not a number of days from 0"),
    (["cache", "clear", "--older-than", "nan"], 2, "'nan' is not a number of days from 0"),
    (["tune", *SOFTMAX, "--most", "3"], 2, "--most was renamed to --trials"),
    (["check", "-D", "N=3", "softmax.tile"], 1, "--op and -D only go with --ranges"),
    (["check", "--op", "foo", "softmax.tile"], 1, "--op and -D only go with --ranges"),
    (["check", "--ranges", "-D", "Q=3", "softmax.tile"], 1, "`softmax` has no size `Q`\nhint: the sizes are M, N"),
    (["check", "--ranges", "-D", "Q=3", "attention.tile"], 1, "`attention` and `causal_attention` have no size `Q`"),
    (["run", "softmax.tile", "-D", "M=3"], 1, "the size `N` is not known"),
    (["run", "softmax.tile", "--input", "x="], 1, "--input 'x=' names no file\nhint: --input NAME=FILE"),
    (["run", "softmax.tile", "--input", ""], 1, "--input '' names no file"),
    (["run", "softmax.tile", "--input", "x=text.npy"], 1, "'text.npy' is not a .npy or .npz file of arrays"),
    (["run", "softmax.tile", "--input", "x=large.npy"], 1, "`x` is f32, which cannot hold 1e+300, a number of its file"),
    (["run", "gather.tile", "-D", "V=4", "--input", "k=k.npy"], 1, "index 7 is outside 0:4, dimension 0 of `t`, at i = 2\n"),
])  # fmt: skip
def test_what_does_not_fit(tilec, folder, arguments, status, message):
    (folder / "text.npy").write_text("hello")
    (folder / "gather.tile").write_text(GATHER)
    np.save(folder / "k.npy", np.array([0, 3, 7], np.int32))
    np.save(folder / "large.npy", np.array([[1.0, np.inf, 1e300]]))
    found, _, err = tilec(*arguments)
    assert found == status and message in err and "Traceback" not in err and "allow_pickle" not in err, err


def test_check_ranges_takes_sizes_of_one_op(tilec, folder):
    status, out, err = tilec("check", "--ranges", "-D", "T=3", "attention.tile")
    assert (status, err) == (0, "") and "op causal_attention" in out


def test_results_that_are_not_numbers(tilec, folder):
    (folder / "nan.tile").write_text("op f(x: f32[N]) -> (y: f32[N]) { y[i] = log(-abs(x[i]) - 1) }")
    status, out, _ = tilec("run", "nan.tile", "-D", "N=8", "--check")
    assert status == 0 and "y: 0 of 0 allowed, within the bound\n" in out
    (folder / "any.tile").write_text("op f(x: f32[N]) -> (y: f32[N]) { y[i] = exp(x[i] * x[i] * 1e30 + 88) }")
    status, out, _ = tilec("run", "any.tile", "-D", "N=8", "--check")
    assert status == 0 and "within the bound" in out and "inf" not in out
    (folder / "nan.tile").write_text("op f(x: f32[N]) -> (y: f32[N]) { y[i] = log(x[i]) }")
    status, out, _ = tilec("run", "nan.tile", "-D", "N=8", "--check")  # some are numbers
    assert status == 0 and "allowed, within the bound" in out and "nan" not in out


# ---- dumps ---------------------------------------------------------------------------------------------------------------


def test_dumps_that_are_of_something_else(tilec, folder):
    assert tilec("dump", *SOFTMAX, "-o", "ir")[0] == 0
    tiled = (folder / "ir" / "04-tile.mlir").read_text()
    (folder / "f.mlir").write_text("module { func.func @f(%a: f32) -> f32 { return %a : f32 } }\n")
    (folder / "head.mlir").write_text(tiled.splitlines(keepends=True)[0])
    (folder / "other.mlir").write_text(tiled.replace("target: cpu", "target: sm_90a", 1))
    (folder / "wrong.mlir").write_text(tiled.replace("func.func", "func.fun", 1))
    for arguments, message in (
        (["f.mlir", "--from", "map"], "the module has no attribute `tilec.kernels`, which stage 'plan' writes"),
        (["f.mlir", "--from", "stage"], "the module has no attribute `tilec.kernels`"),
        (["head.mlir"], "'head.mlir' must have one function that is not a kernel: the program"),
        (["other.mlir"], "the module was planned for cpu, which cannot be changed to"),
        (["ir/04-tile.mlir", "--target", "sm_90a"], "was planned for cpu, which cannot be changed to sm_90a after stage 'plan'"),
        (["wrong.mlir"], "'wrong.mlir' is not valid MLIR: "),
        (["wrong.mlir"], "wrong.mlir:12:"),
    ):  # fmt: skip
        status, out, err = tilec("opt", *arguments)
        assert (status, out) == (1, "") and message in err and "stage 'stage'" not in err, err
    assert tilec("opt", "ir/01-simplify.mlir", "--target", "sm_90a", "--to", "plan")[0] == 0
    status, _, err = tilec("verify", "softmax.tile", "-D", "M=60,N=50", "--ir", "ir/04-tile.mlir")
    assert status == 1 and "'ir/04-tile.mlir' is for other sizes: `x` is 40x50 there, and 60x50 by -D" in err


# ---- schedules -------------------------------------------------------------------------------------------------------------


def test_schedules_for_something_else(tilec, folder):
    assert tilec("plan", *SOFTMAX)[0] == 0
    path = folder / "softmax.sched.toml"
    text = path.read_text()
    path.write_text(text.replace('target = "cpu"', 'target = "gpu"'))
    status, _, err = tilec("run", *SOFTMAX)
    assert (
        status == 0
        and "softmax.sched.toml (it has one for gpu; tilec knows no target 'gpu'): the compiler decided" in err
    )
    path.write_text(text.replace('target = "cpu"', 'target = "h200"'))
    assert "(it has one for h200): the compiler decided" in tilec("run", *SOFTMAX)[2]
    path.write_text(text + text[text.index("[[plan]]") :])
    status, _, err = tilec("run", *SOFTMAX)
    lines = path.read_text().splitlines()
    second = max(n for n, line in enumerate(lines, 1) if line.startswith("program"))
    assert status == 1 and f"softmax.sched.toml:{second}:1: error: there are two plans for softmax(" in err


# ---- files and streams -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="names of files are bytes elsewhere")
def test_a_name_that_is_not_utf8(tilec, folder):
    name = os.fsdecode(b"a\xff.tile")
    (folder / name).write_text((folder / "softmax.tile").read_text())
    status, out, err = tilec("run", name, "-D", "M=4,N=4", "--check")
    assert (status, err) == (0, "") and "within the bound" in out
    assert "# a?.tile:3: m[i]" in tilec("emit", "--as", "numba", name, "-D", "M=4,N=4")[1]
    (folder / name).write_text("y[i] = x[j]\n")
    status, _, err = tilec("run", name, "-D", "M=4,N=4")
    assert status == 1 and "a?.tile:1:" in err


@pytest.mark.skipif(sys.platform == "win32", reason="a shell of POSIX")
def test_closed_streams(folder):
    def run(command):
        made = subprocess.run(["sh", "-c", command.replace("tilec", IN_SHELL)], capture_output=True, text=True)
        return made.returncode, made.stdout, made.stderr

    assert run("tilec check softmax.tile <&- >&- 2>&-") == (0, "", "")
    assert run("tilec fmt - < softmax.tile >&-") == (1, "", "error: the standard output is closed\n")
    assert run("tilec fmt - <&-") == (1, "", "error: the standard input is closed\n")


def test_warnings_are_notes():
    from tilec.cli.streams import warnings_as
    from tilec.runtime import cache

    reported: list[str] = []
    with warnings_as(reported.append):
        assert cache._checked.__wrapped__("/dev/null") is None
    assert reported == [
        "working without a cache: /dev/null is not a directory; set TILEC_CACHE_DIR to use another directory"
    ]


def test_benchmarks_that_need_a_gpu(folder, monkeypatch, capsys):
    from benchmarks import __main__ as benchmarks
    from benchmarks import report
    from tilec.runtime.cuda import driver as cuda_driver

    monkeypatch.setattr(report, "RESULTS", folder / "results")
    monkeypatch.setattr(cuda_driver, "device_info", lambda: cuda_driver.SystemInfo(problem="no driver here"))
    for suite in (["gpu"], ["memory"], ["audit"], ["numerics", "--target", "cuda"]):
        monkeypatch.setattr(sys, "argv", ["benchmarks", *suite])
        with pytest.raises(SystemExit) as stopped:
            benchmarks.main()
        assert stopped.value.code == 1 and "needs" in capsys.readouterr().err
    assert not (folder / "results").exists()


def test_sizes_are_written_as_in_programs(tilec, folder):
    status, out, _ = tilec("check", "--ranges", "-D", "M=0x10,N=1_000", "--op", "softmax", "softmax.tile")
    assert status == 0 and "f32[16, 1000]" in out
