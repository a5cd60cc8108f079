"""The benchmark of whole models: its rows are made, judged and reported."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from benchmarks import models_report  # noqa: E402

ROW = {
    "name": "bert, inference", "group": "inference", "kind": "encoder", "sizes": "BERT", "right": True,
    "times_us": {"eager": 9.0, "tilec": 2.0, "tilec, graphs": 1.0, "torch.compile": 3.0, "torch.compile, graphs": 1.5},
    "host_us": {"tilec": 2.0, "torch.compile": 6.0},
    "peak_bytes": {"tilec": 100e6, "torch.compile": 200e6}, "error_share": {"eager": 1 / 3, "tilec": 0.4},
    "graphs": {"tilec": {"taken": 9, "operations": 10, "partitions": 2, "splits": {}}},
}  # fmt: skip


def test_best_modes_are_compared_and_targets_judged():
    slow = ROW | {
        "name": "resnet, inference",
        "kind": "convolutional",
        "times_us": {"tilec": 2.0, "torch.compile": 1.0},
    }
    found = {what: (round(value, 3), met) for what, value, _, met in models_report.targets([ROW, slow])}
    assert found[f"inference, transformers: {models_report.BEST}"] == (1.5, True)
    assert found[f"inference, all: {models_report.BEST}"] == (round(0.75**0.5, 3), False)
    assert found["inference: the least of these"] == (0.5, False)
    assert found["host time of a call: torch.compile's over ours"] == (3.0, True)
    assert models_report.cells(ROW)[6:] == ["1.50", "3.00", "200.0 MB", "100.0 MB", "90 %", "0.40", ""]


def test_eager_mode_counts_where_it_is_faster_than_torch_compile():
    """And a step of decoding, whose temporaries are a hundred kilobytes, says nothing about memory."""
    eager = ROW | {"times_us": {"eager": 1.1, "tilec": 1.0, "torch.compile": 2.8}}
    step = eager | {"group": "decoding", "peak_bytes": {"tilec": 1, "torch.compile": 334}}
    found = {what: round(value, 3) for what, value, _, _ in models_report.targets([eager, step])}
    assert found[f"inference, all: {models_report.BEST}"] == found[f"decoding: {models_report.BEST}"] == 1.1
    assert found["memory of inference and training: the least of the others' peaks over ours"] == 2.0
    assert "| decoding: " in models_report.headline({"rows": [eager, step]})


def test_one_row_a_thing_the_last_measured():
    from benchmarks import report, result_tables

    rows = [
        {"name": "matmul 4096 f32", "measured": "2026-11-22", "times_us": {"tilec": 3.0}},
        {"name": "matmul 4096 bf16", "measured": "2026-11-24", "times_us": {"tilec": 2.0}},
        {"name": "product 4096x4096x4096 f32", "measured": "2026-11-23", "times_us": {"tilec": 1.0}},
        {"name": "product 4096x4096x4096 bf16", "measured": "2026-11-23", "times_us": {"tilec": 4.0}},
        {"name": "matmul 256x256x16384 bf16", "measured": "2026-11-22", "times_us": {"tilec": 5.0}},
        {"name": "matmul + bias + gelu 4096 bf16", "measured": "2026-11-22", "times_us": {"tilec": 5.0}},
        {"name": "product, bias and gelu 4096x4096x4096 bf16", "error": "no"},
    ]
    kept = [r["name"] for r in report.last_measured(rows)]
    assert kept == [rows[n]["name"] for n in (1, 2, 4, 5, 6)]
    headings, lines = report.grid("gpu", rows[:2], "")
    assert headings[-1] == "measured" and [line[-1] for line in lines] == ["2026-11-22", "2026-11-24"]
    assert report.grid("gpu", rows[:1], "")[0][-1] == "right"
    for suite in ("gpu", "cpu", "models"):
        things = [report.thing(r["name"]) for r in result_tables.newest(suite)[1]["rows"] if r.get("times_us")]
        assert len(things) == len(set(things))


def test_seconds_until_a_first_step_are_compared():
    row = {"name": "bert, inference", "group": "inference", "compile_s": {"tilec": 4.0, "torch.compile": 9.0}}
    failed = {"name": "t5, training", "group": "training", "compile_s": {"tilec": 4.0}, "errors": {"torch.compile": "no"}}
    assert models_report.cold_cells(row) == ["bert, inference", "4.0 s", "9.0 s", "2.25"]
    assert "failed" in models_report.cold_line(failed) and models_report.cold_line(failed).endswith("torch.compile: no")
    assert models_report.cold_means([row, failed]) == [["inference", "2.25", "", ""], ["all", "2.25", "2.00", "reached"]]
    assert "| bert, inference |" in models_report.cold_page("", {"rows": [row, failed]})


def test_rows_that_failed_are_reported():
    failed = {"name": "bert, training", "error": "RuntimeError: no"}
    text = models_report.page("", {"rows": [ROW, failed, {"name": "t5, training", "error": "not run: no time left"}]})
    assert "| bert |" in text and "Failed: bert, training: RuntimeError: no." in text and "t5" not in text


def test_every_load_is_a_row_of_every_task():
    from benchmarks.model_loads import loads
    from benchmarks.model_rows import Setting
    from benchmarks.models import suite

    names = [r.name for r in suite(Setting())]
    assert len(set(names)) == len(names) >= 2 * len(loads()) + 3
    assert len(loads()) >= 20 and {x.library for x in loads()} == {"transformers", "timm"}


def test_rows_are_chosen_by_whole_words():
    from benchmarks.model_rows import Setting
    from benchmarks.models import is_reported, suite

    names = [r.name for r in suite(Setting())]
    chosen = lambda words: {n.partition(",")[0] for n in names if is_reported(words, n)}  # noqa: E731
    assert chosen("t5") == {"t5"} and chosen("resnet50 NHWC") == {"resnet50 NHWC"}
    assert chosen("resnet50") == {"resnet50 NHWC", "resnet50 NCHW"} and not chosen("NHWC resnet50")
    assert {n for n in names if is_reported("t5, training", n)} == {"t5, training"}


def test_no_model_has_more_layers_than_there_are():
    from benchmarks.model_loads import loads

    found = {x.name: x for x in loads()}
    gpt2, resnet = found["gpt2"], found["resnet50 NHWC"]
    assert [gpt2.depth(False, n) for n in (None, 2, 12, 99)] == [4, 2, 12, 12] and gpt2.depth(True, 99) == 2
    assert "2 of 12 layers" in gpt2.sizes(False, 2) and "4 of 12 layers" in gpt2.sizes(False, None)
    assert "layers" not in gpt2.sizes(False, 99) + resnet.sizes(False, 99) and resnet.depth(False, 99) == 1


@pytest.mark.slow
@pytest.mark.parametrize("task", ["inference", "decoding", "training"])
def test_a_row_has_its_facts(task):
    pytest.importorskip("transformers")
    from benchmarks.model_loads import loads
    from benchmarks.model_rows import Setting, measure

    load = next(x for x in loads() if x.name == "gpt2")
    row = {"name": task} | measure(load, task, Setting("cpu", small=True, compiled=False))
    assert row["right"] and row["times_us"].keys() == {"eager", "tilec"} and not row["errors"]
    assert row["error_share"]["tilec"] <= 1 and row["graphs"]["tilec"]["taken"] > 0
    assert len(models_report.cells(row)) == len(models_report.HEADINGS) and models_report.line(row)


@pytest.mark.slow
def test_a_first_step_is_timed():
    pytest.importorskip("transformers")
    from benchmarks import model_cold
    from benchmarks.model_loads import loads
    from benchmarks.model_rows import Setting

    load = next(x for x in loads() if x.name == "gpt2")
    for task in ("decoding", "training"):
        assert model_cold.measure(load, task, Setting("cpu", small=True), "tilec")["seconds"] > 0


@pytest.mark.slow
def test_a_way_that_fails_is_reported_and_the_others_timed(monkeypatch):
    pytest.importorskip("transformers")
    from benchmarks import model_rows
    from benchmarks.model_loads import loads

    monkeypatch.setitem(model_rows.WAYS, "tilec", {"backend": "tilec", "options": {"target": "none"}})
    load = next(x for x in loads() if x.name == "bert 128")
    row = model_rows.measure(load, "inference", model_rows.Setting("cpu", small=True, compiled=False))
    assert "eager" in row["times_us"] and "tilec" in row["errors"] and row["error"] == row["errors"]["tilec"]


def test_a_kernel_that_waits_for_the_one_before_counts_from_its_end():
    from benchmarks.model_rows import ranked

    reported = ranked([("a", 0.0, 10.0), ("b", 1.0, 12.0), ("a", 20.0, 21.0)])
    assert reported == {"count": 3, "us": 13.0, "longest": [["a", 2, 11.0], ["b", 1, 2.0]]}
