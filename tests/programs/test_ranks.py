"""Tensors of many dimensions, up to the 16 that the language allows."""

from __future__ import annotations

import numpy as np
import pytest
from fuzz.compare import check, expect, specialised
from fuzz.programs import Case
from tools.lowering import lowered

from tilec.semantics.interpreter import interpret

NAMES = "abcdefghijklmnop"

# (indices of the result, expression)
PROGRAMS = {
    "each element": ("{all}", "exp(x[{all}]) * 2"),
    "a row": ("{all}", "softmax[{last}](x[{all}])"),
    "a column": ("{all}", "softmax[b](x[{all}])"),
    "the other way round": ("{transposed}", "x[{all}] + 1"),
    "a scan": ("{all}", "cumsum[{last}](x[{all}])"),
    "most of it": ("a, {last}", "sum[{inner}](x[{all}] * x[{all}])"),
}


def test_products_of_matrices_in_many_dimensions():
    """The units that multiply them find a block's place by its dimensions, most of which are of one element here."""
    batch, ones = ", ".join("abcdefghijklmn"), ", ".join("1" * 14)
    program = f"op f(x: f16[{ones}, 64, 32], w: f16[{ones}, 32, 64]) -> (y: f32[{ones}, 64, 64])"
    program += f" {{ y[{batch}, p, q] = sum[z](x[{batch}, p, z] * w[{batch}, z, q]) }}"
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=(*[1] * 14, *shape)).astype(np.float16) for shape in ((64, 32), (32, 64)))
    case = Case(program, {}, {"x": x, "w": w})
    check(case, "cpu")
    _, found = lowered(specialised(case))
    assert "mma" in found.emitted.module
    expect(case, specialised(case), interpret(found.texts["map"], case.inputs), "cuda")


@pytest.mark.parametrize("rank", [11, 16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_tensors_of_many_dimensions(name, rank):
    names = list(NAMES[:rank])
    shape = [3 if d in (1, rank // 2, rank - 1) else 2 if d == 0 else 1 for d in range(rank)]
    words = {"all": names, "last": names[-1:], "transposed": names[::-1], "inner": names[1:-1]}
    left, right = (text.format(**{k: ", ".join(v) for k, v in words.items()}) for text in PROGRAMS[name])
    extents = dict(zip(names, shape))
    sizes = ", ".join(str(extents[i.strip()]) for i in left.split(","))
    program = f"op f(x: f32[{', '.join(map(str, shape))}]) -> (y: f32[{sizes}]) {{ y[{left}] = {right} }}"
    case = Case(program, {}, {"x": np.random.default_rng(0).normal(size=shape).astype(np.float32)})
    for way in ("cpu", "emulator"):
        check(case, way)
