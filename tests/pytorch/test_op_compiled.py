"""Operators in PyTorch's compilers, in exported programs and in modules."""

from __future__ import annotations

import copy
import io
import os
import pickle
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tools.operators import TWICE, agree, by_torch, layer, parts, rows  # noqa: E402

import tilec  # noqa: E402
import tilec.torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")


@pytest.mark.parametrize("backend", ["aot_eager", "tilec", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(backend, dynamic):
    op = layer()
    compiled = torch.compile(lambda x, w, a: op(x * 2, w, a).y + 1, backend=backend, fullgraph=True, dynamic=dynamic)
    for sizes in ((3, 4, 5), (6, 4, 2))[: 1 + dynamic]:
        given = parts(*sizes)
        wanted = by_torch(given[0] * 2, *given[1:])[0] + 1
        made = compiled(*given)
        agree([made], [wanted])
        agree(torch.autograd.grad(made.sum(), given), torch.autograd.grad(wanted.sum(), given))


WINDOW = """
def act(x) { return x if x > 0 else slope(x) }
def slope(x) { return 0.1 * x }  # called before it is defined
op window(x: f32[N, W], f: f32[K, 3], a: f32) -> (y: f32[N, K, W - 2], m: f32[N], i0: f32) {
    h[n, k, w] = sum[s](x[n, w + s] * f[k, s])  # over several
        where w in 0:W - 2                      # lines
    y[n, k, w] = act(h[n, k, w] / W) * a + (1 if w + 2 < W else 0)
    m[n]       = max[w in 1:W](x[n, w])
    i0         = a * W
    expect kernels <= 9
}
"""


def test_partition_of_tilec_has_the_operators_statements():
    op = tilec.torch.op(WINDOW)
    f, a = torch.randn(2, 3), torch.tensor(3.0)

    def model(x, f, a):
        y, m, last = op(x.T, f, a)
        return torch.relu(y) + m[:, None, None] * last, op(2 * x.T, f, 0.5).y

    x = torch.randn(8, 5)
    compiled = torch.compile(model, backend="tilec", fullgraph=True)
    for made, wanted in zip(compiled(x, f, a), model(x, f, a), strict=True):
        torch.testing.assert_close(made, wanted)
    (graph,) = tilec.torch.report().graphs
    assert graph.taken == graph.operations and len(graph.parts) == 1


def test_training_step_with_operators_is_one_partition_each_way():
    op, last = layer(), rows()
    compiled = torch.compile(lambda x, w, a: last(op(x * 2, w, a).y + 1), backend="tilec", fullgraph=True)
    given = parts()
    compiled(*given).sum().backward()
    report = tilec.torch.report()
    assert report.share == 1 and [len(g.parts) for g in report.graphs] == [1, 1]


def test_operator_that_calls_an_op_is_called_by_partitions():
    text = "op g(x: f32[N]) -> (y: f32[N]) { y[i] = 2 * x[i] } op f(x: f32[N]) -> (y: f32[N]) { t = g(x); y[i] = t[i] + 1 }"
    op, x = tilec.torch.op(text, op="f"), torch.randn(4)
    torch.testing.assert_close(torch.compile(lambda x: op(x) * 2, backend="tilec")(x), 4 * x + 2)
    assert list(tilec.torch.report().reasons) == ["an operator whose op calls another one"]


def test_sizes_that_do_not_fit_are_reported_while_tracing():
    op = tilec.torch.op("op product(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N]) { c[i, j] = sum[k](a[i, k] * b[k, j]) }")
    compiled = torch.compile(op, backend="aot_eager", fullgraph=True, dynamic=True)
    with pytest.raises(Exception, match=r"product: dimension 0 of `b` is 5, and `K` is 4"):
        compiled(torch.randn(3, 4), torch.randn(5, 6))
    short = torch.compile(tilec.torch.op("c[i, j] = sum[k](a[i, k] * b[k, j])"), backend="aot_eager", dynamic=True)
    with pytest.raises(Exception, match=r"dimension 0 of `b` is 5, and the index `k` has 4 values elsewhere"):
        short(torch.randn(3, 4), torch.randn(5, 6))
    with pytest.raises(tilec.TileError, match="`K` is 4 by dimension 1 of `a`, but dimension 0 of `b` is 5"):
        op(torch.empty(3, 4, device="meta"), torch.empty(5, 6, device="meta"))
    with pytest.raises(tilec.TileError, match="`K` is 4 by dimension 1 of `a`, but dimension 0 of `b` is 5"):
        op(torch.randn(3, 4), torch.randn(5, 6))


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.op = rows(name="tilec_test::module")

    def forward(self, x):
        return self.op(x) * 2


def test_export_and_back():
    x = torch.randn(3, 5, dtype=torch.float64)
    sizes = ({0: torch.export.Dim("m", min=2), 1: torch.export.Dim("n", min=2)},)
    program = torch.export.export(Module(), (x,), dynamic_shapes=sizes)
    assert "tilec_test.module" in str(program.graph)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for shape in ((3, 5), (7, 2)):
        x = torch.randn(shape, dtype=torch.float64)
        torch.testing.assert_close(loaded(x), 2 * torch.softmax(x, 1))


def test_copies_of_modules():
    module, x = Module(), torch.randn(3, 5, dtype=torch.float64)
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert copied.op is module.op
        torch.testing.assert_close(copied(x), module(x))


def test_autocast_has_floats_of_the_declared_types():
    op, x = tilec.torch.op(TWICE), torch.randn(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert op(x.bfloat16()).dtype == torch.float32
        torch.testing.assert_close(op(x), 2 * x)
    compiled = torch.compile(lambda x: op(x.to(torch.bfloat16)), backend="aot_eager", fullgraph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(x).dtype == torch.float32


@pytest.mark.slow
def test_forked_process_calls_operators():
    code = f"""
import os, torch, tilec.torch
op = tilec.torch.op({TWICE!r}, backward="op b(y_grad: f32[N]) -> (x_grad: f32[N]) {{ x_grad[i] = 2 * y_grad[i] }}")
x = torch.randn(100000, requires_grad=True)
op(x).sum().backward()
child = os.fork()
if not child:
    same = torch.equal(op(x), 2 * x) and torch.equal(op(x[:5]), 2 * x[:5])
    os._exit(0 if same else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})


@pytest.mark.slow
def test_example():
    main = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "torch_operator.py"))["main"]
    main(["--sizes", "1,2,5,4"])
    assert tilec.torch.report().share == 1
