"""Einsum's spellings: the programs of NumPy's and opt_einsum's forms give what `np.einsum` gives; messages of mistakes."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
from tilec.core.diagnostics import CallError
from tilec.core.dtypes import DTYPES
from tilec.dsl.einsum import by_lists, is_spelling, program, spelling

RIGHT = {
    "ij,jk->ik": [(2, 3), (3, 4)],
    "ij,jk": [(2, 3), (3, 4)],
    "ba,b": [(2, 3), (2,)],
    "ii": [(3, 3)],
    "ii->i": [(3, 3)],
    "ij->ji": [(2, 3)],
    "...ij,...jk->...ik": [(5, 1, 2, 3), (4, 3, 2)],
    "i...,i": [(3, 2, 4), (3,)],
    "...,...": [(2, 3), (3,)],
    " i j , j -> i ": [(2, 3), (3,)],
    ",ij->ij": [(), (2, 3)],
    ",->": [(), ()],
    "ij,jk->k": [(2, 1), (3, 4)],
    "i,j->ij": [(0,), (3,)],
    "ij->": [(0, 3)],
    "Ij,jI->I": [(2, 3), (3, 2)],
    "ab,bc,cd,de->ae": [(2, 9), (9, 2), (2, 9), (9, 3)],
    "ea,fb,abcd,gc,hd->efgh": [(2, 3), (3, 2), (3, 2, 2, 3), (4, 2), (2, 3)],
    "ab,ab,c->c": [(2, 3), (2, 3), (4,)],
    "yx,xe->ye": [(2, 3), (3, 2)],
}


@pytest.mark.parametrize("text", RIGHT)
def test_as_numpy(text):
    random = np.random.default_rng(3)
    arrays = [random.standard_normal(shape) for shape in RIGHT[text]]
    assert is_spelling(text) or text in ("ii",)
    found = tilec.einsum(text, *arrays, target="cpu")
    expected = np.einsum(text, *arrays)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)


def test_lists_of_indices_are_the_same_program():
    a, b = np.ones((2, 3), np.float32), np.ones((7, 3, 4), np.float32)
    assert by_lists((a, [0, 1], b, [..., 1, 2], [..., 0, 2]))[0] == spelling("ab,...bc->...ac")
    assert by_lists((a, ["row", "k"], b, [..., "k", "n"]))[0] == spelling("ab,...bc->...ca")  # "n" is before "row"
    assert str(spelling(str(spelling("...b,ab")))) == "...b,ab->...a"
    found = tilec.einsum(a, [10, 2], b, [..., 2, 11], [..., 11, 10], target="cpu")
    np.testing.assert_array_equal(found, np.einsum("ik,...kj->...ji", a, b))


def test_products_come_in_the_cheapest_order():
    text = program(spelling("ij,jk,kl->il"), [DTYPES["f32"]] * 3, [(100, 2), (2, 100), (100, 3)])
    assert "t1[j, l] = sum[k](x2[j, k] * x3[k, l])" in text and "out[i, l] = sum[j](x1[i, j] * t1[j, l])" in text


@pytest.mark.parametrize(
    "given, result",
    [("bf16 bf16", "bf16"), ("i8 i8", "i8"), ("bool bool", "bool"), ("f16 f32", "f32"), ("bf16 f16", "f32"), ("i32 f32", "f32")],
)
def test_type_of_the_result(given, result):
    dtypes = [DTYPES[name] for name in given.split()]
    arrays = [np.ones((3, 3)).astype(t.numpy) for t in dtypes]
    found = tilec.einsum("ij,jk->ik", *arrays, target="cpu")
    assert found.dtype == DTYPES[result].numpy
    assert (found.astype(np.float64) == (1 if result == "bool" else 3)).all()


def test_a_dimension_of_one_is_read_at_its_only_place():
    assert "x1[i, 0]" in program(spelling("ij,jk->ik"), [DTYPES["f32"]] * 2, [(2, 1), (3, 4)])


@pytest.mark.parametrize(
    "text, shapes, message",
    [
        ("ij,jk->iz", None, "the result's index 'z' is in no operand"),
        ("ij->ii", None, "has the index 'i' twice"),
        ("i1,j->ij", None, "'1' in 'i1,j->ij' is no index"),
        ("i......,j", None, "'.' in"),
        ("ij,jk->ik", [(2, 3), (4, 5)], "index 'j' is 3 in operand 1 and 4 in operand 2"),
        ("ij,jk->ik", [(2, 3), (3,)], "operand 2 of 'ij,jk->ik' has 1 dimension instead of 2"),
        ("...ij->...", [(2,)], "has 1 dimension instead of at least 2"),
        ("...i->i", [(2, 3)], "lacks the dimensions that `...` stands for"),
        ("ij,jk->ik", [(2, 3)], "is for 2 operands, the call has 1"),
    ],
)
def test_messages_of_mistakes(text, shapes, message):
    with pytest.raises(CallError) as error:
        of = spelling(text)
        program(of, [DTYPES["f32"]] * len(shapes), shapes)
    assert message in str(error.value)


def test_what_is_a_spelling():
    assert all(map(is_spelling, ("ij,jk", "ij->ji", "->", ",", "...i,i", "i1,j")))
    assert not any(map(is_spelling, ("a,b.tile", "y[i] = x[i]", "softmax", "op f(x: f32) -> (y: f32) { y = x }", None, 3)))
