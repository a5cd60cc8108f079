"""Killed, interrupted, forked, out of disk: right results or a clear error, nothing half-written, a cache that is sound.

What the other `test_faults_*.py` do not hold; docs/reliability.md says what is promised.
`--slow` repeats what is random hundreds of times.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from tools import fault_children as faults
from tools.fault_children import SIZES, SOURCE, Child, Writes, results_are_right
from tools.faults import longer

from tilec.cli import command as cli
from tilec.process import atomic_files
from tilec.runtime import cache

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
INTERRUPTED = 130


@pytest.fixture(scope="module", autouse=True)
def loaded():
    faults.preload()


def prepare(folder: Path) -> None:
    for name in ("go.tile", "crooked.tile"):
        (folder / name).write_text(SOURCE)


@pytest.fixture
def folder(tmp_path) -> Path:
    prepare(tmp_path)
    return tmp_path


def command(*arguments: str):
    return lambda: cli.main([*arguments])


COMMANDS = {
    "dump": ("dump", "go.tile", *SIZES, "-o", "ir"),
    "plan": ("plan", "go.tile", *SIZES),
    "run": ("run", "go.tile", *SIZES, "--save", "y.npz"),
    "emit": ("emit", "--as", "numba", "go.tile", *SIZES, "-o", "kernels.py"),
    "fmt": ("fmt", "crooked.tile"),
}


def written(folder: Path) -> dict[str, bytes]:
    """Every file in a folder but the cache's, by name; results as values, since an archive holds the time."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and "cache" not in p.parts):
        name = str(path.relative_to(folder))
        found[name] = np.load(path)["y"].tobytes() if path.suffix == ".npz" else path.read_bytes()
    return found


def assert_whole(folder: Path, whole: dict[str, bytes]) -> None:
    """Every file is what an undisturbed run writes, or what was there before, or is not there."""
    for name, data in written(folder).items():
        if not name.endswith(".tmp"):
            assert data in (whole[name], SOURCE.encode()), name


def age(folder: Path) -> None:
    for path in folder.rglob("*.tmp"):
        os.utime(path, (1e9, 1e9))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> tuple[dict[str, dict[str, bytes]], dict[str, float]]:
    """What compiling and every command write when nothing disturbs them, and the seconds that they take."""
    found, seconds = {}, {}
    for name, body in {"compile": results_are_right, **{n: command(*a) for n, a in COMMANDS.items()}}.items():
        folder = tmp_path_factory.mktemp(name)
        prepare(folder)
        start = time.perf_counter()
        assert Child(body, folder / "cache", folder).wait() == 0
        seconds[name] = time.perf_counter() - start
        found[name] = written(folder)
    return found, seconds


@pytest.fixture(scope="module")
def whole(undisturbed) -> dict[str, dict[str, bytes]]:
    """What every command writes when nothing disturbs it."""
    return undisturbed[0]


def leave(folder: Path, outputs: dict[str, bytes]) -> None:
    """The text outputs of an earlier run, to be replaced."""
    for name, data in outputs.items():
        if not name.endswith((".tile", ".npz")):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)


# ---- killed and interrupted ------------------------------------------------------------------------------------------


THOROUGH = [False, pytest.param(True, marks=pytest.mark.slow)]


@pytest.mark.parametrize("thorough", THOROUGH)
def test_killed_at_every_write_of_the_cache(tmp_path, thorough):
    store, writes = tmp_path / "cache", 0

    def dying(number: int):
        Writes(number, faults.die)
        results_are_right()

    while (status := Child(lambda n=writes: dying(n), store).wait()) == -signal.SIGKILL:
        writes += 1
        for path in store.rglob("*.bin" if writes % 2 else "*.json") if thorough else ():
            path.unlink()  # so that there is always something to write
    assert status == 0 and writes >= (6 if thorough else 2)
    age(store)
    assert Child(results_are_right, store).wait() == 0
    names = {p.name for p in store.rglob("*") if p.is_file()}
    assert Child(results_are_right, tmp_path / "clean").wait() == 0
    assert {n for n in names if not n.endswith(".tmp")} == {
        p.name for p in (tmp_path / "clean").rglob("*") if p.is_file()
    }


@pytest.mark.parametrize("name", ["plan", "emit", "dump"])
def test_killed_at_every_write_of_a_command(folder, whole, name):
    def dying(number: int):
        Writes(number, faults.die)
        return cli.main([*COMMANDS[name]])

    for number in (0, 1, 2, 5):
        if Child(lambda n=number: dying(n), "", folder).wait() == 0:
            break
        assert_whole(folder, whole[name])
    age(folder)
    assert Child(command(*COMMANDS[name]), "", folder).wait() == 0
    assert written(folder) == whole[name]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("times", [3, pytest.param(260, marks=pytest.mark.slow)])
