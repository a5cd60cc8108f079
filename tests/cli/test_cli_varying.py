"""Ranges of sizes on the command line."""

import re
from pathlib import Path

import pytest
from tools.commands import examples_folder, tilec_command  # noqa: F401 - fixtures


def test_explain_shows_the_classes_of_a_range(tilec):
    status, found, _ = tilec("explain", "softmax.tile", "-D", "M=1..100", "-D", "N=50")
    assert status == 0
    head, _, rest = found.partition("\n\n")
    assert [line.split("  ")[1] for line in head.splitlines() if line.startswith("  M")] == ["M = 1", "M = 2..16", "M = 17..100"]
    assert head.count("loss)") == 4  # both ends of the classes of several sizes
    assert rest.startswith("the plan of M = 17..100, at M = 97:\nsoftmax(x: f32[M, 50]) with M = 17..100, planned at M = 97")


def test_dump_prints_extents_that_vary(tilec):
    status, found, _ = tilec("dump", "softmax.tile", "-D", "M=8..4096 by 8,N=50", "--after", "tile")
    assert status == 0
    assert "tilec.sizes = {M = array<i64: 136, 512, 8>}" in found
    assert 'tensor<?x50xf32> {tilec.extents = ["M", "50"]' in found
    assert "affine.min" in found


@pytest.mark.parametrize(
    "given, message",
    [
        ("M=5..4", "no number is in the range of 'M=5..4'"),
        ("M=9..15 by 8", "no number is in the range"),
        ("M=1..x", "a size must be a whole number, not 'x'"),
        ("M=1..", "a size must be a whole number, not ''"),
    ],
)
def test_ranges_are_checked(tilec, given, message):
    status, _, error = tilec("explain", "softmax.tile", "-D", given, "-D", "N=50")
    assert status == 2
    assert message in error


def test_plan_writes_every_class_which_other_commands_obey(tilec):
    given = "-D", "M=1..100", "-D", "N=50"
    assert tilec("plan", "softmax.tile", *given)[0::2] == (0, "wrote softmax.sched.toml: plans of 3 classes\n")
    text = Path("softmax.sched.toml").read_text()
    assert re.findall(r'^program = "softmax\(x: f32\[(\w+), 50\]\)"', text, re.MULTILINE) == ["1", "M", "M"]
    assert re.findall(r'^sizes = \{M = "(.*)"\} # planned at', text, re.MULTILINE) == ["2..16", "17..100"]
    Path("softmax.sched.toml").write_text(re.sub(r"^tile = \[1\d+\]", "tile = [7]", text, flags=re.MULTILINE))
    status, found, notes = tilec("dump", "softmax.tile", *given, "--after", "plan")
    assert status == 0 and "tile = array<i64: 7>" in found
    assert "obeyed softmax_y: softmax.sched.toml gives tile [7] instead of [100]" in notes
    assert "obeyed" in tilec("explain", "softmax.tile", *given)[2]
    status, _, error = tilec("plan", "softmax.tile", *given)
    assert status == 1 and "has another plan for softmax(x: f32[M, 50]) with M = 2..16 on cpu" in error
    assert tilec("plan", "softmax.tile", *given, "--force")[0] == 0
    assert Path("softmax.sched.toml").read_text() == text


def test_missing_sizes_have_the_same_message(tilec):
    status, _, error = tilec("plan", "softmax.tile", "-D", "M=1..4")
    assert status == 1 and error.endswith("hint: give it: -D N=…\n")


def test_opt_goes_on_with_extents_that_vary(tilec):
    """From any stage; an edited plan is obeyed, or refused."""
    given = "-D", "M=17..128", "-D", "N=50"
    kernels = tilec("emit", "--as", "numba", "softmax.tile", *given)[1]
    assert tilec("dump", "softmax.tile", *given, "-o", "ir")[0] == 0
    for name in ("00-build", "01-simplify", "02-plan", "05-bufferize", "07-map"):
        assert tilec("opt", f"ir/{name}.mlir")[1] == kernels, name
    plan = Path("ir/02-plan.mlir").read_text()
    (tile,) = re.findall(r"tile = array<i64: (\d+)>", plan)
    for size, status in (("8", 0), ("129", 1)):
        Path("edited.mlir").write_text(plan.replace(f"tile = array<i64: {tile}>", f"tile = array<i64: {size}>"))
        found = tilec("opt", "edited.mlir")
        assert found[0] == status, found
        assert "min(i_block * -8 + M, 8)" in found[1] or "a tile of 129 does not fit a dimension of 128" in found[2]


def test_dump_says_which_class_it_is(tilec):
    assert "note: this is the class M = 17..100, of M = 1..100" in tilec("dump", "softmax.tile", "-D", "M=1..100,N=50")[2]
    assert not tilec("emit", "--as", "numba", "softmax.tile", "-D", "M=2..16,N=50")[2]


@pytest.mark.parametrize("command", ["run", "tune"])
def test_other_commands_want_numbers(tilec, command):
    status, _, error = tilec(command, "softmax.tile", "-D", "M=1..4,N=5")
    assert status == 1
    assert "this command takes a number for `M`, not a range" in error
