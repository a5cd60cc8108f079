"""The `tilec` command in this process: help, programs as texts, plans, `doctor`.

Help texts are golden: `TILEC_UPDATE_GOLDEN=1 pytest tests/cli/test_cli.py` writes them anew, to be read in the
diff.
"""

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import time

import pytest
from tools import TESTS
from tools.commands import ROOT, SOFTMAX, examples_folder, tilec_command  # noqa: F401 - fixtures

from tilec.cli import common, programs
from tilec.cli.parsers import parser

GOLDEN = TESTS / "golden" / "cli"
COMMANDS = (
    "new", "check", "fmt", "plan", "explain", "report", "tune", "dump", "opt", "emit", "run", "verify", "torch", "cache", "doctor",
    "completion", "lsp",
)  # fmt: skip


# ---- help ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(command, tilec):
    status, found, _ = tilec(*command.split(), "--help")
    assert status == 0
    path = GOLDEN / f"{command or 'tilec'}.txt"
    if os.environ.get("TILEC_UPDATE_GOLDEN"):
        assert not os.environ.get("CI"), "golden files are not written in CI"
        path.write_text(found)
    assert found == path.read_text()


def test_every_command_has_its_golden_help():
    assert {p.stem for p in GOLDEN.glob("*.txt")} == {"tilec", *COMMANDS}


def test_examples_of_every_help_are_commands():
    """They parse, and each command has its own."""
    top = parser()
    (choices,) = [a.choices for a in top._actions if a.choices]
    assert set(choices) == set(COMMANDS)
    for name, each in (("", top), *choices.items()):
        examples = re.findall(r"^  (tilec .*)$", each.format_help().partition("examples:\n")[2], re.MULTILINE)
        assert examples, f"tilec {name} --help has no example"
        for example in examples:
            words = shlex.split(re.split(" [<>] ", example.rpartition("| ")[2])[0])[1:]
            assert top.parse_args(words).command and (not name or words[0] == name or "|" in example), example


def test_stage_names_are_the_compilers():
    from tilec.passes import NAMES

    assert tuple(common.STAGES.split()) == NAMES


def test_help_imports_nothing_heavy():
    script = "import sys, tilec.cli.command; tilec.cli.command.parser().format_help(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "numba", "rich", "pygments", "lark", "tomlkit", "numba_cuda_mlir", "pygls"} & set(loaded)


def test_a_terminal_shows_programs_in_colours(tilec, folder, monkeypatch):
    plain = tilec("new", "softmax")[1]
    monkeypatch.setattr(programs, "coloured", lambda stream: stream is sys.stdout)
    (folder / "new.tile").write_text(plain + "# \x1b]0;title\x07\n")
    for command in (["new", "softmax"], ["fmt", "-"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((folder / "new.tile").read_bytes())))
        status, shown, _ = tilec(*command)
        assert status == 0 and "\x1b[" in shown and "\x1b]" not in shown
        assert re.sub(r"\x1b\[[0-9;]*m", "", shown).startswith(plain)
    assert tilec("new", "softmax", "-o", "own.tile")[0] == 0 and (folder / "own.tile").read_text() == plain


# ---- new -------------------------------------------------------------------------------------------------


def test_programs_to_start_from(tilec, folder):
    status, listed, _ = tilec("new")
    assert status == 0 and {"softmax", "gelu", "pow"} <= set(listed.split())
    for name in (*listed.split(), "bij,jk->bik", "...ij,jk", ",i->i"):
        status, text, _ = tilec("new", name)
        assert status == 0
        (folder / "started.tile").write_text(text)
        assert tilec("check", "started.tile") == (0, "", ""), name
        assert tilec("fmt", "--check", "started.tile")[0] == 0, name


def test_new_replaces_no_file(tilec, folder):
    assert tilec("new", "softmax", "-o", "mine.tile")[0] == 0
    assert "op softmax(x: f32[M, N])" in (folder / "mine.tile").read_text()
    status, _, error = tilec("new", "gelu", "-o", "mine.tile")
    assert status == 1 and "exists already" in error and "softmax" in (folder / "mine.tile").read_text()
    assert tilec("new", "gelu", "-o", "mine.tile", "--force")[0] == 0
    status, _, error = tilec("new", "sotfmax")
    assert status == 1 and "did you mean 'softmax'?" in error


# ---- check and fmt ---------------------------------------------------------------------------------------


def test_check_is_silent_about_what_is_right(tilec):
    assert tilec("check", "softmax.tile", "attention.tile") == (0, "", "")


def test_check_reports_all_mistakes_of_all_files(tilec, folder):
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


# ---- plan and explain ------------------------------------------------------------------------------------


