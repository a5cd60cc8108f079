"""Ranges of sizes on the command line."""

import pytest
from tools.commands import examples_folder, tilec_command  # noqa: F401 - fixtures


def test_explain_shows_the_classes_of_a_range(tilec):
    status, found, _ = tilec("explain", "softmax.tile", "-D", "M=1..100", "-D", "N=50")
    assert status == 0
    head, _, rest = found.partition("\n\n")
    assert [line.split("  ")[1] for line in head.splitlines() if line.startswith("  M")] == ["M = 1", "M = 2..16", "M = 17..100"]
    assert head.count("loss)") == 4  # both ends of the classes of several sizes
    assert rest.startswith("the plan at M = 7:\nsoftmax(x: f32[7, 50]) on ")


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


@pytest.mark.parametrize("command", ["run", "plan", "verify"])
def test_other_commands_want_numbers(tilec, command):
    status, _, error = tilec(command, "softmax.tile", "-D", "M=1..4,N=5")
    assert status == 1
    assert "this command takes a number for `M`, not a range" in error
