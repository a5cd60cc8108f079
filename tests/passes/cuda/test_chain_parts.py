"""Contraction chains for CUDA whose rows several blocks share, each with a part of the elements. Results are within the program's
error bounds."""

import numpy as np
import pytest
from tools.attention_programs import PROGRAMS, SIZES, two_results
from tools.chains import check, warps
from tools.contractions import arrays_of
from tools.lowering import planned

from tilec.core.diagnostics import Source
from tilec.cost.chain import ChainTile
from tilec.kernels import ContractionChain

PARTS = [
    warps(16, 16, parts=3), warps(16, 32, parts=4), ChainTile(64, 32, 2, 168, 0, ping_pong=False, parts=5),
    warps(128, 16, 1, 32, parts=2), ChainTile(64, 16, 2, 168, 0, ping_pong=False, parts=3), ChainTile(128, 32, 2, 168, 0, parts=2),
]  # fmt: skip


@pytest.mark.crossed
@pytest.mark.parametrize("tile", [
    pytest.param(tile, id=name, marks=[pytest.mark.slow] * (name in ("empty", "wgmma")))
    for name, tile in zip(("a warp", "empty", "empty, wgmma", "tall warps", "wgmma", "ping-pong"), PARTS)
])  # fmt: skip
@pytest.mark.parametrize("name", PROGRAMS)
def test_blocks_that_share_rows(name, tile, monkeypatch):
    """Each has a part of the elements; a kernel combines their states, of which some have seen nothing."""
    check(PROGRAMS[name], SIZES, tile, monkeypatch)


def test_printed_parts(monkeypatch):
    check(PROGRAMS["causal"], SIZES | {"B": 2, "S": 18, "E": 72}, warps(16, 16, parts=3), monkeypatch, printed=True)


def test_parts_of_grouped_heads(monkeypatch):
    """Two dimensions of rows, of which a block has a box."""
    text = """op f(q: bf16[H, S, G, D], k: bf16[H, T, D], v: bf16[H, T, D]) -> (o: bf16[H, S, G, D]) {
    s[h, i, g, j] = sum[d](q[h, i, g, d] * k[h, j, d]) / 8
    p[h, i, g, j] = softmax[j](s[h, i, g, j])
    o[h, i, g, d] = sum[j](p[h, i, g, j] * v[h, j, d]) using bf16
}"""
    for tile in (warps(16, 16, parts=2), warps(32, 16, parts=3)):
        check(text, {"H": 2, "S": 5, "G": 3, "T": 50, "D": 20}, tile, monkeypatch)


VECTORS = {
    "heads": ("q: bf16[B, H, D], k: bf16[B, H, T, D], v: bf16[B, H, T, D]", "b, h", "b, h"),
    "heads that share keys": ("q: bf16[B, H, D], k: bf16[B, G, T, D], v: bf16[B, G, T, D]", "b, h", "b, h // (H // G)"),
    "a dimension of one": ("q: bf16[B, H, 1, D], k: bf16[B, H, T, D], v: bf16[B, H, T, D]", "b, h, i", "b, h"),
}


FLAT_QUERIES = {
    "heads in a dimension with columns": ("q: bf16[B, H * D]", "b, h * D + d"),
    "a part of such a dimension": ("q: bf16[B, 3 * H * D]", "b, h * D + d + H * D"),
    "of one sequence": ("q: bf16[1, H * D]", "0, h * D + d"),
    "a part of one sequence": ("q: bf16[1, 3 * H * D]", "0, h * D + d + H * D"),
}
"""Queries whose tensor has no dimension of heads."""


def of_one_flat_query(name: str) -> str:
    """Attention of a single query, with a mask in memory, values that a cache has room for, and scores of -inf."""
    tensor, subscripts = FLAT_QUERIES[name]
    return f"""op f({tensor}, k: bf16[B, H, T, D], v: bf16[B, T, H * D], keep: bool[B, T]) -> (o: bf16[B, H, D]) {{
    s[b, h, j] = sum[d](q[{subscripts}] * k[b, h, j, d]) / 4
    t[b, h, j] = s[b, h, j] + (0.0 if keep[b, j] else -inf)
    p[b, h, j] = softmax[j](t[b, h, j])
    o[b, h, d] = sum[j](p[b, h, j] * v[b, j, h * D + d]) using bf16
}}"""


def of_one_query(name: str) -> str:
    """Attention of a single query: products of vectors."""
    inputs, row, key = VECTORS[name]
    return f"""op f({inputs}) -> (o: bf16[B, H{", 1" if "i" in row else ""}, D]) {{
    s[{row}, j] = sum[d](q[{row}, d] * k[{key}, j, d]) / 4
    p[{row}, j] = softmax[j](s[{row}, j])
    o[{row}, d] = sum[j](p[{row}, j] * v[{key}, j, d]) using bf16
}}"""


@pytest.mark.parametrize("tile", [warps(16, 16, parts=3), ChainTile(64, 32, 2, 168, 0, ping_pong=False, parts=2)])
@pytest.mark.parametrize("name", VECTORS)
def test_one_query(name, tile, monkeypatch):
    """Products of a vector are contractions in a chain, for which they are rarely enough on their own."""
    inputs, text = VECTORS[name][0], of_one_query(name)
    check(text, {"B": 2, "H": 6, "T": 50, "D": 24} | ({"G": 2} if "G" in inputs else {}), tile, monkeypatch)


