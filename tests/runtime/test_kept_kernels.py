"""What CI keeps of the cache for later runs (.ci/kernels.py): machine code, and nothing of a program before its kernels' text."""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path

import numpy as np
import pytest
from tools import ROOT

import tilec
from tilec.runtime import cache
from tilec.runtime.cpu import objects

_spec = importlib.util.spec_from_file_location("kept_kernels", ROOT / ".ci" / "kernels.py")
kept = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(kept)


@pytest.fixture
def use(tmp_path, monkeypatch):
    """Makes tilec use another cache of this test, by name; returns its folder."""

    def use(name: str) -> Path:
        monkeypatch.setenv(cache.VARIABLE, str(tmp_path / name))
        cache._checked.cache_clear()
        return tmp_path / name

    mask = os.umask(0o022)
    yield use
    os.umask(mask)
    cache._checked.cache_clear()


def test_machine_code_is_not_made_again_but_all_before_it_is(use, tmp_path, monkeypatch):
    text, x = "op kept(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] * 3.625 }", np.ones(5, np.float32)
    first = use("first")
    expected = tilec.compile(text, target="cpu")(x)
    kept.main("keep", str(first), str(tmp_path / "store"))
    second = use("second")
    os.umask(0o002)  # as many systems have it
    kept.main("fetch", str(tmp_path / "store"), str(second))
    before = cache.made
    monkeypatch.setattr(objects, "_compiled", lambda emitted: pytest.fail("compiled again"))
    np.testing.assert_array_equal(tilec.compile(text, target="cpu")(x), expected)
    assert cache.made > before  # what is known of the program
    monkeypatch.setattr(objects, "_compiled", lambda emitted: (_ for _ in ()).throw(KeyError("compiled")))
    with pytest.raises(KeyError, match="compiled"):
        tilec.compile(text.replace("3.625", "3.75"), target="cpu")(x)


def entry(name: str, properties: dict, files: dict[str, bytes]) -> str:
    cache.save(key := cache.make_key(name), properties, files)
    return f"{key}.json"


def test_only_kernels_that_are_whole_are_kept(use, tmp_path):
    folder, store = use("cache"), tmp_path / "store"
    cpu = entry("cpu", {"kernels": {"k": "s"}, "needs": {"s": []}}, {"s": b"code"})
    gpu = entry("gpu", {"kernels": {"k": 0}, "cubins": [{}]}, {"0.cubin": b"cubin", "0.ptx": b"code"})
    entry("a program", {"op": "f"}, {"program": b"{}"})
    torn = entry("torn", {"kernels": {"k": "s"}, "needs": {"s": []}}, {"s": b"torn"})
    (folder / "entries" / cache.hashlib.sha256(b"torn").hexdigest()).with_suffix(".bin").unlink()
    (folder / "entries" / "wrong.json").write_text("[1")
    kept.main("keep", str(folder), str(store))
    assert {p.name for p in store.glob("*.json")} == {cpu, gpu} and torn not in {p.name for p in store.iterdir()}
    assert len(list(store.glob("*.bin"))) == 2  # one file of the same code


def test_what_is_old_or_too_much_is_forgotten(use, tmp_path, monkeypatch):
    folder, store = use("cache"), tmp_path / "store"
    names = [entry(str(n), {"kernels": {}, "needs": {}}, {"s": bytes([n]) * 1000, "same": b"same"}) for n in range(4)]
    kept.main("keep", str(folder), str(store))
    for age, name in zip((1, 2, 3, kept.DAYS + 1), names, strict=True):
        os.utime(store / name, (time.time() - age * 86400,) * 2)
    monkeypatch.setattr(kept, "MOST_BYTES", 3000)
    kept.forget(store)
    assert {p.name for p in store.glob("*.json")} == set(names[:2])
    assert sorted(p.stat().st_size for p in store.glob("*.bin")) == [4, 1000, 1000]


def test_the_first_run_has_nothing_to_fetch(use, tmp_path, capsys):
    kept.main("fetch", str(tmp_path / "store"), str(use("cache")))
    assert capsys.readouterr().out == "fetch: kernels of 0 programs\n"
