"""Operations that cannot share a kernel, because of what other kernels are made of, or since a kernel's factors are loaded."""

from __future__ import annotations

import pytest
from tools.lowering import lowered, planned

from tilec.analysis.graph import build_graph
from tilec.analysis.space import Space
from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.core.targets import load
from tilec.plan.groups import Group, Kernels
from tilec.plan.legality import refuse

TEXT = """op f(x: f32[M, N], z: f32[M, N]) -> (c: f32[M], d: f32[M]) {
    a[i] = sum[j](x[i, j])
    b[i] = sum[j](z[i, j])
    c[i] = a[i] - b[i]
    d[i] = a[i] * b[i]
}
"""


@pytest.mark.parametrize(
    "together, other, reason",
    [
        ("ac", "", None),
        ("ac", "b", None),  # it runs first
        ("ac", "bd", "b, in another kernel, must run between them"),  # d is behind them all, and b with it
        ("bd", "ac", "a, in another kernel, must run between them"),
        ("abc", "", None),
        ("ad", "c", None),
        ("cd", "ab", None),
    ],
)
@pytest.mark.parametrize("all_known", [False, True])
def test_a_kernel_runs_as_a_whole(together, other, reason, all_known):
    """Where all operations have a kernel, what follows each is known, and no way is looked for."""
    _, result = lowered(TEXT, None, {"M": 8, "N": 16}, target="cpu", end="simplify", emit=False)
    with mlir.context(), ir.Location.unknown():
        module = mlir.parse(result.texts["simplify"])
        graph = build_graph(mlir.functions(module)[0])
        nodes = {n.name: n for n in graph.nodes}
        kernels = Kernels(graph)
        kernels.add([Group([nodes[n] for n in other], Space([], {}, {}, ()))])
        if all_known:
            kernels.add([Group([node], Space([], {}, {}, ())) for name, node in nodes.items() if name not in other])
        found = refuse([nodes[n] for n in together], graph, kernels, load("cpu"))
        assert (kernels.behind([nodes[n] for n in together]) is not None) == all_known
    assert (found if isinstance(found, str) else None) == reason


def test_a_product_that_reads_no_other_is_no_part_of_a_chain():
    text = """op f(a: f32[M, K], b: f32[K, N], u: f32[M, N], v: f32[N, L]) -> (e: f32[M, L], d: f32[M, L]) {
        c[i, j] = sum[k](a[i, k] * b[k, j])
        e[i, l] = sum[j](c[i, j] * v[j, l])
        d[i, l] = sum[j](u[i, j] * v[j, l])
    }"""
    _, result = lowered(text, None, {"M": 64, "N": 64, "K": 64, "L": 64}, target="cpu", end="simplify", emit=False)
    with mlir.context(), ir.Location.unknown():
        module = mlir.parse(result.texts["simplify"])
        graph = build_graph(mlir.functions(module)[0])
        found = refuse(graph.nodes, graph, Kernels(graph), load("cpu"))
    assert found == "both are contractions, and the tile that one writes is not the tile that the other reads"


ATTENTION = """op f(q: bf16[H, S, D], k: bf16[H, T, D], v: bf16[H, T, D]) -> (o: bf16[H, S, D]) {
    c[h, j, d] = bf16(k[h, j, d] * 2)
    s[h, i, j] = sum[d](q[h, i, d] * c[h, j, d])
    p[h, i, j] = softmax[j](s[h, i, j])
    o[h, i, d] = sum[j](bf16(p[h, i, j]) * v[h, j, d])
}
"""


@pytest.mark.parametrize("target, stored", [("h200", True), ("cpu", False)])
def test_factors_of_a_chain_are_loaded_on_a_gpu_and_computed_on_a_cpu(target, stored):
    """What is computed by copies of tiles in SRAM would be computed by no thread; a CPU's panels are packed by any operations."""
    plan = planned(ATTENTION, None, {"H": 16, "S": 2048, "T": 2048, "D": 64}, target)
    assert sum("s" in k.nodes and "o" in k.nodes for k in plan.kernels) == 1
    assert any(k.nodes == ("c",) for k in plan.kernels) is stored
    message = "multiplies tiles that are loaded, and not computed"
    assert any(message in r.reason for r in plan.remarks if r.subject == "c") is stored
