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


@pytest.mark.parametrize("suite", SUITES)
def test_some_cases(suite):
    module, packages, chosen = SUITES[suite]
    for package in packages:
        pytest.importorskip(package)
    cases = importlib.import_module(f"tests.outside.{module}").cases()
    outcomes = [attempt(name, make) for name, make in islice(cases, chosen.start, chosen.stop, chosen.step)]
    assert [o for o in outcomes if o.verdict == "failed"] == []
    assert sum(o.verdict == "passed" for o in outcomes) >= 3
