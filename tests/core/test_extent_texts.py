"""Texts of extents: evaluated at any of a size's numbers, they are the extents."""

from __future__ import annotations

import pytest

from tilec.core.extents import text_of
from tilec.core.varying import Varying, evaluated


@pytest.mark.parametrize("multiple", [1, 3, 8])
@pytest.mark.parametrize("form", ["m", "m * m", "m // 5", "m * -(-m // 40)", "m * (m // 3 // 5) + 1", "(m // 24) * (m // 5) * m"])
def test_texts_have_the_values_of_extents(multiple, form):
    v = Varying(multiple, 99999 // multiple * multiple, multiple)
    text = text_of(eval(form, {"m": v.term("M")}), {"M": v})
    for m in (multiple, 5 * multiple, 40 * multiple, 41 * multiple, v.high):
        assert evaluated(text, {"M": m}) == eval(form, {"m": m}), text
