"""Tensors that join others, computed piece by piece: which they are, and that results are within the program's bounds."""

from __future__ import annotations

import re

import numpy as np
import pytest
from conftest import assert_within
from tools.lowering import lowered, planned
from tools.machines import CPU
from tools.plans import operations, rewritten

from tilec.analysis.concatenation import concatenation_of
from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.passes.tensor.split_concatenation import split_concatenations
from tilec.plan.schedule.read import read_schedule
from tilec.plan.schedule.write import write_schedule
from tilec.semantics.interpreter import interpret

HEAD = """op f(x: f32[20, 4], w: f32[24, 4], z: f32[20], a: f32[20, 40], v: f32[40, 3]) -> ({out}) {{
    s[i, j] = sum[k](x[i, k] * w[j, k]) """
ROWS, ALL = "y: f32[20]", "y: f32[20, 3]"
COLUMN = "c[i, j] = s[i, j] if j < 24 else z[i] where j in 0:25 "
SEVERAL = "c[i, j] = z[i] if j < 1 else (s[i, j - 1] if j < 25 else a[i, j - 25]) where j in 0:28 "
LONG = "c[i, j] = a[i, j] if j < 16 else s[i, j - 16] where j in 0:40 "
FORMS = {  # what is computed of s: f32[20, 24], its type, and the extents of the pieces
    "a column": (COLUMN + "y[i] = max[j](c[i, j])", ROWS, [24, 1]),
    "a sum": (COLUMN + "y[i] = sum[j](exp(c[i, j] / 9))", ROWS, [24, 1]),
    "a product": (COLUMN + "y[i] = prod[j](c[i, j] / 3)", ROWS, [24, 1]),
    "whether any": (COLUMN + "y[i] = f32(any[j](c[i, j] > 3))", ROWS, [24, 1]),
    "a softmax of which a part is read": (
        COLUMN + "p[i, j] = softmax[j](c[i, j]) y[i, n] = sum[j in 0:24](p[i, j] * v[j, n])", ALL, [24, 1]
    ),
    "a softmax of which all is read": (
        COLUMN + "p[i, j] = softmax[j](c[i, j]) y[i, n] = sum[j in 0:25](p[i, j] * v[j, n])", ALL, [24, 1]
    ),
    "several": (SEVERAL + "y[i] = logsumexp[j](c[i, j])", ROWS, [1, 24, 1, 1, 1]),
    "several, of which parts are read": (
        SEVERAL + "p[i, j] = softmax[j](c[i, j]) y[i, n] = p[i, 0] + sum[j in 0:24](p[i, j + 1] * v[j, n]) + p[i, 26]", ALL,
        [1, 24, 1, 1, 1],
    ),
    "long pieces": (LONG + "p[i, j] = softmax[j](c[i, j]) y[i, n] = sum[j](p[i, j] * v[j, n])", ALL, [16, 24]),
    "an input of its length": (COLUMN + "y[i] = sum[j](c[i, j] * (z[i] if j == 7 else v[j, 1]))", ROWS, [24, 1]),
    "another tensor of its length": (
        COLUMN + "b[i, j] = sin(a[i, j]) where j in 0:25  y[i, n] = sum[j](c[i, j] * b[i, j]) * v[0, n] + b[i, 3]", ALL, [24, 1]
    ),
    "sums along rows": (
        COLUMN + "e[i, j] = exp(c[i, j] / 9)  t = sum[n](e[n, 24])  y[i] = sum[j](e[i, j]) + e[0, 3] + t", ROWS, [24, 1]
    ),
    "a sum of columns": (
        COLUMN + "e[j] = sum[i](c[i, j] + z[i])  y[i] = z[i] * sum[j](e[j])", ROWS, [24, 1]
    ),
    "a sum of two indices": (COLUMN + "y[i] = z[i] * sum[n, j](c[n, j] * z[n])", ROWS, [24, 1]),
    "an end that is read twice": (
        COLUMN + "m[i] = max[j](c[i, j])  y[i] = sum[j](exp(c[i, j] - m[i])) + c[i, 24] * c[i, 3]", ROWS, [24, 1]
    ),
    "a scan of rows": (COLUMN + "e[i, j] = cumsum[i](c[i, j])  y[i] = sum[j](e[i, j])", ROWS, [24, 1]),
    "parts alone": (COLUMN + "e[i, j] = sin(c[i, j])  y[i] = e[i, 3] + e[i, 24]", ROWS, [24, 1]),
    # none
    "a result": (COLUMN + "y[i, j] = c[i, j] m[i] = max[j](c[i, j])", "y: f32[20, 25], m: f32[20]", None),
    "a position": (COLUMN + "y[i] = f32(argmax[j](c[i, j]))", ROWS, None),
    "a scan": (COLUMN + "e[i, j] = cumsum[j](c[i, j])  y[i] = max[j](e[i, j])", ROWS, None),
    "elements of several pieces": (COLUMN + "m[i] = max[j](c[i, j]) y[i] = m[i] + sum[j in 0:12](c[i, 2 * j + 1 ] * c[i, 24 - j])",
                                   ROWS, None),
    "where data tell": (COLUMN + "m[i] = max[j](c[i, j]) y[i] = m[i] + c[i, clamp(i64(z[i]), 0, 24)]", ROWS, None),
    "a factor": (COLUMN + "m[i] = max[j](c[i, j]) t[n, k] = sum[i](c[i, n] * a[i, k]) y[i] = m[i] + t[0, 0]", ROWS, None),
    "no join": ("y[i] = max[j](s[i, j] if j < 23 else z[i])", ROWS, None),
    "inputs alone": ("c[i, j] = a[i, j] if j < 40 else z[i] where j in 0:41 y[i] = max[j](c[i, j]) + s[i, 0]", ROWS, None),
}  # fmt: skip


