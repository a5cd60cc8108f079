"""The disk cache: whole entries or none, for many writers, on any kind of broken disk, and never from a
shared directory."""

import ast
import json
import os
import re
import subprocess
import sys
import warnings
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from tools.lowering import emitted

from tilec.runtime import cache
from tilec.runtime.cpu import objects
from tilec.runtime.cuda import cubins

KEY = cache.make_key("source", "sm_90a")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv(cache.VARIABLE, str(path))
    cache._checked.cache_clear()
    return path


def test_saves_and_loads(folder):
    assert cache.load(KEY) is None
    assert cache.save(KEY, {"registers": 32}, {"cubin": b"\x7fELF", "ptx": b".version 8.0"})
    assert cache.load(KEY) == ({"registers": 32}, {"cubin": b"\x7fELF", "ptx": b".version 8.0"})
    assert (folder.stat().st_mode & 0o777) == 0o700
    assert all((p.stat().st_mode & 0o077) == 0 for p in folder.rglob("*"))
    assert cache.usage()[0] == 3
    assert cache.clear() == 3 and cache.load(KEY) is None


def test_keys_count_the_length_of_each_part():
    assert cache.make_key("ab", "c") != cache.make_key("a", "bc")
    assert cache.make_key("a") == cache.make_key(b"a")


@pytest.mark.parametrize("damage", ["cubin", "truncated", "missing", "json", "list", "binary", "digest", "other key"])
def test_corrupted_entries_are_as_if_absent(folder, damage):
    cache.save(KEY, {"a": 1}, {"cubin": b"x" * 1000})
    entries = folder / "entries"
    index, blob = entries / f"{KEY}.json", next(entries.glob("*.bin"))
    match damage:
        case "cubin":
            blob.write_bytes(b"y" * 1000)
        case "truncated":
            blob.write_bytes(b"x" * 10)
        case "missing":
            blob.unlink()
        case "json":
            index.write_text("{")
        case "list":
            index.write_text("[[[]]]")
        case "binary":
            index.write_bytes(bytes(range(256)))
        case "digest":
            entry = json.loads(index.read_text()) | {"files": {"cubin": "../../etc/passwd"}}
            index.write_text(json.dumps(entry | {"digest": cache._digest(entry)}))
        case "other key":
            index.write_text(index.read_text().replace(KEY, "0" * 64))
    assert cache.load(KEY) is None
    assert cache.save(KEY, {"a": 1}, {"cubin": b"x" * 1000})
    assert cache.load(KEY) == ({"a": 1}, {"cubin": b"x" * 1000})


WRITER = """
import sys
from tilec.runtime import cache
key = cache.make_key("shared")
for i in range(40):
    content = bytes([int(sys.argv[1])]) * 50_000
    assert cache.save(key, {"writer": int(sys.argv[1])}, {"cubin": content})
    found = cache.load(key)
    assert found is not None, "no entry"
    properties, files = found
    assert files["cubin"] == bytes([properties["writer"]]) * 50_000
"""


def test_many_writers_see_whole_entries(folder):
    workers = [subprocess.Popen([sys.executable, "-c", WRITER, str(n)]) for n in range(6)]
    assert [w.wait(120) for w in workers] == [0] * 6
    assert not list(folder.rglob("*.tmp"))


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_directory_that_others_can_write_is_refused(folder, mode):
    folder.mkdir()
    folder.chmod(mode)
    with pytest.warns(cache.CacheWarning, match="writable by others"):
        assert cache.directory() is None
    assert not cache.save(KEY, {}, {"cubin": b""}) and cache.load(KEY) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        assert cache.directory() is None


def test_a_parent_that_others_can_write_is_refused_unless_sticky(folder, tmp_path):
    tmp_path.chmod(0o777)
    folder.mkdir(mode=0o700)
    assert "above the cache" in cache.refusal(folder)
    tmp_path.chmod(0o1777)
    assert cache.refusal(folder) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory away")
def test_a_directory_of_someone_else_is_refused(folder, tmp_path):
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    assert "belongs to user 12345" in cache.refusal(folder)
    inside = folder / "cache"
    inside.mkdir(mode=0o700)
    assert "belongs to user 12345" in cache.refusal(inside)


def test_a_link_is_judged_by_where_it_leads(folder, tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "open" / "target").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "open" / "target")
    with pytest.warns(cache.CacheWarning, match="above the cache"):
        assert cache.directory() is None


def test_linked_folders_inside_are_not_followed(folder, tmp_path):
    folder.mkdir(mode=0o700)
    (tmp_path / "elsewhere").mkdir()
    (folder / "entries").symlink_to(tmp_path / "elsewhere")
    assert not cache.save(KEY, {}, {"cubin": b""})
    assert not list((tmp_path / "elsewhere").iterdir())


def test_switched_off(folder, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, "")
    assert cache.directory() is None
    assert not cache.save(KEY, {}, {}) and cache.load(KEY) is None


@pytest.mark.parametrize("failing", ["os.replace", "os.fsync", "os.open"])
def test_full_or_read_only_disks_mean_no_cache(folder, monkeypatch, failing):
    def fail(*_args, **_options):
        raise OSError(28, "No space left on device")

    cache.directory()
    monkeypatch.setattr(failing, fail)
    assert not cache.save(KEY, {}, {"cubin": b"x"})
    assert cache.load(KEY) is None
    assert not list(folder.rglob("*.json")) and not list(folder.rglob("*.tmp"))


