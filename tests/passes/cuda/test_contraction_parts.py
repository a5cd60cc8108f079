"""Products of f32 on matrix units, by three bf16 parts of each factor: within the bound of f32 for numbers of every size."""

import numpy as np
import pytest
from conftest import assert_within
from tools import contractions as T
from tools.cuda_kernels import compiled
from tools.lowering import planned
from tools.machines import H200, refitted

from tilec.core.fitted import WarpgroupTimes
from tilec.kernels import matrix

pytestmark = pytest.mark.slow  # all stages of many tiles

TEXTS = {"plain": T.MATMUL, "turned": T.TRANSPOSED, "linear": T.LINEAR}
TILE = ("wgmma", 64, 64, 64, (4, 1))


def lowered(text, sizes, monkeypatch):
    monkeypatch.setitem(matrix.DEEPEST, "wgmma", 2)
    specialised, result = T.lowered(text, sizes, refitted(H200, WarpgroupTimes, parts=1e-9), TILE, monkeypatch)
    assert result.plan.kernels[-1].options.multiplicand == "bf16x3"
    return specialised, result


@pytest.mark.parametrize("sizes", [{"M": 72, "N": 72, "K": 136}, {"M": 67, "N": 69, "K": 131}], ids=["even", "odd"])
@pytest.mark.parametrize("name", TEXTS)
def test_products(name, sizes, monkeypatch):
    """Lines of odd lengths are stored with zeros behind them."""
    text = TEXTS[name].format(t="f32", o="f32")
    specialised, result = lowered(text, sizes, monkeypatch)
    inputs = T.arrays(specialised)
    assert_within(text, inputs, T.emulated(specialised, result, inputs), kind="cuda")


@pytest.mark.parametrize("access, sizes", [("x[n, u + r, c]", {"H": 33}), ("pad(x[n, u + r - 1, c], 0)", {"H": 32})])
@pytest.mark.parametrize("shape, order", [("N, 32, K", "n, u, k"), ("N, K, 32", "n, k, u")])
def test_windows(access, sizes, shape, order, monkeypatch):
    """Sums that are not finite read the elements anew: those of either side, whose loads may be under a condition."""
    text = f"""op f(x: f32[N, H, C], w: f32[K, 2, C]) -> (y: f32[{shape}]) {{
     y[{order}] = sum[r, c]({access} * w[k, r, c])
    }}"""
    specialised, result = lowered(text, {"N": 2, "C": 64, "K": 72} | sizes, monkeypatch)
    inputs = T.arrays(specialised)
    inputs[0][1, 5, 7] = np.inf
    assert_within(text, inputs, T.emulated(specialised, result, inputs), kind="cuda")


NUMBERS = {
    "sizes": lambda random, shape: random.standard_normal(shape) * 2.0 ** random.integers(-90, 60, shape),
    "one tiny": lambda random, shape: np.where(random.random(shape) < 0.002, 1e-40, random.standard_normal(shape)),
    "one huge": lambda random, shape: np.where(random.random(shape) < 0.002, 3.3e38, random.standard_normal(shape)),
    "infinite": lambda random, shape: np.where(random.random(shape) < 0.002, np.inf, random.standard_normal(shape)),
    "nan": lambda random, shape: np.where(random.random(shape) < 0.002, np.nan, np.round(random.standard_normal(shape))),
    "cancel": lambda random, shape: (-1.0) ** np.arange(shape[-1]) * (1 + random.integers(0, 9, shape) * 2.0**-23),
}


EVEN, ODD = {"M": 64, "N": 72, "K": 72}, {"M": 65, "N": 71, "K": 73}


@pytest.mark.parametrize("name, sizes", [*((n, EVEN) for n in NUMBERS), ("infinite", ODD), ("one tiny", ODD)])
def test_numbers_of_every_size(name, sizes, monkeypatch):
    """What has no parts is noticed, and computed otherwise."""
    text = T.MATMUL.format(t="f32", o="f32")
    specialised, result = lowered(text, sizes, monkeypatch)
    random = np.random.default_rng(1)
    with np.errstate(over="ignore"):
        inputs = [NUMBERS[name](random, [s.value for s in t.shape]).astype(np.float32) for t in specialised.inputs]
    assert_within(text, inputs, T.emulated(specialised, result, inputs), kind="cuda")


def test_no_row_depends_on_what_is_not_finite_in_another(monkeypatch):
    """A thread has two rows of a fragment, and adds products anew for one of them alone."""
    specialised, result = lowered(TEXTS["plain"].format(t="f32", o="f32"), EVEN, monkeypatch)
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(a.shape).astype(np.float32) for a in T.arrays(specialised))
    (own,) = T.emulated(specialised, result, [x, w])
    for value in (np.nan, np.inf, 1e-40):
        poisoned = x.copy()
        poisoned[::16] = value
        (found,) = T.emulated(specialised, result, [poisoned, w])
        kept = np.arange(len(x)) % 16 != 0
        assert found[kept].tobytes() == own[kept].tobytes() and found[~kept].tobytes() != own[~kept].tobytes()


def test_parts_pay_for_large_products():
    """And fit registers: no spills, no stack."""
    plan = planned(T.MATMUL.format(t="f32", o="f32"), None, {"M": 256, "N": 256, "K": 256})
    assert plan.kernels[0].options.multiplicand == "f32"  # others may add up parts of k
    _, result = T.lowered(T.MATMUL.format(t="f32", o="f32"), T.LARGE, "h200")
    assert result.plan.kernels[-1].options.multiplicand == "bf16x3"
    compiled(result.emitted, "sm_90a")


def test_parts_of_lines_of_odd_lengths():
    plan = planned(T.MATMUL.format(t="f32", o="f32"), None, {"M": 4097, "N": 4095, "K": 2049})
    assert plan.kernels[-1].options.multiplicand == "bf16x3"
