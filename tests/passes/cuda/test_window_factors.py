"""Factors of windows in which neighbouring threads would read apart: stored first, with the threads' dimension last."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import assert_within
from tools.cuda_kernels import compiled
from tools.emulation import run_printed
from tools.lowering import emitted, lowered
from tools.plans import rewritten

from tilec.core.dtypes import DTYPES
from tilec.core.targets import load
from tilec.plan.cuda import choose, columns, lines, windows

ONE = replace(load("h200"), units=1)  # small programs fill it
FACTORS = {"first": "f[c, 0, r, s]", "backwards": "f[c, 0, R - 1 - r, S - 1 - s]", "last": "f[r, s, c]"}


def depthwise(factor: str, kind: str = "bf16", window: int = 3, norm: bool = False) -> str:
    shape = f"{window}, {window}, C" if factor == "last" else f"C, 1, {window}, {window}"
    access = FACTORS[factor].replace("R", str(window)).replace("S", str(window))
    half, result = window // 2, "t[n, h, w, c]: f32" if norm else "y[n, h, w, c]"
    text = f"""op dw(x: {kind}[N, H, W, C], f: {kind}[{shape}]) -> (y: {kind}[N, H, W, C]) {{
        {result} = sum[r in 0:{window}, s in 0:{window}](
            pad(x[n, h + r - {half}, w + s - {half}, c], 0) * {access}) where n in 0:N, h in 0:H, w in 0:W, c in 0:C
    """
    if norm:
        text += """
        m[n, h, w]: f32 = mean[c](t[n, h, w, c])
        v[n, h, w]: f32 = mean[c]((t[n, h, w, c] - m[n, h, w]) * (t[n, h, w, c] - m[n, h, w]))
        y[n, h, w, c] = (t[n, h, w, c] - m[n, h, w]) * rsqrt(v[n, h, w] + 1e-6)
        """
    return text + "}"


@pytest.mark.parametrize("kind", ["bf16", "f32"])
@pytest.mark.parametrize("factor", ["first", "backwards"])
def test_a_factor_is_stored_in_the_order_of_threads(factor, kind, rng, monkeypatch):
    for module in (columns, windows):
        monkeypatch.setattr(module, "THREADS", 16)
    monkeypatch.setattr(choose, "WINDOWS_THRESHOLD", 0)
    monkeypatch.setattr(lines, "UNCOALESCED", 0)
    text, shapes = depthwise(factor, kind), {"x": (8, 4, 8, 16), "f": (16, 1, 3, 3)}
    inputs = {name: rng.standard_normal(shape).astype(DTYPES[kind].numpy) for name, shape in shapes.items()}
    special, result = lowered(text, None, inputs, rewritten(pack=True), ONE)
    stores, sums = result.plan.kernels
    assert stores.nodes in (("y.right",), ("y.sum.right",)) and sums.options.adjacent_steps == (1, 2)
    (out,), failed = run_printed(special, result, inputs)
    assert not any(failed)
    assert_within(text, inputs, out, kind="cuda")
    assert np.abs(out.astype(np.float32)).max() > 0


def planned(factor: str, norm: bool = False, schedule=None):
    return lowered(depthwise(factor, window=7, norm=norm), None, {"N": 64, "H": 14, "W": 14, "C": 384}, schedule)[1].plan


@pytest.mark.parametrize("factor", list(FACTORS))
def test_it_is_stored_where_threads_would_read_uncoalesced(factor):
    plan = planned(factor)
    assert [p.stored for p in plan.steps("pack")] == [] if factor == "last" else ["y.sum.right"]
    assert plan.kernels[-1].options.adjacent_steps == (1, 2)


def test_uncoalesced_requests_take_a_line_for_each_thread():
    """16 lanes are two channels apart, 196 bytes, so that a request touches 16 lines, and each element is loaded once for 14
    neighbours."""
    (apart, *_), (aside,) = planned("first", schedule=rewritten(pack=[])).kernels, planned("last").kernels
    target = load("h200")
    touched = 64 * 14 * 14 * 384 * 49 / 14 / 32 * 16
    assert apart.work.shared_bytes == pytest.approx(128 * touched) and not aside.work.shared_bytes
    assert apart.prediction.terms["shared"] == pytest.approx(1e6 * 128 * touched / target.shared_rate, rel=0.1)
    assert apart.prediction.limiter == "shared" and apart.prediction.time_us > 1.5 * aside.prediction.time_us


def test_windows_and_a_norm_over_channels_are_separate_kernels():
    """One kernel would have a block for each pixel, and no neighbours that share elements."""
    plan = planned("first", norm=True)
    kernels = {k.nodes[0]: k for k in plan.kernels}
    assert kernels["t"].nodes == ("t",) and kernels["t"].options.adjacent_steps == (1, 2)
    assert any(r.verb == "refused" and "t with" in r.subject and "one kernel would take" in r.reason for r in plan.remarks)


@pytest.mark.slow
@pytest.mark.parametrize("factor", ["first", "backwards"])
def test_its_kernels_compile_without_spills(factor):
    pytest.importorskip("numba_cuda_mlir.cuda")
    made = emitted(depthwise(factor, window=7), None, {"N": 64, "H": 14, "W": 14, "C": 384}, "h200")
    for _, cubin in compiled(made, "sm_90a"):
        assert cubin.spills == cubin.stack == 0
