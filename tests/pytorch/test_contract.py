"""What PyTorch demands of a back end: strides, aliases, changed inputs, sizes, types, errors, threads, processes."""

from __future__ import annotations

import json
import os
import threading
import warnings

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import assert_agrees, compiled  # noqa: E402

import tilec.torch  # noqa: E402
from tilec import CallError  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")

F = torch.nn.functional


# ---- strides and memory ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        torch.randn(4, 6).t(),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(1, 6).expand(4, 6),
        torch.randn(6, 1).expand(6, 4),
        torch.randn(8, 12)[::2, 1:7],
        torch.randn(25)[1:].view(4, 6),
        torch.randn(3, 1, 5).permute(1, 2, 0),
        torch.randn(()),
    ],
    ids=["transposed", "channels_last", "rows", "columns", "gaps", "offset", "size 1", "scalar"],
)
def test_inputs_lie_as_they_like(given):
    assert_agrees(lambda x: torch.exp(x) * 2 + x, given)


def test_results_lie_as_promised():
    def several(x, y):
        added = x + y
        return added, added.t(), (x * 2).t() + 1, (x @ y.t()).unsqueeze(0), x.sum(0, keepdim=True).expand(3, -1)

    assert_agrees(several, torch.randn(4, 5), torch.randn(5, 4).t())


def test_views_of_inputs_stay_views():
    @compiled
    def shown(x):
        return x[1:], x.view(-1), x + 1

    x = torch.arange(6.0).view(2, 3)
    part, flat, more = shown(x)
    x += 10
    assert torch.equal(part, x[1:]) and torch.equal(flat, x.view(-1)) and torch.equal(more, x - 9)


def test_results_that_share_memory():
    @compiled
    def shared(x):
        y = x * 2
        return y, y[0], y.t()

    y, first, turned = shared(torch.randn(3, 4))
    y.zero_()
    assert first.eq(0).all() and turned.eq(0).all()


def test_inputs_are_changed_in_place():
    def change(x, y):
        x.mul_(2)
        y[1:3].add_(x[0])
        return x.sum() + y.sum()

    assert_agrees(change, torch.randn(3, 4), torch.randn(5, 4))


def test_old_values_that_are_read_after_a_write():
    def late(cache, x):
        before = cache.clone()
        cache[0] = x
        cache[1:3] = cache[0:2] * 2
        return before + cache

    assert_agrees(late, torch.randn(4, 5), torch.randn(5))


def test_a_shift_within_one_input():
    def shift(history, x):
        history[:, :-1] = history[:, 1:].clone()
        history[:, -1] = x
        return history.mean(1)

    assert_agrees(shift, torch.randn(3, 5), torch.randn(3))


def test_one_tensor_as_two_arguments():
    @compiled
    def both(x, y):
        x.add_(1)
        return x * y

    x = torch.ones(4)
    assert torch.equal(both(x, x), torch.full((4,), 4.0)) and torch.equal(x, torch.full((4,), 2.0))


# ---- types -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.bool])
@pytest.mark.parametrize("second", [torch.float32, torch.int64, torch.bool])
def test_types_are_promoted_as_pytorch_does(first, second):
    x = torch.tensor([0, 1, 3, 7, 2]).to(first)
    y = torch.tensor([1, 5, 2, 0, 3]).to(second)
    assert_agrees(lambda x, y: (x + y, x * 2, y / 3, x * 1.5, x == y, torch.where(y > 1, x, y)), x, y)


def test_scalars_without_dimensions():
    def mixed(x, n, s):
        return x * s + n, n + 1, s * 2, x.sum(), (x > 0).any()

    assert_agrees(mixed, torch.randn(4), torch.tensor(3), torch.tensor(0.5, dtype=torch.float64))


def test_constants_and_numbers():
    scale = torch.tensor([1.0, 2.0, 3.0])
    assert_agrees(lambda x, k: (x * scale + k, torch.arange(3) * k, torch.full((2,), 0.5)), torch.randn(3), 7)


