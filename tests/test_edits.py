"""Options of kernels edited in schedule files: refused with a reason, or obeyed with results that are right."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import tomlkit
from fuzz.choices import Choices
from fuzz.edits import PROGRAMS, check_edit, drawn_edit, own, planned

from tilec.diagnostics import CallError
from tilec.kernels import FAMILIES


def test_every_family_has_programs():
    assert {p.family for p in PROGRAMS.values()} == set(FAMILIES)


@pytest.mark.parametrize("first", range(0, 64, 8))
def test_drawn_edits_are_refused_or_right(first):
    """`python -m fuzz --target edits` draws more."""
    for number in range(first, first + 8):
        check_edit(*drawn_edit(Choices(f"edits {number}")))


def edited(name: str, **values: Any) -> str:
    """A program's schedule with other values for options of its only kernel, or for its `tile`."""
    table = tomllib.loads(own(name).schedule)
    (kernel,) = table["plan"][0]["kernels"].values()
    (family,) = [key for key in kernel if key in FAMILIES]
    for key, value in values.items():
        (kernel if key == "tile" else kernel[family])[key] = value
    return tomlkit.dumps(table)


@pytest.mark.parametrize(("name", "values", "message"), [
    ("product, cpu", {"register_tile": [5, 5]}, "the columns a multiple of `lanes`"),
    ("product, cpu", {"register_tile": [0, 0]}, "`register_tile` is rows and columns"),
    ("product, cpu", {"lanes": 0}, "`lanes` is one of 4, 8 or 16, not 0"),
    ("product, cpu", {"lanes": 7}, "`lanes` is one of 4, 8 or 16, not 7"),
    ("product, cpu", {"lanes": 2}, "`lanes` is one of 4, 8 or 16, not 2"),
    ("products of a batch, cpu", {"lanes": 16}, "`lanes` is one of 2, 4 or 8, not 16"),
    ("product, cpu", {"along": [9, 9]}, "`along` follows from the program"),
    ("product, cpu", {"inner": [0]}, "`inner` follows from the program"),
    ("convolution, cpu", {"depths": [4, 5]}, "`depths` has 5 of a dimension of 3"),
    ("convolution, cpu", {"depths": [2, 2]}, "`depths` has 2, which does not divide a dimension of 3"),
    ("products by mma.sync", {"stages": 0}, "`stages` is from 2 to 6 here, not 0"),
    ("products by mma.sync", {"warps": [3, 1]}, "mma.sync has no kernel for"),
    ("products by mma.sync", {"left_k_major": False}, "`left_k_major` follows from the program"),
    ("products by mma.sync", {"group_rows": 0}, "`group_rows` is at least 1"),
    ("products by mma.sync", {"unit": "foo"}, "`unit` follows from the program"),
    ("products by mma.sync", {"left_copy": "tma"}, "`left_copy` follows from the program"),
    ("products by mma.sync", {"tile": [1, 32, 16], "block": [16, 16, 32]}, "a block has 16 rows"),
    ("softmax", {"packed": 7}, "`packed` is true or false"),
    ("softmax", {"online": 5}, "`online` is true or false"),
    ("softmax", {"transposed": [0]}, "a kernel by `rows` has no option `transposed`"),
    ("softmax", {"registers": 1}, "has 16 to 255 registers"),
    ("softmax", {"threads": 64}, "a kernel by `rows` has no option `threads`"),
    ("transpose of narrow elements", {"tile": [4, 64]}, "a tile of 4 cuts vectors of 8 elements, which are transposed"),
])  # fmt: skip
def test_edits_that_were_wrong_or_crashed_are_refused(name, values, message):
    with pytest.raises(CallError) as error:
        planned(name, edited(name, **values))
    assert message in str(error.value)


@pytest.mark.parametrize(("name", "values"), [
    ("products by mma.sync", {"tile": [1, 8, 8]}),
    ("convolution, cpu", {"depths": [1, 2]}),
    ("convolution, cpu", {"depths": [3, 3]}),
    ("product, cpu", {"register_tile": [5, 8], "lanes": 4}),
])  # fmt: skip
def test_edits_that_can_be_are_right(name, values):
    assert check_edit(name, edited(name, **values)) is not None


def test_sums_beyond_the_end_of_a_tile_start_somewhere():
    """A tile of a result that an epilogue reads has whole panels, and lanes that only the register kernel adds to."""
    assert check_edit("product, cpu", own("product, cpu").schedule) is not None
