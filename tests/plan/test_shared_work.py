"""What planning finds once, however many plans of a program, and equal parts of it, ask for it."""

from __future__ import annotations

import pytest
from tools.lowering import planned

from tilec.plan import state
from tilec.plan.cuda import contraction, operands

LONG = "op f(a: bf16[M, K], b: bf16[K, N]) -> (c: bf16[M, N]) { c[m, n] = sum[k](a[m, k] * b[k, n]) }"
LAYERS = """op f(x: bf16[512, 1024], a: bf16[1024, 1024], b: bf16[1024, 1024]) -> (y: bf16[512, 1024]) {
    h[i, j]: bf16 = tanh(sum[k](x[i, k] * a[k, j]))
    y[i, j] = tanh(sum[k](h[i, k] * b[k, j]))
}"""


@pytest.fixture
def asked(monkeypatch):
    """Counts the calls of a function by their arguments."""

    def count(module, name):
        calls, function = [], getattr(module, name)

        def counted(*arguments):
            calls.append(arguments)
            return function(*arguments)

        monkeypatch.setattr(module, name, counted)
        return calls

    return count


def test_kernels_are_grouped_once_for_plans_with_and_without_splits(asked):
    """Once as the program is, and once after its reduction is split."""
    groups = asked(state, "group")
    assert planned(LONG, None, {"M": 128, "N": 128, "K": 1 << 18}).steps("split")
    assert len(groups) == 2


def test_equal_products_are_ranked_once(asked):
    """In all stages that ask for their tiles: for splits, for packs, and for the kernels."""
    ranked, wanted = asked(contraction, "_ranked_tiles"), asked(contraction, "ranked_tiles")
    first, second = planned(LAYERS).kernels
    assert first.options.block == second.options.block
    assert len({*ranked}) == len(ranked) < len(wanted)


def test_what_a_factor_reads_is_found_once(asked):
    """For all orders of k, and all stages."""
    found, wanted = asked(operands, "access_of"), asked(operands, "factor_access")
    planned(LAYERS)
    assert len({*found}) == len(found) < len(wanted)
