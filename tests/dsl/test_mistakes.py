"""All mistakes of a file in one go: form and meaning together, and none that another one brought about."""

import random

import pytest
from tools import ROOT

from tilec.core.diagnostics import Source, TileError
from tilec.dsl.mistakes import read
from tilec.dsl.parse import lex

EXAMPLES = ROOT / "examples"


def mistakes(text: str) -> list[tuple[int, str]]:
    """Line and message of each."""
    with pytest.raises(TileError) as raised:
        read(Source("<test>", text))
    return [(d.span.line, d.message) for d in raised.value.diagnostics]


def test_form_and_meaning_in_one_go():
    found = mistakes(
        """op f(x: f32[M, N], w: f32[K]) -> (y: f32[M], z: f32[M]) {
    a[i, j] = x[i, j * 2.0
    y[i] = sum[j](x[i, j, j])
    z[i] = nowhere[i]
}
"""
    )
    assert [line for line, _ in found] == [2, 3, 4]
    assert "never closed" in found[0][1] and "nowhere" in found[2][1]


@pytest.mark.parametrize(
    "broken",
    ["a[i] = x[i] +* 2.0", "let a[i] = x[i]", "a[i] == x[i]", "for i in range(3) { a[i] = x[i] }"],
)
def test_what_a_lost_statement_would_define_is_not_missed(broken):
    found = mistakes(f"op f(x: f32[N]) -> (y: f32[N], a: f32[N]) {{\n    {broken}\n    y[i] = a[i] + x[i]\n}}\n")
    assert [line for line, _ in found] == [2], found


def test_a_statement_that_runs_into_the_next_takes_its_name_along():
    found = mistakes("op f(x: f32[N]) -> (y: f32[N], a: f32[N]) {\n    a[i] = x[i] if\n    y[i] = a[i] + x[i]\n}\n")
    assert not any("never defined" in message or "unknown" in message for _, message in found)


@pytest.mark.parametrize("line", ["// twice", "y[i] = 2 * x[i] // twice as much", "/* twice */ y[i] = x[i]"])
def test_comments_of_other_languages(line):
    with pytest.raises(TileError) as raised:
        read(Source("<test>", f"op f(x: f32[N]) -> (y: f32[N]) {{\n    {line}\n}}\n"))
    assert "a comment begins with `#`" in raised.value.diagnostics[-1].hint


def test_what_a_lost_declaration_would_define_is_not_missed():
    found = mistakes(
        """def f(x { return x }
op g(x: f32[N -> (y: f32[N]) { y[i] = x[i] }
op h(x: f32[N]) -> (y: f32[N], s: f32[N]) {
    y = g(x)
    s[i] = f(x[i]) + absent
}
"""
    )
    assert {line for line, _ in found} <= {1, 2, 5} and any("absent" in m for _, m in found)
    assert not any("`g`" in m or "`f`" in m for line, m in found if line > 2)


def test_a_repaired_statement_says_one_thing():
    found = mistakes("op f(x: f32[N]) -> (y: f32[N]) {\n    y[i] = max(x[i] 0.0)\n}\n")
    assert found == [(2, "missing `,`")]


def test_the_ranges_of_what_has_no_shape_are_not_missed():
    """An index of a tensor whose own equation has a mistake; that of a reduction that reads nothing is reported."""
    found = mistakes(
        """op f(x: f32[M, N]) -> (y: f32[M], z: f32[M]) {
    a[i, j] = x[i, j] + absent
    y[i] = sum[k](a[i, k])
    z[i] = sum[q](1.0)
}
"""
    )
    assert [line for line, _ in found] == [2, 4], found


def test_mistakes_in_two_ops_are_both_reported():
    found = mistakes(
        """op f(x: f32[N]) -> (y: f32[N]) {
    y[i] = (x[i] + 1.0
}
op g(x: f32[N]) -> (y: f32[N]) {
    y[i] = x[i] + q
}
"""
    )
    assert [line for line, _ in found] == [2, 5]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.tile")), ids=lambda p: p.stem)
def test_broken_programs_never_break_the_compiler(path):
    """Words of examples left out, doubled, exchanged: all that comes is a program or its mistakes, in their order."""
    text = path.read_text()
    words = [t for t in lex(text) if t.type != "COMMENT"]
    rng = random.Random(path.stem)
    for _ in range(25):
        broken = text
        for token in sorted(rng.sample(words, min(len(words), rng.randint(1, 3))), key=lambda t: -t.start_pos):
            new = rng.choice(("", token.value * 2, rng.choice(words).value))
            broken = broken[: token.start_pos] + new + broken[token.end_pos :]
        try:
            read(Source(str(path), broken))
        except TileError as error:
            assert error.diagnostics and len(error.diagnostics) <= 100
            own = [d.span.start for d in error.diagnostics if d.span.source.name == str(path)]
            assert own == sorted(own)
