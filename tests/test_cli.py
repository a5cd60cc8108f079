"""The `tilec` command in this process: each subcommand, what it prints, its exit status, and the files it
leaves.

Help texts are golden: `TILEC_UPDATE_GOLDEN=1 pytest tests/test_cli.py` writes them anew, to be read in the
diff.
"""

import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tilec import cli, cli_common
from tilec.diagnostics import InternalError

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "golden" / "cli"
COMMANDS = ("check", "fmt", "plan", "explain", "dump", "opt", "emit", "run", "doctor")
SOFTMAX = ["softmax.tile", "-D", "M=40,N=50"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with the examples, where the command runs."""
    for program in (ROOT / "examples").glob("*.tile"):
        shutil.copy(program, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("TILEC_DEBUG", raising=False)
    return tmp_path


@pytest.fixture
def tilec(capfd):
    """Runs the command; returns its status, output and error output."""

    def run(*arguments: object) -> tuple[int, str, str]:
        try:
            status = cli.main([str(a) for a in arguments])
        except SystemExit as done:
            status = done.code or 0
        captured = capfd.readouterr()
        return status, captured.out, captured.err

    return run


# ---- help ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(command, tilec):
    status, found, _ = tilec(*command.split(), "--help")
    assert status == 0
    if command:
        assert "examples:\n  tilec " in found
    path = GOLDEN / f"{command or 'tilec'}.txt"
    if os.environ.get("TILEC_UPDATE_GOLDEN"):
        assert not os.environ.get("CI"), "golden files are not written in CI"
        path.write_text(found)
    assert found == path.read_text()


def test_every_command_has_its_golden_help():
    assert {p.stem for p in GOLDEN.glob("*.txt")} == {"tilec", *COMMANDS}


def test_stage_names_are_the_compilers():
    from tilec.passes import NAMES

    assert tuple(cli_common.STAGES.split()) == NAMES


def test_help_imports_nothing_heavy():
    script = "import sys, tilec.cli; tilec.cli.parser().format_help(); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"numpy", "numba", "rich", "lark", "tomlkit", "numba_cuda_mlir"} & set(loaded)


# ---- check and fmt ---------------------------------------------------------------------------------------


def test_check_is_silent_about_what_is_right(tilec):
    assert tilec("check", "softmax.tile", "attention.tile") == (0, "", "")


def test_check_tells_all_mistakes_of_all_files(tilec, folder):
    (folder / "a.tile").write_text("y[i] = x[i] + foo(x[i])\nz[i] = q[i] = 3\n")
    (folder / "b.tile").write_text("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i, i] }\n")
    status, out, err = tilec("check", "a.tile", "none.tile", "b.tile")
    assert status == 1 and out == ""
    assert "a.tile:" in err and "b.tile:1:" in err and "there is no file 'none.tile'" in err


def test_check_ranges(tilec):
    status, out, _ = tilec("check", "--ranges", "attention.tile", "--op", "attention", "-D", "D=64")
    assert status == 0
    assert re.search(r"^  s +f32\[B, H, S, T\]  .*d in 0:64", out, re.MULTILINE)
    assert "causal" not in out


def test_fmt(tilec, folder):
    crooked = "op f( x:f32[N] )->(y:f32[N]){y[i]=x[i]}  # why\n"
    (folder / "f.tile").write_text(crooked)
    os.chmod(folder / "f.tile", 0o640)
    status, out, _ = tilec("fmt", "--check", "f.tile", "softmax.tile")
    assert status == 1 and out.startswith("--- f.tile") and "softmax" not in out
    assert (folder / "f.tile").read_text() == crooked
    assert tilec("fmt", "f.tile", "softmax.tile") == (0, "", "")
    assert "y[i] = x[i]" in (folder / "f.tile").read_text()
    assert (folder / "f.tile").stat().st_mode & 0o777 == 0o640
    assert tilec("fmt", "--check", "f.tile") == (0, "", "")
    assert (folder / "softmax.tile").read_text() == (ROOT / "examples" / "softmax.tile").read_text()


def test_fmt_leaves_what_does_not_parse(tilec, folder):
    (folder / "bad.tile").write_text("op f(")
    status, _, err = tilec("fmt", "bad.tile")
    assert status == 1 and err.startswith("bad.tile:1:")
    assert (folder / "bad.tile").read_text() == "op f("


def test_fmt_reads_the_standard_input(tilec, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"y[i]=x[i]+1")))
    assert tilec("fmt", "-")[:2] == (0, "y[i] = x[i] + 1\n")


# ---- dump and opt ----------------------------------------------------------------------------------------


def test_dump_prints_every_stage(tilec):
    status, out, err = tilec("dump", *SOFTMAX)
    assert status == 0 and err == ""
    assert re.findall(r"^// tilec stage: (\w+), target: cpu$", out, re.MULTILINE) == cli_common.STAGES.split()
    assert "\x1b" not in out


def test_dump_after_one_stage(tilec):
    assert tilec("dump", *SOFTMAX, "--after", "tile")[1].count("// tilec stage:") == 1
    assert tilec("dump", *SOFTMAX, "--after", "emit")[1].startswith('"""Kernels of')
    assert "loc(" not in tilec("dump", *SOFTMAX, "--after", "build")[1]
    assert 'loc("softmax.tile":3:15)' in tilec("dump", *SOFTMAX, "--after", "build", "--locations")[1]


def test_dump_in_colour_marks_what_changed(tilec, monkeypatch):
    from tilec import cli_ir

    monkeypatch.setattr(cli_ir, "coloured", lambda stream: True)
    out = tilec("dump", *SOFTMAX)[1]
    assert "── plan: decides kernels" in out
    assert re.search(r"\x1b\[32m.*tilec.kernel = \"softmax_y\"", out)
    assert "\x1b[32m  func.func @softmax(" not in out.split("── fuse")[0]


def test_changed_lines_do_not_count_renumbering():
    from tilec.cli_ir import changed_lines

    assert changed_lines(["%0 = a", "%1 = b %0", "c"], ["%3 = a", "d", "%4 = b %3"]) == ({1}, 1)


@pytest.mark.parametrize(
    "program, sizes", [("softmax", "M=40,N=50"), ("mlp", "M=33,D=16,F=20"), ("variance", "M=30,N=70")]
)
def test_every_dump_is_an_input(tilec, folder, program, sizes):
    """From each stage on, the same kernels come out."""
    assert tilec("dump", f"{program}.tile", "-D", sizes, "-o", "ir") == (0, "", "")
    kernels = (folder / "ir" / "kernels.py").read_text()
    for number, stage in enumerate(cli_common.STAGES.split()):
        path = folder / "ir" / f"{number:02}-{stage}.mlir"
        assert path.read_text().startswith(f"// tilec stage: {stage}, target: cpu\n")
        assert tilec("opt", path) == (0, kernels, "")


def test_opt_goes_to_a_stage_and_on_from_there(tilec, folder):
    tilec("dump", *SOFTMAX, "-o", "ir")
    assert tilec("opt", "ir/01-simplify.mlir", "--to", "fuse", "-o", "fused.mlir") == (0, "", "")
    fused = (folder / "fused.mlir").read_text()
    assert fused.startswith("// tilec stage: fuse, target: cpu\n")
    assert fused == (folder / "ir" / "03-fuse.mlir").read_text()
    assert tilec("opt", "fused.mlir")[1] == (folder / "ir" / "kernels.py").read_text()


def test_opt_runs_upstreams_passes(tilec, folder):
    tilec("dump", *SOFTMAX, "-o", "ir")
    status, out, _ = tilec("opt", "ir/00-build.mlir", "--passes", "canonicalize,cse")
    assert status == 0 and out.startswith("// tilec stage: build")
    status, _, err = tilec("opt", "ir/00-build.mlir", "--passes", "nonsense")
    assert status == 1 and "no such pipeline 'nonsense'" in err


def test_opt_refuses_what_it_cannot_place(tilec, folder):
    (folder / "a.mlir").write_text("module {}\n")
    assert "has no line `// tilec stage: …`" in tilec("opt", "a.mlir")[2]
    (folder / "b.mlir").write_text("// tilec stage: tile, target: cpu\nmodule { nonsense }\n")
    status, _, err = tilec("opt", "b.mlir")
    assert status == 1 and "this is no valid MLIR" in err and "nonsense" in err
    tilec("dump", *SOFTMAX, "-o", "ir")
    assert "stage 'plan' does not come after 'tile'" in tilec("opt", "ir/04-tile.mlir", "--to", "plan")[2]


def test_edited_ir_is_obeyed(tilec, folder):
    """A tile that is changed in the dump after `plan` is the kernel's tile."""
    tilec("dump", "softmax.tile", "-D", "M=512,N=512", "-o", "ir")
    path = folder / "ir" / "02-plan.mlir"
    text = re.sub(r"tile = array<i64: \d+>", "tile = array<i64: 2>", path.read_text())
    path.write_text(text)
    assert "v_1 = b_1 * 2\n" in tilec("opt", path)[1]


# ---- plan and explain ------------------------------------------------------------------------------------


def test_plan_is_written_and_obeyed(tilec, folder):
    status, out, err = tilec("plan", "softmax.tile", "-D", "M=512,N=512")
    assert (status, out) == (0, "") and err.startswith("wrote softmax.sched.toml: 1 kernel, ")
    path = folder / "softmax.sched.toml"
    path.write_text(re.sub(r"^tile = \[\d+\]", "tile = [2]", path.read_text(), flags=re.MULTILINE))
    status, out, err = tilec("explain", "softmax.tile", "-D", "M=512,N=512")
    assert status == 0 and "256 blocks: i = 512 in tiles of 2" in out
    assert (
        "note: obeying softmax.sched.toml (--no-schedule ignores it)" in err
        and "note: obeyed softmax_y: tile (2,)" in err
    )
    assert "tiles of 2" not in tilec("explain", "softmax.tile", "-D", "M=512,N=512", "--no-schedule")[1]
    shutil.move(path, folder / "other.toml")
    assert (
        "tiles of 2" in tilec("explain", "softmax.tile", "-D", "M=512,N=512", "--schedule", "other.toml")[1]
    )


def test_plan_keeps_what_was_edited(tilec, folder):
    tilec("plan", *SOFTMAX)
    path = folder / "softmax.sched.toml"
    edited = (
        path.read_text()
        .replace("operations = ", "# mine\noperations = ")
        .replace("tile = [40]", "tile = [4]")
    )
    path.write_text(edited)
    status, _, err = tilec("plan", *SOFTMAX)
    assert status == 1 and "--force" in err and path.read_text() == edited
    assert tilec("plan", "softmax.tile", "-D", "M=8,N=8")[0] == 0
    assert path.read_text().startswith(edited.rstrip()) and path.read_text().count("[[plan]]") == 2
    assert tilec("plan", *SOFTMAX, "--force")[0] == 0
    assert "tile = [40]" in path.read_text() and path.read_text().count("[[plan]]") == 2


def test_plan_prints(tilec, folder):
    status, out, err = tilec("plan", *SOFTMAX, "-o", "-")
    assert status == 0 and err == "" and "[plan.kernels.softmax_y]" in out
    assert not (folder / "softmax.sched.toml").exists()


def test_a_wrong_schedule_has_a_place(tilec, folder):
    tilec("plan", *SOFTMAX)
    path = folder / "softmax.sched.toml"
    path.write_text(path.read_text().replace("tile = [40]", "tile = [99]"))
    status, _, err = tilec("run", *SOFTMAX)
    assert status == 1
    assert re.match(
        r"softmax.sched.toml:\d+:1: error: a tile of 99 does not fit a dimension of 40\n\d+ \| tile = \[99\]",
        err,
    )


# ---- emit ------------------------------------------------------------------------------------------------


def test_emit(tilec, folder):
    assert "def softmax_y(block, args, scratch):" in tilec("emit", "--as", "numba", *SOFTMAX)[1]
    assert tilec("emit", "--as", "mlir", *SOFTMAX, "-o", "out.mlir") == (0, "", "")
    assert (folder / "out.mlir").read_text().startswith("// tilec stage: map")
    assert not list(folder.glob(".out*"))
    status, _, err = tilec("emit", "--as", "ptx", *SOFTMAX)
    assert status == 1 and "there is no ptx for the target 'cpu'" in err
    status, _, err = tilec("emit", "--as", "numba", *SOFTMAX, "--kernel", "nothing")
    assert status == 1 and "there is softmax_y" in err


def test_expectations_stop_emit_and_not_explain(tilec, folder):
    text = (folder / "mlp.tile").read_text().replace("\n}", "\n    expect kernels == 1\n}")
    (folder / "mlp.tile").write_text(text)
    options = ("mlp.tile", "-D", "M=8,D=8,F=8")
    status, out, err = tilec("emit", "--as", "numba", *options)
    assert (status, out) == (1, "") and "kernels is 2" in err and "note: refused h with y.sum" in err
    status, out, _ = tilec("explain", *options)
    assert status == 0 and "kernels == 1: FAILS (kernels is 2)" in out


# ---- run -------------------------------------------------------------------------------------------------


def test_run_checks_times_and_saves(tilec, folder):
    status, out, err = tilec("run", *SOFTMAX, "--check", "--time", "--save", "out.npz")
    assert status == 0, out + err
    assert "within the bound" in out and "roofline" in out and "FLOP/s" in out and "predicted" in out
    y = np.load(folder / "out.npz")["y"]
    assert y.shape == (40, 50) and np.allclose(y.sum(1), 1)


def test_run_is_the_same_for_the_same_seed(tilec, folder):
    results = []
    for seed in (1, 1, 2):
        tilec("run", *SOFTMAX, "--seed", seed, "--save", "out.npz")
        results.append(np.load(folder / "out.npz")["y"])
    assert (results[0] == results[1]).all() and not (results[0] == results[2]).all()


def test_run_takes_sizes_and_values_from_files(tilec, folder):
    x = np.random.default_rng(0).standard_normal((6, 9))
    np.save("x.npy", x)  # f64: converted to the declared f32
    status, out, err = tilec("run", "softmax.tile", "--input", "x=x.npy", "--check", "--save", "y.npz")
    assert status == 0, err
    assert "f32[6, 9]  given" in out
    e = np.exp(x - x.max(1, keepdims=True))
    assert np.allclose(np.load("y.npz")["y"], e / e.sum(1, keepdims=True), atol=1e-6)
    np.savez("all.npz", x=x.astype(np.float32))
    assert tilec("run", "softmax.tile", "--input", "all.npz", "--check")[0] == 0
    assert tilec("run", "softmax.tile", "--input", "x=all.npz", "-D", "M=6")[0] == 0


def test_run_mixes_given_and_random(tilec, folder):
    np.save("ids.npy", np.array([[1, 2, 3]], np.int32))
    status, out, _ = tilec(
        "run", "embedding.tile", "--input", "ids=ids.npy", "-D", "V=5,D=4", "--check", "--save", "y.npz"
    )
    assert status == 0 and "i32[1, 3]  given" in out and "bf16[5, 4]  random" in out
    assert np.load("y.npz")["y"].dtype == np.float32


def test_run_keeps_ids_inside_their_table(tilec):
    for seed in range(3):
        assert tilec("run", "embedding.tile", "-D", "B=2,S=9,V=3,D=4", "--seed", seed)[0] == 0


def test_run_tells_where_the_error_is(tilec, monkeypatch):
    """Results that are wrong are out of bounds, and the exit status says so."""
    from tilec import run_device

    results = run_device.Host.results
    monkeypatch.setattr(
        run_device.Host, "results", lambda self: {n: a + 1e-3 for n, a in results(self).items()}
    )
    status, out, _ = tilec("run", *SOFTMAX, "--check")
    assert status == 1 and "OUT OF BOUNDS" in out


@pytest.mark.parametrize("arguments, message", [
    (["--input", "x=none.npy"], "cannot read 'none.npy'"),
    (["--input", "softmax.tile"], "'softmax.tile' is no .npy or .npz file"),
    (["--input", "q=x.npy"], "there is no input `q`"),
    (["--input", "x=ints.npy"], "`x` is f32, and its file holds int64"),
    (["--input", "x=cube.npy"], "`x` has 2 dimensions, and the argument has 3"),
    (["--input", "x.npy"], "--input NAME=x.npy"),
    (["-D", "M=2,N=2", "--save", "out.txt"], "results go into a .npz file"),
    (["-D", "M=2,N=2", "--save", "no/out.npz"], "cannot write 'no/out.npz'"),
    (["-D", "M=1000000000000,N=1000000000000"], "`x` is too large to run"),
])  # fmt: skip
def test_run_refuses(tilec, arguments, message):
    np.save("x.npy", np.zeros((2, 2), np.float32))
    np.save("ints.npy", np.zeros((2, 2), np.int64))
    np.save("cube.npy", np.zeros((2, 2, 2), np.float32))
    status, _, err = tilec("run", "softmax.tile", *arguments)
    assert status == 1 and message in err


def test_run_needs_a_gpu_for_cuda(tilec, monkeypatch):
    from tilec.runtime import cuda_driver

    monkeypatch.setattr(cuda_driver, "device_info", lambda: cuda_driver.SystemInfo(problem="no driver here"))
    status, _, err = tilec("run", "--target", "sm_90a", *SOFTMAX)
    assert status == 1 and "there is no GPU to run on: no driver here" in err


# ---- doctor ----------------------------------------------------------------------------------------------


def test_doctor(tilec):
    status, out, _ = tilec("doctor")
    assert status == 0
    for heading in ("software", "CPU", "GPU", "cache"):
        assert f"{heading}\n" in out
    assert re.search(r"^  numba +\d", out, re.MULTILINE) and "nothing is missing for the CPU" in out


def test_doctor_names_what_is_missing(tilec, monkeypatch):
    from tilec import doctor

    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "lark" else real(name))
    status, out, _ = tilec("doctor")
    assert status == 1 and "problem: lark is not installed: pip install lark" in out


