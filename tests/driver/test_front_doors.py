"""`tilec.einsum`, `tilec.compile` of a spelling, and `tilec.op` on a Python function."""

# ruff: noqa: F722, F821, UP037 - annotations are types of the language
from __future__ import annotations

import inspect
import pickle
from typing import Annotated

import numpy as np
import pytest

import tilec
from tilec.core.diagnostics import CallError, TileError

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_a_spelling_is_compiled_as_a_program_is():
    matmul = tilec.compile("ij,jk->ik", target="cpu")
    np.testing.assert_array_equal(matmul(A, B), A @ B)
    np.testing.assert_array_equal(matmul(x1=A.astype(np.float64), x2=B.astype(np.float64)), A @ B)
    into = np.empty((2, 4), np.float32)
    assert matmul(A, B, out=into) is into and (into == A @ B).all()
    again = pickle.loads(pickle.dumps(matmul))
    np.testing.assert_array_equal(again(A[:1], B), A[:1] @ B)
    assert "out" in matmul.explain() and matmul.name == "einsum"


def test_einsum_keeps_what_it_compiled():
    from tilec.dsl.einsum import spelling
    from tilec.functions import _spelled

    np.testing.assert_array_equal(tilec.einsum("ij,jk", A, B), A @ B)
    np.testing.assert_array_equal(tilec.einsum(A, [0, 1], B, [1, 2], [0, 2]), A @ B)
    assert _spelled(spelling("ij,jk"), None) is _spelled(spelling("ij,jk->ik"), None)


@pytest.mark.parametrize("option", [{"sizes": {"i": 3}}, {"varies": "all"}, {"path": "lib"}, {"schedule": "a.sched.toml"}])
def test_options_of_programs_are_refused(option):
    with pytest.raises(CallError, match="does not go with a spelling") as error:
        tilec.compile("ij,jk->ik", **option)
    assert "tilec new 'ij,jk->ik'" in str(error.value)


def test_a_spelling_has_no_types_before_a_call():
    with pytest.raises(CallError, match="compiled when it is called"):
        tilec.compile("ij,jk->ik", target="cpu").build()
    with pytest.raises(CallError, match="has no op 'softmax'"):
        tilec.compile("ij,jk->ik", op="softmax")
    with pytest.raises(CallError, match="takes a string of indices and its operands"):
        tilec.einsum(A, B)
    with pytest.raises(TypeError):
        tilec.einsum("ij->ji", A, optimise=True)


@tilec.op
def softmax(x: "f32[M, N]") -> "y: f32[M, N]":
    """
    e[i, j] = exp(x[i, j] - max[k](x[i, k]))
    y[i, j] = e[i, j] / sum[k](e[i, k])
    """


@tilec.op(target="cpu", varies={"M": (1, 8)})
def scaled(x: Annotated[np.ndarray, "f32[M]"], a: Annotated[float, "f32"]) -> Annotated[np.ndarray, "y: f32[M]"]:
    """y[i] = a * x[i]"""
    ...


@tilec.op
def short(x, w):
    "y[i] = sum[j](x[i, j] * w[j])"


@tilec.op
def whole(x: np.ndarray) -> np.ndarray:
    """
    def twice(x) { return 2 * x }
    op whole(x: f32[N]) -> (y: f32[N]) { y[i] = twice(x[i]) }
    op other(z: f32[N]) -> (y: f32[N]) { y[i] = z[i] }
    """


def test_functions_are_ops():
    e = np.exp(A - A.max(1, keepdims=True))
    np.testing.assert_allclose(softmax(A), e / e.sum(1, keepdims=True), rtol=1e-6)
    np.testing.assert_array_equal(scaled(A[0], 3), 3 * A[0])
    np.testing.assert_array_equal(short(A, B[:, 0]), A @ B[:, 0])
    np.testing.assert_array_equal(whole(A[0]), 2 * A[0])
    assert softmax.__name__ == "softmax" and "e[i, j]" in softmax.__doc__ and softmax.__module__ == __name__
    assert list(inspect.signature(softmax).parameters) == ["x"]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(scaled))(A[0], 2), 2 * A[0])
    assert [str(c.sizes) for c in scaled.classes()] != []


def test_mistakes_have_their_place_in_the_python_file():
    def wrong(x: "f32[N]") -> "y: f32[N]":
        """y[i] = x[i]
        z[i] = missing[i]
        """

    first = inspect.getsourcelines(wrong)[1]
    with pytest.raises(TileError) as error:
        tilec.op(wrong)
    span = error.value.diagnostics[0].span
    assert span.source.name == __file__ and span.line == first + 2
    assert span.source.line(span.line)[span.column - 1 :].startswith("missing")

    def one_line(x: "f32[N]") -> "y: f32[N]": "y[i] = x[i] + missing[i]"

    with pytest.raises(TileError, match="missing") as error:
        tilec.op(one_line)
    assert error.value.diagnostics[0].span.line == inspect.getsourcelines(one_line)[1]


def test_a_function_without_a_file():
    space: dict[str, object] = {"tilec": tilec}
    exec('@tilec.op\ndef f(x: "f32[N]") -> "y: f32[N]":\n    """\n    y[i] = -x[i]\n    """', space)
    np.testing.assert_array_equal(space["f"](A[0]), -A[0])


def test_functions_that_are_no_programs():
    def no_text(x): ...

    def runs(x):
        """y[i] = x[i]"""
        return x

    def default(x: "f32[N]" = None) -> "y: f32[N]":
        """y[i] = x[i]"""

    def untyped(x) -> "y: f32[N]":
        """y[i] = x[i]"""

    def other_names(a, b):
        """y[i] = b[i] + a[i]"""

    for function, message in (
        (no_text, "no_text has no docstring"),
        (runs, "runs has statements beside its docstring"),
        (default, "cannot be an input"),
        (untyped, "'x' of untyped has no type"),
        (other_names, "the parameters of other_names are a, b; the inputs of its program are b, a"),
        (len, "takes a Python function"),
    ):
        with pytest.raises(CallError, match=message):
            tilec.op(function)
    with pytest.raises(TypeError):
        tilec.op(targets="cpu")
