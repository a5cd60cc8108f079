"""Tensors of many dimensions, up to the 16 that the language allows."""

from __future__ import annotations

import numpy as np
import pytest
from fuzz.compare import check
from fuzz.programs import Case

NAMES = "abcdefghijklmnop"

# (indices of the result, expression)
PROGRAMS = {
    "each element": ("{all}", "exp(x[{all}]) * 2"),
    "a row": ("{all}", "softmax[{last}](x[{all}])"),
    "a column": ("{all}", "softmax[b](x[{all}])"),
    "the other way round": ("{turned}", "x[{all}] + 1"),
    "a scan": ("{all}", "cumsum[{last}](x[{all}])"),
    "most of it": ("a, {last}", "sum[{inner}](x[{all}] * x[{all}])"),
}


@pytest.mark.parametrize("rank", [11, 16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_tensors_of_many_dimensions(name, rank):
    names = list(NAMES[:rank])
    shape = [3 if d in (1, rank // 2, rank - 1) else 2 if d == 0 else 1 for d in range(rank)]
    words = {"all": names, "last": names[-1:], "turned": names[::-1], "inner": names[1:-1]}
    left, right = (text.format(**{k: ", ".join(v) for k, v in words.items()}) for text in PROGRAMS[name])
    extents = dict(zip(names, shape))
    sizes = ", ".join(str(extents[i.strip()]) for i in left.split(","))
    program = f"op f(x: f32[{', '.join(map(str, shape))}]) -> (y: f32[{sizes}]) {{ y[{left}] = {right} }}"
    case = Case(program, {}, {"x": np.random.default_rng(0).normal(size=shape).astype(np.float32)})
    for way in ("cpu", "emulator"):
        check(case, way)
