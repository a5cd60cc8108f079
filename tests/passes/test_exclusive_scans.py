"""Scans that are read one place before: one kernel stores what the scan has before each element."""

import numpy as np
import pytest
from conftest import assert_within
from tools.emulation import run_printed
from tools.lowering import lowered

import tilec
from tilec.semantics.interpreter import interpret

SHIFTED = {
    "longer": "s[i, j] = cumsum[j](x[i, j])  y[i, j] = 0 if j < 1 else s[i, j - 1] where j in 0:N + 1",
    "as long": "s[i, j] = cumsum[j](x[i, j])  y[i, j] = s[i, j - 1] if j >= 1 else 0 where j in 0:N",
    "shorter": "s[i, j] = cumsum[j](x[i, j])  y[i, j] = s[i, j - 1] if j > 0 else 0 where j in 0:N - 2",
    "a part of rows": "s[i, j] = cumsum[j](x[i, j]) where j in 0:N - 1  y[i, j] = 0 if j == 0 else s[i, j - 1] where j in 0:N",
    "down columns": "s[i, j] = cumsum[i](x[i, j])  y[i, j] = 0 if i < 1 else s[i - 1, j] where i in 0:M",
    "products": "s[i, j] = cumprod[j](1 + x[i, j] / 8)  y[i, j] = 1 if j < 1 else s[i, j - 1] where j in 0:N",
    "greatest": "s[i, j] = cummax[j](x[i, j])  y[i, j] = -inf if j < 1 else s[i, j - 1] where j in 0:N",
    "with more": "s[i, j] = cumsum[j](x[i, j])  y[i, j] = x[i, j] * (0 if j < 1 else s[i, j - 1]) + 1 where j in 0:N",
    "transposed": "s[i, j] = cumsum[j](x[i, j])  y[j, i] = 0 if j < 1 else s[i, j - 1] where j in 0:N, i in 0:M",
    "of a function": "s[i, j] = cumsum[j](exp(x[i, j]) * x[i, j])  y[i, j] = 0 if j < 1 else s[i, j - 1] where j in 0:N + 1",
    "in reverse": "s[i, j] = cumsum[j](x[i, N - 1 - j]) where j in 0:N  y[i, j] = 0 if j < 1 else s[i, j - 1] where j in 0:N + 1",
}
OTHERS = {
    "two before": "s[i, j] = cumsum[j](x[i, j])  y[i, j] = 0 if j < 2 else s[i, j - 2] where j in 0:N",
    "another start": "s[i, j] = cumsum[j](x[i, j])  y[i, j] = 1 if j < 1 else s[i, j - 1] where j in 0:N",
    "at another place": "s[i, j] = cumsum[j](x[i, j])  y[i, j] = 0 if j < 3 else s[i, j - 1] where j in 0:N",
    "read twice": "s[i, j] = cumsum[j](x[i, j])  y[i, j] = (0 if j < 1 else s[i, j - 1]) + s[i, j] where j in 0:N",
}
SHAPES = {"short": (5, 12), "long": (3, 700)}


def program(body: str) -> str:
    shape = "M, N + 1" if "0:N + 1" in body else "M, N - 2" if "0:N - 2" in body else "N, M" if "y[j, i]" in body else "M, N"
    return f"op f(x: f32[M, N]) -> (y: f32[{shape}]) {{ {body} }}"


def exclusive(text: str) -> bool:
    """Whether a scan yields the state before it."""
    return any("linalg.yield %out_" in line for line in text.splitlines())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [*SHIFTED, *OTHERS])
def test_values(name, shape, rng):
    text = program((SHIFTED | OTHERS)[name])
    inputs = {"x": rng.standard_normal(SHAPES[shape]).astype(np.float32)}
    special, result = lowered(text, None, inputs, target="h200", texts=True)
    assert exclusive(result.texts["simplify"]) == (name in SHIFTED)
    for stage in ("simplify", "fuse", "map"):
        assert_within(text, inputs, list(interpret(result.texts[stage], inputs).values()), kind="cuda")
    found, failed = run_printed(special, result, inputs)
    assert not any(failed)
    assert_within(text, inputs, found, kind="cuda")


@pytest.mark.parametrize("name", SHIFTED)
def test_on_the_cpu(name, rng):
    text, inputs = program(SHIFTED[name]), {"x": rng.standard_normal((6, 37)).astype(np.float32)}
    assert_within(text, inputs, [tilec.compile(text)(*inputs.values())])


def test_one_kernel_reads_and_stores_what_lies_there():
    text = program(SHIFTED["a part of rows"])
    _, result = lowered(text, None, {"x": np.zeros((4096, 4096), np.float32)}, target="h200")
    (kernel,) = result.plan.kernels
    assert kernel.options.vectors[-1] == 4
