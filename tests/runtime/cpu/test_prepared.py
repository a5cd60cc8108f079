"""Calls of a program between the other operations of a PyTorch graph: what machine code takes, and what it hands back."""

import sys
from functools import partial

import pytest

torch = pytest.importorskip("torch")

import tilec  # noqa: E402
from tilec.core.diagnostics import CheckError  # noqa: E402
from tilec.core.dtypes import DTYPES  # noqa: E402
from tilec.driver import fast_call  # noqa: E402

F32, I64 = DTYPES["f32"], DTYPES["i64"]
OTHER = object()


def prepared(text: str, inputs, outputs, takes=None, values=None):
    """The call of a program on the CPU whose inputs and outputs are of these types, shapes and strides; OTHER and the values of
    the call where it does not take them."""
    op = tilec.compile(text, target="cpu")
    built = op.build_for([(dtype, tuple(sorted_shape(shape, strides))) for dtype, shape, strides in inputs], "cpu")
    new = [partial(torch.empty_strided, shape, strides, dtype=torch.float32) for _, shape, strides in outputs]
    takes = list(range(len(inputs))) if takes is None else takes
    call = fast_call.prepare(built, "cpu", values or len(takes), takes, inputs, outputs, new, lambda *v: (OTHER, v))
    assert call is not None
    return call


def sorted_shape(shape, strides):
    """The shape of the row-major array in the memory of a dense tensor."""
    return [shape[d] for d in sorted(range(len(shape)), key=lambda d: -strides[d])]


def test_values_in_another_order_and_results_with_strides():
    """x is seen transposed, y is made transposed; the first value of the call is read by nothing."""
    call = prepared(
        "op f(x: f32[M, N], w: f32[N]) -> (y: f32[M, N], s: f32[M]) { y[i, j] = x[i, j] * w[j]  s[i] = sum[j](x[i, j]) }",
        [(F32, (5, 3), (1, 5)), (F32, (5,), (1,))], [(F32, (5, 3), (1, 5)), (F32, (3,), (1,))], [2, 1], 3,
    )  # fmt: skip
    x, w = torch.randn(3, 5).t(), torch.randn(5)
    y, s = call(None, w, x)
    torch.testing.assert_close(y, x * w[:, None])
    torch.testing.assert_close(s, x.sum(0))
    assert y.stride() == (1, 5) and call("anything", torch.nn.Parameter(w), x)[1].equal(s)


def test_everything_that_can_differ_is_looked_at():
    call = prepared(
        "op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = 2 * x[i, j] }",
        [(F32, (4, 1), (1, 1))],
        [(F32, (4, 1), (1, 1))],
    )
    x = torch.randn(4, 1)
    assert call(x).equal(2 * x) and call(x[:, :1].as_strided((4, 1), (1, 9))).equal(2 * x)  # a size of 1 has any stride
    refused = [
        x.t(), x.double(), x[:3], torch.randn(8, 1)[::2], x[None], x.numpy(), 3, None, x.to("meta"), x.int(),
        torch._subclasses.FakeTensorMode().from_tensor(x),
    ]  # fmt: skip
    for value in refused:
        other, given = call(value)
        assert other is OTHER and given[0] is value
    assert call(x, x) == (OTHER, (x, x)) and call()[0] is OTHER


def test_results_that_are_written_into_values():
    """One of them over an input, which it may lie over, and one into a value that is read by nothing."""
    op = tilec.compile(
        "op f(x: f32[N], w: f32[N]) -> (y: f32[N], z: f32[N]) { y[i] = x[i] * w[i]  z[i] = x[i] + 1 }", target="cpu"
    )
    array = (F32, (40,), (1,))
    built = op.build_for([array[:2]] * 2, "cpu")
    assert built.emitted.may_share(1, 0)
    call = fast_call.prepare(built, "cpu", 3, [2, 1], [array] * 2, [array] * 2, [1, 0], lambda *v: OTHER)
    out, w, x = torch.zeros(40), torch.randn(40), torch.randn(40)
    wanted, counts = (x * w, x + 1), [sys.getrefcount(t) for t in (out, w, x)]
    made = call(out, w, x)
    assert made[0] is w and made[1] is out and w.equal(wanted[0]) and out.equal(wanted[1])
    del made
    assert [sys.getrefcount(t) for t in (out, w, x)] == counts
    assert call(out[:3], w, x) is OTHER and call(None, w, x) is OTHER and w.equal(wanted[0])


def test_a_failed_check_is_raised_and_memory_returned():
    call = prepared(
        "op f(x: f32[N], at: i64[M]) -> (y: f32[M]) { y[i] = x[at[i]] }",
        [(F32, (4,), (1,)), (I64, (2,), (1,))],
        [(F32, (2,), (1,))],
    )
    x = torch.randn(4)
    assert call(x, torch.tensor([3, 0])).equal(x[[3, 0]])
    for _ in range(3):
        with pytest.raises(CheckError, match="reads outside"):
            call(x, torch.tensor([3, 4]))
    assert call(x, torch.tensor([3, 1])).equal(x[[3, 1]])


def test_results_that_cannot_be_allocated():
    op = tilec.compile("op f(x: f32[N]) -> (y: f32[N], z: f32[N]) { y[i] = 2 * x[i]  z[i] = 3 * x[i] }", target="cpu")
    array = (F32, (4,), (1,))

    def fail():
        raise MemoryError("none")

    built = op.build_for([array[:2]], "cpu")
    call = fast_call.prepare(built, "cpu", 1, [0], [array], [array] * 2, [partial(torch.empty, 4), fail], lambda *v: v)
    with pytest.raises(MemoryError, match="none"):
        call(torch.randn(4))
    # allocated otherwise than was said: as values that do not fit
    call = fast_call.prepare(
        built, "cpu", 1, [0], [array], [array] * 2, [partial(torch.empty, 4), partial(torch.empty, 5)], lambda *v: v
    )
    x = torch.randn(4)
    assert call(x)[0] is x


def test_the_switch_turns_it_off(monkeypatch):
    monkeypatch.setattr(fast_call.tables, "native_calls", lambda: False)
    assert fast_call.prepare(None, "cpu", 0, [], [], [], [], print) is None
