"""What a call and `compile` are given: what does not fit is a CallError that says which argument it is about."""

import copy
import pickle

import numpy as np
import pytest

import tilec
from tilec.driver import fast_call
from tilec.runtime.buffers import overlaps_itself, view

F32 = np.float32
THREE = "op h(x: f32[N], b: f32[N], z: f32[N]) -> (y: f32[N]) { y[i] = x[i] + b[i] + z[i] }"
TWO = "op two(x: f32[N]) -> (y: f32[N], z: f32[N]) { y[i] = x[i] z[i] = x[i] + 1 }"
MATRIX = "op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = 2 * x[i, j] }"
X = np.ones(4, F32)


# ---- numbers -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one():
    """An op for each type, whose only argument is a number."""
    made = {}

    def of(dtype):
        if dtype not in made:
            made[dtype] = tilec.compile(f"op f(a: {dtype}) -> (y: {dtype}) {{ y = a }}")
        return made[dtype]

    return of


REFUSED = {
    "u8": (300, -1, 2.7, 2.0, float("nan")), "i32": (2**40, 2**80, 10**5000, 2.5, float("inf")), "i64": (2**63,),
    "u64": (-1, 2**64), "bool": (2, -1, 1.0), "f16": (1e10, 65520, -1e300), "f32": (1e300, 10**400),
    "f8e4m3": (1e3, float("inf")), "bf16": (3.4e38,),
}  # fmt: skip


@pytest.mark.parametrize("dtype", REFUSED)
@pytest.mark.filterwarnings("error")
def test_numbers_that_a_type_does_not_have(one, dtype):
    op = one(dtype)
    op(1)
    for value in REFUSED[dtype]:  # again where the op has run before
        with pytest.raises(tilec.CallError, match=rf"`a`: .* is not a value of {dtype}, which holds"):
            op(value)
        with pytest.raises(tilec.CallError, match=f"not a value of {dtype}"):
            tilec.reference(f"op f(a: {dtype}) -> (y: {dtype}) {{ y = a }}")(value)


@pytest.mark.parametrize(
    "dtype, value, expected",
    [
        ("u8", 255, 255), ("i8", -128, -128), ("i32", True, 1), ("bool", 1, True), ("bool", False, False),
        ("f32", 3, 3.0), ("f32", 0.1, F32(0.1)), ("f32", 1e-300, 0.0), ("bf16", 1 + 2**-8 + 2**-40, 1 + 2**-7),
        ("f16", 65519.999, 65504.0), ("f32", float("inf"), np.inf),
        ("f16", 65504.0, 65504.0), ("f8e5m2", float("-inf"), -np.inf), ("f32", float("nan"), np.nan), ("f32", np.float64(2.5), 2.5),
    ],
)  # fmt: skip
def test_numbers_that_it_has(one, dtype, value, expected):
    np.testing.assert_array_equal(np.asarray(one(dtype)(value)).astype(np.float64), np.float64(expected))


def test_a_number_is_looked_at_in_every_call():
    """Beside arrays, on calls after the first; NumPy's numbers have types of their own."""
    op = tilec.compile("op f(x: f32[N], n: i32) -> (y: f32[N]) { y[i] = x[i] * n }")
    for _ in range(3):
        np.testing.assert_array_equal(op(X, 2), 2 * X)
        with pytest.raises(tilec.CallError, match=r"`n`: 2.5 is not a value of i32(.|\n)*round the argument"):
            op(X, 2.5)
        with pytest.raises(tilec.CallError, match="`n` is i32, and the argument is i64"):
            op(X, np.int64(2))


# ---- arrays --------------------------------------------------------------------------------------------------------------


class Device:
    """An array on a GPU, as its interface says."""

    def __init__(self, **described):
        self.__cuda_array_interface__ = described


UNFIT = {
    "expected an array, got a list": [1, 2],
    "expected an array, got None": None,
    "expected an array, got the class ndarray": np.ndarray,
    "arrays of >f4 are not supported": X.astype(">f4"),
    "not aligned": np.zeros(17, np.uint8)[1:].view(F32),
    "masked arrays are not supported\nhint: pass array.filled": np.ma.array(X, mask=[0, 1, 0, 0]),
    "cannot be read: KeyError": Device(typestr="<f4"),
}


