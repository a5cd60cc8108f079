"""Names, ranges, types and inlining: what `check` refuses and what `specialise` makes of a program."""

from dataclasses import fields, replace
from typing import get_args

import pytest

from tilec import compile as compile_program
from tilec.core.diagnostics import CallError, Source, TileError
from tilec.core.dtypes import BF16, BOOL, F8E4M3, F16, F32, F64, I8, I32, I64, U8
from tilec.dsl import ast
from tilec.dsl.check import Elaborator, check
from tilec.dsl.check_sizes import size_names
from tilec.dsl.mistakes import read
from tilec.dsl.parse import parse
from tilec.dsl.specialise import Specialised, describe_ranges, specialise


def program(text: str) -> ast.Program:
    return parse(Source("test.tile", text))


def special(text: str, inputs=None, op=None, **sizes) -> Specialised:
    return specialise(program(text), op, inputs, sizes)


def op(body: str, signature: str = "x: f32[N]) -> (y: f32[N]") -> str:
    return f"op f({signature}) {{ {body} }}"


def value(text: str, *inputs) -> ast.Expr:
    return special(text, list(inputs)).equations[-1].value


def messages(text: str) -> list[str]:
    return [d.message for d in check(program(text))]


def accesses(s: Specialised) -> list[ast.Access]:
    return [n for e in s.equations for n in ast.traverse(e.value) if isinstance(n, ast.Access)]


PROGRAMS = {
    "softmax": """op softmax(x: f32[M, N]) -> (y: f32[M, N]) {
        m[i] = max[j](x[i, j])  e[i, j] = exp(x[i, j] - m[i])  s[i] = sum[j](e[i, j])  y[i, j] = e[i, j] / s[i] }""",
    "linear": """op linear(x: bf16[M, K], w: bf16[K, N], b: bf16[N]) -> (y: bf16[M, N]) {
        h[m, n] = sum[k](x[m, k] * w[k, n])  y[m, n] = gelu(h[m, n] + b[n]) }""",
    "attention": """op attention(q: bf16[B, H, S, D], k: bf16[B, H, T, D], v: bf16[B, H, T, D])
        -> (o: bf16[B, H, S, D]) {
        s[b, h, i, j] = sum[d](q[b, h, i, d] * k[b, h, j, d]) / sqrt(f32(D))
        p[b, h, i, j] = softmax[j](s[b, h, i, j])
        o[b, h, i, d] = sum[j](p[b, h, i, j] * v[b, h, j, d]) }""",
    "conv": """op conv3x3(x: f32[N, C, H, W], f: f32[K, C, 3, 3]) -> (y: f32[N, K, H, W]) {
        y[n, k, h, w] = sum[c, r, s](pad(x[n, c, h + r - 1, w + s - 1], 0) * f[k, c, r, s]) }""",
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("size", [0, 1, 5])
def test_programs_at_a_glance(name, size):
    tree = program(PROGRAMS[name])
    assert check(tree) == []
    sizes = dict.fromkeys(size_names(tree.ops[0]), size)
    s = specialise(tree, None, None, sizes)
    assert s.sizes == sizes
    for equation in s.equations:
        assert equation.dtype is equation.value.dtype
        assert [r.index for r in equation.ranges] == list(equation.indices)
        assert all(r.low == ast.SizeNumber(0) for r in equation.ranges)
        assert all(node.dtype is not None for node in ast.traverse(equation.value))
    assert not any(access.guarded for access in accesses(s) if name != "conv")


# ---- types -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, inputs, dtype",
    [
        ("y = x * 2", [(F16, ())], F32),
        ("y = x * 2.5", [(F64, ())], F64),
        ("y = x + 1", [(U8, ())], U8),
        ("y = x + 1.5", [(I32, ())], F32),
        ("y = x / 2", [(I32, ())], F32),
        ("y = x + z", [(F64, ()), (I64, ())], F64),
        ("y = x ** 2", [(I32, ())], I32),
        ("y = x ** -1", [(I32, ())], F32),
        ("y = exp(x)", [(I32, ())], F32),
        ("y = abs(x)", [(I8, ())], I8),
        ("y = x > 0", [(BF16, ())], BOOL),
        ("y = x if x > 0 else 0", [(BF16, ())], F32),
        ("y = bf16(x)", [(F32, ())], BF16),
        ("y = 1", [], I64),
        ("y = sqrt(2) * x", [(F64, ())], F64),
        ("y = sum[i](x[i])", [(F8E4M3, (3,))], F32),
        ("y = sum[i](x[i])", [(I8, (3,))], I32),
        ("y = sum[i](x[i]) in f64", [(F32, (3,))], F64),
        ("y = mean[i](x[i])", [(I32, (3,))], F32),
        ("y = argmax[i](x[i])", [(BF16, (3,))], I64),
        ("y = any[i](x[i] > 0)", [(BF16, (3,))], BOOL),
        ("y[i] = cumsum[i](x[i])", [(BF16, (3,))], F32),
        ("y[i]: bf16 = x[i] + x[i]", [(BF16, (3,))], BF16),
        ("y[i] = i + x[i]", [(F32, (3,))], F32),
    ],
)
def test_types(text, inputs, dtype):
    assert special(text, inputs).outputs[0].dtype is dtype