def in_pieces(text: str) -> tuple[str, list[list[int]]]:
    with mlir.context(), ir.Location.unknown():
        module = mlir.parse(text)
        (function,) = mlir.functions(module)
        found = [[b - a for a, b in p.pieces] for p in concatenation_of(function, 256)]
        copy = function.clone()  # as plan has it: no module is around
        split_concatenations(copy, 256)
        copy.erase()
        split_concatenations(function, 256)
        module.operation.verify()
        return mlir.text(module), found


@pytest.mark.parametrize("case", FORMS)
def test_pieces_have_the_value_of_the_whole(case, rng):
    body, out, pieces = FORMS[case]
    program = HEAD.format(out=out) + body + " }"
    shapes = {"x": (20, 4), "w": (24, 4), "z": (20,), "a": (20, 40), "v": (40, 3)}
    arrays = {n: rng.normal(0, 1, s).astype(np.float32) for n, s in shapes.items()}
    text = lowered(program, None, arrays, target="cpu", end="simplify", emit=False)[1].texts["simplify"]
    made, found = in_pieces(text)
    assert found == ([] if pieces is None else [pieces])
    if pieces is None:
        assert ".piece" not in made
    else:
        assert '"c"' not in made  # nothing is left of the whole
    assert_within(program, arrays, list(interpret(made, arrays).values()), kind="cpu")


NORMS = """op f(x: f32[3, 16, 4, 5], w: f32[16, 16], v: f32[16, 32]) -> (y: f32[3, 48, 4, 5], a: f32[16], b: f32[32], c: f32[48]) {{
    {first}
    s[n, o, h, k] = sum[i](relu(x[n, i, h, k] - m[i]) * w[o, i])
    p[n, i, h, k] = x[n, i, h, k] if i < 16 else s[n, i - 16, h, k] where i in 0:32
    {second}
    t[n, o, h, k] = sum[i](relu(p[n, i, h, k] - l[i]) * v[o, i])
    q[n, i, h, k] = x[n, i, h, k] if i < 16 else (s[n, i - 16, h, k] if i < 32 else t[n, i - 32, h, k]) where i in 0:48
    {third}
    y[n, i, h, k] = q[n, i, h, k] * g[i] + c[i]
}}"""
NORM = "{m}[i] = {kind}[n, h, k]({x}[n, i, h, k])  {a}[i] = sum[n, h, k](({x}[n, i, h, k] - {m}[i]) ** 2) / 60"
JOINED = {  # what reduces the last concatenation, and how many long reductions there are
    "norms": (NORM, 9),
    "other reductions": (NORM.replace("sum", "max"), 6),
    "a reduction of reductions": (NORM + " + max[j]({m}[j])", 9),
}


