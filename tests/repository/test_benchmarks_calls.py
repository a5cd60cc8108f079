"""The benchmark of what calls cost: its ways agree, and its table has a place for each."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from benchmarks import calls, report  # noqa: E402


@pytest.fixture
def without_compiler(monkeypatch):
    monkeypatch.setattr(calls.shutil, "which", lambda name: None)
    calls.in_cpp.cache_clear()
    yield
    calls.in_cpp.cache_clear()


@pytest.mark.slow
def test_an_operator_in_cpp_is_left_out_where_there_is_no_compiler(without_compiler):
    row = calls.measure("twice", "cpu", compiled=False)
    assert row["right"] and row["times_us"].keys() == {"eager", "tilec.torch.op", "torch.library.custom_op"}
    (line,) = report.others([row])
    assert line.startswith("twice, cpu: operator in C++: there is no compiler")


@pytest.mark.slow
def test_a_compiled_block_is_right():
    from tilec.torch.backend import register

    register()
    row = calls.measure("block", "cpu", compiled=False)
    assert row["right"] and row["times_us"].keys() == {"eager", "tilec"}


def test_a_table_has_every_way():
    rows = [
        {"name": "twice, cpu", "times_us": {"eager": 1.0, "tilec.torch.op": 2.5}},
        {"name": "block, cpu", "times_us": {"tilec": 9.0}},
    ]
    headings, lines = report.call_grid(rows)
    assert headings == ["call", "eager", "tilec.torch.op", "tilec"]
    assert lines == [["twice, cpu", "1.0 us", "2.5 us", ""], ["block, cpu", "", "", "9.0 us"]]
