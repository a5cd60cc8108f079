"""Gradients of operators, and `vmap`."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from tools.operators import TWICE, agree, by_torch, layer, parts, rows  # noqa: E402

import tilec  # noqa: E402
import tilec.torch  # noqa: E402
from tilec.torch import FallbackWarning, operators  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")


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


def test_opcheck_of_one_more_dimension():
    x, w, a = parts(2, 2, 3)
    many = torch.stack([w, 2 * w]).detach().requires_grad_()
    found = layer().batched((False, True, False))
    assert found.results == (True, True) and found.operator.name.endswith("_010")
    torch.library.opcheck(found.operator.overload, (x, many, a))


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
    with pytest.warns(FallbackWarning) as reported:
        torch.testing.assert_close(torch.vmap(op)(x), 2 * x + 1)
        torch.testing.assert_close(torch.vmap(op)(-x), 1 - 2 * x)
    (message,) = (str(w.message) for w in reported)
    assert message == f"tilec: vmap calls {op.name} once for each index, since `f` calls `g`, of another file"


@pytest.mark.parametrize("broken", ["forward", "backward"])
def test_vmap_reports_that_a_program_with_one_more_dimension_is_refused(broken, monkeypatch):
    """Results and gradients are those of single calls."""
    made = operators.batched

    def batched(program, op, inputs):
        found = made(program, op, inputs)
        return replace(found, text=found.text + " ?") if op.name == ("d" if broken == "backward" else "f") else found

    monkeypatch.setattr(operators, "batched", batched)
    op = tilec.torch.op(
        "op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] * x[i] }",
        backward="op d(x: f32[N], y_grad: f32[N]) -> (x_grad: f32[N]) { x_grad[i] = 2 * x[i] * y_grad[i] }",
        name=f"refused_{broken}::f",
    )
    x = torch.randn(3, 4, requires_grad=True)
    with pytest.warns(FallbackWarning) as reported:
        result = torch.vmap(op)(x)
        result.sum().backward()
    (message,) = {str(w.message) for w in reported if "vmap" in str(w.message)}
    name = "d" if broken == "backward" else "f"
    assert f"once for each index, since tilec failed: `{name}` with one more dimension is refused: " in message
    torch.testing.assert_close(result, x * x)
    torch.testing.assert_close(x.grad, 2 * x)


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