def test_literals_take_the_type_of_what_they_meet():
    assert value("y = x ** 2", (F32, ())).right == ast.Number(2.0, F32)
    assert value("y = -inf if x > 0 else x", (F64, ())).then == ast.Number(float("-inf"), F64)
    assert value("y = x * (2 ** 0.5)", (F64, ())).right.left == ast.Number(2.0, F64)
    assert messages(op("y[i] = f32(u8(x[i]) + 300)")) == ["300 is outside of u8"]
    assert messages("y[i] = (i8(1) if b[i] else x[i]) + 65535") == []  # the type of `x` is not known yet
    assert special("y[i] = (i8(1) if b[i] else x[i]) + 65535", [(BOOL, (3,)), (I32, (3,))]).outputs[0].dtype is I32


def test_narrow_values_are_widened_and_rounded_once():
    text = op("y[i] = x[i] * x[i]", "x: bf16[N]) -> (y: bf16[N]")
    product = special(text, N=4).equations[0].value
    assert isinstance(product, ast.Cast) and product.dtype is BF16 and product.operand.dtype is F32
    assert isinstance(product.operand.left, ast.Cast) and product.operand.left.operand.dtype is BF16
    copied = special(op("y[i] = x[i]", "x: bf16[N]) -> (y: bf16[N]"), N=4).equations[0].value
    assert isinstance(copied, ast.Access)


def test_accumulators_and_multiplicands():
    reduce = value("y = sum[k](a[k] * b[k]) in f64 using tf32", (F32, (3,)), (F32, (3,)))
    assert (reduce.accumulator, reduce.multiplicand, reduce.body.dtype) == (F64, ast.TF32, F64)
    assert messages(op("y[i] = x[i] + sum[k](x[k]) using tf32")) == ["`using` can only follow a sum of products of f32"]
    assert messages(op("y[i] = x[i] + sum[k](x[k]) in bf16")) == ["bf16 cannot be an accumulator"]


# ---- ranges ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, sizes",
    [
        (op("y[i] = x[i + 1] if i + 1 < N else 0"), {"N": 4}),
        (op("y[i] = x[i + 1] if i < N - 1 else 0"), {"N": 4}),
        (op("y[i] = 0 if i == 0 else x[i - 1]"), {"N": 4}),
        (op("y[i] = x[i - 1] if not i < 1 else 0"), {"N": 4}),
        (op("y[i] = x[i - 1] if i > 0 and x[0] > 0 else 0"), {"N": 4}),
        (op("y[i] = a[i] if i < M else b[i - M]", "a: f32[M], b: f32[N]) -> (y: f32[M + N]"), {"M": 3, "N": 2}),
        (op("y[i] = sum[k](x[i - k] if k <= i else 0)  where k in 0:N"), {"N": 4}),
    ],
)
def test_guards_make_accesses_safe(text, sizes):
    assert messages(text) == []
    assert any(access.guarded for access in accesses(special(text, **sizes)))


