"""Plans of programs whose sizes vary: tiles that are good at several of them."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from tools.machines import CPU

from tilec.core.source import read_source
from tilec.core.targets import load
from tilec.core.varying import Varying
from tilec.driver import class_loss, class_report
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise
from tilec.plan import varying


def kernel(tile: int, time: float, order: int = 0) -> SimpleNamespace:
    fields = [(SimpleNamespace(name="block", metadata={"modelled": True}), tile)]
    fields.append((SimpleNamespace(name="group_batch", metadata={"modelled": False}), order))
    return SimpleNamespace(options=SimpleNamespace(fields=lambda: fields), prediction=SimpleNamespace(time_us=time))


def test_a_tile_that_loses_little_everywhere_is_taken():
    own, other = kernel(192, 9.0), kernel(128, 10.0, order=1)
    others = [[kernel(192, 20.0), kernel(128, 15.0, order=2)], [kernel(128, 4.0), kernel(192, 5.0)]]
    assert varying._best(own, [[own, other], *others]) is other
    assert varying._best(own, [[own, other]]) is own


def test_a_tile_that_some_size_cannot_have_is_not_taken():
    own, other = kernel(192, 9.0), kernel(128, 1.0)
    assert varying._best(own, [[own, other], [kernel(192, 20.0)]]) is own
    assert varying._best(own, [[own, other], [kernel(64, 20.0)]]) is own


def test_sizes_around_are_in_their_ranges(monkeypatch):
    ranges = {"S": Varying(513, 2048), "B": Varying(2, 16, 2)}
    monkeypatch.setattr(varying.extents, "sizes_of", lambda _: ranges)
    found = varying._around(None, {"S": 1025, "B": 6})
    assert found == [{"S": 725, "B": 2}, {"S": 1449, "B": 10}]
    assert all(ranges[name].has(n) for at in found for name, n in at.items())


def test_blocks_of_few_cores_are_even_at_all_sizes_of_a_class():
    """Each core has a block at the typical size. Of two blocks of rows, one would have a single row at the least size."""
    text = "op f(x: f32[M, 256], w: f32[256, 96]) -> (y: f32[M, 96]) { y[m, n] = sum[k](x[m, k] * w[k, n]) }"
    (row,) = class_report.rows(parse(read_source(text)), None, None, {}, {"M": Varying(129, 512)}, replace(CPU, units=2))
    assert [p.sizes for p in row.points] == [{"M": 129}, {"M": 512}]
    assert all(p.loss is not None and p.loss < 0.1 for p in row.points)


ROTATED = """op f(x: bf16[B, S, 256], w: bf16[256, 256], v: bf16[64, 256], p: f32[32]) -> (s: f32[B, 4, S, S]) {
    b[d, j] = sum[k in 0:1](p[d] * j) where j in 0:S
    c[j, d] = sin(b[d, j] if d < 32 else b[d - 32, j]) where d in 0:64
    m[i, j, k]: bf16 = sum[l](x[i, j, l] * w[k, l])
    n[i, j, k]: bf16 = sum[l](x[i, j, l] * v[k, l])
    t[i, h, j, d]: f32 = -m[i, j, h * 64 + d + 32] if d < 32 else m[i, j, h * 64 + d - 32] where h in 0:4, d in 0:64
    q[i, h, j, d]: bf16 = m[i, j, h * 64 + d] * c[j, d] + t[i, h, j, d]
    u[i, j, d]: f32 = -n[i, j, d + 32] if d < 32 else n[i, j, d - 32] where d in 0:64
    r[i, j, d]: bf16 = n[i, j, d] * c[j, d] + u[i, j, d]
    s[i, h, j, k] = sum[d](q[i, h, j, d] * r[i, k, d])
}"""


@pytest.mark.parametrize("target", ["cpu", "h200"])
def test_instances_are_programs(target):
    """A product's heads are a view of it, whose extents were operands yet at numbers: a rewrite that tidies up refused it, and
    models with rotated positions were compiled for each size."""
    varies = {"B": Varying(2, 16), "S": Varying(129, 512)}
    special = specialise(parse(read_source(ROTATED)), None, None, {}, checked=True, varies=varies)
    plan = class_loss.planned(special, load(target), at={"B": 15, "S": 255})
    assert plan.varies.keys() == varies.keys()
