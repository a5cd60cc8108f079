"""The formatter: canonical, idempotent, and never a change of meaning."""

from importlib.resources import files

import pytest
from tools import ROOT

from tilec.core.diagnostics import Source, TileError
from tilec.dsl import std
from tilec.dsl.format import format_source
from tilec.dsl.parse import parse

UGLY = """
# head

import   "a.tile"
op f(x:f32[M,2*N]  )->(y:f32[M]){ # trailing
  # inner

  y[i]=sum[j in 0 : 2*N](x[i,j]*-1)in f64;z[i]:f32=- x[i, 0]**-2   # c1
  long_name[i]=not(x[i,1]>3 and 2<-x[i,1]) where i in 0:M # c2


  w[i] = x[i,0] +
     x[i, 1]   # end
       * 3
  a,b=g(x)
  expect traffic<=1.05*minimal
  # last
}
def leaky(x,slope){return x if x>0 else slope*x}
def g[j](x){m=max[j](x)
return x-m}
op wide(
  x:f32[M],
      w:f32[M]  # weights
    )->(
  y:f32[M]){ y[i]=x[i]*
w[i] }
"""

PRETTY = """\
# head

import "a.tile"
op f(x: f32[M, 2 * N]) -> (y: f32[M]) {  # trailing
    # inner

    y[i]         = sum[j in 0:2 * N](x[i, j] * -1) in f64
    z[i]: f32    = -x[i, 0] ** -2                                     # c1
    long_name[i] = not (x[i, 1] > 3 and 2 < -x[i, 1]) where i in 0:M  # c2

    w[i] = x[i, 0] +
            x[i, 1]  # end
            * 3
    a, b = g(x)
    expect traffic <= 1.05 * minimal
    # last
}
def leaky(x, slope) { return x if x > 0 else slope * x }
def g[j](x) {
    m = max[j](x)
    return x - m
}
op wide(
    x: f32[M],
    w: f32[M]  # weights
) -> (
    y: f32[M]) {
    y[i] = x[i] *
            w[i]
}
"""

EXAMPLES = ROOT / "examples"
STANDARD = files("tilec.dsl.std").joinpath("std.tile").read_text()


def test_canonical_form():
    assert format_source(UGLY) == PRETTY


@pytest.mark.parametrize("text", [UGLY, STANDARD, "", "# only", "y[i]=x[i]  # a\n# b\nz=3", "y = (\n# in\n1)"])
def test_idempotent_and_meaning_unchanged(text):
    once = format_source(text)
    assert format_source(once) == once
    assert parse(Source("a", once)) == parse(Source("b", text))
    assert once.count("#") == text.count("#")


def test_the_standard_library_is_formatted():
    assert format_source(STANDARD) == STANDARD


def test_names_of_the_standard_library_are_found_without_the_parser():
    assert std.names() == {d.name for d in parse(Source("std.tile", STANDARD)).defs}


def test_a_program_that_does_not_parse_stays_as_it_is():
    with pytest.raises(TileError):
        format_source("y = (")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.tile")), ids=lambda path: path.stem)
def test_examples_are_formatted(path):
    assert format_source(path.read_text()) == path.read_text()
