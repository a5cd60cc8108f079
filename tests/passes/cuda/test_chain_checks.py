"""Run-time checks of contraction chains: blocks that would ask the same do not all ask it, and no place goes unchecked."""

from __future__ import annotations

import re

import numpy as np
import pytest
from conftest import assert_within
from tools.lowering import lowered

from tilec.core.diagnostics import CheckError
from tilec.core.dtypes import BF16
from tilec.kernels import ContractionChain
from tilec.semantics.interpreter import interpret

TEXT = """op f(
    q: bf16[B, H, N, 64], k: bf16[B, H, N, 64], v: bf16[B, H, N, 64], c: bf16[B, H, N, 32], p: i64[N, N], o: i64[B, N]
) -> (y: bf16[B, H, N, 64]) {
    s[b, h, i, j] = sum[d](q[b, h, i, d] * k[b, h, j, d]) + c[b, h, i, p[i, j]] + c[b, h, i, o[b, j]]
    w[b, h, i, j] = softmax[j](s[b, h, i, j])
    y[b, h, i, d] = bf16(sum[j](w[b, h, i, j] * v[b, h, j, d]) using bf16)
}"""
SIZES = {"B": 2, "H": 2, "N": 160}


def arrays(rng) -> dict[str, np.ndarray]:
    b, h, n = SIZES.values()
    made = {name: rng.normal(0, 1, (b, h, n, 64)).astype(BF16.numpy) for name in "qkv"}
    return made | {
        "c": rng.normal(0, 1, (b, h, n, 32)).astype(BF16.numpy),
        "p": rng.integers(0, 32, (n, n)),
        "o": rng.integers(0, 32, (b, n)),
    }


@pytest.mark.parametrize("target", ["h200", "a100"])
@pytest.mark.parametrize("outside", [None, ("p", (0, 0)), ("p", (159, 130)), ("o", (1, 159))])
def test_a_place_outside_is_found_wherever_it_is(target, outside, rng):
    given = arrays(rng)
    _, result = lowered(TEXT, None, given, target=target)
    assert isinstance(result.plan.kernels[-1].options, ContractionChain)
    if outside is None:
        (out,) = interpret(result.texts["map"], given).values()
        assert_within(TEXT, given, out, kind="cuda")
        return
    name, place = outside
    given[name][place] = 32
    with pytest.raises(CheckError, match=rf"c\[b, h, i, {name}\["):
        interpret(result.texts["map"], given)


def test_blocks_of_all_heads_do_not_ask_the_same():
    _, result = lowered(TEXT, None, {"B": 4, "H": 8, "N": 512})
    text = result.emitted.kernels[-1].text
    conditions = re.findall(r"if (.*):\n +for check in", text)
    assert len(conditions) == 2 and all(" == 0" in c for c in conditions), conditions
