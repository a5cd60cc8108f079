"""Operands that lie along another index than the innermost loop: transposed in registers, whatever their size and type."""

from __future__ import annotations

import numpy as np
import pytest
from tools.construct_cases import compiled, run

import tilec
from tilec.kernels import RegisterTranspose

PROGRAMS = {
    "input": ("y[j, i] = x[i, j] + w[j, i]", lambda x, w, z: x.T + w),
    "result": ("y[j, i] = x[i, j] + v[i, j]", lambda x, v, z: (x + v).T),
    "outer and inner": ("y[j, k, i] = z[i, k, j]", lambda x, w, z: z.transpose(2, 1, 0)),
    "rotated": ("y[j, i, k] = z[i, k, j]", lambda x, w, z: z.transpose(2, 0, 1)),
    "rotated back": ("y[k, j, i] = z[i, k, j]", lambda x, w, z: z.transpose(1, 2, 0)),
    "two ranks": ("y[k, j, i] = z[i, k, j] + x[i, j]", lambda x, w, z: (z + x[:, None]).transpose(1, 2, 0)),
    "between sweeps": (
        "t[j, i] = x[i, j] + w[j, i]; m[j] = max[i](t[j, i]); y[j, i] = t[j, i] - m[j]",
        lambda x, w, z: (x.T + w) - (x.T + w).max(1)[:, None],
    ),
}


@pytest.mark.crossed
@pytest.mark.parametrize("sizes", [(16, 16, 1), (17, 33, 5), (64, 64, 3), (100, 300, 2), (523, 1031, 1)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_transposed_operands(name, sizes):
    m, n, k = sizes
    text, plain = PROGRAMS[name]
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.int8, np.int16, np.float64):
        x, z, w = ((rng.standard_normal(s) * 9).astype(dtype) for s in ((m, n), (m, k, n), (n, m)))
        known = {"x": x, "z": z, "w": w, "v": x}
        op = tilec.compile(text)
        read = [name for name in known if f"{name}[" in text]
        used = [known[name] for name in sorted(read, key=text.index)]
        expected = plain(x, x if "v[" in text else w, z)
        found = op(*used)
        np.testing.assert_array_equal(found, expected.astype(found.dtype))


def test_the_plan_says_so():
    op = tilec.compile("y[j, i] = x[i, j]")
    op(np.ones((512, 512), np.float32))
    (kernel,) = op.plan.kernels
    assert kernel.options.transposed in ((0,), (1,))
    assert "transposed in registers" in op.explain(full=True)
    assert "transpose(" in op.kernels[0].source


TABLES = {
    "distances": ("d[i, k] = sum[j]((x[i, j] - c[k, j]) ** 2); y[i] = argmin[k](d[i, k])", ((700, 19), (23, 19))),
    "each channel's window": (
        "y[h, w, c] = sum[r, s](x[h + r, w + s, c] * t[c, r, s]) where h in 0:20, w in 0:18", ((22, 20, 37), (37, 3, 3)),
    ),
    "each channel's polynomial": ("y[i, c] = sum[k](t[c, k] * x[i, c] ** 2)", ((40, 5), (300, 40))),
    "largest of shifted": ("y[i, k] = max[j](x[i, j] + t[k, j])", ((400, 6), (17, 6))),
}  # fmt: skip


@pytest.mark.crossed
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", TABLES)
def test_small_tables_are_transposed_in_each_block(name, dtype):
    """A small operand that the innermost loop would read with a stride, many times."""
    program, shapes = TABLES[name]
    arrays = [np.random.default_rng(n).standard_normal(s).astype(dtype) for n, s in enumerate(shapes)]
    run(program, *arrays)
    op = compiled(program)
    op(*arrays)
    assert any(isinstance(k.options, RegisterTranspose) for k in op.plan.kernels)


def test_large_or_seldom_read_tables_are_not():
    for shapes in (((700, 190), (230, 190)), ((20, 19), (23, 19))):
        op = compiled(TABLES["distances"][0])
        op(*(np.ones(s, np.float32) for s in shapes))
        assert not any(isinstance(k.options, RegisterTranspose) for k in op.plan.kernels)
