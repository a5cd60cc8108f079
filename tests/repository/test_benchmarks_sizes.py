"""The benchmark of sizes that vary: what it draws, how it counts, and its tables."""

from __future__ import annotations

import pytest

from benchmarks import size_report
from benchmarks.size_programs import programs
from tilec.core.source import read_source
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise

POINT = {"times_us": {"class": 3.0, "exact": 2.0, "again": 2.0}, "sizes": {"M": 7}, "right": True}
LOSS = {
    "name": "loss: softmax, M", "right": True, "classes": [["M = 2..16", 0.6], ["M = 17..128", 0.2]], "exact_s": [0.2, 0.2],
    "points": [POINT, POINT | {"times_us": {"class": 6.0, "exact": 1.0, "again": 2.0}, "sizes": {"M": 9}}],
    "refused": ["stage 'map' asks"],
}  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_drawn_sizes_are_in_their_ranges_and_different(device):
    for load in programs(device):
        drawn = load.sizes(8)
        assert drawn == load.sizes(8) and len({tuple(d.items()) for d in drawn}) == 8, load.name
        for sizes in drawn:
            assert all(low <= sizes[name] <= high for name, (low, high) in load.varies.items())
        specialise(parse(read_source(load.text)), None, None, drawn[0])
        assert not load.varies.keys() & load.fixed.keys()


def test_losses_are_ratios_of_times_at_the_same_size():
    mean, worst, at, noise, classes, compiling = size_report.loss_cells(LOSS)[2:]
    assert (mean, worst, at, noise, classes, compiling) == ("3.00", "6.00", "M = 9", "41 %", "2", "2.00")


def test_calls_are_slow_or_stall_by_what_they_took_first_and_later():
    pytest.importorskip("torch")
    from benchmarks import size_models

    load = size_models.serving("cpu", 4)
    drawn = load.drawn()
    assert drawn == load.drawn() and all(4 <= length <= size_models.LONGEST["cpu"] for _, length in drawn)
    found = size_models.facts(load, drawn, [1.0, 0.3, 0.02, 0.01], [0.01, 0.29, 0.01, 0.01])
    assert (found["slow"], found["stalls"], found["slowest_s"], found["calls"]) == (2, 1, 1.0, 4)
    assert found["token_us"] == pytest.approx(0.32e6 / sum(length for _, length in drawn))


def test_every_row_has_a_place_in_a_table():
    model = {
        "name": "models: bert, padded, tilec", "calls": 30, "of": 40, "first_s": 9.0, "slow": 2, "slowest_s": 1.0, "stalls": 3,
        "compilations": {"graphs": 2, "programs": 5}, "later_us": 1500.0, "token_us": 2.0, "right": False,
    }  # fmt: skip
    calls = {"name": "calls: softmax", "times_us": {"a new size": 300.0}, "right": True}
    failed = {"name": "models: vit, tilec", "error": "no answer within 9 s"}
    rows = [LOSS, calls, model, failed]
    cells = {line[0]: line for _, headings, lines in size_report.tables(rows) for line in lines if len(line) == len(headings)}
    assert cells.keys() == {"softmax, M", "a new size", "bert, padded"}
    assert cells["bert, padded"][1:4] == ["tilec", "9.0 s (30 of 40)", "2"]
    assert cells["bert, padded"][6] == "2 graphs, 5 programs"
    assert size_report.notes(rows) == [
        "models: vit, tilec: no answer within 9 s", "models: bert, padded, tilec: results are wrong",
        "loss: softmax, M: stage 'map' asks",
    ]  # fmt: skip
    assert [size_report.line(r)[:32].rstrip() for r in rows] == [r["name"] for r in rows] and "WRONG" in size_report.line(model)


@pytest.mark.slow
def test_a_row_of_losses_is_measured_and_right(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from benchmarks.size_loss import loss, prepare

    monkeypatch.setenv("BENCHMARKS_FOLDER", str(tmp_path))
    (load,) = (p for p in programs("cpu") if p.name == "gelu, M")
    prepare(load, 3, "cpu")
    found = loss(load, 3, "cpu")
    assert found["right"] and len(found["points"]) == len(found["exact_s"]) == 3 and found["classes"]
    assert all(t > 0 for p in found["points"] for t in p["times_us"].values())