def test_plan_is_written_and_obeyed(tilec, folder):
    status, out, err = tilec("plan", "softmax.tile", "-D", "M=512,N=512")
    assert (status, out) == (0, "") and err.startswith("wrote softmax.sched.toml: 1 kernel, ")
    path = folder / "softmax.sched.toml"
    path.write_text(re.sub(r"^tile = \[\d+\]", "tile = [2]", path.read_text(), flags=re.MULTILINE))
    status, out, err = tilec("explain", "softmax.tile", "-D", "M=512,N=512", "--full")
    assert status == 0 and "256 blocks: i = 512 in tiles of 2" in out
    assert (
        "note: obeying softmax.sched.toml (--no-schedule ignores it)" in err
        and "note: obeyed softmax_y: softmax.sched.toml gives tile [2] instead of [" in err
    )
    assert "tiles of 2" not in tilec("explain", "softmax.tile", "-D", "M=512,N=512", "--full", "--no-schedule")[1]
    shutil.move(path, folder / "other.toml")
    assert "tiles of 2" in tilec("explain", "softmax.tile", "-D", "M=512,N=512", "--full", "--schedule", "other.toml")[1]


def test_plan_keeps_what_was_edited(tilec, folder):
    tilec("plan", *SOFTMAX)
    path = folder / "softmax.sched.toml"
    edited = path.read_text().replace("operations = ", "# mine\noperations = ").replace("tile = [40]", "tile = [4]")
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


# ---- cache -----------------------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A cache with two entries, one of them a month old."""
    from tilec.runtime import cache

    folder = tmp_path / "cache"
    monkeypatch.setenv(cache.VARIABLE, str(folder))
    cache._checked.cache_clear()
    for name in ("old", "new"):
        assert cache.save(cache.make_key(name), {}, {})
    old = folder / "entries" / f"{cache.make_key('old')}.json"
    os.utime(old, (time.time() - 31 * 86400,) * 2)
    return folder


def test_cache_reports_where_and_how_much(tilec, kept):
    assert tilec("cache", "dir")[:2] == (0, f"{kept.resolve()}\n")
    assert re.fullmatch(r"2 files, \d+ B\n", tilec("cache", "size")[1])


def test_cache_clears_all_or_what_is_old(tilec, kept):
    assert tilec("cache", "clear", "--older-than", "30")[:2] == (0, "removed 1 files\n")
    assert tilec("cache", "clear")[:2] == (0, "removed 1 files\n")
    assert tilec("cache", "size")[1] == "0 files, 0 B\n"


def test_cache_that_is_off_or_refused_says_so(tilec, kept, monkeypatch):
    from tilec.runtime import cache

    status, _, err = tilec("cache", "size", "--older-than", "3")
    assert status == 1 and "goes with" in err
    kept.chmod(0o777)
    cache._checked.cache_clear()
    status, _, err = tilec("cache", "clear")
    assert status == 1 and "writable by others" in err
    monkeypatch.setenv(cache.VARIABLE, "")
    status, _, err = tilec("cache", "dir")
    assert status == 1 and cache.VARIABLE in err


# ---- doctor ----------------------------------------------------------------------------------------------


def test_doctor(tilec):
    status, out, _ = tilec("doctor")
    assert status == 0
    for heading in ("software", "CPU", "GPU", "cache"):
        assert f"{heading}\n" in out
    assert re.search(r"^  numba +\d", out, re.MULTILINE) and "nothing is missing for the CPU" in out


def test_doctor_names_what_is_missing(tilec, monkeypatch):
    from tilec.cli import doctor

    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "lark" else real(name))
    status, out, _ = tilec("doctor")
    assert status == 1 and "problem: lark is not installed: pip install lark" in out


def test_doctor_finds_a_toolkit_that_is_no_wheel(tilec, monkeypatch):
    from tilec.cli import doctor
    from tilec.runtime.cuda import driver as cuda_driver
    from tilec.runtime.cuda import toolkit

    wheels = ("nvidia-nvvm", "nvidia-nvjitlink", "nvidia-cuda-nvcc")
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name in wheels else real(name))
    monkeypatch.setattr(toolkit, "toolkit_library", lambda name: f"/opt/cuda/lib{name}.so")
    monkeypatch.setattr(toolkit, "ptxas_path", lambda: "/opt/cuda/bin/ptxas")
    monkeypatch.setattr(doctor, "_gpu_info", lambda: cuda_driver.SystemInfo(driver="CUDA 13.0", assembler="ptxas"))
    _, out, _ = tilec("doctor")
    assert "no wheel; found /opt/cuda/libnvvm.so" in out and "no wheel; found /opt/cuda/bin/ptxas" in out


def test_doctor_calibrates(tilec, monkeypatch):
    from tilec.driver import calibrate

    called = []
    monkeypatch.setattr(calibrate, "calibrate", lambda report: (called.append(1), report("measuring again: busy")))
    status, _, err = tilec("doctor", "--calibrate")
    assert status == 0 and called == [1] and "note: measuring again: busy" in err
