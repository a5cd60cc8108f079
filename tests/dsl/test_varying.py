"""Programs whose sizes vary: proved for all sizes of their ranges, built once, right at each size."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fuzz.choices import Choices
from fuzz.varying import drawn, fault
from tools.varying import all_sizes, built, varying, wrong_sizes

import tilec
from tilec.core.diagnostics import CallError, TileError
from tilec.core.source import read_source
from tilec.core.varying import Varying
from tilec.dsl import ast
from tilec.dsl.format import format_source
from tilec.dsl.parse import parse
from tilec.dsl.specialise import choose_op, ranges_of, specialise

EXAMPLES = Path(__file__).parents[2] / "examples"
ROWS = {"M": (1, 5)}
PROGRAMS = {
    "softmax": ("softmax.tile", None, {"M": (0, 4), "N": (1, 5)}, {}),
    "softmax, N a number": ("softmax.tile", None, ROWS, {"N": 7}),
    "layernorm": ("layernorm.tile", None, {"M": (0, 3), "N": (8, 24, 8)}, {}),
    "gelu": ("gelu.tile", None, {"M": (0, 3), "N": (0, 3)}, {}),
    "linear": ("linear.tile", None, ROWS, {"K": 6, "N": 5}),
    "linear, all": ("linear.tile", None, {"M": (0, 3), "K": (0, 9, 3), "N": (1, 2)}, {}),
    "attention": ("attention.tile", "attention", {"B": (1, 2), "S": (1, 2), "T": (2, 3)}, {"D": 2, "H": 1}),
    "causal attention": ("attention.tile", "causal_attention", {"B": (1, 2), "S": (1, 3)}, {"D": 2, "H": 1}),
    "convolution": ("conv2d.tile", None, {"N": (1, 2), "H": (1, 2), "W": (0, 2)}, dict(C=1, K=2, R=3, S=3)),
    "cross entropy": ("cross_entropy.tile", None, {"B": (1, 3), "V": (1, 4)}, {}),
    "cumsum": ("cumsum.tile", None, {"M": (0, 2), "N": (0, 3)}, {}),
    "decoding": ("decoding.tile", None, {"B": (1, 2), "T": (1, 4)}, dict(H=4, G=2, D=2)),
    "embedding": ("embedding.tile", None, {"V": (1, 3), "S": (0, 2)}, dict(B=1, D=2)),
    "jacobi": ("jacobi.tile", None, {"M": (0, 3), "N": (1, 4)}, {}),
    "max pool": ("max_pool.tile", None, {"H": (0, 5), "W": (2, 4, 2)}, dict(N=1, C=2)),
    "rotary": ("rotary.tile", None, {"S": (0, 3)}, dict(B=1, H=2, D=4)),
    "rotary, D": ("rotary.tile", None, {"D": (2, 8, 2)}, dict(B=1, H=1, S=3)),
    "top1": ("top1.tile", None, {"M": (0, 3), "N": (1, 3)}, {}),
    "transpose": ("transpose.tile", None, {"M": (0, 3), "N": (0, 3)}, {}),
    "variance": ("variance.tile", None, {"M": (1, 3), "N": (0, 2)}, {}),
    "mlp": ("mlp.tile", None, {"M": (0, 2), "F": (1, 2)}, dict(D=3)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_examples_are_right_at_each_size(name):
    file, op, varies, sizes = PROGRAMS[name]
    assert wrong_sizes(EXAMPLES / file, varies, op, **sizes) == []


FORMS = {  # the header of an op, its equations, and what varies
    "a size by a sum": ("x: f32[2 * M + 1]) -> (y: f32[M]", "y[i] = x[2 * i + 1]", {"M": (0, 5)}),
    "a size by a multiple": ("x: f32[3 * M]) -> (y: f32[M + 2]", "y[i] = pad(x[3 * i], -1)", {"M": (0, 8, 4)}),
    "a size by another": ("x: f32[M], z: f32[M + N]) -> (y: f32[N]", "y[i] = z[i + M]", {"M": (0, 3), "N": (0, 3)}),
    "products": ("x: f32[M, N]) -> (y: f32[M * N]", "y[p] = x[p // N, p % N]", {"M": (0, 3), "N": (1, 3)}),
    "joined": ("x: f32[M], r: f32[M * 4]) -> (y: f32[M, 4]", "y[i, j] = r[i * 4 + j]", {"M": (0, 3)}),
    "a range that may be empty": ("x: f32[M]) -> (y: f32", "y = sum[k in 2:M](x[k])", {"M": (0, 5)}),
    "an extent that may be 0": (
        "x: f32[M]) -> (y: f32", "t[i] = x[i + 3] * 2 where i in 0:M - 3\n y = sum[i](t[i])", {"M": (0, 5)},
    ),
    "padded, of nothing": ("x: f32[M], z: f32[4]) -> (y: f32[4]", "y[i] = pad(x[i - 1], 7) + z[i]", {"M": (0, 6)}),
    "padded in a wider type": ("x: i8[M], z: f32[4]) -> (y: f32[4]", "y[i] = pad(x[i - 1], z[i])", {"M": (0, 6)}),
    "guarded": ("x: f32[M], z: f32[4]) -> (y: f32[4]", "y[i] = x[i] if i < M else z[i]", {"M": (0, 6)}),
    "guarded by a remainder": ("x: f32[M]) -> (y: f32[M]", "y[d] = x[d - 1] if d % 2 == 1 else x[d + 1]", {"M": (0, 8, 2)}),
    "groups": ("x: f32[C], s: f32[4]) -> (y: f32[C]", "y[c] = x[c] * s[c // (C // 4)]", {"C": (4, 16, 4)}),
    "neighbours": ("x: f32[M]) -> (y: f32[M]", "y[i] = x[i // 2 * 2 + (i + 1) % 2]", {"M": (0, 8, 2)}),
    "reversed": ("x: f32[M, N]) -> (y: f32[M, N]", "y[i, j] = x[M - 1 - i, N - 1 - j]", {"M": (0, 3), "N": (1, 3)}),
    "edges": ("x: f32[M]) -> (y: f32[M + 4]", "y[i] = x[clamp(i - 2, 0, M - 1)]", {"M": (1, 4)}),
    "mirrored": ("x: f32[M]) -> (y: f32[M + 2]", "y[i] = x[reflect(i - 1, M)]", {"M": (2, 4)}),
    "values of sizes": ("x: i64[M]) -> (y: i64[M]", "y[i] = x[i] * M + M // 2 - i % (M + 1)", {"M": (0, 4)}),
    "a mean of integers": ("x: i8[M, N]) -> (y: f32[M]", "y[i] = mean[j](x[i, j])", {"M": (0, 2), "N": (1, 4)}),
    "a mean of two": ("x: f32[M, N]) -> (y: f32", "y = mean[i, j](x[i, j])", {"M": (1, 2), "N": (1, 4)}),
    "an extreme of narrow integers": ("x: i8[M, N]) -> (y: i32[M]", "y[i] = max[j](x[i, j])", {"M": (0, 2), "N": (0, 2)}),
    "a part of the range": ("x: f32[M, 4]) -> (y: f32[M]", "y[i] = sum[j in 1:3](x[i, j])", {"M": (0, 2)}),
    "a window": ("x: f32[M + 2]) -> (y: f32[M]", "y[i] = sum[k in 0:3](x[i + k])", {"M": (0, 3)}),
    "a window of any length": (
        "x: f32[M + K], w: f32[K]) -> (y: f32[M]", "y[i] = sum[k](x[i + k] * w[k])", {"M": (0, 2), "K": (0, 3)},
    ),
    "a gather": ("t: f32[V], p: i64[M]) -> (y: f32[M]", "y[i] = t[p[i]]", {"V": (1, 3), "M": (0, 3)}),
    "a scan": ("x: f32[M, N]) -> (y: f32[M, N]", "y[i, j] = cumsum[i](x[i, j]) - cummax[j](x[i, j])", {"M": (0, 3), "N": (0, 2)}),
    "a triangle": ("x: f32[M, M]) -> (y: f32[M]", "y[i] = sum[j](x[i, j] if j <= i else 0)", {"M": (0, 4)}),
    "of nothing": ("x: f32[M, 4], p: i64[4]) -> (y: f32[M, 4]", "y[i, j] = x[(i + j) % M, p[j]]", {"M": (0, 3)}),
    "products of nothing": ("x: f32[M, N]) -> (y: f32[M * N]", "y[p] = x[p // N, p % N]", {"M": (0, 2), "N": (0, 2)}),
    "a scalar": ("x: f32[M], a: f32) -> (y: f32[M]", "y[i] = a * x[i]", {"M": (0, 3)}),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_forms_are_right_at_each_size(name):
    header, body, varies = FORMS[name]
    assert wrong_sizes(f"op f({header}) {{ {body} }}", varies) == []


def test_calls_are_right_at_each_size():
    text = """op half(x: f32[K: 0..64 by 2]) -> (y: f32[K // 2]) { y[i] = x[2 * i] + x[2 * i + 1] }
    op f(x: f32[M, 2]) -> (y: f32[M], z: f32[M]) {
        t[p] = x[p // 2, p % 2] where p in 0:2 * M
        y = half(t)
        z[i] = y[i] * 2
    }"""
    assert wrong_sizes(text, {"M": (0, 4)}, "f") == []


def test_drawn_programs():
    programs = [p for p in (drawn(Choices(f"varying {seed}")) for seed in range(6)) if p is not None]
    assert len(programs) > 3
    assert not [(p, why) for p in programs if (why := fault(p))]


REFUSED = {  # what is said of programs that are wrong at some size, or that nothing proves
    "outside for some": (
        "x: f32[M]) -> (y: f32[M]", "y[i] = x[i + 1] if i < 4 else x[i]", {"M": (1, 8)},
        "for `M` = 1: `x[i + 1]` reaches outside",
    ),
    "outside at an odd size": ("x: f32[M]) -> (y: f32[M]", "y[i] = x[i // 2 * 2 + 1]", {"M": (2, 9)}, "for `M` = 3: `x[i"),
    "no size found": (
        "x: f32[M // 40], z: f32[M]) -> (y: f32[M // 40]", "y[i] = x[0] + z[2 * i]", {"M": (0, 99)},
        "`x[0]` may reach outside: `0` takes the values 0, and dimension 0 of `x` has size M // 40",
    ),
    "two sizes": (
        "x: f32[M], z: f32[N]) -> (y: f32[M]", "y[i] = x[i] + z[i]", {"M": (1, 4), "N": (1, 4)}, "sizes that differ: M and N",
    ),
    "less than 0": ("x: f32[M - 2]) -> (y: f32[M]", "y[i] = pad(x[i], 0)", {"M": (1, 4)}, "for `M` = 1: the size is -1"),
    "of nothing": ("x: f32[M]) -> (y: i64", "y = argmax[i](x[i])", {"M": (0, 4)}, "for `M` = 0: `argmax` over an empty range"),
    "not determined": ("x: f32[M * M]) -> (y: f32[M]", "y[i] = x[i * M]", {"M": (1, 4)}, "no input determines the size `M`"),
    "not an input's": ("x: f32[3]) -> (y: f32[M]", "y[i] = pad(x[i], 0)", {"M": (1, 4)}, "no input determines the size `M`"),
    "beyond 64 bits": ("x: f32[M, M]) -> (y: f32[M, M]", "y[i, j] = x[i, j]", {"M": (1, 2**31)}, "`x` is too large"),
    "no multiple": ("x: f32[M]) -> (y: f32[M]", "y[i] = x[i]", {"M": (1, 8, 2)}, "does not end with multiples of 2"),
    "no range": ("x: f32[M]) -> (y: f32[M]", "y[i] = x[i]", {"M": (8, 1)}, "is empty"),
    "no such size": ("x: f32[M]) -> (y: f32[M]", "y[i] = x[i]", {"N": (1, 8)}, "has no size `N`"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_right_at_each_size_is_refused(name):
    header, body, varies, message = REFUSED[name]
    with pytest.raises(TileError) as error:
        varying(f"op f({header}) {{ {body} }}", varies)
    assert message in str(error.value)


def test_an_example_size_is_one_of_the_range():
    program = parse(read_source("op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = x[i, j] }"))
    types = [(next(iter(program.ops)).inputs[0].dtype, (5, 3))]
    special = specialise(program, None, types, varies={"M": Varying(1, 8)})
    assert special.sizes == {"N": 3} and list(special.varies) == ["M"]
    with pytest.raises(CallError, match=r"`M` is 5, which is not in its range, 6\.\.8"):
        specialise(program, None, types, varies={"M": Varying(6, 8)})


def test_sizes_and_extents_are_attributes():
    text = "op f(x: f32[M, 3], z: f32[2 * M + 8]) -> (y: f32[M // 8, 3]) { y[i, j] = x[i * 2, j] * z[2 * i] }"
    special = varying(text, {"M": (8, 64, 8)})
    ir = built(special)
    assert "tilec.sizes = {M = array<i64: 8, 64, 8>}" in ir
    assert re.findall(r'tilec.extents = \[([^]]*)\]', ir) == ['"M", "3"', '"2 * M + 8"', '"M // 8", "3"']
    assert len(re.findall("tensor.dim", ir)) == 1
    assert all(t.shape == (ast.SizeNumber(3),) or isinstance(t.shape[0], ast.SizeTerm) for t in special.inputs)


def test_at_some_sizes_it_is_the_op_of_these_sizes():
    path = EXAMPLES / "attention.tile"
    special = varying(path, {"S": (8, 64, 8), "B": (1, 4)}, "causal_attention", D=4, H=2).at({"S": 24, "B": 3})
    exact = specialise(parse(read_source(path)), "causal_attention", None, dict(S=24, B=3, D=4, H=2))
    assert special == replace(exact, sizes=special.sizes) and special.sizes == exact.sizes


def test_what_is_expected_of_a_plan_is_expected_at_typical_sizes():
    text = "op f(x: f32[M]) -> (y: f32[M]) { y[i] = x[i] * 2\n expect kernels == 1 and traffic <= 8 * minimal and M > 1 }"
    assert tilec.compile(text, varies={"M": (1, 100)}, target="cpu")(np.ones(5, np.float32)).sum() == 10
    with pytest.raises(TileError, match="M == 3"):
        tilec.compile(text.replace("M > 1", "M == 3"), varies={"M": (1, 100)}, target="cpu")(np.ones(7, np.float32))


def test_a_range_of_one_number_is_that_number():
    assert "tilec.sizes" not in built(varying("op f(x: f32[M]) -> (y: f32[M]) { y[i] = x[i] }", {"M": (4, 4)}))


# ---- ranges in the text ----------------------------------------------------------------------------------------------


def declared(sizes: str) -> str:
    return f"op f(x: f32[{sizes}], z: f32[M]) -> (y: f32[M]) {{ y[i] = z[i] }}"


MISTAKES = {
    "M: 9..1": "the range 9..1 of `M` is empty",
    "M: 0..7 by 2": "both ends of a range are multiples: `0..6 by 2`",
    "M: 0..8 by 0": "`M` cannot be in 0..8 by 0",
    "M: 1..8 of 2": "multiples are written `8..8192 by 8`",
    "3: 1..2": "a range belongs to the name of a size",
    "2 * M: 1..2": "a range belongs to the name of a size",
    "M: 1..N": "the range of a size is made of whole numbers",
    "M: 1.5..8": "the range of a size is made of whole numbers",
    "M: -1..8": "the range of a size is made of whole numbers",
    "M: 1...8": "the range of a size is written `M: 1..8192`",
    "M: 1..=8": "the range of a size is written `M: 1..8192`",
    "M: 1:8": "the range of a size is written `M: 1..8192`",
    "M: 1-8": "the range of a size is written `M: 1..8192`",
    "M: 1..": "unexpected `]`",
    "M: 1..8, M: 1..9": "`M` has another range, 1..9",
}


@pytest.mark.parametrize("sizes", MISTAKES)
def test_mistakes_in_ranges_are_explained(sizes):
    with pytest.raises(TileError) as error:
        tilec.compile(declared(sizes))
    assert MISTAKES[sizes] in str(error.value)


def test_ranges_say_what_is_allowed():
    text = declared("M: 4..8 by 2, M: 4..8 by 2")
    assert tilec.compile(text)(np.ones((6, 6), np.float32), np.ones(6, np.float32)).shape == (6,)
    with pytest.raises(CallError, match=r"`M` is 7, and the program allows 4\.\.8 by 2"):
        tilec.compile(text)(np.ones((7, 7), np.float32), np.ones(7, np.float32))
    with pytest.raises(CallError, match=r"`M` varies in 4\.\.10 by 2, and the program allows 4\.\.8 by 2"):
        varying(text, {"M": (4, 10, 2)})
    assert varying(text, {"M": (4, 8, 4)}).varies == {"M": Varying(4, 8, 4)}


def test_a_called_op_has_sizes_that_it_allows():
    text = "op g(x: f32[K: 4..8 by 2]) -> (y: f32[K]) { y[i] = x[i] }\nop f(x: f32[M]) -> (y: f32[M]) { y = g(x) }"
    assert varying(text, {"M": (4, 8, 4)}, "f").varies
    wrong = [({"M": 3}, {}, "`K` is 3"), ({}, {"M": (4, 8)}, "for `M` = 5: `K` is 5"), ({"M": 10}, {}, "`K` is 10")]
    for sizes, varies, what in wrong:
        with pytest.raises(TileError, match=rf"{what} in the call of `g`, which allows 4\.\.8 by 2"):
            varying(text, varies, "f", **sizes)


def test_sizes_vary_in_the_ranges_of_the_text():
    op = choose_op(parse(read_source("op f(x: f32[M: 1..8, N]) -> (y: f32[M, N]) { y[i, j] = x[i, j] }")), None)
    assert ranges_of(op, {"M"}) == {"M": Varying(1, 8)}
    with pytest.raises(CallError, match="`N` has no range to vary in"):
        ranges_of(op, "all")
    with pytest.raises(CallError, match="has no size `K`"):
        ranges_of(op, {"K"})
    with pytest.raises(CallError, match="not 'M'"):
        ranges_of(op, "M")
    op = tilec.compile("op f(x: f32[M: 1..8]) -> (y: f32[M]) { y[i] = x[i] * 2 }", varies="all", target="cpu")
    assert [float(op(np.ones(m, np.float32)).sum()) for m in (2, 5)] == [4, 10] and len(op.classes()) == 1
    with pytest.raises(CallError, match="`M` is 9"):
        op(np.ones(9, np.float32))


def test_ranges_are_formatted():
    text = "op f(x:f32[M :8 .. 8192  by 8,N])->(y:f32[M]){by=1.\ny[i]=sum[j in 0:N](x[i,j])*by}"
    formatted = format_source(text)
    assert formatted.startswith("op f(x: f32[M: 8..8192 by 8, N]) -> (y: f32[M]) {\n") and format_source(formatted) == formatted
    assert parse(read_source(formatted)) == parse(read_source(text)), "`by` is no keyword"
    assert list(all_sizes({"M": (0, 4, 2), "N": (1, 1)})) == [{"M": m, "N": 1} for m in (0, 2, 4)]