def test_doctor_calibrates(tilec, monkeypatch):
    from tilec import calibrate

    called = []
    monkeypatch.setattr(calibrate, "calibrate", lambda: called.append(1))
    assert tilec("doctor", "--calibrate")[0] == 0 and called == [1]


# ---- mistakes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments, status, message", [
    (["emit", "--as", "numba", "none.tile"], 1, "there is no file 'none.tile'"),
    (["emit", "--as", "numba", "."], 1, "cannot read '.'"),
    (["emit", "--as", "numba", "binary.tile"], 1, "'binary.tile' is not UTF-8 text: byte 2 is 0xff"),
    (["dump", "softmax.tile"], 1, "hint: give them: -D M=… -D N=…"),
    (["dump", "softmax.tile", "-D", "M=3"], 1, "hint: give it: -D N=…"),
    (["dump", "softmax.tile", "-D", "M=3,N=3,n=3"], 1, "has no size `n`"),
    (["dump", *SOFTMAX, "--target", "sm90"], 1, "hint: did you mean 'sm_90'?"),
    (["dump", *SOFTMAX, "--op", "softmix"], 1, "hint: did you mean `softmax`?"),
    (["dump", "attention.tile"], 1, "it has `attention`, `causal_attention`"),
    (["dump", *SOFTMAX, "--after", "fuze"], 1, "hint: did you mean 'fuse'?"),
    (["opt", "none.mlir"], 1, "there is no file 'none.mlir'"),
    (["dump", *SOFTMAX, "--schedule", "none.toml"], 1, "cannot read schedule 'none.toml'"),
    (["dump", *SOFTMAX, "-o", "softmax.tile"], 1, "cannot make the folder 'softmax.tile'"),
    (["dump", "softmax.tile", "-D", "M=many"], 2, "'many' is no whole number"),
    (["dump", "softmax.tile", "-D", "M"], 2, "'M' is not NAME=NUMBER"),
    (["dump", "softmax.tile", "-D", "M=-1"], 2, "from 0"),
    (["emit", "softmax.tile"], 2, "--as"),
    (["nonsense"], 2, "invalid choice"),
    ([], 2, "usage: tilec COMMAND"),
])  # fmt: skip
def test_mistakes(tilec, folder, arguments, status, message):
    (folder / "binary.tile").write_bytes(b"op\xff\xfe")
    found, out, err = tilec(*arguments)
    assert (found, out) == (status, "") and message in err and "Traceback" not in err


