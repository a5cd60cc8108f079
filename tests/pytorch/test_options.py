"""Options of the back end, and what it dumps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import assert_agrees, compiled  # noqa: E402

import tilec.torch  # noqa: E402
from tilec import CallError, api  # noqa: E402
from tilec.torch import backend  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")

F = torch.nn.functional


@pytest.mark.parametrize(
    "given, message",
    [
        ({"options": {"shedule": "x"}}, "no option 'shedule'; it has target, schedule, strict, background, fallback_random, mode"),
        ({"mode": "fastest"}, "no mode 'fastest'; it has default, reduce-overhead, max-autotune, max-autotune-no-cudagraphs"),
        ({"options": {"strict": 1}}, "'strict' must be True or False"),
        ({"options": {"target": "h900"}}, "unknown target"),
        ({"options": {"schedule": "/no/such/folder"}}, "'schedule' must be a folder"),
    ],
)
def test_wrong_options_are_reported(given, message):
    with pytest.raises(Exception, match=message):
        compiled(lambda x: x + 1, **given)(torch.randn(3))


@pytest.mark.parametrize("target", ["cuda", "h200", "sm_90a", "sm_80"])
@pytest.mark.parametrize("more", [{}, {"background": True}, {"strict": True}, {"mode": "reduce-overhead"}], ids=repr)
def test_a_target_that_no_tensor_is_on_is_refused_at_once(target, more, monkeypatch):
    """Whatever is in the graph: parameters, inputs, constants, symbols."""
    monkeypatch.setattr(backend, "functions", None)  # nothing is traced, and nothing compiled
    message = f"the option 'target' is '{target}', a GPU, and the model's tensors are on the CPU"
    options = {"target": target, **more}
    x = torch.randn(6, 8)
    forms = [
        (torch.nn.Linear(8, 4), {}, x), (torch.nn.ReLU(), {}, x.clone().requires_grad_()), (lambda x: x * 2, {"dynamic": True}, x),
        (lambda n: torch.ones(n) * 2, {}, 5), (lambda xs: xs[0] + xs[1], {}, [x, x]),
    ]  # fmt: skip
    for function, how, given in forms:
        with pytest.raises(Exception, match=message):
            compiled(function, options=options, **how)(given)


def test_an_op_for_a_gpu_refuses_tensors_on_the_cpu_at_once(monkeypatch):
    text = "op exp_of(x: f32[N]) -> (y: f32[N]) { y[i] = exp(x[i]) }"
    monkeypatch.setattr(api.Op, "_executable", None)  # nothing is compiled
    for call in (tilec.torch.op(text, target="sm_90a", name="tests::exp_of"), tilec.compile(text, target="sm_90a")):
        with pytest.raises(CallError, match="kernels for sm_90a run on a GPU, the arguments are on the CPU"):
            call(torch.randn(5))


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
    part = json.loads(next(tmp_path.rglob("graph.json")).read_text())["parts"][0]
    assert (part["sizes"], part["device"], part["programs"]) == (1, "cpu", {program.name: {}})
    assert main(["plan", str(program)]) == 0
    from tilec.torch.schedules import schedule_of

    assert schedule_of(text, tmp_path) == str(program.with_suffix(".sched.toml"))
    torch._dynamo.reset()
    function = compiled(lambda x, w: F.relu(F.linear(x, w)), options={"schedule": str(tmp_path), "strict": True})
    torch.testing.assert_close(function(x, w), F.relu(F.linear(x, w)))
    with pytest.raises(CallError):
        from tilec.torch.options import read

        read("default", {"mode": "reduce-overhead"})
