"""Programs as operators of PyTorch: `tilec.torch.op`."""

from __future__ import annotations

import copy
import io
import pickle
import threading

import pytest

torch = pytest.importorskip("torch")

import tilec  # noqa: E402
import tilec.torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")

ROWS = """
op rows(x: f64[M, N]) -> (y: f64[M, N]) { y[i, j] = softmax[j](x[i, j]) }
op rows_backward(y: f64[M, N], y_grad: f64[M, N]) -> (x_grad: f64[M, N]) {
    s[i]         = sum[j](y[i, j] * y_grad[i, j])
    x_grad[i, j] = y[i, j] * (y_grad[i, j] - s[i])
}
"""
LAYER = """
op layer(x: f64[M, K], w: f64[K, N], a: f64) -> (y: f64[M, N], top: i64[M]) {
    h[i, j] = a * sum[k](x[i, k] * w[k, j])
    y[i, j] = tanh(h[i, j])
    top[i]  = argmax[j](h[i, j])
}
op layer_backward(x: f64[M, K], w: f64[K, N], a: f64, y: f64[M, N], y_grad: f64[M, N])
    -> (x_grad: f64[M, K], w_grad: f64[K, N], a_grad: f64) {
    g[i, j]      = y_grad[i, j] * (1 - y[i, j] * y[i, j])
    x_grad[i, k] = a * sum[j](g[i, j] * w[k, j])
    w_grad[k, j] = a * sum[i](x[i, k] * g[i, j])
    a_grad       = sum[i, j, k](g[i, j] * x[i, k] * w[k, j])
}
"""
TWICE = "op twice(x: f32[N]) -> (y: f32[N]) { y[i] = 2 * x[i] }"


def rows(**options):
    return tilec.torch.op(ROWS, op="rows", backward=ROWS, **options)


def layer():
    return tilec.torch.op(LAYER, op="layer", backward=LAYER)


def parts(m=3, k=4, n=5, grad=True):
    x, w = torch.randn(m, k, dtype=torch.float64), torch.randn(k, n, dtype=torch.float64)
    return [t.requires_grad_(grad) for t in (x, w, torch.tensor(0.7, dtype=torch.float64))]


def by_torch(x, w, a):
    h = a * (x @ w)
    return torch.tanh(h), h.argmax(1)


def agree(got, wanted):
    for g, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(g, w, check_stride=True)


# ---- calls -----------------------------------------------------------------------------------------------------------


def test_call_is_the_program():
    x, op = torch.randn(3, 5, dtype=torch.float64), rows()
    torch.testing.assert_close(op(x), torch.softmax(x, 1))
    torch.testing.assert_close(op(x=x), torch.softmax(x, 1))
    torch.testing.assert_close(op.overload(x), torch.softmax(x, 1))


def test_several_results_are_a_named_tuple_and_numbers_are_scalars():
    x, w, _ = parts(grad=False)
    made = layer()(x, w, 0.5)
    agree(made, by_torch(x, w, 0.5))
    assert made._fields == ("y", "top") and made.top.dtype == torch.int64
    agree(layer()(x, w, a=2), by_torch(x, w, 2))


def test_any_sizes_and_memory_orders():
    op = rows()
    for m, n in ((1, 1), (4, 7), (1, 9), (6, 2)):
        x = torch.randn(n, m, dtype=torch.float64).T
        torch.testing.assert_close(op(x), torch.softmax(x, 1))
        assert op(x).is_contiguous()
    assert op(torch.randn(0, 3, dtype=torch.float64)).shape == (0, 3)


def test_size_that_no_argument_tells_is_a_keyword():
    op = tilec.torch.op("op repeat(x: f32[N]) -> (y: f32[K, N]) { y[k, i] = x[i] }")
    assert op.schema == "(Tensor x, *, SymInt K) -> Tensor"
    x = torch.randn(4)
    for k in (2, 3, 2):
        torch.testing.assert_close(op(x, K=k), x.expand(k, 4).contiguous())
    compiled = torch.compile(lambda x, k: op(x, K=k) + 1, backend="aot_eager", fullgraph=True, dynamic=True)
    assert compiled(x, 5).shape == (5, 4)
    fixed = tilec.torch.op("op repeat(x: f32[N]) -> (y: f32[K, N]) { y[k, i] = x[i] }", sizes={"K": 3})
    assert fixed(x).shape == (3, 4)
    torch.library.opcheck(op.overload, (x,), {"K": 3})


