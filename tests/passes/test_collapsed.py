"""Sums of products that read two dimensions of a tensor as one: of the tensor in another shape, whose lines hardware copies."""

import numpy as np
import pytest
from conftest import assert_within
from tools.contractions import check, mma
from tools.emulation import run_printed
from tools.lowering import lowered, planned

import tilec
from tilec.core.dtypes import DTYPES
from tilec.semantics.interpreter import interpret

# scales by groups keep the two dimensions of t apart
GROUPS = """op f(x: bf16[M, G, H], s: bf16[G], w: bf16[N, G * H]) -> (y: f32[M, N]) {{
    t[i, g, h]: bf16 = x[i, g, h] * s[g]
    y[i, n] = sum[k in 0:G * H](t[i, k // {H}, k % {H}] * w[n, k])
}}"""
RETURNED = GROUPS.replace("(y: f32[M, N])", "(y: f32[M, N], t: bf16[M, G, H], z: f32[M])").replace(
    "\n}}", "\n    z[i] = sum[k in 0:G * H](t[i, k // {H}, k % {H}] * w[0, k])\n}}"
)
TILES = [mma(), ("wgmma", 64, 128, 64, (4, 1))]
STAGES = ("simplify", "plan", "fuse", "tile", "bufferize", "stage", "map")


def drawn(rng, m=5, g=3, h=8, n=16):
    shapes = {"x": (m, g, h), "s": (g,), "w": (n, g * h)}
    return {name: rng.standard_normal(shape).astype(DTYPES["bf16"].numpy) for name, shape in shapes.items()}


def shapes_of(result) -> int:
    return result.texts["simplify"].count("tensor.collapse_shape")


@pytest.mark.parametrize("tile", TILES)
def test_a_factor_is_copied_as_one_line(tile, monkeypatch):
    def expected(x, s, w):
        return np.einsum("mk,nk->mn", (x * s[:, None]).reshape(len(x), -1), w)

    sizes = {"M": 20, "N": 48, "G": 3, "H": 24}
    result = check(GROUPS.replace("{H}", "24"), ("bf16", "bf16", "bf16"), sizes, tile, expected, monkeypatch, texts=True)
    assert shapes_of(result) == 1
    assert set(result.plan.kernels[-1].options.copies) == {"tma" if tile[0] == "wgmma" else "async"}


@pytest.mark.parametrize("text", [GROUPS, RETURNED])
@pytest.mark.parametrize("target", ["h200", "cpu"])
def test_all_stages_and_the_cpu_agree(text, target, rng):
    text, inputs = text.format(H=8), drawn(rng)
    _, result = lowered(text, None, inputs, target=target, texts=True)
    assert shapes_of(result) == 1
    kind = "cuda" if target == "h200" else "cpu"
    for stage in STAGES:
        assert_within(text, inputs, list(interpret(result.texts[stage], inputs).values()), kind=kind)
    if target == "cpu":
        made = tilec.compile(text)(*inputs.values())
        assert_within(text, inputs, list(made) if isinstance(made, tuple) else [made])


@pytest.mark.parametrize(
    "text",
    [
        GROUPS.replace("k % {H}", "k % {H} // 2"),  # another order
        GROUPS.replace("k // {H}", "k // {H} * 2 % 3"),
        GROUPS.replace("0:G * H", "0:G * H - 1"),  # not all of the tensor
        GROUPS.replace("t[i, k // {H}, k % {H}]", "t[i, k % {G}, k // {G}]"),  # the second dimension goes slower
    ],
)
def test_others_are_read_as_they_were(text, rng):
    text, inputs = text.replace("{G}", "3").format(H=8), drawn(rng)
    _, result = lowered(text, None, inputs, texts=True)
    assert shapes_of(result) == 0
    assert_within(text, inputs, list(interpret(result.texts["map"], inputs).values()), kind="cuda")


def test_a_convolution_behind_a_grouped_one_multiplies_by_warpgroups():
    """Threads loaded elements at computed subscripts before: 135 us for the 12 us of the last kernel, on an H200."""
    plan = planned("""op f(x: bf16[64, 28, 28, 216], v: bf16[216, 3, 3, 24], w: bf16[216, 216]) -> (y: bf16[64, 28, 28, 216]) {
        g[n, h, l, i, j]: f32 = sum[c in 0:24, r in 0:3, s in 0:3](
            pad(x[n, h + r - 1, l + s - 1, i * 24 + c], 0) * v[i * 24 + j, r, s, c]
        ) where n in 0:64, h in 0:28, l in 0:28, i in 0:9, j in 0:24
        t[n, h, l, i, j]: bf16 = relu(g[n, h, l, i, j])
        y[n, h, l, o] = sum[c in 0:216](t[n, h, l, c // 24, c % 24] * w[o, c])
    }""", None, {})
    assert set(plan.kernels[-1].options.copies) == {"tma"}


