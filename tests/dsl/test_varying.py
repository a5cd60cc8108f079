"""Programs whose sizes vary: proved for all sizes of their ranges, built once, right at each size."""

from pathlib import Path

import pytest
from tools.varying import wrong_sizes

EXAMPLES = Path(__file__).parents[2] / "examples"
ROWS = {"M": (1, 5)}
PROGRAMS = {
    "softmax": ("softmax.tile", None, {"M": (0, 4), "N": (1, 5)}, {}),
    "softmax, N a number": ("softmax.tile", None, ROWS, {"N": 7}),
    "layernorm": ("layernorm.tile", None, {"M": (0, 3), "N": (8, 24, 8)}, {}),
    "gelu": ("gelu.tile", None, {"M": (0, 3), "N": (0, 3)}, {}),
    "linear": ("linear.tile", None, ROWS, {"K": 6, "N": 5}),
    "linear, all": ("linear.tile", None, {"M": (0, 3), "K": (0, 9, 3), "N": (1, 2)}, {}),
    "attention": ("attention.tile", "attention", {"B": (1, 2), "S": (1, 3), "T": (1, 4)}, {"D": 4, "H": 2}),
    "causal attention": ("attention.tile", "causal_attention", {"B": (1, 2), "S": (1, 4)}, {"D": 4, "H": 2}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_examples_are_right_at_each_size(name):
    file, op, varies, sizes = PROGRAMS[name]
    assert wrong_sizes(EXAMPLES / file, varies, op, **sizes) == []