@pytest.mark.parametrize(
    "text, sizes",
    [
        (op("y[i, j] = x[i * P + j]", "x: f32[M * P]) -> (y: f32[M, P]"), {"M": 3, "P": 4}),
        (op("y[i] = x[i // P, i % P]", "x: f32[M, P]) -> (y: f32[M * P]"), {"M": 3, "P": 4}),
        (op("y[i] = x[2 * i] + x[2 * i + 1]", "x: f32[2 * N]) -> (y: f32[N]"), {"N": 4}),
        (op("y[i] = x[N - 1 - i]"), {"N": 4}),
        (op("y[i] = x[(i + 1) % N]"), {"N": 4}),
        (op("y[i] = x[i + 1] - x[i] where i in 0:N - 1", "x: f32[N]) -> (y: f32[N - 1]"), {"N": 4}),
        (op("y[i] = pad(x[i], 0)", "x: f32[N]) -> (y: f32[N + 2]"), {"N": 4}),
        (op("y[i] = x[i + 5]"), {"N": 0}),
    ],
)
def test_provably_inside(text, sizes):
    assert messages(text) == [] or not any(sizes.values())
    if any(sizes.values()):
        assert not any(access.guarded for access in accesses(special(text, **sizes)))


def test_outside_is_refused_with_the_values():
    (message,) = messages(op("y[i] = x[i + 1]"))
    assert message == "`x[i + 1]` reaches outside: `i + 1` takes the values 1 to N, and dimension 0 of `x` has size N"
    maybe = op("y[i] = x[i + 3] + x[0] where i in 0:M", "x: f32[N]) -> (y: f32[M]")
    assert messages(maybe) == []
    assert special(maybe, M=2, N=5)
    with pytest.raises(TileError, match="takes the values 3 to 5, and dimension 0 of `x` has size 5"):
        special(maybe, M=3, N=5)


def test_sizes_must_agree():
    text = op("z[i] = x[i] + y[i]", "x: f32[M], y: f32[N]) -> (z: f32[M]")
    (diagnostic,) = check(program(text))
    assert diagnostic.message == "index `i` runs over sizes that differ: M and N"
    assert [n.message for n in diagnostic.notes] == ["dimension 0 of `x` is M", "dimension 0 of `y` is N"]
    with pytest.raises(TileError, match="sizes that differ: 3 and 4"):
        special("z[i] = x[i] + y[i]", [(F32, (3,)), (F32, (4,))])


def test_one_name_two_ranges_in_one_equation():
    total = value("y[i] = sum[k in 0:4](x[i, k]) + sum[k in 4:8](x[i, k])", (F32, (2, 8)))
    assert [r.index for side in (total.left, total.right) for r in side.ranges] == ["k", "k_2"]


def test_gathers_are_guarded():
    text = op("y[i, d] = t[ids[i], d]", "t: bf16[V, D], ids: i32[N]) -> (y: bf16[N, D]")
    access = special(text, V=9, D=3, N=4).equations[0].value
    assert access.guarded and access.subscripts[0].dtype is I64
    assert not access.subscripts[0].operand.guarded


def test_argmax_over_nothing():
    with pytest.raises(TileError, match="`argmax` over an empty range"):
        special("y = argmax[i](x[i])", [(F32, (0,))])
    assert special("y = max[i](x[i]) + mean[i](x[i]) + logsumexp[i](x[i])", [(F32, (0,))])


def test_describe_ranges():
    described = describe_ranges(program(PROGRAMS["softmax"]))
    assert str(described[1]) == "m: f32[M]  i in 0:M, j in 0:N"
    described = describe_ranges(program(PROGRAMS["softmax"]), "softmax", {"N": 7})
    assert str(described[1]) == "m: f32[M]  i in 0:M, j in 0:7"


# ---- functions and ops -----------------------------------------------------------------------------------------------


def test_softmax_is_inlined_under_speaking_names():
    s = special("y[i, j] = softmax[j](x[i, j])\nz[i, j] = softmax[i](x[i, j])", [(F32, (3, 4))])
    names = [e.name for e in s.equations]
    assert names[:4] == ["softmax.m", "softmax.e", "softmax.s", "y"]
    assert names[4:] == ["softmax_2.m", "softmax_2.e", "softmax_2.s", "z"]
    assert [e.indices for e in s.equations[:4]] == [("i",), ("i", "j"), ("i",), ("i", "j")]


