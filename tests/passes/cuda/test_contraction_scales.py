"""Factors that many places of k share: those that no place changes are applied to the sum, others to sums of the matrix units."""

import numpy as np
import pytest
from tools import contractions as T
from tools.cuda_kernels import compiled
from tools.explained import planned

from tilec.core.targets import load
from tilec.kernels import matrix

pytestmark = pytest.mark.slow  # all stages of many tiles

PROGRAM = """op mm(a: {t}[M, K], b: {t}[{b}], s: f32[{s}], t: f32[{u}]) -> (c: f32[M, N]) {{
 c[m, n] = sum[k](a[m, k] * s[{si}] * b[{bi}] * t[{ui}])
}}
"""
F32 = "op mm(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N]) { c[m, n] = sum[k](a[m, k] * b[k, n]) }"
PLACES = {  # the scales' subscripts, their sizes, and the same of the scales by numbers of rows, columns and k
    "rows": ("M", "m", "N", "n", lambda s, m, k: s[m], lambda t, n, k: t[n]),
    "blocks": ("M, K // {g}", "m, k // {g}", "N // 8, K // {g}", "n // 8, k // {g}",
               lambda s, m, k: s[m, k], lambda t, n, k: t[n // 8, k]),
    "groups": ("M", "m", "N, K // {g}", "n, k // {g}", lambda s, m, k: s[m], lambda t, n, k: t[n, k]),
    "by k alone": ("K // {g}", "k // {g}", "N", "n", lambda s, m, k: s[k], lambda t, n, k: t[n]),
}  # fmt: skip


@pytest.mark.parametrize("kind, group", [("f8e4m3", 128), ("bf16", 64), ("bf16", 128)])
@pytest.mark.parametrize("name", PLACES)
def test_scales(name, kind, group, monkeypatch):
    """Sizes hang over the edges of tiles, and of the last group."""
    monkeypatch.setitem(matrix.DEEPEST, "wgmma", 2)
    s, si, u, ui, rows, columns = PLACES[name]
    given = {"s": s, "si": si, "u": u, "ui": ui}
    text = PROGRAM.format(t=kind, b="N, K", bi="n, k", **{key: x.format(g=group) for key, x in given.items()})
    tile = ("wgmma", 64, 64, 64 if kind == "bf16" else 128, (4, 1))
    sizes = {"M": 72, "N": 88, "K": 2 * group}
    m, n, k = (np.arange(sizes[d]) for d in "MNK")

    def expected(a, b, s, t):
        scale = rows(s, m[:, None, None], k // group) * columns(t, n[:, None], k // group)
        return (a[:, None] * b * scale).sum(2)

    text = text.replace("{", "{{").replace("}", "}}")
    result = T.check(text, ("f32", "f32"), sizes, tile, expected, monkeypatch)
    options = result.plan.kernels[-1].options
    two_level = group if name != "rows" else 128 if kind.startswith("f8") else 0
    assert options.two_level == two_level and len(result.plan.kernels) == 1


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("kind", ["f8e4m3", "bf16"])
def test_large_tiles_fit_registers(name, kind):
    s, si, u, ui, *_ = PLACES[name]
    given = {"s": s, "si": si, "u": u, "ui": ui}
    text = PROGRAM.format(t=kind, b="N, K", bi="n, k", **{key: x.format(g=128) for key, x in given.items()})
    _, result = T.lowered(text, T.LARGE, "h200")
    assert result.plan.kernels[0].options.instruction == "wgmma"
    assert len(compiled(result.emitted, "sm_90a")) == 1


def test_tiles_have_whole_groups_of_columns_that_share_scales():
    """Or lie in one; and every plan that is ranked keeps two steps in shared memory."""
    from tilec.driver import tune

    blocks = {"s": "M, K // 128", "si": "m, k // 128", "u": "N // 128, K // 128", "ui": "n // 128, k // 128"}
    text = PROGRAM.format(t="f8e4m3", b="N, K", bi="n, k", **blocks)
    for source, sizes in ((text, {"M": 640, "N": 1280, "K": 512}), (F32, {"M": 2048, "N": 2048, "K": 2048})):
        special, _ = planned(source, sizes, "h200")
        plan, others = tune._planned(special, load("h200"), None)
        ranked = [k.options for k in others[plan.kernels[-1].name] if k.options.name == "warpgroup_contraction"]
        assert ranked and all(o.stages >= 2 and o.refuse_shape() is None for o in ranked)
        if source == text:
            assert {o.block[1] for o in ranked} <= {16, 32, 64, 128, 256}


@pytest.mark.parametrize("target", ["a100", "cpu"])
def test_elsewhere_scales_are_multiplied_in(target):
    text = PROGRAM.format(t="f8e4m3", b="N, K", bi="n, k", s="M, K // 32", si="m, k // 32", u="N", ui="n")
    _, plan = planned(text, {"M": 512, "N": 512, "K": 256}, target)
    assert len(plan.kernels) == 1 + bool(plan.steps("split"))  # parts of k are added up by another


@pytest.mark.parametrize("k", [128, 256, 336, 512, 1168])
def test_sums_are_added_under_products(k, monkeypatch):
    """With every count of steps from one to four, and with more than one span of scales."""
    monkeypatch.setitem(matrix.DEEPEST, "wgmma", 2)
    text = PROGRAM.format(t="f8e4m3", b="N, K", bi="n, k", s="M, (K + 127) // 128", si="m, k // 128", u="N", ui="n")
    text = text.replace("{", "{{").replace("}", "}}")
    tile = ("wgmma", 128, 32, 128, (8, 1))

    def expected(a, b, s, t):
        return np.einsum("mk,nk,mk,n->mn", a, b, np.repeat(s, 128, 1)[:, :k], t)

    result = T.check(text, ("f32", "f32"), {"M": 136, "N": 40, "K": k}, tile, expected, monkeypatch)
    assert result.plan.kernels[-1].options.two_level == 128
