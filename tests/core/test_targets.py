"""Targets: every file loads, names resolve, mistakes in a file are named, and the host can be described and
measured.
"""

from __future__ import annotations

import dataclasses
import pickle

import pytest
import tomlkit

from tilec.core import host as host_module
from tilec.core import target, targets
from tilec.core.diagnostics import CallError
from tilec.driver import calibrate

FILES = sorted(p.stem for p in target.BUILT_IN.glob("*.toml"))
CARDS = [n for n in FILES if n != "cpu"]


@pytest.fixture
def write(tmp_path):
    """Writes h200.toml with some changes; returns the path."""

    def write(change=lambda table: None):
        table = tomlkit.parse((target.BUILT_IN / "h200.toml").read_text())
        change(table)
        (tmp_path / "mine.toml").write_text(tomlkit.dumps(table))
        return tmp_path / "mine.toml"

    return write


@pytest.mark.parametrize("name", FILES)
def test_every_file_loads_and_round_trips(name):
    t = target.read(target.BUILT_IN / f"{name}.toml")
    assert t.name == name
    assert pickle.loads(pickle.dumps(t)) == t and hash(t) == hash(pickle.loads(pickle.dumps(t)))
    assert target.from_dict(t.to_dict()) == t


@pytest.mark.parametrize("name", CARDS)
def test_cards_are_consistent(name):
    t = targets.load(name)
    assert t.kind == "cuda" and t.sm is not None
    assert t.sm.shared_per_block + t.sm.shared_reserved <= t.sm.shared_bytes
    assert t.dram.bandwidth_gbs < t.l2.bandwidth_gbs
    assert t.peak("tensor.bf16") > t.peak("fma.f32") > t.peak("special")
    clocked = 2e-3 * 128 * t.units * t.clock_ghz  # 128 lanes an SM, 64 on an A100
    assert t.fma["f32"] == pytest.approx(clocked / (2 if name == "a100" else 1), rel=0.15)
    assert sum(t.sm.groups) == (t.units if t.has("clusters") else 0)


def test_clusters_lie_within_a_group():
    sm = targets.load("h200").sm
    assert [sm.clusters(size, 1) for size in (2, 4, 8, 16)] == [66, 30, 15, 7] and sm.clusters(16, 2) == 15


@pytest.mark.parametrize("chip", target.CHIPS)
def test_chips(chip):
    t = targets.load(chip)
    assert t.chip == chip
    if not chip.endswith("a"):
        assert not {"wgmma", "tcgen05"} & (set(t.features) | set(t.instructions("bf16")))
    assert t.instructions("bf16")


def test_cuda_is_the_device_or_a_default_with_a_note(monkeypatch):
    monkeypatch.setattr(targets, "_query_driver", lambda: None)
    t = targets.load("cuda")
    assert t.name == "h200" and "no CUDA device" in t.note
    assert t == targets.load("h200") and t.digest() == targets.load("h200").digest()


def _attributes(**changed):
    h200 = {
        "units": 132, "major": 9, "minor": 0, "l2_bytes": 60 << 20, "shared_bytes": 233472, "blocks": 32,
        "shared_per_block": 232448, "registers": 65536, "threads": 2048, "threads_per_block": 1024,
        "memory_khz": 0, "bus_bits": 0,
    }  # fmt: skip
    return h200 | changed


def test_a_known_device_is_its_file(monkeypatch):
    monkeypatch.setattr(targets, "_query_driver", lambda: ("H200", _attributes()))
    assert targets.load("cuda") == targets.load("h200")


def test_an_unknown_device_is_scaled_from_the_nearest(monkeypatch):
    attributes = _attributes(units=66, major=12, minor=0, shared_bytes=102400, shared_per_block=101376, threads=1536)
    monkeypatch.setattr(targets, "_query_driver", lambda: ("GeForce RTX 5555", attributes))
    t, base = targets.load("cuda"), targets.load("rtx4090")
    assert (t.chip, t.units, t.sm.shared_bytes) == ("sm_120", 66, 102400)
    assert t.fma["f32"] == pytest.approx(base.fma["f32"] * 66 / 128)
    assert "estimated from rtx4090" in t.note


def test_an_l40_is_no_l4(monkeypatch):
    attributes = _attributes(units=142, major=8, minor=9, memory_khz=9_001_000, bus_bits=384)
    monkeypatch.setattr(targets, "_query_driver", lambda: ("L40", attributes))
    t = targets.load("cuda")
    assert (t.name, t.chip, t.units) == ("l40", "sm_89", 142)
    assert t.dram.bandwidth_gbs == pytest.approx(864, rel=0.01)


def test_the_kind_of_a_target_is_known_without_its_driver(monkeypatch, tmp_path):
    def never():
        raise AssertionError("asked the driver")

    monkeypatch.setattr(targets, "_query_driver", never)
    (tmp_path / "own.toml").write_text((target.BUILT_IN / "cpu.toml").read_text())
    kinds = [targets.kind_of(name) for name in ("cpu", "CUDA", "sm_90a", "h100", tmp_path / "own.toml")]
    assert kinds == ["cpu", "cuda", "cuda", "cuda", "cpu"]
    with pytest.raises(CallError, match="unknown target"):
        targets.kind_of("h20")


def test_unknown_name_gives_a_guess_and_the_list():
    with pytest.raises(
        CallError, match=r"unknown target 'h20'\nhint: did you mean 'h200'\? known: cpu, cuda, .*\.toml"
    ):
        targets.load("h20")