def test_short_form_takes_types_from_its_arguments():
    op = tilec.torch.op("y[i, j] = sum[k](a[i, k] * b[k, j])")
    for dtype in (torch.float32, torch.float64):
        a, b = torch.randn(3, 4, dtype=dtype), torch.randn(4, 5, dtype=dtype)
        torch.testing.assert_close(op(a, b), a @ b)
        torch.library.opcheck(op.overload, (a, b))


def test_names_that_schemas_reserve():
    op = tilec.torch.op("op f(lambda: f32[N], self: f32[N]) -> (y: f32[N]) { y[i] = lambda[i] - self[i] }")
    x = torch.randn(3)
    torch.testing.assert_close(op(x, 2 * x), -x)


def test_threads_call_one_operator():
    op, found = rows(name="tilec_test::threads"), []

    def call(n):
        x = torch.randn(n, 5, dtype=torch.float64)
        found.append(torch.allclose(op(x), torch.softmax(x, 1)))

    threads = [threading.Thread(target=call, args=(1 + n % 3,)) for n in range(12)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [True] * 12


# ---- what PyTorch checks ---------------------------------------------------------------------------------------------


def test_opcheck():
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    torch.library.opcheck(rows().overload, (x,))
    torch.library.opcheck(rows().backward.overload, (x.detach(), x.detach()))


def test_opcheck_of_several_results():
    torch.library.opcheck(layer().overload, tuple(parts()))


def test_opcheck_without_a_gradient():
    torch.library.opcheck(tilec.torch.op(TWICE).overload, (torch.randn(4),))


@pytest.mark.parametrize(("m", "n", "turned"), [(0, 3, False), (1, 2, False), (1, 1, True), (3, 4, True)])
def test_fake_results_are_the_real_ones(m, n, turned):
    from torch._subclasses.fake_tensor import FakeTensorMode

    op = layer()
    x = torch.randn(m, n, dtype=torch.float64)
    x = x.T.contiguous().T if turned else x
    w, a = torch.randn(n, 3, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)
    with FakeTensorMode() as mode:
        fake = op(*map(mode.from_tensor, (x, w, a)))
    for _ in range(2):  # the second call is the short one
        for r, f in zip(op(x, w, a), fake):
            assert (r.shape, r.stride(), r.dtype, r.device) == (f.shape, f.stride(), f.dtype, f.device)


def test_fake_call_compiles_nothing():
    op = tilec.torch.op("op f(x: f32[N, 2 * N + 1]) -> (y: f32[N // 2]) { y[i] = x[i, 0] where i in 0:N // 2 }")
    made = op(torch.empty(5, 11, device="meta"))
    assert made.shape == (2,) and made.device.type == "meta" and not op.compiled._built


# ---- gradients -------------------------------------------------------------------------------------------------------


def test_gradients():
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(rows(), (x,))
    assert torch.autograd.gradcheck(lambda *a: layer()(*a).y, tuple(parts(1, 2, 2)))


def test_result_whose_gradient_nothing_takes_has_none():
    made = layer()(*parts())
    assert made.y.requires_grad and not made.top.requires_grad
    log = tilec.torch.op(
        "op g(x: f32[N]) -> (y: f32[N], e: f32[N]) { e[i] = exp(x[i]); y[i] = log(1 + e[i]) }",
        backward="op b(e: f32[N], y_grad: f32[N]) -> (x_grad: f32[N]) { x_grad[i] = y_grad[i] * e[i] / (1 + e[i]) }",
    )
    x = torch.randn(5, requires_grad=True)
    y, e = log(x)
    assert y.requires_grad and not e.requires_grad
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], torch.sigmoid(x))


def test_gradient_that_there_is_not():
    x = torch.randn(4, requires_grad=True)
    y = tilec.torch.op(TWICE)(x)
    with pytest.raises(RuntimeError, match="has no gradient: it was made without backward="):
        y.sum().backward()
    half = tilec.torch.op(
        "op f(x: f32[N], w: f32[N]) -> (y: f32[N]) { y[i] = x[i] * w[i] }",
        backward="op b(w: f32[N], y_grad: f32[N]) -> (x_grad: f32[N]) { x_grad[i] = y_grad[i] * w[i] }",
    )
    torch.testing.assert_close(torch.autograd.grad(half(x, x.detach()).sum(), x)[0], x.detach())
    with pytest.raises(RuntimeError, match="has no gradient of `w`"):
        half(x, x).sum().backward()