def test_a_read_only_cache_is_read(folder):
    cache.save(KEY, {"a": 1}, {"cubin": b"x"})
    try:
        for path in (folder / "entries", folder):
            path.chmod(0o500)
        assert cache.load(KEY) == ({"a": 1}, {"cubin": b"x"})
    finally:
        for path in (folder, folder / "entries"):
            path.chmod(0o700)


def test_unusable_places_warn(folder, tmp_path):
    folder.write_text("a file")
    with pytest.warns(cache.CacheWarning):
        assert cache.directory() is None


def test_installed_versions_are_those_of_the_metadata():
    from importlib.metadata import version

    names = ("numpy", "numba", "llvmlite", "ml_dtypes", "no-such-package")
    assert cache.installed(*names) == (*(f"{n} {version(n)}" for n in names[:-1]), "no-such-package -")


def test_what_is_found_or_made_is_reported(folder, monkeypatch):
    reported = []
    monkeypatch.setattr(cache, "watchers", [lambda *entry: reported.append(entry)])
    assert cache.load("k1") is None and cache.save("k1", {"a": 1}, {"x": b"1"}) and cache.load("k1") is not None
    assert reported == [("k1", {"a": 1}, {"x": b"1"})] * 2


def test_equal_sources_have_one_digest(folder, tmp_path, monkeypatch):
    """Wherever they lie, and whenever they were written. They are read once."""
    for name in ("one", "two"):
        (tmp_path / name / "std").mkdir(parents=True)
        (tmp_path / name / "a.py").write_text("x = 1")
        (tmp_path / name / "std" / "b.tile").write_text("y")
    os.utime(tmp_path / "two" / "a.py", (1, 1))
    digests = [cache._digest_of(tmp_path / name) for name in ("one", "two")]
    assert digests[0] == digests[1]
    (tmp_path / "two" / "a.py").write_text("x = 2")
    other = cache._digest_of(tmp_path / "two")
    assert other != digests[0]
    monkeypatch.setattr(cache, "_contents", lambda folder: "read again")
    assert [cache._digest_of(tmp_path / name) for name in ("one", "two")] == [digests[0], other]
    (tmp_path / "two" / "std" / "b.tile").rename(tmp_path / "two" / "b.tile")
    assert cache._digest_of(tmp_path / "two") == "read again"


COMPILERS = {"cpu": objects, "cuda": cubins}


@pytest.mark.parametrize("kind", COMPILERS)
def test_what_kernels_are_compiled_with_is_in_their_digest(kind, monkeypatch):
    """All that the compiler imports, read by the parser of Python, and no file of what prints or launches."""
    modules = (COMPILERS[kind].COMPILER, COMPILERS[kind].PRINTED)
    waiting, files = [*modules], dict[str, str]()
    while waiting:
        name = waiting.pop()
        try:
            found = find_spec(name)
        except ModuleNotFoundError:
            continue  # a name in a module
        if found is None or name in files or name.startswith(("tilec.process", "tilec.runtime.cache")):
            continue
        files[name] = found.origin
        for node in ast.walk(ast.parse(Path(found.origin).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "tilec":
                waiting += [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
    packages = {name for name, origin in files.items() if origin.endswith("__init__.py")}
    assert packages <= {"tilec.core", "tilec.process", "tilec.runtime", "tilec.runtime.cpu", "tilec.runtime.cuda"}
    assert {"tilec.core.coefficients", "tilec.runtime.cpu.math_tables", *modules} <= files.keys()
    others = re.compile(r"tilec\.(plan|passes|driver|runtime\.(emit|native|cuda\.launch))")
    assert not any(map(others.match, files))
    digest = partial(cache.code_digest.__wrapped__, *modules)
    before, read = digest(), Path.read_bytes
    for name, path in files.items():
        monkeypatch.setattr(Path, "read_bytes", lambda p, path=path: b"" if p.samefile(path) else read(p))
        assert (digest() == before) == (name in packages), name
    monkeypatch.setattr(Path, "read_bytes", lambda p: b"" if p.stem == "cache" else read(p))
    assert digest() == before


@pytest.mark.parametrize("kind", COMPILERS)
def test_printed_kernels_import_what_is_in_their_digest(kind):
    text = "op f(x: f32[M, N]) -> (y: f32[M]) { y[i] = sum[j](exp(x[i, j])) }"
    module = emitted(text, "f", {"M": 7, "N": 300}, target={"cuda": "h200"}.get(kind, kind)).module
    assert set(re.findall(r"tilec\.[\w.]+(?= import)", module)) == {COMPILERS[kind].PRINTED}


def test_a_source_that_changed_changes_the_digest(tmp_path):
    (tmp_path / "std").mkdir()
    (tmp_path / "a.py").write_text("x = 1")
    (tmp_path / "std" / "b.tile").write_text("")
    digests = {cache._stamps(tmp_path)}
    assert cache._stamps(tmp_path) in digests
    for change in ("x = 2", "x = 22"):
        (tmp_path / "a.py").write_text(change)
        digests.add(cache._stamps(tmp_path))
    (tmp_path / "std" / "b.tile").write_text("# new")
    digests.add(cache._stamps(tmp_path))
    (tmp_path / "c.py").write_text("")
    digests.add(cache._stamps(tmp_path))
    (tmp_path / "std" / "deep").mkdir()
    (tmp_path / "std" / "deep" / "d.py").write_text("")
    digests.add(cache._stamps(tmp_path))
    (tmp_path / "notes.txt").write_text("no source")
    assert len(digests | {cache._stamps(tmp_path)}) == 6