@pytest.mark.parametrize("name", JOINED)
@pytest.mark.parametrize("target", ["cpu", "h200"])
def test_what_is_concatenated_is_reduced_once(name, target, rng):
    text, count = JOINED[name]
    norms = [text.format(m=m, a=a, x=x, kind="mean") for m, a, x in (("m", "a", "x"), ("l", "b", "p"), ("g", "c", "q"))]
    program = NORMS.format(first=norms[0], second=norms[1], third=norms[2])
    arrays = {"x": (3, 16, 4, 5), "w": (16, 16), "v": (16, 32)}
    inputs = {n: rng.standard_normal(shape, dtype=np.float32) for n, shape in arrays.items()}
    made = lowered(program, None, inputs, target=target, end="simplify", emit=False)[1].texts["simplify"]
    long = re.findall(r'iterator_types = \["parallel", "reduction", "reduction", "reduction"\]', made)
    assert len(long) == count
    assert_within(program, inputs, list(interpret(made, inputs).values()), kind="cuda" if target == "h200" else target)


@pytest.mark.parametrize("part", ["x[n, i, h, k] + 1", "x[n, 15 - i, h, k]", "sin(x[n, i, h, k])"])
def test_what_is_computed_in_a_concatenation_is_reduced_there(part, rng):
    norms = [NORM.format(m=m, a=a, x=x, kind="mean") for m, a, x in (("m", "a", "x"), ("l", "b", "p"), ("g", "c", "q"))]
    program = NORMS.format(first=norms[0], second=norms[1], third=norms[2]).replace("= x[n, i, h, k] if", f"= {part} if")
    arrays = {"x": (3, 16, 4, 5), "w": (16, 16), "v": (16, 32)}
    inputs = {n: rng.standard_normal(shape, dtype=np.float32) for n, shape in arrays.items()}
    made = lowered(program, None, inputs, end="simplify", emit=False)[1].texts["simplify"]
    assert ".piece" not in made
    assert_within(program, inputs, list(interpret(made, inputs).values()), kind="cuda")


SINKS = """op f(q: bf16[H, S, 64], k: bf16[H, S, 64], v: bf16[H, S, 64], z: bf16[H]) -> (o: bf16[H, S, 64]) {
    s[h, i, j]: bf16 = sum[d](q[h, i, d] * k[h, j, d]) / 8 if j <= i else -inf
    c[h, i, j]: bf16 = s[h, i, j] if j < S else z[h] where j in 0:S + 1
    m[h, i]: bf16 = max[j](c[h, i, j])
    p[h, i, j]: bf16 = softmax[j](c[h, i, j] - m[h, i])
    o[h, i, d] = sum[j in 0:S](p[h, i, j] * v[h, j, d])
}"""


@pytest.mark.parametrize("target", ["a100", "h200", pytest.param(CPU, id="cpu")])
def test_attention_with_sinks_has_no_scores_in_memory(target):
    plan = planned(SINKS, None, {"H": 64, "S": 1024}, target)
    assert operations(plan, "concatenation") == ["c"] and len(plan.kernels) == 1


def test_a_schedule_forbids_pieces_and_forces_them():
    forbidden = lowered(SINKS, None, {"H": 64, "S": 1024}, rewritten(concatenation=[]), end="plan", emit=False)[1].plan
    assert not forbidden.steps("concatenation") and len(forbidden.kernels) > 1
    small = {"H": 1, "S": 64}
    own = planned(SINKS, None, small)
    assert not own.steps("concatenation") and any(r.verb == "refused" and r.subject == "to compute c" for r in own.remarks)
    for way in (["c"], True):
        forced = lowered(SINKS, None, small, rewritten(concatenation=way), end="plan", emit=False)[1].plan
        assert operations(forced, "concatenation") == ["c"] and forced.time_us > own.time_us


def test_a_schedule_with_concatenation_is_obeyed(tmp_path):
    given = {"H": 64, "S": 1024}
    specialised, first = lowered(SINKS, None, given, end="plan", emit=False)
    path = tmp_path / "a.sched.toml"
    path.write_text(write_schedule(first.plan, specialised))
    _, second = lowered(SINKS, None, given, schedule=read_schedule(path), end="plan", emit=False)
    assert operations(second.plan, "concatenation") == ["c"]
    assert [k.nodes for k in second.plan.kernels] == [k.nodes for k in first.plan.kernels]