@pytest.mark.parametrize("says", UNFIT)
def test_what_is_no_array_is_named(says):
    op = tilec.compile(THREE)
    for _ in range(2):
        with pytest.raises(tilec.CallError, match=f"^`b`: .*{says}"):
            op(X, UNFIT[says], X)
        np.testing.assert_array_equal(op(X, X, z=X), 3 * X)


def test_an_array_of_a_gpu_without_a_driver(monkeypatch):
    from tilec.runtime.cuda import driver as cuda_driver

    def device_of(pointer):
        raise cuda_driver.NoDriver("there is no CUDA driver")

    monkeypatch.setattr(cuda_driver, "device_of", device_of)
    with pytest.raises(
        tilec.CallError, match=r"`b`: a .*Device is on a GPU that cannot be used: there is no CUDA driver"
    ):
        tilec.compile(THREE)(X, Device(typestr="<f4", data=(4096, False), shape=(4,)), X)


def test_parameters_of_any_name():
    op = tilec.compile("op f(self: f32[N], stage: f32[N]) -> (y: f32[N]) { y[i] = self[i] - stage[i] }")
    np.testing.assert_array_equal(op(self=3 * X, stage=X), 2 * X)
    np.testing.assert_array_equal(op.interpret("map", self=3 * X, stage=X), 2 * X)
    with pytest.raises(tilec.CallError, match="has no size `self`"):
        op.build(self=3)


def test_the_first_array_says_what_results_are():
    torch = pytest.importorskip("torch")
    op = tilec.compile("op f(a: f32, x: f32[N]) -> (y: f32[N]) { y[i] = a * x[i] }")
    for number in (2.0, F32(2)):
        assert isinstance(op(number, torch.ones(4)), torch.Tensor) and isinstance(op(number, X), np.ndarray)
    assert isinstance(op(torch.tensor(2.0), X), torch.Tensor)
    assert isinstance(op(np.array(2, F32), torch.ones(4)), np.ndarray)


def test_results_whose_names_python_does_not_allow():
    op = tilec.compile(
        "op f(x: f32[N]) -> (a: f32[N], _b: f32[N], class: f32[N]) { a[i] = x[i] _b[i] = x[i] class[i] = x[i] }"
    )
    assert op(X)._fields == ("a", "_1", "_2")


# ---- out= ----------------------------------------------------------------------------------------------------------------