def test_a_file_of_ones_own(write):
    t = targets.load(write(lambda x: x.update(units=66)))
    assert t.units == 66 and t.digest() != targets.load("h200").digest()
    assert targets.load(str(write())) == targets.load("h200")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.update(clock_gz=1), r"unknown key `clock_gz`\nhint: did you mean `clock_ghz`"),
        (lambda x: x["dram"].update(bandwith_gbs=1), r"unknown key `dram.bandwith_gbs`\nhint: did you mean"),
        (lambda x: x.pop("units"), "`units` is missing"),
        (lambda x: x["sm"].pop("threads"), "`sm.threads` is missing"),
        (lambda x: x.pop("sm"), r"needs the table \[sm\]"),
        (lambda x: x.update(units="132"), "`units` must be an integer, not '132'"),
        (lambda x: x.update(units=True), "`units` must be an integer, not True"),
        (lambda x: x.update(units=0), "`units` must not be 0"),
        (lambda x: x.update(kind="tpu"), "`kind` is 'tpu'"),
        (lambda x: x.update(l2=3), "`l2` must be a table"),
        (lambda x: x.update(features=[1]), r"`features\[0\]` must be a string"),
        (lambda x: x["fma"].update(f32=-1.0), "`fma.f32` is -1.0"),
        (lambda x: x["fma"].update(f32=float("nan")), "`fma.f32` is nan"),
        (lambda x: x["fma"].pop("f32"), r"\[fma\] needs `f32`"),
        (lambda x: x["tensor"]["bf16"].update(wgmma="fast"), "`tensor.bf16.wgmma` must be a number"),
    ],
)
def test_mistakes_in_a_file_are_named(write, change, message):
    path = write(change)
    with pytest.raises(CallError, match=message) as caught:
        targets.load(path)
    assert str(path) in str(caught.value)


def test_unreadable_files(tmp_path):
    with pytest.raises(CallError, match="cannot read target file"):
        targets.load(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("name = \n")
    with pytest.raises(CallError, match=r"not TOML.*line 1"):
        targets.load(tmp_path / "bad.toml")


def test_peak_of_an_unknown_unit():
    h200 = targets.load("h200")
    assert h200.peak("tensor.bf16") == h200.peak("tensor.bf16@wgmma") > h200.peak("tensor.bf16@mma.sync")
    assert h200.peak("fma.f8e4m3") == h200.peak("fma.f32")
    for unit in ("tensor.f128", "tensor.bf16@tcgen05", "fpu"):
        with pytest.raises(CallError, match="has no unit"):
            h200.peak(unit)


def test_digest_ignores_notes_only():
    h200 = targets.load("h200")
    assert dataclasses.replace(h200, note="x", description="y").digest() == h200.digest()
    assert dataclasses.replace(h200, units=131).digest() != h200.digest()


def test_host_estimate(monkeypatch, tmp_path):
    monkeypatch.setattr(targets, "calibrated_path", lambda: tmp_path / "cpu.toml")
    t = targets.load("cpu")
    assert t.kind == "cpu" and t.units >= 1 and t.core is not None and "estimated" in t.note
    assert 0.5 < t.clock_ghz < 10 and t.l1.bytes <= t.l2.bytes


def test_host_estimate_without_a_talkative_system(monkeypatch):
    host_module.estimate.cache_clear()
    host_module._cpuinfo.cache_clear()
    monkeypatch.setattr(host_module, "_text", lambda path: "")
    monkeypatch.setattr(host_module, "_cache_sizes", dict)
    try:
        t, generic = host_module.estimate(), target.read(target.BUILT_IN / "cpu.toml")
    finally:
        host_module.estimate.cache_clear()
        host_module._cpuinfo.cache_clear()
    assert t.clock_ghz == generic.clock_ghz and t.l2.bytes == generic.l2.bytes and t.l3 is not None


def test_calibration_is_written_and_found(monkeypatch, tmp_path):
    path = tmp_path / "config" / "cpu.toml"
    monkeypatch.setattr(targets, "calibrated_path", lambda: path)
    monkeypatch.setattr(calibrate, "calibrated_path", lambda: path)
    monkeypatch.setattr(calibrate, "disturbed", lambda *_: None)  # whatever else runs beside the tests
    measured = calibrate.calibrate()
    assert targets.load("cpu") == measured and not measured.note
    assert [p.name for p in path.parent.iterdir()] == ["cpu.toml"]
    assert 1 < measured.dram.bandwidth_gbs < 2000 and 1e-3 < measured.fma["f32"] < 100
    path.write_text(path.read_text().replace(f"units = {measured.units}", "units = 4096"))
    assert "other cores" in targets.load("cpu").note


@pytest.mark.parametrize(
    "flags, name, clock", [("fma", "EPYC", 2.596), ("fma aperfmperf", "Xeon(R) CPU @ 2.60GHz", 2.6), ("aperfmperf", "EPYC", 0.0)]
)
def test_the_clock_of_the_moment_is_no_part_of_a_target(monkeypatch, flags, name, clock):
    """Keys of the cache have the target: where the system tells the clock of the moment, each process would compile anew."""
    text = f"model name\t: {name}\nflags\t\t: {flags}\ncpu MHz\t\t: 2596.12\n"
    monkeypatch.setattr(host_module, "_text", lambda path: text if str(path) == "/proc/cpuinfo" else "")
    host_module._cpuinfo.cache_clear()
    try:
        assert round(host_module._clock_ghz(), 3) == clock
    finally:
        host_module._cpuinfo.cache_clear()
