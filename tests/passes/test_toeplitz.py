"""Tensors that are the same along diagonals: which they are, and that one element for each diagonal gives the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import assert_within
from tools import cuda_emulator
from tools.lowering import lowered, planned, specialised
from tools.plans import operations, rewritten, schedule_file

import tilec
from tilec.analysis.toeplitz import toeplitz_tensors
from tilec.core import mlir
from tilec.core.diagnostics import CheckError
from tilec.core.dtypes import BF16
from tilec.core.mlir import ir
from tilec.core.targets import load
from tilec.driver.lowering import lower
from tilec.dsl.build import build
from tilec.passes.tensor.toeplitz import compress_toeplitz
from tilec.plan.schedule.write import read_schedule, write_schedule
from tilec.semantics.interpreter import interpret

N, M = 6, 9
FORMS = {  # what is computed of x: f32[N, M], w: f32[30, 4], p: i64[60], and the shapes that are left of what has diagonals
    "a difference": ("t[i, j] = exp(f32(i - j) / 3) where i in 0:N, j in 0:M  y[i, j] = x[i, j] * t[i, j]", [[14]]),
    "the other way": ("t[i, j] = exp(f32(j - i) / 3) where i in 0:N, j in 0:M  y[i, j] = x[i, j] * t[i, j]", [[14]]),
    "a sum": ("t[i, j] = exp(f32(i + j)) where i in 0:N, j in 0:M  y[i, j] = x[i, j] * t[i, j]", [[14]]),
    "steps": ("t[i, j] = exp(f32(i - 2 * j) / 9) where i in 0:N, j in 0:M  y[i, j] = x[i, j] * t[i, j]", [[22]]),
    "other steps": ("t[i, j] = exp(f32(3 * i + j) / 9) where i in 0:N, j in 0:M  y[i, j] = x[i, j] * t[i, j]", [[24]]),
    "buckets and gathers": (
        """s[i, j] = i - j where i in 0:N, j in 0:M
           b[i, j] = clamp(s[i, j] + 16 if abs(s[i, j]) < 4 else i64(4 * log(f32(abs(s[i, j])))), 0, 29)
           v[i, j, h] = w[b[i, j], h] where h in 0:4
           y[i, j] = x[i, j] + v[i, j, 0] + v[(i + 1) % N, (j + 3) % M, 3]""",
        [[14, 4]],
    ),
    "a checked gather": (
        "v[i, j] = w[p[i - j + 20], 1] where i in 0:N, j in 0:M  y[i, j] = x[i, j] + v[N - 1 - i, j]", [[14]]
    ),
    "both ways": (
        """t[i, j] = exp(f32(i - j) / 3) where i in 0:M, j in 0:M
           u[i, j] = t[i, j] - t[j, i]
           y[i, j] = x[i, j] * u[i + 1, j]""",
        [[17]],
    ),
    "another dimension between": (
        "t[i, k, j] = exp(f32(i - j) * w[k, 0]) where i in 0:N, k in 0:4, j in 0:M  y[i, j] = sum[k](t[i, k, j])", [[14, 4]]
    ),
    "two distances": (
        """r[a, b, c, d] = (a - c + 3) * 7 + b - d + 3 where a in 0:4, b in 0:4, c in 0:4, d in 0:4
           t[a, b, c, d] = exp(w[p[r[a, b, c, d]], 0])
           y[i, j] = x[i, j] + t[i % 4, i // 4, j % 4, j // 4]""",
        [[7, 7]],
    ),
    "three indices": (
        "t[i, j, k] = exp(f32(i - j + 2 * k) / 9) where i in 0:N, j in 0:M, k in 0:4  y[i, j] = sum[k](t[i, j, k])", [[20]]
    ),
    "a comparison": (
        """t[i, j] = exp(f32(i - j) / 9) if i + 1 > j else 3 * exp(f32(j - i)) where i in 0:N, j in 0:M
           y[i, j] = x[i, j] * t[i, j]""",
        [[14]],
    ),
    "a comparison that may wrap": (
        "t[i, j] = exp(f32(i - j)) if i + p[0] > j + p[1] else 0 where i in 0:N, j in 0:M  y[i, j] = x[i, j] * t[i, j]", []
    ),
    "a result": ("y[i, j] = exp(f32(i - j) / 3)  z[i, j] = x[i, j] * y[i, j]", [[14]]),
    "a product": ("t[i, j] = exp(f32(i * j) / 9) where i in 0:N, j in 0:M  y[i, j] = x[i, j] * t[i, j]", []),
    "one index alone": ("t[i, j] = exp(f32(i - j) * f32(i)) where i in 0:N, j in 0:M  y[i, j] = x[i, j] * t[i, j]", []),
    "data of one index": ("t[i, j] = exp(f32(i - j) * x[i, 0]) where i in 0:N, j in 0:M  y[i, j] = x[i, j] * t[i, j]", []),
    "data of both": ("t[i, j] = exp(f32(i - j) * x[i, j])  y[i, j] = x[i, j] * t[i, j]", []),
    "a quotient": ("t[i, j] = exp(f32(i // 2 - j) / 9) where i in 0:N, j in 0:M  y[i, j] = x[i, j] * t[i, j]", []),
    "gaps": ("t[i, j] = exp(f32(20 * i + j) / 9) where i in 0:N, j in 0:M  y[i, j] = x[i, j] * t[i, j]", []),
    "two directions": ("t[i, j] = exp(f32((i - j) * (i + j))) where i in 0:N, j in 0:M  y[i, j] = x[i, j] * t[i, j]", []),
}  # fmt: skip


