"""Calls by the short way: they look at everything that can change, and give what the general way gives."""

from threading import Thread

import numpy as np
import pytest
from tools.fast_calls import PROGRAM, arrays, check, taken

import tilec


@pytest.fixture
def op(rng):
    """An op that has a short way for NumPy arrays of 3x5."""
    made = tilec.compile(PROGRAM)
    made(*arrays(rng))
    assert len(made._fast) == 1
    return made


def test_it_is_taken_and_right(op, rng):
    for _ in range(3):
        x, w = arrays(rng)
        assert taken(op, x, w)
        check(op(x, w), x, w)


def test_results_are_new_arrays(op, rng):
    first, second = op(*arrays(rng)), op(*arrays(rng))
    assert not np.shares_memory(first.y, second.y) and not np.shares_memory(first.s, second.s)


def test_read_only_arrays_are_inputs(op, rng):
    x, w = arrays(rng)
    x.flags.writeable = False
    assert taken(op, x, w)
    check(op(x, w), x, w)


def _off_by_a_byte(x):
    raw = np.zeros(x.nbytes + 1, np.uint8)
    view = raw[1:].view(np.float32).reshape(x.shape)
    view[...] = x
    return view


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[:2].copy(),
        lambda x: np.asfortranarray(x),
        lambda x: np.repeat(x, 2, 1)[:, ::2],
        lambda x: x[::-1],
        lambda x: x.astype(np.float64),
        lambda x: x.astype(">f4"),
        lambda x: x.view(np.ma.MaskedArray),
        _off_by_a_byte,
        lambda x: x.tolist(),
        lambda x: np.broadcast_to(x[0], x.shape),
    ],
    ids=["shape", "order", "stride", "negative", "type", "bytes", "subclass", "alignment", "kind", "broadcast"],
)
def test_what_differs_goes_the_general_way(op, rng, change):
    x, w = arrays(rng)
    other = change(x)
    assert not taken(op, other, w)
    fresh = tilec.compile(PROGRAM)
    try:
        expected = fresh(other, w)
    except tilec.CallError as error:
        with pytest.raises(tilec.CallError) as raised:
            op(other, w)
        assert str(raised.value) == str(error)
        return
    for a, b in zip(op(other, w), expected):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_number_of_arguments_is_checked(op, rng, count):
    x, w = arrays(rng)
    with pytest.raises(tilec.CallError, match="2 arguments"):
        op(*(x, w, w)[:count])


def test_streams_are_for_gpus(op, rng):
    with pytest.raises(tilec.CallError, match="stream="):
        op(*arrays(rng), stream=1)


def test_an_output_that_is_given_is_checked_and_written(op, rng):
    x, w = arrays(rng)
    y, s = np.empty_like(x), np.empty(3, np.float32)
    assert taken(op, x, w, out=(y, s)) and taken(op, x, w, out=[y, s]) and taken(op, x, w, out=op(x, w))
    y[...], s[...] = 0, 0
    results = op(x, w, out=(y, s))
    assert results.y is y and results.s is s
    check(results, x, w)
    with pytest.raises(tilec.CallError, match="overlaps"):
        op(x, w, out=(x, s))


def test_outputs_that_do_not_fit_go_the_general_way(op, rng):
    x, w = arrays(rng)
    y, s, both = np.empty_like(x), np.empty(3, np.float32), np.empty(18, np.float32)
    other = np.empty((3, 10), np.float32)[:, ::2]
    for out in (
        (y,),
        y,
        (y, s, s),
        (y, w),
        (x, s),
        (both[:15].reshape(3, 5), both[14:17]),
        (other, s),
        (y.T.copy(), s),
    ):
        assert not taken(op, x, w, out=out)
    check(op(x, w, out=(other, s)), x, w)
    y.flags.writeable = False
    assert not taken(op, x, w, out=(y, s))
    with pytest.raises(tilec.CallError, match="read-only"):
        op(x, w, out=(y, s))


def test_calls_that_never_fit_do_not_pile_up(op, rng):
    x, w = arrays(rng)
    for _ in range(12):
        check(op(np.asfortranarray(x), w), x, w)
    assert len(op._fast) == 1 and taken(op, x, w)