def test_gradient_of_a_gradient():
    again = tilec.torch.op(
        "op b(x: f64[N], y_grad: f64[N]) -> (x_grad: f64[N]) { x_grad[i] = 2 * x[i] * y_grad[i] }",
        backward="""op bb(x: f64[N], y_grad: f64[N], x_grad_grad: f64[N]) -> (x_grad: f64[N], y_grad_grad: f64[N]) {
            x_grad[i] = 2 * y_grad[i] * x_grad_grad[i]; y_grad_grad[i] = 2 * x[i] * x_grad_grad[i] }""",
    )
    square = tilec.torch.op("op f(x: f64[N]) -> (y: f64[N]) { y[i] = x[i] * x[i] }", backward=again)
    assert torch.autograd.gradgradcheck(square, (torch.randn(3, dtype=torch.float64, requires_grad=True),))


def test_size_of_a_gradient_is_the_operators():
    op = tilec.torch.op(
        "op crop(x: f64[N], t: f64[K]) -> (y: f64[K]) { y[i] = x[i] * t[i] if i < N else 0 }",
        backward="op b(t: f64[K], y_grad: f64[K]) -> (x_grad: f64[N]) { x_grad[i] = t[i] * y_grad[i] if i < K else 0 }",
    )
    x, t = torch.randn(5, dtype=torch.float64, requires_grad=True), torch.randn(3, dtype=torch.float64)
    assert torch.autograd.gradcheck(op, (x, t)) and op.backward.signature.keywords == ("N",)


def test_transforms_of_torch_func():
    x = torch.randn(3, 5, dtype=torch.float64)
    op = rows()
    wanted = torch.func.grad(lambda x: torch.softmax(x, 1)[:, 0].sum())(x)
    torch.testing.assert_close(torch.func.grad(lambda x: op(x)[:, 0].sum())(x), wanted)


@pytest.mark.parametrize("dims", [(0, None, None), (None, 1, None), (2, 0, 0), (None, None, 0)])
def test_vmap_is_one_call_of_an_op_with_one_more_dimension(dims, monkeypatch):
    op = layer()
    x, w, a = parts(grad=False)
    given = [t if d is None else torch.stack([t, 2 * t - 1], d) for t, d in zip((x, w, a), dims)]
    monkeypatch.setattr(torch, "stack", None)  # what would put single calls together
    agree(torch.vmap(op, dims)(*given), torch.vmap(by_torch, dims)(*given))
    wanted = torch.func.grad(lambda *g: torch.vmap(by_torch, dims)(*g)[0].sum(), (0, 1, 2))(*given)
    made = torch.func.grad(lambda *g: torch.vmap(op, dims)(*g)[0].sum(), (0, 1, 2))(*given)
    for m, each in zip(made, wanted):
        torch.testing.assert_close(m, each)


def test_vmap_of_gradients():
    op, x = rows(), torch.randn(2, 3, 5, dtype=torch.float64)
    made = torch.vmap(torch.func.grad(lambda x: op(x)[:, 0].sum()))(x)
    torch.testing.assert_close(made, torch.vmap(torch.func.grad(lambda x: torch.softmax(x, 1)[:, 0].sum()))(x))
    torch.testing.assert_close(torch.func.jacrev(op)(x[0]), torch.func.jacrev(lambda x: torch.softmax(x, 1))(x[0]))
    torch.testing.assert_close(torch.vmap(torch.vmap(op))(x[:, :, None]), torch.softmax(x, 2)[:, :, None])


def test_vmap_of_vmap_and_its_gradient():
    x, w, a = parts(grad=False)
    x, w = torch.stack([x, 2 * x]), torch.stack([w, 3 * w, -w])

    def twice(op):
        each = torch.vmap(torch.vmap(lambda x, w, a: op(x, w, a)[0], (0, None, None)), (None, 0, None))
        return torch.func.grad(lambda *g: each(*g).pow(2).sum(), (0, 1, 2))(x, w, a)

    for made, each in zip(twice(layer()), twice(by_torch)):
        torch.testing.assert_close(made, each)