def inputs(rng) -> dict[str, np.ndarray]:
    return {
        "x": rng.normal(0, 1, (N, M)).astype(np.float32),
        "w": rng.normal(0, 1, (30, 4)).astype(np.float32),
        "p": rng.integers(0, 30, 60),
    }


def written(body: str) -> str:
    results = "y: f32[N, M], z: f32[N, M]" if "z[" in body else "y: f32[N, M]"
    head = f"op f(x: f32[{N}, {M}], w: f32[30, 4], p: i64[60]) -> ({results}) {{ "
    return head.replace("f32[N, M]", f"f32[{N}, {M}]") + body.replace("N", str(N)).replace("M", str(M)) + " }"


def by_diagonals(text: str) -> tuple[str, list[list[int]]]:
    """The program with all that has diagonals stored so, and the shapes of what is read otherwise than by diagonals."""
    with mlir.context(), ir.Location.unknown():
        module = mlir.parse(text)
        (function,) = mlir.functions(module)
        names = tuple(toeplitz_tensors(function))
        compress_toeplitz(function, names)
        module.operation.verify()
        ops = [o for o in mlir.traverse(function) if mlir.is_generic(o)]
        made = {mlir.get_string(o, "tilec.name"): list(ir.ShapedType(o.results[0].type).shape) for o in ops}
        last = [shape for name, shape in made.items() if name.partition(".")[0] in names and ".diagonals" in name]
        return mlir.text(module), last


@pytest.mark.parametrize("case", FORMS)
def test_one_element_for_each_diagonal_gives_the_same_bits(case, rng):
    body, shapes = FORMS[case]
    arrays = inputs(rng)
    _, result = lowered(written(body), None, arrays, target="cpu", end="simplify", emit=False)
    text, found = by_diagonals(result.texts["simplify"])
    assert found == shapes
    before, after = (interpret(t, arrays) for t in (result.texts["simplify"], text))
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)
    assert_within(written(body), arrays, list(after.values()), kind="cpu")