def test_several_shapes_are_remembered_and_the_oldest_forgotten(rng):
    op = tilec.compile("op twice(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] * 2.0 }")
    for n in range(1, 13):
        x = rng.standard_normal(n, np.float32)
        np.testing.assert_array_equal(op(x), x * 2)
    assert len(op._fast) == 8 and taken(op, x) and not taken(op, x[:1].copy())
    np.testing.assert_array_equal(op(x[:1].copy()), x[:1] * 2)


def test_the_latest_specialisation_is_the_one_that_ran(rng):
    op = tilec.compile("op twice(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] * 2.0 }")
    for n in (4, 9, 4):
        op(rng.standard_normal(n, np.float32))
        assert f"tensor<{n}xf32>" in op.stages["build"]


def test_checks_of_the_program_still_raise(rng):
    op = tilec.compile("op pick(x: f32[N], at: i32[M]) -> (y: f32[M]) { y[i] = x[at[i]] }")
    x, at = rng.standard_normal(6, np.float32), np.array([0, 5, 3], np.int32)
    for _ in range(3):
        np.testing.assert_array_equal(op(x, at), x[at])
    with pytest.raises(tilec.CallError):
        op(x, np.array([0, 6, 3], np.int32))
    np.testing.assert_array_equal(op(x, at), x[at])


def test_many_threads(op, rng):
    wrong = []

    def work(seed):
        own = np.random.default_rng(seed)
        for _ in range(200):
            x, w = arrays(own)
            if not np.array_equal(op(x, w).y, x * w):
                wrong.append(seed)

    threads = [Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


class TestTorch:
    """With tensors on the CPU."""

    @pytest.fixture
    def torch(self):
        return pytest.importorskip("torch")

    @pytest.fixture
    def op(self, torch, rng):
        made = tilec.compile(PROGRAM)
        made(*map(torch.from_numpy, arrays(rng)))
        assert len(made._fast) == 1
        return made

    def test_it_is_taken_and_right(self, op, torch, rng):
        for _ in range(3):
            x, w = map(torch.from_numpy, arrays(rng))
            assert taken(op, x, w)
            results = op(x, w)
            assert type(results.y) is torch.Tensor and not results.y.requires_grad
            check(results, x, w)

    @pytest.mark.parametrize("kind", ["shape", "stride", "type", "subclass", "numpy", "sparse", "negative bit"])
    def test_what_differs_is_not_taken(self, op, torch, rng, kind):
        x, w = map(torch.from_numpy, arrays(rng))
        other = {
            "shape": lambda: x[:2].clone(), "stride": lambda: x.t().contiguous().t(), "type": lambda: x.double(),
            "subclass": lambda: x.as_subclass(type("Mine", (torch.Tensor,), {})), "numpy": x.numpy, "sparse": x.to_sparse,
            "negative bit": lambda: torch.complex(x, x).conj().imag[:, :],
        }[kind]()  # fmt: skip
        assert not taken(op, other, w)

    def test_parameters_are_taken_where_no_gradients_are_recorded(self, op, torch, rng):
        x, w = map(torch.from_numpy, arrays(rng))
        parameter = torch.nn.Parameter(x)
        with torch.no_grad():
            assert taken(op, parameter, w) and taken(op, x, torch.nn.Parameter(w))
        assert not taken(op, torch.nn.Parameter(x, requires_grad=False), torch.nn.Parameter(w))
        assert taken(op, torch.nn.Parameter(x, requires_grad=False), w)

    def test_gradients_are_refused_each_time(self, op, torch, rng):
        x, w = map(torch.from_numpy, arrays(rng))
        with torch.no_grad():
            check(op(x.requires_grad_(), w), x.detach(), w)
        with pytest.raises(tilec.CallError, match="gradients"):
            op(x, w)
        check(op(x.detach(), w), x.detach(), w)


def test_graphs_are_for_gpus(op, rng):
    with pytest.raises(tilec.CallError, match="on the GPU"):
        op.graph(*arrays(rng))