# ---- sizes -----------------------------------------------------------------------------------------------------------


def test_each_size_is_compiled_and_none_is_left_to_pytorch():
    from tilec.torch.reports import forget

    function = compiled(lambda x: torch.softmax(x, -1).view(x.shape[0] * x.shape[1]) * x.shape[1], dynamic=True)
    for n in (3, 5, 8):
        x = torch.randn(n, n + 2)
        torch.testing.assert_close(function(x), torch.softmax(x, -1).view(-1) * (n + 2))
    (graph,) = tilec.torch.report().graphs
    assert graph.parts[0].sizes == 3 and graph.parts[0].reason is None and tilec.torch.report().share == 1
    forget()


def test_sizes_are_results():
    def counted(x):
        return x * x.shape[0], x.shape[0] * 2

    function = compiled(counted, dynamic=True)
    for n in (3, 4):
        y, twice = function(torch.ones(n))
        assert y.tolist() == [n] * n and twice == 2 * n


def test_training_with_changing_sizes():
    model = torch.nn.Linear(4, 3)
    function = compiled(model, dynamic=True)
    for n in (2, 5, 7):
        x = torch.randn(n, 4)
        model.zero_grad()
        function(x).square().sum().backward()
        found = model.weight.grad.clone()
        model.zero_grad()
        model(x).square().sum().backward()
        torch.testing.assert_close(found, model.weight.grad)


def test_no_elements():
    assert_agrees(lambda x: (x + 1, x.sum(), x.sum(0)), torch.randn(0, 4))


def test_a_size_of_a_partitions_result_is_that_of_the_inputs():
    """AOTAutograd alone, unlike Dynamo, asks what it computes for its size; the partition that computes it needs the size."""
    from functorch.compile import aot_function

    from tilec.torch.backend import compilers
    from tilec.torch.options import Options
    from tilec.torch.reports import forget

    forget()

    def shorter(x, y):
        z = torch.cat([x, y])
        return z[: z.shape[0] - 1] * z[1:], z.exp()[: z.numel() // 9]

    function = aot_function(shorter, **compilers(Options()), dynamic=True)
    x, y = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3)
    results = [function(x, y), shorter(x, y)]
    gradients = [torch.autograd.grad(a.square().sum() + b.sum(), x)[0] for a, b in results]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*gradients)
    assert [len(g.parts) for g in tilec.torch.report().graphs] == [1, 1]
    forget()  # Dynamo, which knows nothing of it, does not


def test_data_decides_a_size():
    assert_agrees(lambda x: x[x > 0] * 2 + 1, torch.randn(9))


def test_the_recompile_limit_is_told():
    function = compiled(lambda x, k: x * k, dynamic=False)
    told = pytest.warns(UserWarning, match="compiled one function 2 times, its recompile_limit")
    with torch._dynamo.config.patch(recompile_limit=2), told:
        for n in range(3, 7):
            assert function(torch.ones(n), 2).sum() == 2 * n


# ---- what PyTorch runs -----------------------------------------------------------------------------------------------


def test_what_cannot_be_said_is_run_by_pytorch_and_told():
    assert_agrees(lambda x: torch.cummax(torch.exp(x), -1)[0] * 2, torch.randn(4, 5))
    (graph,) = tilec.torch.report().graphs
    assert [e.operation for e in graph.eager] == ["cummax"] and graph.eager[0].line.startswith("test_contract.py:")
    assert "1 x cummax" in str(tilec.torch.report())


def test_random_numbers_are_those_of_pytorch():
    function = lambda x: (F.dropout(x, 0.5), torch.rand(3), F.dropout(x * 2, 0.1) + torch.randn(5))  # noqa: E731
    x, made = torch.ones(5), []
    for call in (function, compiled(function)):
        torch.manual_seed(3)
        made.append(call(x))
    for eager, found in zip(*made):
        torch.testing.assert_close(found, eager)


