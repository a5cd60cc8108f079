"""The benchmarks' programs are right: each at small sizes against the PyTorch form that it is timed beside."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from tools import ROOT

import tilec
from benchmarks.memory_loads import Load, loads
from benchmarks.workloads import Input

torch = pytest.importorskip("torch")
SMALL = (7, 13, 5, 19, 11, 17, 3, 23, 29, 31)


def shrunk(load: Load) -> Load:
    """The same program with another small extent for every extent."""
    small: dict[int, int] = {1: 1}

    def size(extent: int) -> int:
        return small.setdefault(extent, SMALL[len(small) - 1])

    def shape(i: Input) -> Input:
        return replace(i, shape=tuple(map(size, i.shape)), below=i.below and small.get(i.below, i.below))

    plain = {n: shape(i) for n, i in enumerate(load.work.inputs) if not i.below}  # extents before places in them
    inputs = [plain.get(n) or shape(i) for n, i in enumerate(load.work.inputs)]
    return replace(load, work=replace(load.work, inputs=tuple(inputs)))


PROGRAMS = {f"{x.program} {x.dtype} {x.kind}": x for x in loads() if x.kind != "small"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_memory_program_is_what_pytorch_computes(name):
    from benchmarks.torch_peers import draw, error_share

    load = shrunk(PROGRAMS[name])
    tensors = [draw(i, torch.Generator().manual_seed(0), "cpu") for i in load.work.inputs]
    made = tilec.compile(load.work.program, op=load.work.op)(*tensors)
    results = list(made) if isinstance(made, tuple) else [made]
    peer = load.work.expected or load.work.torch
    assert error_share(peer, tensors, results, load.work.bound) <= 1
    assert load.bytes(tensors, results) > 0


def test_a_row_of_the_memory_suite_has_its_facts():
    from benchmarks.memory import run
    from benchmarks.memory_report import grid, summary, targets

    row = {"name": "softmax"} | run(shrunk(PROGRAMS["softmax f32 rows"]), False, "cpu")
    assert row["right"] and row["tilec_us"] > 0 and row["peers_us"]["torch"] > 0
    assert row["bytes"] == 2 * 7 * 13 * 4 and row["copy_bytes"] == row["bytes"]
    assert len(grid([row])[1][0]) == len(grid([row])[0]) and len(summary([row])) == 2
    fast, slow = row | {"tilec_us": row["copy_us"]}, row | {"tilec_us": 2 * row["copy_us"]}
    assert next(t for t in targets([fast]) if "of copy" in t[0])[3]
    assert not next(t for t in targets([slow]) if "of copy" in t[0])[3]


def test_every_example_is_a_row_of_the_cpu_suite(monkeypatch):
    from benchmarks import cpu, cpu_examples

    rows = {row.name for row in cpu.suite()}
    assert {f"example {name}" for name in cpu_examples.EXAMPLES} <= rows
    monkeypatch.setattr(cpu_examples, "BYTES", 1 << 12)
    monkeypatch.setattr(cpu, "WORTH", 1 << 30)  # torch.compile takes seconds
    small = {x.example.name: x for x in cpu_examples.examples()}
    for name in ("transpose", "top1", "rmsnorm", "dropout"):
        facts = cpu.compare(small[name], "example", rounds=1, budget=0)
        assert facts["right"] and 1 << 10 < facts["bytes"] <= 1 << 12, name
        assert facts["times_us"].keys() >= {"tilec", "torch"} and ("numpy" in facts["times_us"]) == (name != "dropout")
    wrong = [np.zeros_like(r) for r in small["transpose"].example.expected({"x": np.ones((3, 3), np.float32)})]
    assert small["transpose"].error_share([np.ones((3, 3), np.float32)], wrong) > 1


@pytest.mark.parametrize("name", ["", ", two kernels", ", tensor maps", ", a check to wait for"])
def test_host_time_is_taken_of_what_pytorch_computes(name):
    from benchmarks.memory import HOSTS

    text, inputs, peer = HOSTS[name]
    small = {1024: 64}
    tensors = []
    for dtype, shape in inputs.values():
        shape = tuple(small.get(n, n) for n in shape)
        drawn = torch.randint(0, 1000, shape) if dtype == "int64" else torch.randn(shape)
        tensors.append(drawn.to(getattr(torch, dtype)))
    torch.testing.assert_close(tilec.compile(text)(*tensors), peer(*tensors), rtol=2e-2, atol=1e-3 * 64)


def test_host_times_have_targets():
    from benchmarks.memory_report import targets

    row = {
        "name": "host time of a call",
        "kind": "host",
        "host_us": {"tilec": 6.0, "triton": 5.0, "torch.compile": 18.0},
    }
    found = {what.split(": ")[1]: (value, met) for what, value, _, met in targets([row])}
    assert found == {"torch.compile's over ours": (3.0, True), "triton's over ours": (5 / 6, False)}


def test_rows_are_prepared_next_to_each_other(tmp_path, monkeypatch):
    from benchmarks import runner

    script = tmp_path / "worker.py"
    script.write_text(
        "import sys\nfrom benchmarks.runner import Row, work_ahead\n"
        "rows = [Row(n, dict, prepare=lambda n=n: {'of': n} if n != 'bad' else 1 / 0) for n in sys.argv[1:]]\n"
        "work_ahead(rows, sys.argv[1:])\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    found = runner.prepare(
        [sys.executable, str(script)],
        [runner.Row(n, dict, prepare=dict) for n in ("a", "bad", "c")],
        2,
        time.monotonic() + 60,
    )
    assert found == {"a": {"of": "a"}, "c": {"of": "c"}}


def test_a_row_that_has_started_ends_within_its_own_limit(monkeypatch):
    """The deadline keeps further rows from beginning, and no more."""
    from benchmarks import runner

    given = []

    def answer(worker, lines, row, seconds):
        given.append(seconds)
        time.sleep(0.3)
        return {"name": row.name}

    monkeypatch.setattr(runner, "_next", answer)
    rows = [runner.Row(n, dict, 600.0) for n in "ab"]
    found = list(runner.run([sys.executable, "-c", "pass"], rows, time.monotonic() + 0.2))
    assert given == [600.0] and found == [{"name": "a"}, {"name": "b", "error": "not run: no time left"}]


def test_figures_are_drawn_from_results(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from benchmarks import plots, result_tables

    monkeypatch.setattr(plots, "FOLDER", tmp_path)
    made = plots.write(result_tables.newest)
    assert {p.stem for p in made} >= {"memory-rows-bf16", "memory-rows-f32", "memory-overview", "memory-roofline"}
    assert all(2**12 < p.stat().st_size < 2**18 for p in made)


def test_every_missed_target_has_a_reason():
    from benchmarks import memory_report, result_tables

    rows = result_tables.newest("memory")[1]["rows"]
    lines = memory_report.missed_groups(rows)
    assert lines and all(line[0] and line[-1] and any(line[1:-1]) for line in lines)


def test_every_missed_form_has_a_reason():
    """Its rows below what is wanted stand beside it, the worst first."""
    from benchmarks import matrix_forms, result_tables

    rows = result_tables.newest("gpu")[1]["rows"]
    targets = {what.partition(" (")[0] for what, *_, met in matrix_forms.targets(rows) if not met}
    lines = matrix_forms.missed(rows)
    assert {line[0] for line in lines} == targets and all(line[4] and line[5] != "not known" for line in lines)
    few = [{"name": f"r{n}", "form": "attention", "flops": 1e9, "times_us": {"tilec": 10.0, "torch": 9.4 - n}} for n in range(4)]
    ((*_, wanted, has, worst, _),) = matrix_forms.missed(few)
    assert (wanted, has) == ("mean 1.05, least 0.95", "mean 0.782, least 0.64") and worst == "r3 0.64; r2 0.74; r1 0.84; 1 more"


def test_products_on_a_cpu_have_targets():
    from benchmarks import report

    rows = [
        {"name": f"{name} {dtype}", "times_us": {"tilec": 10.0, "torch": 9.0}}
        for name, dtype in (("matmul 1024", "f32"), ("matmul 1024", "bf16"), ("attention full", "f32"), ("copy", "f32"))
    ]
    found = {what: (wanted, met) for what, _, wanted, met in report.targets("cpu", rows)}
    assert found == {
        "matmul 1024 f32: best peer's time over ours": (0.95, False),
        "matmul 1024 bf16: best peer's time over ours": (0.9, True),
        "attention full f32: best peer's time over ours": (1.0, False),
    }


def test_a_point_of_the_audit(tmp_path, monkeypatch):
    """Its plans are compiled, measured and held to account."""
    from benchmarks import audit, audit_report

    monkeypatch.setenv("BENCHMARKS_FOLDER", str(tmp_path))
    load = shrunk(PROGRAMS["sum of columns f32 reduction"])
    audit.prepare(load, "cpu", 2)
    row = {"name": load.name} | audit.run(load, "cpu")
    assert row["right"] and len(row["candidates"]) == 3 and 0 < row["share"] <= 1
    assert row["best_us"] <= row["own_us"] and row["predicted_us"] > 0
    assert [t[0] for t in audit_report.targets([row]) if not t[3]][:1] == ["points"]
    assert len(audit_report.by_kind([row])[1]) == 1
    assert "skipped" in audit.run(shrunk(PROGRAMS["relu f32 chain"]), "cpu")


# ---- programs for matrix units ---------------------------------------------------------------------------------------


def small_programs():
    """Every form at small sizes."""
    from benchmarks import attention_loads as a
    from benchmarks import gathered_loads as g
    from benchmarks import matrix_loads as m

    yield from (m.matmul("bf16", 24, 40, 16), m.matmul("f32", 24, 40, 16, "k, m", "n, k", "tf32"), m.batched(2, 24, 40, 16))
    yield from (m.epilogue(form, 24, 40, 16) for form in m.EPILOGUES)
    yield from (m.integers(32, 40, 16), m.narrow(32, 16, 64, ""), m.block_scaled(32, 128, 256), m.byte_weights(4, 16, 32))
    yield from (m.convolution(1, 8, 8, 16, 3, 2), m.convolution(2, 6, 8, 16, 1, 1), m.depthwise(1, 8, 8, 3))
    yield from (a.attention(form, 16, 32, places=64, columns=128) for form in a.SCORES)
    yield from (a.attention("causal", 16, 32, "f16", True, 64, 32), a.decoding(48, 2), a.cross_entropy(96, 8, 16))
    yield from (a.reduced(function, 16, 24, 8) for function in ("logsumexp", "max"))
    yield from (m.gated(8, (16, 24)), m.projections(8, (16, 24, 8)), g.permuted(24, 40, 16), g.experts(4, 8, 24, 16, 3))
    yield from (g.prefill(4, 2, 16, 4, 2, 8), g.paged_decoding(4, 2, 16, 4, 2, 8))


MATRIX = {x.name: x for x in small_programs()}


@pytest.mark.slow
@pytest.mark.parametrize("name", MATRIX)
def test_matrix_program_is_what_pytorch_computes(name):
    from benchmarks.matrix_forms import tensors_of
    from benchmarks.torch_peers import error_share

    load = MATRIX[name]
    tensors = tensors_of(load, "cpu")
    made = tilec.compile(load.program, op=load.op)(*tensors)
    results = list(made) if isinstance(made, tuple) else [made]
    assert error_share(load.expected or load.torch, tensors, results, load.bound) <= 1


def test_matrix_programs_have_names_and_forms():
    from benchmarks import matrix_loads, matrix_points
    from benchmarks.audit_report import MATRIX_POINTS
    from benchmarks.matrix_forms import FORMS

    loads, points = list(matrix_loads.loads()), list(matrix_points.points())
    assert len({x.name for x in loads}) == len(loads) and {x.form for x in loads} == FORMS.keys()
    assert len({x.name for x in points}) == len(points) >= MATRIX_POINTS


def test_a_row_of_a_form_has_its_facts(monkeypatch):
    from benchmarks import matrix_forms
    from benchmarks.measure import on_cpu

    monkeypatch.setattr(matrix_forms, "on_gpu", on_cpu)
    name = "depthwise convolution 3x3 1x8x8x8 bf16"
    row = {"name": name} | matrix_forms.run(MATRIX[name], False, "cpu")
    assert row["right"] and row["form"] == MATRIX[name].form and {"tilec", "torch", "tilec again"} <= row["times_us"].keys()
    assert row["copy_us"] > 0 and matrix_forms.reached(row) > 0 and name in matrix_forms.tables([row])


def test_forms_have_targets():
    """By their measures; rows of no form do not count, whatever their names."""
    from benchmarks import matrix_forms, report

    copy = {"copy_us": 20, "copy_bytes": 20}
    rows = [
        {"name": "a", "form": "attention", "flops": 1e9, "times_us": {"tilec": 10.0, "torch": 30.0, "cuDNN": 11.0}},
        {"name": "b", "form": "attention", "flops": 1e9, "times_us": {"tilec": 10.0, "torch": 9.0}},
        {"name": "c", "form": "few rows of bf16", "flops": 1e9, "times_us": {"tilec": 10.0}, "bytes": 9} | copy,
        {"name": "d", "form": "linear and cross-entropy", "flops": 6e9, "times_us": {"tilec": 10.0}},
        {"name": "attention full 1x32x8192x128", "group": "matrix", "flops": 1e9, "times_us": {"tilec": 9.0, "torch": 1.0}},
    ]  # fmt: skip
    found = {what: (round(value, 3), met) for what, value, _, met in matrix_forms.targets(rows)}
    assert found == {
        "attention (2), the best peer's time over ours, mean": (0.995, False),
        "attention (2), the best peer's time over ours, least": (0.9, False),
        "few rows of bf16 (1), of a copy's speed, least": (0.9, True),
        "linear and cross-entropy (1), TFLOP/s, least": (600.0, False),
    }
    assert {t[0] for t in report.targets("gpu", rows)} >= found.keys()
    text = matrix_forms.tables(rows)
    assert "| attention | 2 | the best peer's time over ours | 0.99 | 1.05 | 0.90 | 0.95 |" in text and "8192" not in text


def test_results_are_merged(tmp_path, monkeypatch):
    """Rows that were timed again take the place of the old ones, which say of which run they are."""
    import json

    from benchmarks import report

    monkeypatch.setattr(report, "RESULTS", tmp_path)

    def results(name, commit, rows):
        facts = {"suite": "gpu", "machine": {"gpu": "NVIDIA H200, 1"}, "versions": {"commit": commit}, "rows": rows}
        (tmp_path / name).write_text(json.dumps(facts))
        return tmp_path / name

    first = report.merge(results("first.json", "first", [{"name": "z", "us": 1}]))
    assert first.name.endswith("-h200-gpu.json") and report.measured("gpu") == {"z"}
    first.unlink()
    results("2020-01-02-h200-gpu.json", "old", [{"name": "a", "us": 1}, {"name": "b", "us": 1}])
    unfinished = {"name": "a", "error": "not run: no time left"}
    half = {"name": "a", "compile_s": {"tilec": 1}, "errors": {"torch.compile": "not run: no time left"}}
    new = results("new.json", "new", [{"name": "b", "us": 2}, unfinished, half, {"name": "c", "us": 2}])
    found = json.loads(report.merge(new).read_text())
    run = "2020-01-02, commit old"
    assert found["versions"]["commit"] == "new"
    assert found["rows"] == [{"run": run, "name": "a", "us": 1}, {"name": "b", "us": 2}, {"name": "c", "us": 2}]
    assert report.measured("gpu") == {"a", "b", "c"} and not report.measured("cpu")
    results("2999-01-02-h200-gpu.json", "later", [{"name": "d", "us": 1}, unfinished, {"name": "e", "skipped": "why"}])
    assert report.measured("gpu") == {"d"}
    (tmp_path / "2999-01-02-h200-gpu.json").unlink()
    again = json.loads(report.merge(results("newer.json", "newer", [{"name": "c", "us": 3}])).read_text())
    assert [r.get("run", "").rpartition(" ")[2] for r in again["rows"]] == ["old", "new", ""]


def test_merged_rows_of_another_cpu_say_so(tmp_path, monkeypatch):
    import json

    from benchmarks import report

    monkeypatch.setattr(report, "RESULTS", tmp_path)
    for name, cpu in (("2020-01-02-x-cpu.json", "old"), ("new.json", "new")):
        rows = [{"name": name, "us": 1}]
        machine = {"gpu": "", "cpu": f"{cpu} processor", "cores": 2, "system": "Linux x"}
        (tmp_path / name).write_text(json.dumps({"suite": "cpu", "machine": machine, "versions": {"commit": "c"}, "rows": rows}))
    kept, _ = json.loads(report.merge(tmp_path / "new.json").read_text())["rows"]
    assert kept["run"] == "2020-01-02, commit c, on old processor, 2 cores"


def test_large_results_for_pytorch_have_targets_on_a_cpu():
    from benchmarks.report import TENSORS, targets

    times = {"tilec": 1.0, TENSORS: 1.0, "torch": 3.0, "torch.compile": 2.0}
    row = {"name": "copy 4096x4096 f32", "times_us": times}
    found = {what: value for what, value, wanted, _ in targets("cpu", [row]) if wanted == 2.5}
    assert found == {"copy 4096x4096 f32, of tensors: PyTorch's best time over ours": 2.0}


def test_examples_have_targets_on_a_cpu():
    from benchmarks.report import targets

    times = {"tilec, out=": 1.0, "tilec": 1.0, "torch": 0.8, "numpy": 3.0}
    found = targets("cpu", [{"name": "example x", "group": "example", "times_us": times}])
    assert found == [("example x: best peer's time over ours", 0.8, 0.9, False)]


def test_audited_plans_are_of_distinct_shapes():
    """The best of each shape of block, the next best, and some far behind."""
    from tools.explained import planned

    from benchmarks.audit import distinct

    text = "op f(a: bf16[M, K], b: bf16[K, N]) -> (y: bf16[M, N]) { y[m, n] = sum[k](a[m, k] * b[k, n]) }"
    _, plan = planned(text, {"M": 256, "N": 256, "K": 256}, "h200")
    (kernel,) = plan.kernels
    ranked = [replace(kernel, tile=(64 * (n // 10 + 1), n % 3)) for n in range(100)]
    found = distinct(ranked, 7)
    assert len(found) == 7 and [k.tile for k in found[:4]] == [(64, 0), (64, 1), (64, 2), (128, 1)]
    assert distinct(ranked[:1], 7) == ranked[:1] and distinct([], 7) == []
