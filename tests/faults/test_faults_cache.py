"""A cache that is full, read-only, someone else's or damaged: right results all the same, and never a damaged entry."""

from __future__ import annotations

import builtins
import errno
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilec
from tilec.runtime import cache
from tilec.runtime.cpu import compile as cpu_compile

PROGRAM = "m[i] = max[j](x[i, j])  y[i, j] = x[i, j] * 3 - m[i]"
X = np.arange(40, dtype=np.float32).reshape(5, 8)
Y = X * 3 - X.max(1, keepdims=True)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    tmp_path.chmod(0o700)
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def run() -> np.ndarray:
    """As a new process would: nothing is kept from one call of this to the next but the disk cache."""
    return tilec.compile(PROGRAM, target="cpu")(X)


def files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def test_damaged_bytes(folder):
    """Every file of the cache, cut or with bits turned in every region of it: noticed, and made again."""
    np.testing.assert_array_equal(run(), Y)
    rng, whole = random.Random(1), {p: p.read_bytes() for p in files(folder)}
    assert whole
    for path, data in whole.items():
        regions = range(0, len(data), max(1, len(data) // 12))
        damaged = [data[:at] for at in regions]
        for at in regions:
            transposed = bytearray(data)
            transposed[min(len(data) - 1, at + rng.randrange(max(1, len(data) // 12)))] ^= 1 << rng.randrange(8)
            damaged.append(bytes(transposed))
        for content in rng.sample(damaged, min(len(damaged), 10)):
            path.write_bytes(content)
            np.testing.assert_array_equal(run(), Y)


def test_an_index_is_believed_only_whole(folder):
    """Numbers in an entry's index, such as a kernel's registers, are as much part of it as its binaries."""
    key = cache.make_key("numbers")
    assert cache.save(key, {"registers": 64, "shared": 1024}, {"cubin": b"code"})
    (path,) = folder.rglob("*.json")
    path.write_text(path.read_text().replace("1024", "1025"))
    assert cache.load(key) is None


@pytest.mark.parametrize("failing", ["open", "write", "fsync", "replace", "mkdir", "create"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EIO])
def test_every_point_of_writing_may_fail(folder, monkeypatch, failing, code):
    """From the n-th write on, for every n."""
    for first in range(3):
        calls = 0
        with monkeypatch.context() as patch:

            def failed(original, *args, first=first, **options):
                nonlocal calls
                calls += 1
                if calls > first:
                    raise OSError(code, os.strerror(code))
                return original(*args, **options)

            _patch(patch, failing, folder, failed)
            assert cache.save(cache.make_key(f"{first}"), {}, {"a": b"1" * 100, "b": b"2"}) in (True, False)
        assert not list(folder.rglob("*.tmp"))
        for path in folder.rglob("*.json"):
            assert cache.load(path.stem) is not None, "an index without its binaries"
    np.testing.assert_array_equal(run(), Y)


def _patch(patch, failing: str, folder: Path, failed) -> None:
    place, name = {
        "open": (builtins, "open"), "write": (os, "fdopen"), "fsync": (os, "fsync"), "replace": (os, "replace"),
        "mkdir": (Path, "mkdir"), "create": (os, "open"),
    }[failing]  # fmt: skip
    original = getattr(place, name)

    def wrapped(*args, **options):
        if failing == "open" and not str(args[0]).startswith(str(folder)):
            return original(*args, **options)
        return failed(original, *args, **options)

    patch.setattr(place, name, wrapped)


LIMITED = f"""
import resource, sys, numpy as np, tilec
x = np.arange(40, dtype=np.float32).reshape(5, 8)
op = tilec.compile("{PROGRAM}", target="cpu")
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
np.testing.assert_array_equal(op(x), x * 3 - x.max(1, keepdims=True))
"""


@pytest.mark.parametrize("size", [0, 1000])
def test_files_that_cannot_grow(size, folder):
    """As on a full disk, by the system itself: the files of the cache may have so many bytes."""
    done = subprocess.run([sys.executable, "-c", LIMITED, str(size)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    np.testing.assert_array_equal(run(), Y)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become someone else")
@pytest.mark.parametrize("mode", [0o500, 0o000])
def test_a_cache_that_is_not_ours_or_read_only(mode, folder, tmp_path):
    """A user who may not write, or not even read, works without."""
    cpu_compile.prepare()  # that user may not be able to read where Python's packages are
    np.testing.assert_array_equal(run(), Y)
    folder.chmod(mode)
    child = os.fork()
    if child == 0:
        try:
            os.setuid(65534)
            cache._checked.cache_clear()
            import warnings

            warnings.simplefilter("ignore")
            os._exit(0 if np.array_equal(run(), Y) else 1)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(2)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    folder.chmod(0o700)
    assert status == 0