def test_what_fails_to_compile_is_run_by_pytorch(monkeypatch):
    from tilec.torch import call

    def fail(*args):
        raise ValueError("not today")

    monkeypatch.setattr(call, "program", fail)
    assert_agrees(lambda x: x + 1, torch.randn(4))
    assert "run by PyTorch: ValueError: not today" in str(tilec.torch.report()) and tilec.torch.report().share == 0


def test_a_translator_that_fails_costs_its_operation_alone(monkeypatch):
    from tilec.torch.aten import table

    monkeypatch.setitem(table.TABLE, "sin", lambda call: 1 // 0)
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
    assert_agrees(lambda x: torch.exp(torch.sin(torch.exp(x) + 1)) * 2, torch.randn(4, 5))
    (graph,) = tilec.torch.report().graphs
    assert [e.operation for e in graph.eager] == ["sin"] and "sine" in graph.eager[0].reason and graph.taken == 4
    assert all(p.reason is None for p in graph.parts)


def test_results_without_elements_beside_others():
    """What has them is one of several results: the whole operation is left to PyTorch, once."""
    normed = lambda x, w, b, m, v: torch.native_batch_norm(x * 2, w, b, m, v, False, 0.1, 1e-5)  # noqa: E731
    assert_agrees(normed, torch.randn(5, 2), torch.ones(2), torch.zeros(2), torch.zeros(2), torch.ones(2))
    (graph,) = tilec.torch.report().graphs
    assert [e.reason for e in graph.eager] == ["tensors without elements"] and graph.taken == 1


def test_strict_makes_that_an_error():
    with pytest.raises(Exception, match="the option 'strict' is set") as caught:
        compiled(lambda x: torch.cummax(x, 0)[0] + 1, options={"strict": True})(torch.randn(4))
    assert "1 x cummax" in str(caught.value)
    assert_agrees(lambda x: x + 1, torch.randn(4), options={"strict": True})


def test_an_index_outside_is_an_error():
    function = compiled(lambda w, i: F.embedding(i, w))
    with pytest.raises(IndexError):
        function(torch.randn(4, 3), torch.tensor([1, 4]))


# ---- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given, said",
    [
        ({"options": {"shedule": "x"}}, "no option 'shedule'; it has target, schedule, strict, background, mode"),
        ({"mode": "max-autotune"}, "no mode 'max-autotune'; it has default, reduce-overhead"),
        ({"options": {"strict": 1}}, "'strict' must be True or False"),
        ({"options": {"target": "h900"}}, "unknown target"),
        ({"options": {"schedule": "/no/such/folder"}}, "'schedule' must be a folder"),
    ],
)
def test_wrong_options_are_told(given, said):
    with pytest.raises(Exception, match=said):
        compiled(lambda x: x + 1, **given)(torch.randn(3))


def test_reduce_overhead_replays_nothing_on_the_cpu():
    assert_agrees(lambda x: torch.exp(x).sum(), torch.randn(5, requires_grad=True), backward=True, mode="reduce-overhead")
    assert all(g.not_replayed == "its tensors are on the CPU" for g in tilec.torch.report().graphs)


def test_compiled_in_the_background():
    function, x = compiled(lambda x: torch.exp(x) + 1, options={"background": True}), torch.randn(5)
    for _ in range(2):
        torch.testing.assert_close(function(x), torch.exp(x) + 1)
        tilec.torch.wait()
    assert tilec.torch.report().graphs[0].parts[0].sizes == 1