# ---- defects ---------------------------------------------------------------------------------------------


def test_a_defect_leaves_its_ir(tilec, folder, monkeypatch):
    """The file goes on where the stage failed, once the defect is mended."""
    import tilec.passes.tile as tile_pass

    from tilec import driver, passes

    def broken(op):
        raise KeyError("a bug")

    real = passes.stages
    broken_stages = [
        passes.Stage(s.name, s.summary, (broken,)) if s.name == "tile" else s for s in real(lambda op: None)
    ]

    def stages(plan):
        good = real(plan)
        return tuple(b if b.name == "tile" else g for g, b in zip(good, broken_stages))

    monkeypatch.setattr(driver, "stages", stages)
    status, _, err = tilec("emit", "--as", "numba", *SOFTMAX)
    assert status == 70
    assert "internal error: stage 'tile' failed" in err and "a bug" in err and "where: in stage 'tile'" in err
    assert "to reproduce: tilec opt tilec-error.mlir --from fuse" in err
    assert (folder / "tilec-error.mlir").read_text().startswith("// tilec stage: fuse, target: cpu\n")
    assert tilec("opt", "tilec-error.mlir", "--from", "fuse")[0] == 70
    monkeypatch.setattr(driver, "stages", real)
    assert tilec("opt", "tilec-error.mlir")[0] == 0
    assert tile_pass is not None


