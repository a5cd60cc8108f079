"""Calibration on a busy machine: it measures again, and gives up without a word in the target file."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tilec.core.diagnostics import CallError
from tilec.core.host import estimate
from tilec.driver import calibrate
from tilec.driver.other_load import STAT, OtherLoad, busy_ticks

QUIET = {"a launch, us": (6.0, 6.5), "memory, GB/s of 1": (20.0, 18.0)}


@pytest.mark.parametrize(
    "others, spreads, reason",
    [
        (0.0, QUIET, None), (None, QUIET, None), (0.3, QUIET, None),
        (1.7, QUIET, "other programs take the time of 1.7 of 4 processors"),
        (0.0, QUIET | {"a launch, us": (6.0, 129.8)}, "a launch, us was 6 once, and 130 at the second best"),
        (0.0, QUIET | {"L2, GB/s of 4": (90.0, 50.0)}, "L2, GB/s of 4 was 90 once, and 50 at the second best"),
    ],
)  # fmt: skip
def test_what_disturbs_is_reported(others, spreads, reason):
    assert calibrate.disturbed(others, spreads, 4) == reason


@pytest.fixture
def rounds(monkeypatch):
    """Rounds that take no time: each finds the next launch, and the next load of others."""
    launches: list[tuple[float, float]] = []

    class Load:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.cores = launches[0][1]

    def measure(base, spreads):
        return calibrate.replace(base, launch=calibrate.replace(base.launch, overhead_us=launches[0][0]), note="")

    def judged(*facts, plain=calibrate.disturbed):
        launches.pop(0)
        return plain(*facts)

    monkeypatch.setattr(calibrate, "OtherLoad", Load)
    monkeypatch.setattr(calibrate, "_measure", measure)
    monkeypatch.setattr(calibrate, "disturbed", judged)
    return launches


def test_a_busy_machine_is_measured_again(rounds, tmp_path):
    rounds += [(129.8, 9.0), (6.0, 0.0), (7.0, 0.0)]
    reported: list[str] = []
    found = calibrate.calibrate(tmp_path / "cpu.toml", reported.append)
    assert found.launch.overhead_us == 6.0 and "overhead_us = 6.0" in (tmp_path / "cpu.toml").read_text()
    assert reported == [f"measuring again: other programs take the time of 9.0 of {estimate().units} processors"]


def test_a_machine_that_stays_busy_is_refused(rounds, tmp_path):
    (tmp_path / "cpu.toml").write_text("kept")
    rounds += [(129.8, 9.0)] * 4
    reported: list[str] = []
    with pytest.raises(CallError, match=r"too busy to be measured: other programs take .*; nothing was written"):
        calibrate.calibrate(tmp_path / "cpu.toml", reported.append)
    assert (tmp_path / "cpu.toml").read_text() == "kept" and len(reported) == 2


def test_the_load_of_others_is_of_this_process_s_processors():
    text = "cpu 9 9 9 9 9 9 9 9\ncpu0 1 2 4 100 100 8 16 32 64 64\ncpu1 1000 0 0 0\ncpu10 7 0 0 5\nintr 5\n"
    assert busy_ticks(text, {0}) == 63 and busy_ticks(text, {0, 10}) == 70 and busy_ticks(text, {1}) == 1000


@pytest.mark.skipif(not STAT.exists(), reason="needs /proc/stat")
def test_another_program_is_seen():
    burn = "import time\nend = time.perf_counter() + 20\nwhile time.perf_counter() < end: pass"
    with subprocess.Popen([sys.executable, "-c", burn]) as other, OtherLoad() as load:
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(1)
        other.kill()
    assert load.cores is not None and load.cores > 0.05