def test_dumped_programs_compile_alone_and_take_schedules(tmp_path, monkeypatch, capsys):
    from tilec.cli.command import main

    monkeypatch.setenv("TILEC_TORCH_DUMP", str(tmp_path))
    x, w = torch.randn(6, 8), torch.randn(5, 8)
    compiled(lambda x, w: F.relu(F.linear(x, w)))(x, w)
    (program,) = tmp_path.rglob("*.tile")
    text = program.read_text()
    assert "# x0: x" in text and "aten.relu" in text and "test_contract.py:" in text
    torch.testing.assert_close(tilec.compile(program)(x, w), F.relu(F.linear(x, w)))
    assert main(["torch", "report", str(tmp_path)]) == 0
    assert "2 of 2 operations (100%)" in capsys.readouterr().out
    assert json.loads(next(tmp_path.rglob("graph.json")).read_text())["parts"][0]["sizes"] == 1
    assert main(["plan", str(program)]) == 0
    from tilec.torch.schedules import schedule_of

    assert schedule_of(text, tmp_path) == str(program.with_suffix(".sched.toml"))
    torch._dynamo.reset()
    function = compiled(lambda x, w: F.relu(F.linear(x, w)), options={"schedule": str(tmp_path), "strict": True})
    torch.testing.assert_close(function(x, w), F.relu(F.linear(x, w)))
    with pytest.raises(CallError):
        from tilec.torch.options import read

        read("default", {"mode": "reduce-overhead"})


# ---- threads and processes -------------------------------------------------------------------------------------------


def test_threads_call_one_model():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    function, x = compiled(model), torch.randn(3, 4)
    function(x)
    expected, found = model(x), []

    def work():
        for _ in range(5):
            y = function(x)
            y.sum().backward()
            found.append(y.detach())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 15
    for y in found:
        torch.testing.assert_close(y, expected.detach())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_calls_and_compiles():
    function, x = compiled(lambda x: torch.exp(x) + 1), torch.randn(4)
    function(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        status = 1
        try:
            other = compiled(lambda x: torch.exp(x) * 3)
            good = torch.allclose(function(x), torch.exp(x) + 1) and torch.allclose(other(x), torch.exp(x) * 3)
            status = 0 if good else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_importing_tilec_imports_no_torch():
    import subprocess
    import sys

    code = "import sys, tilec, tilec.torch, tilec.cli.command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- results in inputs -----------------------------------------------------------------------------------------------


def swapped(x, y):
    old = x * 3
    x.copy_(y * 2)
    y.copy_(old)


def statistics(x, mean, w):
    """The new mean is read by the result, and saved for its gradient."""
    mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    return (x - mean) * w * mean


CHANGES = {
    "of each element": lambda x, y: x.mul_(2).add_(y),
    "of other elements": lambda x, y: x.add_(x.t().clone()),
    "of a row's sum": lambda x, y: x.div_(x.sum(1, keepdim=True)),
    "of a shift": lambda x, y: x.copy_(x.roll(1, 0)) * 2,
    "swapped": swapped,
    "after an old value is sorted": lambda x, y: (x.sort(0)[0] + 1, x.mul_(2).add_(1))[0],
    "before it is sorted": lambda x, y: (x.mul_(2).add_(1), x.sort(0)[0] + 1)[1],
    "with an old value that is returned": lambda x, y: (x * 1, x.add_(y))[0],
    "with the new value, returned": lambda x, y: (x.add_(y), x + 0)[1],
    "by one that changes, too": lambda x, y: (y.mul_(3), x.add_(y))[1].sum(),
    "of a part": lambda x, y: x[1:].mul_(2).sum(),
    "of a transpose": lambda x, y: x.t().mul_(2).add_(y).sum(),
    "by an old and a new value": lambda x, y: (x.clone() @ x.exp_()).sum(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_in_place(name):
    assert_agrees(CHANGES[name], torch.randn(5, 5), torch.randn(5, 5), calls=2)


def test_a_changed_value_that_gradients_need():
    x, mean, w = torch.randn(6, 4, requires_grad=True), torch.randn(4), torch.randn(4, requires_grad=True)
    assert_agrees(statistics, x, mean, w, backward=True)


def test_new_values_are_written_where_they_belong(tmp_path, monkeypatch):
    """Without a copy in memory, and into an input that lies transposed."""
    monkeypatch.setenv("TILEC_TORCH_DUMP", str(tmp_path))
    assert_agrees(lambda x, y: x.mul_(y).add_(1), torch.randn(6, 4).t(), torch.randn(6, 4).t())
    (text,) = (p.read_text() for p in tmp_path.rglob("run.py"))
    assert "copy_" not in text
