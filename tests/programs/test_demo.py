"""The demo tells what it did: it compiles once, and later finds the program in the cache."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tools import ROOT


@pytest.mark.slow
def test_the_demo_says_what_it_found_in_the_cache(tmp_path):
    command = [sys.executable, str(ROOT / "examples" / "demo.py"), "--target", "cpu", "--sizes", "B=1,S=16,E=32,H=2,D=16,F=48"]
    for folder, reported in (("a", "compiled"), ("a", "loaded from the cache"), ("", "compiled")):
        env = os.environ | {"TILEC_CACHE_DIR": folder and str(tmp_path / folder)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        assert f" s: {reported}" in done.stdout and "right: " in done.stdout
        for figure in ("times the predicted time", "the roofline allows", "NumPy "):
            assert figure in " ".join(done.stdout.split())
