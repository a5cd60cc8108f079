"""Reads of a contraction's result at computed subscripts, which are computed anew so that the result stays on chip."""

import numpy as np
import pytest
from conftest import assert_within
from tools.chains import chains_pay
from tools.contractions import arrays, emulated
from tools.lowering import assert_reads_back
from tools.lowering import lowered as lower_text
from tools.plans import operations, rewritten

from tilec.core.diagnostics import Source
from tilec.kernels import ContractionChain
from tilec.semantics.interpreter import interpret

HEAD = "op f(x: bf16[M, D], w: bf16[V, D], t: i64[M]{}) -> ({}) {{\n s[i, v] = sum[d](x[i, d] * w[v, d]){}\n"
PROGRAMS = {
    "mean": HEAD.format("", "y: f32", "")
    + " z[i] = logsumexp[v](s[i, v])\n y = mean[i](z[i] - s[i, t[i]])\n}",
    "rows": HEAD.format("", "y: f32[M]", " / 8") + " y[i] = logsumexp[v](s[i, v]) - s[i, t[i]]\n}",
    "bias and scale": HEAD.format(", b: f32[V], a: f32[M]", "y: f32[M]", " * a[i] + b[v]")
    + " y[i] = max[v](s[i, v]) - s[i, t[i]]\n}",
    "ignored rows": HEAD.format("", "y: f32[M]", "")
    + " y[i] = logsumexp[v](s[i, v]) - s[i, t[i] - 1] if t[i] > 0 else 0\n}",
    "several": HEAD.format(", c: i32[M, 3]", "y: f32[M, 3]", "")
    + " z[i] = logsumexp[v](s[i, v])\n y[i, j] = z[i] - s[i, c[i, j]]\n}",
    "other rows": HEAD.format("", "y: f32[M]", "") + " y[i] = max[v](s[i, v]) - s[M - 1 - i, t[i]]\n}",
}
SIZES = {"M": 136, "V": 136, "D": 40}
ANEW = rewritten(recompute=True)


@pytest.fixture
def always(monkeypatch):
    chains_pay(monkeypatch)


def inputs_of(specialised, seed=5):
    found, rng = arrays(specialised), np.random.default_rng(seed)
    return [rng.integers(0, SIZES["V"], a.shape).astype(a.dtype) if a.dtype.kind == "i" else a for a in found]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, always):
    text = PROGRAMS[name]
    specialised, result = lower_text(Source("t.tile", text), None, SIZES, ANEW, locations=True, texts=True)
    assert_reads_back(result)
    assert result.plan.steps("recompute") and any(isinstance(k.options, ContractionChain) for k in result.plan.kernels)
    inputs = inputs_of(specialised)
    for stage in ("plan", "fuse", "map"):
        assert_within(text, inputs, interpret(result.texts[stage], inputs), kind="cuda")


def test_printed(always):
    text = PROGRAMS["mean"]
    specialised, result = lower_text(Source("t.tile", text), None, SIZES, ANEW)
    inputs = inputs_of(specialised)
    assert_within(text, inputs, emulated(specialised, result, inputs), kind="cuda")


def test_a_read_outside_is_found(always):
    """The check of the subscript stays where the source reads, though the element comes from elsewhere."""
    specialised, result = lower_text(Source("t.tile", PROGRAMS["mean"]), None, SIZES, ANEW, locations=True)
    inputs = inputs_of(specialised)
    inputs[2][7] = SIZES["V"]
    with pytest.raises(Exception, match=r"`s\[i, t\[i\]\]` reads outside `s`"):
        interpret(result.texts["map"], inputs)


def test_many_reads_are_of_memory():
    """Each element read takes as much as one that is stored: no more of them are computed anew than there are."""
    text = HEAD.format(", c: i32[M, 200]", "y: f32[M, 200]", "") + " y[i, j] = s[i, c[i, j]]\n}"
    _, result = lower_text(Source("t.tile", text), None, SIZES, target="h200")
    assert not result.plan.steps("recompute")


def test_the_model_decides():
    large = {"M": 8192, "V": 32768, "D": 4096}
    _, result = lower_text(Source("t.tile", PROGRAMS["mean"]), None, large, target="h200")
    assert operations(result.plan, "recompute") == ["y.sum"]
    assert any(isinstance(k.options, ContractionChain) for k in result.plan.kernels)
    stored = PROGRAMS["mean"].replace("y: f32)", "y: f32, s: f32[M, V])")
    _, result = lower_text(Source("t.tile", stored), None, large, target="h200")
    assert not result.plan.steps("recompute")


def test_a_schedule_is_obeyed(tmp_path):
    from tilec.plan.schedule.write import read_schedule, write_schedule

    large = {"M": 8192, "V": 32768, "D": 4096}

    def planned(schedule=None):
        return lower_text(Source("t.tile", PROGRAMS["mean"]), None, large, target="h200", schedule=schedule)

    specialised, first = planned()
    path = tmp_path / "t.sched.toml"
    path.write_text(write_schedule(first.plan, specialised).replace("blocks_per_row = 2", "blocks_per_row = 4"))
    second = planned(read_schedule(path))[1].plan
    assert second.steps("recompute") and second.kernels[0].options.blocks_per_row == 4


def test_other_reductions_are_split():
    """Both may pay: what is computed anew is weighed with the reductions of the program split, and whole."""
    text = PROGRAMS["mean"].replace("t: i64[M]", "t: i64[M], g: bf16[B, 768]").replace("-> (y: f32", "-> (y: f32, q: f32[768]")
    text = text.rstrip("}\n") + "\n q[j] = sum[i](g[i, j])\n}"
    _, result = lower_text(Source("t.tile", text), None, {"M": 4096, "V": 50304, "D": 768, "B": 16384}, target="h200")
    assert result.plan.steps("recompute") and operations(result.plan, "split") == ["q"]