def test_arguments_are_computed_once():
    s = special("y[i] = gelu(x[i] + b[i])", [(F32, (3,)), (F32, (3,))])
    assert [e.name for e in s.equations] == ["gelu.x", "y"]
    s = special("y[i, j] = sum[k](gelu(a[i, k] * b[k, j]))", [(F32, (3, 4)), (F32, (4, 5))])
    assert [e.name for e in s.equations] == ["y"]


def test_guards_follow_an_argument():
    s = special(op("y[i] = gelu(x[i - 1] + 1) if i > 0 else 0"), N=4)
    assert s.equations[0].name == "gelu.x" and isinstance(s.equations[0].value, ast.Conditional)


def test_own_functions_shadow_the_library_and_scalars_do_not_leak():
    text = "def relu(x) { return x }\ny[i] = relu(x[i])"
    assert value(text, (F32, (3,))) == ast.Access("x", (ast.Name("i", I64),), F32)


def test_op_calls_are_inlined():
    text = """
    op lin(x: bf16[M, K], w: bf16[K, N]) -> (y: bf16[M, N]) { h[m, n] = sum[k](x[m, k] * w[k, n]) y[m, n] = h[m, n] }
    op two(x: bf16[M, M], w: bf16[M, M]) -> (y: bf16[M, M]) { a = lin(x, w) y = lin(a, w) }
    """
    s = special(text, op="two", M=4)
    assert [e.name for e in s.equations] == ["lin.h", "a", "lin_2.h", "y"]
    assert {access.tensor for access in accesses(s)} == {"x", "w", "lin.h", "a", "lin_2.h"}


def test_imports(tmp_path):
    (tmp_path / "lib.tile").write_text("def twice(x) { return two(x) }\ndef two(x) { return 2 * x }\n")
    (tmp_path / "loop.tile").write_text('import "loop.tile"\ndef g(x) { return x }\n')

    def found(text: str) -> list[str]:
        return [d.message for d in check(parse(Source(str(tmp_path / "main.tile"), text)))]

    assert found('import "lib.tile"\ny[i] = twice(x[i])') == []
    assert found('import "loop.tile"\ny[i] = g(x[i])')[0] == "`loop.tile` imports itself, by way of this file"
    assert found('import "none.tile"\ny[i] = x[i]') == ["cannot import `none.tile`: there is no such file"]


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "text",
    [
        "def f(x) { return f(x) }\ny = f(x)",
        "def f(x) { return g(x) }\ndef g(x) { return f(x) }\ny = f(x)",
        "op f(x: f32) -> (y: f32) { y = f(x) }",
        "\n".join(f"def g{n}(x) {{ a = g{n - 1}(x + 1) b = g{n - 1}(a + 1) return a * b }}" for n in range(1, 30))
        + "\ndef g0(x) { return x * x + x }\ny = g29(x)",
        "\n".join(f"def g{n}(x) {{ return {'exp(' * 60}g{n - 1}(x){')' * 60} }}" for n in range(1, 30))
        + "\ndef g0(x) { return x }\ny = g29(x)",
    ],
    ids=["itself", "each other", "op", "exponential", "deep"],
)
def test_calls_that_never_end(text):
    assert messages(text)


# ---- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inputs, message",
    [
        ([(F64, (4, 4)), (F32, (4,))], "`x` is f32, and the argument is f64"),
        ([(F32, (4,)), (F32, (4,))], "`x` has 2 dimensions, and the argument has 1"),
        ([(F32, (4, 5)), (F32, (4,))], "`N` is 4 by dimension 0 of `x`, but dimension 1 of `x` is 5"),
        ([(F32, (4, 4)), (F32, (6,))], "`N` is 4 by dimension 0 of `x`, but dimension 0 of `b` is 6"),
        ([(F32, (4, 4))], "takes 2 arguments"),
        (None, "the size `N` is not known"),
    ],
)
def test_arguments_that_do_not_fit(inputs, message):
    text = op("y[i, j] = x[i, j] + b[j]", "x: f32[N, N], b: f32[N]) -> (y: f32[N, N]")
    with pytest.raises(CallError, match=message):
        special(text, inputs)