def test_vmap_of_ops_that_call_ops():
    text = """
    def shifted[j](x, a) { m = max[j](x) return x - m + a }
    op g(x: f64[N], a: f64) -> (s: f64, y: f64[N]) { s = sum[i](x[i]) + a; y[i] = shifted[i](x[(i)], s) where i in 0:N }
    op f(x: f64[N], a: f64, b: f64[2]) -> (y: f64[N], c: f64[2], z: f64) {
        s, t = g(x, a)
        z    = exp(a)
        c[i] = b[i]
        y[i] = s + t[i] + z + (pad(x[i + 1], 0) if i > 0 else 0)
        expect kernels <= 9
    }"""
    op = tilec.torch.op(text, op="f")
    x, a, b = (torch.randn(*s, dtype=torch.float64) for s in ((2, 4), (2,), (2,)))
    for dims, given in (((0, None, None), (x, a[0], b)), ((None, 0, None), (x[0], a, b)), ((0, 0, None), (x, a, b))):
        many = [[g if d is None else g[k] for g, d in zip(given, dims)] for k in range(2)]
        wanted = [torch.stack(r) for r in zip(*(op(*one) for one in many))]
        for made, each in zip(torch.vmap(op, dims)(*given), wanted):
            torch.testing.assert_close(made, each)


def test_vmap_of_an_op_of_another_file_is_a_call_for_each(tmp_path):
    (tmp_path / "other.tile").write_text("op g(x: f32[N]) -> (y: f32[N]) { y[i] = 2 * x[i] }")
    (tmp_path / "f.tile").write_text('import "other.tile"\nop f(x: f32[N]) -> (y: f32[N]) { t = g(x); y[i] = t[i] + 1 }')
    op, x = tilec.torch.op(tmp_path / "f.tile"), torch.randn(3, 4)
    torch.testing.assert_close(torch.vmap(op)(x), 2 * x + 1)
    with pytest.raises(Exception, match="of another file"):
        op.batched((True,))