LINEAR = """op f(x: f32[M, 8, 3, 5], w: f32[N, 120], b: f32[N]) -> (y: f32[M, N]) {{
    t[i, c, h, l] = max(x[i, c, h, l], 0)
    y[i, n] = sum[{k}]({left} * {right}) + b[n]
}}"""
K, AT = "c in 0:8, h in 0:3, l in 0:5", "w[n, c * 15 + h * 5 + l]"
LAYERS = {  # how many tensors are shown in another shape
    "behind images": (K, "t[i, c, h, l]", AT, 2),
    "whose factors are the other way round": (K, AT, "t[i, c, h, l]", 2),
    "that reads an index again": (K, "t[i, c, h, l] * (l + 1)", AT, 2),
    "of two indices": ("h in 0:3, l in 0:5", "t[i, 2, h, l]", "w[n, h * 5 + l]", 0),  # not all of the line
    "of images in another order": (K, "t[i, c, h, l]", "w[n, h * 40 + l * 8 + c]", 0),
    "with steps": (K, "t[i, c, h, l]", "w[n, c * 13 + h * 5 + l]", 0),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("target", ["cpu", "h200"])
def test_a_linear_layer_sums_along_one_index(name, target, rng):
    k, left, right, shown = LAYERS[name]
    text = LINEAR.format(k=k, left=left, right=right)
    shapes = {"x": (2, 8, 3, 5), "w": (6, 120), "b": (6,)}
    inputs = {n: rng.standard_normal(shape, dtype=np.float32) for n, shape in shapes.items()}
    _, result = lowered(text, None, inputs, target=target, texts=True)
    assert shapes_of(result) == shown
    kind = "cuda" if target == "h200" else "cpu"
    for stage in STAGES:
        assert_within(text, inputs, list(interpret(result.texts[stage], inputs).values()), kind=kind)


TWICE = """op f(x: f32[M, A, B, C, D], u: f32[B], v: f32[D], w: f32[N, A * B, C * D]) -> (t: f32[M, A, B, C, D], y: f32[M, N]) {
    t[i, a, b, c, d] = x[i, a, b, c, d] * u[b] * v[d]
    y[i, n] = sum[k in 0:A * B, l in 0:C * D](t[i, k // B, k % B, l // D, l % D] * w[n, k, l])
}"""


@pytest.mark.parametrize("target", ["cpu", "h200"])
def test_a_shape_of_a_shape_follows_what_it_shows(target, rng):
    """Both are moved behind the kernel that stores what they show (found in gradients of ResNets and DenseNets)."""
    shapes = {"x": (5, 4, 3, 2, 6), "u": (3,), "v": (6,), "w": (7, 12, 12)}
    inputs = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    op = tilec.compile(TWICE, target=target, sizes=dict(M=5, A=4, B=3, C=2, D=6, N=7))
    found = op.interpret("map", *inputs.values())
    assert op.stages["simplify"].count("tensor.collapse_shape") >= 2
    assert_within(TWICE, list(inputs.values()), list(found), kind="cuda" if target == "h200" else "cpu")


GROUPED = {
    "group norm": """op f(x: f32[B, 24, H], w: f32[24]) -> (y: f32[B, 3, 8, H]) {
        m[b, g] = mean[c in 0:8, h](x[b, g * 8 + c, h])
        v[b, g] = mean[c in 0:8, h]((x[b, g * 8 + c, h] - m[b, g]) ** 2)
        y[b, g, c, h] = (x[b, g * 8 + c, h] - m[b, g]) * rsqrt(v[b, g] + 1e-5) * w[g * 8 + c] where g in 0:3, c in 0:8
    }""",
    "the last dimension": "op f(x: f32[B, 24, H], w: f32[24]) -> (y: f32[3]) { y[g] = sum[c in 0:8](w[g * 8 + c]) where g in 0:3 }",
    "products of the same place": """op f(x: f32[B, 24, H], w: f32[24]) -> (y: f32[B, 3]) {
        y[b, g] = sum[c in 0:8, h](x[b, g * 8 + c, h] * w[g * 8 + c]) where g in 0:3
    }""",
    "of a result": """op f(x: f32[B, 24, H], w: f32[24]) -> (t: f32[B, 24, H], y: f32[B, 3]) {
        t[b, d, h] = x[b, d, h] * w[d]
        y[b, g] = max[c in 0:8, h](t[b, g * 8 + c, h]) where g in 0:3
    }""",
}


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("target", ["h200", "cpu"])
def test_groups_are_read_at_bare_indices(name, target, rng):
    """One dimension that is read at two is shown as two: no access is computed."""
    text = GROUPED[name]
    inputs = {"x": rng.standard_normal((2, 24, 5)).astype(np.float32), "w": rng.standard_normal(24).astype(np.float32)}
    special, result = lowered(text, None, inputs, target=target, texts=True)
    assert "tensor.expand_shape" in result.texts["simplify"] and "tensor.extract" not in result.texts["simplify"]
    kind = "cuda" if target == "h200" else "cpu"
    for stage in STAGES:
        assert_within(text, inputs, list(interpret(result.texts[stage], inputs).values()), kind=kind)
    if target == "h200":
        assert_within(text, inputs, run_printed(special, result, inputs)[0], kind=kind)