@pytest.mark.parametrize("text, index", [("c[i, j] = a[i, k] * b[k, j]", "k"), ("y[i] = x[i, j]", "j")])
def test_einsum_without_its_sum(text, index):
    """The short form takes the index for an input: the message says what was meant."""
    with pytest.raises(CallError, match=rf"to sum over it: `.*sum\[{index}\]"):
        special(text, [(F32, (4, 4))])


def test_sizes_are_solved_for():
    text = op("y[i] = x[i] + 0 * z[0]", "x: f32[2 * M + 1], z: f32[M * K]) -> (y: f32[2 * M + 1]")
    assert special(text, [(F32, (7,)), (F32, (12,))]).sizes == {"M": 3, "K": 4}
    with pytest.raises(CallError, match="dimension 0 of `x` is 8, which cannot be `2 \\* M \\+ 1`"):
        special(text, [(F32, (8,)), (F32, (12,))])


def test_the_op_must_be_clear():
    two = "op f(x: f32) -> (y: f32) { y = x }\nop g(x: f32) -> (y: f32) { y = x }"
    with pytest.raises(CallError, match="several ops"):
        special(two)
    with pytest.raises(CallError, match="no op `h`"):
        special(two, op="h")
    assert special(two, op="g").name == "g"


@pytest.mark.parametrize(
    "source, message",
    [
        (len, "the program must be a path or a text, not a value of the type builtin_function_or_method"),
        ("none.tile", "^error: there is no file 'none.tile'$"),
    ],
)
def test_what_is_no_program(source, message):
    with pytest.raises(TileError, match=message):
        compile_program(source)


@pytest.mark.parametrize(
    "text",
    [
        "op f(x: f32[4, 6]) -> (y: f32[4]) { y[i] = sum[j](exp(x[i, j])) }",
        "op f(x: f32[4, 6]) -> (y: f32[4, 6]) { y[i, j] = softmax[j](x[i, j]) if i + j < 5 else pad(x[i - 1, j], 1) }",
    ],
)
def test_an_op_whose_sizes_are_numbers_is_elaborated_once(text, monkeypatch):
    checked = read(Source("test.tile", text))
    assert set(checked.elaborated) == {"f"}
    anew = specialise(replace(checked, elaborated={}), checked=True)
    monkeypatch.setattr(Elaborator, "run", None)
    assert specialise(checked, checked=True) == anew
    assert specialise(checked, "f", [(F32, (4, 6))], checked=True) == anew
    with pytest.raises(CallError, match="`x`"):
        specialise(checked, "f", [(F32, (4, 7))], checked=True)


@pytest.mark.parametrize(
    "text",
    [
        "op f(x: f32[4, N]) -> (y: f32[4]) { y[i] = sum[j](x[i, j]) }",
        "y[i] = 2 * x[i]",
        "op g(x: f32[N]) -> (y: f32[N]) { y[i] = 2 * x[i] }\nop f(x: f32[4]) -> (y: f32[4]) { y = g(x) }",
    ],
)
def test_an_op_whose_call_determines_more_is_elaborated_by_the_call(text):
    assert not read(Source("test.tile", text)).elaborated


@pytest.mark.parametrize("kind", get_args(ast.Expr))
def test_every_expression_has_its_parts(kind):
    names = [f.name for f in fields(kind) if f.type in ("Expr", "Access", "tuple[Expr, ...]")]
    one, other = (tuple(ast.Name(f"{letter}{n}") for n in range(len(names))) for letter in "ab")
    values = {f.name: None for f in fields(kind)}
    lists = {f.name for f in fields(kind) if f.type == "tuple[Expr, ...]"}
    made = kind(**values | {n: (v,) if n in lists else v for n, v in zip(names, one)})
    assert set(ast.children(made)) == set(one)
    assert ast.with_children(made, ast.children(made)) is made
    found = ast.with_children(made, tuple(other[one.index(part)] for part in ast.children(made)))
    assert found == kind(**values | {n: (v,) if n in lists else v for n, v in zip(names, other)})
    assert set(ast.children(made)) == set(one)