def test_an_unexpected_exception_says_where(tilec, monkeypatch):
    from tilec import explain

    monkeypatch.setattr(explain, "explain", lambda *a: [][0])
    status, _, err = tilec("explain", *SOFTMAX)
    assert status == 70
    assert (
        "internal error: IndexError" in err
        and f"where: {__file__}:" in err
        and "tilec explain softmax.tile" in err
    )
    monkeypatch.setenv("TILEC_DEBUG", "1")
    assert "Traceback" in tilec("explain", *SOFTMAX)[2]


@pytest.mark.parametrize("error, status", [
    (KeyboardInterrupt(), 130), (MemoryError("no room"), 1), (OSError("disk full"), 1),
    (InternalError("bad", "map"), 70), (BrokenPipeError(), 141),
])  # fmt: skip
def test_what_exceptions_become(monkeypatch, capfd, error, status):
    def fail(args):
        raise error

    from tilec import doctor

    monkeypatch.setattr(doctor, "doctor", fail)
    saved = os.dup(1)
    try:
        assert cli.main(["doctor"]) == status
    finally:
        os.dup2(saved, 1)
        os.close(saved)
    assert "Traceback" not in capfd.readouterr().err


def test_nothing_half_written(folder, monkeypatch):
    path = folder / "file"
    path.write_text("old")

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(cli_common.CallError, match="No space left"):
        cli_common.write_file(path, b"new")
    assert path.read_text() == "old" and not [p for p in folder.iterdir() if p.name.endswith(".tmp")]


# ---- a process of its own --------------------------------------------------------------------------------


def process(*arguments: str, **options):
    return subprocess.run(
        [sys.executable, "-m", "tilec.cli", *arguments], capture_output=True, text=True, **options
    )


def test_as_a_process():
    assert process("--version").stdout.startswith("tilec ")
    done = process("dump", "softmax.tile")
    assert done.returncode == 1 and done.stdout == ""
    done = process("opt", "-", input=process("dump", *SOFTMAX, "--after", "plan").stdout)
    assert done.returncode == 0 and "def softmax_y(" in done.stdout


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
def test_a_closed_pipe_is_quiet():
    program = "transformer_block.tile --op transformer_block -D B=1,S=8,E=16,H=2,D=8,F=16"
    command = f'"{sys.executable}" -m tilec.cli dump {program} | head -1'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout.startswith("// tilec stage: build") and done.stderr == ""


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_interruption_is_quiet():
    import signal
    import time

    command = [sys.executable, "-m", "tilec.cli", "run", "softmax.tile", "-D", "M=20000,N=5000", "--check"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(3)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130 and "Traceback" not in err