def test_ended_at_random_moments(folder, undisturbed, number, times):
    """Compiling into a cache, or a command with its files."""
    draw, ended = random.Random(7), 0
    choices = ["compile", *COMMANDS]
    whole, durations = undisturbed[0], dict(undisturbed[1])
    store = folder / "cache"
    for turn in range(times):
        name = choices[turn % len(choices)]
        body = results_are_right if name == "compile" else command(*COMMANDS[name])
        if turn % 5 == 0:
            for path in store.rglob("*.*"):
                path.unlink()
        leave(folder, whole[name])
        status = Child(body, store, folder).signal_after(draw.uniform(0, durations[name]), number)
        assert status in (0, INTERRUPTED if number == signal.SIGINT else -number), f"{name}: {status}"
        ended += status != 0
        durations[name] = longer(durations[name], status != 0)
        everything = {k: v for each in whole.values() for k, v in each.items()}
        assert_whole(folder, everything)
        if number == signal.SIGINT:
            assert not list(folder.glob("*.tmp")) and not list((folder / "ir").glob("*.tmp"))
    assert ended >= times // 4
    age(folder)
    for path in store.rglob("*.json"):  # so that there is something to write, and what is old goes
        path.unlink()
    assert Child(results_are_right, store).wait() == 0
    assert not list((store / "entries").glob("*.tmp"))


def test_old_temporary_files_go_and_new_ones_stay(tmp_path):
    old, new, other = tmp_path / ".tilec-1.tmp", tmp_path / ".tilec-2.tmp", tmp_path / ".other.tmp"
    for path in (old, new, other):
        path.write_text("half")
    for path in (old, other):
        os.utime(path, (1e9, 1e9))
    atomic_files._remove_old.cache_clear()
    atomic_files.replace_file(tmp_path / "a", b"1")
    assert {p.name for p in tmp_path.iterdir()} == {new.name, other.name, "a"}


# ---- disks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plan", "run", "dump"])
def test_a_full_disk_is_a_clear_error(folder, whole, name):
    def full(number: int):
        Writes(number, faults.no_space)
        return cli.main([*COMMANDS[name]])

    for number in range(3):
        status = Child(lambda n=number: full(n), "", folder).wait()
        assert status == 1
        assert_whole(folder, whole[name])
        assert not list(folder.rglob("*.tmp"))


def test_files_may_grow_to_a_kilobyte_only(folder, whole):
    """A write that stops in the middle, rather than before it begins."""

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        results_are_right()
        return cli.main([*COMMANDS["dump"]])

    assert Child(limited, folder / "cache", folder).wait() == 1
    assert_whole(folder, whole["dump"])
    assert not list(folder.rglob("*.tmp"))
    assert Child(results_are_right, folder / "cache").wait() == 0


@pytest.mark.parametrize("name", ["plan", "emit"])
def test_outputs_that_are_no_files_are_written_to(folder, whole, name):
    """A file put in the place of /dev/null or a pipe would be in the way of everybody."""
    os.mkfifo(folder / "pipe")
    reader = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        arguments = [a for a in COMMANDS[name] if a not in ("-o", "kernels.py")]
        assert Child(command(*arguments, "-o", "pipe"), "", folder).wait(60) == 0
        assert (folder / "pipe").is_fifo()
        assert os.read(reader, 1 << 20) in whole[name].values()
    finally:
        os.close(reader)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_standard_output(folder):
    import subprocess
    import sys

    code = "import sys; from tilec.cli.command import main; sys.exit(main())"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, "cache", "dir"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
            env=os.environ | {cache.VARIABLE: str(folder / "cache")},
        )  # fmt: skip
    assert done.returncode == 1 and "No space left" in done.stderr and "Exception ignored" not in done.stderr


# ---- a cache that is not as it should be -----------------------------------------------------------------------------


@pytest.fixture
def entry(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    cache._checked.cache_clear()
    key = cache.make_key("damage")
    saved = ({"needs": {"f": ["g"]}, "op": "softmax", "n": 12}, {"image": bytes(range(256)) * 4, "text": b"abc"})
    assert cache.save(key, *saved)
    yield key, saved, tmp_path / "cache" / "entries"
    cache._checked.cache_clear()


@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "writable", "open folder"])
def test_entries_that_others_could_have_written(entry, tmp_path, kind):
    key, _, folder = entry
    path = folder / f"{key}.json"
    match kind:
        case "pipe":
            path.unlink()
            os.mkfifo(path)
        case "link":
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
        case "folder":
            path.unlink()
            path.mkdir()
        case "writable":
            path.chmod(0o666)
        case "open folder":
            folder.chmod(0o777)
    assert cache.load(key) is None


# ---- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["cpu", "features", "numba", "tilec", "mlir", "setting"])
def test_what_another_machine_or_version_compiled_is_not_found(monkeypatch, change):
    import llvmlite.binding as llvm

    from tilec.runtime.cpu import objects

    def keys():
        cache.compiler_digest.cache_clear()
        objects._versions.cache_clear()
        return cache.compiler_digest(), objects._versions()

    before, known = keys(), dict(cache._distributions())
    match change:
        case "cpu":
            monkeypatch.setattr(llvm, "get_host_cpu_name", lambda: "another")
        case "features":
            flags = llvm.get_host_cpu_features()
            flags["avx9"] = True
            monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: flags)
        case "setting":
            monkeypatch.setenv("NUMBA_OPT", "0")
        case _:
            package = {"mlir": "numba-cuda-mlir"}.get(change, change)
            monkeypatch.setattr(cache, "_distributions", lambda: tuple((known | {package: "99"}).items()))
    after = keys()
    monkeypatch.undo()
    assert keys() == before != after