def strided(shape, strides, kind="numpy"):
    if kind == "torch":
        torch = pytest.importorskip("torch")
        return torch.as_strided(torch.zeros(200), shape, [s // 4 for s in strides])
    return np.lib.stride_tricks.as_strided(np.zeros(200, F32), shape, strides)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_results_that_overlap_themselves(kind):
    x = np.arange(48, dtype=F32).reshape(6, 8)
    if kind == "torch":
        x = pytest.importorskip("torch").from_numpy(x)
    op = tilec.compile(MATRIX)
    for _ in range(2):
        for strides in ((0, 4), (16, 4), (4, 4), (32, 0), (12, 8)):
            with pytest.raises(tilec.CallError, match=r"out= for `y` overlaps itself(.|\n)*hint: pass a new array"):
                op(x, out=strided((6, 8), strides, kind))
        for strides in ((32, 4), (4, 24), (4, 32), (64, 8), (36, 4)):
            np.testing.assert_array_equal(op(x, out=strided((6, 8), strides, kind)), 2 * x)


def test_elements_that_share_memory():
    """Against the addresses themselves."""
    rng = np.random.default_rng(0)
    for _ in range(150):
        shape, strides = rng.integers(1, 5, 3), rng.integers(0, 9, 3) * 4
        array = strided(tuple(shape), tuple(strides))
        addresses = sum(np.indices(tuple(shape))[k] * strides[k] for k in range(3)).ravel()
        assert overlaps_itself(view(array)) == (len(set(addresses)) < len(addresses)), (shape, strides)
    backwards = np.zeros((4, 6), F32)[::-1, ::-2]
    assert not overlaps_itself(view(backwards)) and not overlaps_itself(view(np.zeros((0, 3), F32)))


@pytest.mark.parametrize(
    "source, out, message",
    [
        (
            THREE,
            X.astype(">f4"),
            "out= for `y`: arrays of >f4 are not supported\nhint: pass a new array of the type f32",
        ),
        (THREE, np.zeros(17, np.uint8)[1:].view(F32), "out= for `y`: .* not aligned.*\nhint: pass a new array"),
        (THREE, {"y": X}, "out= for `y`: expected an array, got a dict"),
        ("op f(x: f32[N]) -> (y: f32) { y = sum[i](x[i]) }", F32(3), "out= for `y`: expected an array, got a float32"),
        (THREE, 3.0, "out= for `y`: expected an array, got a float"),
        (THREE, [X, X], "h has 1 result, but out= has 2 arrays"),
        (TWO, {"y": X, "z": X}, "out= must be a list or a tuple of 2 arrays, not a dict"),
        (TWO, np.zeros((2, 4), F32), "out= must be a list or a tuple of 2 arrays"),
        (TWO, [X.copy()], "two has 2 results, but out= has 1 array$"),
    ],
)
def test_results_that_do_not_fit(source, out, message):
    op = tilec.compile(source)
    arguments = [X] * len(op._declared.inputs)
    op(*arguments)
    with pytest.raises(tilec.CallError, match=message):
        op(*arguments, out=out)


# ---- options, copies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, message",
    [
        ({"sizes": [3]}, "sizes= must be a dict of sizes by name, not a list"),
        ({"sizes": {3: 3}}, "the name of a size must be a str"),
        ({"sizes": {"N": True}}, "the size N must be a whole number from 0 to"),
        ({"sizes": {"N": 2.0}}, "the size N must be a whole number from 0 to"),
        ({"sizes": {"N": -1}}, "the size N must be a whole number from 0 to"),
        ({"sizes": {"N": 1 << 63}}, "the size N must be a whole number from 0 to"),
        ({"op": 3}, "op= must be a str, not an int"),
        ({"target": 3}, "target= must be a str, not an int"),
        ({"schedule": 3}, "schedule= must be a path, not an int"),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(tilec.CallError, match=message):
        tilec.compile(THREE, **options)


def test_sizes_of_numpy():
    op = tilec.compile("op f() -> (y: i64[N]) { y[i] = i }", sizes={"N": np.int64(4)})
    assert op().tolist() == [0, 1, 2, 3] and type(op._sizes["N"]) is int
    with pytest.raises(tilec.CallError, match="the size N must be"):
        op.build(N=True)


def test_an_op_is_pickled_as_what_it_was_compiled_from(tmp_path):
    (tmp_path / "lib.tile").write_text("def twice(x) { return 2 * x }\n")
    path = tmp_path / "main.tile"
    path.write_text(
        'import "lib.tile"\nop f(x: f32[N]) -> (y: f32[N], s: f32) { y[i] = twice(x[i]) s = sum[i](x[i]) }\n'
    )
    for op in (tilec.compile(path, sizes={"N": 4}, target="cpu"), tilec.compile(MATRIX)):
        x = X if op.name == "f" and op._sizes else np.ones((2, 3), F32)
        expected = op(x)
        again = pickle.loads(pickle.dumps(op))
        assert again is not op and again.name == op.name and again._sizes == op._sizes and again._target == op._target
        for a, b in zip(again(x), expected):
            np.testing.assert_array_equal(a, b)
        assert copy.deepcopy({"op": op})["op"] is op and copy.copy(op) is op


# ---- run-time checks ---------------------------------------------------------------------------------------------------------


def failure(op, *arguments, **named):
    with pytest.raises(tilec.CallError) as raised:
        op(*arguments, **named)
    return str(raised.value)


def test_a_gather_outside_says_which_index():
    op = tilec.compile(
        "op f(table: f32[V, D], ids: i32[B, S]) -> (y: f32[B, S, D]) {\n"
        "    y[b, s, d] = table[ids[b, s], d] if ids[b, s] > -5 else 0\n}"
    )
    table, ids = np.ones((10, 4), F32), np.zeros((2, 3), np.int32)
    op(table, ids)
    ids[0, 1], ids[1, 2] = -7, 12  # the first is not read
    message = "index 12 is outside 0:10, dimension 0 of `table`, at b = 1, s = 2\nhint: `pad(access, value)`"
    assert taken(op, table, np.zeros_like(ids))
    assert f"`table[ids[b, s], d]` reads outside `table`, whose shape is [10, 4]: {message}" in failure(op, table, ids)
    out = np.zeros((2, 3, 4), F32)
    assert message in failure(op, table, ids=ids[:, ::-1][:, ::-1], out=out)
    torch = pytest.importorskip("torch")
    assert message in failure(op, torch.from_numpy(table), torch.from_numpy(ids))


def taken(op, *given):
    return any(call(given, None, None) is not fast_call.NO for call, _, _ in op._fast)


def test_a_gather_by_what_is_computed():
    """Behind equations, in reductions and scans, in a subscript of a subscript, and beside what costs too much to repeat."""
    op = tilec.compile(
        "op f(t: f32[V], p: i32[V], x: i32[M, N], w: f32[M, N]) -> (y: f32[M], z: f32[N]) {\n"
        "    k[i, j] = x[i, j] * 2 + 1\n"
        "    y[i] = sum[j](w[i, j] * (t[p[k[i, j]]] if w[i, j] > 0 else 1))\n"
        "    z[j] = sum[i](w[i, j])\n}"
    )
    t, p, x, w = np.ones(9, F32), np.arange(9, dtype=np.int32), np.ones((3, 4), np.int32), np.ones((3, 4), F32)
    op(t, p, x, w)
    p[3], w[:2] = -2, 0
    assert "`t[p[k[i, j]]]` reads outside `t`, whose shape is [9]: index -2 is outside 0:9" in failure(op, t, p, x, w)
    assert "of `t`, at i = 2, j = 0\n" in failure(op, t, p, x, w)
    p[3], x[2, 3] = 3, 4
    assert "`p[k[i, j]]` reads outside `p`, whose shape is [9]: index 9 is outside 0:9" in failure(op, t, p, x, w)


def test_what_cannot_be_found_again_is_reported_as_it_was(monkeypatch):
    from tilec.semantics import out_of_range

    op = tilec.compile("op f(t: f32[V], k: i32[N]) -> (y: f32[N]) { h[i] = k[i] + 1 y[i] = t[h[i]] + t[h[i]] }")
    monkeypatch.setattr(out_of_range, "MOST", 1)
    assert "whose shape is [4]\nhint: `pad" in failure(op, X, np.full(3, 9, np.int32))


def test_what_failed_is_fetched_from_a_gpu():
    from types import SimpleNamespace

    from tilec.core.diagnostics import CheckError
    from tilec.semantics.out_of_range import on_host

    k = np.array([0, 9], np.int32)
    there = view(k)._replace(device=0, pointer=0)
    for owner in (SimpleNamespace(cpu=lambda: k), SimpleNamespace(get=lambda: k)):  # PyTorch's and CuPy's ways
        np.testing.assert_array_equal(on_host(there._replace(owner=owner))(), k)
    with pytest.raises(tilec.CallError, match="stays on its GPU"):
        on_host(there._replace(owner=None))()
    op = tilec.compile("op f(t: f32[V], k: i32[N]) -> (y: f32[N]) { y[i] = t[k[i]] }")
    deferred = CheckError("found later", deferred=True)
    assert op.reported(deferred, (X, k)) is deferred


def test_options_that_do_not_exist():
    with pytest.raises(TypeError, match="keyword argument 'late'; `late` was renamed to `deferred_checks`"):
        tilec.compile("y[i] = x[i]", late=True)
    with pytest.raises(TypeError, match=r"compile\(\) got an unexpected keyword argument 'layout'$"):
        tilec.compile("y[i] = x[i]", layout=1)
