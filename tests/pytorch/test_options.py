"""Options of the back end, and what it dumps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import assert_agrees, compiled  # noqa: E402

import tilec.torch  # noqa: E402
from tilec import CallError  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")

F = torch.nn.functional


@pytest.mark.parametrize(
    "given, said",
    [
        ({"options": {"shedule": "x"}}, "no option 'shedule'; it has target, schedule, strict, background, fallback_random, mode"),
        ({"mode": "max-autotune"}, "no mode 'max-autotune'; it has default, reduce-overhead"),
        ({"options": {"strict": 1}}, "'strict' must be True or False"),
        ({"options": {"target": "h900"}}, "unknown target"),
        ({"options": {"schedule": "/no/such/folder"}}, "'schedule' must be a folder"),
    ],
)
def test_wrong_options_are_told(given, said):
    with pytest.raises(Exception, match=said):
        compiled(lambda x: x + 1, **given)(torch.randn(3))


def test_reduce_overhead_replays_nothing_on_the_cpu():
    assert_agrees(
        lambda x: torch.exp(x).sum(), torch.randn(5, requires_grad=True), backward=True, mode="reduce-overhead"
    )
    assert all(g.not_replayed == "its tensors are on the CPU" for g in tilec.torch.report().graphs)


def test_compiled_in_the_background():
    function, x = compiled(lambda x: torch.exp(x) + 1, options={"background": True}), torch.randn(5)
    for _ in range(2):
        torch.testing.assert_close(function(x), torch.exp(x) + 1)
        tilec.torch.wait()
    assert tilec.torch.report().graphs[0].parts[0].sizes == 1


def test_dumped_programs_compile_alone_and_take_schedules(tmp_path, monkeypatch, capsys):
    from tilec.cli.command import main

    monkeypatch.setenv("TILEC_TORCH_DUMP", str(tmp_path))
    x, w = torch.randn(6, 8), torch.randn(5, 8)
    compiled(lambda x, w: F.relu(F.linear(x, w)))(x, w)
    (program,) = tmp_path.rglob("*.tile")
    text = program.read_text()
    assert "# x0: x" in text and "aten.relu" in text and f"{Path(__file__).name}:" in text
    torch.testing.assert_close(tilec.compile(program)(x, w), F.relu(F.linear(x, w)))
    assert main(["torch", "report", str(tmp_path)]) == 0
    assert "2 of 2 operations (100%)" in capsys.readouterr().out
    assert json.loads(next(tmp_path.rglob("graph.json")).read_text())["parts"][0]["sizes"] == 1
    assert main(["plan", str(program)]) == 0
    from tilec.torch.schedules import schedule_of

    assert schedule_of(text, tmp_path) == str(program.with_suffix(".sched.toml"))
    torch._dynamo.reset()
    function = compiled(lambda x, w: F.relu(F.linear(x, w)), options={"schedule": str(tmp_path), "strict": True})
    torch.testing.assert_close(function(x, w), F.relu(F.linear(x, w)))
    with pytest.raises(CallError):
        from tilec.torch.options import read

        read("default", {"mode": "reduce-overhead"})
