"""Warps that are far behind others find what they wait for: another order of the emulator's threads for each seed."""

import pytest
from tools.attention_programs import PROGRAMS
from tools.chains import check, warps
from tools.cuda_emulator import SEED

PLACES = {"B": 1, "H": 1, "S": 128, "T": 320, "D": 64, "E": 64}


@pytest.mark.parametrize("tile", [(64, 32), (128, 64), (192, 32), warps(64, 32, 2)], ids=["alone", "two", "three", "warps"])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_chains(seed, tile, monkeypatch):
    token = SEED.set(seed)
    try:
        check(PROGRAMS["softmax"], PLACES, tile, monkeypatch, printed=True)
    finally:
        SEED.reset(token)
