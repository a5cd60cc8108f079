"""`mode="max-autotune"`: plans that measurements choose, which the cache keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import assert_agrees, compiled  # noqa: E402

import tilec.torch  # noqa: E402
from tilec.core.diagnostics import CallError  # noqa: E402
from tilec.semantics import fastest  # noqa: E402
from tilec.torch import shared  # noqa: E402
from tilec.torch.failures import FallbackWarning  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """The measurements that are made from now on, of which the last plan wins."""
    found, measure = [], fastest.fastest

    def last(*given):
        made = measure(*given)
        found.append(replace(made, best=made.right[-1]))
        return found[-1]

    for name, value in {"TRIALS": 1, "SHORT": 0.001, "LONG": 0.001, "fastest": last}.items():
        monkeypatch.setattr(fastest, name, value)
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path))
    shared.forget()
    yield found
    shared.forget()


def softmax(x):
    return torch.softmax(x * 2, -1)


@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs"])
def test_the_fastest_plan_is_compiled_and_kept(measured, mode, tmp_path, monkeypatch):
    x = torch.randn(64, 48)
    assert_agrees(softmax, x, mode=mode)
    (made,) = measured
    assert len(made.right) > 1 and made.right[0].candidate.kernel is None
    (file,) = (tmp_path / "entries").glob("*.sched.toml")
    assert file.read_text() == made.best.candidate.schedule

    plans, program = [], shared.compile_program

    def compile_program(*given, schedule, **options):
        op = program(*given, schedule=schedule, **options)
        plans.append((schedule, op))
        return op

    monkeypatch.setattr(shared, "compile_program", compile_program)
    shared.forget()
    torch._dynamo.reset()
    file.unlink()  # the entry has its text
    assert_agrees(softmax, x, mode=mode)
    assert len(measured) == 1
    (_, own), (path, op) = plans
    assert path == str(file) and own is not op
    kernels = [(k.tile, k.options) for k in op.plan.kernels]
    assert kernels == [(k.tile, k.options) for k in made.best.candidate.plan.kernels]


def test_other_modes_measure_nothing(measured):
    assert_agrees(softmax, torch.randn(64, 48))
    assert_agrees(softmax, torch.randn(64, 40), mode="reduce-overhead")
    assert not measured


def test_what_cannot_be_measured_has_the_predicted_plan(measured, monkeypatch):
    def no_memory(*given):
        raise CallError("the GPU's memory is full")

    monkeypatch.setattr(fastest, "fastest", no_memory)
    with pytest.warns(FallbackWarning, match="tilec measured no plans of a partition, .*: the GPU's memory is full"):
        assert_agrees(softmax, torch.randn(64, 56), mode="max-autotune")
    assert tilec.torch.report().share == 1
    with pytest.raises(Exception, match="memory is full"):
        compiled(softmax, options={"mode": "max-autotune", "strict": True})(torch.randn(64, 44))


def test_the_budget_ends_the_compilation_of_plans(measured, monkeypatch):
    """The compiler's own plan is always among them."""
    monkeypatch.setattr(fastest, "BUDGET", 0.0)
    assert_agrees(softmax, torch.randn(64, 52), mode="max-autotune")
    assert [len(made.right) for made in measured] == [1]
