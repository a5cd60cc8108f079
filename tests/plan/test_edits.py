"""Options of kernels edited in schedule files and in dumped IR: refused with a reason, or obeyed with results that are right."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from typing import Any

import pytest
import tomlkit
from fuzz.choices import Choices
from fuzz.edited_programs import PROGRAMS
from fuzz.edits import check_edit, drawn_edit, own, planned

from tilec.cli.command import main
from tilec.core import mlir
from tilec.core.diagnostics import CallError
from tilec.core.mlir import ir
from tilec.core.source import read_source
from tilec.core.targets import load
from tilec.driver.lowering import lower
from tilec.driver.tune import candidates
from tilec.dsl.build import build
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise
from tilec.kernels import FAMILIES


def test_every_family_has_programs():
    assert {p.family for p in PROGRAMS.values()} == set(FAMILIES)


@pytest.mark.some(4)
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
    ("product, cpu", {"register_tile": [5, 5]}, "columns that are a multiple of `lanes`"),
    ("product, cpu", {"register_tile": [0, 0]}, "`register_tile` must be rows and columns"),
    ("product, cpu", {"lanes": 0}, "`lanes` must be 4, 8 or 16, not 0"),
    ("product, cpu", {"lanes": 7}, "`lanes` must be 4, 8 or 16, not 7"),
    ("product, cpu", {"lanes": 2}, "`lanes` must be 4, 8 or 16, not 2"),
    ("products of a batch, cpu", {"lanes": 16}, "`lanes` must be 2, 4 or 8, not 16"),
    ("product, cpu", {"along": [9, 9]}, "`along` follows from the program"),
    ("product, cpu", {"inner": [0]}, "`inner` follows from the program"),
    ("convolution, cpu", {"depths": [5, 4]}, "`depths` has 5 for a dimension of 3 elements"),
    ("convolution, cpu", {"depths": [2, 3]}, "`depths` has 3, which does not divide a dimension of 4"),
    ("products by mma.sync", {"stages": 0}, "`stages` must be from 2 to 6 here, not 0"),
    ("products by mma.sync", {"warps": [3, 1]}, "mma.sync has no kernel for"),
    ("products by mma.sync", {"left_k_major": False}, "`left_k_major` follows from the program"),
    ("products by mma.sync", {"group_rows": 0}, "`group_rows` must be at least 1"),
    ("products by mma.sync", {"unit": "foo"}, "`unit` follows from the program"),
    ("products by mma.sync", {"left_copy": "tma"}, "`left_copy` follows from the program"),
    (
        "products by mma.sync", {"tile": [1, 32, 16], "block": [16, 16, 32], "warps": [1, 1]},
        "`block` has 16 rows, and the tile has 32",
    ),
    ("products by mma.sync", {"tile": [1, 8, 12]}, "copies move 8 columns at once, and tiles of 12 begin within them"),
    ("product by wgmma", {"tile": [64, 1]}, "a tile must have at least 2 columns"),
    ("product by wgmma", {"tile": [1, 48]}, "a tile must have at least 2 rows"),
    ("product by wgmma", {"tile": [7, 3]}, "TMA copies boxes that begin at multiples of 8 columns"),
    ("softmax", {"packed": 7}, "`packed` must be true or false"),
    ("softmax", {"online": 5}, "`online` must be true or false"),
    ("softmax", {"transposed": [0]}, "the kernel family `rows` has no option `transposed`"),
    ("softmax", {"registers": 1}, "`registers` must be from 16 to 255"),
    ("softmax", {"threads": 64}, "the kernel family `rows` has no option `threads`"),
    ("transpose of narrow elements", {"tile": [4, 64]}, "a tile of 4 cuts vectors of 8 elements, which are transposed"),
])  # fmt: skip
def test_edits_that_were_wrong_or_crashed_are_refused(name, values, message):
    with pytest.raises(CallError) as error:
        planned(name, edited(name, **values))
    assert message in str(error.value)


@pytest.mark.parametrize(("name", "values"), [
    ("products by mma.sync", {"tile": [1, 8, 8]}),
    ("products by mma.sync", {"tile": [1, 1, 8]}),
    ("product by wgmma", {"tile": [7, 8]}),
    ("convolution, cpu", {"depths": [1, 3]}),
    ("convolution, cpu", {"depths": [3, 2]}),
    ("product, cpu", {"register_tile": [5, 8], "lanes": 4}),
])  # fmt: skip
def test_edits_that_can_be_are_right(name, values):
    assert check_edit(name, edited(name, **values)) is not None


def test_sums_beyond_the_end_of_a_tile_start_somewhere():
    """A tile of a result that an epilogue reads has whole panels, and lanes that only the register kernel adds to."""
    assert check_edit("product, cpu", own("product, cpu").schedule) is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_tuned_is_right(name):
    """Candidates of `tilec tune` are schedule files."""
    for candidate in candidates(own(name).program, own(name).machine, 4):
        assert check_edit(name, candidate.schedule) is not None


# ---- plans in dumped IR --------------------------------------------------------------------------------------------------


SPLIT = ("op f(x: f32[N]) -> (y: f32) { y = sum[i](x[i]) }", {"N": 1 << 20}, "h200")
PACKED = (
    "op f(a: f32[M, K], b: bf16[K, N]) -> (y: f32[M, N]) { y[i, j] = sum[k](bf16(a[i, k]) * b[k, j]) }",
    {"M": 4096, "K": 4096, "N": 4096}, "h200",
)  # fmt: skip
SEVERAL = (
    "op f(x: f32[M, N]) -> (y: f32[M, N]) { m[i] = max[j](x[i, j]) y[i, j] = exp(x[i, j] - m[i]) }",
    {"M": 64, "N": 48}, "cpu",
)  # fmt: skip


@cache
def dumps(program: str, sizes: tuple[tuple[str, int], ...], target: str) -> dict[str, str]:
    """The IR after stages `plan` to `tile`."""
    special = specialise(parse(read_source(program)), None, None, dict(sizes))
    with mlir.context(), ir.Location.unknown():
        return lower(build(special), load(target), end="tile", emit=False).texts


def carried_on(text: str, target: str, begin: str = "fuse") -> None:
    with mlir.context(), ir.Location.unknown():
        lower(mlir.parse(text), load(target), begin=begin, end="tile", emit=False)


@pytest.mark.parametrize("program, sizes, target", [SPLIT, PACKED, SEVERAL])
def test_a_plan_without_its_digest_is_found_again(program, sizes, target):
    text = dumps(program, tuple(sizes.items()), target)["plan"]
    if program != SEVERAL[0]:
        assert 'rewrite = "split"' in text or 'rewrite = "pack"' in text
    carried_on(re.sub(r'tilec.plan_digest = "[^"]*", ', "", text), target)


def test_steps_that_were_applied_are_not_edited_in_a_dump():
    program, sizes, target = SPLIT
    text = dumps(program, tuple(sizes.items()), target)["plan"]
    edited = re.sub(r"parts = \d+ : i64", "parts = 2 : i64", text)
    with pytest.raises(CallError, match=r"which has applied them") as raised:
        carried_on(edited, target)
    assert "under `rewrites` in a schedule file" in str(raised.value)


@pytest.mark.parametrize(("pattern", "new", "message"), [
    (r"tile = array<i64: \d+", "tile = array<i64: 0", "a tile of 0 does not fit a dimension of 64"),
    (r"tile = array<i64: \d+", "tile = array<i64: 5, 5", "`tile` must have one number for each dimension of the grid"),
    (r"tile = array<i64: (\d+)>", r"tile = \1 : i64", "`tile` must be a list"),
    (r"tile = array<i64: (\d+)>", "tile = 1.0 : f32", "has `1.000000e+00 : f32`, which is no value of an option"),
    (r"grid = array<i64: 0>", "grid = array<i64: 1>", "grid` is array<i64: 1>, and follows from the program: array<i64: 0>"),
    (r"tilec.loop_group = 1", "tilec.loop_group = 0", "`tilec.loop_group of y` is 0 : i64, and follows from the program: 1 : i64"),
    (r"tilec.dims = array<i64: 0, 1>", "tilec.dims = array<i64: 1, 0>", "tilec.dims of"),
    (r"tilec.loops = array<i64: 0, 1>", "tilec.loops = array<i64: 0, 0>", "must be [0, 1] in some order"),
    (r"loop_nest = \{\}", "panels = {}", "this kernel cannot be built as `panels`, only as `loop_nest`"),
    (r"loop_nest = \{\}", "loop_nest = {lanes = 3 : i64}", "the kernel family `loop_nest` has no option `lanes`"),
    (r"loop_nest = \{\}, ", "", "loop_nest` is absent, and follows from the program"),
    (r'tilec.kernel = "f_y"', 'tilec.kernel = "f_z"', "`tilec.kernels` has no kernel `f_z`"),
])  # fmt: skip
def test_a_plan_that_cannot_be_is_refused_in_a_dump(pattern, new, message):
    program, sizes, target = SEVERAL
    text = dumps(program, tuple(sizes.items()), target)["plan"]
    assert re.search(pattern, text), pattern
    with pytest.raises(CallError) as error:
        carried_on(re.sub(pattern, new, text), target)
    assert message in str(error.value)


def test_a_plan_is_not_edited_after_later_stages():
    """Passes have followed it already."""
    program, sizes, target = SEVERAL
    text = dumps(program, tuple(sizes.items()), target)["tile"]
    carried_on(text, target, begin="bufferize")
    with pytest.raises(CallError, match="is not the one that stage 'plan' wrote") as error:
        carried_on(re.sub(r"tile = array<i64: \d+", "tile = array<i64: 2", text), target, begin="bufferize")
    assert "edit the plan in IR that was dumped after stage 'plan', or in a schedule file" in str(error.value)


def test_opt_reports_a_refused_plan(tmp_path, capsys):
    program, sizes, target = SEVERAL
    text = dumps(program, tuple(sizes.items()), target)["plan"]
    path = tmp_path / "f.mlir"
    path.write_text(
        "// tilec stage: plan, target: cpu\n" + re.sub(r"tile = array<i64: \d+", "tile = array<i64: 0", text)
    )
    assert main(["opt", str(path)]) == 1
    assert "the plan in this IR cannot be carried out: a tile of 0 does not fit" in capsys.readouterr().err


def test_every_family_has_programs_whose_edits_are_timed():
    """`python -m benchmarks edits`."""
    from benchmarks.edits import PROGRAMS as TIMED

    for backend in ("cpu", "cuda"):
        assert {x.family for x in TIMED[backend]} == {name for name, family in FAMILIES.items() if family.backend == backend}


def test_ranks_are_correlated():
    from benchmarks.edits import rank_correlation

    assert rank_correlation([1.0, 2.0, 3.0], [10.0, 20.0, 15.0]) == pytest.approx(0.5)
    assert rank_correlation([1.0, 1.0, 2.0], [5.0, 6.0, 7.0]) == pytest.approx(3**0.5 / 2)
    assert rank_correlation([1.0, 1.0], [5.0, 6.0]) == 0.0
