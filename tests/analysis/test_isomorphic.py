"""What is found for a kernel holds for isomorphic ones, and for no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tools import lowering

from tilec.analysis.graph import Graph, build_graph
from tilec.core import mlir
from tilec.core.structure import structure_of
from tilec.plan.cuda import choose

PAIR = """op f(x: f32[8, 16], w: f32[16, 4], u: f32[8, 16], v: f32[16, 4]) -> (y: f32[8, 4], z: f32[8, 4]) {{
  a[i, j] = exp(x[i, j]) - 1.5
  y[i, n] = sum[j](a[i, j] * w[j, n])
  b[k, l] = {b}
  z[k, m] = {z}
}}"""
SAME = {"b": "exp(u[k, l]) - 1.5", "z": "sum[l](b[k, l] * v[l, m])"}


@contextmanager
def graph_of(text: str) -> Iterator[Graph]:
    texts = lowering.lowered(text, "f", end="simplify")[1].texts
    with mlir.context():
        module = mlir.parse(texts["simplify"])  # which must outlive the graph
        yield build_graph(mlir.functions(module)[0])


def keys(graph: Graph) -> list:
    by_name = {n.name: n for n in graph.nodes}
    pairs = (("a", "y"), ("b", "z"))
    return [graph.key([by_name[m] if m in by_name else by_name[f"{m}.sum"] for m in pair]) for pair in pairs]


def test_names_and_places_in_the_text_make_no_difference():
    with graph_of(PAIR.format(**SAME)) as graph:
        first, second = keys(graph)
        assert first == second


@pytest.mark.parametrize(
    "changed",
    [
        {"b": "exp(u[k, l]) - 2.5"},
        {"b": "exp(u[k, l]) - 1.5 if l < 4 else 0.0"},
        {"b": "exp(a[k, l]) - 1.5"},  # a, which the first kernel makes, then leaves it
        {"z": "sum[l](b[k, l] * (v[l, m] + b[k, l]))"},
        {"z": "max[l](b[k, l] * v[l, m])"},
        {"z": "sum[l](b[k, l] * w[l, m]) + 0.0 * y[k, m]"},
    ],
)
def test_what_makes_a_difference(changed):
    with graph_of(PAIR.format(**SAME | changed)) as graph:
        first, second = keys(graph)
        assert first != second


def test_one_tensor_read_twice_is_not_two_tensors():
    text = "op f(x: f32[4], w: f32[4]) -> (y: f32[4], z: f32[4]) {{ y[i] = x[i] - exp(x[i])\n z[i] = w[i] - exp({}[i]) }}"
    for name, same in (("w", True), ("x", False)):
        with graph_of(text.format(name)) as graph:
            first, second = (graph.key([n]) for n in graph.nodes)
            assert (first == second) == same


def test_structures_are_of_operations_without_their_names():
    text = """op f(x: f32[4], w: f32[4]) -> (y: f32[4], z: f32[4], u: f32[4]) {
      y[i] = x[i] + 1.0\n z[j] = w[j] + 1.0\n u[i] = x[i] + 2.0 }"""
    with graph_of(text) as graph:
        first, second, third = graph.nodes
        assert structure_of(first.op)[0] == structure_of(second.op)[0]
        assert first.structure == second.structure != third.structure
        assert first.facts is second.facts and first.extents == second.extents


def test_a_reason_that_names_others_says_whose_it_is():
    with graph_of("op f(x: f32[4]) -> (y: f32[4], z: f32[4]) { y[i] = x[i] + 1.0\n z[j] = exp(x[j]) }") as graph:
        found = graph.memoise("why", graph.nodes, lambda: "y reads a tensor")
    assert found.reason(found.result, ["y", "z"]) == "y reads a tensor"
    assert found.reason(found.result, ["u", "v"]) == "as for y with z: y reads a tensor"
    assert found.reason("no tile fits", ["u", "v"]) == "no tile fits"


def layers(count: int) -> str:
    lines = [f"h{n}[i, k] = max(sum[j](h{n - 1}[i, j] * w{n}[j, k]) + b{n}[k], 0.0)" for n in range(1, count + 1)]
    weights = ", ".join(f"w{n}: f32[256, 256], b{n}: f32[256]" for n in range(1, count + 1))
    return f"op f(h0: f32[128, 256], {weights}) -> (h{count}: f32[128, 256]) {{\n" + "\n".join(lines) + "\n}"


def test_equal_layers_are_planned_once(monkeypatch):
    seen = []
    chosen = choose.choose
    monkeypatch.setattr(choose, "choose", lambda kernel, *more: seen.append(kernel.name) or chosen(kernel, *more))
    plan = lowering.lowered(layers(6), "f", target="h200", end="plan")[1].plan
    products = [k for k in plan.kernels if any(n.endswith(".sum") for n in k.nodes)]
    assert len(products) == 6 and len({k.name for k in plan.kernels}) == len(plan.kernels) > len(seen)
    assert len({re.sub(r"\d", "", repr((k.tile, k.options, k.work))) for k in products}) <= 2
    tiled = {r.subject for r in plan.remarks if r.verb == "tiled"}
    assert tiled == {k.name for k in plan.kernels}