def test_an_operand_that_is_not_read_has_no_diagonals():
    with mlir.context(), ir.Location.unknown():
        module = mlir.parse("""
            #m = affine_map<(i, j) -> (i, j)>
            func.func @f(%x: tensor<6x9xf32>) -> tensor<6x9xf32> {
              %e = tensor.empty() : tensor<6x9xf32>
              %t = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
                  ins(%x : tensor<6x9xf32>) outs(%e : tensor<6x9xf32>) attrs = {tilec.name = "t"} {
              ^bb0(%a: f32, %o: f32):
                %i = linalg.index 0 : index
                %j = linalg.index 1 : index
                %d = arith.subi %i, %j : index
                %w = arith.index_cast %d : index to i64
                %r = arith.sitofp %w : i64 to f32
                linalg.yield %r : f32
              } -> tensor<6x9xf32>
              %y = linalg.generic {indexing_maps = [#m, #m, #m], iterator_types = ["parallel", "parallel"]}
                  ins(%x, %t : tensor<6x9xf32>, tensor<6x9xf32>) outs(%e : tensor<6x9xf32>) attrs = {tilec.name = "y"} {
              ^bb0(%a: f32, %b: f32, %o: f32):
                %r = arith.addf %a, %b : f32
                linalg.yield %r : f32
              } -> tensor<6x9xf32>
              return %y : tensor<6x9xf32>
            }""")
        (function,) = mlir.functions(module)
        assert toeplitz_tensors(function) == {"t": ("t",)}
        compress_toeplitz(function, ["t"])
        assert "tensor<14xf32>" in str(function)


def test_a_check_moves_to_the_diagonals(rng):
    arrays = inputs(rng)
    _, result = lowered(written(FORMS["a checked gather"][0]), None, arrays, target="cpu", end="simplify", emit=False)
    text, _ = by_diagonals(result.texts["simplify"])
    assert text.count("cf.assert") == 1
    arrays["p"][20] = 30
    with pytest.raises(CheckError, match="reads outside `w`"):
        interpret(text, arrays)


ATTENTION = """op f(q: bf16[B, N, 64], k: bf16[B, N, 64], v: bf16[B, N, 64], c: bf16[B, N, 64], r: bf16[B, N, 64], s: f32) -> (
    y: bf16[B, N, 64]
) {
    t[i, j]    = i64(ceil(log(f32(abs(i - j) + 1)) * s) * f32(sign(i - j))) where i in 0:N, j in 0:N
    a[i, j]    = clamp(t[i, j] + 32, 0, 63)
    b[i, j]    = clamp(32 - t[i, j], 0, 63)
    e[n, i, j] = sum[d](q[n, i, d] * k[n, j, d]) + f32(c[n, i, a[i, j]]) + f32(r[n, j, b[j, i]])
    p[n, i, j] = softmax[j](e[n, i, j])
    y[n, i, d] = bf16(sum[j](p[n, i, j] * v[n, j, d]) using bf16)
}"""


def test_places_of_gathers_are_stored_by_diagonals_where_that_takes_less_time():
    plan = planned(ATTENTION, None, {"B": 256, "N": 512})
    assert operations(plan, "toeplitz") == ["a", "b"]
    assert "tensor<1023xi32>" in lowered(ATTENTION, None, {"B": 256, "N": 512}, end="fuse", emit=False)[1].texts["fuse"]
    stored = planned(ATTENTION.replace("abs(i - j) + 1", "abs(i - j) + i + 1"), None, {"B": 256, "N": 512})
    assert not stored.steps("toeplitz") and stored.time_us > 1.1 * plan.time_us


def test_what_is_computed_in_its_readers_is_left_there():
    causal = """op f(x: f32[N, N]) -> (y: f32[N, N]) {
        m[i, j] = i - j >= 3 where i in 0:N, j in 0:N
        y[i, j] = x[i, j] if m[i, j] else 0
    }"""
    for target in ("cpu", "h200"):
        plan = planned(causal, None, {"N": 512}, target=target)
        assert not plan.steps("toeplitz") and plan.inlined == ("m",)


@pytest.mark.parametrize("further", ["", "z[g, h] = sum[n](t[39 - g, h, n])"])
def test_what_is_read_in_another_shape_is_stored_whole(further, rng):
    """A product reads two dimensions as one (`passes/tensor/collapsed.py`): all elements are there for it."""
    text = f"""op f(x: f32[16, 960]) -> (y: f32[16, 16]{", z: f32[40, 24]" if further else ""}) {{
        t[g, h, n] = exp(f32(g - h) / 30) * f32(n) where g in 0:40, h in 0:24, n in 0:16
        y[m, n] = sum[k](x[m, k] * t[k // 24, k % 24, n])
        {further}
    }}"""
    arrays = {"x": rng.normal(0, 1, (16, 960)).astype(np.float32)}
    _, result = lowered(text, None, arrays, rewritten(toeplitz=True), texts=True)
    assert "collapse_shape" in result.texts["plan"] and operations(result.plan, "toeplitz") == ["t"] * bool(further)
    assert_within(text, arrays, list(interpret(result.texts["map"], arrays).values()))


