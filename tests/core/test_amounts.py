"""Arithmetic on numbers and on texts over sizes, and the functions that compute them."""

import pytest

from tilec.core.amounts import divided_up, function, largest, plus, rounded_up, times


def test_texts_are_computed_as_numbers_are():
    for m in (0, 1, 7, 8, 9, 1000):
        for n in (0, 3):
            made = [
                lambda a, b: plus(a, b, 5), lambda a, b: times(a, b, 4), lambda a, b: largest(a, 6, b),
                lambda a, b: divided_up(a, 8), lambda a, b: rounded_up(plus(a, b), 8), lambda a, b: times(a, 0),
                lambda a, b: plus(times(a, b), largest(b, 1)),
            ]  # fmt: skip
            texts, numbers = [make("M - 1 + 1", "N") for make in made], tuple(make(m, n) for make in made)
            assert function(texts, ["M", "N"])(m, n) == numbers
    assert (plus(), times(), largest(), times("M", 0)) == (0, 1, 0, 0)


def test_amounts_may_have_names():
    before = {"a": "M * 2", "b": "a + min(M, 3)", "c": 7}
    assert function(["b - a", "c", 4], ["M"], before)(9) == (3, 7, 4)


@pytest.mark.parametrize("text", ["__import__('os')", "M.real", "[M]", "M if M else 1", "max(M, key=M)", "M < 2", "abs(M)"])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match="is no amount over sizes"):
        function([text], ["M"])
