"""Programs as operators of PyTorch: calls of `tilec.torch.op`, what PyTorch checks, names and mistakes."""

from __future__ import annotations

import pickle
import threading

import pytest

torch = pytest.importorskip("torch")

from tools.operators import TWICE, agree, by_torch, layer, parts, rows  # noqa: E402

import tilec  # noqa: E402
import tilec.torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")


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


def test_numbers_are_values_of_their_types():
    op = tilec.torch.op("op f(x: f32[N], a: f32, n: i32) -> (y: f32[N], c: f32) { y[i] = x[i] + n; c = a }")
    x = torch.randn(3)
    for a in (0.0, -0.0, 1.5, 1.5, float("inf"), 2):
        made = op(x, a, 3)
        assert made.c == a and made.c.signbit() == (str(a)[0] == "-") and torch.equal(made.y, x + 3)
    for n in (0.0, 2.0, 2**31):
        with pytest.raises(tilec.TileError, match="is not a value of i32"):
            op(x, 1.0, n)
    with torch.inference_mode():
        layer()(*parts(grad=False)[:2], 7.0)
    x, w, _ = parts()
    layer()(x, w, 7.0).y.sum().backward()  # a number of an inference is saved for a gradient


def test_any_sizes_and_memory_orders():
    op = rows()
    for m, n in ((1, 1), (4, 7), (1, 9), (6, 2)):
        x = torch.randn(n, m, dtype=torch.float64).T
        torch.testing.assert_close(op(x), torch.softmax(x, 1))
        assert op(x).is_contiguous()
    assert op(torch.randn(0, 3, dtype=torch.float64)).shape == (0, 3)


def test_size_that_no_argument_determines_is_a_keyword():
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


@pytest.mark.parametrize(("m", "n", "transposed"), [(0, 3, False), (1, 2, False), (1, 1, True), (3, 4, True)])
def test_fake_results_are_the_real_ones(m, n, transposed):
    from torch._subclasses.fake_tensor import FakeTensorMode

    op = layer()
    x = torch.randn(m, n, dtype=torch.float64)
    x = x.T.contiguous().T if transposed else x
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


# ---- names -----------------------------------------------------------------------------------------------------------


def test_names():
    op = rows(name="tilec_test::names")
    assert op.name == "tilec_test::names" and torch.ops.tilec_test.names.default is op.overload
    assert op.backward.name == "tilec_test::names_backward"
    assert rows(name="tilec_test::names") is op and rows() is rows() and rows() is not op
    assert rows().name == "tilec::rows_8f35e52c"  # the same in every process: exported programs have it


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


def test_imports_from_a_path(tmp_path):
    """Its own, those of its gradient, and those of the operator that is loaded again."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "part.tile").write_text("def twice(x) { return 2 * x }\n")
    text = 'import "part.tile"\nop f(x: f32[N]) -> (y: f32[N]) { y[i] = twice(x[i]) }\n'
    backward = 'import "part.tile"\nop g(x: f32[N], y_grad: f32[N]) -> (x_grad: f32[N]) { x_grad[i] = twice(y_grad[i]) }\n'
    made = tilec.torch.op(text, backward=backward, path=tmp_path / "lib")
    for operator in (made, pickle.loads(pickle.dumps(made))):
        x = torch.ones(3, requires_grad=True)
        operator(x).sum().backward()
        assert x.grad.tolist() == [2, 2, 2]
    with pytest.raises(tilec.TileError, match="there is no such file"):
        tilec.torch.op(text)
