"""What PyTorch runs in tilec's stead, and that the report tells it."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import assert_agrees, compiled  # noqa: E402

import tilec.torch  # noqa: E402
from tilec import CallError  # noqa: E402
from tilec.torch import failures, origins  # noqa: E402
from tilec.torch.aten import pools  # noqa: E402
from tilec.torch.failures import FallbackWarning  # noqa: E402
from tilec.torch.program import Unsupported  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")

F = torch.nn.functional


def test_unsupported_operations_are_run_by_pytorch_and_reported():
    assert_agrees(lambda x: torch.special.i0e(torch.exp(x)) * 2, torch.randn(4, 5))
    (graph,) = tilec.torch.report().graphs
    assert [e.operation for e in graph.eager] == ["special_i0e"] and graph.eager[0].line.startswith(
        f"{Path(__file__).name}:"
    )
    assert "1 x special_i0e" in str(tilec.torch.report())


def test_random_numbers_are_those_of_pytorch_where_that_is_asked():
    function = lambda x: (F.dropout(x, 0.5), torch.rand(3), F.dropout(x * 2, 0.1) + torch.randn(5))  # noqa: E731
    x, made = torch.ones(5), []
    for call in (function, compiled(function, options={"fallback_random": True})):
        torch.manual_seed(3)
        made.append(call(x))
    for eager, found in zip(*made):
        torch.testing.assert_close(found, eager)


def test_what_fails_to_compile_is_run_by_pytorch(monkeypatch):
    from tilec.torch import call

    def fail(*args):
        raise ValueError("not today")

    monkeypatch.setattr(call, "program", fail)
    with pytest.warns(FallbackWarning) as reported:
        assert_agrees(lambda x: torch.exp(x + 1) + 1, torch.randn(4))
        assert_agrees(lambda x: torch.exp(x + 2) + 2, torch.randn(4))  # the same operations, for the same reason
    assert "run by PyTorch: ValueError: not today" in str(tilec.torch.report()) and tilec.torch.report().share == 0
    (message,) = [str(w.message) for w in reported]
    assert message.startswith("tilec: PyTorch runs 2 x add, exp, first in test_fallbacks.py:")
    assert ", since tilec failed: ValueError: not today. options={'strict': True}" in message
    with pytest.raises(Exception, match="not today"):
        compiled(lambda x: x + 3, options={"strict": True})(torch.randn(4))


def test_what_was_reported_is_not_put_into_words_again(monkeypatch):
    graph = torch.fx.symbolic_trace(lambda x: torch.exp(x) + 1).graph
    nodes, asked = [n for n in graph.nodes if n.op == "call_function"], []
    monkeypatch.setattr(origins, "source_line", lambda node: asked.append(node) or "")
    with pytest.warns(FallbackWarning, match="an array at odds") as reported:
        failures.report(nodes, CallError("an array at odds"))
        counted = len(asked)
        for _ in range(3):
            failures.report(nodes, CallError("an array at odds"))
        assert 0 < counted == len(asked) and len(reported) == 1
        failures.forget()
        failures.report(nodes, CallError("an array at odds"))
        assert len(asked) > counted and len(reported) == 2


@pytest.mark.parametrize("given", ["0", "two", "1.5"])
def test_a_number_of_threads_that_is_none_is_an_error_and_no_fallback(given, monkeypatch):
    function = compiled(lambda x: torch.exp(x) + 1)
    monkeypatch.setenv("TILEC_THREADS", given)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        with pytest.raises(Exception, match=f"TILEC_THREADS must be a whole number of at least 1, not '{given}'"):
            function(torch.ones(3))
    monkeypatch.delenv("TILEC_THREADS")
    assert_agrees(lambda x: torch.exp(x) + 1, torch.ones(3))


def test_what_fails_for_other_sizes_is_reported_at_the_call(monkeypatch):
    from tilec.torch import call

    function = compiled(lambda x: torch.exp(x) + 1, dynamic=True)
    function(torch.randn(4))
    monkeypatch.setattr(call, "program", lambda *_: 1 // 0)
    x = torch.randn(6)
    with pytest.warns(FallbackWarning, match="ZeroDivisionError"):
        torch.testing.assert_close(function(x), torch.exp(x) + 1)


def test_what_fails_in_the_background(monkeypatch):
    """The thread goes on with the next task; under `strict`, calls raise the error."""
    from tilec.torch import call

    program = call.program
    monkeypatch.setattr(call, "program", lambda *_: 1 // 0)
    x = torch.randn(4)
    failing = compiled(lambda x: torch.exp(x) + 1, options={"background": True, "strict": True})
    with pytest.raises(ZeroDivisionError):
        failing(x)  # which PyTorch runs, unless the thread was sooner
        tilec.torch.wait()
        failing(x)
    monkeypatch.setattr(call, "program", program)
    assert_agrees(lambda x: torch.exp(x) + 2, x, options={"background": True})
    tilec.torch.wait()
    assert tilec.torch.report().graphs[-1].parts[0].reason is None


def test_loops_of_more_states_than_a_tuple_has_elements():
    """31 sums in one loop."""
    assert_agrees(lambda x, w: [(x * w[t]).sum(1) for t in range(31)], torch.randn(8, 24), torch.randn(31, 24))
    assert tilec.torch.report().share == 1


def test_a_translator_that_fails_costs_its_operation_alone(monkeypatch):
    from tilec.torch.aten import table

    monkeypatch.setitem(table.TABLE, "sin", table.Row(lambda call: 1 // 0))
    with pytest.warns(FallbackWarning, match="PyTorch runs sin, first in test_fallbacks.py:.*ZeroDivisionError"):
        assert_agrees(lambda x: torch.exp(torch.sin(torch.exp(x) + 1)) * 2, torch.randn(4, 5))
    (graph,) = tilec.torch.report().graphs
    assert [(e.operation, e.reason.partition(":")[0]) for e in graph.eager] == [("sin", "ZeroDivisionError")]


def test_a_statement_that_is_refused_costs_its_operation_alone(monkeypatch):
    from tilec.torch import write

    def wrong(graph, node, values):
        made = translate(graph, node, values)
        if node.target is torch.ops.aten.sin.default:
            graph.lines[-1] = graph.lines[-1].replace("sin(", "sine(")
        return made

    translate = write.translate
    monkeypatch.setattr(write, "translate", wrong)
    with pytest.warns(FallbackWarning, match="PyTorch runs sin, .*: the program is refused: unknown function `sine`"):
        assert_agrees(lambda x: torch.exp(torch.sin(torch.exp(x) + 1)) * 2, torch.randn(4, 5))
    (graph,) = tilec.torch.report().graphs
    assert [e.operation for e in graph.eager] == ["sin"] and "sine" in graph.eager[0].reason and graph.taken == 4
    assert all(p.reason is None for p in graph.parts)


def test_results_without_elements_next_to_others():
    """What has them is one of several results: the whole operation is left to PyTorch, once."""
    normed = lambda x, w, b, m, v: torch.native_batch_norm(x * 2, w, b, m, v, False, 0.1, 1e-5)  # noqa: E731
    assert_agrees(normed, torch.randn(5, 2), torch.ones(2), torch.zeros(2), torch.zeros(2), torch.ones(2))
    (graph,) = tilec.torch.report().graphs
    assert [e.reason for e in graph.eager] == ["tensors without elements"] and graph.taken == 1


def test_strict_makes_that_an_error():
    with pytest.raises(Exception, match="the option 'strict' is set") as caught:
        compiled(lambda x: torch.special.i0e(x) + 1, options={"strict": True})(torch.randn(4))
    assert "1 x special_i0e" in str(caught.value)
    assert_agrees(lambda x: x + 1, torch.randn(4), options={"strict": True})


def test_averages_with_a_divisor_of_0_are_left_to_pytorch():
    """Which refuses them, some versions not before they run."""
    with pytest.raises(Unsupported, match="a divisor of 0"):
        pools._share({"divisor_override": 0}, None, [], [])
    assert pools._share({"divisor_override": 3}, None, [], []) == "3.0"
