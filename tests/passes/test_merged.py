"""Neighbouring dimensions that a norm reduces, and along which its result is stored, become one."""

import numpy as np
import pytest
from conftest import assert_within
from tools.cuda_matrix_emulator import MatrixIntrinsics
from tools.emulation import run_printed
from tools.lowering import lowered, planned

import tilec
from tilec.semantics.interpreter import interpret

STAGES = ("simplify", "plan", "fuse", "tile", "bufferize", "stage", "map")
X = "x: f32[N, C, H, W]"
MERGED = {
    "less its mean": f"op f({X}) -> (y: f32[N, C, H, W]) {{ y[n, c, h, w] = x[n, c, h, w] - mean[p, q](x[n, c, p, q]) }}",
    "instance norm": f"""op f({X}) -> (y: f32[N, C, H, W]) {{
        m[n, c] = mean[h, w](x[n, c, h, w])
        v[n, c] = mean[h, w]((x[n, c, h, w] - m[n, c]) ** 2)
        y[n, c, h, w] = (x[n, c, h, w] - m[n, c]) * rsqrt(v[n, c] + 1e-5)
    }}""",
    "three dimensions": f"""op f({X}, g: f32[C, H, W]) -> (y: f32[N, C, H, W]) {{
        m[n] = mean[c, h, w](x[n, c, h, w])
        y[n, c, h, w] = (x[n, c, h, w] - m[n]) * g[c, h, w]
    }}""",
    "an intermediate": f"""op f({X}) -> (y: f32[N, C, H, W], t: f32[N, C, H, W]) {{
        t[n, c, h, w] = exp(x[n, c, h, w])
        y[n, c, h, w] = t[n, c, h, w] / sum[p, q](t[n, c, p, q])
    }}""",
    "rows of all positions": """op f(x: f32[N, 3, 5, 8], g: f32[C, H, W]) -> (y: f32[N, 3, 5, 8]) {
        t[n, c, h, w] = x[n, c, h, w] + 0 * x[n, 2 - c, h, w]
        s[n, k] = softmax[k](t[n, k // 40, k // 8 % 5, k % 8]) where k in 0:120
        y[n, c, h, w] = s[n, c * 40 + h * 8 + w] * g[c, h, w] where c in 0:3, h in 0:5, w in 0:8
    }""",
    "a convolution's result": f"""op f({X}, k: f32[4, C, 3, 3], b: f32[4]) -> (y: f32[N, 4, H, W]) {{
        s[n, o, h, w] = sum[c, p, q](pad(x[n, c, h + p - 1, w + q - 1], 0) * k[o, c, p, q]) where h in 0:H, w in 0:W
        t[n, o, h, w] = abs(s[n, o, h, w] + b[o])
        y[n, o, h, w] = t[n, o, h, w] / sum[p, q](t[n, o, p, q])
    }}""",
    "groups": """op f(x: f32[N, 6, H, W]) -> (y: f32[N, 2, 3, H, W]) {
        y[n, g, c, h, w] = x[n, g * 3 + c, h, w] / (1 + max[p, q](abs(x[n, g * 3 + c, p, q]))) where g in 0:2, c in 0:3
    }""",
}
SEPARATE = {
    "another reads one of them": f"""op f({X}, g: f32[W]) -> (y: f32[N, C, H, W]) {{
        y[n, c, h, w] = x[n, c, h, w] * g[w] - mean[p, q](x[n, c, p, q])
    }}""",
    "places": f"op f({X}) -> (y: f32[N, C, H, W]) {{ y[n, c, h, w] = x[n, c, h, w] * h - mean[p, q](x[n, c, p, q]) }}",
    "nothing is stored of them": f"op f({X}) -> (y: f32[N, C]) {{ y[n, c] = mean[p, q](x[n, c, p, q]) }}",
    "transposed": f"op f({X}) -> (y: f32[N, C, W, H]) {{ y[n, c, w, h] = x[n, c, h, w] - mean[p, q](x[n, c, p, q]) }}",
    "not neighbours": f"op f({X}) -> (y: f32[N, C, H, W]) {{ y[n, c, h, w] = x[n, c, h, w] - mean[d, q](x[n, d, h, q]) }}",
    "windows": f"""op f({X}) -> (y: f32[N, C, H, W]) {{
        y[n, c, h, w] = pad(x[n, c, h + 1, w], 0) - mean[p, q](x[n, c, p, q])
    }}""",
}


def drawn(text: str, rng) -> dict[str, np.ndarray]:
    shapes = {"x": (2, 6, 5, 8) if "N, 6" in text else (2, 3, 5, 8)}
    shapes |= {"k": (4, 3, 3, 3), "b": (4,)} if "k: f32" in text else {}
    shapes |= {"g": (8,)} if "f32[W]" in text else {"g": (3, 5, 8)} if "f32[C, H, W]" in text and "g:" in text else {}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def is_merged(text: str) -> bool:
    return "tensor.collapse_shape" in text


@pytest.mark.parametrize("name", [*MERGED, *SEPARATE])
@pytest.mark.parametrize("target", ["h200", "cpu"])
def test_values(name, target, rng):
    text = (MERGED | SEPARATE)[name]
    inputs, kind = drawn(text, rng), "cuda" if target == "h200" else "cpu"
    special, result = lowered(text, None, inputs, target=target, texts=True)
    assert is_merged(result.texts["simplify"]) == (name in MERGED)
    for stage in STAGES:
        assert_within(text, inputs, list(interpret(result.texts[stage], inputs).values()), kind=kind)
    if target == "h200":
        outputs, failed = run_printed(special, result, inputs, MatrixIntrinsics)
        assert not any(failed)
        assert_within(text, inputs, outputs, kind=kind)


@pytest.mark.parametrize("name", MERGED)
def test_results_have_the_shapes_of_the_source(name, rng):
    text = MERGED[name]
    inputs = drawn(text, rng)
    made = tilec.compile(text)(*inputs.values())
    assert_within(text, inputs, list(made) if isinstance(made, tuple) else [made])


def test_blocks_of_a_cluster_keep_an_image():
    """One that no block has room for: memory is read once."""
    (kernel,) = planned(MERGED["instance norm"], None, {"N": 64, "C": 64, "H": 512, "W": 512}).kernels
    assert kernel.options.cluster > 1
    assert kernel.work.dram_read == 4 * 64 * 64 * 512 * 512


def test_longer_rows_than_a_cluster_keeps_are_left():
    _, result = lowered(MERGED["instance norm"], None, {"N": 4, "C": 4, "H": 2048, "W": 1024}, end="simplify", emit=False)
    assert not is_merged(result.texts["simplify"])