@pytest.mark.parametrize(
    ("name", "tile"), [
        *((name, warps(16, 16, parts=3)) for name in FLAT_QUERIES),
        *((name, ChainTile(64, 32, 2, 168, 0, ping_pong=False)) for name in FLAT_QUERIES if "of one" not in name),
    ]
)  # fmt: skip
def test_one_query_at_computed_subscripts(name, tile, monkeypatch):
    """No dimension of its tensor is the rows': what lies beside the query takes the place of further rows, infinities among it."""
    text, sizes = of_one_flat_query(name), {"B": 3 if "b" in FLAT_QUERIES[name][1] else 1, "H": 5, "T": 53, "D": 16}
    inputs = arrays_of(text, sizes)
    inputs[3][0, 40:], inputs[3][-1] = False, np.arange(53) == 17
    inputs[0][..., -16:] = np.inf if name == "a part of such a dimension" else inputs[0][..., -16:]
    check(text, sizes, tile, monkeypatch, inputs)


def test_one_row_without_a_box():
    """Merged with the dimension of one sequence, that of heads and columns is alone: TMA has no box of rows."""
    sizes = {"B": 1, "H": 32, "T": 8192, "D": 64}
    (kernel,) = planned(Source("t.tile", of_one_flat_query("a part of one sequence")), None, sizes).kernels
    assert isinstance(kernel.options, ContractionChain) and kernel.options.unit == "mma.sync"
    assert "a factor of one row has no dimension for the other rows of a box" in kernel.ruled_out["wgmma"]


def test_decoding_is_one_chain():
    """Of few rows over many keys: blocks share them, by whatever is written of the query; the schedule says so and is read."""
    queries = VECTORS | {name: FLAT_QUERIES[name] for name in FLAT_QUERIES if "of one" not in name}
    for name, (inputs, *_) in queries.items():
        text = of_one_query(name) if name in VECTORS else of_one_flat_query(name)
        sizes = {"B": 4, "H": 8, "T": 8192, "D": 128} | ({"G": 2} if "G" in inputs else {})
        (kernel,) = planned(Source("t.tile", text), None, sizes).kernels
        assert isinstance(kernel.options, ContractionChain) and kernel.options.blocks_per_row > 1, name


@pytest.mark.parametrize(
    ("heads", "groups", "tile"),
    [(40, 2, warps(32, 16, parts=2)), (18, 1, warps(16, 16, parts=2)), (40, 2, ChainTile(64, 32, 2, 168, 0, ping_pong=False))],
)
def test_numbers_of_heads_that_no_power_of_two_divides(heads, groups, tile, monkeypatch):
    """20 heads are a part of 32 rows; a block of 16 has some of all the heads that share keys, not of 20 of them."""
    sizes = {"B": 2, "H": heads, "T": 50, "D": 24, "G": groups}
    check(of_one_query("heads that share keys"), sizes, tile, monkeypatch)


@pytest.mark.parametrize("target", ["h200", "a100"])
@pytest.mark.parametrize(("heads", "groups"), [(40, 2), (48, 2), (71, 1), (144, 2)])
def test_blocks_hold_all_heads_that_share_keys(heads, groups, target):
    """Planning failed where 16 rows are fewer than the heads that share keys, and do not divide them."""
    sizes = {"B": 4, "H": heads, "G": groups, "T": 2048, "D": 128}
    (kernel,) = planned(Source("t.tile", of_one_query("heads that share keys")), None, sizes, target).kernels
    assert isinstance(kernel.options, ContractionChain)


def test_parts_of_lengths_that_are_data(monkeypatch):
    """Sequences of other lengths have other numbers of tiles, of which each part has its share, or none."""
    text = """op f(q: bf16[B, H, D], k: bf16[B, H, T, D], v: bf16[B, H, T, D], n: i32[B]) -> (o: bf16[B, H, D]) {
    s[b, h, j] = sum[d](q[b, h, d] * k[b, h, j, d]) / 4 if j < n[b] else -inf
    p[b, h, j] = softmax[j](s[b, h, j])
    o[b, h, d] = sum[j](p[b, h, j] * v[b, h, j, d]) using bf16
}"""
    sizes = {"B": 3, "H": 2, "T": 80, "D": 24}
    tile = warps(16, 16, parts=3)
    *factors, _ = arrays_of(text, sizes)
    check(text, sizes, tile, monkeypatch, [*factors, np.array([80, 7, 33], np.int32)])


def test_parts_of_other_results(monkeypatch):
    """Results for each row, of rows without anything, and infinities."""
    text = two_results("/ 8 if j < i - 3 else -inf")
    sizes = {"H": 2, "S": 40, "T": 50, "D": 20}
    inputs = arrays_of(text, sizes)
    check(text, sizes, warps(16, 16, parts=3), monkeypatch, inputs)
    inputs[0][0, 20, 5], inputs[1][0, 30], inputs[2][1, 3, 3] = np.inf, np.nan, np.inf
    check(text, sizes, warps(16, 16, parts=3), monkeypatch, inputs)


@pytest.mark.parametrize("tile", [warps(16, 16), warps(16, 16, parts=3)])
def test_positions_next_to_a_product(tile, monkeypatch):
    """The key that each query weighs most."""
    text = """op f(q: bf16[S, D], k: bf16[T, D], v: bf16[T, D]) -> (o: f32[S, D], n: i32[S]) {
    s[i, j] = sum[d](q[i, d] * k[j, d]) / 8
    p[i, j] = softmax[j](s[i, j])
    o[i, d] = sum[j](p[i, j] * v[j, d]) using bf16
    n[i] = i32(argmax[j](s[i, j]))
}"""
    check(text, {"S": 20, "T": 70, "D": 20}, tile, monkeypatch)