def test_vmap_is_compiled():
    compiled = torch.compile(torch.vmap(rows()), backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(compiled(x), torch.softmax(x, 2))
    torch.autograd.grad(compiled(x)[0].sum(), x)


def test_forward_mode_is_refused():
    op, x = rows(), torch.randn(2, 3, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="has no forward-mode gradient"):
        torch.func.jvp(op, (x,), (x,))
    with torch.autograd.forward_ad.dual_level():
        torch.testing.assert_close(op(x), torch.softmax(x, 1))
        with pytest.raises(RuntimeError, match="has no forward-mode gradient"):
            op(torch.autograd.forward_ad.make_dual(x, x))


def test_what_takes_part_in_calls_sees_the_operator():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    class Kind(torch.Tensor):
        pass

    op, x, seen = tilec.torch.op(TWICE), torch.randn(4), []
    for _ in range(2):  # the second call is the short one
        with Seen():
            op(x)
        assert type(op(x.as_subclass(Kind))) is Kind
        with torch.inference_mode():
            assert torch.equal(op(torch.ones(4)), torch.full((4,), 2.0))
        negated = torch.complex(x, x).conj().imag
        assert negated.is_neg() and torch.equal(op(negated), -2 * x)
        assert torch.equal(op(torch._efficientzerotensor((4,))), torch.zeros(4))
    assert seen == [op.overload] * 2
    with pytest.raises(NotImplementedError, match="SparseCPU"):
        op(x.to_sparse())


def test_index_outside_of_a_table_is_named():
    op = tilec.torch.op("op g(t: f32[N, D], i: i64[K]) -> (y: f32[K, D]) { y[k, d] = t[i[k], d] }")
    t = torch.randn(4, 3)
    for _ in range(2):
        with pytest.raises(tilec.TileError, match="index 7 is outside 0:4"):
            op(t, torch.tensor([1, 7]))
    torch.testing.assert_close(op(t, torch.tensor([1, 3])), t[[1, 3]])


def test_autocast_has_floats_of_the_declared_types():
    op, x = tilec.torch.op(TWICE), torch.randn(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert op(x.bfloat16()).dtype == torch.float32
        torch.testing.assert_close(op(x), 2 * x)
    compiled = torch.compile(lambda x: op(x.to(torch.bfloat16)), backend="aot_eager", fullgraph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(x).dtype == torch.float32


# ---- PyTorch's compilers ---------------------------------------------------------------------------------------------


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

    compiled = torch.compile(model, backend="tilec", fullgraph=True, dynamic=True)
    for x in (torch.randn(8, 5), torch.randn(9, 4)):
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


def test_sizes_that_do_not_fit_are_told_while_tracing():
    op = tilec.torch.op("op product(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N]) { c[i, j] = sum[k](a[i, k] * b[k, j]) }")
    compiled = torch.compile(op, backend="aot_eager", fullgraph=True, dynamic=True)
    with pytest.raises(Exception, match=r"product: dimension 0 of `b` is 5, and `K` is 4"):
        compiled(torch.randn(3, 4), torch.randn(5, 6))
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


# ---- names -----------------------------------------------------------------------------------------------------------


def test_names():
    op = rows(name="tilec_test::names")
    assert op.name == "tilec_test::names" and torch.ops.tilec_test.names.default is op.overload
    assert op.backward.name == "tilec_test::names_backward"
    assert rows(name="tilec_test::names") is op and rows() is rows() and rows() is not op
    assert rows().name.startswith("tilec::rows_")


def test_operator_that_is_defined_again_is_replaced():
    x = torch.randn(4)
    first = tilec.torch.op(TWICE, name="tilec_test::again")
    assert torch.equal(first(x), 2 * x)
    second = tilec.torch.op(TWICE.replace("2 *", "3 *"), name="tilec_test::again")
    assert second is not first and torch.equal(second(x), 3 * x) and torch.equal(torch.ops.tilec_test.again(x), 3 * x)
    other = tilec.torch.op(
        "op f(x: f32[N], z: f32[N]) -> (y: f32[N]) { y[i] = x[i] + z[i] }", name="tilec_test::again"
    )
    assert torch.equal(other(x, x), x + x)


def test_mistakes():
    def refused(why, **options):
        with pytest.raises(tilec.TileError, match=why):
            tilec.torch.op(**{"source": TWICE, **options})

    refused("name= must be two names", name="twice")
    refused("has no inputs", source="op f() -> (y: f32[3]) { y[i] = 1.0 }")
    refused("no size `K`", sizes={"K": 3})
    for inputs, results, body, why in (
        ("z_grad: f32[N]", "x_grad: f32[N]", "x_grad[i] = z_grad[i]", "has a parameter `z_grad`, which the op does not have"),
        ("y_gard: f32[N]", "x_grad: f32[N]", "x_grad[i] = y_gard[i]", "did you mean `y_grad`"),
        ("y_grad: f32[N]", "z_grad: f32[N]", "z_grad[i] = y_grad[i]", "a result `z_grad`, which is no input's gradient"),
        ("x: f32[N]", "x_grad: f32[N]", "x_grad[i] = x[i]", "takes no result's gradient"),
        ("y_grad: f64[N]", "x_grad: f32[N]", "x_grad[i] = y_grad[i]", "is f64, and `y` is f32"),
        ("y_grad: f32[N, M]", "x_grad: f32[N]", "x_grad[i] = y_grad[i, 0]", "has 2 dimensions, and `y` of `twice` has 1"),
        ("y_grad: f32[N + 1]", "x_grad: f32[N]", "x_grad[i] = y_grad[i + 1]", r"is \[N - 1\], and `x` is \[N\]"),
    ):
        refused(why, backward=f"op b({inputs}) -> ({results}) {{ {body} }}")
    integers = "op f(x: i32[N]) -> (y: f32[N]) { y[i] = f32(x[i]) }"
    backward = "op b(y_grad: f32[N]) -> (x_grad: i32[N]) { x_grad[i] = i32(y_grad[i]) }"
    refused("is i32, which has no gradient", source=integers, backward=backward)


def test_arguments_that_do_not_fit():
    op = tilec.torch.op(TWICE)
    for device in ("cpu", "meta"):
        with pytest.raises(tilec.TileError, match="complex64"):
            op(torch.empty(3, dtype=torch.complex64, device=device))
        with pytest.raises(tilec.TileError, match="is f32, and the argument is f64"):
            op(torch.empty(3, dtype=torch.float64, device=device))
        with pytest.raises(tilec.TileError, match="has 1 dimension, and the argument has 2"):
            op(torch.empty(3, 3, device=device))
    with pytest.raises(tilec.TileError, match="is not a value of f64"):
        layer()(*parts(grad=False)[:2], 10**400)