def test_a_slab_that_is_the_same_along_diagonals(rng):
    """It is stored into a tensor as a whole (`passes/tensor/slice_updates.py`)."""
    text = """op f(c: f32[40, 30, 20], p: i64) -> (n: f32[40, 30, 20]) {
        n[b, i, j] = exp(f32(i - j) / 9) if b == p else c[b, i, j]
    }"""
    arrays = {"c": rng.normal(0, 1, (40, 30, 20)).astype(np.float32), "p": np.int64(7)}
    with mlir.context(), ir.Location.unknown():
        result = lower(build(specialised(text), [(0, 0)]), load("h200"))
    assert not result.emitted.reads(0)
    assert_within(text, arrays, list(interpret(result.texts["fuse"], arrays).values()))


def test_a_schedule_with_toeplitz_is_obeyed(tmp_path):
    given = {"B": 256, "N": 512}
    specialised, first = lowered(ATTENTION, None, given, end="plan", emit=False)
    path = tmp_path / "a.sched.toml"
    path.write_text(write_schedule(first.plan, specialised))
    _, second = lowered(ATTENTION, None, given, schedule=read_schedule(path), end="plan", emit=False)
    assert second.plan.rewrites == first.plan.rewrites and operations(first.plan, "toeplitz") == ["a", "b"]
    assert [k.nodes for k in second.plan.kernels] == [k.nodes for k in first.plan.kernels]


@pytest.mark.parametrize("target", ["cpu", "a100", "h200"])
def test_attention_that_gathers_by_diagonals(target, rng):
    arrays = {n: rng.normal(0, 1, (2, 80, 64)).astype(BF16.numpy) for n in "qkvcr"} | {"s": np.float32(3.3)}
    _, result = lowered(ATTENTION, None, arrays, target=target)
    assert operations(result.plan, "toeplitz") == ["a", "b"]
    if target == "cpu":
        out = tilec.compile(ATTENTION, target="cpu")(*arrays.values())
    else:
        (out,) = interpret(result.texts["map"], arrays).values()
    assert_within(ATTENTION, arrays, out, kind="cpu" if target == "cpu" else "cuda")


@pytest.mark.parametrize("target", ["cpu", "h200"])
def test_compiled_kernels_read_by_diagonals(target, rng, tmp_path):
    """A bias by buckets of distances, as T5 has it, whether it pays or not."""
    text = """op bias(x: f32[B, H, N, N], w: f32[32, H]) -> (y: f32[B, H, N, N]) {
        d[i, j] = min(i64(log(f32(abs(i - j) + 1)) * 4), 15) + (16 if i > j else 0) where i in 0:N, j in 0:N
        t[i, j, h] = w[d[i, j], h]
        y[b, h, i, j] = x[b, h, i, j] + t[i, j, h]
    }"""
    arrays = {"x": rng.normal(0, 1, (2, 2, 40, 40)).astype(np.float32), "w": rng.normal(0, 1, (32, 2)).astype(np.float32)}
    _, result = lowered(text, None, arrays, rewritten(toeplitz=["t"]), target)
    assert operations(result.plan, "toeplitz") == ["t"]
    out = np.zeros((2, 2, 40, 40), np.float32)
    if target == "cpu":
        op = tilec.compile(text, target="cpu", schedule=schedule_file(tmp_path, result.plan, toeplitz=["t"]))
        out = op(*arrays.values())
        assert operations(op.plan, "toeplitz") == ["t"]
    else:
        assert not any(cuda_emulator.run(result.emitted, list(arrays.values()), [out]))
    assert_within(text, arrays, out, kind="cpu" if target == "cpu" else "cuda")
