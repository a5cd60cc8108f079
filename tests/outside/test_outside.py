"""A fixed part of what `python -m tests.outside` runs in full; suites whose packages are not installed are skipped."""

from __future__ import annotations

import importlib
from itertools import islice

import pytest

from tests.outside.common import attempt

SUITES = {  # module, packages, and which cases: every nth of the first ones
    "einsum": ("einsums", ["opt_einsum"], slice(0, 4000, 401)),
    "onnx": ("onnx_nodes", ["onnx"], slice(0, 2000, 97)),
    "torch": ("opinfo", ["torch", "expecttest"], slice(0, 1200, 103)),
}


NAMED = {  # cases of each way in which operators are translated: definitions, loops, steps, PyTorch's functions, tables
    "onnx": [
        "test_attention_4d_gqa", "test_loop11", "test_scan9_sum", "test_if", "test_lstm_with_peepholes",
        "test_gru_bidirectional", "test_resize_downsample_scales_cubic_A_n0p5_exclude_outside",
        "test_resize_tf_crop_and_resize", "test_gridsample_bilinear", "test_scatternd_max",
        "test_top_k_smallest", "test_deform_conv_with_mask_bias", "test_roialign_mode_max", "test_dft_irfft",
        "test_col2im_dilations", "test_qlinearconv", "test_quantizelinear_blocked_asymmetric",
        "test_center_crop_pad_crop_expanded",
    ]
}  # fmt: skip


@pytest.mark.parametrize("suite", SUITES)
def test_some_cases(suite):
    module, packages, chosen = SUITES[suite]
    for package in packages:
        pytest.importorskip(package)
    cases, named = importlib.import_module(f"tests.outside.{module}").cases(), NAMED.get(suite, [])
    if named:
        pytest.importorskip("torch")
        cases = list(cases)
        named = [(name, make) for name, make in cases if name in named]
        assert len(named) == len(NAMED[suite])
    every = islice(cases, chosen.start, chosen.stop, chosen.step)
    outcomes = [attempt(name, make) for name, make in (*every, *named)]
    assert [o for o in outcomes if o.verdict == "failed"] == []
    assert sum(o.verdict == "passed" for o in outcomes) >= 3 + len(named)
