"""Traversal of graphs: memory, producers and readers of nodes."""

from __future__ import annotations

import operator

import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from tilec.torch import aliases  # noqa: E402

aten = torch.ops.aten


def function(x, y):
    rows = x.view(2, 6).t()
    low, high = rows.split(3)
    values, _ = (low + 1).max(0)
    y.copy_(values)
    return high.exp() + y.sum()


@pytest.fixture(scope="module")
def nodes():
    """By name, of a graph with views of views, a part, one of two results, and a write."""
    graph = make_fx(function, tracing_mode="fake")(torch.randn(3, 4), torch.randn(2)).graph
    return {n.name: n for n in graph.nodes}


def names(found):
    return [n.name for n in found]


def test_memory_is_that_of_what_views_show(nodes):
    x = nodes["x_1"]
    getitem = [n for n in nodes.values() if n.target is operator.getitem]
    assert [aliases.memory(nodes[n]) for n in ("view", "t", "split")] == [x] * 3
    parts = [n for n in getitem if aliases.maker(n) is nodes["split"]]
    assert parts and all(aliases.memory(n) is x for n in parts)
    values, _ = (n for n in getitem if aliases.maker(n) is nodes["max_1"])
    assert aliases.memory(values) is values and aliases.memory(nodes["add"]) is nodes["add"]


def test_what_operations_do(nodes):
    assert [n for n, node in nodes.items() if aliases.writes(node)] == ["copy_"]
    assert not any(map(aliases.draws, nodes.values())) and not any(map(aliases.is_opaque, nodes.values()))
    assert aliases.is_pointwise(nodes["exp"]) and not aliases.is_pointwise(nodes["t"])
    graph = torch.fx.Graph()
    x = graph.placeholder("exp")  # the name of an input says nothing
    drawn, called = graph.call_function(aten.rand_like.default, (x,)), graph.call_function(print, (x,))
    size = graph.call_function(operator.mul, (x, 2))
    assert [aliases.draws(n) for n in (x, drawn, called, size)] == [False, True, True, False]
    assert [aliases.writes(n) for n in (x, drawn, called, size)] == [False, False, True, False]
    assert not aliases.is_view(x) and not aliases.is_view(called)


def test_readers_by_views_and_without_them(nodes):
    x = nodes["x_1"]
    found = names(aliases.reached(x))
    assert found[:2] == ["view", "t"] and {"split", "add", "exp"} <= {*found}
    assert {*names(aliases.readers(x))} == {"add", "exp"}
    assert names(aliases.readers(x, lambda n: False)) == ["view"]
    assert names(aliases.only_readers(x))[:3] == ["view", "t", "split"]


def test_producers(nodes):
    total = nodes["exp"]
    assert {*names(aliases.ancestors([total]))} >= {"exp", "split", "t", "view", "x_1"}
    assert {*names(aliases.ancestors([total], lambda n: n.target is operator.getitem))} == {"exp", aliases.source(
        total.args[0], lambda n: False).name, "split"}  # fmt: skip
    assert aliases.source(total.args[0], aliases.is_view) is nodes["x_1"]


def test_what_is_computed_comes_behind_what_it_reads(nodes):
    done: list = []
    for n in aliases.behind_inputs(nodes["exp"], done):
        assert all(m in done for m in n.all_input_nodes)
        done.append(n)
    assert done[0].name == "x_1" and done[-1].name == "exp" and len(done) == len({*done})
    assert list(aliases.behind_inputs(nodes["exp"], done)) == []
    assert names(aliases.behind_inputs(nodes["exp"], [], lambda n: ())) == ["exp"]


def test_arguments_have_the_schemas_defaults():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(aten.add.Tensor, (x,), {"other": 2})
    assert aliases.arguments(node) == {"self": x, "other": 2, "alpha": 1}
    assert aliases.arguments(graph.call_function(aten.sort.default, (x,))) == {"self": x, "dim": -1, "descending": False}
