"""What mistakes, defects, interruptions and closed pipes become: messages, exit status, files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools.commands import IN_SHELL, SOFTMAX, examples_folder, tilec_command  # noqa: F401 - fixtures

from tilec.cli import command as cli
from tilec.cli import common
from tilec.core.diagnostics import InternalError

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
    (["dump", "softmax.tile", "-D", "M=many"], 2, "a size must be a whole number, not 'many'"),
    (["dump", "softmax.tile", "-D", "M"], 2, "'M' is not NAME=NUMBER"),
    (["dump", "softmax.tile", "-D", "M=-1"], 2, "between 0 and 2^63 - 1"),
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
    import tilec.passes.tensor.tile as tile_pass
    from tilec import passes
    from tilec.driver import lowering

    def broken(op):
        raise KeyError("a bug")

    real = passes.stages
    broken_stages = [
        passes.Stage(s.name, s.summary, (broken,)) if s.name == "tile" else s for s in real(lambda op: None)
    ]

    def stages(plan, target):
        good = real(plan, target)
        return tuple(b if b.name == "tile" else g for g, b in zip(good, broken_stages))

    monkeypatch.setattr(lowering, "stages", stages)
    status, _, err = tilec("emit", "--as", "numba", *SOFTMAX)
    assert status == 70
    assert "internal error: stage 'tile' failed" in err and "a bug" in err and "where: in stage 'tile'" in err
    assert "to reproduce: tilec opt tilec-error.mlir --from fuse" in err
    assert (folder / "tilec-error.mlir").read_text().startswith("// tilec stage: fuse, target: cpu\n")
    status, _, err = tilec("opt", "tilec-error.mlir", "--from", "fuse")
    assert status == 1 and "on this IR stage" in err and "a defect of tilec if stage 'fuse' left the file" in err
    monkeypatch.setattr(lowering, "stages", real)
    assert tilec("opt", "tilec-error.mlir")[0] == 0
    assert tile_pass is not None


def test_an_unexpected_exception_says_where(tilec, monkeypatch):
    from tilec.cli import explain

    monkeypatch.setattr(explain, "short", lambda *a: [][0])
    status, _, err = tilec("explain", *SOFTMAX)
    assert status == 70
    assert "internal error: IndexError" in err and f"where: {__file__}:" in err and "tilec explain softmax.tile" in err
    monkeypatch.setenv("TILEC_DEBUG", "1")
    assert "Traceback" in tilec("explain", *SOFTMAX)[2]


@pytest.mark.parametrize("error, status", [
    (KeyboardInterrupt(), 130), (MemoryError("no room"), 1), (OSError("disk full"), 1),
    (InternalError("bad", "map"), 70), (BrokenPipeError(), 141),
])  # fmt: skip
def test_what_exceptions_become(monkeypatch, capfd, error, status):
    def fail(args):
        raise error

    from tilec.cli import doctor

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
    with pytest.raises(common.CallError, match="No space left"):
        common.write_file(path, b"new")
    assert path.read_text() == "old" and not [p for p in folder.iterdir() if p.name.endswith(".tmp")]


# ---- a process of its own --------------------------------------------------------------------------------


def process(*arguments: str, **options):
    return subprocess.run([sys.executable, "-m", "tilec.cli.command", *arguments], capture_output=True, text=True, **options)


def test_as_a_process():
    assert process("--version").stdout.startswith("tilec ")
    done = process("dump", "softmax.tile")
    assert done.returncode == 1 and done.stdout == ""
    done = process("opt", "-", input=process("dump", *SOFTMAX, "--after", "plan").stdout)
    assert done.returncode == 0 and "def softmax_y(" in done.stdout


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
def test_a_closed_pipe_is_quiet():
    program = "transformer_block.tile --op transformer_block -D B=1,S=8,E=16,H=2,D=8,F=16"
    command = f"{IN_SHELL} dump {program} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout.startswith("// tilec stage: build") and done.stderr == ""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_interruption_is_quiet():
    """In the midst of its work, which is counted: it begins late where the machine is busy."""
    import signal
    import time

    command = [sys.executable, "-m", "tilec.cli.command", "run", "softmax.tile", "-D", "M=4000,N=500", "--interpret", "map"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while sum(map(int, Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[11:13])) < 120:
            assert child.poll() is None
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    finally:
        child.kill()
    # a process that is done, and ends, has no handler of Python's left: the signal ends it, which a shell reports as 130, too
    assert child.returncode in (130, -signal.SIGINT) and "Traceback" not in err
