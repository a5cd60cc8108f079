"""Chains on the CPU whose softmax has more entries than scores: sinks, null keys, an implicit 0, a part of another attention."""

import numpy as np
import pytest
from conftest import assert_within
from tools.contractions import arrays
from tools.lowering import lowered
from tools.plans import schedule_file
from tools.sinks import SIZES, forms

import tilec
from tilec.core.diagnostics import Source
from tilec.kernels import PanelChain
from tilec.plan import chain_fusion


@pytest.fixture(autouse=True)
def _always(monkeypatch):
    monkeypatch.setattr(chain_fusion, "chain_us", lambda *_: 0.0)


@pytest.mark.some(3)
@pytest.mark.crossed
@pytest.mark.parametrize("kind", ["bf16", "f32"])
@pytest.mark.parametrize("name", forms())
def test_forms(name, kind, tmp_path):
    text = forms(kind)[name]
    special, planned = lowered(Source("t.tile", text), None, SIZES, target="cpu", end="plan", emit=False)
    schedule = schedule_file(tmp_path, planned.plan, concatenation=True)
    for far in (None, -200.0, -np.inf):
        sinks = lambda z, far=far: (z * 4 if far is None else np.full_like(z, far)).astype(z.dtype)  # noqa: E731
        inputs = [sinks(a) if t.name == "z" else a for t, a in zip(special.inputs, arrays(special))]
        op = tilec.compile(text, target="cpu", schedule=schedule)
        assert_within(text, inputs, op(*inputs), kind="cpu")
        assert "grouped" in name or [type(k.options) for k in op.plan.kernels] == [PanelChain]  # a chain has panels of bare indices
